//! Messages of the Model Context Protocol: JSON-RPC 2.0, one message a line, and the revisions of the protocol.

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Revisions that begin with a handshake, `initialize`.
const WITH_HANDSHAKE: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// The revision without one: every request says which revision it speaks, in `_meta`.
const WITHOUT_HANDSHAKE: &str = "2026-07-28";

const VERSION_FIELD: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_FIELD: &str = "io.modelcontextprotocol/clientCapabilities";
pub(super) const SERVER_FIELD: &str = "io.modelcontextprotocol/serverInfo";

/// What a client sent.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    /// A response: this server asks clients nothing.
    Response,
    Invalid,
}

#[derive(Deserialize)]
struct RawMessage {
    jsonrpc: String,
    id: Option<Value>,
    method: Option<String>,
    #[serde(default)]
    params: Value,
}

pub(super) fn parse(line: &str) -> Incoming {
    let Ok(Value::Object(fields)) = serde_json::from_str(line) else {
        return Incoming::Invalid;
    };
    let null_id = fields.get("id").is_some_and(Value::is_null);
    let Ok(raw) = serde_json::from_value::<RawMessage>(Value::Object(fields)) else {
        return Incoming::Invalid;
    };
    match (raw.method, raw.id) {
        _ if raw.jsonrpc != "2.0" || null_id => Incoming::Invalid,
        (Some(method), Some(id)) if id.is_string() || id.is_number() => Incoming::Request {
            id,
            method,
            params: raw.params,
        },
        (Some(method), None) => Incoming::Notification {
            method,
            params: raw.params,
        },
        (None, Some(_)) => Incoming::Response,
        _ => Incoming::Invalid,
    }
}

/// Why a request has no result.
#[derive(Debug, PartialEq)]
pub(super) struct RpcError {
    code: i32,
    message: String,
    data: Option<Value>,
}

impl RpcError {
    fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    pub(super) fn invalid_request() -> Self {
        Self::new(-32600, "Invalid request")
    }

    pub(super) fn unknown_method(method: &str) -> Self {
        Self::new(-32601, method)
    }

    pub(super) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }

    pub(super) fn internal(message: &str) -> Self {
        Self::new(-32603, message)
    }

    /// Newer revisions have no code of its own for this.
    pub(super) fn no_such_resource(message: String, revision: Revision) -> Self {
        match revision {
            Revision::WithHandshake => Self::new(-32002, message),
            Revision::WithoutHandshake => Self::invalid_params(message),
        }
    }

    fn unsupported_version(requested: &str) -> Self {
        Self {
            data: Some(json!({ "requested": requested, "supported": supported() })),
            ..Self::new(-32022, "Unsupported protocol version")
        }
    }

    fn json(self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = self.data {
            error["data"] = data;
        }
        error
    }
}

/// The answer to a request; without an id where it could not be read.
pub(super) fn response(id: Option<Value>, result: Result<Value, RpcError>) -> Value {
    let mut message = json!({ "jsonrpc": "2.0" });
    if let Some(id) = id {
        message["id"] = id;
    }
    match result {
        Ok(result) => message["result"] = result,
        Err(error) => message["error"] = error.json(),
    }
    message
}

pub(super) fn notification(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

/// How a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Revision {
    WithHandshake,
    WithoutHandshake,
}

impl Revision {
    /// Of a request outside a session that began with a handshake.
    pub(super) fn of_request(params: &Value) -> Result<Self, RpcError> {
        let meta = &params["_meta"];
        let version = meta[VERSION_FIELD].as_str();
        let missing: Vec<&str> = [
            (VERSION_FIELD, version.is_some()),
            (CAPABILITIES_FIELD, meta[CAPABILITIES_FIELD].is_object()),
        ]
        .into_iter()
        .filter_map(|(field, there)| (!there).then_some(field))
        .collect();
        match version {
            Some(version) if missing.is_empty() => {
                if version == WITHOUT_HANDSHAKE {
                    Ok(Self::WithoutHandshake)
                } else {
                    Err(RpcError::unsupported_version(version))
                }
            }
            _ => Err(RpcError::invalid_params(format!(
                "request _meta is missing or has malformed required fields: {}",
                missing.join(", ")
            ))),
        }
    }

    /// A result as the revision has it.
    pub(super) fn complete(self, result: Value, caching: Caching) -> Value {
        if self == Self::WithHandshake {
            return result;
        }
        let mut fields = Map::from_iter([("resultType".to_owned(), json!("complete"))]);
        if caching == Caching::Stated {
            fields.insert("ttlMs".to_owned(), json!(0));
            fields.insert("cacheScope".to_owned(), json!("private"));
        }
        if let Value::Object(result) = result {
            fields.extend(result);
        }
        Value::Object(fields)
    }
}

/// Whether a result says how long it may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caching {
    Stated,
    NotStated,
}

pub(super) fn supported() -> Vec<&'static str> {
    let mut all = WITH_HANDSHAKE.to_vec();
    all.push(WITHOUT_HANDSHAKE);
    all
}

/// The revision of a handshake: the client's, or the newest that has one.
pub(super) fn negotiate(params: &Value) -> &'static str {
    let asked = params["protocolVersion"].as_str();
    let mut known = WITH_HANDSHAKE.into_iter();
    known
        .find(|version| Some(*version) == asked)
        .unwrap_or(WITH_HANDSHAKE[WITH_HANDSHAKE.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        let request = |id: Value| Incoming::Request {
            id,
            method: "ping".to_owned(),
            params: Value::Null,
        };
        for (line, expected) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
                request(json!(1)),
            ),
            (
                r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#,
                request(json!("a")),
            ),
            (
                r#"{"jsonrpc":"2.0","method":"x","params":{"a":1}}"#,
                Incoming::Notification {
                    method: "x".to_owned(),
                    params: json!({ "a": 1 }),
                },
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
                Incoming::Response,
            ),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
        for line in [
            "{broken",
            "[]",
            "7",
            r#"{"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
            r#"{"jsonrpc":"2.0"}"#,
        ] {
            assert_eq!(parse(line), Incoming::Invalid, "{line}");
        }
    }

    #[test]
    fn revisions_are_negotiated() {
        for (asked, expected) in [
            ("2024-11-05", "2024-11-05"),
            ("2025-11-25", "2025-11-25"),
            ("1999-01-01", "2025-11-25"),
            ("2026-07-28", "2025-11-25"),
        ] {
            assert_eq!(negotiate(&json!({ "protocolVersion": asked })), expected);
        }
        let request = |version: &str| {
            let meta = json!({ VERSION_FIELD: version, CAPABILITIES_FIELD: {} });
            Revision::of_request(&json!({ "_meta": meta }))
        };
        assert_eq!(request("2026-07-28"), Ok(Revision::WithoutHandshake));
        assert_eq!(request("2099-01-01").unwrap_err().code, -32022);
        assert_eq!(Revision::of_request(&Value::Null).unwrap_err().code, -32602);
    }
}
