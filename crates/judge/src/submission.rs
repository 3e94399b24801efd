//! A submission as the builder sees it.

use std::collections::BTreeMap;

use serde::Deserialize;
use warpsmith_schema::Target;
pub(crate) use warpsmith_schema::{MODEL_NEW, Submission, SubmissionForm};

/// One library to build.
#[derive(Debug, Clone)]
pub(crate) struct BuildUnit {
    pub(crate) name: String,
    pub(crate) fingerprint: String,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// What nvcc is told besides what every file is compiled with.
    pub(crate) cuda_flags: Vec<String>,
}

/// What `load_inline` was asked to build, as the extraction run recorded it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Extension {
    name: String,
    cpp_sources: Vec<String>,
    cuda_sources: Vec<String>,
    functions: Vec<String>,
    fingerprint: String,
    #[serde(default)]
    cuda_flags: Vec<String>,
}

/// The unit of a folder form.
pub(crate) fn folder_unit(submission: &Submission) -> BuildUnit {
    let name = if submission.form == SubmissionForm::Plain {
        "warpsmith_kernels"
    } else {
        "cuda_extension"
    };
    let files = submission
        .files
        .iter()
        .filter(|(path, _)| *path != MODEL_NEW);
    BuildUnit {
        name: name.to_owned(),
        fingerprint: String::new(),
        files: files
            .map(|(path, text)| (path.clone(), text.clone()))
            .collect(),
        // As in the CUDA Agent workspace; the comparison with float64 decides whether it was too fast.
        cuda_flags: vec![FAST_MATH.to_owned()],
    }
}

/// Files of an inline extension.
pub(crate) const INLINE_BINDING: &str = "kernels/main.cpp";
pub(crate) const INLINE_CUDA: &str = "kernels/cuda.cu";

pub(crate) const FAST_MATH: &str = "--use_fast_math";

/// Names and flags become arguments of a compiler, which the kernel takes up to a length.
const NAME_BYTES: usize = 100;
const FLAG_BYTES: usize = 200;
const FLAG_COUNT: usize = 64;

/// Of an inline file's `extra_cuda_cflags` those that say how its arithmetic is done, how it is optimised and which macros it has:
/// a file that asks for none gets none. Others (architectures, paths, linking) are the judge's own.
fn kept_cuda_flags(flags: &[String]) -> Vec<String> {
    let word = |text: &str| {
        !text.is_empty()
            && text.len() <= FLAG_BYTES
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_=.+-".contains(c))
    };
    let kept = |flag: &&String| {
        let plain = flag.trim_start_matches('-');
        let name = plain.split('=').next().unwrap_or_default();
        let arithmetic = ["ftz", "prec-div", "prec-sqrt", "fmad", "maxrregcount"].contains(&name);
        let macro_or_level = ["-D", "-U", "-O"]
            .iter()
            .any(|kind| flag.strip_prefix(kind).is_some_and(word));
        flag.starts_with('-')
            && (plain == "use_fast_math"
                || (arithmetic && plain.contains('=') && word(plain))
                || macro_or_level)
    };
    flags
        .iter()
        .filter(kept)
        .take(FLAG_COUNT)
        .cloned()
        .collect()
}

