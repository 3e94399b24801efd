//! The shell as a tool: started when first needed, started again when a command ended it or would not end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::args::Bash;
use super::files::quoted;
use super::{ToolAnswer, Tools};
use crate::Workspace;
use crate::shell::{CommandEnd, OUTPUT, Shell, ShellSandbox};

const DEFAULT_TIMEOUT: Duration = Duration::from_mins(1);
const MAX_TIMEOUT: Duration = Duration::from_mins(10);

pub(super) struct ShellTool {
    root: PathBuf,
    sandbox: ShellSandbox,
    shell: Option<Shell>,
    /// Process groups of background commands, by number.
    jobs: BTreeMap<u32, u32>,
    /// Background commands started so far.
    started: u32,
    /// Commands run so far.
    commands: u32,
}

impl ShellTool {
    pub(super) fn new(root: PathBuf, sandbox: ShellSandbox) -> Self {
        Self {
            root,
            sandbox,
            shell: None,
            jobs: BTreeMap::new(),
            started: 0,
            commands: 0,
        }
    }

    /// Runs a command; how it ended and what it printed.
    fn run(
        &mut self,
        workspace: &Workspace,
        command: &str,
        limit: Duration,
    ) -> Result<(CommandEnd, String), ToolAnswer> {
        if command.contains('\0') {
            return Err(ToolAnswer::bad("a command cannot hold a zero byte"));
        }
        if self.shell.is_none() {
            let started = Shell::start(&self.root, &self.sandbox);
            self.shell =
                Some(started.map_err(|error| {
                    ToolAnswer::bad(format!("the shell did not start: {error}"))
                })?);
        }
        self.commands += 1;
        let name = self.commands.to_string();
        let ended = match &mut self.shell {
            Some(shell) => shell.run(&name, command, limit),
            None => CommandEnd::ShellGone,
        };
        let printed = printed(workspace, &name);
        workspace.remove(OUTPUT, &name);
        if !matches!(ended, CommandEnd::Status(_)) {
            self.shell = None;
            self.jobs.clear();
        }
        Ok((ended, printed))
    }

    /// For tools that only look.
    pub(super) fn ask(
        &mut self,
        workspace: &Workspace,
        command: &str,
    ) -> Result<String, ToolAnswer> {
        match self.run(workspace, command, DEFAULT_TIMEOUT)? {
            (CommandEnd::Status(_), text) => Ok(text),
            (ended, text) => Err(answer_of(ended, &text, DEFAULT_TIMEOUT)),
        }
    }
}

impl Tools<'_> {
    pub(super) fn bash(&mut self, args: &Bash) -> ToolAnswer {
        if args.background {
            return self.run_in_background(&args.command);
        }
        let limit = args
            .timeout_s
            .map_or(DEFAULT_TIMEOUT, Duration::from_secs)
            .clamp(Duration::from_secs(1), MAX_TIMEOUT);
        match self.shell.run(&self.workspace, &args.command, limit) {
            Ok((ended, text)) => answer_of(ended, &text, limit),
            Err(answer) => answer,
        }
    }

    fn run_in_background(&mut self, command: &str) -> ToolAnswer {
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
                ToolAnswer::good(format!("job {number} runs in the background"))
            }
            Ok(Err(_)) => ToolAnswer::bad("the command could not be started in the background"),
            Err(answer) => answer,
        }
    }

    pub(super) fn bash_output(&mut self, job: u32) -> ToolAnswer {
        let Some(group) = self.shell.jobs.get(&job).copied() else {
            return ToolAnswer::bad(format!("there is no job {job}"));
        };
        let state = self.shell.ask(
            &self.workspace,
            &format!("kill -0 {group} 2>/dev/null && echo still running || echo ended"),
        );
        match state {
            Ok(state) => {
                let text = printed(&self.workspace, &format!("job-{job}"));
                ToolAnswer::good(format!("job {job}: {}\n{text}", state.trim()))
            }
            Err(answer) => answer,
        }
    }

    pub(super) fn bash_kill(&mut self, job: u32) -> ToolAnswer {
        let Some(group) = self.shell.jobs.get(&job).copied() else {
            return ToolAnswer::bad(format!("there is no job {job}"));
        };
        let command = format!("kill -KILL -- -{group} 2>/dev/null; echo stopped");
        match self.shell.ask(&self.workspace, &command) {
            Ok(_) => ToolAnswer::good(format!("job {job} is stopped")),
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

fn answer_of(ended: CommandEnd, text: &str, limit: Duration) -> ToolAnswer {
    let text = text.trim_end();
    match ended {
        CommandEnd::Status(0) if text.is_empty() => ToolAnswer::good("done, nothing printed"),
        CommandEnd::Status(0) => ToolAnswer::good(text),
        CommandEnd::Status(status) => {
            ToolAnswer::bad(format!("{text}\nexit {status}").trim_start().to_owned())
        }
        CommandEnd::TimedOut => ToolAnswer::bad(format!(
            "{text}\nstopped after {} s; the shell was started again, its variables are gone",
            limit.as_secs()
        )),
        CommandEnd::ShellGone => ToolAnswer::bad(format!(
            "{text}\nthe command ended the shell; it was started again, its variables are gone"
        )),
    }
}
