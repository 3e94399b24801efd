//! The judge over HTTP, by the real binary: verdicts, an episode of `OpenEnv`'s own client, and schemathesis against the
//! interface's description of itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{assert_gone, descendants, ended_within};
use crate::common::server::Server;
use crate::common::venv::python_with;
use crate::common::{Context, code, json, with_fewer_rows};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use warpsmith_machine::http_agent;

const QUICK: [&str; 6] = [
    "--target",
    "cpu",
    "--profile",
    "rl",
    "--no-compile",
    "--client-tasks",
];

fn softmax() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/softmax")
}

fn submission() -> Value {
    let text = |path: &str| fs_err::read_to_string(softmax().join(path)).unwrap();
    let mut files = serde_json::Map::new();
    files.insert("model_new.py".to_owned(), json!(text("model_new.py")));
    for entry in fs_err::read_dir(softmax().join("kernels")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".cpp") {
            let path = format!("kernels/{name}");
            files.insert(path.clone(), json!(text(&path)));
        }
    }
    let source = with_fewer_rows(&text("model.py"));
    json!({ "task": { "source": source, "name": "softmax" }, "files": files })
}

fn ask(server: &Server, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
    let agent = http_agent(Duration::from_mins(15)).unwrap();
    let url = format!("{}{path}", server.url());
    let sent = match (method, body) {
        ("POST", Some(body)) => agent
            .post(&url)
            .content_type("application/json")
            .config()
            .http_status_as_error(false)
            .build()
            .send(body.to_string()),
        ("DELETE", _) => agent
            .delete(&url)
            .config()
            .http_status_as_error(false)
            .build()
            .call(),
        _ => agent
            .get(&url)
            .config()
            .http_status_as_error(false)
            .build()
            .call(),
    };
    let mut response = sent.unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_str(&text).unwrap())
}

#[test]
fn a_solution_gets_its_verdict() {
    let server = Server::start(&QUICK);
    let (status, taken) = ask(&server, "POST", "/v1/judge", Some(&submission()));
    assert_eq!(status, 202, "{taken:#}");
    let id = taken["id"].as_str().unwrap();
    let path = format!("/v1/jobs/{id}");
    let (status, job) = ask(&server, "GET", &format!("{path}?wait=600"), None);
    assert_eq!((status, &job["status"]), (200, &json!("judged")), "{job:#}");
    assert_eq!(job["verdict"]["status"], "passed", "{job:#}");
    let evidence = job["verdict"]["evidence"].as_str().unwrap();
    assert!(Path::new(evidence).is_dir(), "{evidence}");
    // The same again is known.
    let (status, again) = ask(&server, "POST", "/v1/judge?wait=600", Some(&submission()));
    assert_eq!(status, 200);
    assert_eq!(again["verdict"], job["verdict"]);

    let (_, listed) = ask(&server, "GET", "/v1/jobs?limit=1", None);
    assert_eq!(listed["jobs"][0]["id"], again["id"]);
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 1);
    let (status, late) = ask(&server, "DELETE", &path, None);
    assert_eq!(
        (status, &late["failure"]["code"]),
        (409, &json!("too_late"))
    );

    // What is wrong is said, and does no harm.
    let mut outside = submission();
    outside["files"]["kernels/../../x"] = json!("");
    let mut broken = submission();
    broken["task"]["source"] = json!("import torch");
    let unknown = json!({ "task": { "source": "x" }, "files": {}, "target": "cuda" });
    for (body, found) in [(&outside, 400), (&unknown, 400), (&json!([]), 400)] {
        let (status, answer) = ask(&server, "POST", "/v1/judge", Some(body));
        assert_eq!(status, found, "{answer:#}");
        assert_eq!(answer["failure"]["kind"], "config");
    }
    let (status, failed) = ask(&server, "POST", "/v1/judge?wait=600", Some(&broken));
    assert_eq!((status, &failed["status"]), (200, &json!("failed")));
    assert_eq!(failed["failure"]["kind"], "task", "{failed:#}");
    let mut clash = submission();
    clash["files"]["kernels/softmax.cpp/x.cpp"] = json!("");
    assert_eq!(ask(&server, "POST", "/v1/judge", Some(&clash)).0, 400);
    assert_eq!(ask(&server, "GET", "/v1/jobs/none", None).0, 404);
    assert_eq!(ask(&server, "GET", "/v1/jobs?limit=0", None).0, 400);
    // What is not there, and what is asked the wrong way, is told in the same form.
    let (status, found) = ask(&server, "GET", "/v1/none", None);
    assert_eq!(
        (status, &found["failure"]["code"]),
        (404, &json!("unknown_path"))
    );
    let (status, found) = ask(&server, "GET", "/v1/judge", None);
    assert_eq!(
        (status, &found["failure"]["code"]),
        (405, &json!("method_not_allowed"))
    );
}

