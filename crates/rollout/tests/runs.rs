//! Whole runs with a judge that stands in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Hook, Resources, StandIn, plan, reply, resources, script, scripted, task};
use serde_json::json;
use tempfile::TempDir;
use warpsmith_model::policy::{
    OpenAiPolicy, Policy, PolicyError, PolicyReply, PolicyRequest, ScriptPolicy, SharedPolicy,
};
use warpsmith_rollout::{EpisodeKind, RolloutOutcome, RolloutPlan, StopRequest, run, trajectories};
use warpsmith_schema::{
    EpisodeEnding, EpisodeId, Event, EventKind, FailureKind, PolicyVersion, Trajectory,
};
use warpsmith_store::{EventLog, RunFolder};

fn folder(place: &Path) -> RunFolder {
    RunFolder::at(place, &json!({ "what": "a test" })).unwrap()
}

fn quick(notes: Option<PathBuf>) -> StandIn {
    StandIn {
        notes,
        ..StandIn::default()
    }
}

fn go(place: &Path, plan: RolloutPlan, mut resources: Resources) -> RolloutOutcome {
    let judges = resources.judges.len();
    let outcome = run(&folder(place), plan, resources.lend(), &mut |_, _| {}).unwrap();
    assert_eq!(resources.judges.len(), judges, "judges come back");
    outcome
}

/// What an episode came to, without what differs from run to run.
fn results(place: &Path) -> BTreeMap<(String, u32), Trajectory> {
    let mut found = BTreeMap::new();
    trajectories(place, |mut one| {
        one.seconds = 0.0;
        let key = (one.task.id.clone(), one.sample);
        assert!(found.insert(key, one).is_none());
    })
    .unwrap();
    found
}

fn events(place: &Path) -> Vec<EventKind> {
    let read = EventLog::read_documents::<Event>(&place.join("events.jsonl")).unwrap();
    read.lines.into_iter().map(|one| one.event).collect()
}

#[test]
fn every_episode_ends_and_a_run_that_is_done_does_nothing_again() {
    let place = TempDir::new().unwrap();
    let script = script(place.path(), 5, 4);
    let (run, notes) = (place.path().join("run"), place.path().join("notes"));
    let tasks = || (1..=5).map(task).collect();
    let judges = || vec![quick(Some(notes.clone())), quick(Some(notes.clone()))];
    let outcome = go(&run, plan(tasks(), 4, 7), scripted(&script, judges()));
    assert_eq!((outcome.planned, outcome.unfinished), (20, 0));
    assert_eq!((outcome.tally.episodes, outcome.tally.passed), (20, 20));
    assert_eq!(
        (outcome.tally.attempts, outcome.gauges.judgements),
        (40, 40)
    );
    assert_eq!(outcome.failure, None);
    let found = results(&run);
    assert_eq!(found.len(), 20);
    for one in found.values() {
        assert_eq!((one.attempts.len(), one.best), (2, Some(1)));
        assert_eq!(one.ending, EpisodeEnding::Finished);
    }
    let again = go(&run, plan(tasks(), 4, 7), scripted(&script, judges()));
    assert_eq!((again.tally.episodes, again.gauges.judgements), (20, 0));
    assert_eq!(fs_err::read_to_string(&notes).unwrap().lines().count(), 40);
    assert_eq!(results(&run), found);
}

#[test]
fn the_same_submission_is_judged_once_even_by_those_who_come_at_the_same_time() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("script.jsonl");
    fs_err::write(&path, json!({ "text": reply("right") }).to_string() + "\n").unwrap();
    let slow = || StandIn {
        takes: Duration::from_millis(200),
        notes: None,
        ..StandIn::default()
    };
    let judges = vec![slow(), slow(), slow()];
    let run = place.path().join("run");
    let outcome = go(&run, plan(vec![task(1)], 12, 12), scripted(&path, judges));
    assert_eq!((outcome.tally.passed, outcome.gauges.judgements), (12, 1));
}

#[test]
fn after_a_panic_another_judge_goes_on() {
    let place = TempDir::new().unwrap();
    let script = script(place.path(), 4, 1);
    // Panics at its first submission, and must not be asked anything afterwards.
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let panics: Hook = Arc::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
        panic!("on purpose");
    });
    let panicking = StandIn {
        on_judge: Some(panics),
        replaced_by: Some(Box::new(quick(None))),
        ..StandIn::default()
    };
    let run = place.path().join("run");
    let tasks = (1..=4).map(task).collect();
    let outcome = go(&run, plan(tasks, 1, 1), scripted(&script, vec![panicking]));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    // The episode whose submission was lost is left for another time.
    assert_eq!((outcome.tally.passed, outcome.unfinished), (3, 1));
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.code, "panic");
}

