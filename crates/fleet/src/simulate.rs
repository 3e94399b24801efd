//! A fleet that is only reckoned: how busy its GPUs are, what waits, and how many cores they need.
//!
//! Episodes write a reply, then have it judged, and so on. A judgement takes a slot of a GPU's worker, compiles on that
//! machine's cores, and then has the GPU to itself. Jobs pass the server one after another. Times vary as they do in life:
//! log-normal, with the means given. The same seed gives the same numbers.
//!
//! Not covered: machines that fail, networks, and tasks that have to be loaded.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use serde::{Deserialize, Serialize};

/// What a fleet is and what it is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimulationPlan {
    pub gpus: usize,
    /// For compiling, beside each GPU.
    pub cores_a_gpu: usize,
    /// Judgements that a worker has begun at the same time, on one GPU.
    pub slots_a_gpu: usize,
    /// Episodes, each with a reply being written or judged.
    pub episodes: usize,
    /// Until the next reply of an episode is there.
    pub reply_seconds: f64,
    /// Core seconds to compile.
    pub compile_seconds: f64,
    /// Seconds for which a judgement has the GPU.
    pub gpu_seconds: f64,
    /// What the server needs for a job.
    pub server_seconds: f64,
    /// Standard deviation over mean of all times but the server's; 0 for times that are always the same.
    pub variation: f64,
    pub judgements: usize,
    pub seed: u64,
}

/// What came of it, without the first tenth, in which the fleet fills.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimulationReport {
    pub plan: SimulationPlan,
    pub verdicts_a_minute: f64,
    /// Shares of the time in which they were at work.
    pub gpu_utilization: f64,
    pub core_utilization: f64,
    pub server_utilization: f64,
    /// From a reply to its verdict.
    pub mean_seconds: f64,
    pub p95_seconds: f64,
    /// Jobs that waited for a slot, on average.
    pub mean_queue: f64,
    /// Jobs a second at which the server would be at its limit.
    pub server_limit: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Written,
    Passed,
    Compiled,
    Judged,
}

/// Ordered by time, then by when it was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TimedEvent {
    at_ns: u64,
    number: u64,
    step: Step,
    job: usize,
}

/// One episode's judgement.
#[derive(Debug, Clone, Copy, Default)]
struct Job {
    submitted_ns: u64,
    gpu: usize,
}

#[derive(Debug, Clone, Default)]
struct Gpu {
    free_slots: usize,
    free_cores: usize,
    busy: bool,
    to_compile: VecDeque<usize>,
    to_judge: VecDeque<usize>,
}

struct Simulation<'a> {
    plan: &'a SimulationPlan,
    now_ns: u64,
    events: BinaryHeap<Reverse<TimedEvent>>,
    planned: u64,
    random: Random,
    jobs: Vec<Job>,
    gpus: Vec<Gpu>,
    at_server: VecDeque<usize>,
    server_busy: bool,
    queue: VecDeque<usize>,
    /// Since counting began: nanoseconds of work, and of jobs in the queue.
    gpu_ns: u64,
    core_ns: u64,
    server_ns: u64,
    queued_ns: u128,
    since_ns: u64,
    took_ns: Vec<u64>,
    judged: usize,
}

/// Lets so many judgements pass.
pub fn simulate(plan: &SimulationPlan) -> SimulationReport {
    let mut simulation = Simulation::new(plan);
    let warm_up = plan.judgements / 10;
    for episode in 0..plan.episodes {
        let first = simulation
            .random
            .time_ns(plan.reply_seconds, plan.variation);
        simulation.plan_step(first, Step::Written, episode);
    }
    while simulation.judged < plan.judgements {
        let Some(Reverse(next)) = simulation.events.pop() else {
            break;
        };
        simulation.pass_time(next.at_ns);
        simulation.process(next);
        if simulation.judged == warm_up && simulation.since_ns == 0 {
            simulation.begin_to_count();
        }
    }
    simulation.report()
}

