//! A language model of this process for everything that speaks OpenAI's chat completions.
//!
//! Two kinds of thread. One owns the [`Engine`](warpsmith_model::Engine) and generates the replies of all clients together
//! ([`generation`]); the caller's speaks HTTP. A client that goes away drops its end of a channel, and that is what cancels
//! its request.

mod answer;
mod chat;
mod generation;
mod guard;
mod refusal;
mod request;
mod routes;

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use axum::serve::ListenerExt;
use warpsmith_model::policy::ChatModel;

pub use guard::Token;

use generation::Generation;

/// What is served, and to whom.
pub struct Offer {
    pub model: ChatModel,
    /// As clients name it.
    pub name: String,
    /// What clients must show; without one, only those on this machine are answered.
    pub token: Option<Token>,
    /// Whether somebody wants the whole process to end.
    pub interrupted: fn() -> bool,
}

const LOOK: Duration = Duration::from_millis(100);

/// Answers until it is interrupted. Replies under way then break off.
pub fn serve(listener: TcpListener, offer: Offer) -> io::Result<()> {
    let ChatModel {
        engine, dialogue, ..
    } = offer.model;
    let context = engine.context();
    let generation = Generation::start(engine)?;
    let app = routes::app(
        routes::Served {
            name: offer.name,
            context,
            dialogue,
            generation: generation.clone(),
        },
        offer.token,
    );
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        // A piece of a reply is small and must not wait for the next.
        let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
        tokio::select! {
            ended = axum::serve(listener, app) => ended,
            () = until(offer.interrupted) => Ok(()),
            () = generation.ended() => Err(io::Error::other("the thread that generates has died")),
        }
    })
}

async fn until(interrupted: fn() -> bool) {
    while !interrupted() {
        tokio::time::sleep(LOOK).await;
    }
}
