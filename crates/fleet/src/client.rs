//! A controller's side: it puts jobs into queues and waits for their results.
//!
//! Results are stored before anybody hears of them. A result that was told while this side was not connected is looked for,
//! and so is one that was stored before a restart. A job that is in no queue and has no result is put there again, so nothing
//! that the controller waits for is lost, and as one result is stored for each job, none counts twice.
//!
//! Controllers share a fleet by a window: so many jobs of each are in the queue, and the queue is first in, first out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{debug, info};
use warpsmith_judge::{Cancellation, JudgeError, judge_version};
use warpsmith_schema::{Failure, Target};

use crate::link::{Link, decoded, encoded, told_subject};
use crate::status::{WorkerRecord, workers};
use crate::wire::{FleetPool, JobId, JobOutcome, JobRequest, JobResult};
use crate::{FleetError, FleetServers};

/// How often a result is looked for that nobody told of.
const LOOK: Duration = Duration::from_secs(2);
/// After so many looks the job is put into the queue again, in case it is not there.
const LOOKS_BEFORE_AGAIN: u32 = 5;
const CANCELLATION_POLL: Duration = Duration::from_millis(100);
const WINDOW_CHECK: Duration = Duration::from_secs(5);
/// Jobs in the queue for each slot: a slot that is done finds the next.
const JOBS_A_SLOT: usize = 4;
const SMALLEST_WINDOW: usize = 16;

/// A connection to a fleet, for any number of threads.
pub struct FleetClient {
    shared: Arc<Shared>,
    runtime: Handle,
    /// The thread ends when this is dropped.
    _stop: oneshot::Sender<()>,
}

struct Shared {
    link: Link,
    waiting: Mutex<HashMap<JobId, Vec<oneshot::Sender<JobResult>>>>,
    /// Jobs to be taken back, each with its pool.
    unwanted: Mutex<Vec<(String, JobId)>>,
    window: Semaphore,
    window_size: AtomicUsize,
}

/// Which workers may be asked.
#[derive(Debug, Clone, Default)]
pub struct PoolChoice {
    pub target: Option<Target>,
    /// Part of a device's name.
    pub device: Option<String>,
    /// Workers that lack a required protection too.
    pub weak_isolation: bool,
}

impl FleetClient {
    pub fn connect(servers: &FleetServers, name: &str) -> Result<Arc<Self>, FleetError> {
        let (ready, made) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let (servers, name) = (servers.clone(), name.to_owned());
        thread::Builder::new()
            .name("fleet".to_owned())
            .spawn(move || {
                let runtime = match Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => runtime,
                    Err(error) => {
                        let _ = ready.send(Err(error.into()));
                        return;
                    }
                };
                runtime.block_on(serve(servers, name, ready, stopped));
            })?;
        let (shared, runtime) = made.recv().map_err(|_| FleetError::Silent {
            doing: "connect",
            waited: Duration::ZERO,
            reason: "its thread ended".to_owned(),
        })??;
        Ok(Arc::new(Self {
            shared,
            runtime,
            _stop: stop,
        }))
    }

    /// The pool whose workers will be asked. Times on different devices are not compared, so there must be one.
    pub fn choose(&self, choice: &PoolChoice, patience: Duration) -> Result<FleetPool, FleetError> {
        let begun = Instant::now();
        loop {
            let found = self.runtime.block_on(workers(&self.shared.link))?;
            let records: Vec<&WorkerRecord> = found.iter().collect();
            match choose(&records, choice) {
                Err(FleetError::NoWorker { .. })
                    if found.is_empty() && begun.elapsed() < patience =>
                {
                    thread::sleep(LOOK / 4);
                }
                other => return other,
            }
        }
    }

    /// How many jobs the workers of a pool do at the same time.
    pub fn slots(&self, pool: &FleetPool) -> Result<usize, FleetError> {
        let found = self.runtime.block_on(workers(&self.shared.link))?;
        let own = found.iter().filter(|worker| worker.pool == *pool);
        Ok(own.map(|worker| worker.slots).sum())
    }

    /// Waits for the result of a job. `scope` says whose job it is: the same job in the same scope has one result.
    pub fn ask(
        &self,
        request: &JobRequest,
        scope: &str,
        cancellation: &Cancellation,
    ) -> Result<JobResult, JudgeError> {
        self.runtime.block_on(async {
            tokio::select! {
                result = self.shared.ask(request, scope) => return Ok(result?),
                () = cancelled(cancellation) => {}
            }
            let unwanted = std::mem::take(&mut *self.shared.unwanted());
            for (pool, id) in unwanted {
                self.shared.link.withdraw(&pool, &id).await;
            }
            Err(JudgeError::cancelled())
        })
    }

    pub(crate) fn object(&self, name: &str) -> Result<Vec<u8>, FleetError> {
        self.runtime.block_on(self.shared.link.object(name))
    }

    pub fn connected(&self) -> bool {
        self.shared.link.connected()
    }
}