#[test]
fn a_job_that_waits_can_be_taken_back() {
    let server = Server::start(&QUICK);
    let first = ask(&server, "POST", "/v1/judge", Some(&submission())).1;
    let mut other = submission();
    other["files"]["kernels/more.cpp"] = json!("// more");
    let second = ask(&server, "POST", "/v1/judge", Some(&other)).1;
    let (status, job) = ask(
        &server,
        "DELETE",
        &format!("/v1/jobs/{}", second["id"].as_str().unwrap()),
        None,
    );
    assert_eq!((status, &job["status"]), (200, &json!("cancelled")));
    let first = format!("/v1/jobs/{}?wait=600", first["id"].as_str().unwrap());
    assert_eq!(ask(&server, "GET", &first, None).1["status"], "judged");
}

/// Interrupted in the middle of a judgement.
#[test]
fn nothing_outlives_the_server() {
    let mut server = Server::start(&QUICK);
    assert_eq!(
        ask(&server, "POST", "/v1/judge", Some(&submission())).0,
        202
    );
    let begun = Instant::now();
    while descendants(server.process.id()).len() < 2 {
        assert!(begun.elapsed() < Duration::from_mins(10), "nothing started");
        thread::sleep(Duration::from_millis(50));
    }
    let started = descendants(server.process.id());
    let pid = Pid::from_raw(i32::try_from(server.process.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let status = ended_within(&mut server.process, Duration::from_secs(8));
    assert_eq!(status.code(), Some(130));
    assert_gone(&started);
}

/// What is being judged is judged, what waits is sent away so that another server gets it, and the exit code is 0.
#[test]
fn a_server_that_is_asked_to_end_ends_what_it_is_at() {
    // Times mean nothing here, and a noisy machine must not matter.
    let mut server = Server::start(&["--target", "cpu", "--profile", "verify", "--client-tasks"]);
    let running = ask(&server, "POST", "/v1/judge", Some(&submission())).1;
    let mut other = submission();
    other["files"]["kernels/more.cpp"] = json!("// more");
    let waiting = ask(&server, "POST", "/v1/judge", Some(&other)).1;
    let path = |job: &Value| format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let begun = Instant::now();
    while ask(&server, "GET", &path(&running), None).1["status"] != "judging"
        || descendants(server.process.id()).is_empty()
    {
        assert!(begun.elapsed() < Duration::from_mins(10), "nothing started");
        thread::sleep(Duration::from_millis(20));
    }
    let started = descendants(server.process.id());
    let (judged, held) = thread::scope(|scope| {
        let judged = scope.spawn(|| ask(&server, "GET", &(path(&running) + "?wait=600"), None));
        let held = scope.spawn(|| ask(&server, "POST", "/v1/judge?wait=600", Some(&other)));
        while server.get("/v1/jobs?limit=5")["waiting"] != 2 {
            assert!(begun.elapsed() < Duration::from_mins(10), "nothing waits");
            thread::sleep(Duration::from_millis(20));
        }
        let pid = Pid::from_raw(i32::try_from(server.process.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let held = held.join().unwrap();
        // While the rest is judged: where the job has gone, and that nothing more is taken.
        let (_, gone) = ask(&server, "GET", &path(&waiting), None);
        assert_eq!(gone["failure"]["code"], "draining", "{gone:#}");
        let (status, refused) = ask(&server, "POST", "/v1/judge", Some(&other));
        assert_eq!(
            (status, &refused["failure"]["code"]),
            (503, &json!("draining"))
        );
        assert_eq!(ask(&server, "GET", "/healthz", None).0, 503);
        (judged.join().unwrap(), held)
    });
    assert_eq!(
        (held.0, &held.1["failure"]["code"]),
        (503, &json!("draining"))
    );
    assert_eq!(held.1["failure"]["kind"], "infrastructure");
    assert_eq!(judged.1["verdict"]["status"], "passed", "{:#}", judged.1);
    let status = ended_within(&mut server.process, Duration::from_secs(20));
    assert_eq!(status.code(), Some(0));
    assert_gone(&started);
}

/// Clients with keys of their own, and Prometheus' own reading of what is counted.
#[test]
fn each_key_has_its_jobs_and_everything_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    fs_err::write(&file, "# trainers\nkey-one grpo\nkey-two sweep\n").unwrap();
    let file = file.to_str().unwrap();
    let server =
        Server::start(&[&QUICK[..], &["--token-file", file, "--host", "0.0.0.0"]].concat());
    assert_eq!(server.said["token_required"], true);
    let port = server.url().rsplit(':').next().unwrap().to_owned();
    let ask = |key: &str, path: &str, body: Option<Value>| {
        let agent = http_agent(Duration::from_mins(15)).unwrap();
        let url = format!("http://127.0.0.1:{port}{path}");
        let key = format!("Bearer {key}");
        let sent = if let Some(body) = body {
            let request = agent.post(&url).header("Authorization", &key);
            let request = request.content_type("application/json").config();
            let request = request.http_status_as_error(false).build();
            request.send(body.to_string())
        } else {
            let request = agent.get(&url).header("Authorization", &key).config();
            request.http_status_as_error(false).build().call()
        };
        let mut response = sent.unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), text)
    };
    let reply = json!({ "task": submission()["task"], "reply": "I cannot." });
    let (status, job) = ask("key-one", "/v1/judge?wait=600", Some(reply.clone()));
    let job: Value = serde_json::from_str(&job).unwrap();
    assert_eq!(
        (status, &job["verdict"]["status"]),
        (200, &json!("rejected")),
        "{job:#}"
    );
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    assert_eq!(ask("key-one", &path, None).0, 200);
    assert_eq!(ask("key-two", &path, None).0, 404);
    assert_eq!(ask("key-three", &path, None).0, 401);
    assert_eq!(ask("key-three", "/metrics", None).0, 401);
    // Slow answers begin with white space, which is no part of them; this one is known and quick.
    let source = reply["task"]["source"].clone();
    let sample = json!({ "response": "I cannot.", "label": source });
    let (status, reward) = ask("key-two", "/slime?heartbeat=1", Some(sample));
    assert_eq!((status, reward.trim()), (200, "-1.0"));

    let python = python_with("prometheus-client-0.23.1", &["prometheus-client==0.23.1"]);
    let text = folder.path().join("metrics");
    fs_err::write(&text, ask("key-two", "/metrics", None).1).unwrap();
    let read = "import json, sys\nfrom prometheus_client.parser import text_string_to_metric_families as read\n\
                print(json.dumps([[s.name, s.labels, s.value] for f in read(open(sys.argv[1]).read()) for s in f.samples]))";
    let output = Command::new(python)
        .args(["-c", read])
        .arg(&text)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let seen: Vec<(String, Value, f64)> = serde_json::from_slice(&output.stdout).unwrap();
    let value = |name: &str, labels: Value| {
        let found = seen.iter().find(|one| one.0 == name && one.1 == labels);
        found
            .unwrap_or_else(|| panic!("{name} {labels} in {seen:?}"))
            .2
    };
    let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-9, "{found}");
    near(
        value("warpsmith_verdicts_total", json!({ "status": "rejected" })),
        2.0,
    );
    near(value("warpsmith_judges", json!({})), 1.0);
    near(
        value("warpsmith_queue_overhead_seconds_count", json!({})),
        2.0,
    );
    near(value("warpsmith_judging_seconds_count", json!({})), 2.0);
}

