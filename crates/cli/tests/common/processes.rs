//! Who was started, and whether they are gone.

use std::collections::BTreeSet;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// Fails where one of them outlives what started it by more than a moment.
pub(crate) fn assert_gone(started: &BTreeSet<u32>) {
    let until = Instant::now() + Duration::from_secs(5);
    while started.iter().any(|process| alive(*process)) {
        assert!(
            Instant::now() < until,
            "something of {started:?} is still there"
        );
        thread::sleep(Duration::from_millis(50));
    }
}

/// State and parent, as /proc has them.
fn stat(process: u32) -> Option<(String, u32)> {
    let stat = fs_err::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// A zombie only waits for init to notice.
fn alive(process: u32) -> bool {
    stat(process).is_some_and(|(state, _)| state != "Z")
}

pub(crate) fn descendants(of: u32) -> BTreeSet<u32> {
    let everyone: Vec<u32> = fs_err::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let mut found = BTreeSet::from([of]);
    loop {
        let before = found.len();
        let children: Vec<u32> = everyone
            .iter()
            .copied()
            .filter(|process| stat(*process).is_some_and(|(_, parent)| found.contains(&parent)))
            .collect();
        found.extend(children);
        if found.len() == before {
            found.remove(&of);
            return found;
        }
    }
}

pub(crate) fn ended_within(server: &mut Child, limit: Duration) -> ExitStatus {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = server.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < until, "the server did not end");
        thread::sleep(Duration::from_millis(20));
    }
}
