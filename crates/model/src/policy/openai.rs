//! Endpoints that speak OpenAI's chat completions: OpenAI, vLLM, SGLang, Ollama, LiteLLM, llama.cpp.

mod stream;
mod tokens;
mod wire;

use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use warpsmith_machine::{MachineError, http_agent};
use warpsmith_schema::PolicyVersion;

use crate::policy::{Policy, PolicyError, PolicyReply, PolicyRequest};
use stream::{Assembly, NoReply};
use wire::Tokens;

/// A large model may think for minutes before its first word.
const SILENCE: Duration = Duration::from_mins(10);
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// An error page longer than this says nothing more.
const ERROR_BYTES: u64 = 64 << 10;

/// One model behind one endpoint.
#[derive(Clone)]
pub struct OpenAiPolicy {
    agent: ureq::Agent,
    url: String,
    model: String,
    key: Option<String>,
    version: PolicyVersion,
    first_pause: Duration,
    /// Whether the server refused to be asked for its tokens; one that did is not asked again by anybody.
    tells_no_tokens: Arc<AtomicBool>,
}

impl OpenAiPolicy {
    /// `base_url` ends before `/chat/completions`. Nothing is sent yet.
    pub fn new(model: &str, base_url: &str, key: Option<String>) -> Result<Self, MachineError> {
        Ok(Self {
            agent: http_agent(SILENCE)?,
            url: format!("{}/chat/completions", base_url.trim_end_matches('/')),
            model: model.to_owned(),
            key,
            version: PolicyVersion {
                name: format!("openai:{model}"),
                hash: None,
                step: None,
            },
            first_pause: FIRST_PAUSE,
            tells_no_tokens: Arc::default(),
        })
    }

    /// How long to wait before asking a second time; the pause doubles after that.
    #[must_use]
    pub fn with_first_pause(mut self, pause: Duration) -> Self {
        self.first_pause = pause;
        self
    }

    fn ask(&self, body: &str, on_text: &mut dyn FnMut(&str)) -> Result<PolicyReply, PolicyError> {
        let call = self.agent.post(&self.url);
        let mut call = call.header("Content-Type", "application/json");
        if let Some(key) = &self.key {
            call = call.header("Authorization", &format!("Bearer {key}"));
        }
        let mut response = call.send(body).map_err(|source| self.unreachable(source))?;
        let status = response.status().as_u16();
        if status != 200 {
            let retry_after = response
                .headers()
                .get("retry-after")
                .and_then(|value| value.to_str().ok()?.parse().ok())
                .map(Duration::from_secs);
            let text = response
                .body_mut()
                .with_config()
                .limit(ERROR_BYTES)
                .read_to_string()
                .unwrap_or_default();
            return Err(self.refused(status, &text, retry_after));
        }
        let mut assembly = Assembly::default();
        for line in BufReader::new(response.body_mut().as_reader()).lines() {
            // A stream that ends in an error broke off just as one that ends too soon.
            let Ok(line) = line else { break };
            let more =
                assembly
                    .take(&line, on_text)
                    .map_err(|message| PolicyError::NotACompletion {
                        url: self.url.clone(),
                        message,
                    })?;
            if !more {
                break;
            }
        }
        let received = assembly.characters();
        // A server that does not say what its tokens are tokens of is told from others by its name.
        let url = self.url.clone();
        assembly.finish(on_text).map_err(|why| match why {
            NoReply::BrokeOff => PolicyError::BrokeOff { url, received },
            NoReply::NotACompletion(message) => PolicyError::NotACompletion { url, message },
        })
    }

    fn unreachable(&self, source: ureq::Error) -> PolicyError {
        // An address that is none does not become one by asking again.
        if matches!(source, ureq::Error::BadUri(_) | ureq::Error::Http(_)) {
            return PolicyError::NotAnAddress {
                url: self.url.clone(),
            };
        }
        PolicyError::Unreachable {
            url: self.url.clone(),
            source: Box::new(source),
        }
    }

    fn refused(&self, status: u16, body: &str, retry_after: Option<Duration>) -> PolicyError {
        let message = wire::error_message(body);
        if status == 400 && wire::speaks_of_context(&message) {
            return PolicyError::ContextFull {
                policy: self.version.name.clone(),
                message,
            };
        }
        if matches!(status, 401 | 403) && self.key.is_none() {
            return PolicyError::NoKey {
                url: self.url.clone(),
                status,
                message,
            };
        }
        PolicyError::Refused {
            url: self.url.clone(),
            status,
            message,
            retry_after,
        }
    }
}

impl Policy for OpenAiPolicy {
    fn version(&self) -> &PolicyVersion {
        &self.version
    }

    fn reply(
        &mut self,
        request: &PolicyRequest<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<PolicyReply, PolicyError> {
        let (mut pause, mut tried) = (self.first_pause, 1);
        loop {
            let tokens = if self.tells_no_tokens.load(Ordering::Relaxed) {
                Tokens::NotAsked
            } else {
                Tokens::Asked
            };
            let body = wire::request(&self.model, request, tokens).to_string();
            match self.ask(&body, on_text) {
                // It may be that, and it is said by every server in other words.
                Err(PolicyError::Refused {
                    status: 400 | 422, ..
                }) if tokens == Tokens::Asked => {
                    self.tells_no_tokens.store(true, Ordering::Relaxed);
                }
                Err(error) if error.retryable() && tried < TRIES => {
                    let asked = match &error {
                        PolicyError::Refused { retry_after, .. } => *retry_after,
                        _ => None,
                    };
                    thread::sleep(asked.unwrap_or(pause).min(LONGEST_PAUSE));
                    pause = (2 * pause).min(LONGEST_PAUSE);
                    tried += 1;
                }
                other => return other,
            }
        }
    }
}