/// Functions that the sources declare to return `int`: those report an error by it.
pub(crate) fn functions_with_status(files: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let mut found = Vec::new();
    for text in files.values() {
        let text = String::from_utf8_lossy(text);
        for (place, _) in text.match_indices("int ") {
            let whole_word = !text[..place].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let rest = text[place + 4..].trim_start();
            let end = rest
                .find(|c: char| !(c.is_alphanumeric() || c == '_'))
                .unwrap_or(0);
            if whole_word && end > 0 && rest[end..].trim_start().starts_with('(') {
                found.push(rest[..end].to_owned());
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The units of a single file, or why they cannot be built.
pub(crate) fn inline_units(
    extensions: Vec<Extension>,
    target: Target,
) -> Result<Vec<BuildUnit>, String> {
    let mut units = Vec::new();
    for extension in extensions {
        let plain = |text: &str| {
            (1..=NAME_BYTES).contains(&text.len())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if !plain(&extension.name) || !extension.functions.iter().all(|function| plain(function)) {
            let shown: String = extension.name.chars().take(NAME_BYTES).collect();
            return Err(format!(
                "`{shown}` is not a usable extension name, or one of its functions has none"
            ));
        }
        let mut main = "#include <torch/extension.h>\n".to_owned();
        for source in &extension.cpp_sources {
            main.push_str(source);
            main.push('\n');
        }
        if !extension.functions.is_empty() {
            main.push_str("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n");
            for function in &extension.functions {
                let bound = format!(
                    "m.def(\"{function}\", torch::wrap_pybind_function({function}), \"{function}\");"
                );
                main.extend(["    ", &bound, "\n"]);
            }
            main.push_str("}\n");
        }
        let mut files = BTreeMap::from([(INLINE_BINDING.to_owned(), main.into_bytes())]);
        if !extension.cuda_sources.is_empty() {
            if target != Target::Cuda {
                return Err("the file has CUDA sources but the target is cpu".to_owned());
            }
            let mut cuda =
                "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
                    .to_owned();
            cuda.push_str(&extension.cuda_sources.join("\n"));
            files.insert(INLINE_CUDA.to_owned(), cuda.into_bytes());
        }
        units.push(BuildUnit {
            name: extension.name,
            fingerprint: extension.fingerprint,
            files,
            cuda_flags: kept_cuda_flags(&extension.cuda_flags),
        });
    }
    if units.is_empty() {
        return Err("the file never calls load_inline, so it has no kernel of its own".to_owned());
    }
    Ok(units)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KernelBench's own files ask for nothing and must get nothing: an exact GELU is none under fast mathematics.
    #[test]
    fn an_inline_file_is_compiled_with_its_own_flags() {
        let units = |flags: &[&str]| {
            let extension = Extension {
                name: "gelu".to_owned(),
                cpp_sources: Vec::new(),
                cuda_sources: vec!["__global__ void gelu() {}".to_owned()],
                functions: vec!["gelu".to_owned()],
                fingerprint: String::new(),
                cuda_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            };
            inline_units(vec![extension], Target::Cuda).unwrap()[0]
                .cuda_flags
                .clone()
        };
        assert_eq!(units(&[]), [""; 0]);
        let good = [
            "-O2",
            "--use_fast_math",
            "-use_fast_math",
            "-DTILE=32",
            "-ftz=true",
            "--maxrregcount=64",
        ];
        assert_eq!(units(&good), good);
        let bad = [
            "-I/etc",
            "-L/",
            "-lcudnn",
            "-gencode=arch=compute_80,code=sm_80",
            "-Xcompiler=-fplugin=x.so",
            "--ptxas-options=-v",
            "-DX=$(id)",
            "O3",
            "-ftz",
            "-O",
        ];
        assert_eq!(units(&bad), [""; 0]);
        let folder = Submission {
            form: SubmissionForm::CudaAgent,
            files: BTreeMap::new(),
        };
        assert_eq!(folder_unit(&folder).cuda_flags, [FAST_MATH]);
    }

    /// The kernel refuses arguments from 128 KiB on: that would be no verdict.
    #[test]
    fn what_becomes_an_argument_is_short() {
        let units = |name: String, flag: String| {
            let extension = Extension {
                name,
                cpp_sources: Vec::new(),
                cuda_sources: Vec::new(),
                functions: Vec::new(),
                fingerprint: String::new(),
                cuda_flags: vec![flag; 1000],
            };
            inline_units(vec![extension], Target::Cuda)
        };
        assert!(units("a".repeat(200_000), String::new()).unwrap_err().len() < 300);
        let long = format!("-D{}", "x".repeat(200_000));
        assert_eq!(units("a".to_owned(), long).unwrap()[0].cuda_flags, [""; 0]);
        let many = units("a".to_owned(), "-O2".to_owned()).unwrap();
        assert_eq!(many[0].cuda_flags.len(), FLAG_COUNT);
    }

    #[test]
    fn launchers_with_a_status_are_found_by_their_declaration() {
        let text = "extern \"C\" int scale(float* out) { return 0; }\nextern \"C\" void add(int n, float* x) {}\nprint (1);\nconst int\nother (int a);";
        let files = BTreeMap::from([("kernels/a.cpp".to_owned(), text.as_bytes().to_vec())]);
        assert_eq!(functions_with_status(&files), ["scale"]);
    }
}
