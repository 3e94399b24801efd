//! A worker's side: takes jobs of its pool, has them judged, stores what came of them.
//!
//! A job is taken for a lease, which is renewed while it is worked on. When a worker dies the lease runs out and another takes
//! the job. The result is stored before the job leaves the queue, so whatever dies in between, the job is either still there
//! or has its result. What two workers did at the same time is stored once.
//!
//! A failure of ours sends the job back, each time for longer. After a number of tries, or where each worker that had it died,
//! the job ends as a dead letter with the last reason.

mod baselines;
mod slot;
mod tally;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{AckKind, Message};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};
use warpsmith_judge::{CANCELLED, Judge, JudgeError};
use warpsmith_rollout::StopRequest;
use warpsmith_schema::{Failure, FailureKind};

use self::baselines::SharedBaselines;
use self::slot::{Slot, SlotAnswer};
use self::tally::WorkerTally;
use crate::link::{Link, decoded, encoded};
use crate::status::{FailedTry, WorkerRecord, announce, leave};
use crate::wire::{FleetJudging, FleetPool, JobId, JobOutcome, JobRequest, JobResult, PROTOCOL};
use crate::{FleetError, FleetServers};

/// Makes a judge for a way of judging.
pub type MakeJudge = Arc<dyn Fn(&FleetJudging) -> Result<Box<dyn Judge>, JudgeError> + Send + Sync>;

/// What a worker is.
#[derive(Clone)]
pub struct WorkerPlan {
    /// Different from all others'.
    pub name: String,
    pub host: String,
    pub pool: FleetPool,
    /// Jobs at the same time.
    pub slots: usize,
    /// A worker that is silent for so long has lost its job.
    pub lease: Duration,
    /// After so many the job is a dead letter.
    pub max_tries: u32,
    pub make_judge: MakeJudge,
    /// Where the judge keeps baselines, to share them with the pool.
    pub baselines: Option<PathBuf>,
    pub stop: Arc<dyn Fn() -> StopRequest + Send + Sync>,
}

/// As long as a restart of a server may take; a dead worker's job waits for it.
pub const LEASE: Duration = Duration::from_secs(15);
pub const MAX_TRIES: u32 = 5;

/// The judge's code for a task whose tensors do not fit beside what is there already.
const TOO_LARGE: &str = "too_large";

/// How long a slot waits for a job in one request; to drain takes no longer.
const PULL: Duration = Duration::from_secs(2);
const STOP_POLL: Duration = Duration::from_millis(50);
const ANNOUNCE: Duration = Duration::from_secs(3);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// What a worker did, when it has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerSummary {
    pub answered: u64,
    pub failed_tries: u64,
}

/// Works until it is asked to stop. `joined` hears when it has a queue.
pub fn work(
    servers: &FleetServers,
    plan: WorkerPlan,
    joined: impl FnOnce(),
) -> Result<WorkerSummary, FleetError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let link = Link::open(servers, &plan.name).await?;
        let queue = link.queue(&plan.pool.name(), plan.lease).await?;
        let worker = Worker {
            tally: WorkerTally::new(),
            link,
            queue,
            plan,
        };
        joined();
        worker.run().await
    })
}

struct Worker {
    link: Link,
    queue: PullConsumer,
    plan: WorkerPlan,
    tally: WorkerTally,
}

impl Worker {
    async fn run(&self) -> Result<WorkerSummary, FleetError> {
        let (asked, stop) = watch::channel(StopRequest::Continue);
        let slots: Vec<Slot> = (0..self.plan.slots)
            .map(|number| Slot::start(number, self.plan.make_judge.clone()))
            .collect::<Result<_, _>>()?;
        let folder = self.plan.baselines.clone();
        let shared =
            folder.map(|folder| SharedBaselines::new(&self.link, self.plan.pool.name(), folder));
        let share = async {
            match &shared {
                Some(shared) => shared.follow().await,
                None => std::future::pending().await,
            }
        };
        let works = join_all(slots.iter().map(|slot| self.serve(slot, stop.clone())));
        let watch_stop = async {
            loop {
                let request = (self.plan.stop)();
                asked.send_if_modified(|known| {
                    let changed = *known != request;
                    *known = request;
                    changed
                });
                sleep(STOP_POLL).await;
            }
        };
        let tell = async {
            let mut ticks = interval(ANNOUNCE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let draining = *stop.borrow() != StopRequest::Continue;
                if let Some(shared) = &shared {
                    shared.give().await;
                }
                if let Err(error) = announce(&self.link, &self.record(draining)).await {
                    warn!(%error, "could not say what this worker does");
                }
            }
        };
        tokio::select! {
            _ = works => {}
            () = watch_stop => {}
            () = tell => {}
            () = share => {}
        }
        // What was acknowledged last may still be in the connection's buffer.
        let _ = timeout(Duration::from_secs(2), async {
            leave(&self.link, &self.plan.name).await;
            let _ = self.link.client.flush().await;
        })
        .await;
        Ok(self.tally.summary())
    }

