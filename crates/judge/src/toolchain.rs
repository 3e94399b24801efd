//! Compiling a frozen submission: each file alone, in an empty sandbox, through a content-addressed object cache.

mod cxx_tokens;
mod flags;
mod inline;
mod precompiled;
mod provided;
mod split;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fs_err as fs;
use warpsmith_machine::{Caches, CxxCompiler, Nvcc, Python};
use warpsmith_sandbox as sandbox;
use warpsmith_schema::Target;

use crate::JudgeError;
use crate::submission::{BuildUnit, Submission, SubmissionForm};
pub(crate) use flags::build_flags;
use precompiled::PrecompiledHeader;
pub use provided::provided_sources;

/// The registry header and module file of the CUDA Agent workspace form; frozen there, ours here.
const REGISTRY: &str = include_str!("../harness/binding_registry.h");
const MODULE: &str = include_str!("../harness/binding.cpp");
const COMPILE_LIMIT: Duration = Duration::from_mins(3);
/// For g++ on what includes neither PyTorch nor CUDA: seconds at most, unless it explodes.
const PLAIN_COMPILE_LIMIT: Duration = Duration::from_mins(1);
/// For all files and extensions of a submission together.
const BUILD_LIMIT: Duration = Duration::from_mins(6);

/// What a compiler or the linker may write: several times any honest object, since each is kept.
const OBJECT_BYTES: u64 = 256 << 20;

/// A library ready to be loaded.
#[derive(Debug, Clone)]
pub(crate) struct BuiltLibrary {
    pub(crate) name: String,
    /// Sources of an inline extension, as `load_inline` names them.
    pub(crate) fingerprint: String,
    /// Launchers that return a status.
    pub(crate) with_status: Vec<String>,
    pub(crate) path: PathBuf,
}

/// What building gave.
#[derive(Debug)]
pub(crate) enum BuildResult {
    Ready {
        libraries: Vec<BuiltLibrary>,
        log: String,
    },
    Failed {
        log: String,
    },
}

/// The compilers, and where their results are kept.
#[derive(Debug, Clone)]
pub(crate) struct Toolchain {
    pub(crate) caches: Caches,
    pub(crate) python: Python,
    pub(crate) cxx: CxxCompiler,
    pub(crate) nvcc: Option<Nvcc>,
    pub(crate) target: Target,
    /// Compute capability, as in `90`.
    pub(crate) arch: Option<String>,
    pub(crate) isolation: sandbox::Isolation,
}

/// One file to compile.
struct CompileJob<'a> {
    path: &'a str,
    language: Language,
    /// Whether it may include what is provided.
    provided: bool,
    extension: &'a str,
    /// Besides those of every file.
    flags: &'a [String],
    /// When the submission's time to be built is over.
    deadline: Instant,
}

/// Who compiles a file, and what of PyTorch it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Cuda {
        torch: bool,
        /// Whether another file launches its template kernels.
        shared_templates: bool,
    },
    Cxx {
        header: Option<PrecompiledHeader>,
    },
}

impl Language {
    fn is_cuda(self) -> bool {
        matches!(self, Self::Cuda { .. })
    }

    fn torch(self) -> bool {
        match self {
            Self::Cuda { torch, .. } => torch,
            Self::Cxx { header } => header.is_some(),
        }
    }
}

impl From<PrecompiledHeader> for Language {
    fn from(header: PrecompiledHeader) -> Self {
        Self::Cxx {
            header: Some(header),
        }
    }
}

impl Toolchain {
    /// Builds every extension of a submission.
    pub(crate) fn build(
        &self,
        submission: &Submission,
        units: &[BuildUnit],
    ) -> Result<BuildResult, JudgeError> {
        let mut libraries = Vec::new();
        let mut log = String::new();
        let deadline = Instant::now() + BUILD_LIMIT;
        for unit in units {
            if Instant::now() > deadline {
                log.push_str("the submission takes too long to build\n");
                return Ok(BuildResult::Failed { log });
            }
            match self.build_unit(submission, unit, deadline, &mut log)? {
                Some(library) => libraries.push(library),
                None => return Ok(BuildResult::Failed { log }),
            }
        }
        Ok(BuildResult::Ready { libraries, log })
    }

