//! Compiling a frozen submission: each file alone, in an empty sandbox, through a content-addressed object cache.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fs_err as fs;
use warpsmith_machine::{Caches, Compiler, Nvcc, Python};
use warpsmith_sandbox as sandbox;
use warpsmith_schema::Target;

use crate::JudgeError;
use crate::submission::{Form, Submission, Unit};

/// The registry header and module file of the CUDA Agent workspace form; frozen there, ours here.
const REGISTRY: &str = include_str!("../harness/binding_registry.h");
const MODULE: &str = include_str!("../harness/binding.cpp");
/// Headers worth precompiling: they cost seconds in every file that binds tensors.
const PRECOMPILED: &str = "#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n";
const COMPILE_LIMIT: Duration = Duration::from_secs(180);

/// A library ready to be loaded.
#[derive(Debug, Clone)]
pub(crate) struct Library {
    pub(crate) name: String,
    /// Sources of an inline extension, as `load_inline` names them.
    pub(crate) fingerprint: String,
    pub(crate) path: PathBuf,
}

/// What building gave.
#[derive(Debug)]
pub(crate) enum Built {
    Ready { libraries: Vec<Library>, log: String },
    Failed { log: String },
}

/// The compilers, and where their results are kept.
#[derive(Debug, Clone)]
pub(crate) struct Toolchain {
    pub(crate) caches: Caches,
    pub(crate) python: Python,
    pub(crate) cxx: Compiler,
    pub(crate) nvcc: Option<Nvcc>,
    pub(crate) target: Target,
    /// Compute capability, as in `90`.
    pub(crate) arch: Option<String>,
    pub(crate) isolation: sandbox::Isolation,
}

/// One file to compile.
struct Job<'a> {
    path: &'a str,
    cuda: bool,
    torch: bool,
    extension: &'a str,
}

pub(crate) mod build_flags {
    use std::path::PathBuf;

    /// For compilers set up to link the C++ runtime statically: a second copy of it would bring its imports into the
    /// candidate's, and break exceptions in whatever shares the process.
    pub(crate) fn shared_runtime() -> [String; 3] {
        ["-Wl,-Bdynamic", "-l:libstdc++.so.6", "-l:libgcc_s.so.1"].map(str::to_owned)
    }

    pub(crate) fn includes(dirs: &[PathBuf]) -> Vec<String> {
        dirs.iter().map(|dir| format!("-I{}", dir.display())).collect()
    }
}

impl Toolchain {
    /// Builds every extension of a submission.
    pub(crate) fn build(&self, submission: &Submission, units: &[Unit]) -> Result<Built, JudgeError> {
        let mut libraries = Vec::new();
        let mut log = String::new();
        for unit in units {
            match self.build_unit(submission, unit, &mut log)? {
                Some(library) => libraries.push(library),
                None => return Ok(Built::Failed { log }),
            }
        }
        Ok(Built::Ready { libraries, log })
    }

    fn build_unit(&self, submission: &Submission, unit: &Unit, log: &mut String) -> Result<Option<Library>, JudgeError> {
        let mut files: BTreeMap<String, Vec<u8>> = unit.files.clone();
        let torch = submission.form != Form::Plain;
        if submission.form == Form::CudaAgent {
            files.insert("binding_registry.h".to_owned(), REGISTRY.as_bytes().to_vec());
            files.insert("binding.cpp".to_owned(), MODULE.as_bytes().to_vec());
        }
        let jobs: Vec<Job<'_>> = files
            .iter()
            .filter(|(path, _)| is_unit(path, self.target))
            .map(|(path, text)| Job {
                path,
                cuda: path.ends_with(".cu"),
                torch: torch && (!path.ends_with(".cu") || mentions_torch(text)),
                extension: &unit.name,
            })
            .collect();
        if jobs.is_empty() {
            log.push_str("nothing to compile in kernels/\n");
            return Ok(None);
        }
        if jobs.iter().any(|job| job.torch && !job.cuda) {
            self.precompile()?;
        }
        let workers = std::thread::available_parallelism().map_or(2, usize::from).min(jobs.len());
        let results = compile_all(self, &jobs, &files, workers);
        let mut objects = Vec::new();
        let mut failed = false;
        for result in results {
            let (object, text) = result?;
            log.push_str(&text);
            match object {
                Some(object) => objects.push(object),
                None => failed = true,
            }
        }
        if failed {
            return Ok(None);
        }
        self.link(&objects, unit, torch, log)
    }