    fn record(&self, draining: bool) -> WorkerRecord {
        let summary = self.tally.summary();
        WorkerRecord {
            name: self.plan.name.clone(),
            host: self.plan.host.clone(),
            pool: self.plan.pool.clone(),
            slots: self.plan.slots,
            busy: self.tally.busy(),
            answered: summary.answered,
            failed_tries: summary.failed_tries,
            answered_last_minute: self.tally.last_minute(),
            draining,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            joined_at: self.tally.joined_at(),
        }
    }

    /// One job after another.
    async fn serve(&self, slot: &Slot, mut stop: watch::Receiver<StopRequest>) {
        while *stop.borrow_and_update() == StopRequest::Continue {
            let pulled = self.queue.batch().max_messages(1).expires(PULL).messages();
            let Ok(mut messages) = pulled.await else {
                sleep(STOP_POLL).await;
                continue;
            };
            // A connection that broke meanwhile would leave this waiting.
            let message = match timeout(PULL * 2, messages.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => {
                    info!(%error, "the queue did not answer");
                    sleep(STOP_POLL).await;
                    continue;
                }
                Ok(None) | Err(_) => continue,
            };
            if *stop.borrow() == StopRequest::Continue {
                self.take(slot, &message, stop.clone()).await;
            } else {
                // It came too late for this worker: another has it at once.
                let _ = message.ack_with(AckKind::Nak(None)).await;
            }
        }
    }

    async fn take(&self, slot: &Slot, message: &Message, stop: watch::Receiver<StopRequest>) {
        let id = JobId::of_subject(&message.subject);
        let tries = message
            .info()
            .map_or(1, |info| u32::try_from(info.delivered).unwrap_or(u32::MAX));
        if let Err(error) = self.try_job(slot, message, &id, tries, stop).await {
            // The lease runs out, and then somebody tries again.
            warn!(job = %id, %error, "a job could not be ended");
        }
    }

    async fn try_job(
        &self,
        slot: &Slot,
        message: &Message,
        id: &JobId,
        tries: u32,
        stop: watch::Receiver<StopRequest>,
    ) -> Result<(), FleetError> {
        // Handed out before: its result may be there, and only the acknowledgement was lost.
        if tries > 1 && self.link.result(id).await?.is_some() {
            acknowledge(message).await;
            return Ok(());
        }
        if tries > self.plan.max_tries {
            return self.give_up(message, id, tries - 1, None).await;
        }
        let body = self.link.body(message.headers.as_ref(), &message.payload);
        let request = match body.await.and_then(|body| decoded("a job", &body)) {
            Ok(request) => request,
            Err(error) => {
                let unreadable = JobOutcome::Refused(error.failure());
                return self.finish(message, id, tries, 0.0, unreadable, None).await;
            }
        };
        if let Err(failure) = self.fits(&request) {
            let refused = JobOutcome::Refused(failure);
            return self.finish(message, id, tries, 0.0, refused, None).await;
        }
        let task = request.task.id.clone();
        let begun = Instant::now();
        let _busy = self.tally.begin(&task);
        let Some(answer) = self.judged(slot, message, request, stop).await else {
            let _ = message.ack_with(AckKind::Nak(None)).await;
            return Ok(());
        };
        let seconds = begun.elapsed().as_secs_f64();
        let outcome = match answer.result {
            Ok(answer) => JobOutcome::Answered(Box::new(answer)),
            Err(failure) if self.is_ours(&failure) => {
                return self.failed(message, id, &task, tries, failure).await;
            }
            Err(failure) => JobOutcome::Refused(failure),
        };
        let evidence = match answer.bundle {
            Some(bundle) => Some(self.link.put_object(&bundle).await?),
            None => None,
        };
        self.finish(message, id, tries, seconds, outcome, evidence)
            .await
    }

    /// What the slot's judge says, while the lease is renewed. `None` where the worker was told to stop at once.
    async fn judged(
        &self,
        slot: &Slot,
        message: &Message,
        request: JobRequest,
        mut stop: watch::Receiver<StopRequest>,
    ) -> Option<SlotAnswer> {
        let mut answer = slot.ask(request);
        let mut renewals = interval(self.plan.lease / 3);
        renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        renewals.tick().await;
        loop {
            tokio::select! {
                answer = &mut answer => {
                    return Some(answer.unwrap_or_else(|_| SlotAnswer::failed(Failure::panicked())));
                }
                _ = renewals.tick() => {
                    let _ = message.ack_with(AckKind::Progress).await;
                }
                changed = stop.changed() => {
                    if changed.is_err() || *stop.borrow() == StopRequest::Abort {
                        return None;
                    }
                }
            }
        }
    }

