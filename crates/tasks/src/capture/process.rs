//! A Python that captures task after task, as importing PyTorch takes longer than a capture.
//!
//! A request and its answer are a line of JSON each. A process that ends, or that takes too long, is replaced by a new one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use fs_err::File;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use warpsmith_machine::{MachineError, Python};
use warpsmith_schema::OpGraph;

use super::{CaptureError, NotCaptured, Reply, SCRIPTS};

/// Beside the scripts: what tasks and libraries print.
const PRINTED: &str = "printed.txt";

/// What the script is asked.
#[derive(Debug, Serialize)]
pub(super) struct Request<'a> {
    pub(super) model: &'a str,
    /// The module with smaller constants, if it has any that can be smaller.
    pub(super) smaller: Option<&'a str>,
}

/// What the script answers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Graph(Box<OpGraph>),
    Failed(NotCaptured),
    /// Something that says nothing about the module, as a lack of memory.
    Error(String),
}

/// Starts a process when there is something to capture, and another where one ended.
#[derive(Debug)]
pub(super) struct CaptureWorker<'a> {
    python: &'a Python,
    threads: usize,
    limit: Duration,
    process: Option<CaptureProcess>,
}

impl<'a> CaptureWorker<'a> {
    /// `threads` is for one process, `limit` for one task.
    pub(super) fn new(python: &'a Python, threads: usize, limit: Duration) -> Self {
        Self {
            python,
            threads,
            limit,
            process: None,
        }
    }

    pub(super) fn capture(&mut self, request: &Request<'_>) -> Result<Reply, CaptureError> {
        let line = serde_json::to_string(request).map_err(|error| no_answer(&error))? + "\n";
        if let Some(mut process) = self.process.take() {
            match process.ask(&line, self.limit) {
                // An earlier task may be why it ended: only a new process tells.
                Err(NoReply::Ended(message)) => {
                    tracing::debug!(message, "a capture process is started again");
                }
                other => return self.reply(process, other),
            }
        }
        let mut process = CaptureProcess::start(self.python, self.threads)?;
        let answer = process.ask(&line, self.limit);
        self.reply(process, answer)
    }

    /// Keeps the process if it answered.
    fn reply(
        &mut self,
        process: CaptureProcess,
        answer: Result<Answer, NoReply>,
    ) -> Result<Reply, CaptureError> {
        let answer = answer.map_err(|reason| match reason {
            NoReply::Ended(message) => CaptureError::NoAnswer { message },
            NoReply::TooLong => no_answer(&format!("it took over {} s", self.limit.as_secs())),
        })?;
        self.process = Some(process);
        match answer {
            Answer::Graph(graph) => Ok(Reply::Graph(graph)),
            Answer::Failed(reason) => Ok(Reply::Failed(reason)),
            Answer::Error(message) => Err(CaptureError::NoAnswer { message }),
        }
    }
}

fn no_answer(reason: &impl ToString) -> CaptureError {
    CaptureError::NoAnswer {
        message: reason.to_string(),
    }
}

/// Why a process is of no more use.
enum NoReply {
    Ended(String),
    TooLong,
}

#[derive(Debug)]
struct CaptureProcess {
    child: Child,
    requests: Option<ChildStdin>,
    answers: Receiver<String>,
    /// Of the last task alone.
    printed: File,
    /// The scripts, where the process runs.
    folder: TempDir,
}