#[test]
fn a_broken_task_is_listed_and_the_others_go_on() {
    for survey in [false, true] {
        let place = TempDir::new().unwrap();
        let script = script(place.path(), 3, 2);
        let mut tasks: Vec<_> = (1..=3).map(task).collect();
        tasks[1].source = "# broken".to_owned();
        let run = place.path().join("run");
        let plan = RolloutPlan {
            survey,
            ..plan(tasks, 2, 2)
        };
        let outcome = go(&run, plan.clone(), scripted(&script, vec![quick(None)]));
        assert_eq!(outcome.tally.episodes, 4);
        assert_eq!((outcome.unfinished, &outcome.failure), (0, &None));
        let [(id, why)] = &outcome.left_out[..] else {
            panic!("{:?}", outcome.left_out)
        };
        assert_eq!((id.as_str(), why.kind), ("task2", FailureKind::Task));
        let asked = events(&run).iter().any(|event| {
            matches!(event, EventKind::EpisodeProgressed { episode, .. } if episode.task == "task2")
        });
        assert_eq!(asked, !survey);
        // It stays listed.
        let again = go(&run, plan, scripted(&script, vec![quick(None)]));
        assert_eq!(again.left_out, outcome.left_out);
        assert_eq!(again.unfinished, 0);
    }
}

/// Says how many are being written to, takes its time, and rests while judges are at work or does not.
struct Slow {
    script: ScriptPolicy,
    writing: Arc<AtomicU32>,
    rests: bool,
    /// Nobody gets a reply before all are asked for one.
    all_asked: Arc<Barrier>,
}

struct SlowReply {
    inner: Box<dyn Policy>,
    writing: Arc<AtomicU32>,
    takes: Duration,
    all_asked: Arc<Barrier>,
}

impl SharedPolicy for Slow {
    fn version(&self) -> &PolicyVersion {
        SharedPolicy::version(&self.script)
    }

    fn for_episode(&self, episode: &EpisodeId, replies: usize) -> Box<dyn Policy> {
        let number: u64 = episode.task["task".len()..].parse().unwrap();
        Box::new(SlowReply {
            inner: self.script.for_episode(episode, replies),
            writing: self.writing.clone(),
            takes: Duration::from_millis(100 * number),
            all_asked: self.all_asked.clone(),
        })
    }

    fn rests(&self) -> bool {
        self.rests
    }
}

impl Policy for SlowReply {
    fn version(&self) -> &PolicyVersion {
        self.inner.version()
    }

