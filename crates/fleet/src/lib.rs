//! Judging on many machines, over NATS `JetStream`.
//!
//! A controller ([`FleetClient`]) puts jobs into the queue of a pool; workers ([`work`]) of that pool take them and store one
//! result for each. [`FleetJudge`] makes a fleet a [`Judge`](warpsmith_judge::Judge), so runs, searches and training use it as
//! they use the local one. [`FleetServer`] starts the server on one machine.
//!
//! A worker trusts a task no more than the local judge does. Whoever has the token can add jobs and results: it is as good as
//! an account on the machines.

mod address;
mod client;
mod discover;
mod door;
mod error;
mod evidence;
mod judge;
mod link;
mod page;
mod policies;
mod server;
mod setup;
mod simulate;
mod status;
mod up;
mod wire;
mod worker;

pub use address::{DOOR_PORT, FleetAddress, FleetServers, SERVER_PORT};
pub use client::{FleetClient, PoolChoice};
pub use discover::{host_name, own_pool, worker_name};
pub use error::FleetError;
pub use judge::FleetJudge;
pub use policies::{AnnouncedPolicy, PolicyShelf};
pub use server::{ClusterPlan, FleetServer, ServerPlan, find_server};
pub use setup::set_up;
pub use simulate::{SimulationPlan, SimulationReport, simulate};
pub use status::{FailedTry, FleetStatus, QueueStatus, WorkerRecord, fleet_status};
pub use up::{RunningFleet, UpPlan};
pub use wire::{
    FleetJudging, FleetPool, JobAnswer, JobCall, JobId, JobOutcome, JobRequest, JobResult, PROTOCOL,
};
pub use worker::{LEASE, MAX_TRIES, MakeJudge, WorkerPlan, WorkerSummary, work};