    /// An object from the cache, or compiled now; `None` when the compiler refused.
    fn object(&self, job: &Job<'_>, files: &BTreeMap<String, Vec<u8>>) -> Result<(Option<PathBuf>, String), JudgeError> {
        let visible = visible_to(job, files, self.target);
        let arguments = self.compile_arguments(job)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.compiler_id(job.cuda).as_bytes());
        for argument in &arguments {
            hasher.update(argument.as_bytes()).update(b"\0");
        }
        hasher.update(self.python.torch.version.as_bytes());
        hasher.update(job.path.as_bytes());
        for (path, text) in &visible {
            hasher.update(path.as_bytes()).update(b"\0").update(&(text.len() as u64).to_le_bytes()).update(text);
        }
        let key = hasher.finalize().to_hex();
        let kept = self.caches.objects().join(&key[..2]).join(format!("{key}.o"));
        let kept_log = kept.with_extension("log");
        if kept.exists() {
            return Ok((Some(kept), fs::read_to_string(kept_log).unwrap_or_default()));
        }
        let job_dir = tempfile::tempdir().map_err(JudgeError::io("make a build folder"))?;
        for (path, text) in &visible {
            let place = job_dir.path().join(path);
            if let Some(parent) = place.parent() {
                fs::create_dir_all(parent).map_err(JudgeError::io("lay out sources"))?;
            }
            fs::write(&place, text).map_err(JudgeError::io("lay out sources"))?;
        }
        let output = self.sandboxed(self.compiler_path(job.cuda), &arguments, job_dir.path())?;
        let mut text = format!("== {}\n", job.path);
        text.push_str(&String::from_utf8_lossy(&output.stdout));
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        let produced = job_dir.path().join("out.o");
        match output.exit {
            sandbox::Exit::Code(0) => {}
            sandbox::Exit::TimedOut => {
                text.push_str("the compiler ran out of time\n");
                return Ok((None, text));
            }
            sandbox::Exit::OutOfMemory => {
                text.push_str("the compiler ran out of memory\n");
                return Ok((None, text));
            }
            _ => return Ok((None, text)),
        }
        // What the compiler left is the sandbox's word: a link or a device here would be an attack on the cache.
        if !fs::symlink_metadata(&produced).is_ok_and(|meta| meta.is_file()) {
            text.push_str("the compiler left no object file\n");
            return Ok((None, text));
        }
        keep(&produced, &kept)?;
        fs::write(kept_log, &text).map_err(JudgeError::io("keep the compiler's log"))?;
        Ok((Some(kept), text))
    }

    fn compile_arguments(&self, job: &Job<'_>) -> Result<Vec<String>, JudgeError> {
        let mut arguments = vec!["-c".to_owned(), job.path.to_owned(), "-o".to_owned(), "out.o".to_owned()];
        arguments.extend(self.flags(job.cuda, job.torch));
        if job.torch {
            arguments.push(format!("-DTORCH_EXTENSION_NAME={}", job.extension));
            if !job.cuda {
                arguments.push("-include".to_owned());
                arguments.push(self.precompiled_dir().join("warpsmith_torch.h").display().to_string());
            }
            if self.python.include.is_none() {
                return Err(JudgeError::Config {
                    code: "no_python_headers",
                    message: "this solution form binds tensors in C++ and needs Python.h, which is not installed".to_owned(),
                    hint: Some("install python3-dev, or use the torch-free form (`warpsmith new`)".to_owned()),
                });
            }
        }
        Ok(arguments)
    }

    fn flags(&self, cuda: bool, torch: bool) -> Vec<String> {
        let mut flags: Vec<String> = Vec::new();
        if cuda {
            let arch = self.arch.as_deref().unwrap_or("90");
            let arch = if arch == "90" { "90a" } else { arch };
            flags.push("-O3".to_owned());
            flags.push("-std=c++17".to_owned());
            flags.push(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
            flags.push(format!("-ccbin={}", self.cxx.path.display()));
            flags.extend(["-lineinfo", "-Xptxas=-v", "-Xcompiler=-fPIC", "--threads=0"].map(str::to_owned));
            if torch || self.target == Target::Cuda {
                // As in the CUDA Agent workspace; the comparison with float64 decides whether it was too fast.
                flags.push("--use_fast_math".to_owned());
            }
        } else {
            flags.extend(["-O3", "-std=c++17", "-fPIC", "-fopenmp", "-w", "-march=native"].map(str::to_owned));
        }
        if torch {
            flags.extend(build_flags::includes(&self.python.torch.include_dirs));
            flags.extend(build_flags::includes(self.python.include.as_slice()));
            flags.push("-DTORCH_API_INCLUDE_EXTENSION_H".to_owned());
        }
        if self.target == Target::Cuda {
            flags.extend(build_flags::includes(&self.cuda_dirs("include")));
        }
        flags
    }

    /// Folders of the toolkit and of the libraries that PyTorch brings.
    fn cuda_dirs(&self, kind: &str) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        if let Some(nvcc) = &self.nvcc {
            let lib = if kind == "lib" { "lib64" } else { kind };
            dirs.push(nvcc.cuda_home.join(lib));
        }
        let brought = self.python.torch.dir.parent().map(|site| site.join("nvidia"));
        if let Some(entries) = brought.and_then(|dir| fs::read_dir(dir).ok()) {
            let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path().join(kind)).collect();
            found.sort();
            dirs.extend(found);
        }
        dirs.retain(|dir| dir.is_dir());
        dirs
    }

    fn link(&self, objects: &[PathBuf], unit: &Unit, torch: bool, log: &mut String) -> Result<Option<Library>, JudgeError> {
        let mut hasher = blake3::Hasher::new();
        for object in objects {
            hasher.update(object.as_os_str().as_encoded_bytes());
        }
        hasher.update(unit.name.as_bytes()).update(self.target.name().as_bytes());
        let key = hasher.finalize().to_hex();
        let kept = self.caches.objects().join(&key[..2]).join(format!("{key}.so"));
        let library = Library { name: unit.name.clone(), fingerprint: unit.fingerprint.clone(), path: kept.clone() };
        if kept.exists() {
            return Ok(Some(library));
        }
        let job_dir = tempfile::tempdir().map_err(JudgeError::io("make a build folder"))?;
        let mut arguments: Vec<String> = ["-shared", "-o", "out.so", "-fopenmp", "-Wl,--as-needed"].map(str::to_owned).to_vec();
        for (index, object) in objects.iter().enumerate() {
            let name = format!("{index}.o");
            fs::copy(object, job_dir.path().join(&name)).map_err(JudgeError::io("lay out objects"))?;
            arguments.push(name);
        }
        if torch {
            arguments.push(format!("-L{}", self.python.torch.lib_dir.display()));
            arguments.extend(["-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"].map(str::to_owned));
            if self.target == Target::Cuda {
                arguments.extend(["-ltorch_cuda", "-lc10_cuda"].map(str::to_owned));
            }
        }
        if self.target == Target::Cuda {
            arguments.extend(self.cuda_libraries());
        }
        arguments.extend(build_flags::shared_runtime());
        let output = self.sandboxed(&self.cxx.path, &arguments, job_dir.path())?;
        log.push_str(&String::from_utf8_lossy(&output.stderr));
        let produced = job_dir.path().join("out.so");
        if output.exit != sandbox::Exit::Code(0) || !fs::symlink_metadata(&produced).is_ok_and(|meta| meta.is_file()) {
            return Ok(None);
        }
        keep(&produced, &kept)?;
        Ok(Some(library))
    }

    /// The shared CUDA libraries a candidate may use, by file: those PyTorch loads, so that there is one of each.
    fn cuda_libraries(&self) -> Vec<String> {
        let dirs = self.cuda_dirs("lib");
        let find = |stem: &str| {
            dirs.iter().rev().find_map(|dir| {
                let entries = fs::read_dir(dir).ok()?;
                let mut names: Vec<PathBuf> = entries
                    .flatten()
                    .map(|entry| entry.path())
                    .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{stem}.so"))))
                    .collect();
                names.sort_by_key(|path| path.as_os_str().len());
                names.into_iter().next()
            })
        };
        ["libcudart", "libcublas", "libcublasLt", "libcudnn"]
            .iter()
            .filter_map(|stem| find(stem))
            .map(|path| path.display().to_string())
            .collect()
    }

    fn sandboxed(&self, program: &Path, arguments: &[String], dir: &Path) -> Result<sandbox::Output, JudgeError> {
        let command = sandbox::Command {
            program: program.to_path_buf(),
            args: arguments.iter().map(Into::into).collect(),
            env: vec![
                ("PATH".into(), self.clean_path().into()),
                ("HOME".into(), "/tmp".into()),
                ("TMPDIR".into(), "/tmp".into()),
                ("LC_ALL".into(), "C".into()),
            ],
            cwd: dir.to_path_buf(),
            fds: Vec::new(),
            stderr_to: None,
        };
        let policy = sandbox::Policy {
            read: self.readable(),
            write: vec![dir.to_path_buf()],
            devices: Vec::new(),
            scratch_bytes: 2 << 30,
            limits: sandbox::Limits {
                memory_bytes: 12 << 30,
                processes: 256,
                wall: COMPILE_LIMIT,
                file_bytes: 1 << 30,
                output_bytes: 64 << 10,
            },
            nested: false,
            isolation: self.isolation,
        };
        Ok(sandbox::run(command, &policy)?)
    }

    fn clean_path(&self) -> String {
        let mut path = "/usr/bin:/bin".to_owned();
        if let Some(nvcc) = &self.nvcc {
            path = format!("{}:{path}", nvcc.cuda_home.join("bin").display());
        }
        path
    }

    fn readable(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = system_paths();
        paths.extend(self.python.torch.include_dirs.iter().cloned());
        paths.push(self.python.torch.lib_dir.clone());
        paths.extend(self.python.include.clone());
        paths.push(self.precompiled_dir());
        paths.extend(home_of(&self.cxx.path));
        if self.target == Target::Cuda {
            paths.extend(self.nvcc.iter().map(|nvcc| nvcc.cuda_home.clone()));
            paths.extend(self.python.torch.dir.parent().map(|site| site.join("nvidia")));
        }
        paths
    }

    fn compiler_path(&self, cuda: bool) -> &Path {
        match (&self.nvcc, cuda) {
            (Some(nvcc), true) => &nvcc.path,
            _ => &self.cxx.path,
        }
    }

    fn compiler_id(&self, cuda: bool) -> String {
        match (&self.nvcc, cuda) {
            (Some(nvcc), true) => format!("{} {}", nvcc.version, self.cxx.id),
            _ => self.cxx.id.clone(),
        }
    }

    fn precompiled_dir(&self) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        for flag in self.flags(false, true) {
            hasher.update(flag.as_bytes());
        }
        hasher.update(self.cxx.id.as_bytes());
        hasher.update(self.python.torch.version.as_bytes());
        hasher.update(PRECOMPILED.as_bytes());
        self.caches.support().join(format!("torch-header-{}", &hasher.finalize().to_hex()[..12]))
    }

    /// PyTorch's headers, compiled once: half a gigabyte that saves most of each binding file's time.
    pub(crate) fn precompile(&self) -> Result<(), JudgeError> {
        let header = self.precompiled_dir().join("warpsmith_torch.h");
        let precompiled = header.with_extension("h.gch");
        if precompiled.exists() {
            return Ok(());
        }
        fs::create_dir_all(self.precompiled_dir()).map_err(JudgeError::io("make the header folder"))?;
        fs::write(&header, PRECOMPILED).map_err(JudgeError::io("write the header to precompile"))?;
        let mut arguments = self.flags(false, true);
        arguments.extend(["-x".to_owned(), "c++-header".to_owned(), header.display().to_string()]);
        run_trusted(&self.cxx.path, &arguments, &precompiled)
    }
}

