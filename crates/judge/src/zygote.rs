//! The sandboxed process that workers are forked from, and the workers.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use warpsmith_machine::Python;
use warpsmith_sandbox as sandbox;
use warpsmith_schema::Target;

use crate::JudgeError;
use crate::channel::{Channel, ChannelError, unwrap_reply};
use crate::harness::Harness;
use crate::runner::ModuleRunner;
use crate::sampled_code::CodeSnapshots;

/// What a worker may use.
#[derive(Debug, Clone)]
pub(crate) struct WorkerLimits {
    pub(crate) memory_bytes: u64,
    pub(crate) processes: u32,
    pub(crate) scratch_bytes: u64,
    pub(crate) threads: usize,
}

impl WorkerLimits {
    pub(crate) fn of_this_machine() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            memory_bytes: (warpsmith_machine::memory_bytes() / 2).min(64 << 30),
            // Room for thread pools, none for a fork bomb.
            processes: u32::try_from(64 + 4 * cores).unwrap_or(320).min(320),
            scratch_bytes: 64 << 20,
            threads: cores,
        }
    }

    fn limits(&self) -> sandbox::ResourceLimits {
        sandbox::ResourceLimits {
            memory_bytes: self.memory_bytes,
            processes: self.processes,
            wall_time: Duration::from_hours(8760),
            file_bytes: 1 << 40,
            output_bytes: 64 << 10,
        }
    }
}

pub(crate) struct Zygote {
    child: sandbox::Child,
    control: Channel,
    greeted: bool,
    nested: bool,
    target: Target,
    allowance: WorkerLimits,
}

/// A forked worker. Dropping it kills everything it ever started.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) channel: Channel,
    pidfd: OwnedFd,
    group: Option<sandbox::ControlGroup>,
    /// At where it computes, on a CPU and where the kernel permits it.
    pc_sampler: Option<sandbox::PcSampler>,
    /// Where code lay in it, for what is seen there.
    pub(crate) code: CodeSnapshots,
    /// What it prints, for people; never parsed.
    pub(crate) output: Arc<File>,
}

/// Where a zygote is started.
pub(crate) struct ZygoteLaunch<'a> {
    pub(crate) python: &'a Python,
    pub(crate) harness: &'a Harness,
    pub(crate) target: Target,
    pub(crate) device: u32,
    pub(crate) isolation: sandbox::Isolation,
    pub(crate) allowance: WorkerLimits,
}

impl Zygote {
    /// Starts without waiting for PyTorch to be imported.
    pub(crate) fn start(launch: &ZygoteLaunch<'_>) -> Result<Self, JudgeError> {
        let nested = matches!(
            sandbox::effective().user_namespace,
            sandbox::Protection::Held { .. }
        );
        let (mut control, theirs) =
            Channel::pair(launch.target).map_err(JudgeError::io("open the zygote's channel"))?;
        let mut read = sandbox::system_paths();
        read.extend(launch.python.prefixes.iter().cloned());
        read.push(launch.harness.dir.clone());
        read.extend(launch.harness.support.parent().map(PathBuf::from));
        let mut devices = Vec::new();
        if launch.target == Target::Cuda {
            read.extend(cuda_paths());
            devices = cuda_devices();
        }
        let policy = sandbox::SandboxPolicy {
            read,
            write: Vec::new(),
            devices,
            scratch_bytes: launch.allowance.scratch_bytes,
            limits: sandbox::ResourceLimits {
                // The zygote and one worker; the worker has a tighter group of its own.
                memory_bytes: launch.allowance.memory_bytes + (4 << 30),
                processes: launch.allowance.processes + 64,
                ..launch.allowance.limits()
            },
            nested,
            isolation: launch.isolation,
        };
        let command = sandbox::Command {
            program: launch.python.executable.clone(),
            args: vec![
                "-I".into(),
                "-c".into(),
                "import sys, runpy; folder = sys.argv[1]; sys.argv = sys.argv[1:]; sys.path.insert(0, folder); \
                 runpy.run_path(folder + '/zygote.py', run_name='__main__')"
                    .into(),
                launch.harness.dir.clone().into(),
                launch.harness.support.clone().into(),
                launch.harness.cuda_arena.clone().into(),
                launch.target.name().into(),
            ],
            env: worker_environment(launch),
            cwd: "/tmp".into(),
            fds: vec![theirs],
            stderr_to: None,
        };
        let child = sandbox::spawn(command, &policy)?;
        let seccomp = sandbox::worker_filter(match launch.target {
            // The driver generates code.
            Target::Cuda => sandbox::ExecutableMemory::Generated,
            Target::Cpu => sandbox::ExecutableMemory::FilesOnly,
        })?;
        let config = json!({ "nested": nested, "scratch_bytes": launch.allowance.scratch_bytes, "seccomp": seccomp });
        control.send(&config, &[]).map_err(|error| {
            JudgeError::infrastructure("zygote", format!("the zygote did not start: {error}"))
        })?;
        Ok(Self {
            child,
            control,
            greeted: false,
            nested,
            target: launch.target,
            allowance: launch.allowance.clone(),
        })
    }

