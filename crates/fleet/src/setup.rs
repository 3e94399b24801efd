//! What a fleet needs on its server: streams, keys, objects.

use std::time::{Duration, Instant};

use async_nats::jetstream::stream::{DiscardPolicy, Republish, RetentionPolicy};
use async_nats::jetstream::{Context, kv, object_store, stream};
use tokio::time::sleep;

use crate::link::{
    CONNECT_LIMIT, FIRST_PAUSE, KEPT, WORKER_SHOWN, bucket, connect, context, failure_subject,
    failures_name, jobs_name, result_subject, results_name, told_subject,
};
use crate::wire::PROTOCOL;
use crate::{FleetError, FleetServers};

/// Makes what a fleet needs where it is missing.
pub fn set_up(servers: &FleetServers, replicas: usize) -> Result<(), FleetError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(set_up_patiently(servers, replicas))
}

async fn set_up_patiently(servers: &FleetServers, replicas: usize) -> Result<(), FleetError> {
    let client = connect(servers, "warpsmith fleet up").await?;
    let context = context(client);
    let begun = Instant::now();
    loop {
        match set_up_once(&context, replicas).await {
            Ok(()) => return Ok(()),
            Err(reason) if begun.elapsed() > CONNECT_LIMIT * 6 => {
                return Err(FleetError::Silent {
                    doing: "make its queues",
                    waited: begun.elapsed(),
                    reason,
                });
            }
            Err(_) => sleep(FIRST_PAUSE * 4).await,
        }
    }
}

async fn set_up_once(context: &Context, replicas: usize) -> Result<(), String> {
    let stream = |name: String, subject: String| stream::Config {
        name,
        subjects: vec![subject],
        num_replicas: replicas,
        allow_direct: true,
        ..stream::Config::default()
    };
    let streams = [
        stream::Config {
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::New,
            ..stream(jobs_name(), format!("warpsmith.{PROTOCOL}.jobs.>"))
        },
        stream::Config {
            max_age: KEPT,
            republish: Some(Republish {
                source: result_subject("*"),
                destination: told_subject("{{wildcard(1)}}"),
                headers_only: false,
            }),
            ..stream(results_name(), result_subject("*"))
        },
        stream::Config {
            max_age: KEPT,
            max_messages_per_subject: 8,
            ..stream(failures_name(), failure_subject("*"))
        },
    ];
    for config in streams {
        context
            .create_or_update_stream(config)
            .await
            .map_err(|error| error.to_string())?;
    }
    for (name, max_age) in [
        ("workers", WORKER_SHOWN),
        ("policies", Duration::ZERO),
        ("baselines", KEPT),
    ] {
        let config = kv::Config {
            bucket: bucket(name),
            history: 1,
            max_age,
            num_replicas: replicas,
            ..kv::Config::default()
        };
        if context.get_key_value(bucket(name)).await.is_err() {
            context
                .create_key_value(config)
                .await
                .map_err(|error| error.to_string())?;
        }
    }
    if context.get_object_store(&bucket("objects")).await.is_err() {
        let config = object_store::Config {
            bucket: bucket("objects"),
            max_age: KEPT,
            num_replicas: replicas,
            ..object_store::Config::default()
        };
        context
            .create_object_store(config)
            .await
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}
