//! Shared memory: how much, and what reads samples from it.

use std::ops::Range;
use std::os::fd::AsFd;

use warpsmith_schema::Target;

use super::plan::calls_in_burst;
use crate::JudgeError;
use crate::runner::OutputWindow;
use crate::sample::{Mapping, OutputSampler};
use crate::trusted::{InputVariant, LoadedTask, SharedRegions};

/// Longest burst, and so the number of input slots.
fn most_slots(target: Target) -> u32 {
    match target {
        Target::Cuda => 64,
        Target::Cpu => 8,
    }
}

/// All slots together, on a GPU: far more than any cache, and a burst of several calls also where inputs are large.
const SLOTS_BYTES: u64 = 16 << 30;

/// Slots beyond the longest burst, so that addresses differ, and how many there are at least where there is room.
const SPARE_SLOTS: u32 = 2;
const LEAST_SLOTS: u32 = 8;

/// What each output's place may be rounded up by; a call may have several.
const ROUNDING_BYTES: u64 = 4096;

/// The driver leaves copies from this size on to the copy engine for certain.
const COPIED_BYTES: u64 = 256 << 10;

pub(super) fn open_sampler(
    regions: &SharedRegions,
    seed: u64,
) -> Result<OutputSampler, JudgeError> {
    let [_, _, arena, sample] = regions.fds.as_slice() else {
        return Err(JudgeError::infrastructure(
            "protocol",
            "the trusted process sent no memory",
        ));
    };
    let bytes = rustix::fs::fstat(sample)
        .map_err(std::io::Error::from)
        .map_err(JudgeError::io("measure the sample region"))?;
    let doing = "map shared memory";
    let arena =
        Mapping::new(arena.as_fd(), regions.arena_bytes, false).map_err(JudgeError::io(doing))?;
    let sample =
        Mapping::new(sample.as_fd(), bytes.st_size as u64, true).map_err(JudgeError::io(doing))?;
    Ok(OutputSampler::new(arena, sample, seed))
}

/// How shared memory is dealt.
pub(super) struct MemoryLayout {
    pub(super) slots: u32,
    pub(super) slot_bytes: u64,
    pub(super) arena_bytes: u64,
    /// Of the arena, for what a candidate keeps from call to call; outputs of timed calls lie behind it.
    pub(super) kept_bytes: u64,
}

const ARENA_STEP: u64 = 2 << 20;

/// What windows are whole multiples of: no copy of a part of one is small.
const WINDOW_STEP: u64 = 1 << 20;

/// Where the outputs of so many calls lie: twice their bytes to allocate from, since some are parts of larger tensors, beside
/// what a call makes on the way, and room for copies of those that lie elsewhere.
pub(super) fn output_window(variant: &InputVariant, calls: u32, arena: Range<u64>) -> OutputWindow {
    let total = arena.end - arena.start;
    let outputs = output_bytes(variant, calls);
    let on_the_way = variant.input_bytes + variant.output_bytes + 4 * WINDOW_STEP;
    let wanted = (2 * outputs + on_the_way).next_multiple_of(WINDOW_STEP);
    // Where memory is short, room for copies is what there is less of.
    let allocated = wanted
        .min(total.saturating_sub(outputs))
        .max(outputs.min(total));
    OutputWindow {
        start: arena.start,
        allocated_to: arena.start + allocated,
        end: arena.start + (allocated + outputs).min(total),
    }
}

/// Of so many calls; each place is rounded up a little.
fn output_bytes(variant: &InputVariant, calls: u32) -> u64 {
    (u64::from(calls) * (variant.output_bytes + ROUNDING_BYTES)).next_multiple_of(WINDOW_STEP)
}

