//! How many jobs a second go from question to answer, and what a job costs beyond its judgement.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use warpsmith_judge::Judge;

use crate::common::{StandIn, TestFleet, submission, task};
use crate::roles::{ask, connect, judge};

/// `[JOBS]`
pub(crate) fn measure(words: &[&str]) {
    let jobs: usize = words.first().map_or(10_000, |word| word.parse().unwrap());
    println!("| workers x slots | a judgement | asking threads | jobs | jobs/s | efficiency |");
    println!("|---|---|---|---|---|---|");
    for (workers, slots, takes_us, threads) in [(1, 32, 0, 64), (2, 32, 0, 128), (2, 1, 20_000, 16)]
    {
        let jobs = if takes_us == 0 { jobs } else { 500 };
        let seconds = rate(workers, slots, takes_us, threads, jobs);
        let rate = jobs as f64 / seconds;
        let efficiency = match takes_us {
            0 => "-".to_owned(),
            takes => format!(
                "{:.3}",
                rate * f64::from(takes) / 1e6 / (workers * slots) as f64
            ),
        };
        println!(
            "| {workers} x {slots} | {takes_us} us | {threads} | {jobs} | {rate:.0} | {efficiency} |"
        );
    }
    latency();
}

/// Seconds for so many jobs, end to end.
fn rate(workers: usize, slots: usize, takes_us: u32, threads: usize, jobs: usize) -> f64 {
    let fleet = TestFleet::start();
    let urls = fleet.servers.urls.join(",");
    let _workers: Vec<Running> = (0..workers)
        .map(|number| Running::worker(&urls, number, slots, takes_us))
        .collect();
    let client = connect(&urls);
    ask(&mut judge(&client), usize::MAX);
    // The window follows what has joined.
    thread::sleep(Duration::from_secs(6));
    let next = AtomicUsize::new(0);
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut judge = judge(&client);
                loop {
                    let job = next.fetch_add(1, Ordering::SeqCst);
                    if job >= jobs {
                        break;
                    }
                    ask(&mut judge, job);
                }
            });
        }
    });
    begun.elapsed().as_secs_f64()
}

/// One job at a time, against the same judge without a fleet.
fn latency() {
    const JOBS: usize = 400;
    let takes = Duration::from_millis(5);
    let fleet = TestFleet::start();
    let urls = fleet.servers.urls.join(",");
    let _worker = Running::worker(&urls, 0, 1, 5000);
    let client = connect(&urls);
    let mut remote = judge(&client);
    ask(&mut remote, usize::MAX);
    let mut local = StandIn::taking(takes);
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for job in 0..JOBS {
        let begun = Instant::now();
        local
            .judge(&task("t"), &submission(&format!("job {job}")))
            .unwrap();
        here.push(begun.elapsed());
        let begun = Instant::now();
        ask(&mut remote, job);
        there.push(begun.elapsed());
    }
    here.sort();
    there.sort();
    let over = |share: f64| {
        let place = ((JOBS - 1) as f64 * share) as usize;
        (there[place].as_secs_f64() - here[place].as_secs_f64()) * 1e3
    };
    println!(
        "\noverhead of a judged job: median {:.2} ms, p90 {:.2} ms, p99 {:.2} ms",
        over(0.5),
        over(0.9),
        over(0.99)
    );
}

struct Running(Child);

impl Running {
    fn worker(urls: &str, number: usize, slots: usize, takes_us: u32) -> Self {
        let program = std::env::current_exe().unwrap();
        let words = [
            "worker".to_owned(),
            urls.to_owned(),
            format!("worker-{number}"),
            slots.to_string(),
            takes_us.to_string(),
            "15000".to_owned(),
            "5".to_owned(),
        ];
        let child = Command::new(program)
            .args(words)
            .stdin(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
