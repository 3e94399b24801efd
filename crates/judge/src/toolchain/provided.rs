//! Calls that CUDA solutions in the plain form are given: compiled once like a candidate's own files, linked where they are used.
//!
//! They are a convenience in the candidate's process: what they may import is what every candidate may, and nothing that they
//! say is believed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use warpsmith_schema::Target;

use super::{BUILD_LIMIT, CompileJob, Language, Toolchain, compile_all};
use crate::JudgeError;
use crate::submission::{BuildUnit, FAST_MATH, SubmissionForm};

/// What a solution includes.
const HEADER: &str = "warpsmith.h";
/// That header, and what it includes itself. A folder's own files of these names are ignored.
pub(super) const VISIBLE: [(&str, &str); 2] = [
    (HEADER, include_str!("../../provided/warpsmith.h")),
    (
        "warpsmith_device.h",
        include_str!("../../provided/warpsmith_device.h"),
    ),
];
/// What the files of the calls include besides.
const SHARED: (&str, &str) = ("provided.h", include_str!("../../provided/provided.h"));
/// A call, and the file that defines it.
const CALLS: [(&str, &str, &str); 2] = [
    (
        "warpsmith_gemm",
        "gemm.cu",
        include_str!("../../provided/gemm.cu"),
    ),
    (
        "warpsmith_conv",
        "conv.cu",
        include_str!("../../provided/conv.cu"),
    ),
];

/// The files of the provided calls that these sources use, by name; nothing where they do not include the header.
pub fn provided_sources<'a>(
    sources: impl IntoIterator<Item = &'a [u8]>,
) -> BTreeMap<&'static str, &'static str> {
    let texts = sources.into_iter().map(String::from_utf8_lossy);
    let texts: Vec<_> = texts.collect();
    let includes = |line: &str| line.contains("include") && line.contains(HEADER);
    if !texts.iter().any(|text| text.lines().any(includes)) {
        return BTreeMap::new();
    }
    let called = CALLS
        .iter()
        .filter(|(call, ..)| texts.iter().any(|text| text.contains(call)))
        .map(|(_, path, text)| (*path, *text));
    headers().chain(called).collect()
}

fn headers() -> impl Iterator<Item = (&'static str, &'static str)> {
    VISIBLE.into_iter().chain([SHARED])
}

/// The same for a library of a submission.
pub(super) fn of_unit(
    unit: &BuildUnit,
    form: SubmissionForm,
    target: Target,
) -> BTreeMap<&'static str, &'static str> {
    if target != Target::Cuda || form != SubmissionForm::Plain {
        return BTreeMap::new();
    }
    provided_sources(unit.files.values().map(Vec::as_slice))
}

impl Toolchain {
    /// Objects of provided files, from the cache or compiled now.
    pub(super) fn provided_objects(
        &self,
        provided: &BTreeMap<&'static str, &'static str>,
    ) -> Result<Vec<PathBuf>, JudgeError> {
        let files: BTreeMap<String, Vec<u8>> = provided
            .iter()
            .map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec()))
            .collect();
        let units = provided.keys().filter(|path| path.ends_with(".cu"));
        let deadline = Instant::now() + BUILD_LIMIT;
        let cuda_flags = [FAST_MATH.to_owned()];
        let jobs: Vec<CompileJob<'_>> = units
            .map(|path| CompileJob {
                path,
                language: Language::Cuda {
                    torch: false,
                    shared_templates: false,
                },
                provided: true,
                extension: "",
                flags: &cuda_flags,
                deadline,
            })
            .collect();
        let compiled = compile_all(self, &jobs, &files, jobs.len());
        let object = |result: Result<(Option<PathBuf>, String), JudgeError>| {
            let (object, log) = result?;
            object.ok_or_else(|| {
                let message = format!("the provided calls do not compile:\n{log}");
                JudgeError::infrastructure("support_build", message)
            })
        };
        compiled.into_iter().map(object).collect()
    }

    /// Compiles all of them ahead.
    pub(crate) fn provide(&self) -> Result<(), JudgeError> {
        if self.target != Target::Cuda {
            return Ok(());
        }
        let units = CALLS.iter().map(|(_, path, text)| (*path, *text));
        let all = headers().chain(units).collect();
        self.provided_objects(&all).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use warpsmith_machine::{Caches, PythonChoice, find_cxx, find_nvcc, find_python};
    use warpsmith_schema::{MODEL_NEW, Submission, SubmissionForm, Target};

    use super::{Toolchain, provided_sources};
    use crate::imports::first_forbidden_import;
    use crate::submission::folder_unit;
    use crate::toolchain::BuildResult;

    const GEMM: &str = "#include \"warpsmith.h\"
extern \"C\" int product(float* out, const float* a, const float* b, int64_t n, cudaStream_t stream) {
    return warpsmith_gemm(out, a, b, nullptr, {n, n, n}, stream);
}
";
    const CONV: &str = "#include \"warpsmith.h\"
