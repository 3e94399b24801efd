//! Where a fleet is, and the token that opens it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::FleetError;

/// An address as `warpsmith fleet up` prints it, or servers of NATS by their own.
#[derive(Clone, PartialEq, Eq)]
pub enum FleetAddress {
    /// `http://TOKEN@host:port`: asked for the servers' addresses.
    Door {
        host: String,
        port: u16,
        token: String,
    },
    /// `nats://TOKEN@host:port,…`
    Servers(FleetServers),
}

/// Servers of NATS, any of which will do.
#[derive(Clone, PartialEq, Eq)]
pub struct FleetServers {
    /// `nats://host:port` or `tls://host:port`.
    pub urls: Vec<String>,
    pub token: Option<String>,
    /// Who signed the servers' certificates, where the system does not know.
    pub authority: Option<PathBuf>,
}

/// Where `fleet up` listens for those that join.
pub const DOOR_PORT: u16 = 7070;
/// Where its server of NATS listens.
pub const SERVER_PORT: u16 = 4222;

impl FromStr for FleetAddress {
    type Err = FleetError;

    fn from_str(text: &str) -> Result<Self, FleetError> {
        let wrong = |reason: &str| FleetError::Address {
            address: hidden(text),
            reason: reason.to_owned(),
        };
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| wrong("it has no `http://`"))?;
        let rest = rest.trim_end_matches('/');
        let (token, hosts) = match rest.rsplit_once('@') {
            Some((token, hosts)) => (Some(token.trim_end_matches(':').to_owned()), hosts),
            None => (None, rest),
        };
        if hosts.is_empty() {
            return Err(wrong("it names no host"));
        }
        match scheme {
            "http" => {
                let (host, port) =
                    with_port(hosts, DOOR_PORT).ok_or_else(|| wrong("its port is no number"))?;
                let token = token
                    .filter(|token| !token.is_empty())
                    .ok_or_else(|| wrong("it has no token"))?;
                Ok(Self::Door { host, port, token })
            }
            "nats" | "tls" => {
                let url = |host: &str| {
                    let host = host
                        .trim_start_matches("nats://")
                        .trim_start_matches("tls://");
                    let (host, port) = with_port(host, SERVER_PORT)?;
                    Some(format!("{scheme}://{host}:{port}"))
                };
                let urls: Option<Vec<String>> = hosts.split(',').map(url).collect();
                Ok(Self::Servers(FleetServers {
                    urls: urls.ok_or_else(|| wrong("a port is no number"))?,
                    token,
                    authority: None,
                }))
            }
            _ => Err(wrong("it begins with neither `http://` nor `nats://`")),
        }
    }
}

fn with_port(host: &str, usual: u16) -> Option<(String, u16)> {
    // An IPv6 address stands in brackets, with colons of its own.
    match host.rsplit_once(':') {
        Some((_, port)) if port.ends_with(']') => Some((host.to_owned(), usual)),
        Some((host, port)) => Some((host.to_owned(), port.parse().ok()?)),
        None => Some((host.to_owned(), usual)),
    }
}

/// Without its token: errors and logs are read by others.
fn hidden(address: &str) -> String {
    match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => address.to_owned(),
    }
}

impl FleetServers {
    /// For people.
    pub fn names(&self) -> String {
        self.urls.join(", ")
    }
}

impl fmt::Debug for FleetServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetServers")
            .field("urls", &self.urls)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for FleetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Door { host, port, .. } => write!(f, "http://…@{host}:{port}"),
            Self::Servers(servers) => servers.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_printed() {
        let door = |host: &str, port| FleetAddress::Door {
            host: host.to_owned(),
            port,
            token: "secret".to_owned(),
        };
        for (text, expected) in [
            ("http://secret@gpu1:7071", door("gpu1", 7071)),
            ("http://secret@gpu1/", door("gpu1", DOOR_PORT)),
            ("http://secret:@10.0.0.1", door("10.0.0.1", DOOR_PORT)),
            ("http://secret@[::1]:9", door("[::1]", 9)),
            ("http://secret@[::1]", door("[::1]", DOOR_PORT)),
        ] {
            assert_eq!(text.parse::<FleetAddress>().unwrap(), expected, "{text}");
        }
        let FleetAddress::Servers(servers) = "nats://secret@a:1,b".parse().unwrap() else {
            panic!("servers");
        };
        assert_eq!(servers.urls, ["nats://a:1", "nats://b:4222"]);
        assert_eq!(servers.token.as_deref(), Some("secret"));
    }

    #[test]
    fn a_wrong_address_is_refused_and_its_token_is_not_shown() {
        for text in [
            "gpu1:7070",
            "http://gpu1",
            "http://secret@",
            "http://secret@a:b",
            "ftp://secret@a",
        ] {
            let error = text.parse::<FleetAddress>().unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
            assert!(error.hint().is_some());
        }
        let address: FleetAddress = "nats://secret@a".parse().unwrap();
        assert!(!format!("{address:?}").contains("secret"));
    }
}