pub(super) fn layout(loaded: &LoadedTask, target: Target, device_memory: u64) -> MemoryLayout {
    let inputs = loaded
        .variants
        .iter()
        .map(|variant| variant.input_bytes)
        .max()
        .unwrap_or(0);
    let outputs = loaded
        .variants
        .iter()
        .map(|variant| variant.output_bytes)
        .max()
        .unwrap_or(0);
    let least = match target {
        Target::Cuda => COPIED_BYTES,
        Target::Cpu => 0,
    };
    let slot_bytes = (inputs + 4096).max(least).next_multiple_of(65_536);
    let memory = match target {
        Target::Cuda => device_memory,
        Target::Cpu => warpsmith_machine::memory_bytes(),
    };
    let for_slots = match target {
        Target::Cuda => SLOTS_BYTES.min(memory / 8),
        Target::Cpu => memory / 8,
    };
    let for_arena = memory / 4;
    // What calls make on the way.
    let aside = 6 * (inputs + outputs) + (64 << 20);
    // Every call of a burst has outputs of its own; of inputs and answers the trusted side has copies. Together at most half of
    // the device, since a reference and a candidate need some too.
    let outputs_fit = for_arena.saturating_sub(aside) / (2 * outputs).max(1);
    let all_fit = (memory / 2).saturating_sub(aside) / (2 * (slot_bytes + outputs));
    let variants = loaded.variants.iter();
    let bursts = variants.map(|variant| calls_in_burst(variant.eager_us));
    let burst = bursts.max().unwrap_or(0);
    let slots = (for_slots / slot_bytes)
        .min(outputs_fit)
        .min(all_fit)
        .min(u64::from((burst + SPARE_SLOTS).max(LEAST_SLOTS)))
        .clamp(2, u64::from(most_slots(target))) as u32;
    // Baselines have copies of inputs that are written to.
    let staged = if loaded.mutates_inputs { inputs } else { 0 };
    let wanted = (2 * u64::from(slots) + 4) * outputs + u64::from(slots) * staged + aside;
    let least = match target {
        Target::Cuda => 2 << 30,
        Target::Cpu => 0,
    };
    let arena = wanted
        .max(least)
        .min(for_arena.max(3 * outputs + (64 << 20)))
        .next_multiple_of(ARENA_STEP);
    let most = 3 * u64::from(slots) * (outputs + ROUNDING_BYTES) + inputs + outputs;
    let beside = arena.saturating_sub(most + 8 * WINDOW_STEP);
    let kept = beside.max((aside / 2 + 2 * outputs).min(arena / 4));
    MemoryLayout {
        slots,
        slot_bytes,
        arena_bytes: arena,
        kept_bytes: kept / ARENA_STEP * ARENA_STEP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn loaded(input_bytes: u64, output_bytes: u64, eager_us: f64) -> LoadedTask {
        let variant = serde_json::json!({
            "inputs": [], "outputs": null, "eager_us": eager_us, "input_bytes": input_bytes, "output_bytes": output_bytes,
        });
        let screen = serde_json::json!({ "degenerate_inputs": false, "transforms": [] });
        let loaded = serde_json::json!({
            "init": [], "state": [], "weights_bytes": 0, "mutates_inputs": false, "fp64": "all",
            "variants": [variant], "screen": screen,
        });
        serde_json::from_value(loaded).unwrap()
    }

    #[test]
    fn every_call_of_a_burst_has_room_for_its_outputs() {
        let device = 139 * GIB;
        for (inputs, outputs) in [(2, 2), (1, 1), (1, 4), (4, 1), (1, 8)] {
            let loaded = loaded(inputs * GIB, outputs * GIB, 2000.0);
            let laid_out = layout(&loaded, Target::Cuda, device);
            let (slot_bytes, arena) = (laid_out.slot_bytes, laid_out.arena_bytes);
            let slots = u64::from(laid_out.slots);
            let behind = laid_out.kept_bytes..arena;
            let window = output_window(&loaded.variants[0], laid_out.slots, behind);
            assert!(window.end <= arena && window.start < window.allocated_to);
            assert!(window.allocated_to - window.start >= slots * outputs * GIB);
            assert!(
                slots >= 2 && slots * outputs * GIB < arena,
                "{slots} {arena}"
            );
            assert!(slots * slot_bytes <= SLOTS_BYTES, "{slots}");
            let copies = slots * (slot_bytes + outputs * GIB);
            assert!(slots == 2 || copies + slots * slot_bytes + arena < device * 2 / 3);
        }
    }

    #[test]
    fn there_are_as_many_slots_as_a_burst_needs() {
        let slots = |inputs, eager_us| {
            layout(&loaded(inputs, 1 << 20, eager_us), Target::Cuda, 139 * GIB).slots
        };
        assert_eq!(slots(1 << 20, 100.0), 64);
        assert_eq!(slots(1 << 20, 2000.0), 22);
        assert_eq!(slots(1 << 20, 50_000.0), LEAST_SLOTS);
        assert!((8..=16).contains(&slots(GIB, 2000.0)));
        assert_eq!(slots(12 * GIB, 2000.0), 2);
    }
}
