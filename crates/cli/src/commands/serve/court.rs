//! The judges that are served.

use std::sync::{Arc, Mutex, PoisonError};

use warpsmith_judge::JudgeConfig;
use warpsmith_rollout::{Judging, KeptJudge, StopRequest};
use warpsmith_sandbox::Isolation;
use warpsmith_schema::{Failure, Target, Task};
use warpsmith_serve::judging::Court;
use warpsmith_store::evidence::EvidenceQuota;
use warpsmith_tasks::load_all;

use super::ServeArgs;
use crate::engine::{Engine, choose};
use crate::failure::Stop;
use crate::printer::Printer;
use crate::source::Source;
use crate::{examples, interrupt};

/// Evidence of all servers of this user: about as much as can still be asked about. Past it the oldest goes.
const MOST_BUNDLES: usize = 10_000;

/// Judges that are started with the first submission, each with the machine that the first of them found.
pub(super) fn open(args: &ServeArgs, printer: &Printer) -> Result<Court, Stop> {
    let judging = args.judging.clone();
    let manner = judging.manner();
    if manner.isolation == Isolation::Weak {
        let message = "what comes over a network is judged with every protection or not at all";
        let hint = "leave out `--isolation weak`";
        return Err(Stop::config("isolation", message, Some(hint.to_owned())));
    }
    // Without a Python yet: with the first submission it may turn out to be the other.
    let (target, _) = choose(judging.machine.target, None);
    let usual = match target {
        Target::Cuda => 4,
        Target::Cpu => 1,
    };
    let judges = args.judges.map_or(usual, |count| u32::from(count) as usize);
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let begun = format!("{now}-{}", std::process::id());
    let (found, printer) = (Mutex::new(None::<Arc<Engine>>), printer.clone());
    let make = move |number: usize| -> Result<Box<dyn Judging>, Failure> {
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = if let Some(engine) = &*found {
            engine.clone()
        } else {
            let prepared = Engine::prepare(&judging.machine, &printer);
            let prepared = Arc::new(prepared.map_err(|stop| stop.0)?);
            found.insert(prepared).clone()
        };
        drop(found);
        // A folder each, since two may be at the same submission; and for this server only: what another found out, perhaps on
        // another device or with older rules, does not stand.
        let served = engine.caches.evidence().join("served");
        let evidence = served.join(&begun).join(number.to_string());
        let options = JudgeConfig {
            shared_device: judges > 1,
            ..engine.options(manner.clone())
        };
        let judge = KeptJudge::start(options, evidence, wish);
        let quota = EvidenceQuota {
            folder: served,
            max_bundles: MOST_BUNDLES,
        };
        Ok(Box::new(
            judge.map_err(|error| error.failure())?.within(quota),
        ))
    };
    Ok(Court {
        make: Arc::new(make),
        judges,
        tasks: tasks(args)?.into_iter().map(Arc::new).collect(),
        client_tasks: args.client_tasks,
        instructions: warpsmith_agent::skill(target),
    })
}

fn tasks(args: &ServeArgs) -> Result<Vec<Task>, Stop> {
    match &args.tasks {
        Some(path) => Ok(load_all(path)?),
        None => examples::names()
            .into_iter()
            .map(|name| Source::example(name)?.task())
            .collect(),
    }
}

fn wish() -> StopRequest {
    if interrupt::happened() {
        StopRequest::Abandon
    } else {
        StopRequest::GoOn
    }
}
