//! The thread that generates: everybody's replies, one step of all at a time. Whoever comes is admitted at the next step.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::{io, thread};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use warpsmith_machine::SharedDevice;

use crate::{Completion, Engine, EngineEvent, GenerationRequest, ModelError, RequestId};

/// What a listener is told of a reply: that it was accepted, then text any number of times, then how it ended and no more.
#[derive(Debug)]
pub enum GenerationUpdate {
    Accepted,
    Text(String),
    Done(Completion),
    /// The request cannot be met.
    Refused(ModelError),
    /// The reply will not come: the model failed, and everybody's replies with it.
    Failed(Arc<ModelError>),
}

/// Replies on their way, each by the place that its request had in the order. Dropping it cancels those not done.
#[derive(Debug)]
pub struct GenerationStream(UnboundedReceiver<(usize, GenerationUpdate)>);

impl GenerationStream {
    /// `None` once all were told to their end, or the thread died.
    pub async fn next(&mut self) -> Option<(usize, GenerationUpdate)> {
        self.0.recv().await
    }

    /// The same for a thread that has nothing else to do.
    pub fn wait(&mut self) -> Option<(usize, GenerationUpdate)> {
        self.0.blocking_recv()
    }
}

/// What somebody else tells: words put into a model's mouth.
impl From<UnboundedReceiver<(usize, GenerationUpdate)>> for GenerationStream {
    fn from(told: UnboundedReceiver<(usize, GenerationUpdate)>) -> Self {
        Self(told)
    }
}

struct RequestBatch {
    requests: Vec<GenerationRequest>,
    updates: UnboundedSender<(usize, GenerationUpdate)>,
}

/// Where orders are taken.
#[derive(Debug, Clone)]
pub struct GenerationThread {
    batches: UnboundedSender<RequestBatch>,
    under_way: Arc<AtomicUsize>,
    thread: Arc<JoinHandle<()>>,
}

/// The thread that generates is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the thread that generates has died")]
pub struct GenerationStopped;

impl GenerationThread {
    /// As a guest it rests while somebody has the device for himself.
    pub fn start(engine: Engine, guest: Option<SharedDevice>) -> io::Result<Self> {
        let (orders, received) = unbounded_channel();
        let under_way = Arc::new(AtomicUsize::new(0));
        let worker = Worker {
            engine,
            guest,
            subscribers: HashMap::new(),
            in_flight: under_way.clone(),
        };
        let thread = thread::Builder::new()
            .name("generation".to_owned())
            .spawn(move || worker.work(received))?;
        Ok(Self {
            batches: orders,
            under_way,
            thread: Arc::new(thread),
        })
    }

    /// Returns once the model is gone and its memory free, unless somebody else still orders there.
    pub fn end(self) {
        let Self {
            batches: orders,
            thread,
            ..
        } = self;
        drop(orders);
        if let Some(thread) = Arc::into_inner(thread) {
            // A thread that panicked is gone too.
            let _ = thread.join();
        }
    }

    pub fn submit(
        &self,
        requests: Vec<GenerationRequest>,
    ) -> Result<GenerationStream, GenerationStopped> {
        let (tell, listening) = unbounded_channel();
        let order = RequestBatch {
            requests,
            updates: tell,
        };
        self.batches.send(order).map_err(|_| GenerationStopped)?;
        Ok(GenerationStream(listening))
    }

    /// Requests that wait or are being answered.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Waits for the thread's end, which never comes while all is well.
    pub async fn ended(&self) {
        self.batches.closed().await;
    }
}

/// Who waits for one reply.
struct Subscriber {
    number: usize,
    tell: UnboundedSender<(usize, GenerationUpdate)>,
}

impl Subscriber {
    /// Who is not listening any more is noticed before the next step.
    fn tell(&self, told: GenerationUpdate) {
        let _ = self.tell.send((self.number, told));
    }
}

struct Worker {
    engine: Engine,
    guest: Option<SharedDevice>,
    subscribers: HashMap<RequestId, Subscriber>,
    /// As many as there are listeners, for others to see.
    in_flight: Arc<AtomicUsize>,
}

impl Worker {
    fn work(mut self, mut orders: UnboundedReceiver<RequestBatch>) {
        loop {
            if self.engine.is_idle() {
                match orders.blocking_recv() {
                    Some(order) => self.take(order),
                    // Nobody can order any more.
                    None => return,
                }
            }
            while let Ok(order) = orders.try_recv() {
                self.take(order);
            }
            self.cancel_dropped();
            self.publish_in_flight();
            self.step();
        }
    }

    fn publish_in_flight(&self) {
        let count = self.subscribers.len();
        self.in_flight.store(count, Ordering::Relaxed);
    }

    fn take(&mut self, order: RequestBatch) {
        for (number, request) in order.requests.into_iter().enumerate() {
            let listener = Subscriber {
                number,
                tell: order.updates.clone(),
            };
            match self.engine.submit(request) {
                Ok(id) => {
                    listener.tell(GenerationUpdate::Accepted);
                    self.subscribers.insert(id, listener);
                }
                Err(error) => listener.tell(GenerationUpdate::Refused(error)),
            }
        }
    }

    fn cancel_dropped(&mut self) {
        let engine = &mut self.engine;
        self.subscribers.retain(|id, listener| {
            let left = listener.tell.is_closed();
            if left {
                engine.cancel(*id);
            }
            !left
        });
    }

    fn step(&mut self) {
        // A lease that cannot be had is no reason to be silent.
        let visit = self.guest.as_ref().and_then(|guest| guest.acquire().ok());
        let stepped = self.engine.step();
        drop(visit);
        let events = match stepped {
            Ok(events) => events,
            // Whose fault it was cannot be told, so all replies under way end.
            Err(error) => {
                let error = Arc::new(error);
                for (id, listener) in self.subscribers.drain() {
                    self.engine.cancel(id);
                    listener.tell(GenerationUpdate::Failed(error.clone()));
                }
                return self.publish_in_flight();
            }
        };
        for event in events {
            match event {
                EngineEvent::Text { request, text } => {
                    if let Some(listener) = self.subscribers.get(&request) {
                        listener.tell(GenerationUpdate::Text(text));
                    }
                }
                EngineEvent::Done { request, reply } => {
                    if let Some(listener) = self.subscribers.remove(&request) {
                        self.publish_in_flight();
                        listener.tell(GenerationUpdate::Done(reply));
                    }
                }
            }
        }
    }
}