impl<'a> Simulation<'a> {
    fn new(plan: &'a SimulationPlan) -> Self {
        let gpu = Gpu {
            free_slots: plan.slots_a_gpu,
            free_cores: plan.cores_a_gpu,
            ..Gpu::default()
        };
        Self {
            plan,
            now_ns: 0,
            events: BinaryHeap::new(),
            planned: 0,
            random: Random(plan.seed),
            jobs: vec![Job::default(); plan.episodes],
            gpus: vec![gpu; plan.gpus],
            at_server: VecDeque::new(),
            server_busy: false,
            queue: VecDeque::new(),
            gpu_ns: 0,
            core_ns: 0,
            server_ns: 0,
            queued_ns: 0,
            since_ns: 0,
            took_ns: Vec::new(),
            judged: 0,
        }
    }

    fn plan_step(&mut self, after_ns: u64, step: Step, job: usize) {
        self.planned += 1;
        self.events.push(Reverse(TimedEvent {
            at_ns: self.now_ns + after_ns,
            number: self.planned,
            step,
            job,
        }));
    }

    fn pass_time(&mut self, to_ns: u64) {
        self.queued_ns += u128::from(to_ns - self.now_ns) * self.queue.len() as u128;
        self.now_ns = to_ns;
    }

    fn begin_to_count(&mut self) {
        self.since_ns = self.now_ns;
        (self.gpu_ns, self.core_ns, self.server_ns, self.queued_ns) = (0, 0, 0, 0);
        self.took_ns.clear();
    }

    fn process(&mut self, event: TimedEvent) {
        let job = event.job;
        match event.step {
            Step::Written => {
                self.jobs[job].submitted_ns = self.now_ns;
                self.at_server.push_back(job);
            }
            Step::Passed => {
                self.server_busy = false;
                self.queue.push_back(job);
                self.hand_out();
            }
            Step::Compiled => {
                let gpu = self.jobs[job].gpu;
                self.gpus[gpu].free_cores += 1;
                self.gpus[gpu].to_judge.push_back(job);
                self.start_work(gpu);
            }
            Step::Judged => {
                let Job { gpu, submitted_ns } = self.jobs[job];
                self.gpus[gpu].busy = false;
                self.gpus[gpu].free_slots += 1;
                self.judged += 1;
                self.took_ns.push(self.now_ns - submitted_ns);
                let reply = self
                    .random
                    .time_ns(self.plan.reply_seconds, self.plan.variation);
                self.plan_step(reply, Step::Written, job);
                self.start_work(gpu);
                self.hand_out();
            }
        }
        self.serve();
    }

    /// The server passes one job at a time.
    fn serve(&mut self) {
        if !self.server_busy
            && let Some(job) = self.at_server.pop_front()
        {
            self.server_busy = true;
            let takes = seconds_ns(self.plan.server_seconds);
            self.server_ns += takes;
            self.plan_step(takes, Step::Passed, job);
        }
    }

    /// To the worker with the most free slots, as it asks most.
    fn hand_out(&mut self) {
        while !self.queue.is_empty() {
            let free = |gpu: &usize| self.gpus[*gpu].free_slots;
            let Some(gpu) = (0..self.gpus.len())
                .max_by_key(free)
                .filter(|gpu| free(gpu) > 0)
            else {
                return;
            };
            let Some(job) = self.queue.pop_front() else {
                return;
            };
            self.gpus[gpu].free_slots -= 1;
            self.jobs[job].gpu = gpu;
            self.gpus[gpu].to_compile.push_back(job);
            self.start_work(gpu);
        }
    }

    fn start_work(&mut self, gpu: usize) {
        while self.gpus[gpu].free_cores > 0 {
            let Some(job) = self.gpus[gpu].to_compile.pop_front() else {
                break;
            };
            self.gpus[gpu].free_cores -= 1;
            let takes = self
                .random
                .time_ns(self.plan.compile_seconds, self.plan.variation);
            self.core_ns += takes;
            self.plan_step(takes, Step::Compiled, job);
        }
        if !self.gpus[gpu].busy
            && let Some(job) = self.gpus[gpu].to_judge.pop_front()
        {
            self.gpus[gpu].busy = true;
            let takes = self
                .random
                .time_ns(self.plan.gpu_seconds, self.plan.variation);
            self.gpu_ns += takes;
            self.plan_step(takes, Step::Judged, job);
        }
    }