#[test]
fn a_key_file_that_is_none_is_refused() {
    let context = Context::new();
    for (text, said) in [
        ("# nothing\n", "it has no key"),
        ("a b c\n", "line 1"),
        ("a x\na y\n", "line 2"),
    ] {
        context.write("keys", text);
        let refused = context
            .command(&[
                "serve",
                "--token-file",
                "keys",
                "--port",
                "0",
                "--json",
                "-q",
            ])
            .output()
            .unwrap();
        assert_eq!(code(&refused), 2);
        let failure = &json(&refused)["failure"];
        assert_eq!(failure["code"], "token_file");
        assert!(
            failure["message"].as_str().unwrap().contains(said),
            "{failure}"
        );
    }
}

/// A task is run outside the sandbox, so it must be one of the server's own.
#[test]
fn clients_bring_no_tasks_unless_they_may() {
    let server = Server::start(&QUICK[..5]);
    let (status, refused) = ask(&server, "POST", "/v1/judge", Some(&submission()));
    assert_eq!(
        (status, &refused["failure"]["code"]),
        (403, &json!("client_tasks"))
    );
    let mut named = submission();
    named["task"] = json!({ "id": "no such task" });
    assert_eq!(ask(&server, "POST", "/v1/judge", Some(&named)).0, 404);
    named["task"] = json!({ "id": "softmax" });
    assert_eq!(ask(&server, "POST", "/v1/judge", Some(&named)).0, 202);
}

