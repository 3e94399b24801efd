//! Tools in a real sandbox; those that judge are tested with the real judge, through the command line.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warpsmith_judge::profile::ProfileReport;
use warpsmith_judge::{CheckDepth, Judge, JudgeError};
use warpsmith_sandbox::{Isolation, system_paths};
use warpsmith_schema::{Submission, Task, ToolCall, Verdict};

use super::{ToolAnswer, Tools};
use crate::shell::ShellSandbox;
use crate::{EpisodeJudge, Workspace};

/// Nothing here is judged.
struct NoJudge;

impl Judge for NoJudge {
    fn survey(&mut self, _: &Task) -> Result<(), JudgeError> {
        panic!("nothing is judged here")
    }

    fn judge(&mut self, _: &Task, _: &Submission) -> Result<Verdict, JudgeError> {
        panic!("nothing is judged here")
    }

    fn judge_afresh(&mut self, _: &Task, _: &Submission) -> Result<Verdict, JudgeError> {
        panic!("nothing is judged here")
    }

    fn check(
        &mut self,
        _: &Task,
        _: &Submission,
        _: CheckDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        panic!("nothing is judged here")
    }

    fn profile(&mut self, _: &Task, _: Option<&Submission>) -> Result<ProfileReport, JudgeError> {
        panic!("nothing is judged here")
    }

    fn replacement(&self) -> Result<Box<dyn Judge>, JudgeError> {
        Ok(Box::new(Self))
    }
}

fn task() -> Task {
    Task::of_source("task", "# the task\n")
}

struct Desk<'a> {
    tools: Tools<'a>,
    folder: tempfile::TempDir,
}

impl Desk<'_> {
    fn call(&mut self, name: &str, arguments: Value) -> ToolAnswer {
        let call = ToolCall {
            id: "1".to_owned(),
            name: name.to_owned(),
            arguments,
        };
        self.tools.call(&call).unwrap()
    }

    fn good(&mut self, name: &str, arguments: Value) -> String {
        let answer = self.call(name, arguments);
        assert!(!answer.failed, "{name}: {}", answer.text);
        answer.text
    }

    fn bad(&mut self, name: &str, arguments: Value) -> String {
        let answer = self.call(name, arguments);
        assert!(answer.failed, "{name}: {}", answer.text);
        answer.text
    }

    fn bash(&mut self, command: &str) -> String {
        self.good("bash", json!({ "command": command }))
    }
}

fn desk<'a>(judge: &'a mut NoJudge, task: &'a Task) -> Desk<'a> {
    let folder = tempfile::tempdir().unwrap();
    // The sandbox may run as another user, who must be able to pass.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs_err::set_permissions(folder.path(), open).unwrap();
    let workspace = Workspace::open(&folder.path().join("work"), &task.source).unwrap();
    let sandbox = ShellSandbox {
        read: system_paths(),
        isolation: Isolation::Weak,
    };
    Desk {
        tools: Tools::new(workspace, sandbox, EpisodeJudge { judge, task }, 2000),
        folder,
    }
}

#[test]
fn the_shell_keeps_its_folder_and_variables() {
    let (mut judge, task) = (NoJudge, task());
    let mut desk = desk(&mut judge, &task);
    desk.bash("cd kernels && export NAME=warp");
    assert_eq!(desk.bash("echo $NAME; basename $PWD"), "warp\nkernels");
    let failed = desk.bad("bash", json!({ "command": "echo no >&2; false" }));
    assert_eq!(failed, "no\nexit 1");
    // Streams that a command closes are its own.
    desk.bash("exec >&- 2>&-");
    assert_eq!(desk.bash("echo $NAME"), "warp");
}

