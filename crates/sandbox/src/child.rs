//! A command that is run to its end, or left running.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::effective::Effective;
use crate::error::{Context, SandboxError};
use crate::output::{ClippedOutput, Sink, Stream};
use crate::policy::{Command, Exit, Output, SandboxPolicy};
use crate::running::{END_LIMIT, Running, Started, lock, start};

const TAIL_BYTES: usize = 8 << 10;

/// Runs `command` to its end. Whatever happens, nothing of it is left afterwards.
pub fn run(command: Command, policy: &SandboxPolicy) -> Result<Output, SandboxError> {
    let (started, _) = start(command, policy)?;
    run_to_end(started, policy)
}

pub(crate) fn run_to_end(started: Started, policy: &SandboxPolicy) -> Result<Output, SandboxError> {
    let begin = Instant::now();
    let deadline = begin.checked_add(policy.limits.wall_time);
    let Started {
        running,
        stdout,
        stderr,
    } = started;
    let mut clips = [
        ClippedOutput::new(policy.limits.output_bytes),
        ClippedOutput::new(policy.limits.output_bytes),
    ];
    let [out, err] = &mut clips;
    let mut keep_out = |bytes: &[u8]| out.push(bytes);
    let mut keep_err = |bytes: &[u8]| err.push(bytes);
    let mut streams: [(Stream, Sink<'_>); 2] = [(stdout, &mut keep_out), (stderr, &mut keep_err)];
    let ended = running.drain(&mut streams, deadline);
    let elapsed = begin.elapsed();
    running.kill_and_wait();
    if !ended {
        // What it printed last often tells why it hung.
        running.drain(&mut streams, Some(Instant::now() + END_LIMIT));
    }
    let exit = match running.try_wait().context("wait for the command")? {
        Some(Exit::OutOfMemory) => Exit::OutOfMemory,
        Some(exit) if ended => exit,
        _ => Exit::TimedOut,
    };
    let clipped = clips.iter().any(ClippedOutput::is_clipped);
    let [stdout, stderr] = clips.map(ClippedOutput::into_bytes);
    Ok(Output {
        exit,
        stdout,
        stderr,
        clipped,
        elapsed,
    })
}

/// Starts `command` and leaves it running. A thread drains its output; only the tail is kept.
pub fn spawn(command: Command, policy: &SandboxPolicy) -> Result<Child, SandboxError> {
    let (started, effective) = start(command, policy)?;
    let Started {
        running,
        stdout,
        stderr,
    } = started;
    let pid = running.command_pid();
    let running = Arc::new(running);
    let tail = Arc::new(Mutex::new(VecDeque::new()));
    let (drained, kept) = (Arc::clone(&running), Arc::clone(&tail));
    let drain = move || {
        let keep = |bytes: &[u8]| {
            let mut tail = lock(&kept);
            let bytes = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
            let surplus = (tail.len() + bytes.len()).saturating_sub(TAIL_BYTES);
            tail.drain(..surplus);
            tail.extend(bytes);
        };
        let (mut keep_out, mut keep_err) = (keep, keep);
        drained.drain(
            &mut [(stdout, &mut keep_out), (stderr, &mut keep_err)],
            None,
        );
    };
    let drainer = thread::Builder::new()
        .name("sandbox-output".to_owned())
        .spawn(drain)
        .context("start a thread")?;
    Ok(Child {
        pid,
        effective,
        running,
        tail,
        drainer: Some(drainer),
    })
}

/// A command that was left running. Dropping it kills the whole tree.
pub struct Child {
    pid: u32,
    effective: Effective,
    running: Arc<Running>,
    tail: Arc<Mutex<VecDeque<u8>>>,
    drainer: Option<JoinHandle<()>>,
}

impl Child {
    /// In our pid namespace, not in the command's own.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn effective(&self) -> &Effective {
        &self.effective
    }

    /// Kills the whole tree and waits until it is gone.
    pub fn kill(&mut self) {
        self.running.kill_and_wait();
    }

    /// How the command ended, if it has.
    pub fn try_wait(&mut self) -> io::Result<Option<Exit>> {
        let exit = self.running.try_wait()?;
        if exit.is_some()
            && let Some(drainer) = self.drainer.take()
        {
            // The thread ends by itself now; after that the tail is complete.
            let _ = drainer.join();
        }
        Ok(exit)
    }

    /// The last 8 KiB of stdout and stderr.
    pub fn tail(&self) -> String {
        let tail: Vec<u8> = lock(&self.tail).iter().copied().collect();
        String::from_utf8_lossy(&tail).into_owned()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        if let Some(drainer) = self.drainer.take() {
            let _ = drainer.join();
        }
    }
}
