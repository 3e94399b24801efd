//! The real binary as an MCP server, driven by the official client from `PyPI`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{assert_gone, descendants, ended_within};
use crate::common::scale_relu::{KERNEL, MODEL_NEW, TASK};
use crate::common::venv::python_with;
use crate::common::{Context, code};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use warpsmith_machine::Caches;

const CLIENT: &str = "mcp==2.3.0";

/// A name of this run's own, by which its evidence is found.
fn task() -> String {
    format!("task_{}", std::process::id())
}

fn context() -> Context {
    let context = Context::new();
    context.write(&format!("{}.py", task()), TASK);
    context.write("model_new.py", MODEL_NEW);
    context.write("kernel.cpp", KERNEL);
    context
}

/// What the client saw.
fn play(scene: &str, context: &Context) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp_client.py");
    let output = Command::new(python_with(CLIENT, &[CLIENT]))
        .arg(script)
        .args([scene, env!("CARGO_BIN_EXE_warpsmith")])
        .arg(context.path(&format!("{}.py", task())))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(of: &Value) -> &str {
    of["text"].as_str().unwrap()
}

#[test]
fn a_client_writes_mends_judges_and_submits() {
    let context = context();
    let saw = play("whole", &context);

    assert_eq!(saw["server"], "warpsmith");
    assert!(saw["seconds"].as_f64().unwrap() < 5.0, "{}", saw["seconds"]);
    let tools: Vec<&String> = saw["tools"].as_object().unwrap().keys().collect();
    assert_eq!(tools, ["compile", "judge", "profile", "submit", "verify"]);
    assert_eq!(saw["prompts"], json!(["optimize"]));
    assert_eq!(saw["resources"], json!(["warpsmith://skill"]));
    assert_eq!(saw["prompt"], saw["resource"]);
    let workspace = fs_err::canonicalize(context.path("workspace")).unwrap();
    let place = workspace.display().to_string();
    for told in ["prompt", "instructions"] {
        assert!(saw[told].as_str().unwrap().contains(&place), "{told}");
    }

    for (step, words) in [
        ("nothing", "there is no `model_new.py` yet"),
        ("link", "`model_new.py` is not a regular file"),
        ("broken", "expected ';'"),
        ("arguments", "unknown field `orignal`"),
    ] {
        assert_eq!(saw[step]["failed"], true, "{step}");
        assert!(text(&saw[step]).contains(words), "{step}: {}", saw[step]);
    }
    assert_eq!(saw["broken"]["structured"]["status"], "compile_failed");
    assert_eq!(saw["broken"]["order"], json!(["ping", "compile"]));

    assert_eq!(
        text(&saw["verify"]),
        "It compiles and its results are right."
    );
    assert_eq!(saw["signs"][0][1], "verify: at work");
    assert!(text(&saw["profile"]).contains("aten::relu"));
    for step in ["judge", "submit"] {
        assert_eq!(saw[step]["failed"], false, "{}", saw[step]);
        assert_eq!(saw[step]["structured"]["status"], "passed");
        let evidence = saw[step]["structured"]["evidence"].as_str().unwrap();
        assert!(Path::new(evidence).join("verdict.json").exists());
        assert!(text(&saw[step]).contains(evidence));
    }
    assert_ne!(
        saw["judge"]["structured"]["times_us"], saw["submit"]["structured"]["times_us"],
        "a submission is measured anew"
    );
    assert_eq!(
        saw["submit"]["structured"]["result"],
        workspace.join("submitted/01").display().to_string()
    );
    assert_eq!(
        context.read("workspace/submitted/01/kernels/scale_relu.cpp"),
        KERNEL
    );
    assert_eq!(context.read("workspace/submitted/01/model.py"), TASK);

    // It was killed, not waited for: there would be evidence that it timed out.
    assert_eq!(saw["cancelled"], true);
    assert_eq!(judgements(), 2);
    assert_eq!(saw["submitted"], json!(["01"]));
    assert_eq!(saw["afterwards"]["failed"], false, "{}", saw["afterwards"]);
    assert_eq!(saw["unknown"]["code"], -32602);
    assert!(
        saw["unknown"]["message"]
            .as_str()
            .unwrap()
            .starts_with("there is no tool `fly`")
    );
}

/// How often this run's task was judged to the end.
fn judgements() -> usize {
    let name = format!("-{}-", task());
    let evidence = Caches::locate().unwrap().evidence();
    let entries = fs_err::read_dir(evidence).unwrap();
    entries
        .filter(|entry| {
            let entry = entry.as_ref().unwrap();
            entry.file_name().to_string_lossy().contains(&name)
        })
        .count()
}

#[test]
fn the_newest_protocol_needs_no_handshake() {
    let saw = play("newest", &context());
    assert_eq!(saw["version"], "2026-07-28");
    assert_eq!(saw["tools"].as_array().unwrap().len(), 5);
}

#[test]
fn a_machine_that_cannot_judge_says_so_and_goes_on() {
    let saw = play("unprepared", &context());
    for call in saw["calls"].as_array().unwrap() {
        assert_eq!(call["failed"], true);
        assert!(text(call).starts_with("There is no verdict"), "{call}");
        assert_eq!(call["structured"]["failure"]["code"], "python");
    }
}

#[test]
fn another_task_in_the_workspace_is_left_alone() {
    let context = context();
    context.write("workspace/model.py", "mine = True\n");
    let task = format!("{}.py", task());
    let arguments = ["mcp", &task, "--workspace", "workspace"];
    let output = context.command(&arguments).output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(output.stdout.is_empty());
    assert_eq!(context.read("workspace/model.py"), "mine = True\n");
}

/// A client that leaves, and Ctrl-C: both in the middle of a call.
#[test]
fn nothing_outlives_the_server() {
    for (interrupted, expected) in [(false, 0), (true, 130)] {
        let context = context();
        context.write("workspace/model_new.py", MODEL_NEW);
        context.write("workspace/kernels/scale_relu.cpp", KERNEL);
        let mut server = in_the_middle_of_a_call(&context);
        let started = descendants(server.id());
        if interrupted {
            let pid = Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap();
            kill_process(pid, Signal::INT).unwrap();
        } else {
            drop(server.stdin.take());
        }
        let status = ended_within(&mut server, Duration::from_secs(8));
        assert_eq!(status.code(), Some(expected));
        assert_gone(&started);
    }
}

fn in_the_middle_of_a_call(context: &Context) -> Child {
    let flags = "--workspace workspace --target cpu --no-compile --profile rl -q";
    let arguments = format!("mcp {}.py {flags}", task());
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let mut server = context
        .command(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let hello = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
    });
    say(
        &mut server,
        &json!({ "id": 1, "method": "initialize", "params": hello }),
    );
    let mut line = String::new();
    let stdout = server.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert!(line.contains("serverInfo"), "{line}");
    say(
        &mut server,
        &json!({ "method": "notifications/initialized" }),
    );
    let call = json!({ "name": "judge", "arguments": {} });
    say(
        &mut server,
        &json!({ "id": 2, "method": "tools/call", "params": call }),
    );
    let begun = Instant::now();
    while descendants(server.id()).len() < 2 {
        assert!(begun.elapsed() < Duration::from_mins(10), "nothing started");
        thread::sleep(Duration::from_millis(50));
    }
    server
}

fn say(server: &mut Child, message: &Value) {
    let mut message = message.clone();
    message["jsonrpc"] = json!("2.0");
    writeln!(server.stdin.as_mut().unwrap(), "{message}").unwrap();
}
