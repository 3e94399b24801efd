//! The quick way to build an inline extension: nvcc reads the kernels alone, g++ the rest with PyTorch's headers precompiled.
//!
//! Where a file cannot be split, or anything does not compile or link like this, the extension is built as it is: what the quick way
//! refuses is never a verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use fs_err as fs;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol};
use tracing::warn;

use super::precompiled::PrecompiledHeader;
use super::split::{instantiations, split};
use super::{BuiltLibrary, CompileJob, Language, Toolchain};
use crate::JudgeError;
use crate::submission::{BuildUnit, INLINE_BINDING, INLINE_CUDA};

/// Of the file that the CUDA one is split into, beside it.
const HOST: &str = "kernels/cuda.cpp";
/// Everything in PyTorch, and twice the time of what bindings need.
const WHOLE_TORCH: &str = "#include <torch/extension.h>";

/// Sources of the quick way.
struct QuickSources {
    binding: String,
    cuda: Option<super::split::SplitSource>,
}

impl QuickSources {
    fn of(unit: &BuildUnit) -> Option<Self> {
        let text = |path: &str| std::str::from_utf8(unit.files.get(path)?).ok();
        let cuda = match text(INLINE_CUDA) {
            Some(text) => Some(split(text)?),
            None => None,
        };
        Some(Self {
            binding: text(INLINE_BINDING)?.replace(WHOLE_TORCH, ""),
            cuda,
        })
    }
}

impl Toolchain {
    /// `None` where the extension is to be built as it is.
    pub(super) fn build_quickly(
        &self,
        unit: &BuildUnit,
        deadline: Instant,
        log: &mut String,
    ) -> Result<Option<BuiltLibrary>, JudgeError> {
        let Some(sources) = QuickSources::of(unit) else {
            return Ok(None);
        };
        let Some((objects, mut quick_log)) = self.quick_objects((unit, deadline), &sources)? else {
            return Ok(None);
        };
        let library = self.link(&objects, unit, true, &mut quick_log)?;
        if library.is_some() {
            log.push_str(&quick_log);
        }
        Ok(library)
    }

    fn quick_objects(
        &self,
        unit: (&BuildUnit, Instant),
        sources: &QuickSources,
    ) -> Result<Option<(Vec<PathBuf>, String)>, JudgeError> {
        let binding = || {
            let header = match sources.cuda {
                Some(_) => PrecompiledHeader::Binding,
                None => PrecompiledHeader::Torch,
            };
            self.quick_object(unit, INLINE_BINDING, header.into(), &sources.binding)
        };
        let Some(cuda) = &sources.cuda else {
            return Ok(binding()?.map(|(object, log)| (vec![object], log)));
        };
        let device = |text: &str| {
            let language = Language::Cuda {
                torch: false,
                shared_templates: !cuda.templates.is_empty(),
            };
            self.quick_object(unit, INLINE_CUDA, language, text)
        };
        let (binding, host, device) = std::thread::scope(|scope| {
            let binding = scope.spawn(binding);
            let early = cuda
                .templates
                .is_empty()
                .then(|| scope.spawn(|| device(&cuda.device)));
            let host = self.quick_object(unit, HOST, PrecompiledHeader::Host.into(), &cuda.host);
            let device = match (early, &host) {
                (Some(early), _) => joined(early),
                (None, Ok(Some((object, _)))) => instantiated(object, &cuda.templates)
                    .map_or(Ok(None), |kernels| {
                        device(&format!("{}\n{kernels}", cuda.device))
                    }),
                (None, _) => Ok(None),
            };
            (joined(binding), host, device)
        });
        let (Some(binding), Some(host), Some(device)) = (binding?, host?, device?) else {
            return Ok(None);
        };
        let (objects, logs): (Vec<_>, Vec<_>) = [device, host, binding].into_iter().unzip();
        Ok(Some((objects, logs.concat())))
    }

    fn quick_object(
        &self,
        (unit, deadline): (&BuildUnit, Instant),
        path: &str,
        language: Language,
        text: &str,
    ) -> Result<Option<(PathBuf, String)>, JudgeError> {
        if let Language::Cxx {
            header: Some(header),
        } = language
            && let Err(error) = self.precompile(header)
        {
            warn!(%error, "inline extensions are built as they are");
            return Ok(None);
        }
        let flags: Vec<String> = match language {
            Language::Cuda { .. } => unit.cuda_flags.clone(),
            // Of nvcc's flags what its host compiler sees.
            Language::Cxx { .. } if path == HOST => {
                let is_macro = |flag: &&String| flag.starts_with("-D") || flag.starts_with("-U");
                unit.cuda_flags.iter().filter(is_macro).cloned().collect()
            }
            Language::Cxx { .. } => Vec::new(),
        };
        let job = CompileJob {
            path,
            language,
            provided: false,
            extension: &unit.name,
            flags: &flags,
            deadline,
        };
        let files = BTreeMap::from([(path.to_owned(), text.as_bytes().to_vec())]);
        let (object, log) = self.object(&job, &files)?;
        Ok(object.map(|object| (object, log)))
    }
}