extern \"C\" int convolution(float* out, const float* x, const float* weight, const float* bias, cudaStream_t stream) {
    WarpsmithConv conv{8, 16, 32, {64, 48}, {3, 5}};
    conv.padding = {1, 2};
    conv.activation = WARPSMITH_RELU;
    return warpsmith_conv(out, x, weight, bias, conv, stream);
}
";

    /// A function of its own beside the provided one of that name.
    const SUM: &str = "#include \"warpsmith.h\"
template <int threads>
__device__ float block_sum(float v) { return warpsmith::block_sum<threads>(v); }
__global__ void sum_kernel(float* out, const float* x) { *out = warpsmith::log(block_sum<256>(x[threadIdx.x])); }
extern \"C\" int sum(float* out, const float* x, cudaStream_t stream) {
    sum_kernel<<<1, 256, 0, stream>>>(out, x);
    return cudaGetLastError();
}
";

    fn files(sources: &[&str]) -> Vec<&'static str> {
        let sources = sources.iter().map(|source| source.as_bytes());
        provided_sources(sources).into_keys().collect()
    }

    #[test]
    fn what_is_called_is_provided() {
        let own = "extern \"C\" void warpsmith_gemm(int, int);";
        assert_eq!(files(&[own, "// warpsmith_conv in warpsmith.h"]), [""; 0]);
        let header = "#include \"warpsmith.h\"";
        let headers = ["provided.h", "warpsmith.h", "warpsmith_device.h"];
        assert_eq!(files(&[header]), headers);
        let with = |call| [&[call], &headers[..]].concat();
        assert_eq!(files(&[GEMM]), with("gemm.cu"));
        let conv = "return warpsmith_conv(out, x);";
        assert_eq!(files(&[conv, header]), with("conv.cu"));
    }

    /// They are linked where they are called, and import what every candidate may.
    #[test]
    #[ignore = "needs nvcc"]
    fn calls_are_linked_within_the_rules() {
        let caches = Caches::locate().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let toolchain = Toolchain {
            python: find_python(&PythonChoice::Auto, &caches).unwrap().unwrap(),
            caches: Caches {
                root: folder.path().to_path_buf(),
            },
            cxx: find_cxx().unwrap(),
            nvcc: Some(find_nvcc().unwrap()),
            target: Target::Cuda,
            arch: Some("90".to_owned()),
            isolation: warpsmith_sandbox::Isolation::Weak,
        };
        let build = |sources: &[(&str, &str)]| {
            let owned =
                |(path, text): &(&str, &str)| ((*path).to_owned(), text.as_bytes().to_vec());
            let mut files: BTreeMap<String, Vec<u8>> = sources.iter().map(owned).collect();
            files.insert(MODEL_NEW.to_owned(), Vec::new());
            let form = SubmissionForm::Plain;
            let submission = Submission { form, files };
            let units = [folder_unit(&submission)];
            let built = toolchain.build(&submission, &units).unwrap();
            let BuildResult::Ready { libraries, log } = built else {
                panic!("{built:?}");
            };
            assert!(
                !log.contains("gemm.cu") && !log.contains("conv.cu"),
                "{log}"
            );
            let library = fs_err::read(&libraries[0].path).unwrap();
            assert_eq!(first_forbidden_import(&library).unwrap(), None);
            let has = |word: &str| {
                let mut windows = library.windows(word.len());
                windows.any(|window| window == word.as_bytes())
            };
            ["libcublasLt.so", "libcudnn.so"].map(has)
        };
        let empty = "extern \"C\" int nothing(cudaStream_t) { return 0; }\n";
        assert_eq!(build(&[("kernels/a.cu", empty)]), [false, false]);
        assert_eq!(build(&[("kernels/a.cu", SUM)]), [false, false]);
        // A folder's own headers of these names are not read.
        for own in ["kernels/warpsmith.h", "kernels/warpsmith_device.h"] {
            let own = (own, "#error ours");
            assert_eq!(build(&[("kernels/a.cu", GEMM), own]), [true, false]);
        }
        let below = ("kernels/below/b.cu", CONV);
        assert_eq!(build(&[("kernels/a.cu", GEMM), below]), [true, true]);
        let by_cxx = [("kernels/a.cpp", CONV)];
        assert_eq!(build(&by_cxx), [false, true]);
    }
}
