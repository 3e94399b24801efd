//! A trusted Python process of the harness: our own code and the task's, never a candidate's.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use warpsmith_machine::Python;
use warpsmith_schema::Target;

use crate::JudgeError;
use crate::channel::{Channel, ChannelError};
use crate::runner::ModuleRunner;

/// The channel arrives as standard input; the script finds it at descriptor 3.
const BOOTSTRAP: &str = "import os, sys, runpy
os.dup2(0, 3)
null = os.open(os.devnull, os.O_RDONLY)
os.dup2(null, 0)
folder, script = sys.argv[1:3]
sys.argv = [script] + sys.argv[3:]
sys.path.insert(0, folder)
runpy.run_path(os.path.join(folder, script), run_name='__main__')";

/// One running process and its channel.
#[derive(Debug)]
pub(crate) struct PythonProcess {
    child: Child,
    pidfd: OwnedFd,
    channel: Channel,
    log: File,
    name: &'static str,
}

/// What a trusted process is started with.
pub(crate) struct ProcessLaunch<'a> {
    pub(crate) name: &'static str,
    pub(crate) target: Target,
    pub(crate) script: &'static str,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) python: &'a Python,
    pub(crate) harness: &'a Path,
}

impl PythonProcess {
    /// Starts without waiting: several import PyTorch side by side.
    pub(crate) fn start(launch: ProcessLaunch<'_>) -> Result<Self, JudgeError> {
        let doing = format!("start the {} process", launch.name);
        let (mut channel, theirs) =
            Channel::pair(launch.target).map_err(JudgeError::io(doing.clone()))?;
        let log = tempfile::tempfile().map_err(JudgeError::io(doing.clone()))?;
        let share = || log.try_clone();
        let mut command = Command::new(&launch.python.executable);
        command
            .args(["-I", "-c", BOOTSTRAP])
            .arg(launch.harness)
            .arg(launch.script)
            .args(&launch.arguments)
            .env_clear()
            .envs(launch.environment)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::from(share().map_err(JudgeError::io(doing.clone()))?))
            .stderr(Stdio::from(share().map_err(JudgeError::io(doing.clone()))?));
        let child = command.spawn().map_err(JudgeError::io(doing.clone()))?;
        let pidfd = rustix::process::Pid::from_raw(child.id().cast_signed())
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .map_err(std::io::Error::from)
            .map_err(JudgeError::io(doing.clone()))?;
        channel
            .send(&json!({ "verb": "hello" }), &[])
            .map_err(|error| JudgeError::infrastructure("harness", format!("{doing}: {error}")))?;
        Ok(Self {
            child,
            pidfd,
            channel,
            log,
            name: launch.name,
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the answer to the hello that `start` sent.
    pub(crate) fn await_hello(&mut self) -> Result<Value, JudgeError> {
        let reply = self
            .channel
            .receive(Duration::from_mins(2))
            .and_then(|(reply, _)| crate::channel::unwrap_reply(reply));
        let hello = reply.map_err(|error| match error {
            ChannelError::TimedOut(limit) => JudgeError::infrastructure(
                "harness",
                format!(
                    "the {} process did not import PyTorch within {} s",
                    self.name,
                    limit.as_secs()
                ),
            ),
            other => self.describe_error("import PyTorch", other),
        })?;
        match hello["protocol"].as_u64() {
            Some(1) => Ok(hello),
            found => Err(JudgeError::infrastructure(
                "protocol",
                format!("the harness spoke protocol {found:?}, expected 1"),
            )),
        }
    }

    pub(crate) fn request(
        &mut self,
        verb: &str,
        body: Value,
        limit: Duration,
    ) -> Result<Value, JudgeError> {
        self.request_with(verb, body, &[], limit)
            .map(|(reply, _)| reply)
    }

    pub(crate) fn request_with(
        &mut self,
        verb: &str,
        body: Value,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<(Value, Vec<OwnedFd>), JudgeError> {
        self.channel
            .request(verb, body, fds, limit)
            .map_err(|error| self.describe_error(verb, error))
    }

    pub(crate) fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    pub(crate) fn runner(&mut self) -> ModuleRunner<'_> {
        ModuleRunner {
            channel: &mut self.channel,
            pidfd: self.pidfd.as_fd(),
            pid: Some(self.child.id()),
            pc_sampler: None,
        }
    }

    /// Sends a request whose reply is waited for later.
    pub(crate) fn send_request(&mut self, body: &Value) -> Result<(), JudgeError> {
        self.channel
            .send(body, &[])
            .map_err(|error| self.describe_error("send a request", error))
    }

    /// After a failure that left the process in an unknown state.
    pub(crate) fn is_usable(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None)) && self.channel.is_idle()
    }

    pub(crate) fn describe_error(&mut self, doing: &str, error: ChannelError) -> JudgeError {
        let died = matches!(error, ChannelError::Closed);
        let tail = if died { self.tail() } else { String::new() };
        JudgeError::trusted(&format!("{} process, {doing}", self.name), error, &tail)
    }

    fn tail(&mut self) -> String {
        let mut text = Vec::new();
        let length = self.log.metadata().map_or(0, |meta| meta.len());
        let seek = self.log.seek(SeekFrom::Start(length.saturating_sub(4000)));
        if seek.is_ok() && self.log.read_to_end(&mut text).is_ok() {
            return String::from_utf8_lossy(&text).into_owned();
        }
        String::new()
    }
}

impl Drop for PythonProcess {
    fn drop(&mut self) {
        // Killing an exited process is an error nobody can act on.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