fn joined<T>(
    thread: std::thread::ScopedJoinHandle<'_, Result<T, JudgeError>>,
) -> Result<T, JudgeError> {
    let panicked = |_| JudgeError::infrastructure("panic", "a compile thread panicked");
    thread.join().map_err(panicked)?
}

/// Definitions of the template kernels that a host object launches.
fn instantiated(object: &Path, templates: &BTreeSet<String>) -> Option<String> {
    let bytes = fs::read(object).ok()?;
    let file = ElfFile64::<object::Endianness>::parse(bytes.as_slice()).ok()?;
    let mut kernels = BTreeSet::new();
    for symbol in file.symbols().filter(ObjectSymbol::is_undefined) {
        let name = symbol.name().ok()?;
        // Most are PyTorch's and launch nothing.
        if !templates
            .iter()
            .any(|template| name.contains(template.as_str()))
        {
            continue;
        }
        let demangled = cpp_demangle::Symbol::new(name).ok()?.demangle().ok()?;
        let is_kernel = |template: &String| demangled.starts_with(&format!("void {template}<"));
        if templates.iter().any(is_kernel) {
            kernels.insert(demangled);
        }
    }
    Some(instantiations(kernels.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use warpsmith_machine::{Caches, PythonChoice, find_cxx, find_nvcc, find_python};
    use warpsmith_sandbox::Isolation;
    use warpsmith_schema::Target;

    use super::super::BUILD_LIMIT;
    use super::*;
    use crate::imports::first_forbidden_import;

    fn unit(name: &str, signature: &str, cuda: &str) -> BuildUnit {
        let binding = format!(
            "#include <torch/extension.h>\n{signature};\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n    \
             m.def(\"{name}\", torch::wrap_pybind_function({name}), \"{name}\");\n}}\n"
        );
        let cuda = format!(
            "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n{cuda}"
        );
        BuildUnit {
            name: name.to_owned(),
            fingerprint: String::new(),
            files: [(INLINE_BINDING, binding), (INLINE_CUDA, cuda)]
                .map(|(path, text)| (path.to_owned(), text.into_bytes()))
                .into(),
            cuda_flags: vec!["-DUNUSED=1".to_owned()],
        }
    }

    /// Objects anew each time, precompiled headers from the user's cache.
    #[test]
    #[ignore = "needs nvcc"]
    fn inline_files_are_built_the_quick_way() {
        let user = Caches::locate().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let caches = Caches {
            root: folder.path().to_path_buf(),
        };
        fs::create_dir_all(user.support()).unwrap();
        std::os::unix::fs::symlink(user.support(), caches.support()).unwrap();
        let toolchain = Toolchain {
            python: find_python(&PythonChoice::Auto, &user).unwrap().unwrap(),
            caches,
            cxx: find_cxx().unwrap(),
            nvcc: Some(find_nvcc().unwrap()),
            target: Target::Cuda,
            arch: Some("90".to_owned()),
            isolation: Isolation::Weak,
        };
        let begun = Instant::now();
        toolchain.precompile_all().unwrap();
        println!("headers {:.1} s", begun.elapsed().as_secs_f64());
        let tensor = "torch::Tensor";
        for (name, signature, cuda, kernels) in [
            (
                "add_cuda",
                format!("{tensor} add_cuda({tensor} a, {tensor} b)"),
                include_str!("forms/add.cu"),
                1,
            ),
            (
                "matmul_cuda",
                format!(
                    "std::vector<{tensor}> matmul_cuda(const {tensor}& a, {tensor} b, double unused, bool also_unused)"
                ),
                include_str!("forms/tiled_matmul.cu"),
                1,
            ),
            // Of float and double, and one more of float.
            (
                "softmax_cuda",
                format!("{tensor} softmax_cuda({tensor} x)"),
                include_str!("forms/softmax.cu"),
                3,
            ),
        ] {
            let edited = cuda.replacen("threadIdx.x", "(threadIdx.x)", 1);
            for (what, cuda) in [("cold", cuda), ("edited", &edited)] {
                let begun = Instant::now();
                let mut log = String::new();
                let unit = unit(name, &signature, cuda);
                let library = toolchain
                    .build_quickly(&unit, begun + BUILD_LIMIT, &mut log)
                    .unwrap();
                let library =
                    library.unwrap_or_else(|| panic!("{name} was not built the quick way"));
                println!("{name} {what} {:.1} s", begun.elapsed().as_secs_f64());
                let bytes = fs::read(&library.path).unwrap();
                assert_eq!(first_forbidden_import(&bytes).unwrap(), None, "{name}");
                assert_eq!(
                    log.matches("Compiling entry function").count(),
                    kernels,
                    "{log}"
                );
            }
        }
        // What the kernel's side cannot compile is left to the whole file.
        let accessor = "#include <torch/extension.h>
__global__ void k(torch::PackedTensorAccessor32<float, 1> x) { x[0] = 1; }
void run(torch::Tensor x) { k<<<1, 1>>>(x.packed_accessor32<float, 1>()); }
";
        let unit = unit("run", "void run(torch::Tensor x)", accessor);
        assert!(
            toolchain
                .build_quickly(&unit, Instant::now() + BUILD_LIMIT, &mut String::new())
                .unwrap()
                .is_none()
        );
    }
}
