//! A real server, and a judge that only looks at names.
#![allow(dead_code, reason = "each user takes its part")]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use warpsmith_fleet::{
    FleetJudging, FleetPool, FleetServer, FleetServers, ServerPlan, find_server, set_up,
};
use warpsmith_judge::profile::ProfileReport;
use warpsmith_judge::{CheckDepth, Judge, JudgeError, judge_version};
use warpsmith_machine::{Caches, NoProgress};
use warpsmith_schema::{Profile, Rules, Status, Submission, SubmissionForm, Target, Task, Verdict};

pub(crate) const TOKEN: &str = "a-token-of-a-test";

/// On the PATH, in the cache, or fetched: without one these tests say nothing, so they fail.
pub(crate) fn server_program() -> PathBuf {
    let caches = Caches::locate().expect("a cache folder");
    find_server(&caches, &NoProgress, false).unwrap_or_else(|error| {
        panic!(
            "these tests need nats-server: {error}\n{}",
            error.hint().unwrap_or_default()
        )
    })
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

pub(crate) fn plan(folder: &Path, port: u16) -> ServerPlan {
    ServerPlan {
        folder: folder.to_path_buf(),
        name: "test".to_owned(),
        listen: "127.0.0.1".to_owned(),
        port,
        token: TOKEN.to_owned(),
        tls: None,
        cluster: None,
    }
}

/// One server with everything a fleet needs.
pub(crate) struct TestFleet {
    pub(crate) server: FleetServer,
    pub(crate) plan: ServerPlan,
    pub(crate) servers: FleetServers,
    _folder: tempfile::TempDir,
}

impl TestFleet {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path(), free_port());
        let server = FleetServer::start(&server_program(), &plan).unwrap();
        let servers = plan.local();
        set_up(&servers, 1).unwrap();
        Self {
            server,
            servers,
            plan,
            _folder: folder,
        }
    }
}

pub(crate) fn pool() -> FleetPool {
    FleetPool {
        target: Target::Cpu,
        device: "stand-in".to_owned(),
        torch: "2.11".to_owned(),
        judge: judge_version(),
        contained: true,
    }
}

pub(crate) fn judging() -> FleetJudging {
    FleetJudging {
        profile: Profile::Verify,
        rules: Rules::Own,
        compile_mode: None,
        weak_isolation: false,
    }
}

pub(crate) fn task(name: &str) -> Task {
    Task::of_source(name, format!("# {name}\n"))
}

pub(crate) fn submission(text: &str) -> Submission {
    Submission {
        form: SubmissionForm::Plain,
        files: BTreeMap::from([("model_new.py".to_owned(), text.as_bytes().to_vec())]),
    }
}

/// What a test does when a judge is asked.
pub(crate) type Hook = Arc<dyn Fn(&Task) -> Result<(), JudgeError> + Send + Sync>;

/// In place of the judge: passes everything after a while, and no two of its verdicts are the same.
#[derive(Clone)]
pub(crate) struct StandIn {
    pub(crate) takes: Duration,
    pub(crate) hook: Hook,
}

impl StandIn {
    pub(crate) fn taking(takes: Duration) -> Self {
        Self {
            takes,
            hook: Arc::new(|_| Ok(())),
        }
    }

    pub(crate) fn doing(
        hook: impl Fn(&Task) -> Result<(), JudgeError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            takes: Duration::ZERO,
            hook: Arc::new(hook),
        }
    }
}

impl Judge for StandIn {
    fn survey(&mut self, task: &Task) -> Result<(), JudgeError> {
        (self.hook)(task)
    }

    fn judge(&mut self, task: &Task, submission: &Submission) -> Result<Verdict, JudgeError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        (self.hook)(task)?;
        if !self.takes.is_zero() {
            thread::sleep(self.takes);
        }
        let mut verdict = Verdict::unreached(
            Status::Passed,
            Target::Cpu,
            Profile::Verify,
            "stand-in".to_owned(),
        );
        verdict.reason = Some(format!(
            "{} {} by {}-{}",
            task.id,
            submission.content_hash(),
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        ));
        Ok(verdict)
    }

    fn judge_afresh(
        &mut self,
        task: &Task,
        submission: &Submission,
    ) -> Result<Verdict, JudgeError> {
        self.judge(task, submission)
    }

    fn check(
        &mut self,
        task: &Task,
        _: &Submission,
        _: CheckDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        (self.hook)(task).map(|()| None)
    }

    fn profile(&mut self, _: &Task, _: Option<&Submission>) -> Result<ProfileReport, JudgeError> {
        Err(JudgeError::Task {
            code: "stand_in".to_owned(),
            message: "nothing to profile".to_owned(),
        })
    }

    fn replacement(&self) -> Result<Box<dyn Judge>, JudgeError> {
        Ok(Box::new(self.clone()))
    }
}