    fn reply(
        &mut self,
        request: &PolicyRequest<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<PolicyReply, PolicyError> {
        self.writing.fetch_add(1, Ordering::SeqCst);
        self.all_asked.wait();
        thread::sleep(self.takes);
        let reply = self.inner.reply(request, on_text);
        self.writing.fetch_sub(1, Ordering::SeqCst);
        reply
    }
}

#[test]
fn a_policy_that_rests_is_let_to_finish_before_anything_is_judged() {
    for rests in [true, false] {
        let place = TempDir::new().unwrap();
        let script = script(place.path(), 4, 1);
        let (writing, disturbed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let counts: Hook = {
            let (writing, disturbed) = (writing.clone(), disturbed.clone());
            Arc::new(move || {
                let writing = writing.load(Ordering::SeqCst);
                disturbed.fetch_add(writing, Ordering::SeqCst);
                Ok(())
            })
        };
        let judge = StandIn {
            on_judge: Some(counts),
            ..StandIn::default()
        };
        let slow = Slow {
            script: ScriptPolicy::open(&script).unwrap(),
            writing: writing.clone(),
            rests,
            all_asked: Arc::new(Barrier::new(4)),
        };
        let resources = resources(slow, vec![judge.clone(), judge]);
        let mut plan = plan((1..=4).map(task).collect(), 1, 4);
        let EpisodeKind::Single(settings) = &mut plan.kind else {
            panic!("another kind")
        };
        settings.repairs = 0;
        let outcome = go(&place.path().join("run"), plan, resources);
        assert_eq!((outcome.tally.episodes, outcome.unfinished), (4, 0));
        assert_eq!(disturbed.load(Ordering::SeqCst) == 0, rests);
    }
}

#[test]
fn judges_share_out_tasks_before_they_share_one() {
    let place = TempDir::new().unwrap();
    let notes = ["a", "b"].map(|name| place.path().join(name));
    let judges = notes.each_ref().map(|notes| StandIn {
        takes: Duration::from_millis(30),
        ..quick(Some(notes.clone()))
    });
    let slow = Slow {
        script: ScriptPolicy::open(&script(place.path(), 2, 4)).unwrap(),
        writing: Arc::default(),
        // So that all submissions wait before the first is judged.
        rests: true,
        all_asked: Arc::new(Barrier::new(8)),
    };
    let mut plan = plan((1..=2).map(task).collect(), 4, 8);
    let EpisodeKind::Single(settings) = &mut plan.kind else {
        panic!("another kind")
    };
    settings.repairs = 0;
    let outcome = go(
        &place.path().join("run"),
        plan,
        resources(slow, judges.to_vec()),
    );
    assert_eq!((outcome.tally.episodes, outcome.unfinished), (8, 0));
    let first = notes.map(|notes| {
        let notes = fs_err::read_to_string(notes).unwrap();
        notes.split(' ').next().unwrap().to_owned()
    });
    assert_ne!(first[0], first[1]);
}

#[test]
fn a_dead_model_server_ends_the_run_and_costs_no_episode() {
    let place = TempDir::new().unwrap();
    let run = place.path().join("run");
    let dead = OpenAiPolicy::new("x", "http://127.0.0.1:9", None).unwrap();
    let dead = dead.with_first_pause(Duration::from_millis(1));
    let tasks = || (1..=10).map(task).collect();
    let outcome = go(
        &run,
        plan(tasks(), 2, 4),
        resources(dead, vec![quick(None)]),
    );
    assert_eq!((outcome.tally.episodes, outcome.unfinished), (0, 20));
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Infrastructure);
    assert!(failure.message.contains("127.0.0.1:9"), "{failure:?}");
    assert!(failure.hint.unwrap().contains("--base-url"));
    // Once somebody answers, all of it is done.
    let script = script(place.path(), 10, 2);
    let outcome = go(
        &run,
        plan(tasks(), 2, 4),
        scripted(&script, vec![quick(None)]),
    );
    assert_eq!((outcome.tally.passed, outcome.unfinished), (20, 0));
}

#[test]
fn a_script_at_its_end_ends_the_episode() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("script.jsonl");
    fs_err::write(&path, json!({ "text": reply("wrong") }).to_string() + "\n").unwrap();
    let run = place.path().join("run");
    let policy = ScriptPolicy::open(&path).unwrap();
    let outcome = go(
        &run,
        plan(vec![task(1)], 1, 1),
        resources(policy, vec![quick(None)]),
    );
    assert_eq!(
        outcome.tally.endings,
        BTreeMap::from([("policy_failed", 1)])
    );
    assert_eq!(outcome.unfinished, 0);
}

static DRAIN: AtomicBool = AtomicBool::new(false);

#[test]
fn draining_judges_to_the_end_what_is_being_judged_and_keeps_the_rest() {
    let place = TempDir::new().unwrap();
    let script = script(place.path(), 8, 1);
    let run = place.path().join("run");
    let slow = StandIn {
        takes: Duration::from_millis(300),
        notes: Some(place.path().join("notes")),
        ..StandIn::default()
    };
    let tasks = || (1..=8).map(task).collect();
    let mut resources = scripted(&script, vec![slow]);
    resources.stop = || {
        if DRAIN.load(Ordering::SeqCst) {
            StopRequest::Drain
        } else {
            StopRequest::Continue
        }
    };
    let begun = Instant::now();
    let outcome = warpsmith_rollout::run(
        &folder(&run),
        plan(tasks(), 1, 8),
        resources.lend(),
        &mut |event, _| {
            let judged = event.is_some_and(|one| matches!(one.event, EventKind::Judged { .. }));
            if judged {
                DRAIN.store(true, Ordering::SeqCst);
            }
        },
    )
    .unwrap();
    // An episode ends only if both its attempts were the first two of all that came.
    let ended = outcome.tally.episodes;
    assert!(
        outcome.interrupted && ended <= 1 && outcome.unfinished + ended == 8,
        "{outcome:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(3));
    let judged = |place: &Path| {
        let events = events(place);
        let of = |event: &&EventKind| matches!(event, EventKind::Judged { .. });
        events.iter().filter(of).count()
    };
    let before = judged(&run);
    assert!((1..=3).contains(&before), "{before}");
    let outcome = go(
        &run,
        plan(tasks(), 1, 8),
        scripted(&script, vec![quick(None)]),
    );
    assert_eq!((outcome.tally.passed, outcome.unfinished), (8, 0));
    assert_eq!(judged(&run), 16);
}

const FOLDER: &str = "WARPSMITH_TEST_RUN";
const TASKS: u32 = 40;
const SAMPLES: u32 = 3;

/// Not a test but what others kill and starve.
#[test]
#[ignore = "started by other tests"]
fn child() {
    let place = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let judge = || StandIn {
        takes: Duration::from_millis(20),
        notes: Some(place.join("notes")),
        ..StandIn::default()
    };
    let tasks = (1..=TASKS).map(task).collect();
    let resources = scripted(&place.join("script.jsonl"), vec![judge(), judge()]);
    let outcome = go(&place.join("run"), plan(tasks, SAMPLES, 8), resources);
    assert_eq!(outcome.failure, None);
}

fn start_child(place: &Path, shell: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{shell} exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "runs::child", "--ignored", "--nocapture", "-q"])
        .env(FOLDER, place);
    command
}