    fn build_unit(
        &self,
        submission: &Submission,
        unit: &BuildUnit,
        deadline: Instant,
        log: &mut String,
    ) -> Result<Option<BuiltLibrary>, JudgeError> {
        if submission.form == SubmissionForm::Inline {
            self.require_python_headers()?;
            if let Some(library) = self.build_quickly(unit, deadline, log)? {
                return Ok(Some(library));
            }
        }
        let mut files: BTreeMap<String, Vec<u8>> = unit.files.clone();
        let torch = submission.form != SubmissionForm::Plain;
        if submission.form == SubmissionForm::CudaAgent {
            files.insert(
                "binding_registry.h".to_owned(),
                REGISTRY.as_bytes().to_vec(),
            );
            files.insert("binding.cpp".to_owned(), MODULE.as_bytes().to_vec());
        }
        let provided = provided::of_unit(unit, submission.form, self.target);
        if !provided.is_empty() {
            for (name, text) in provided::VISIBLE {
                files.retain(|path, _| path.rsplit('/').next() != Some(name));
                files.insert(name.to_owned(), text.as_bytes().to_vec());
            }
        }
        let jobs: Vec<CompileJob<'_>> = files
            .iter()
            .filter(|(path, _)| is_unit(path, self.target))
            .map(|(path, text)| CompileJob {
                path,
                language: if path.ends_with(".cu") {
                    Language::Cuda {
                        torch: torch && mentions_torch(text),
                        shared_templates: false,
                    }
                } else {
                    Language::Cxx {
                        header: torch.then_some(PrecompiledHeader::Torch),
                    }
                },
                provided: !provided.is_empty(),
                extension: &unit.name,
                flags: if path.ends_with(".cu") {
                    &unit.cuda_flags
                } else {
                    &[]
                },
                deadline,
            })
            .collect();
        if jobs.is_empty() {
            log.push_str("nothing to compile in kernels/\n");
            return Ok(None);
        }
        let bound = PrecompiledHeader::Torch;
        if jobs.iter().any(|job| job.language == bound.into()) {
            self.require_python_headers()?;
            self.precompile(bound)?;
        }
        let workers = std::thread::available_parallelism()
            .map_or(2, usize::from)
            .min(jobs.len());
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
        objects.extend(self.provided_objects(&provided)?);
        self.link(&objects, unit, torch, log)
    }