    /// Whether another try may end otherwise. What seems too large beside other judges may fit alone.
    fn is_ours(&self, failure: &Failure) -> bool {
        let crowded = failure.code == TOO_LARGE && self.tally.busy().len() > 1;
        failure.kind == FailureKind::Infrastructure || crowded
    }

    /// What was put into another's queue, by mistake or by an older program, is refused with the reason.
    fn fits(&self, request: &JobRequest) -> Result<(), Failure> {
        let refused = |message: String| {
            Err(Failure {
                kind: FailureKind::Config,
                code: "other_pool".to_owned(),
                message,
                hint: Some("run the same version of warpsmith everywhere".to_owned()),
            })
        };
        if request.protocol != PROTOCOL {
            return refused(format!(
                "the job is of protocol {}, this worker's is {PROTOCOL}",
                request.protocol
            ));
        }
        if request.pool != self.plan.pool {
            return refused(format!(
                "the job is for {:?}, this worker is {:?}",
                request.pool, self.plan.pool
            ));
        }
        Ok(())
    }

    /// A failure of ours: another try, here or elsewhere, or the end of tries.
    async fn failed(
        &self,
        message: &Message,
        id: &JobId,
        task: &str,
        tries: u32,
        failure: Failure,
    ) -> Result<(), FleetError> {
        if failure.code == CANCELLED {
            let _ = message.ack_with(AckKind::Nak(None)).await;
            return Ok(());
        }
        self.tally.failed();
        warn!(job = %id, task, tries, code = failure.code, failure.message, "a try failed");
        let record = FailedTry {
            job: id.to_string(),
            task: task.to_owned(),
            worker: self.plan.name.clone(),
            tried: tries,
            code: failure.code.clone(),
            message: failure.message.clone(),
            at: jiff::Timestamp::now().as_second(),
        };
        self.link.record_failure(id, encoded(&record)?).await;
        if tries >= self.plan.max_tries {
            return self.give_up(message, id, tries, Some(failure)).await;
        }
        let pause = LONGEST_RETRY.min(FIRST_RETRY * 2_u32.saturating_pow(tries - 1));
        let _ = message.ack_with(AckKind::Nak(Some(pause))).await;
        Ok(())
    }

    async fn give_up(
        &self,
        message: &Message,
        id: &JobId,
        tries: u32,
        failure: Option<Failure>,
    ) -> Result<(), FleetError> {
        let failure = match failure {
            Some(failure) => failure,
            None => self.why_given_up(id, tries).await,
        };
        let letter = JobOutcome::DeadLetter(failure);
        self.finish(message, id, tries, 0.0, letter, None).await
    }

    /// Nobody lived to say it, unless an earlier try failed in an ordinary way.
    async fn why_given_up(&self, id: &JobId, tries: u32) -> Failure {
        let last: Option<FailedTry> = match self.link.last_failure(id).await {
            Some(bytes) => decoded("a failed try", &bytes).ok(),
            None => None,
        };
        Failure {
            kind: FailureKind::Infrastructure,
            code: "dead_letter".to_owned(),
            message: match last {
                Some(last) => format!(
                    "given up after {tries} tries; the last that was reported, by {}: {}",
                    last.worker, last.message
                ),
                None => format!("given up after {tries} tries: each worker that had it was lost"),
            },
            hint: Some("`warpsmith fleet status` shows the latest failures".to_owned()),
        }
    }

    async fn finish(
        &self,
        message: &Message,
        id: &JobId,
        tries: u32,
        seconds: f64,
        outcome: JobOutcome,
        evidence: Option<String>,
    ) -> Result<(), FleetError> {
        let result = JobResult {
            outcome,
            worker: self.plan.name.clone(),
            tries,
            seconds,
            evidence,
        };
        let renew = async {
            loop {
                sleep(self.plan.lease / 3).await;
                let _ = message.ack_with(AckKind::Progress).await;
            }
        };
        let stored = tokio::select! {
            stored = self.link.store(id, &result) => stored?,
            () = renew => false,
        };
        acknowledge(message).await;
        if stored {
            self.tally.answered();
        } else {
            info!(job = %id, "another worker was quicker");
        }
        Ok(())
    }
}

/// Where it is lost the job comes again, and its result is found.
async fn acknowledge(message: &Message) {
    let _ = message.ack().await;
}
