//! Samples of the program counter of another process.
//!
//! The kernel interrupts a processor periodically and records the address of the instruction it is at; the samples that
//! belong to the process are kept. The sampled process takes no part in this and cannot notice it.
#![expect(
    unsafe_code,
    reason = "perf events and their rings have no safe interface"
)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sys::check;

/// The first published form of `perf_event_attr`, which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_kind: u64,
    read_format: u64,
    flags: u64,
    wake_up: u32,
    breakpoint_kind: u32,
    breakpoint_address: u64,
}

const SOFTWARE: u32 = 1;
const CPU_CLOCK: u64 = 0;
const TASK_CLOCK: u64 = 1;
const SAMPLE_ADDRESS: u64 = 1;
const SAMPLE_THREAD: u64 = 1 << 1;
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
const ENABLE: libc::Ioctl = 0x2400;
const DISABLE: libc::Ioctl = 0x2401;
const RECORD_SAMPLE: u32 = 9;
/// In the page before a ring: how far it was written, and how far read.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// Sizes to try: as much as this user may lock in memory. The largest holds half a second.
const PAGES: [usize; 3] = [64, 16, 4];

/// Samples one process and its threads.
#[derive(Debug)]
pub struct PcSampler {
    pid: u32,
    /// One for each processor.
    rings: Vec<Ring>,
    addresses: Vec<u64>,
}

/// What a perf event samples.
#[derive(Debug, Clone, Copy)]
enum SampledScope {
    /// A processor, whatever runs on it. No thread is too short-lived for that; only root may do it.
    Processor,
    /// A process and the threads it starts from then on, each by its own clock.
    Process(u32),
}

impl PcSampler {
    /// Between two samples. Where processors may not be sampled, a thread that lives shorter is missed.
    pub const PERIOD: Duration = Duration::from_micros(47);

    /// Of `pid` and all threads it starts from now on. Nothing is sampled before [`PcSampler::start`].
    pub fn attach(pid: u32) -> io::Result<Self> {
        let sampler = |rings| Self {
            pid,
            rings,
            addresses: Vec::new(),
        };
        let mut refused = None;
        for scope in [SampledScope::Processor, SampledScope::Process(pid)] {
            for pages in PAGES {
                match rings(scope, pages) {
                    Ok(rings) => return Ok(sampler(rings)),
                    Err(error) => refused = Some(error),
                }
            }
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
    }

    pub fn start(&mut self) {
        for ring in &self.rings {
            ring.control(ENABLE);
        }
    }

    pub fn stop(&mut self) {
        for ring in &mut self.rings {
            ring.control(DISABLE);
            ring.read(self.pid, &mut self.addresses);
        }
    }

    /// The sampled addresses since the last call.
    pub fn take(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.addresses)
    }
}

fn rings(scope: SampledScope, pages: usize) -> io::Result<Vec<Ring>> {
    processors()?
        .into_iter()
        .map(|processor| Ring::new(scope, processor, pages))
        .collect()
}

#[derive(Debug)]
struct Ring {
    event: OwnedFd,
    /// Records consist of words of eight bytes.
    start: *mut u64,
    page: usize,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and is reached through `&mut` only.
unsafe impl Send for Ring {}

impl Ring {
    fn new(scope: SampledScope, processor: i32, pages: usize) -> io::Result<Self> {
        let (pid, config, inherit) = match scope {
            SampledScope::Processor => (-1, CPU_CLOCK, 0),
            SampledScope::Process(pid) => (pid as libc::pid_t, TASK_CLOCK, INHERIT),
        };
        let attributes = Attributes {
            kind: SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config,
            period: PcSampler::PERIOD.as_nanos() as u64,
            sample_kind: SAMPLE_ADDRESS | SAMPLE_THREAD,
            flags: DISABLED | inherit | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
            ..Attributes::default()
        };
        // SAFETY: the attributes outlive the call; the rest are integers.
        let event = check(unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                pid,
                processor,
                -1,
                CLOSE_ON_EXEC,
            )
        })?;
        // SAFETY: the call has just opened it.
        let event = unsafe { OwnedFd::from_raw_fd(event as i32) };
        // SAFETY: takes no pointer.
        let page = check(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })? as usize;
        let bytes = pages * page;
        // SAFETY: a new mapping at a place that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                page + bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_fd().as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            event,
            start: start.cast(),
            page,
            bytes,
        })
    }

    /// Applies to threads that inherited the event, too. Repeating a request is harmless.
    fn control(&self, request: libc::Ioctl) {
        // SAFETY: takes no pointer.
        unsafe { libc::ioctl(self.event.as_raw_fd(), request, 0) };
    }

    fn counter(&self, at: usize) -> &AtomicU64 {
        // SAFETY: both counters lie in the first page of the mapping, and are shared with the kernel only.
        unsafe { AtomicU64::from_ptr(self.start.add(at / 8)) }
    }

    /// One word of the ring.
    fn word(&self, at: u64) -> u64 {
        let at = self.page + (at as usize) % self.bytes;
        // SAFETY: inside the mapping, before what the kernel said it had written.
        unsafe { self.start.add(at / 8).read_volatile() }
    }

    /// Appends the addresses of the samples of `pid`.
    fn read(&mut self, pid: u32, addresses: &mut Vec<u64>) {
        let head = self.counter(HEAD).load(Ordering::Acquire);
        let mut at = self.counter(TAIL).load(Ordering::Relaxed);
        while at + 8 <= head {
            let header = self.word(at);
            let (kind, size) = (header as u32, header >> 48);
            // A record holds the address, then process and thread.
            if kind == RECORD_SAMPLE && self.word(at + 16) as u32 == pid {
                addresses.push(self.word(at + 8));
            }
            if size < 8 {
                break;
            }
            at += size;
        }
        self.counter(TAIL).store(head, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped; nobody else has it.
        unsafe { libc::munmap(self.start.cast(), self.page + self.bytes) };
    }
}

/// Numbers of the processors that are online, from a list such as `0-3,8`.
fn processors() -> io::Result<Vec<i32>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let mut found = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
            text.parse::<i32>().map_err(wrong)
        };
        found.extend(number(first)?..=number(last)?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::thread::sleep;

    /// A process that only computes is sampled, and all addresses are in its own mappings.
    #[test]
    fn a_process_is_sampled_in_its_own_code() {
        let mut child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let sampled = PcSampler::attach(child.id()).map(|mut sampler| {
            sleep(Duration::from_millis(50));
            assert_eq!(sampler.take(), []);
            sampler.start();
            sleep(Duration::from_millis(300));
            sampler.stop();
            sampler.take()
        });
        let maps = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let addresses = match sampled {
            Ok(addresses) => addresses,
            // Where it is not permitted nothing is sampled, and the judge says so.
            Err(error) => {
                let refusals = [libc::EACCES, libc::EPERM, libc::ENOSYS].map(Some);
                assert!(refusals.contains(&error.raw_os_error()), "{error}");
                return;
            }
        };
        // However busy the machine is.
        assert!(addresses.len() >= 5, "{} samples", addresses.len());
        let spans: Vec<(u64, u64)> = maps
            .lines()
            .filter_map(|line| {
                let (first, last) = line.split_once(' ')?.0.split_once('-')?;
                let number = |text| u64::from_str_radix(text, 16).ok();
                Some((number(first)?, number(last)?))
            })
            .collect();
        let inside = |at: &&u64| spans.iter().any(|(first, last)| (first..last).contains(at));
        let inside = addresses.iter().filter(inside).count();
        assert_eq!(inside, addresses.len());
    }
}