/// Runs our own build step, output to a temporary name first.
pub(crate) fn run_trusted(program: &Path, arguments: &[String], output: &Path) -> Result<(), JudgeError> {
    if let Some(parent) = output.parent() {
        fs::create_dir_all(parent).map_err(JudgeError::io("make a cache folder"))?;
    }
    let folder = output.parent().unwrap_or(Path::new("."));
    let temporary = tempfile::NamedTempFile::new_in(folder).map_err(JudgeError::io("make a temporary file"))?.into_temp_path();
    let started = Instant::now();
    let result = Command::new(program)
        .args(arguments)
        .arg("-o")
        .arg(temporary.as_os_str())
        .output()
        .map_err(JudgeError::io(format!("run `{}`", program.display())))?;
    if !result.status.success() {
        return Err(JudgeError::infrastructure(
            "support_build",
            format!(
                "building `{}` failed after {:.0} s:\n{}",
                output.display(),
                started.elapsed().as_secs_f64(),
                String::from_utf8_lossy(&result.stderr)
            ),
        ));
    }
    // Workers run under another uid and must be able to load it.
    fs::set_permissions(&temporary, std::os::unix::fs::PermissionsExt::from_mode(0o755)).map_err(JudgeError::io("keep a built file"))?;
    temporary.persist(output).map_err(|error| JudgeError::io("keep a built file")(error.error))
}

