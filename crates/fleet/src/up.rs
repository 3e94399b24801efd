//! `warpsmith fleet up`: a server, its queues, and the door, until it is told to stop.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use rand::TryRngCore as _;
use rand::rngs::OsRng;
use tracing::warn;
use warpsmith_machine::{Caches, ProgressReporter};

use crate::door::{DoorPlan, keep_door, own_address};
use crate::server::{lock_file, write_secret};
use crate::{ClusterPlan, FleetError, FleetServer, ServerPlan, find_server, host_name, set_up};

/// What is to be started.
#[derive(Debug, Clone)]
pub struct UpPlan {
    /// Token and queues lie there; the same folder goes on with them.
    pub folder: PathBuf,
    pub listen: String,
    pub door_port: u16,
    pub server_port: u16,
    /// Certificate and key of the server, and who signed it, in PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub authority: Option<PathBuf>,
    pub cluster: Option<ClusterPlan>,
    /// `host:port` of the other servers of NATS, for those who join.
    pub other_servers: Vec<String>,
    pub replicas: usize,
    pub offline: bool,
}

/// A fleet whose server runs.
pub struct RunningFleet {
    plan: UpPlan,
    program: PathBuf,
    server_plan: ServerPlan,
    server: FleetServer,
    listener: TcpListener,
    /// Another on this folder would end the server as one that was left over.
    _lock: fs_err::File,
}

impl RunningFleet {
    pub fn start(
        plan: UpPlan,
        token: Option<String>,
        progress: &dyn ProgressReporter,
    ) -> Result<Self, FleetError> {
        let lock = lock_file(&plan.folder)?;
        if lock.file().try_lock().is_err() {
            return Err(FleetError::Server {
                reason: format!(
                    "was not started: another `fleet up` works in `{}`",
                    plan.folder.display()
                ),
                hint: Some("choose another folder with `--out`".to_owned()),
            });
        }
        let program = find_server(&Caches::locate()?, progress, plan.offline)?;
        let token = kept_token(&plan.folder, token)?;
        let address = (plan.listen.as_str(), plan.door_port);
        let listener = TcpListener::bind(address).map_err(|error| FleetError::Server {
            reason: format!(
                "was not started: port {} of `{}`: {error}",
                plan.door_port, plan.listen
            ),
            hint: Some("choose another with `--port`".to_owned()),
        })?;
        let server_plan = ServerPlan {
            folder: plan.folder.clone(),
            name: format!("{}-{}", host_name(), plan.server_port),
            listen: plan.listen.clone(),
            port: plan.server_port,
            token,
            tls: plan.tls.clone(),
            cluster: plan.cluster.clone(),
        };
        let server = FleetServer::start(&program, &server_plan)?;
        let fleet = Self {
            plan,
            program,
            server_plan,
            server,
            listener,
            _lock: lock,
        };
        set_up(&fleet.local(), fleet.plan.replicas)?;
        Ok(fleet)
    }

    fn local(&self) -> crate::FleetServers {
        crate::FleetServers {
            authority: self.plan.authority.clone(),
            ..self.server_plan.local()
        }
    }

    /// What the others are given, token included.
    pub fn address(&self) -> String {
        let host = match self.plan.listen.as_str() {
            "0.0.0.0" | "::" => own_address().map_or_else(host_name, |address| address.to_string()),
            host => host.to_owned(),
        };
        let port = self
            .listener
            .local_addr()
            .map_or(self.plan.door_port, |address| address.port());
        format!("http://{}@{host}:{port}", self.server_plan.token)
    }

    /// Until `goes_on` says no. A server that ends is started again.
    pub fn run(mut self, goes_on: impl Fn() -> bool) -> Result<(), FleetError> {
        let scheme = if self.plan.tls.is_some() {
            "tls"
        } else {
            "nats"
        };
        let others = self.plan.other_servers.iter();
        let own = format!("{scheme}://:{}", self.plan.server_port);
        let authority = match &self.plan.authority {
            Some(path) => Some(fs_err::read_to_string(path)?),
            None => None,
        };
        let door = DoorPlan {
            token: self.server_plan.token.clone(),
            local: self.local(),
            servers: std::iter::once(own)
                .chain(others.map(|other| format!("{scheme}://{other}")))
                .collect(),
            authority,
        };
        keep_door(self.listener, door, || {
            if !goes_on() {
                return Ok(false);
            }
            if !self.server.runs() {
                warn!("nats-server ended and is started again");
                self.server = FleetServer::start(&self.program, &self.server_plan)?;
            }
            Ok(true)
        })
    }
}

/// The same for the same folder: workers and controllers come back after a restart.
fn kept_token(folder: &Path, given: Option<String>) -> Result<String, FleetError> {
    let place = folder.join("token");
    let file = |doing| {
        let path = place.clone();
        move |source| FleetError::File {
            doing,
            path,
            source,
        }
    };
    if let Some(given) = given {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if given.len() < 16 || !given.chars().all(plain) {
            return Err(FleetError::Server {
                reason: "was not started: a token has at least 16 letters, digits, `-`, `_` or `.`"
                    .to_owned(),
                hint: Some("leave it out to have one made".to_owned()),
            });
        }
        return Ok(given);
    }
    if let Ok(known) = fs_err::read_to_string(&place) {
        return Ok(known.trim().to_owned());
    }
    let mut bytes = [0_u8; 24];
    OsRng
        .try_fill_bytes(&mut bytes)
        .map_err(std::io::Error::other)?;
    let token = bytes.iter().fold(String::new(), |mut token, byte| {
        let _ = write!(token, "{byte:02x}");
        token
    });
    fs_err::create_dir_all(folder).map_err(file("create"))?;
    write_secret(&place, &token).map_err(file("write"))?;
    Ok(token)
}