impl CaptureProcess {
    fn start(python: &Python, threads: usize) -> Result<Self, CaptureError> {
        let folder = tempfile::tempdir().map_err(CaptureError::Cache)?;
        for (name, script) in SCRIPTS {
            fs_err::write(folder.path().join(name), script).map_err(CaptureError::Cache)?;
        }
        // Appended to, so that what was read before can be cut off while the process writes.
        let printed = fs_err::OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.path().join(PRINTED))
            .map_err(CaptureError::Cache)?;
        let errors = printed.file().try_clone().map_err(CaptureError::Cache)?;
        let mut command = Command::new(&python.executable);
        command
            .current_dir(folder.path())
            .args(["-B", SCRIPTS[0].0])
            // Processes side by side share the cores: with more threads than cores they wait for each other.
            .env("OMP_NUM_THREADS", threads.to_string())
            .env("MKL_NUM_THREADS", threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors);
        let mut child = command.spawn().map_err(|source| MachineError::Start {
            program: python.executable.clone(),
            source,
        })?;
        let requests = child.stdin.take();
        let (sender, answers) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines.for_each(|line| {
                    let _ = sender.send(line);
                });
            });
        }
        Ok(Self {
            child,
            requests,
            answers,
            printed,
            folder,
        })
    }

    fn ask(&mut self, line: &str, limit: Duration) -> Result<Answer, NoReply> {
        let _ = self.printed.set_len(0);
        let sent = self
            .requests
            .as_mut()
            .is_some_and(|requests| requests.write_all(line.as_bytes()).is_ok());
        if !sent {
            return Err(NoReply::Ended(self.last_words()));
        }
        match self.answers.recv_timeout(limit) {
            Ok(answer) => serde_json::from_str(&answer)
                .map_err(|error| NoReply::Ended(format!("its answer cannot be read: {error}"))),
            Err(RecvTimeoutError::Timeout) => Err(NoReply::TooLong),
            Err(RecvTimeoutError::Disconnected) => Err(NoReply::Ended(self.last_words())),
        }
    }

    /// How the process ended, and the last lines that it printed.
    fn last_words(&mut self) -> String {
        // It has closed its output. One that still runs is not waited for.
        let _ = self.child.kill();
        let status = self.child.wait().map(|status| status.to_string());
        let printed = fs_err::read(self.folder.path().join(PRINTED)).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed);
        let tail: Vec<&str> = printed.lines().rev().take(3).collect();
        let lines = status.iter().map(String::as_str);
        lines
            .chain(tail.into_iter().rev())
            .collect::<Vec<_>>()
            .join("; ")
    }
}

impl Drop for CaptureProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use warpsmith_machine::{Caches, PythonChoice, find_python};

    use super::*;

    const MODULE: &str = "import os\nimport sys\nimport time\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\
        class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(8, 4)\n\n    \
        def forward(self, x):\n        return F.relu(self.fc(x))\n\n\
        def get_inputs():\n    return [torch.rand(3, 8)]\n";

    fn python() -> Python {
        let caches = Caches::locate().unwrap();
        find_python(&PythonChoice::Auto, &caches).unwrap().unwrap()
    }

    fn request(model: &str) -> Request<'_> {
        Request {
            model,
            smaller: None,
        }
    }

    #[test]
    fn a_task_that_takes_too_long_costs_itself_alone() {
        let python = python();
        let mut worker = CaptureWorker::new(&python, 1, Duration::from_mins(5));
        let first = worker.capture(&request(MODULE)).unwrap();
        worker.limit = Duration::from_millis(200);
        let slow = format!("{MODULE}\ntime.sleep(600)\n");
        let error = worker.capture(&request(&slow)).unwrap_err();
        assert!(matches!(error, CaptureError::NoAnswer { .. }), "{error}");
        worker.limit = Duration::from_mins(5);
        assert_eq!(worker.capture(&request(MODULE)).unwrap(), first);
    }

    /// Whether a process goes on after the first of these, or ends and is replaced, is its own affair.
    #[test]
    fn tasks_of_one_process_do_not_influence_each_other() {
        let python = python();
        let mut worker = CaptureWorker::new(&python, 1, Duration::from_mins(5));
        let alone = worker.capture(&request(MODULE)).unwrap();
        for line in [
            "torch.set_default_dtype(torch.float64)",
            "torch.set_default_device('meta')",
            "torch.set_grad_enabled(False)",
            "F.relu = torch.sigmoid",
            "nn.Linear.forward = lambda self, x: x",
            "os.write(1, b'noise\\n'); print('noise'); sys.path.clear(); os.chdir('/')",
            "sys.stdout.close()",
            "sys.exit(3)",
            "raise MemoryError",
            "no_such_name",
        ] {
            let _ = worker.capture(&request(&format!("{MODULE}\n{line}\n")));
            let next = worker.capture(&request(MODULE)).unwrap();
            assert_eq!(next, alone, "after `{line}`");
        }
    }

    /// It is the same process as long as nothing ends it.
    #[test]
    fn a_process_is_started_once() {
        let python = python();
        let mut worker = CaptureWorker::new(&python, 1, Duration::from_mins(5));
        let mut processes = Vec::new();
        for line in ["", "print('noise')", "no_such_name"] {
            let _ = worker.capture(&request(&format!("{MODULE}\n{line}\n")));
            processes.push(worker.process.as_ref().unwrap().child.id());
        }
        assert_eq!(processes, [processes[0]; 3]);
    }
}