async fn cancelled(cancellation: &Cancellation) {
    while !cancellation.is_requested() {
        sleep(CANCELLATION_POLL).await;
    }
}

fn choose(found: &[&WorkerRecord], choice: &PoolChoice) -> Result<FleetPool, FleetError> {
    let no_worker = |reason: String, hint: &str| {
        Err(FleetError::NoWorker {
            reason,
            hint: hint.to_owned(),
        })
    };
    let join = "start one with `warpsmith worker --join`";
    if found.is_empty() {
        return no_worker("no worker has joined".to_owned(), join);
    }
    let ours = judge_version();
    let same: Vec<_> = found
        .iter()
        .filter(|worker| worker.pool.judge == ours)
        .collect();
    if same.is_empty() {
        let theirs = &found[0].pool.judge;
        return no_worker(
            format!("the workers' judge is {theirs}, this one is {ours}"),
            "run the same version of warpsmith everywhere",
        );
    }
    let fits = |pool: &FleetPool| {
        choice.target.is_none_or(|target| pool.target == target)
            && (pool.contained || choice.weak_isolation)
            && choice
                .device
                .as_ref()
                .is_none_or(|device| pool.device.to_lowercase().contains(&device.to_lowercase()))
    };
    let mut pools: Vec<&FleetPool> = same
        .iter()
        .map(|worker| &worker.pool)
        .filter(|pool| fits(pool))
        .collect();
    pools.sort_by_key(|pool| pool.name());
    pools.dedup();
    let describe = |pool: &FleetPool| format!("{} (torch {})", pool.device, pool.torch);
    match pools.as_slice() {
        [pool] => Ok((*pool).clone()),
        [] => {
            let mut all: Vec<String> = same.iter().map(|worker| describe(&worker.pool)).collect();
            all.sort();
            all.dedup();
            no_worker(
                format!("its workers have {}", all.join(", ")),
                "start a worker on such a machine, or leave out `--target` and `--fleet-device`",
            )
        }
        several => {
            let names: Vec<String> = several.iter().map(|pool| describe(pool)).collect();
            no_worker(
                format!(
                    "its workers have different devices, whose times are not compared: {}",
                    names.join(", ")
                ),
                "choose one with `--fleet-device`, or its kind with `--target`",
            )
        }
    }
}

type Ready = mpsc::Sender<Result<(Arc<Shared>, Handle), FleetError>>;

