//! One connection to a fleet's server: its queue, its results, its objects.
//!
//! Every call here tries again until its patience ends: servers are restarted, and leaders change. All that is written is
//! written in a way that a second try does not count twice.

use std::future::Future;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::object_store::ObjectStore;
use async_nats::jetstream::stream::{DirectGetErrorKind, Stream};
use async_nats::jetstream::{self, Context, kv};
use async_nats::{ConnectErrorKind, HeaderMap};
use tokio::io::AsyncReadExt;
use tokio::time::sleep;

use crate::wire::{JobId, JobResult, PROTOCOL};
use crate::{FleetError, FleetServers};

/// Work that waits or is under way; gone when its result is stored.
pub(crate) fn jobs_name() -> String {
    format!("warpsmith-{PROTOCOL}-jobs")
}

pub(crate) fn results_name() -> String {
    format!("warpsmith-{PROTOCOL}-results")
}

pub(crate) fn failures_name() -> String {
    format!("warpsmith-{PROTOCOL}-failures")
}

pub(crate) fn job_subject(pool: &str, id: &str) -> String {
    format!("warpsmith.{PROTOCOL}.jobs.{pool}.{id}")
}

pub(crate) fn result_subject(id: &str) -> String {
    format!("warpsmith.{PROTOCOL}.results.{id}")
}

pub(crate) fn failure_subject(id: &str) -> String {
    format!("warpsmith.{PROTOCOL}.failures.{id}")
}

/// Where a result is told to whoever listens, after it was stored.
pub(crate) fn told_subject(id: &str) -> String {
    format!("warpsmith.{PROTOCOL}.told.{id}")
}

pub(crate) fn bucket(name: &str) -> String {
    format!("warpsmith-{PROTOCOL}-{name}")
}

/// Results, objects and failures are forgotten after this.
pub(crate) const KEPT: Duration = Duration::from_hours(7 * 24);
/// A worker that says nothing for so long is not shown any more.
pub(crate) const WORKER_SHOWN: Duration = Duration::from_secs(15);
/// Longer messages go to the object store; the server's own limit is 1 MB.
const INLINE_BYTES: usize = 512 << 10;
const OBJECT: &str = "Warpsmith-Object";

pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const REQUEST_LIMIT: Duration = Duration::from_secs(3);
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long a call is tried again while the fleet does not answer.
pub(crate) const PATIENCE: Duration = Duration::from_mins(10);

#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) client: async_nats::Client,
    context: Context,
    jobs: Stream,
    results: Stream,
    failures: Stream,
    objects: ObjectStore,
    pub(crate) workers: kv::Store,
    pub(crate) policies: kv::Store,
    pub(crate) baselines: kv::Store,
    servers: String,
}