    pub(crate) fn effective(&self) -> &sandbox::Effective {
        self.child.effective()
    }

    /// Without namespaces of its own a worker could reach the zygote: then each zygote serves one worker only.
    pub(crate) fn single_use(&self) -> bool {
        !self.nested
    }

    pub(crate) fn is_usable(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None)) && (!self.greeted || self.control.is_idle())
    }

    fn await_hello(&mut self) -> Result<(), JudgeError> {
        if !self.greeted {
            let hello = self
                .control
                .receive(Duration::from_mins(2))
                .and_then(|(reply, _)| unwrap_reply(reply));
            hello.map_err(|error| self.failure("import PyTorch", &error))?;
            self.greeted = true;
        }
        Ok(())
    }

    fn failure(&self, doing: &str, error: &ChannelError) -> JudgeError {
        JudgeError::infrastructure(
            "zygote",
            format!(
                "the zygote could not {doing}: {error}\n{}",
                self.child.tail()
            ),
        )
    }

    /// Forks a worker that has run nothing yet.
    pub(crate) fn fork(&mut self) -> Result<Worker, JudgeError> {
        self.await_hello()?;
        let (mut channel, theirs) =
            Channel::pair(self.target).map_err(JudgeError::io("open a worker's channel"))?;
        let printed = rustix::fs::memfd_create("printed", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(std::io::Error::from)
            .map_err(JudgeError::io("make a worker's output file"))?;
        let printed = Arc::new(File::from(printed));
        let (_, mut fds) = self
            .control
            .request(
                "spawn",
                json!({}),
                &[theirs.as_fd(), printed.as_fd()],
                Duration::from_secs(30),
            )
            .map_err(|error| self.failure("fork a worker", &error))?;
        drop(theirs);
        let Some(pidfd) = fds.pop() else {
            return Err(JudgeError::infrastructure(
                "zygote",
                "the zygote sent no process descriptor",
            ));
        };
        let group = sandbox::ControlGroup::create(&self.allowance.limits());
        if let (Some(group), Some(pid)) = (&group, host_pid(&pidfd)) {
            group
                .add(pid)
                .map_err(JudgeError::io("put a worker under its limits"))?;
        }
        // On a GPU a host's threads hardly compute; what runs there is seen otherwise.
        let looks = host_pid(&pidfd)
            .filter(|_| self.target == Target::Cpu)
            .and_then(|pid| sandbox::PcSampler::attach(pid).ok());
        let ready = channel
            .receive(Duration::from_secs(30))
            .and_then(|(reply, _)| unwrap_reply(reply));
        ready.map_err(|error| self.failure("confine a worker", &error))?;
        Ok(Worker {
            channel,
            pidfd,
            group,
            pc_sampler: looks,
            code: CodeSnapshots::default(),
            output: printed,
        })
    }
}

