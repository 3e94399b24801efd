//! Warm Python processes that try tasks out (`python/filter.py`).

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warpsmith_machine::{DeviceLease, Python, SharedDevice};
use warpsmith_sandbox as sandbox;
use warpsmith_schema::Target;

use super::FilterRejection;
use crate::seeds::SeedCatalogue;

const FILES: [(&str, &str); 3] = [
    ("filter.py", include_str!("../../python/filter.py")),
    ("allowed.py", include_str!("../../python/allowed.py")),
    ("vector_isas.py", warpsmith_judge::VECTOR_ISAS),
];
/// The channel arrives as standard input; the script finds it at descriptor 3.
const BOOTSTRAP: &str = "import os, sys, runpy
if sys.argv[2] == 'stdin':
    os.dup2(0, 3)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')";
/// Importing PyTorch on a busy machine.
const START_LIMIT: Duration = Duration::from_mins(2);
/// After so many tasks a process is replaced: compilers keep too much behind.
const TASKS_PER_PROCESS: u32 = 150;
/// Judges lease it too, for seconds.
const LEASE_PATIENCE: Duration = Duration::from_mins(10);
/// Two visits and a lease, each asked for and given back. Whoever asks more often would hold the device for ever.
const MAX_DEVICE_REQUESTS: usize = 6;
const SCRATCH_BYTES: u64 = 2 << 30;
/// The sandbox ends a process after this.
const WALL_TIME: Duration = Duration::from_hours(1);

/// Why filters cannot be run at all. Never a task's fault.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("could not {doing}")]
    Io {
        doing: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the sandbox failed")]
    Sandbox(#[from] sandbox::SandboxError),
    #[error("could not lease the device")]
    Lease(#[source] io::Error),
    #[error("the filter process failed: {message}")]
    Failed { message: String },
}

impl FilterError {
    fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}

/// Where a worker runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Containment {
    /// Beside us: what it runs is our own composition.
    None,
    /// In the sandbox, and no process runs two tasks: somebody else wrote them.
    Sandboxed,
}

/// What all workers share: the Python, the device, the scripts.
#[derive(Debug)]
pub struct FilterEnvironment {
    python: Python,
    target: Target,
    device: u32,
    folder: tempfile::TempDir,
    /// Tensors of each operator's functional form.
    tensors: BTreeMap<String, Vec<String>>,
}

impl FilterEnvironment {
    pub fn new(
        python: Python,
        target: Target,
        device: u32,
        seeds: &SeedCatalogue,
    ) -> Result<Self, FilterError> {
        let folder =
            tempfile::tempdir().map_err(FilterError::io("make a folder for the filters"))?;
        for (name, text) in FILES {
            fs_err::write(folder.path().join(name), text)
                .map_err(FilterError::io("lay the filters out"))?;
        }
        // The sandbox may run under another user.
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs_err::set_permissions(folder.path(), open)
            .map_err(FilterError::io("lay the filters out"))?;
        let tensors = seeds
            .all()
            .iter()
            .filter(|seed| !seed.tensors.is_empty())
            .map(|seed| (seed.op.clone(), seed.tensors.clone()))
            .collect();
        Ok(Self {
            python,
            target,
            device,
            folder,
            tensors,
        })
    }

    /// As PyTorch calls the target's device.
    pub fn device(&self) -> &'static str {
        match self.target {
            Target::Cuda => "cuda",
            Target::Cpu => "cpu",
        }
    }

    fn compiled(&self, number: usize) -> PathBuf {
        self.folder.path().join(compiled(number))
    }

    fn environment(&self, number: usize, home: &Path) -> Vec<(String, String)> {
        let cache = home.join(compiled(number));
        let visible = match self.target {
            Target::Cuda => self.device.to_string(),
            Target::Cpu => String::new(),
        };
        let kept = ["PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CC", "CXX"];
        let kept = kept
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
        kept.chain(
            [
                ("HOME", home.display().to_string()),
                ("CUDA_VISIBLE_DEVICES", visible),
                ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into()),
                ("TORCHINDUCTOR_CACHE_DIR", cache.display().to_string()),
                (
                    "TRITON_CACHE_DIR",
                    cache.join("triton").display().to_string(),
                ),
                // There are as many of these processes as cores already.
                ("TORCHINDUCTOR_COMPILE_THREADS", "1".into()),
                ("TORCH_CPP_LOG_LEVEL", "ERROR".into()),
                ("OMP_WAIT_POLICY", "PASSIVE".into()),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        )
        .collect()
    }
}

/// Where a worker's compiler keeps what it made.
fn compiled(number: usize) -> String {
    format!("compiled-{number}")
}

/// One process, started when it is first needed and again when it died.
pub struct FilterWorker<'a> {
    workshop: &'a FilterEnvironment,
    containment: Containment,
    isolation: sandbox::Isolation,
    /// Which of several.
    number: usize,
    process: Option<Process>,
    tried: u32,
}