    fn report(mut self) -> SimulationReport {
        let plan = self.plan;
        let seconds = (self.now_ns - self.since_ns) as f64 / 1e9;
        let share = |work_ns: u64, count: usize| work_ns as f64 / 1e9 / seconds / count as f64;
        self.took_ns.sort_unstable();
        let count = self.took_ns.len().max(1);
        let total: u64 = self.took_ns.iter().sum();
        let p95 = self.took_ns.get((count - 1) * 95 / 100).copied();
        SimulationReport {
            plan: plan.clone(),
            verdicts_a_minute: self.took_ns.len() as f64 / seconds * 60.0,
            gpu_utilization: share(self.gpu_ns, plan.gpus),
            core_utilization: share(self.core_ns, plan.gpus * plan.cores_a_gpu),
            server_utilization: share(self.server_ns, 1),
            mean_seconds: total as f64 / count as f64 / 1e9,
            p95_seconds: p95.unwrap_or(0) as f64 / 1e9,
            mean_queue: self.queued_ns as f64 / 1e9 / seconds,
            server_limit: 1.0 / plan.server_seconds,
        }
    }
}

fn seconds_ns(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// `SplitMix64`.
struct Random(u64);

impl Random {
    /// Above 0, at most 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64 + f64::EPSILON / 4.0
    }

    /// Log-normal, with this mean and this standard deviation over it.
    fn time_ns(&mut self, mean_seconds: f64, variation: f64) -> u64 {
        if variation == 0.0 {
            return seconds_ns(mean_seconds);
        }
        let spread = (1.0 + variation * variation).ln();
        let normal =
            (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos();
        seconds_ns(mean_seconds * (spread.sqrt() * normal - spread / 2.0).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> SimulationPlan {
        SimulationPlan {
            gpus: 4,
            cores_a_gpu: 4,
            slots_a_gpu: 4,
            episodes: 256,
            reply_seconds: 10.0,
            compile_seconds: 4.0,
            gpu_seconds: 1.5,
            server_seconds: 0.0002,
            variation: 0.0,
            judgements: 4000,
            seed: 1,
        }
    }

    impl SimulationReport {
        fn took(&self) -> (u64, u64) {
            (self.mean_seconds.to_bits(), self.p95_seconds.to_bits())
        }
    }

    fn near(found: f64, expected: f64) {
        assert!(
            (found / expected - 1.0).abs() < 0.02,
            "{found}, not {expected}"
        );
    }

    /// Oracle: one slot does one thing after the other.
    #[test]
    fn a_single_slot_leaves_the_gpu_idle_while_it_compiles() {
        let report = simulate(&SimulationPlan {
            slots_a_gpu: 1,
            ..plan()
        });
        near(report.gpu_utilization, 1.5 / 5.5);
        near(report.verdicts_a_minute, 4.0 * 60.0 / 5.5);
    }

    /// Oracle: what is scarcest decides, so two cores give 2 / 4 s for each GPU, and four slots with cores enough 1 / 1.5 s.
    #[test]
    fn what_is_scarcest_decides() {
        let two_cores = simulate(&SimulationPlan {
            cores_a_gpu: 2,
            ..plan()
        });
        near(two_cores.verdicts_a_minute, 4.0 * 60.0 / 2.0);
        near(two_cores.core_utilization, 1.0);
        near(simulate(&plan()).gpu_utilization, 1.0);
        let slow_server = simulate(&SimulationPlan {
            server_seconds: 1.0,
            ..plan()
        });
        near(slow_server.verdicts_a_minute, 60.0);
        near(slow_server.server_utilization, 1.0);
    }

    /// Oracle: the response time law, episodes = throughput x (reply + time to a verdict), whatever the times are.
    #[test]
    fn episodes_are_writing_or_waiting() {
        let report = simulate(&SimulationPlan {
            variation: 0.5,
            judgements: 20_000,
            ..plan()
        });
        let a_second = report.verdicts_a_minute / 60.0;
        near(a_second * (10.0 + report.mean_seconds), 256.0);
        assert!(report.p95_seconds > report.mean_seconds);
        assert!(report.mean_queue > 0.0);
    }

    #[test]
    fn a_seed_is_a_result() {
        let varied = SimulationPlan {
            variation: 0.5,
            ..plan()
        };
        assert_eq!(simulate(&varied), simulate(&varied));
        let other = SimulationPlan {
            seed: 2,
            ..varied.clone()
        };
        assert_ne!(simulate(&varied).took(), simulate(&other).took());
    }
}
