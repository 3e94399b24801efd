//! The judge's tools for agents of others, over the Model Context Protocol on stdin and stdout.
//!
//! The client edits the workspace with tools of its own; these say how good what lies there is. The caller's thread speaks the
//! protocol and never waits for the judge, which has a thread of its own and does one thing at a time.
//!
//! The protocol is written out here: a server on stdin and stdout needs little of it, and the crates that have all of it take
//! longer to compile than the rest of this crate.

mod event;
mod judge_thread;
mod protocol;
mod session;

use std::io::{self, BufRead};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use warpsmith_judge::{Cancellation, Judge};
use warpsmith_schema::Task;

use crate::Workspace;
use event::SessionEvent;
use judge_thread::JudgeThread;
use session::Session;

/// What is served, and what this process has to do with it.
pub struct McpServer {
    pub workspace: Workspace,
    pub judge: Box<dyn Judge>,
    pub task: Task,
    /// Of the judge's calls.
    pub cancellation: Cancellation,
    /// How a faster module is written here. It depends on the machine, which is looked at when somebody asks.
    pub skill: Arc<dyn Fn() -> String + Send + Sync>,
    /// Kills the judge's processes, so that a cancelled call ends. Called again and again until it does.
    pub kill: fn(),
    /// Whether the whole process is to end.
    pub interrupted: fn() -> bool,
}

/// Between two kills: a judge whose processes died starts others, once.
const KILL_EVERY: Duration = Duration::from_millis(20);
/// How long the judge may take to leave.
const MAX_LEAVE: Duration = Duration::from_secs(3);

/// Serves one client, until it closes stdin or the process is interrupted.
pub fn serve(server: McpServer) -> io::Result<()> {
    let (events, inbox) = mpsc::channel();
    let (calls, received) = mpsc::channel();
    let root = server.workspace.root().to_owned();
    let judge_thread = JudgeThread {
        workspace: server.workspace,
        judge: server.judge,
        task: server.task,
        cancellation: server.cancellation.clone(),
    };
    let answers = events.clone();
    let judging = thread::Builder::new()
        .name("judge".to_owned())
        .spawn(move || judge_thread.work(&received, &answers))?;
    // A thread that reads a terminal cannot be told to stop: it ends with the process.
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || read_lines(&events))?;

    let mut session = Session {
        root,
        calls,
        skill: server.skill,
        cancellation: server.cancellation,
        kill: server.kill,
        interrupted: server.interrupted,
        out: Box::new(io::stdout()),
        state: session::State::default(),
    };
    session.run(&inbox);
    // The judge's thread ends with the last sender of calls, unless it is in the middle of one, which nobody waits for now.
    let (cancellation, kill) = (session.cancellation.clone(), session.kill);
    drop(session);
    let rounds = MAX_LEAVE.as_millis() / KILL_EVERY.as_millis();
    for _ in 0..rounds {
        if judging.is_finished() {
            break;
        }
        cancellation.request();
        kill();
        thread::sleep(KILL_EVERY);
    }
    Ok(())
}

/// Whoever is gone does not listen.
fn read_lines(events: &mpsc::Sender<SessionEvent>) {
    let mut input = io::stdin().lock();
    let mut line = Vec::new();
    while input
        .read_until(b'\n', &mut line)
        .is_ok_and(|read| read > 0)
    {
        let text = String::from_utf8_lossy(&line).into_owned();
        if events.send(SessionEvent::Received(text)).is_err() {
            return;
        }
        line.clear();
    }
    let _ = events.send(SessionEvent::Closed);
}
