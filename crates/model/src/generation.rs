//! The thread that generates: everybody's replies, one step of all at a time. Whoever comes is admitted at the next step.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::{io, thread};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use warpsmith_machine::SharedDevice;

use crate::{Engine, Event, ModelError, Reply, Request, RequestId};

/// What a listener is told of a reply: that it was accepted, then text any number of times, then how it ended and no more.
#[derive(Debug)]
pub enum Told {
    Accepted,
    Text(String),
    Done(Reply),
    /// The request cannot be met.
    Refused(ModelError),
    /// The reply will not come: the model failed, and everybody's replies with it.
    Failed(Arc<ModelError>),
}

/// Replies on their way, each by the place that its request had in the order. Dropping it cancels those not done.
#[derive(Debug)]
pub struct Listening(UnboundedReceiver<(usize, Told)>);

impl Listening {
    /// `None` once all were told to their end, or the thread died.
    pub async fn next(&mut self) -> Option<(usize, Told)> {
        self.0.recv().await
    }

    /// The same for a thread that has nothing else to do.
    pub fn wait(&mut self) -> Option<(usize, Told)> {
        self.0.blocking_recv()
    }
}

/// What somebody else tells: words put into a model's mouth.
impl From<UnboundedReceiver<(usize, Told)>> for Listening {
    fn from(told: UnboundedReceiver<(usize, Told)>) -> Self {
        Self(told)
    }
}

struct Order {
    requests: Vec<Request>,
    tell: UnboundedSender<(usize, Told)>,
}

/// Where orders are taken.
#[derive(Debug, Clone)]
pub struct Generation {
    orders: UnboundedSender<Order>,
    under_way: Arc<AtomicUsize>,
    thread: Arc<JoinHandle<()>>,
}

/// The thread that generates is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the thread that generates has died")]
pub struct Gone;

impl Generation {
    /// As a guest it rests while somebody has the device for himself.
    pub fn start(engine: Engine, guest: Option<SharedDevice>) -> io::Result<Self> {
        let (orders, received) = unbounded_channel();
        let under_way = Arc::new(AtomicUsize::new(0));
        let worker = Worker {
            engine,
            guest,
            listeners: HashMap::new(),
            under_way: under_way.clone(),
        };
        let thread = thread::Builder::new()
            .name("generation".to_owned())
            .spawn(move || worker.work(received))?;
        Ok(Self {
            orders,
            under_way,
            thread: Arc::new(thread),
        })
    }

    /// Returns once the model is gone and its memory free, unless somebody else still orders there.
    pub fn end(self) {
        let Self { orders, thread, .. } = self;
        drop(orders);
        if let Some(thread) = Arc::into_inner(thread) {
            // A thread that panicked is gone too.
            let _ = thread.join();
        }
    }

    pub fn order(&self, requests: Vec<Request>) -> Result<Listening, Gone> {
        let (tell, listening) = unbounded_channel();
        let order = Order { requests, tell };
        self.orders.send(order).map_err(|_| Gone)?;
        Ok(Listening(listening))
    }

    /// Requests that wait or are being answered.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Waits for the thread's end, which never comes while all is well.
    pub async fn ended(&self) {
        self.orders.closed().await;
    }
}

/// Who waits for one reply.
struct Listener {
    number: usize,
    tell: UnboundedSender<(usize, Told)>,
}

impl Listener {
    /// Who is not listening any more is noticed before the next step.
    fn tell(&self, told: Told) {
        let _ = self.tell.send((self.number, told));
    }
}

struct Worker {
    engine: Engine,
    guest: Option<SharedDevice>,
    listeners: HashMap<RequestId, Listener>,
    /// As many as there are listeners, for others to see.
    under_way: Arc<AtomicUsize>,
}

impl Worker {
    fn work(mut self, mut orders: UnboundedReceiver<Order>) {
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
            self.forget_who_left();
            self.count();
            self.step();
        }
    }

    fn count(&self) {
        let count = self.listeners.len();
        self.under_way.store(count, Ordering::Relaxed);
    }

    fn take(&mut self, order: Order) {
        for (number, request) in order.requests.into_iter().enumerate() {
            let listener = Listener {
                number,
                tell: order.tell.clone(),
            };
            match self.engine.submit(request) {
                Ok(id) => {
                    listener.tell(Told::Accepted);
                    self.listeners.insert(id, listener);
                }
                Err(error) => listener.tell(Told::Refused(error)),
            }
        }
    }

    fn forget_who_left(&mut self) {
        let engine = &mut self.engine;
        self.listeners.retain(|id, listener| {
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
                for (id, listener) in self.listeners.drain() {
                    self.engine.cancel(id);
                    listener.tell(Told::Failed(error.clone()));
                }
                return self.count();
            }
        };
        for event in events {
            match event {
                Event::Text { request, text } => {
                    if let Some(listener) = self.listeners.get(&request) {
                        listener.tell(Told::Text(text));
                    }
                }
                Event::Done { request, reply } => {
                    if let Some(listener) = self.listeners.remove(&request) {
                        self.count();
                        listener.tell(Told::Done(reply));
                    }
                }
            }
        }
    }
}
