//! Runs that are larger than anybody reads.

use std::io::{BufWriter, Write};
use std::time::Duration;

use super::*;

const EPISODES: u32 = 100_000;
const MOST_BYTES: usize = 200 << 10;
const BAR: Duration = Duration::from_millis(100);
const TRIES: u32 = 5;

/// How long this thread was on a core: what others do beside a test is not the page's time.
fn on_core() -> Duration {
    let told = fs_err::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
}

/// Three in five passed, of 12,500 tasks on three levels.
fn write_log(place: &Path) {
    let passed = events(&[episode_ended(
        "TASK",
        vec![verdict(Some(200.0), Status::Passed, Some(300.0))],
    )]);
    let failed = events(&[episode_ended(
        "TASK",
        vec![verdict(None, Status::Mismatch, None)],
    )]);
    let mut log = BufWriter::new(fs_err::File::create(place).unwrap());
    for number in 0..EPISODES {
        let line = if number % 5 < 3 { &passed } else { &failed };
        let task = format!("level{}/{}", 1 + number % 3, number / 8);
        let line = line.replace("TASK", &task);
        let line = line.replace("\"sample\":1", &format!("\"sample\":{}", 1 + number % 8));
        log.write_all(line.as_bytes()).unwrap();
    }
    log.flush().unwrap();
}

/// The quickest of some tries, and the size of the page.
fn quickest(shown: impl Fn() -> String) -> (Duration, usize) {
    let mut least = Duration::MAX;
    let mut size = 0;
    for _ in 0..TRIES {
        let begun = on_core();
        size = shown().len();
        least = least.min(on_core().checked_sub(begun).unwrap_or_default());
    }
    (least, size)
}

#[test]
fn a_hundred_thousand_episodes_make_no_large_page_and_no_slow_one() {
    let runs = tempfile::tempdir().unwrap();
    write(runs.path(), "big/config.json", "{}");
    write_log(&runs.path().join("big/events.jsonl"));
    let shelf = Shelf::new(runs.path().to_path_buf());
    // The log is read once, by the first who looks.
    assert!(run_page(&shelf, "big").contains("100000 episodes"));
    for (page, (took, size)) in [
        (
            "home",
            quickest(|| runs::page(&shelf, &runs::Asked::default()).into_string()),
        ),
        ("run", quickest(|| run_page(&shelf, "big"))),
        (
            "leaderboard",
            quickest(|| leaderboard::page(&shelf).into_string()),
        ),
    ] {
        assert!(size <= MOST_BYTES, "{page}: {size} bytes");
        assert!(took <= BAR, "{page}: {took:?}");
    }
}
