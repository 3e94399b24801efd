//! Who asks, and the keys by which that is known.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

/// Whose request it is: the name of a key of the key file, or nobody in particular: this machine, or who holds the one token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Client(Option<Arc<str>>);

impl Client {
    pub(crate) fn named(name: &str) -> Self {
        Self(Some(name.into()))
    }

    /// What metrics call it.
    pub(crate) fn name(&self) -> &str {
        self.0.as_deref().unwrap_or("")
    }

    /// Clients with a name of their own see what is theirs, the others everything.
    pub(crate) fn may_see(&self, other: &Self) -> bool {
        self.0.is_none() || self == other
    }
}

impl<S: Sync> FromRequestParts<S> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// What clients must show to be answered. Without any, only those on this machine are.
///
/// Kept as hashes, whose comparison takes as long whatever was shown.
#[derive(Debug, Clone, Default)]
pub struct ApiKeys(Arc<[(blake3::Hash, Client)]>);

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ApiKeyError {
    #[error("line {line} has more than a key and its name")]
    Words { line: usize },
    #[error("the key in line {line} stands in an earlier line too")]
    Twice { line: usize },
    #[error("it has no key")]
    Empty,
}

impl ApiKeys {
    /// `token`, if any, is nobody's in particular; in `file` each line has a key and, if it is to be known by one, a name.
    pub fn new(token: Option<&str>, file: Option<&str>) -> Result<Self, ApiKeyError> {
        let mut keys = Vec::new();
        let mut seen = HashSet::new();
        keys.extend(token.map(|token| (blake3::hash(token.as_bytes()), Client::default())));
        for (number, text) in file.unwrap_or_default().lines().enumerate() {
            let line = number + 1;
            let mut words = text.split_whitespace();
            let Some(key) = words.next().filter(|word| !word.starts_with('#')) else {
                continue;
            };
            let name = words.next().filter(|word| !word.starts_with('#'));
            if name.is_some() && words.next().is_some_and(|word| !word.starts_with('#')) {
                return Err(ApiKeyError::Words { line });
            }
            if !seen.insert(key) || token == Some(key) {
                return Err(ApiKeyError::Twice { line });
            }
            let name = name.map_or_else(|| format!("line-{line}"), str::to_owned);
            keys.push((blake3::hash(key.as_bytes()), Client::named(&name)));
        }
        if file.is_some() && seen.is_empty() {
            return Err(ApiKeyError::Empty);
        }
        Ok(Self(keys.into()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose key that is. All are looked at, whichever it is.
    pub(crate) fn owner(&self, shown: &str) -> Option<Client> {
        let shown = blake3::hash(shown.as_bytes());
        let mut found = None;
        for (key, client) in self.0.iter() {
            if *key == shown {
                found = Some(client.clone());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_has_a_key_and_a_name_a_line() {
        let file = "# trainers\nalpha-key  grpo\n\nbeta-key # no name\n gamma-key grpo # the same client\n";
        let keys = ApiKeys::new(Some("one"), Some(file)).unwrap();
        assert_eq!(keys.owner("one"), Some(Client::default()));
        assert_eq!(keys.owner("alpha-key"), Some(Client::named("grpo")));
        assert_eq!(keys.owner("beta-key"), Some(Client::named("line-4")));
        assert_eq!(keys.owner("gamma-key"), keys.owner("alpha-key"));
        for wrong in ["", "alpha", "alpha-key ", "grpo", "#", "# trainers"] {
            assert_eq!(keys.owner(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_key_file_that_may_not_mean_what_it_says_is_refused() {
        let refused =
            |token: Option<&str>, file: &str| ApiKeys::new(token, Some(file)).unwrap_err();
        assert_eq!(refused(None, "# nothing\n"), ApiKeyError::Empty);
        assert_eq!(refused(None, "a b c"), ApiKeyError::Words { line: 1 });
        assert_eq!(refused(None, "a x\na y"), ApiKeyError::Twice { line: 2 });
        assert_eq!(refused(Some("a"), "a x"), ApiKeyError::Twice { line: 1 });
        assert!(ApiKeys::new(None, None).unwrap().is_empty());
    }

    #[test]
    fn who_has_a_name_sees_what_is_his() {
        let (one, other, nobody) = (Client::named("a"), Client::named("b"), Client::default());
        assert!(one.may_see(&one) && !one.may_see(&other) && !one.may_see(&nobody));
        assert!(nobody.may_see(&one) && nobody.may_see(&nobody));
    }
}
