//! The embedded Python harness and its native half, laid out in the cache once per content.

use std::path::{Path, PathBuf};

use fs_err as fs;
use warpsmith_machine::{Caches, CxxCompiler, Python};
use warpsmith_schema::GRAPH_FORMS;

use crate::JudgeError;
use crate::baseline::METHOD;
use crate::toolchain::{build_flags, run_trusted};

/// Every file that a harness process imports.
const FILES: &[(&str, &str)] = &[
    ("appeal.py", include_str!("../harness/appeal.py")),
    ("channel.py", include_str!("../harness/channel.py")),
    ("compare.py", include_str!("../harness/compare.py")),
    (
        "compile_ahead.py",
        include_str!("../harness/compile_ahead.py"),
    ),
    ("draws.py", include_str!("../harness/draws.py")),
    ("fused.py", include_str!("../harness/fused.py")),
    ("graph_forms.py", GRAPH_FORMS),
    ("gate.py", include_str!("../harness/gate.py")),
    ("graphs.py", include_str!("../harness/graphs.py")),
    ("host_memory.py", include_str!("../harness/host_memory.py")),
    ("indices.py", include_str!("../harness/indices.py")),
    ("inline.py", include_str!("../harness/inline.py")),
    (
        "kernels_module.py",
        include_str!("../harness/kernels_module.py"),
    ),
    ("loading.py", include_str!("../harness/loading.py")),
    ("measure.py", include_str!("../harness/measure.py")),
    ("mutation.py", include_str!("../harness/mutation.py")),
    ("nvml.py", include_str!("../harness/nvml.py")),
    ("profiling.py", include_str!("../harness/profiling.py")),
    ("quick_torch.py", include_str!("../harness/quick_torch.py")),
    ("readings.py", include_str!("../harness/readings.py")),
    ("regions.py", include_str!("../harness/regions.py")),
    ("reports.py", include_str!("../harness/reports.py")),
    ("screen.py", include_str!("../harness/screen.py")),
    ("structure.py", include_str!("../harness/structure.py")),
    ("task.py", include_str!("../harness/task.py")),
    ("tolerances.py", include_str!("../harness/tolerances.py")),
    (
        "triton_runtime.py",
        include_str!("../harness/triton_runtime.py"),
    ),
    ("transforms.py", include_str!("../harness/transforms.py")),
    ("trusted.py", include_str!("../harness/trusted.py")),
    ("values.py", include_str!("../harness/values.py")),
    ("variants.py", include_str!("../harness/variants.py")),
    ("vector_isas.py", VECTOR_ISAS),
    ("worker.py", include_str!("../harness/worker.py")),
    ("zygote.py", include_str!("../harness/zygote.py")),
    ("cpu_arena.h", include_str!("../harness/cpu_arena.h")),
    ("free_list.h", include_str!("../harness/free_list.h")),
];
/// How launchers are called, as a module that stands by itself: solutions are handed over with it.
pub const KERNELS_MODULE: &str = include_str!("../harness/kernels_module.py");

/// Makes `torch.compile` quick to start: whoever compiles with it imports this.
pub const VECTOR_ISAS: &str = include_str!("../harness/vector_isas.py");

const SUPPORT: &str = include_str!("../harness/support.cpp");
const CUDA_ARENA: &str = include_str!("../harness/cuda_arena.cpp");

/// Which judge this is. Verdicts of another version may have been measured in another way.
pub fn judge_version() -> String {
    format!(
        "{}-{METHOD}-{}",
        env!("CARGO_PKG_VERSION"),
        &content_hash()[..8]
    )
}

fn content_hash() -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, text) in FILES {
        hasher.update(name.as_bytes()).update(text.as_bytes());
    }
    hasher
        .update(SUPPORT.as_bytes())
        .update(CUDA_ARENA.as_bytes());
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Where the harness lies on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Harness {
    pub(crate) dir: PathBuf,
    /// Dispatcher traps, CPU arena and memory, and `warpsmith_gemm`.
    pub(crate) support: PathBuf,
    /// The CUDA arena allocator.
    pub(crate) cuda_arena: PathBuf,
}

impl Harness {
    /// Lays the files out and builds the native half; quick when it is all there already.
    pub(crate) fn install(
        caches: &Caches,
        python: &Python,
        cxx: &CxxCompiler,
    ) -> Result<Self, JudgeError> {
        let dir = caches.harness().join(content_hash());
        for (name, text) in FILES {
            write_once(&dir.join(name), text.as_bytes())?;
        }
        write_once(&dir.join("support.cpp"), SUPPORT.as_bytes())?;
        write_once(&dir.join("cuda_arena.cpp"), CUDA_ARENA.as_bytes())?;

        let built = caches.support().join(&native_key(&dir, python, cxx)[..16]);
        let harness = Self {
            support: built.join("support.so"),
            cuda_arena: built.join("cuda_arena.so"),
            dir,
        };
        harness.build_native(python, cxx)?;
        Ok(harness)
    }

    fn build_native(&self, python: &Python, cxx: &CxxCompiler) -> Result<(), JudgeError> {
        if !self.support.exists() {
            let mut arguments: Vec<String> = ["-O2", "-std=c++20", "-fPIC", "-shared", "-w"]
                .map(str::to_owned)
                .to_vec();
            arguments.extend(build_flags::includes(&python.torch.include_dirs));
            arguments.push(self.dir.join("support.cpp").display().to_string());
            arguments.push(format!("-L{}", python.torch.lib_dir.display()));
            arguments.extend(["-ltorch_cpu", "-lc10"].map(str::to_owned));
            arguments.extend(build_flags::shared_runtime());
            run_trusted(&cxx.path, &arguments, &self.support)?;
        }
        if !self.cuda_arena.exists() {
            let mut arguments: Vec<String> = ["-O2", "-std=c++17", "-fPIC", "-shared"]
                .map(str::to_owned)
                .to_vec();
            arguments.push(self.dir.join("cuda_arena.cpp").display().to_string());
            arguments.push("-ldl".to_owned());
            arguments.extend(build_flags::shared_runtime());
            run_trusted(&cxx.path, &arguments, &self.cuda_arena)?;
        }
        Ok(())
    }
}

fn native_key(dir: &Path, python: &Python, cxx: &CxxCompiler) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(dir.as_os_str().as_encoded_bytes());
    hasher.update(python.torch.version.as_bytes());
    hasher.update(python.torch.dir.as_os_str().as_encoded_bytes());
    hasher.update(cxx.id.as_bytes());
    hasher.finalize().to_hex().to_string()
}

/// Writes a file whose name is fixed by its content; a concurrent writer writes the same bytes.
fn write_once(path: &Path, bytes: &[u8]) -> Result<(), JudgeError> {
    let doing = || format!("write `{}`", path.display());
    if fs::read(path).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(JudgeError::io(doing()))?;
    }
    let temporary = path.with_extension(format!("tmp{}", std::process::id()));
    fs::write(&temporary, bytes).map_err(JudgeError::io(doing()))?;
    fs::rename(&temporary, path).map_err(JudgeError::io(doing()))
}
