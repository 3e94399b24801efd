//! The judge's tools for agents of others, over the Model Context Protocol on stdin and stdout.
//!
//! The client edits the workspace with tools of its own; these say how good what lies there is. Two threads: the caller's
//! speaks the protocol and never waits for the judge, the [`clerk`] owns the judge and does one thing at a time.

mod clerk;
mod input;
mod server;

use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use rmcp::transport::stdio_pipes;
use tokio::sync::Notify;

use crate::{Court, Workspace};
use input::Input;
use server::Server;

/// What is served, and what this process has to do with it.
pub struct Offer {
    pub workspace: Workspace,
    pub court: Box<dyn Court + Send>,
    /// How a faster module is written here. It depends on the machine, which is looked at when somebody asks.
    pub skill: Arc<dyn Fn() -> String + Send + Sync>,
    /// Ends what the court is doing, whose call then fails. Called again and again until it does.
    pub abandon: Arc<dyn Fn() + Send + Sync>,
    /// Whether somebody wants the whole process to end.
    pub interrupted: fn() -> bool,
}

const ROUND: Duration = Duration::from_millis(20);
/// How long the court may take to leave.
const PATIENCE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(100);

/// Serves one client, until it closes stdin or the process is interrupted.
pub fn serve(offer: Offer) -> io::Result<()> {
    let (orders, received) = mpsc::channel();
    let abandon = offer.abandon.clone();
    let root = offer.workspace.root().to_owned();
    let clerk = thread::Builder::new()
        .name("judge".to_owned())
        .spawn(move || clerk::work(&received, &offer.workspace, offer.court))?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let server = Server::new(root, orders, offer.skill, abandon.clone());
    let spoken = runtime.block_on(speak(server, offer.interrupted));
    // A thread that reads a terminal cannot be told to stop.
    runtime.shutdown_background();

    // The server is gone and the clerk with its last order, unless the judge is in the middle of one.
    let rounds = PATIENCE.as_millis() / ROUND.as_millis();
    for _ in 0..rounds {
        if clerk.is_finished() {
            break;
        }
        abandon();
        thread::sleep(ROUND);
    }
    spoken
}

async fn speak(server: Server, interrupted: fn() -> bool) -> io::Result<()> {
    let closed = Arc::new(Notify::new());
    let (stdin, stdout) = stdio_pipes();
    let stdin = Input::new(stdin, closed.clone());
    let begun = tokio::select! {
        begun = server.serve((stdin, stdout)) => begun,
        () = until(interrupted) => return Ok(()),
    };
    let service = match begun {
        Ok(service) => service,
        // Whoever looks whether the program starts may leave without a word.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(io::Error::other(error)),
    };
    let end = service.cancellation_token();
    let mut over = std::pin::pin!(service.waiting());
    tokio::select! {
        _ = &mut over => return Ok(()),
        // What is still being judged is not wanted any more.
        () = closed.notified() => {}
        () = until(interrupted) => {}
    }
    end.cancel();
    let _ = over.await;
    Ok(())
}

async fn until(interrupted: fn() -> bool) {
    while !interrupted() {
        tokio::time::sleep(LOOK).await;
    }
}
