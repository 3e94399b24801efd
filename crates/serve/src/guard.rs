//! Who is answered.

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::client::{ApiKeys, Client};
use crate::refusal::Refusal;

/// Lets in who may ask. What comes after knows who that is.
pub(crate) async fn admit(
    State(keys): State<ApiKeys>,
    mut request: Request,
    next: Next,
) -> Response {
    match check(&keys, request.headers()) {
        Ok(client) => {
            request.extensions_mut().insert(client);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

fn check(keys: &ApiKeys, headers: &HeaderMap) -> Result<Client, Refusal> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    // Everything below rests on it, and HTTP asks for exactly one.
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (
        hosts.next().and_then(|host| host.to_str().ok()),
        hosts.next(),
    ) else {
        return Err(Refusal::no_host());
    };
    if !keys.is_empty() {
        let shown = header(AUTHORIZATION).and_then(|value| {
            let (scheme, shown) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| shown.trim())
        });
        let client = shown.and_then(|shown| keys.owner(shown));
        return client.ok_or_else(Refusal::wrong_token);
    }
    // A page in a browser can have its own name lead to this machine; the name it then asks for gives it away.
    if !is_local(host) {
        return Err(Refusal::foreign_host(host));
    }
    // Any page may open a socket to this machine; its browser says whose page it is.
    match header(ORIGIN) {
        Some(origin) if !is_own(origin, host) => Err(Refusal::foreign_host(origin)),
        _ => Ok(Client::default()),
    }
}

/// Whether a page is one of ours: same host, same port.
fn is_own(origin: &str, host: &str) -> bool {
    let place = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    place == Some(host)
}

fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || address
            .parse()
            .is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn without_a_token_only_names_of_this_machine_are_answered() {
        for (host, answered) in [
            ("127.0.0.1:8000", true),
            ("localhost", true),
            ("LOCALHOST:80", true),
            ("[::1]:8000", true),
            ("127.0.0.1.evil.example:8000", false),
            ("evil.example", false),
            ("192.168.0.7:8000", false),
        ] {
            assert_eq!(
                check(&ApiKeys::default(), &headers("host", host)).is_ok(),
                answered,
                "{host}"
            );
        }
    }

    #[test]
    fn pages_of_others_are_not_answered() {
        for (origin, answered) in [
            ("http://127.0.0.1:8000", true),
            ("http://localhost:8000", false),
            ("http://127.0.0.1:9000", false),
            ("https://evil.example", false),
            ("null", false),
        ] {
            let mut headers = headers("host", "127.0.0.1:8000");
            headers.insert("origin", origin.parse().unwrap());
            assert_eq!(
                check(&ApiKeys::default(), &headers).is_ok(),
                answered,
                "{origin}"
            );
        }
    }

    #[test]
    fn a_token_must_be_the_right_one() {
        let keys = ApiKeys::new(Some("secret"), Some("other grpo")).unwrap();
        let shown = |shown: &str| {
            let mut headers = headers("authorization", shown);
            headers.insert("host", "kernels.example".parse().unwrap());
            headers
        };
        assert_eq!(check(&keys, &shown("Bearer secret")), Ok(Client::default()));
        assert_eq!(
            check(&keys, &shown("bearer  secret")),
            Ok(Client::default())
        );
        assert_eq!(
            check(&keys, &shown("Bearer other")),
            Ok(Client::named("grpo"))
        );
        for wrong in [
            "Bearer",
            "Bearer ",
            "Bearer secre",
            "Basic secret",
            "secret",
        ] {
            let found = check(&keys, &shown(wrong));
            assert_eq!(found, Err(Refusal::wrong_token()), "{wrong}");
        }
        assert!(check(&keys, &headers("host", "localhost")).is_err());
    }

    #[test]
    fn who_does_not_say_which_host_it_wants_is_refused() {
        let mut two = headers("host", "localhost");
        two.append("host", "localhost".parse().unwrap());
        let mut unreadable = HeaderMap::new();
        let bytes = axum::http::HeaderValue::from_bytes(b"local\xffhost").unwrap();
        unreadable.insert("host", bytes);
        for headers in [HeaderMap::new(), two, unreadable] {
            assert_eq!(
                check(&ApiKeys::default(), &headers),
                Err(Refusal::no_host())
            );
        }
        let shown = headers("authorization", "Bearer secret");
        let keys = ApiKeys::new(Some("secret"), None).unwrap();
        let found = check(&keys, &shown);
        assert_eq!(found, Err(Refusal::no_host()));
    }
}
