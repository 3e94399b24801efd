//! `POST /v1/chat/completions`

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, unfold};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use warpsmith_model::{Completion, GenerationRequest, GenerationStream, GenerationUpdate};

use crate::completions::answer::{Ending, Head, call};
use crate::completions::request::{Asked, ChatRequest, Delivery};
use crate::completions::routes::Served;
use crate::refusal::Refusal;

pub(crate) async fn complete(
    State(served): State<Arc<Served>>,
    body: Result<Json<ChatRequest>, JsonRejection>,
) -> Result<Response, Refusal> {
    let Json(request) = body?;
    if request.model != served.name {
        return Err(Refusal::unknown_model(&request.model, &served.name));
    }
    let asked = request.read()?;
    let place = served.places.clone().try_acquire_owned();
    let place = place.map_err(|_| Refusal::busy())?;
    let exchange = Exchange::begin(served, asked, place).await?;
    Ok(match exchange.asked.delivery {
        Delivery::Whole => Json(exchange.whole().await?).into_response(),
        Delivery::Streamed { usage } => Sse::new(exchange.streamed(usage))
            // A long prompt is silent for long, and what lies between may take silence for death.
            .keep_alive(KeepAlive::default())
            .into_response(),
    })
}

/// A thread has died, and the server with it in a moment.
fn gone() -> Refusal {
    Refusal::broke_off("this server is at its end")
}

/// One request and the reply to it that is coming.
struct Exchange {
    served: Arc<Served>,
    asked: Asked,
    head: Head,
    prompt: Vec<u32>,
    listening: GenerationStream,
    /// Given back with the last word.
    _place: OwnedSemaphorePermit,
}

impl Exchange {
    async fn begin(
        served: Arc<Served>,
        asked: Asked,
        place: OwnedSemaphorePermit,
    ) -> Result<Self, Refusal> {
        let rendering = {
            let served = served.clone();
            // A long conversation takes its time, and others are being spoken to.
            tokio::task::spawn_blocking(move || {
                let prompt = served.dialogue.prompt(&asked.messages, &asked.tools);
                prompt.map(|prompt| (asked, prompt))
            })
        };
        let (asked, prompt) = rendering.await.map_err(|_| gone())??;
        let request = GenerationRequest {
            prompt: prompt.clone(),
            sampling: asked.sampling,
            max_tokens: asked.max_tokens,
            stop: asked.stop.clone(),
        };
        let ordered = served.generation.submit(vec![request]);
        let mut listening = ordered.map_err(|_| gone())?;
        // What cannot be met is refused before anything else is said.
        match listening.next().await {
            Some((_, GenerationUpdate::Refused(error))) => return Err(error.into()),
            Some(_) => {}
            None => return Err(gone()),
        }
        Ok(Self {
            head: Head::new(&served.name),
            served,
            asked,
            prompt,
            listening,
            _place: place,
        })
    }

    async fn whole(mut self) -> Result<Value, Refusal> {
        loop {
            match self.listening.next().await {
                Some((_, GenerationUpdate::Accepted | GenerationUpdate::Text(_))) => {}
                Some((_, GenerationUpdate::Done(reply))) => {
                    let mut whole = self.head.whole(&self.ending(&reply));
                    self.add_prompt(&mut whole);
                    return Ok(whole);
                }
                Some((_, GenerationUpdate::Refused(error))) => return Err(error.into()),
                Some((_, GenerationUpdate::Failed(why))) => {
                    return Err(Refusal::broke_off(&why.to_string()));
                }
                None => return Err(gone()),
            }
        }
    }

    fn streamed(self, usage: bool) -> impl Stream<Item = Result<Event, Infallible>> {
        unfold(self.streaming(usage), |mut streaming| async move {
            let data = streaming.next().await?;
            Some((Ok(Event::default().data(data)), streaming))
        })
    }

    fn streaming(self, usage: bool) -> Streaming {
        let mut first = self
            .head
            .chunk(&json!({ "role": "assistant", "content": "" }));
        self.add_prompt(&mut first);
        Streaming {
            exchange: self,
            usage,
            reply: String::new(),
            given: 0,
            waiting: VecDeque::from([first.to_string()]),
            over: false,
        }
    }

    fn ending(&self, reply: &Completion) -> Ending {
        Ending::of(
            reply,
            &self.asked.messages,
            &self.asked.tools,
            self.asked.extras,
            &self.served.dialogue,
        )
    }

    /// The tokens of the prompt, as vLLM gives them, and what they are tokens of.
    fn add_prompt(&self, answer: &mut Value) {
        if self.asked.extras.token_ids {
            answer["prompt_token_ids"] = json!(self.prompt);
            answer["token_origin"] = json!(self.served.dialogue.origin());
        }
    }
}

/// A reply that is given piece by piece.
struct Streaming {
    exchange: Exchange,
    /// Whether a chunk with the usage is wanted.
    usage: bool,
    /// What has come.
    reply: String,
    /// How much of it was given out: what may be part of a call is kept until that is known.
    given: usize,
    /// Data of events that are ready.
    waiting: VecDeque<String>,
    over: bool,
}

impl Streaming {
    async fn next(&mut self) -> Option<String> {
        while self.waiting.is_empty() && !self.over {
            match self.exchange.listening.next().await {
                Some((_, GenerationUpdate::Accepted)) => {}
                Some((_, GenerationUpdate::Text(text))) => {
                    self.reply.push_str(&text);
                    let Exchange { served, asked, .. } = &self.exchange;
                    let certain = served.dialogue.settled_text(&self.reply, &asked.tools);
                    let more = certain[self.given..].to_owned();
                    self.give(&more);
                }
                Some((_, GenerationUpdate::Done(reply))) => self.end(&reply),
                Some((_, GenerationUpdate::Refused(error))) => self.break_off(&error.into()),
                Some((_, GenerationUpdate::Failed(why))) => {
                    self.break_off(&Refusal::broke_off(&why.to_string()));
                }
                None => self.break_off(&gone()),
            }
        }
        self.waiting.pop_front()
    }

    fn give(&mut self, text: &str) {
        if !text.is_empty() {
            self.given += text.len();
            let chunk = self.exchange.head.chunk(&json!({ "content": text }));
            self.waiting.push_back(chunk.to_string());
        }
    }

    /// The status has been sent; an error can only be told where the next chunk would be.
    fn break_off(&mut self, refusal: &Refusal) {
        self.waiting.push_back(refusal.body().to_string());
        self.over = true;
    }

    fn end(&mut self, reply: &Completion) {
        let ending = self.exchange.ending(reply);
        self.give(&ending.text[self.given..]);
        let head = &self.exchange.head;
        if !ending.calls.is_empty() {
            let calls = ending.calls.iter().enumerate().map(|(index, one)| {
                let mut part = call(one);
                part["index"] = json!(index);
                part
            });
            let delta = json!({ "tool_calls": calls.collect::<Vec<_>>() });
            self.waiting.push_back(head.chunk(&delta).to_string());
        }
        self.waiting.push_back(head.last_chunk(&ending).to_string());
        if self.usage {
            self.waiting
                .push_back(head.usage_chunk(&ending).to_string());
        }
        self.waiting.push_back("[DONE]".to_owned());
        self.over = true;
    }
}