    /// An object from the cache, or compiled now; `None` when the compiler refused.
    fn object(
        &self,
        job: &CompileJob<'_>,
        files: &BTreeMap<String, Vec<u8>>,
    ) -> Result<(Option<PathBuf>, String), JudgeError> {
        let left = job.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let text = format!(
                "== {}\nnot compiled: the whole submission has {} s\n",
                job.path,
                BUILD_LIMIT.as_secs()
            );
            return Ok((None, text));
        }
        let visible = visible_to(job, files, self.target);
        let arguments = self.compile_arguments(job);
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.compiler_id(job.language.is_cuda()).as_bytes());
        for argument in &arguments {
            hasher.update(argument.as_bytes()).update(b"\0");
        }
        hasher.update(self.python.torch.version.as_bytes());
        hasher.update(job.path.as_bytes());
        for (path, text) in &visible {
            hasher
                .update(path.as_bytes())
                .update(b"\0")
                .update(&(text.len() as u64).to_le_bytes())
                .update(text);
        }
        let key = hasher.finalize().to_hex();
        let kept = self
            .caches
            .objects()
            .join(&key[..2])
            .join(format!("{key}.o"));
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
        let limit = if job.language.is_cuda() || job.language.torch() {
            COMPILE_LIMIT
        } else {
            PLAIN_COMPILE_LIMIT
        };
        let limit = limit.min(left);
        let compiler = self.compiler_path(job.language.is_cuda());
        let output = self.sandboxed((compiler, limit), &arguments, job_dir.path())?;
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
        move_to_cache(&produced, &kept)?;
        fs::write(kept_log, &text).map_err(JudgeError::io("keep the compiler's log"))?;
        Ok((Some(kept), text))
    }

    fn link(
        &self,
        objects: &[PathBuf],
        unit: &BuildUnit,
        torch: bool,
        log: &mut String,
    ) -> Result<Option<BuiltLibrary>, JudgeError> {
        let mut hasher = blake3::Hasher::new();
        for object in objects {
            hasher.update(object.as_os_str().as_encoded_bytes());
        }
        hasher
            .update(unit.name.as_bytes())
            .update(self.target.name().as_bytes());
        let key = hasher.finalize().to_hex();
        let kept = self
            .caches
            .objects()
            .join(&key[..2])
            .join(format!("{key}.so"));
        let library = BuiltLibrary {
            name: unit.name.clone(),
            fingerprint: unit.fingerprint.clone(),
            with_status: crate::submission::functions_with_status(&unit.files),
            path: kept.clone(),
        };
        if kept.exists() {
            return Ok(Some(library));
        }
        let job_dir = tempfile::tempdir().map_err(JudgeError::io("make a build folder"))?;
        let mut arguments: Vec<String> = ["-shared", "-o", "out.so", "-fopenmp", "-Wl,--as-needed"]
            .map(str::to_owned)
            .to_vec();
        for (index, object) in objects.iter().enumerate() {
            let name = format!("{index}.o");
            fs::copy(object, job_dir.path().join(&name))
                .map_err(JudgeError::io("lay out objects"))?;
            arguments.push(name);
        }
        if torch {
            arguments.push(format!("-L{}", self.python.torch.lib_dir.display()));
            arguments
                .extend(["-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"].map(str::to_owned));
            if self.target == Target::Cuda {
                arguments.extend(["-ltorch_cuda", "-lc10_cuda"].map(str::to_owned));
            }
        }
        if self.target == Target::Cuda {
            arguments.extend(self.cuda_libraries());
        }
        arguments.extend(build_flags::shared_runtime());
        let linker = (self.cxx.path.as_path(), COMPILE_LIMIT);
        let output = self.sandboxed(linker, &arguments, job_dir.path())?;
        log.push_str(&String::from_utf8_lossy(&output.stderr));
        let produced = job_dir.path().join("out.so");
        if output.exit != sandbox::Exit::Code(0)
            || !fs::symlink_metadata(&produced).is_ok_and(|meta| meta.is_file())
        {
            return Ok(None);
        }
        move_to_cache(&produced, &kept)?;
        Ok(Some(library))
    }

    fn sandboxed(
        &self,
        (program, wall): (&Path, Duration),
        arguments: &[String],
        dir: &Path,
    ) -> Result<sandbox::Output, JudgeError> {
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
        let policy = sandbox::SandboxPolicy {
            read: self.readable(),
            write: vec![dir.to_path_buf()],
            devices: Vec::new(),
            scratch_bytes: 2 << 30,
            limits: sandbox::ResourceLimits {
                memory_bytes: 12 << 30,
                processes: 256,
                wall_time: wall,
                file_bytes: OBJECT_BYTES,
                output_bytes: 64 << 10,
            },
            nested: false,
            isolation: self.isolation,
        };
        Ok(sandbox::run(command, &policy)?)
    }

    /// Machine code of PTX, or the assembler's log.
    pub(crate) fn assemble(
        &self,
        assembler: &Path,
        ptx: &str,
        arch: &str,
        fmad: bool,
    ) -> Result<Result<Vec<u8>, String>, JudgeError> {
        let job_dir = tempfile::tempdir().map_err(JudgeError::io("make a build folder"))?;
        fs::write(job_dir.path().join("kernel.ptx"), ptx)
            .map_err(JudgeError::io("lay out a kernel"))?;
        let mut arguments = ["-lineinfo", "kernel.ptx", "-o", "kernel.cubin"]
            .map(str::to_owned)
            .to_vec();
        arguments.push(format!("--gpu-name={arch}"));
        arguments.extend((!fmad).then(|| "--fmad=false".to_owned()));
        let output = self.sandboxed((assembler, COMPILE_LIMIT), &arguments, job_dir.path())?;
        let produced = job_dir.path().join("kernel.cubin");
        let made = fs::symlink_metadata(&produced).is_ok_and(|meta| meta.is_file());
        if output.exit != sandbox::Exit::Code(0) || !made {
            return Ok(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let code = fs::read(&produced).map_err(JudgeError::io("read a kernel"))?;
        Ok(Ok(code))
    }

    fn require_python_headers(&self) -> Result<(), JudgeError> {
        if self.python.include.is_some() {
            return Ok(());
        }
        Err(JudgeError::Config {
            code: "no_python_headers",
            message:
                "this solution form binds tensors in C++ and needs Python.h, which is not installed"
                    .to_owned(),
            hint: Some(
                "install python3-dev, or use the torch-free form (`warpsmith new`)".to_owned(),
            ),
        })
    }
}

/// Runs our own build step, output to a temporary name first.
pub(crate) fn run_trusted(
    program: &Path,
    arguments: &[String],
    output: &Path,
) -> Result<(), JudgeError> {
    if let Some(parent) = output.parent() {
        fs::create_dir_all(parent).map_err(JudgeError::io("make a cache folder"))?;
    }
    let folder = output.parent().unwrap_or(Path::new("."));
    let temporary = tempfile::NamedTempFile::new_in(folder)
        .map_err(JudgeError::io("make a temporary file"))?
        .into_temp_path();
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
    fs::set_permissions(
        &temporary,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .map_err(JudgeError::io("keep a built file"))?;
    temporary
        .persist(output)
        .map_err(|error| JudgeError::io("keep a built file")(error.error))
}

fn compile_all(
    toolchain: &Toolchain,
    jobs: &[CompileJob<'_>],
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
                        let Some(job) = jobs.get(index) else {
                            return mine;
                        };
                        mine.push((index, toolchain.object(job, files)));
                    }
                })
            })
            .collect();
        handles
            .into_iter()
            .flat_map(|handle| {
                handle.join().unwrap_or_else(|_| {
                    vec![(
                        0,
                        Err(JudgeError::infrastructure(
                            "panic",
                            "a compile thread panicked",
                        )),
                    )]
                })
            })
            .collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Moves a build product into the cache atomically.