/// The system's own folders, which every sandboxed program needs to run.
pub(crate) fn system_paths() -> Vec<PathBuf> {
    ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"]
        .map(PathBuf::from)
        .to_vec()
}

/// The folder that a compiler outside the system's own folders was installed to.
fn home_of(program: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(program).ok()?;
    let home = real.parent()?.parent()?;
    (home.components().count() > 1 && !home.starts_with("/usr")).then(|| home.to_path_buf())
}

fn compile_all(
    toolchain: &Toolchain,
    jobs: &[Job<'_>],
    files: &BTreeMap<String, Vec<u8>>,
    workers: usize,
) -> Vec<Result<(Option<PathBuf>, String), JudgeError>> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let mut results: Vec<(usize, Result<_, _>)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|_| {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    loop {
                        let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        let Some(job) = jobs.get(index) else { return mine };
                        mine.push((index, toolchain.object(job, files)));
                    }
                })
            })
            .collect();
        handles
            .into_iter()
            .flat_map(|handle| {
                handle.join().unwrap_or_else(|_| vec![(0, Err(JudgeError::infrastructure("panic", "a compile thread panicked")))])
            })
            .collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Moves a build product into the cache atomically.
fn keep(produced: &Path, kept: &Path) -> Result<(), JudgeError> {
    let doing = || format!("keep `{}`", kept.display());
    if let Some(parent) = kept.parent() {
        fs::create_dir_all(parent).map_err(JudgeError::io(doing()))?;
    }
    let mut temporary = tempfile::NamedTempFile::new_in(kept.parent().unwrap_or(kept)).map_err(JudgeError::io(doing()))?;
    let mut source = fs::File::open(produced).map_err(JudgeError::io(doing()))?;
    std::io::copy(&mut source, &mut temporary).map_err(JudgeError::io(doing()))?;
    temporary.persist(kept).map_err(|error| JudgeError::io(doing())(error.error))?;
    Ok(())
}

fn is_unit(path: &str, target: Target) -> bool {
    let source = [".cpp", ".cc", ".cxx"].iter().any(|ending| path.ends_with(ending));
    source || (target == Target::Cuda && path.ends_with(".cu"))
}

fn mentions_torch(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    ["torch/", "ATen/", "c10/", "pybind11/"].iter().any(|header| text.contains(header))
}

/// The files a job may see: itself, headers, and other units only where some file names them. What is not here cannot be
/// included, so the cache key covers everything that can change the object.
fn visible_to<'a>(job: &Job<'_>, files: &'a BTreeMap<String, Vec<u8>>, target: Target) -> BTreeMap<&'a str, &'a [u8]> {
    let all: Vec<String> = files.values().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
    files
        .iter()
        .filter(|(path, _)| {
            let base = path.rsplit('/').next().unwrap_or(path);
            *path == job.path
                || !is_unit(path, target)
                || all.iter().any(|text| text.lines().any(|line| line.contains("include") && line.contains(base)))
        })
        .map(|(path, text)| (path.as_str(), text.as_slice()))
        .collect()
}
