//! How busy the GPU is while something is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use warpsmith_machine::gpu_clocks;

/// Asks the driver now and then how busy the GPU is.
pub(super) struct Busy {
    done: Arc<AtomicBool>,
    samples: Option<thread::JoinHandle<Vec<f64>>>,
}

impl Busy {
    pub(super) fn watch(gpu: Option<u32>) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let samples = gpu.map(|gpu| {
            let done = Arc::clone(&done);
            thread::spawn(move || {
                let mut samples = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    samples.extend(gpu_clocks(gpu).and_then(|clocks| clocks.utilization_percent));
                    thread::sleep(Duration::from_secs(1));
                }
                samples
            })
        });
        Self { done, samples }
    }

    pub(super) fn words(self) -> String {
        self.done.store(true, Ordering::Relaxed);
        let samples = self.samples.and_then(|thread| thread.join().ok());
        match samples.filter(|samples| !samples.is_empty()) {
            Some(samples) => {
                let mean = samples.iter().sum::<f64>() / samples.len() as f64;
                format!("; GPU busy {mean:.0} %")
            }
            None => String::new(),
        }
    }
}