/// The end of what a worker printed.
pub(crate) fn tail(printed: &File) -> String {
    const KEPT: u64 = 16 << 10;
    let length = printed.metadata().map_or(0, |meta| meta.len());
    let mut bytes = vec![0; length.min(KEPT) as usize];
    let read = printed
        .read_at(&mut bytes, length.saturating_sub(KEPT))
        .unwrap_or(0);
    bytes.truncate(read);
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Worker {
    pub(crate) fn runner(&mut self) -> ModuleRunner<'_> {
        let pid = self.host_pid();
        ModuleRunner {
            channel: &mut self.channel,
            pidfd: self.pidfd.as_fd(),
            pid,
            pc_sampler: self.pc_sampler.as_mut(),
        }
    }

    /// As this process numbers it.
    pub(crate) fn host_pid(&self) -> Option<u32> {
        host_pid(&self.pidfd)
    }

    /// Where it was seen computing since the last time; `None` where nobody can look.
    pub(crate) fn take_pc_samples(&mut self) -> Option<Vec<u64>> {
        self.pc_sampler.as_mut().map(sandbox::PcSampler::take)
    }

    /// Where it is sampled: notes where code lies before any of a candidate's has run, ...
    pub(crate) fn note_code(&mut self) -> std::io::Result<()> {
        if let (Some(pid), true) = (self.host_pid(), self.pc_sampler.is_some()) {
            self.code = CodeSnapshots::before(pid)?;
        }
        Ok(())
    }

    /// ... and when its libraries have been loaded.
    pub(crate) fn note_loaded_code(&mut self) -> std::io::Result<()> {
        match self.host_pid() {
            Some(pid) if self.pc_sampler.is_some() => self.code.loaded(pid),
            _ => Ok(()),
        }
    }

    /// Whether it is alive and has nothing to say.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.channel.is_idle()
    }

    pub(crate) fn out_of_memory(&self) -> bool {
        self.group
            .as_ref()
            .is_some_and(sandbox::ControlGroup::out_of_memory)
    }

    pub(crate) fn request(
        &mut self,
        verb: &str,
        body: Value,
        limit: Duration,
    ) -> Result<Value, ChannelError> {
        self.channel
            .request(verb, body, &[], limit)
            .map(|(reply, _)| reply)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The worker is pid 1 of its namespace: the kernel ends everything in it. An already dead one is fine.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
        if let Some(group) = &self.group {
            group.kill();
        }
        let mut poll = [rustix::event::PollFd::new(
            &self.pidfd,
            rustix::event::PollFlags::IN,
        )];
        let patience = rustix::event::Timespec {
            tv_sec: 5,
            tv_nsec: 0,
        };
        let _ = rustix::event::poll(&mut poll, Some(&patience));
    }
}

/// The process behind a descriptor, as this process numbers it.
fn host_pid(pidfd: &OwnedFd) -> Option<u32> {
    let text = fs_err::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    line.trim().parse().ok()
}

/// What the CUDA driver reads of the system, beside its devices.
pub fn cuda_paths() -> [PathBuf; 4] {
    [
        "/usr/local/nvidia",
        "/sys/bus/pci",
        "/sys/devices",
        "/sys/module/nvidia",
    ]
    .map(PathBuf::from)
}

/// The device nodes it talks to.
pub fn cuda_devices() -> Vec<PathBuf> {
    let Ok(entries) = fs_err::read_dir("/dev") else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("nvidia"))
        })
        .collect();
    found.sort();
    found
}

fn worker_environment(launch: &ZygoteLaunch<'_>) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    let mut environment: Vec<(String, String)> = vec![
        ("PATH".to_owned(), "/nonexistent".to_owned()),
        ("HOME".to_owned(), "/tmp".to_owned()),
        (
            "OMP_NUM_THREADS".to_owned(),
            launch.allowance.threads.to_string(),
        ),
        ("CUDA_CACHE_DISABLE".to_owned(), "1".to_owned()),
        // Registering guards over PyTorch's kernels warns on every start otherwise.
        ("TORCH_CPP_LOG_LEVEL".to_owned(), "ERROR".to_owned()),
    ];
    environment.extend(device_environment(launch.target, launch.device));
    environment
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// Shows a process the one device it may use, or none.
pub(crate) fn device_environment(target: Target, device: u32) -> Vec<(String, String)> {
    let visible = match target {
        Target::Cuda => device.to_string(),
        Target::Cpu => String::new(),
    };
    let mut environment = vec![
        ("CUDA_VISIBLE_DEVICES".to_owned(), visible),
        ("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned()),
    ];
    if let Ok(path) = std::env::var("LD_LIBRARY_PATH") {
        environment.push(("LD_LIBRARY_PATH".to_owned(), path));
    }
    environment
}
