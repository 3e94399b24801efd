//! What two configurations differ in.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// A value longer than this is not shown.
const LONG: usize = 120;

/// One setting in which two configurations differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigDifference {
    /// Such as `judge.samples`.
    pub key: String,
    /// `None` where the run was begun without it.
    pub before: Option<Value>,
    pub now: Option<Value>,
}

impl fmt::Display for ConfigDifference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text =
            |value: &Option<Value>| value.as_ref().map_or("absent".to_owned(), Value::to_string);
        // Two long texts side by side help nobody.
        if text(&self.before).len().max(text(&self.now).len()) > LONG {
            return write!(out, "`{}` is another", self.key);
        }
        write!(
            out,
            "`{}` was {}, is {}",
            self.key,
            text(&self.before),
            text(&self.now)
        )
    }
}

/// Every leaf in which they differ, in order of their keys.
pub(crate) fn differences(before: &Value, now: &Value) -> Vec<ConfigDifference> {
    let mut found = Vec::new();
    compare("", Some(before), Some(now), &mut found);
    found
}

fn compare(
    key: &str,
    before: Option<&Value>,
    now: Option<&Value>,
    found: &mut Vec<ConfigDifference>,
) {
    match (before, now) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            for name in keys {
                let key = if key.is_empty() {
                    name.clone()
                } else {
                    format!("{key}.{name}")
                };
                compare(&key, old.get(name), new.get(name), found);
            }
        }
        _ if before == now => {}
        (Some(Value::String(old)), Some(Value::String(new)))
            if is_address(key) && without_port(old) == without_port(new) => {}
        _ => found.push(ConfigDifference {
            key: key.to_owned(),
            before: before.cloned(),
            now: now.cloned(),
        }),
    }
}

/// Settings that say where something is served.
fn is_address(key: &str) -> bool {
    key.rsplit('.').next() == Some("base_url")
}

/// A server that was started again may have another port and is the same server.
fn without_port(address: &str) -> (String, &str) {
    let begins = address.find("://").map_or(0, |place| place + 3);
    let ends = address[begins..]
        .find('/')
        .map_or(address.len(), |place| begins + place);
    let host = &address[..ends];
    let port = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let host = match host[begins..].rsplit_once(':') {
        Some((name, number)) if port(number) => format!("{}{name}", &host[..begins]),
        _ => host.to_owned(),
    };
    (host, &address[ends..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_leaves_that_differ_are_named() {
        let before = json!({"seed": 1, "judge": {"samples": 5, "profile": "rl"}, "old": true});
        let now = json!({"seed": 1, "judge": {"samples": 9, "profile": "rl"}, "new": [1]});
        let text: Vec<String> = differences(&before, &now)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            text,
            [
                "`judge.samples` was 5, is 9",
                "`new` was absent, is [1]",
                "`old` was true, is absent"
            ]
        );
        assert_eq!(differences(&now, &now), []);
        let (before, now) = ("a".repeat(LONG), "b");
        let found = differences(&json!({ "source": before }), &json!({ "source": now }));
        assert_eq!(found[0].to_string(), "`source` is another");
    }

    #[test]
    fn another_port_of_the_same_server_is_no_difference() {
        let differ = |before: &str, now: &str| {
            !differences(&json!({ "base_url": before }), &json!({ "base_url": now })).is_empty()
        };
        assert!(!differ(
            "http://127.0.0.1:8000/v1",
            "http://127.0.0.1:9000/v1"
        ));
        assert!(!differ("http://[::1]:8000/v1", "http://[::1]/v1"));
        assert!(differ(
            "http://127.0.0.1:8000/v1",
            "http://127.0.0.1:8000/v2"
        ));
        assert!(differ("http://one:8000/v1", "http://other:8000/v1"));
        assert!(differ("http://[::1]:8000/v1", "http://[::2]:8000/v1"));
        assert!(differ("https://one/v1", "http://one/v1"));
    }
}