struct Process {
    life: ProcessHandle,
    begun: Instant,
    lines: BufReader<UnixStream>,
}

enum ProcessHandle {
    Plain(Child),
    Sandboxed(Box<sandbox::Child>),
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.lines.get_ref().shutdown(Shutdown::Both);
        if let ProcessHandle::Plain(child) = &mut self.life {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl<'a> FilterWorker<'a> {
    pub fn new(
        workshop: &'a FilterEnvironment,
        containment: Containment,
        isolation: sandbox::Isolation,
        number: usize,
    ) -> Self {
        Self {
            workshop,
            containment,
            isolation,
            number,
            process: None,
            tried: 0,
        }
    }

    /// On the CPU and small: whether it is worth anything.
    pub fn screen(
        &mut self,
        code: &str,
        graph: Option<&Value>,
    ) -> Result<Result<Value, FilterRejection>, FilterError> {
        let request = json!({ "verb": "screen", "code": code, "graph": graph });
        self.ask(&request, Duration::from_mins(1), None)
    }

    /// Whether eager and `torch.compile` agree on a device.
    pub fn agree(&mut self, code: &str) -> Result<Result<Value, FilterRejection>, FilterError> {
        let request = json!({ "verb": "agree", "code": code, "device": self.workshop.device() });
        self.ask(&request, Duration::from_mins(3), None)
    }

    /// How long one call takes. Gives up early on what is far above `limit_ms`. For the calls that are timed the device is leased;
    /// the task is made and its values are looked at beside others who do the same.
    pub fn time(
        &mut self,
        code: &str,
        limit_ms: f64,
        lease: &str,
    ) -> Result<Result<Value, FilterRejection>, FilterError> {
        let request = json!({
            "verb": "time", "code": code, "device": self.workshop.device(), "limit_ms": limit_ms,
        });
        self.ask(&request, Duration::from_mins(1), Some(lease))
    }

    /// One request. A process that dies or does not answer is replaced: the task is dropped for it.
    fn ask(
        &mut self,
        request: &Value,
        limit: Duration,
        lease: Option<&str>,
    ) -> Result<Result<Value, FilterRejection>, FilterError> {
        let ends_soon = |process: &Process| process.begun.elapsed() > WALL_TIME / 2;
        if self.containment == Containment::Sandboxed
            && self.process.as_ref().is_some_and(ends_soon)
        {
            self.process = None;
        }
        if self.tried >= TASKS_PER_PROCESS {
            self.process = None;
            // What it compiled nobody needs again. Should it not go now, it goes with the whole folder.
            let _ = fs_err::remove_dir_all(self.workshop.compiled(self.number));
        }
        if self.process.is_none() {
            self.process = Some(self.start()?);
            self.tried = 0;
        }
        self.tried += 1;
        let mut request = request.clone();
        if self.containment == Containment::Sandboxed {
            request["untrusted"] = json!(true);
            // Nothing of the task runs in this process before it has answered, so a task that may not run costs no process.
            let check = json!({ "verb": "check", "code": request["code"], "untrusted": true });
            let checked = self.exchange(&check, limit, None)?;
            if checked.is_err() {
                return Ok(checked);
            }
        }
        let answered = self.exchange(&request, limit, lease);
        if self.containment == Containment::Sandboxed {
            self.process = None;
        }
        answered
    }

    /// With the process that runs. One that died or did not answer is gone afterwards.
    fn exchange(
        &mut self,
        request: &Value,
        limit: Duration,
        lease: Option<&str>,
    ) -> Result<Result<Value, FilterRejection>, FilterError> {
        let Some(process) = &mut self.process else {
            return Err(FilterError::Failed {
                message: "it did not start".into(),
            });
        };
        let answered = process.exchange(request, limit, lease);
        if answered.is_err() {
            self.process = None;
        }
        match answered {
            Ok(reply) => parse_reply(&reply),
            Err(ExchangeError::Lease(error)) => Err(FilterError::Lease(error)),
            Err(ExchangeError::Process(error)) if is_timeout(&error) => {
                Ok(Err(FilterRejection::new(
                    "too_slow",
                    format!("no answer within {} s", limit.as_secs()),
                )))
            }
            Err(ExchangeError::Process(_)) => Ok(Err(FilterRejection::new(
                "crashed",
                "the process that ran it died",
            ))),
        }
    }

    fn start(&self) -> Result<Process, FilterError> {
        let starting = "start a filter process";
        let (ours, theirs) = UnixStream::pair().map_err(FilterError::io(starting))?;
        let life = match self.containment {
            Containment::None => ProcessHandle::Plain(self.plain(theirs)?),
            Containment::Sandboxed => ProcessHandle::Sandboxed(Box::new(self.sandboxed(theirs)?)),
        };
        let mut process = Process {
            life,
            begun: Instant::now(),
            lines: BufReader::new(ours),
        };
        let hello = json!({ "verb": "hello", "tensors": self.workshop.tensors });
        let greeted = process.exchange(&hello, START_LIMIT, None);
        match greeted {
            Ok(reply) if reply.get("kept").is_some() => Ok(process),
            Ok(reply) => Err(FilterError::Failed {
                message: reply.to_string(),
            }),
            Err(error) => {
                let printed = match &process.life {
                    ProcessHandle::Plain(_) => String::new(),
                    ProcessHandle::Sandboxed(child) => child.tail(),
                };
                Err(FilterError::Failed {
                    message: format!("it did not import PyTorch: {error}\n{printed}"),
                })
            }
        }
    }

    fn plain(&self, theirs: UnixStream) -> Result<Child, FilterError> {
        let workshop = self.workshop;
        let home = workshop.folder.path();
        Command::new(&workshop.python.executable)
            .args(["-I", "-c", BOOTSTRAP])
            .arg(home.join("filter.py"))
            .arg("stdin")
            .env_clear()
            .envs(workshop.environment(self.number, home))
            .current_dir(home)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(FilterError::io("start a filter process"))
    }

    fn sandboxed(&self, theirs: UnixStream) -> Result<sandbox::Child, FilterError> {
        let workshop = self.workshop;
        let mut read = sandbox::system_paths();
        read.extend(workshop.python.prefixes.iter().cloned());
        read.push(workshop.folder.path().to_path_buf());
        let mut devices = Vec::new();
        if workshop.target == Target::Cuda {
            read.extend(warpsmith_judge::cuda_paths());
            devices = warpsmith_judge::cuda_devices();
        }
        let policy = sandbox::SandboxPolicy {
            read,
            write: Vec::new(),
            devices,
            scratch_bytes: SCRATCH_BYTES,
            limits: sandbox::ResourceLimits {
                memory_bytes: (warpsmith_machine::memory_bytes() / 2).min(64 << 30),
                processes: 320,
                wall_time: WALL_TIME,
                file_bytes: SCRATCH_BYTES,
                output_bytes: 64 << 10,
            },
            nested: false,
            isolation: self.isolation,
        };
        let environment = workshop.environment(self.number, &PathBuf::from("/tmp"));
        let command = sandbox::Command {
            program: workshop.python.executable.clone(),
            args: vec![
                "-I".into(),
                "-c".into(),
                BOOTSTRAP.into(),
                workshop.folder.path().join("filter.py").into(),
                "descriptor".into(),
            ],
            env: environment
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            cwd: "/tmp".into(),
            fds: vec![theirs.into()],
            stderr_to: None,
        };
        Ok(sandbox::spawn(command, &policy)?)
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum ExchangeError {
    #[error(transparent)]
    Process(#[from] io::Error),
    #[error("could not lease the device: {0}")]
    Lease(#[source] io::Error),
}

impl Process {
    /// Sends a request and reads its answer. In between the process may ask for the device, where there is a `lease` to be had.
    fn exchange(
        &mut self,
        request: &Value,
        limit: Duration,
        lease: Option<&str>,
    ) -> Result<Value, ExchangeError> {
        let mut line = serde_json::to_vec(request).map_err(io::Error::from)?;
        line.push(b'\n');
        let stream = self.lines.get_mut();
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(&line)?;
        let guest = lease
            .map(SharedDevice::open)
            .transpose()
            .map_err(ExchangeError::Lease)?;
        let (mut visit, mut leased) = (None, None);
        for _ in 0..=MAX_DEVICE_REQUESTS {
            let mut reply = String::new();
            if self.lines.read_line(&mut reply)? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let reply: Value = serde_json::from_str(&reply).map_err(io::Error::from)?;
            let Some(wants) = reply["wants"].as_str() else {
                return Ok(reply);
            };
            drop((visit.take(), leased.take()));
            match (wants, lease, &guest) {
                ("device", Some(lease), _) => {
                    leased = Some(
                        DeviceLease::acquire(lease, LEASE_PATIENCE)
                            .map_err(ExchangeError::Lease)?,
                    );
                }
                ("visit", _, Some(guest)) => {
                    visit = Some(guest.acquire().map_err(ExchangeError::Lease)?);
                }
                _ => continue,
            }
            self.lines.get_mut().write_all(b"\n")?;
        }
        Err(io::Error::from(io::ErrorKind::InvalidData).into())
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn parse_reply(reply: &Value) -> Result<Result<Value, FilterRejection>, FilterError> {
    if let Some(facts) = reply.get("kept") {
        return Ok(Ok(facts.clone()));
    }
    if let Some([Value::String(reason), Value::String(detail)]) =
        reply["dropped"].as_array().map(Vec::as_slice)
    {
        return Ok(Err(FilterRejection::new(reason, detail.as_str())));
    }
    let message = reply["failed"].as_str().unwrap_or("an answer that is none");
    Err(FilterError::Failed {
        message: message.to_owned(),
    })
}

#[cfg(test)]
mod tests;
