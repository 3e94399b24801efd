//! The shell as a tool: started when first needed, started again when a command ended it or would not end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::args::Bash;
use super::files::quoted;
use super::{Answer, Tools};
use crate::Workspace;
use crate::shell::{Confines, Ended, OUTPUT, Shell};

const USUAL: Duration = Duration::from_mins(1);
const LONGEST: Duration = Duration::from_mins(10);

pub(super) struct Keeper {
    root: PathBuf,
    confines: Confines,
    shell: Option<Shell>,
    /// Process groups of background commands, by number.
    jobs: BTreeMap<u32, u32>,
    started: u32,
    asked: u32,
}

impl Keeper {
    pub(super) fn new(root: PathBuf, confines: Confines) -> Self {
        Self {
            root,
            confines,
            shell: None,
            jobs: BTreeMap::new(),
            started: 0,
            asked: 0,
        }
    }

    /// Runs a command; how it ended and what it printed.
    fn run(
        &mut self,
        workspace: &Workspace,
        command: &str,
        limit: Duration,
    ) -> Result<(Ended, String), Answer> {
        if command.contains('\0') {
            return Err(Answer::bad("a command cannot hold a zero byte"));
        }
        if self.shell.is_none() {
            let started = Shell::start(&self.root, &self.confines);
            self.shell = Some(
                started
                    .map_err(|error| Answer::bad(format!("the shell did not start: {error}")))?,
            );
        }
        self.asked += 1;
        let name = format!("{}", self.asked);
        let ended = match &mut self.shell {
            Some(shell) => shell.run(&name, command, limit),
            None => Ended::ShellGone,
        };
        let printed = printed(workspace, &name);
        workspace.remove(OUTPUT, &name);
        if !matches!(ended, Ended::Status(_)) {
            self.shell = None;
            self.jobs.clear();
        }
        Ok((ended, printed))
    }

    /// For tools that only look.
    pub(super) fn ask(&mut self, workspace: &Workspace, command: &str) -> Result<String, Answer> {
        match self.run(workspace, command, USUAL)? {
            (Ended::Status(_), text) => Ok(text),
            (ended, text) => Err(told(ended, &text, USUAL)),
        }
    }
}

impl Tools<'_> {
    pub(super) fn bash(&mut self, args: &Bash) -> Answer {
        if args.background {
            return self.leave_running(&args.command);
        }
        let limit = args
            .timeout_s
            .map_or(USUAL, Duration::from_secs)
            .clamp(Duration::from_secs(1), LONGEST);
        match self.shell.run(&self.workspace, &args.command, limit) {
            Ok((ended, text)) => told(ended, &text, limit),
            Err(answer) => answer,
        }
    }

    fn leave_running(&mut self, command: &str) -> Answer {
        let number = self.shell.started + 1;
        let started = self.shell.ask(
            &self.workspace,
            &format!(
                "setsid bash -c {} >\"$WORK/{OUTPUT}/job-{number}\" 2>&1 </dev/null & echo $!",
                quoted(command)
            ),
        );
        match started.map(|text| text.trim().parse::<u32>()) {
            Ok(Ok(group)) => {
                self.shell.started = number;
                self.shell.jobs.insert(number, group);
                Answer::good(format!("job {number} runs in the background"))
            }
            Ok(Err(_)) => Answer::bad("the command could not be started in the background"),
            Err(answer) => answer,
        }
    }

    pub(super) fn bash_output(&mut self, job: u32) -> Answer {
        let Some(group) = self.shell.jobs.get(&job).copied() else {
            return Answer::bad(format!("there is no job {job}"));
        };
        let state = self.shell.ask(
            &self.workspace,
            &format!("kill -0 {group} 2>/dev/null && echo still running || echo ended"),
        );
        match state {
            Ok(state) => {
                let text = printed(&self.workspace, &format!("job-{job}"));
                Answer::good(format!("job {job}: {}\n{text}", state.trim()))
            }
            Err(answer) => answer,
        }
    }

    pub(super) fn bash_kill(&mut self, job: u32) -> Answer {
        let Some(group) = self.shell.jobs.get(&job).copied() else {
            return Answer::bad(format!("there is no job {job}"));
        };
        let command = format!("kill -KILL -- -{group} 2>/dev/null; echo stopped");
        match self.shell.ask(&self.workspace, &command) {
            Ok(_) => Answer::good(format!("job {job} is stopped")),
            Err(answer) => answer,
        }
    }
}

/// The end of what was printed, where it can be read at all.
fn printed(workspace: &Workspace, name: &str) -> String {
    workspace
        .peek_end(&format!("{OUTPUT}/{name}"))
        .unwrap_or_default()
}

fn told(ended: Ended, text: &str, limit: Duration) -> Answer {
    let text = text.trim_end();
    match ended {
        Ended::Status(0) if text.is_empty() => Answer::good("done, nothing printed"),
        Ended::Status(0) => Answer::good(text),
        Ended::Status(status) => {
            Answer::bad(format!("{text}\nexit {status}").trim_start().to_owned())
        }
        Ended::TimedOut => Answer::bad(format!(
            "{text}\nstopped after {} s; the shell was started again, its variables are gone",
            limit.as_secs()
        )),
        Ended::ShellGone => Answer::bad(format!(
            "{text}\nthe command ended the shell; it was started again, its variables are gone"
        )),
    }
}
