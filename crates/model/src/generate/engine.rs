//! Generation as others see it, wherever the model runs.

use std::fmt::Debug;
use std::sync::Arc;

use super::runner::Runner;
use super::scheduler::{BatchLimits, EngineEvent, RequestId, Scheduler};
use super::sequence::{Completion, GenerationRequest};
use crate::{ModelError, Tokenizer};

#[derive(Debug)]
pub struct Engine {
    schedule: Box<dyn Schedule>,
    tokenizer: Arc<Tokenizer>,
    /// What nobody has been told yet.
    undelivered: Vec<EngineEvent>,
}

/// A scheduler, whatever runs its model.
trait Schedule: Send + Debug {
    fn context(&self) -> usize;
    fn submit(&mut self, request: GenerationRequest) -> Result<RequestId, ModelError>;
    fn cancel(&mut self, request: RequestId);
    fn is_idle(&self) -> bool;
    fn advance(&mut self) -> Result<Vec<EngineEvent>, ModelError>;
}

impl<R: Runner> Schedule for Scheduler<R> {
    fn context(&self) -> usize {
        Self::context(self)
    }

    fn submit(&mut self, request: GenerationRequest) -> Result<RequestId, ModelError> {
        Self::submit(self, request)
    }

    fn cancel(&mut self, request: RequestId) {
        Self::cancel(self, request);
    }

    fn is_idle(&self) -> bool {
        Self::is_idle(self)
    }

    fn advance(&mut self) -> Result<Vec<EngineEvent>, ModelError> {
        Self::advance(self)
    }
}

impl Engine {
    pub fn new(
        model: impl Runner + 'static,
        tokenizer: Arc<Tokenizer>,
        limits: BatchLimits,
    ) -> Self {
        Self {
            schedule: Box::new(Scheduler::new(model, tokenizer.clone(), limits)),
            tokenizer,
            undelivered: Vec::new(),
        }
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens that a prompt and its reply can have together.
    pub fn context(&self) -> usize {
        self.schedule.context()
    }

    /// Takes a request in; what cannot work is said here and not in the middle of others' steps.
    pub fn submit(&mut self, request: GenerationRequest) -> Result<RequestId, ModelError> {
        self.schedule.submit(request)
    }

    /// Forgets a request, waiting or under way. What it has read stays useful to others.
    pub fn cancel(&mut self, request: RequestId) {
        self.schedule.cancel(request);
    }

    pub fn is_idle(&self) -> bool {
        self.schedule.is_idle() && self.undelivered.is_empty()
    }

    /// One pass of the model over everything under way.
    pub fn step(&mut self) -> Result<Vec<EngineEvent>, ModelError> {
        let mut events = std::mem::take(&mut self.undelivered);
        events.extend(self.schedule.advance()?);
        Ok(events)
    }

    /// Runs one request to its end. What happens to others meanwhile, the next [`Engine::step`] tells.
    pub fn generate(
        &mut self,
        request: GenerationRequest,
        mut on_text: impl FnMut(&str),
    ) -> Result<Completion, ModelError> {
        let id = self.submit(request)?;
        loop {
            let mut done = None;
            for event in self.schedule.advance()? {
                match event {
                    EngineEvent::Text { request, text } if request == id => on_text(&text),
                    EngineEvent::Done { request, reply } if request == id => done = Some(reply),
                    other => self.undelivered.push(other),
                }
            }
            if let Some(reply) = done {
                return Ok(reply);
            }
        }
    }
}