#[test]
fn killed_ten_times_and_resumed_it_comes_to_the_same() {
    let alone = TempDir::new().unwrap();
    script(alone.path(), TASKS, SAMPLES);
    assert!(start_child(alone.path(), "").status().unwrap().success());

    let killed = TempDir::new().unwrap();
    script(killed.path(), TASKS, SAMPLES);
    let mut kills = 0;
    let mut random = u64::from(std::process::id());
    while kills < 10 {
        let mut child = start_child(killed.path(), "").spawn().unwrap();
        // Numerical Recipes' generator is random enough for when to kill.
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        std::thread::sleep(Duration::from_millis(40 + (random >> 16) % 160));
        if child.try_wait().unwrap().is_some() {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    assert_eq!(kills, 10, "it was done before it could be killed ten times");
    assert!(start_child(killed.path(), "").status().unwrap().success());

    let (alone, killed) = (alone.path(), killed.path());
    // The scripts' paths are part of the policies' names.
    let named_alike = |place: &Path| {
        let mut found = results(&place.join("run"));
        for one in found.values_mut() {
            one.policy.name = String::new();
        }
        found
    };
    assert_eq!(named_alike(killed), named_alike(alone));
    // Nothing that had a verdict was judged again: a judgement that was cut short is the only one to be noted twice.
    let judged = events(&killed.join("run"))
        .into_iter()
        .filter_map(|event| match event {
            EventKind::Judged { submission, .. } => Some(submission),
            _ => None,
        });
    let mut judged: Vec<String> = judged.collect();
    let count = judged.len();
    judged.sort();
    judged.dedup();
    assert_eq!((judged.len(), count), (240, 240));
    let notes = fs_err::read_to_string(killed.join("notes")).unwrap();
    let most = 240 + 10 * 2;
    assert!((240..=most).contains(&notes.lines().count()));
}

#[test]
fn a_full_disk_is_said_and_what_was_written_stays_readable() {
    let place = TempDir::new().unwrap();
    script(place.path(), TASKS, SAMPLES);
    // Blocks of 512 bytes; the signal that such a limit sends is not wanted, as on a disk that is full.
    let output = start_child(place.path(), "trap '' XFSZ; ulimit -f 200;")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("failed to write") && said.contains("events.jsonl"),
        "{said}"
    );
    assert!(said.contains("free space"), "{said}");
    let before = results(&place.path().join("run")).len();
    assert!(before > 0 && before < 120, "{before}");
    assert!(start_child(place.path(), "").status().unwrap().success());
    assert_eq!(results(&place.path().join("run")).len(), 120);
}

#[test]
fn a_run_is_not_gone_on_with_by_another_policy() {
    let place = TempDir::new().unwrap();
    let script = script(place.path(), 1, 1);
    let run_folder = place.path().join("run");
    go(
        &run_folder,
        plan(vec![task(1)], 1, 1),
        scripted(&script, vec![quick(None)]),
    );
    let mut other = plan(vec![task(1)], 1, 1);
    other.head.policy.hash = Some("0123456789".to_owned());
    let mut resources = scripted(&script, vec![quick(None)]);
    let error = run(
        &folder(&run_folder),
        other,
        resources.lend(),
        &mut |_, _| {},
    )
    .unwrap_err();
    let message = error.failure().message;
    assert_eq!(
        message,
        "the run was begun with `script`, and this is `script` (01234567)"
    );
}

#[test]
fn two_runs_in_one_folder_are_told() {
    let place = TempDir::new().unwrap();
    let held = folder(place.path());
    let error = RunFolder::at(place.path(), &json!({ "what": "a test" })).unwrap_err();
    let failure = error.failure();
    let me = std::process::id().to_string();
    assert!(failure.message.contains(&me), "{}", failure.message);
    assert!(failure.hint.unwrap().contains("--out"));
    drop(held);
}