/// The thread of a client: hears of results until the client is dropped.
async fn serve(servers: FleetServers, name: String, ready: Ready, stopped: oneshot::Receiver<()>) {
    let opened = async {
        let link = Link::open(&servers, &name).await?;
        let told = link.client.subscribe(told_subject("*")).await;
        let told = told.map_err(|error| FleetError::Unreachable {
            servers: servers.names(),
            reason: error.to_string(),
        })?;
        Ok((link, told))
    };
    let (link, mut told) = match opened.await {
        Ok(opened) => opened,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let shared = Arc::new(Shared {
        link,
        waiting: Mutex::default(),
        unwanted: Mutex::default(),
        window: Semaphore::new(SMALLEST_WINDOW),
        window_size: AtomicUsize::new(SMALLEST_WINDOW),
    });
    shared.fit_window().await;
    if ready.send(Ok((shared.clone(), Handle::current()))).is_err() {
        return;
    }
    let listen = async {
        while let Some(message) = told.next().await {
            shared.told(message).await;
        }
    };
    let fit = async {
        let mut ticks = interval(WINDOW_CHECK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            shared.fit_window().await;
        }
    };
    tokio::select! {
        () = listen => {}
        () = fit => {}
        _ = stopped => {}
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, HashMap<JobId, Vec<oneshot::Sender<JobResult>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unwanted(&self) -> MutexGuard<'_, Vec<(String, JobId)>> {
        self.unwanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a result to those who wait for it, if they are ours.
    async fn told(&self, message: async_nats::Message) {
        let id = JobId::of_subject(&message.subject);
        if !self.waiting().contains_key(&id) {
            return;
        }
        let body = self.link.body(message.headers.as_ref(), &message.payload);
        let result = match body.await {
            Ok(body) => decoded::<JobResult>("a result", &body),
            Err(error) => Err(error),
        };
        match result {
            Ok(result) => {
                for sender in self.waiting().remove(&id).unwrap_or_default() {
                    let _ = sender.send(result.clone());
                }
            }
            // The stored one is looked for, and then the error is the asker's.
            Err(error) => debug!(%error, "a result could not be read"),
        }
    }

    async fn ask(&self, request: &JobRequest, scope: &str) -> Result<JobResult, FleetError> {
        let body = encoded(request)?;
        let pool = request.pool.name();
        let mut attempt = 0;
        let id = loop {
            let id = JobId::of(&body, scope, attempt);
            match self.link.result(&id).await? {
                // Given up in an earlier call: this one is worth new tries.
                Some(result) if matches!(result.outcome, JobOutcome::DeadLetter(_)) => attempt += 1,
                Some(result) => return Ok(result),
                None => break id,
            }
        };
        let Ok(_turn) = self.window.acquire().await else {
            return Err(FleetError::Silent {
                doing: "take a job",
                waited: Duration::ZERO,
                reason: "the connection was closed".to_owned(),
            });
        };
        // Whoever stops waiting takes the job back.
        let mut job = Submitted {
            shared: self,
            pool: &pool,
            id: &id,
            answered: false,
        };
        let (sender, mut receiver) = oneshot::channel();
        self.waiting().entry(id.clone()).or_default().push(sender);
        self.link.submit(&pool, &id, &body).await?;
        for looks in 1.. {
            tokio::select! {
                told = &mut receiver => if let Ok(result) = told {
                    job.answered = true;
                    return Ok(result);
                },
                () = sleep(LOOK) => {}
            }
            if let Some(result) = self.link.result(&id).await? {
                job.answered = true;
                return Ok(result);
            }
            if looks % LOOKS_BEFORE_AGAIN == 0 && self.link.submit(&pool, &id, &body).await? {
                info!(job = %id, "a job was in no queue and is there again");
            }
        }
        Err(FleetError::Silent {
            doing: "answer",
            waited: Duration::ZERO,
            reason: "nobody waits any more".to_owned(),
        })
    }

    /// As many jobs in the queue as keep all slots busy.
    async fn fit_window(&self) {
        let Ok(found) = workers(&self.link).await else {
            return;
        };
        let slots: usize = found.iter().map(|worker| worker.slots).sum();
        let wanted = (slots * JOBS_A_SLOT).max(SMALLEST_WINDOW);
        let size = self.window_size.load(Ordering::SeqCst);
        if wanted > size {
            self.window.add_permits(wanted - size);
            self.window_size.store(wanted, Ordering::SeqCst);
        } else if wanted < size {
            // Those that are in use go later.
            let gone = self.window.forget_permits(size - wanted);
            self.window_size.store(size - gone, Ordering::SeqCst);
        }
    }
}

struct Submitted<'a> {
    shared: &'a Shared,
    pool: &'a str,
    id: &'a JobId,
    answered: bool,
}

impl Drop for Submitted<'_> {
    fn drop(&mut self) {
        let mut waiting = self.shared.waiting();
        if let Some(senders) = waiting.get_mut(self.id) {
            // Its own receiver is gone by now.
            senders.retain(|sender| !sender.is_closed());
            if !senders.is_empty() {
                return;
            }
            waiting.remove(self.id);
        }
        drop(waiting);
        if !self.answered {
            let job = (self.pool.to_owned(), self.id.clone());
            self.shared.unwanted().push(job);
        }
    }
}

impl JobResult {
    /// The answer, or why there is none.
    pub(crate) fn into_answer(self) -> Result<crate::wire::JobAnswer, Failure> {
        match self.outcome {
            JobOutcome::Answered(answer) => Ok(*answer),
            JobOutcome::Refused(failure) | JobOutcome::DeadLetter(failure) => Err(failure),
        }
    }
}