#[test]
fn a_command_that_will_not_end_is_stopped() {
    let (mut judge, task) = (NoJudge, task());
    let mut desk = desk(&mut judge, &task);
    let begun = Instant::now();
    let told = desk.bad(
        "bash",
        json!({ "command": "echo begun; sleep 100", "timeout_s": 1 }),
    );
    assert!(told.starts_with("begun\nstopped after 1 s"), "{told}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    let told = desk.bad("bash", json!({ "command": "exit 3" }));
    assert!(told.contains("ended the shell"), "{told}");
    assert_eq!(desk.bash("echo again"), "again");
}

#[test]
fn background_commands_are_read_and_stopped() {
    let (mut judge, task) = (NoJudge, task());
    let mut desk = desk(&mut judge, &task);
    let started = desk.good(
        "bash",
        json!({ "command": "echo first; sleep 100; echo last", "background": true }),
    );
    assert!(started.contains("job 1"), "{started}");
    let mut told = String::new();
    for _ in 0..50 {
        told = desk.good("bash_output", json!({ "job": 1 }));
        if told.contains("first") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(told, "job 1: still running\nfirst\n");
    desk.good("bash_kill", json!({ "job": 1 }));
    desk.bash("sleep 0.2");
    let told = desk.good("bash_output", json!({ "job": 1 }));
    assert!(told.starts_with("job 1: ended"), "{told}");
    desk.bad("bash_output", json!({ "job": 7 }));
}

/// What the shell cannot reach: other files, the network, other processes.
#[test]
fn the_shell_is_confined() {
    let (mut judge, task) = (NoJudge, task());
    let mut desk = desk(&mut judge, &task);
    let secret = desk.folder.path().join("secret");
    fs_err::write(&secret, "secret").unwrap();
    let cat = format!("cat {}", secret.display());
    desk.bad("bash", json!({ "command": cat }));
    desk.bad("bash", json!({ "command": "echo x > /usr/x" }));
    desk.bad(
        "bash",
        json!({ "command": "exec 9<>/dev/tcp/1.1.1.1/53", "timeout_s": 10 }),
    );
    let me = std::process::id();
    desk.bad("bash", json!({ "command": format!("kill -0 {me}") }));
    // A link to what only this process can read, followed by nobody.
    desk.bash(&format!("ln -s {} model_new.py", secret.display()));
    desk.bad("read", json!({ "path": "model_new.py" }));
    desk.bad("compile", json!({}));
}

#[test]
fn files_are_read_before_they_are_overwritten() {
    let (mut judge, task) = (NoJudge, task());
    let mut desk = desk(&mut judge, &task);
    desk.bash("printf 'int a;\\nint b;\\n' > kernels/x.cpp");
    let told = desk.bad("write", json!({ "path": "kernels/x.cpp", "content": "" }));
    assert!(told.contains("read it first"), "{told}");
    let shown = desk.good("read", json!({ "path": "kernels/x.cpp", "offset": 2 }));
    assert_eq!(shown, "    2  int b;");
    desk.good(
        "edit",
        json!({ "path": "kernels/x.cpp", "old": "int b;", "new": "int c;" }),
    );
    // All or none.
    let told = desk.bad(
        "multi_edit",
        json!({ "path": "kernels/x.cpp", "edits": [{ "old": "int a;", "new": "int z;" }, { "old": "int q;", "new": "" }] }),
    );
    assert!(told.contains("change 2 of 2"), "{told}");
    assert_eq!(desk.bash("cat kernels/x.cpp"), "int a;\nint c;");
    assert_eq!(
        desk.good("glob", json!({ "pattern": "**/*.cpp" })).trim(),
        "kernels/x.cpp"
    );
    assert_eq!(
        desk.good("grep", json!({ "pattern": "int [c-z]" })).trim(),
        "./kernels/x.cpp:2:int c;"
    );
    assert_eq!(
        desk.good("grep", json!({ "pattern": "it's" })),
        "nothing found"
    );
    // What the tool wrote, the shell may change, and the other way round.
    desk.good(
        "write",
        json!({ "path": "kernels/new/y.cpp", "content": "int y;\n" }),
    );
    desk.bash("echo 'int more;' >> kernels/new/y.cpp && touch kernels/new/z.cpp");
    desk.bad("write", json!({ "path": "model.py", "content": "" }));
}

#[test]
fn a_broken_call_is_answered_with_what_is_wrong() {
    let (mut judge, task) = (NoJudge, task());
    let mut desk = desk(&mut judge, &task);
    for (name, arguments, expected) in [
        ("bash", json!({}), "missing field `command`"),
        (
            "bash",
            json!({ "command": "ls", "color": 1 }),
            "unknown field `color`",
        ),
        ("bash", json!("{\"command\": "), "not a JSON object"),
        ("read", json!({ "path": 3 }), "expected a string"),
        ("fly", json!({}), "there is no tool `fly`"),
        ("judge", json!({}), "there is no `model_new.py` yet"),
        (
            "todo",
            json!({ "items": [{ "text": "a", "state": "maybe" }] }),
            "unknown variant",
        ),
    ] {
        let told = desk.bad(name, arguments);
        assert!(told.contains(expected), "{name}: {told}");
    }
    let list = desk.good(
        "todo",
        json!({ "items": [{ "text": "look", "state": "done" }, { "text": "write", "state": "doing" }] }),
    );
    assert_eq!(list, "[x] look\n[>] write");
}

#[test]
fn long_output_keeps_its_end() {
    let (mut judge, task) = (NoJudge, task());
    let mut desk = desk(&mut judge, &task);
    let text = desk.bash("seq 1 100000; echo the end");
    assert!(
        text.ends_with("the end") && text.chars().count() < 2100,
        "{}",
        text.len()
    );
    assert!(text.contains("characters left out"));
}