impl Link {
    /// To a fleet that has been set up.
    pub(crate) async fn open(servers: &FleetServers, name: &str) -> Result<Self, FleetError> {
        let client = Box::pin(connect(servers, name)).await?;
        let context = context(client.clone());
        let begun = Instant::now();
        loop {
            let over = Self::over(client.clone(), context.clone(), servers.names());
            match Box::pin(over).await {
                Ok(link) => return Ok(link),
                // A cluster that has just started has no leader yet.
                Err(_) if begun.elapsed() < CONNECT_LIMIT * 2 => sleep(FIRST_PAUSE * 4).await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn over(
        client: async_nats::Client,
        context: Context,
        servers: String,
    ) -> Result<Self, FleetError> {
        let missing = |_| FleetError::NotAFleet { protocol: PROTOCOL };
        let missing_bucket = |_| FleetError::NotAFleet { protocol: PROTOCOL };
        Ok(Self {
            jobs: context.get_stream(jobs_name()).await.map_err(missing)?,
            results: context.get_stream(results_name()).await.map_err(missing)?,
            failures: context.get_stream(failures_name()).await.map_err(missing)?,
            objects: context
                .get_object_store(&bucket("objects"))
                .await
                .map_err(|_| FleetError::NotAFleet { protocol: PROTOCOL })?,
            workers: context
                .get_key_value(bucket("workers"))
                .await
                .map_err(missing_bucket)?,
            policies: context
                .get_key_value(bucket("policies"))
                .await
                .map_err(missing_bucket)?,
            baselines: context
                .get_key_value(bucket("baselines"))
                .await
                .map_err(missing_bucket)?,
            client,
            context,
            servers,
        })
    }

    /// Tries again until it succeeds or patience ends.
    async fn persist<T, E, F>(
        &self,
        doing: &'static str,
        mut act: impl FnMut() -> F,
    ) -> Result<T, FleetError>
    where
        F: Future<Output = Result<T, E>>,
        E: std::fmt::Display,
    {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            match act().await {
                Ok(value) => return Ok(value),
                Err(error) if begun.elapsed() > PATIENCE => {
                    return Err(FleetError::Silent {
                        doing,
                        waited: begun.elapsed(),
                        reason: format!("{error} ({})", self.servers),
                    });
                }
                Err(error) => {
                    tracing::debug!(doing, %error, "the fleet did not answer");
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Whether it is new. A subject takes one message: whoever comes second finds it taken.
    async fn create(
        &self,
        doing: &'static str,
        subject: String,
        bytes: &[u8],
    ) -> Result<bool, FleetError> {
        let message = self.message(bytes).await?;
        let once = || async {
            let message = message.clone().expected_last_subject_sequence(0);
            let sent = self.context.send_publish(subject.clone(), message).await;
            let stored = match sent {
                Ok(sent) => sent.await.map(drop),
                Err(error) => Err(error),
            };
            match stored {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Ok(false),
                Err(error) => Err(error),
            }
        };
        self.persist(doing, once).await
    }

    /// Inline, or by the name of an object.
    async fn message(&self, bytes: &[u8]) -> Result<PublishMessage, FleetError> {
        let message = PublishMessage::build();
        if bytes.len() <= INLINE_BYTES {
            return Ok(message.payload(bytes.to_vec().into()));
        }
        let name = self.put_object(bytes).await?;
        Ok(message.header(OBJECT, name.as_str()))
    }

    /// The body of a message, wherever it lies.
    pub(crate) async fn body(
        &self,
        headers: Option<&HeaderMap>,
        payload: &[u8],
    ) -> Result<Vec<u8>, FleetError> {
        match headers.and_then(|headers| headers.get(OBJECT)) {
            Some(name) => self.object(name.as_str()).await,
            None => Ok(payload.to_vec()),
        }
    }

    /// Named by its hash, so the same bytes are sent once.
    pub(crate) async fn put_object(&self, bytes: &[u8]) -> Result<String, FleetError> {
        let name = blake3::hash(bytes).to_hex().to_string();
        let put = || async {
            if self.objects.info(&name).await.is_ok() {
                return Ok(());
            }
            let mut reader = bytes;
            self.objects.put(name.as_str(), &mut reader).await.map(drop)
        };
        self.persist("take an object", put).await?;
        Ok(name)
    }

    pub(crate) async fn object(&self, name: &str) -> Result<Vec<u8>, FleetError> {
        let get = || async {
            let mut object = self
                .objects
                .get(name)
                .await
                .map_err(|error| error.to_string())?;
            let mut bytes = Vec::new();
            object
                .read_to_end(&mut bytes)
                .await
                .map_err(|error| error.to_string())?;
            if blake3::hash(&bytes).to_hex().as_str() == name {
                Ok(bytes)
            } else {
                Err("it has another hash".to_owned())
            }
        };
        self.persist("give an object", get).await
    }

    /// Puts a job into its pool's queue, unless it is there.
    pub(crate) async fn submit(
        &self,
        pool: &str,
        id: &JobId,
        body: &[u8],
    ) -> Result<bool, FleetError> {
        let subject = job_subject(pool, id.as_str());
        self.create("take a job", subject, body).await
    }

    /// Takes a job out of the queue that nobody waits for.
    pub(crate) async fn withdraw(&self, pool: &str, id: &JobId) {
        let subject = job_subject(pool, id.as_str());
        // Whoever has it already ends it.
        let _ = self.jobs.purge().filter(subject).await;
    }

    /// Stores a result, unless there is one.
    pub(crate) async fn store(&self, id: &JobId, result: &JobResult) -> Result<bool, FleetError> {
        let bytes = encoded(result)?;
        let subject = result_subject(id.as_str());
        self.create("take a result", subject, &bytes).await
    }

    pub(crate) async fn result(&self, id: &JobId) -> Result<Option<JobResult>, FleetError> {
        let get = || async {
            let subject = result_subject(id.as_str());
            match self.results.direct_get_last_for_subject(subject).await {
                Ok(message) => Ok(Some(message)),
                Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        match self.persist("look for a result", get).await? {
            Some(message) => {
                let body = self.body(Some(&message.headers), &message.payload).await?;
                decoded("a result", &body).map(Some)
            }
            None => Ok(None),
        }
    }

    /// Keeps why a try failed, for the dead letter and for people.
    pub(crate) async fn record_failure(&self, id: &JobId, bytes: Vec<u8>) {
        let subject = failure_subject(id.as_str());
        // It is a remark: work goes on without it.
        if let Ok(sent) = self.context.publish(subject, bytes.into()).await {
            let _ = sent.await;
        }
    }

    pub(crate) async fn last_failure(&self, id: &JobId) -> Option<Vec<u8>> {
        let subject = failure_subject(id.as_str());
        let message = self.failures.direct_get_last_for_subject(subject).await;
        message.ok().map(|message| message.payload.to_vec())
    }

    /// The latest failures of tries, oldest first.
    pub(crate) async fn latest_failures(&self, count: u64) -> Vec<Vec<u8>> {
        let Ok(info) = self.failures.get_info().await else {
            return Vec::new();
        };
        let last = info.state.last_sequence;
        let mut found = Vec::new();
        for sequence in last.saturating_sub(count.saturating_sub(1)).max(1)..=last {
            if let Ok(message) = self.failures.direct_get(sequence).await {
                found.push(message.payload.to_vec());
            }
        }
        found
    }

    /// The queue of a pool. All its workers share it.
    pub(crate) async fn queue(
        &self,
        pool: &str,
        lease: Duration,
    ) -> Result<PullConsumer, FleetError> {
        let config = pull::Config {
            durable_name: Some(pool.to_owned()),
            filter_subject: job_subject(pool, "*"),
            ack_policy: AckPolicy::Explicit,
            ack_wait: lease,
            // Tries are counted by workers, who say why they ended.
            max_deliver: -1,
            max_ack_pending: 100_000,
            max_waiting: 10_000,
            ..pull::Config::default()
        };
        let create = || self.jobs.create_consumer(config.clone());
        self.persist("open a queue", create).await
    }

    /// Every pool that has or had workers, with what waits there and what is in hands.
    pub(crate) async fn queues(&self) -> Result<Vec<(String, u64, usize)>, FleetError> {
        use futures_util::TryStreamExt as _;
        let list = || async {
            let consumers = self.jobs.consumers();
            consumers.try_collect::<Vec<_>>().await
        };
        let found = self.persist("list its queues", list).await?;
        let queue = |info: async_nats::jetstream::consumer::Info| {
            (info.name, info.num_pending, info.num_ack_pending)
        };
        Ok(found.into_iter().map(queue).collect())
    }

    /// How many results there are in all.
    pub(crate) async fn result_count(&self) -> Result<u64, FleetError> {
        let info = || self.results.get_info();
        Ok(self.persist("count results", info).await?.state.messages)
    }

    pub(crate) fn connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }
}

pub(crate) async fn connect(
    servers: &FleetServers,
    name: &str,
) -> Result<async_nats::Client, FleetError> {
    let mut options = async_nats::ConnectOptions::new()
        .name(name)
        .connection_timeout(CONNECT_LIMIT)
        .request_timeout(Some(REQUEST_LIMIT))
        .ping_interval(Duration::from_secs(5))
        // Those that were named can be reached from here; what servers call themselves may not.
        .ignore_discovered_servers()
        .max_reconnects(None)
        .reconnect_delay_callback(|tries| {
            LONGEST_PAUSE.min(FIRST_PAUSE * u32::try_from(tries).unwrap_or(u32::MAX).min(40))
        });
    if let Some(token) = &servers.token {
        options = options.token(token.clone());
    }
    if let Some(authority) = &servers.authority {
        options = options.add_root_certificates(authority.clone());
    }
    let connected = options.connect(&servers.urls).await;
    connected.map_err(|error| match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            FleetError::Refused {
                servers: servers.names(),
            }
        }
        _ => FleetError::Unreachable {
            servers: servers.names(),
            reason: error.to_string(),
        },
    })
}

pub(crate) fn context(client: async_nats::Client) -> Context {
    let mut context = jetstream::new(client);
    context.set_timeout(REQUEST_LIMIT);
    context
}

pub(crate) fn encoded<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, FleetError> {
    serde_json::to_vec(value).map_err(|error| FleetError::Unreadable {
        what: std::any::type_name::<T>().to_owned(),
        reason: error.to_string(),
    })
}

pub(crate) fn decoded<T: serde::de::DeserializeOwned>(
    what: &str,
    bytes: &[u8],
) -> Result<T, FleetError> {
    serde_json::from_slice(bytes).map_err(|error| FleetError::Unreadable {
        what: what.to_owned(),
        reason: error.to_string(),
    })
}
