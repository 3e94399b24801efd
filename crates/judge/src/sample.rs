//! The supervisor's own read of a random sample of CPU outputs, inside the timed interval.
//!
//! Positions are drawn after the worker said it was done, one run of neighbours per stratum, so that unfinished work of any
//! shape is met while the read costs few cache misses. They go, with what was read, into memory shared with the trusted
//! process, which compares them with its later full read.
#![expect(
    clippy::cast_ptr_alignment,
    reason = "words are read only where their place is aligned"
)]
#![expect(
    unsafe_code,
    reason = "reads shared memory that a hostile process may write at the same time"
)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde_json::{Value, json};
use warpsmith_schema::Rules;

use crate::value::TensorLocation;

/// Positions read per interval, at least.
const POSITIONS: u64 = 65_536;
/// Neighbours read together: one cache line of float32.
const RUN: u64 = 16;

/// A shared mapping of the supervisor.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory, owned by this value and unmapped once, in `drop`.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: u64, writable: bool) -> std::io::Result<Self> {
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        let bytes = usize::try_from(bytes).map_err(std::io::Error::other)?;
        // SAFETY: a fresh shared mapping chosen by the kernel aliases nothing of ours.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED | MapFlags::POPULATE,
                fd,
                0,
            )?
        };
        let base =
            NonNull::new(base.cast()).ok_or_else(|| std::io::Error::other("mapped at null"))?;
        Ok(Self { base, bytes })
    }
}

/// One byte that the supervisor writes and a worker can only read.
#[derive(Debug)]
pub(crate) struct GuardFlag {
    fd: OwnedFd,
    mapping: Mapping,
}

impl GuardFlag {
    pub(crate) fn new() -> std::io::Result<Self> {
        let fd = memfd_create("flag", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, 4096)?;
        let mapping = Mapping::new(fd.as_fd(), 4096, true)?;
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals)?;
        Ok(Self { fd, mapping })
    }

    /// PyTorch may not compute from here on, or what it computes is counted.
    pub(crate) fn arm(&self, rules: Rules) {
        let armed = match rules {
            Rules::Own => 1,
            Rules::Mixed => 2,
        };
        // SAFETY: the first byte of a page that only this process can write.
        unsafe { self.mapping.base.as_ptr().write_volatile(armed) }
    }
}

impl AsFd for GuardFlag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped, and nobody keeps a pointer into it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Reads samples from the arena into the sample region.
#[derive(Debug)]
pub(crate) struct OutputSampler {
    arena: Mapping,
    sample: Mapping,
    random: SmallRng,
}

impl OutputSampler {
    pub(crate) fn new(arena: Mapping, sample: Mapping, seed: u64) -> Self {
        Self {
            arena,
            sample,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    /// Samples the outputs of each call; what to tell the trusted process about each. `places` were checked to lie inside
    /// the arena.
    pub(crate) fn sample_calls(&mut self, calls: &[Vec<TensorLocation>]) -> Vec<Value> {
        let share = (POSITIONS / calls.len().max(1) as u64).max(RUN);
        let mut cursor = 0_usize;
        calls
            .iter()
            .map(|places| {
                let leaves = places.iter().enumerate().map(|(leaf, place)| {
                    let offset = cursor;
                    let count = self.sample_leaf(place, share, &mut cursor);
                    json!({ "leaf": leaf, "offset": offset, "count": count, "item_bytes": place.item_bytes() })
                });
                Value::Array(leaves.collect())
            })
            .collect()
    }

    fn sample_leaf(&mut self, place: &TensorLocation, share: u64, cursor: &mut usize) -> u64 {
        let (Some(total), Some(item)) = (place.count(), place.item_bytes()) else {
            return 0;
        };
        let (runs, run) = if total <= share {
            (u64::from(total > 0), total)
        } else {
            (share / RUN, RUN)
        };
        let count = runs * run;
        let room = (self.sample.bytes - *cursor) as u64;
        if count * (8 + item) > room {
            return 0;
        }
        let positions_at = *cursor;
        let items_at = positions_at + count as usize * 8;
        let contiguous = place.contiguous();
        for stratum in 0..runs {
            let low = stratum * total / runs;
            let high = (stratum + 1) * total / runs;
            let start = low
                + self
                    .random
                    .random_range(0..=(high - low).saturating_sub(run));
            let nth = (stratum * run) as usize;
            if contiguous {
                let from = (place.offset + start * item) as usize;
                self.copy(from, items_at + nth * item as usize, (run * item) as usize);
            }
            for step in 0..run {
                let logical = start + step;
                let nth = nth + step as usize;
                self.write(positions_at + nth * 8, &logical.to_le_bytes());
                if !contiguous {
                    let from = (place.offset + place.element(logical) * item) as usize;
                    self.copy(from, items_at + nth * item as usize, item as usize);
                }
            }
        }
        *cursor = items_at + (count * item) as usize;
        *cursor = cursor.next_multiple_of(8);
        count
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= self.sample.bytes);
        // SAFETY: `take_leaf` made sure that the range lies inside the sample region, which only we write now.
        unsafe {
            ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.sample.base.as_ptr().add(at),
                bytes.len(),
            );
        }
    }

    fn copy(&mut self, from: usize, to: usize, bytes: usize) {
        if from + bytes > self.arena.bytes {
            return;
        }
        let whole = if from.is_multiple_of(8) {
            bytes / 8 * 8
        } else {
            0
        };
        // SAFETY: both ends were checked against their regions, and words are read where they are aligned. The worker may
        // write the source meanwhile: volatile reads make that a torn value, which the comparison meets, and nothing worse.
        unsafe {
            let (source, target) = (
                self.arena.base.as_ptr().add(from),
                self.sample.base.as_ptr().add(to),
            );
            for index in (0..whole).step_by(8) {
                let word = source.add(index).cast::<u64>().read_volatile();
                target.add(index).cast::<u64>().write_unaligned(word);
            }
            for index in whole..bytes {
                target.add(index).write(source.add(index).read_volatile());
            }
        }
    }
}