fn move_to_cache(produced: &Path, kept: &Path) -> Result<(), JudgeError> {
    let doing = || format!("keep `{}`", kept.display());
    if let Some(parent) = kept.parent() {
        fs::create_dir_all(parent).map_err(JudgeError::io(doing()))?;
    }
    let mut temporary = tempfile::NamedTempFile::new_in(kept.parent().unwrap_or(kept))
        .map_err(JudgeError::io(doing()))?;
    let mut source = fs::File::open(produced).map_err(JudgeError::io(doing()))?;
    std::io::copy(&mut source, &mut temporary).map_err(JudgeError::io(doing()))?;
    temporary
        .persist(kept)
        .map_err(|error| JudgeError::io(doing())(error.error))?;
    Ok(())
}

fn is_unit(path: &str, target: Target) -> bool {
    let source = [".cpp", ".cc", ".cxx", ".c"]
        .iter()
        .any(|ending| path.ends_with(ending));
    source || (target == Target::Cuda && path.ends_with(".cu"))
}

fn mentions_torch(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    ["torch/", "ATen/", "c10/", "pybind11/"]
        .iter()
        .any(|header| text.contains(header))
}

/// The files a job may see: itself, headers, and other units only where some file names them. What is not here cannot be
/// included, so the cache key covers everything that can change the object.
fn visible_to<'a>(
    job: &CompileJob<'_>,
    files: &'a BTreeMap<String, Vec<u8>>,
    target: Target,
) -> BTreeMap<&'a str, &'a [u8]> {
    let all: Vec<String> = files
        .values()
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .collect();
    let includes: Vec<&str> = (all.iter())
        .flat_map(|text| text.lines())
        .filter(|line| line.contains("include"))
        .collect();
    files
        .iter()
        .filter(|(path, _)| {
            let base = path.rsplit('/').next().unwrap_or(path);
            *path == job.path
                || !is_unit(path, target)
                || includes.iter().any(|line| line.contains(base))
        })
        .map(|(path, text)| (path.as_str(), text.as_slice()))
        .collect()
}