#[test]
fn weak_isolation_is_refused() {
    let context = Context::new();
    let arguments = [
        "serve",
        "--isolation",
        "weak",
        "--port",
        "0",
        "--json",
        "-q",
    ];
    let refused = context.command(&arguments).output().unwrap();
    assert_eq!(code(&refused), 2);
    assert_eq!(json(&refused)["failure"]["code"], "isolation");
}

#[test]
fn openenvs_own_client_goes_through_an_episode() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let requirements = tests.join("openenv.txt");
    let pinned = ["--no-deps", "-r", requirements.to_str().unwrap()];
    let python = python_with("openenv-0.10.0", &pinned);
    let server = Server::start(&QUICK);
    let output = Command::new(python)
        .arg(tests.join("openenv_client.py"))
        .args([server.url()])
        .arg(softmax())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        seen["begun"],
        json!({ "task": "softmax", "reward": null, "done": false })
    );
    assert_eq!(seen["broken"]["reward"], -1.0, "{seen:#}");
    assert_eq!(seen["broken"]["done"], false);
    assert_eq!(
        seen["good"],
        json!({ "status": "passed", "done": true, "paid": true })
    );
    assert_eq!(seen["state"]["episode_id"], "mine");
    assert_eq!(seen["state"]["step_count"], 2);
    for (when, code) in [
        ("too_early", "SESSION_ERROR"),
        ("outside", "VALIDATION_ERROR"),
        ("too_late", "SESSION_ERROR"),
        ("no_task", "VALIDATION_ERROR"),
    ] {
        let said = seen[when].as_str().unwrap();
        assert!(said.contains(code), "{when}: {said}");
    }
}

/// Hundreds of requests, sensible and not, each answered as the description says.
#[test]
fn schemathesis_finds_no_difference() {
    let python = python_with("schemathesis-4.32.5", &["schemathesis==4.32.5"]);
    // Without tasks of clients: nothing is judged, so that no answer is waited for as long as it may be.
    let server = Server::start(&QUICK[..5]);
    let document = format!("{}/openapi.json", server.url());
    let flags = [
        "--max-examples",
        "25",
        "--seed",
        "1",
        "--phases",
        "coverage,fuzzing",
    ];
    let output = Command::new(python.with_file_name("st"))
        .args(["run", &document])
        .args(flags)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("Tested: 8"), "{said}");
}
