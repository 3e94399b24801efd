//! The thread that generates: everybody's replies, one step of all at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, thread};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use warpsmith_model::{Engine, Event, ModelError, Reply, Request, RequestId};

/// What a listener is told of its reply. `Text` comes any number of times, then one of the others and no more.
#[derive(Debug)]
pub(crate) enum Told {
    Text(String),
    Done(Reply),
    /// It will not come.
    Failed(String),
}

/// A reply on its way. Dropping it cancels the request.
pub(crate) type Listening = UnboundedReceiver<Told>;

struct Order {
    request: Request,
    answer: oneshot::Sender<Result<Listening, ModelError>>,
}

/// Where orders are taken.
#[derive(Debug, Clone)]
pub(crate) struct Generation {
    orders: UnboundedSender<Order>,
    under_way: Arc<AtomicUsize>,
}

/// The thread that generates is gone.
#[derive(Debug)]
pub(crate) struct Gone;

impl Generation {
    pub(crate) fn start(engine: Engine) -> io::Result<Self> {
        let (orders, received) = unbounded_channel();
        let under_way = Arc::new(AtomicUsize::new(0));
        let worker = Worker {
            engine,
            listeners: HashMap::new(),
            under_way: under_way.clone(),
        };
        thread::Builder::new()
            .name("generation".to_owned())
            .spawn(move || worker.work(received))?;
        Ok(Self { orders, under_way })
    }

    pub(crate) async fn order(
        &self,
        request: Request,
    ) -> Result<Result<Listening, ModelError>, Gone> {
        let (answer, answered) = oneshot::channel();
        let order = Order { request, answer };
        self.orders.send(order).map_err(|_| Gone)?;
        answered.await.map_err(|_| Gone)
    }

    /// Requests that wait or are being answered.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Waits for the thread's end, which never comes while all is well.
    pub(crate) async fn ended(&self) {
        self.orders.closed().await;
    }
}

struct Worker {
    engine: Engine,
    listeners: HashMap<RequestId, UnboundedSender<Told>>,
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
        let (tell, listening) = unbounded_channel();
        let accepted = self.engine.submit(order.request).map(|id| {
            self.listeners.insert(id, tell);
            listening
        });
        // Who does not wait for the answer has dropped the listening end, and is forgotten with it.
        let _ = order.answer.send(accepted);
    }

    fn forget_who_left(&mut self) {
        let engine = &mut self.engine;
        self.listeners.retain(|id, tell| {
            let left = tell.is_closed();
            if left {
                engine.cancel(*id);
            }
            !left
        });
    }

    fn step(&mut self) {
        let events = match self.engine.step() {
            Ok(events) => events,
            // Whose fault it was cannot be told, so all replies under way end.
            Err(error) => {
                for (id, tell) in self.listeners.drain() {
                    self.engine.cancel(id);
                    let _ = tell.send(Told::Failed(error.to_string()));
                }
                return self.count();
            }
        };
        for event in events {
            // Who is not listening any more is noticed before the next step.
            match event {
                Event::Text { request, text } => {
                    if let Some(tell) = self.listeners.get(&request) {
                        let _ = tell.send(Told::Text(text));
                    }
                }
                Event::Done { request, reply } => {
                    if let Some(tell) = self.listeners.remove(&request) {
                        self.count();
                        let _ = tell.send(Told::Done(reply));
                    }
                }
            }
        }
    }
}
