//! A running `serve`, which ends with the test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use warpsmith_machine::http_agent;

use super::Context;
use super::endpoint::MODEL;

pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) said: Value,
    pub(crate) base_url: String,
    /// Where it runs.
    _context: Context,
}

impl Server {
    pub(crate) fn with_model(more: &[&str]) -> Self {
        let mut arguments = vec!["--model", MODEL];
        arguments.extend(more);
        Self::start(&arguments)
    }

    pub(crate) fn start(more: &[&str]) -> Self {
        let mut arguments = vec!["serve", "--port", "0", "--json", "-q"];
        arguments.extend(more);
        let context = Context::new();
        let mut process = context
            .command(&arguments)
            .env_remove("WARPSMITH_TOKEN")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(process.stdout.as_mut().unwrap());
        let mut text = String::new();
        for line in stdout.lines() {
            let line = line.unwrap();
            text += &line;
            if line == "}" {
                break;
            }
        }
        let said: Value = serde_json::from_str(&text).unwrap();
        let base_url = said["base_url"].as_str().unwrap().to_owned();
        Self {
            process,
            said,
            base_url,
            _context: context,
        }
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let agent = http_agent(Duration::from_mins(1)).unwrap();
        let address = self.url();
        let mut response = agent.get(format!("{address}{path}")).call().unwrap();
        serde_json::from_str(&response.body_mut().read_to_string().unwrap()).unwrap()
    }

    pub(crate) fn url(&self) -> &str {
        self.said["url"].as_str().unwrap()
    }

    /// Waits until this many requests are under way.
    pub(crate) fn until_requests(&self, count: u64) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.get("/healthz")["requests"] != count {
            assert!(Instant::now() < until, "never {count} requests under way");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
