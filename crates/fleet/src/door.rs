//! The address that people see: where workers learn of the servers, and a page of what the fleet does.
//!
//! Every request needs the token. Whoever has it is told how to reach the queues, with the same token.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use warpsmith_machine::http_agent;

use crate::link::Link;
use crate::page::page;
use crate::status::status;
use crate::wire::PROTOCOL;
use crate::{FleetAddress, FleetError, FleetServers};

/// What a door says of the way in.
#[derive(Debug, Serialize, Deserialize)]
struct WayIn {
    protocol: u32,
    /// `nats://host:port`; the host is empty where it is the door's own.
    servers: Vec<String>,
    /// In PEM, where the servers' certificate is signed by an authority of their own.
    authority: Option<String>,
}

/// What a door needs to know.
pub(crate) struct DoorPlan {
    pub(crate) token: String,
    /// As this machine reaches them.
    pub(crate) local: FleetServers,
    /// As others do; without a host it is the one by which they reached the door.
    pub(crate) servers: Vec<String>,
    pub(crate) authority: Option<String>,
}

struct Door {
    plan: DoorPlan,
    link: Link,
}

const STOP_POLL: Duration = Duration::from_millis(50);
const SILENCE: Duration = Duration::from_secs(10);

/// Answers until it is told to stop, and asks now and then whether all is well.
pub(crate) fn keep_door(
    listener: TcpListener,
    plan: DoorPlan,
    mut goes_on: impl FnMut() -> Result<bool, FleetError>,
) -> Result<(), FleetError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let link = Link::open(&plan.local, "warpsmith fleet up").await?;
        let door = Arc::new(Door { plan, link });
        let router = Router::new()
            .route("/", get(show))
            .route("/join", get(way_in))
            .route("/status", get(say_status))
            .with_state(door);
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let stopped = async {
            loop {
                match goes_on() {
                    Ok(true) => tokio::time::sleep(STOP_POLL).await,
                    Ok(false) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        };
        tokio::select! {
            served = async { axum::serve(listener, router).await } => Ok(served?),
            stopped = stopped => stopped,
        }
    })
}

impl Door {
    fn admit(&self, headers: &HeaderMap) -> Result<(), DoorError> {
        let shown = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let token = &self.plan.token;
        let accepted = [
            format!("Bearer {token}"),
            // As a browser sends `http://TOKEN@host`.
            format!("Basic {}", STANDARD.encode(format!("{token}:"))),
        ];
        // Hashes are compared, so that time tells nothing of the token.
        let hash = blake3::hash(shown.as_bytes());
        if accepted
            .iter()
            .any(|known| blake3::hash(known.as_bytes()) == hash)
        {
            return Ok(());
        }
        Err(DoorError::Refused)
    }
}

/// Why a request is not answered.
enum DoorError {
    Refused,
    Unavailable(FleetError),
}

impl IntoResponse for DoorError {
    fn into_response(self) -> Response {
        match self {
            Self::Refused => {
                let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"warpsmith fleet\"")];
                let message = "the token is missing or wrong\n";
                (StatusCode::UNAUTHORIZED, challenge, message).into_response()
            }
            Self::Unavailable(error) => {
                (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response()
            }
        }
    }
}

async fn way_in(State(door): State<Arc<Door>>, headers: HeaderMap) -> Result<Response, DoorError> {
    door.admit(&headers)?;
    Ok(Json(WayIn {
        protocol: PROTOCOL,
        servers: door.plan.servers.clone(),
        authority: door.plan.authority.clone(),
    })
    .into_response())
}

async fn say_status(
    State(door): State<Arc<Door>>,
    headers: HeaderMap,
) -> Result<Response, DoorError> {
    door.admit(&headers)?;
    let found = status(&door.link).await.map_err(DoorError::Unavailable)?;
    Ok(Json(found).into_response())
}

async fn show(State(door): State<Arc<Door>>, headers: HeaderMap) -> Result<Response, DoorError> {
    door.admit(&headers)?;
    let found = status(&door.link).await.map_err(DoorError::Unavailable)?;
    Ok(Html(page(&found).into_string()).into_response())
}

impl FleetAddress {
    /// The servers behind an address.
    pub fn servers(&self) -> Result<FleetServers, FleetError> {
        let (host, port, token) = match self {
            Self::Servers(servers) => return Ok(servers.clone()),
            Self::Door { host, port, token } => (host, *port, token),
        };
        let door = format!("http://{host}:{port}");
        let unreachable = |reason: String| FleetError::Unreachable {
            servers: door.clone(),
            reason,
        };
        let agent = http_agent(SILENCE)?;
        let mut answer = agent
            .get(format!("{door}/join"))
            .header("authorization", format!("Bearer {token}"))
            .call()
            .map_err(|error| unreachable(error.to_string()))?;
        match answer.status().as_u16() {
            200 => {}
            401 => return Err(FleetError::Refused { servers: door }),
            status => return Err(unreachable(format!("it answered {status}"))),
        }
        let text = answer
            .body_mut()
            .read_to_string()
            .map_err(|error| unreachable(error.to_string()))?;
        let way: WayIn =
            serde_json::from_str(&text).map_err(|error| unreachable(error.to_string()))?;
        if way.protocol != PROTOCOL {
            return Err(FleetError::NotAFleet { protocol: PROTOCOL });
        }
        let authority = way.authority.map(|pem| keep_authority(&pem)).transpose()?;
        Ok(FleetServers {
            urls: way
                .servers
                .iter()
                .map(|url| url.replace("://:", &format!("://{host}:")))
                .collect(),
            token: Some(token.clone()),
            authority,
        })
    }
}

/// As a file, which is how the client wants it.
fn keep_authority(pem: &str) -> Result<std::path::PathBuf, FleetError> {
    let caches = warpsmith_machine::Caches::locate()?;
    let name = format!(
        "authority-{}.pem",
        &blake3::hash(pem.as_bytes()).to_hex()[..16]
    );
    let place = caches.fleet().join(name);
    let file = |source| FleetError::File {
        doing: "write",
        path: place.clone(),
        source,
    };
    fs_err::create_dir_all(caches.fleet()).map_err(file)?;
    crate::server::write_secret(&place, pem).map_err(file)?;
    Ok(place)
}

/// The address of this machine that others most likely reach.
pub(crate) fn own_address() -> Option<std::net::IpAddr> {
    // Nothing is sent: the kernel says which of its addresses it would use.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect(SocketAddr::from(([192, 0, 2, 1], 9))).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
