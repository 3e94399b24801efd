//! Assigns rows to threads: how many threads work on a row, and which.

use super::launch::{blocks, product};
use super::{LaunchConfig, THREADS, integer};
use crate::emit::KernelWriter;
use crate::plan::{Plan, ReduceOp, RowKernel, RowReduction, Strategy};

/// Threads that hide the memory latency of a GPU.
const LATENCY_HIDING_THREADS: i64 = 1 << 18;

/// What is contiguous in memory, and so is assigned to neighbouring threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contiguity {
    /// Elements of a row.
    Elements,
    /// Neighbouring rows; the elements of one row are far apart.
    Rows,
}

/// How the elements of rows are assigned to threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowSchedule {
    /// Elements of a row.
    pub(super) length: i64,
    /// Elements of a vector load.
    pub(super) width: i64,
    /// Threads of a row.
    pub(super) threads: i64,
    /// Rows of a block.
    rows: i64,
    contiguity: Contiguity,
}

impl RowSchedule {
    pub(super) fn groups(self) -> i64 {
        self.length / self.width
    }

    /// Groups of a thread.
    pub(super) fn items(self) -> i64 {
        (self.groups() + self.threads - 1) / self.threads
    }

    /// Threads of a block.
    pub(super) fn block(self) -> i64 {
        self.threads * self.rows
    }

    /// The thread's index among those of its row; none where it is the only one.
    pub(super) fn thread_in_row(self) -> Option<&'static str> {
        match (self.contiguity, self.threads) {
            (Contiguity::Rows, 1) => None,
            (Contiguity::Rows, _) => Some("threadIdx.y"),
            (Contiguity::Elements, _) => Some("threadIdx.x"),
        }
    }

    /// Declares `row`, of so many.
    pub(super) fn declare_row(self, writer: &mut KernelWriter<'_>, rows: &[i64]) {
        let int = integer(writer.plan);
        let number = match (self.contiguity, self.rows) {
            (Contiguity::Elements, 1) => "blockIdx.x".to_owned(),
            (Contiguity::Elements, rows) => format!("blockIdx.x * {rows} + threadIdx.y"),
            (Contiguity::Rows, rows) => format!("blockIdx.x * {rows} + threadIdx.x"),
        };
        writer.line(format!("const {int} row = {number};"));
        // Threads that leave early must not be waited for; where no thread waits the check is always there.
        let waits = self.contiguity == Contiguity::Rows && self.threads > 1;
        let count: i64 = rows.iter().product();
        if self.rows > 1 && (!waits || count % self.rows != 0) {
            let count = product(rows);
            writer.line(format!("if (row >= {count}) return;"));
        }
    }

    pub(super) fn launch(self, rows: &[i64]) -> LaunchConfig {
        let threads = match (self.contiguity, self.threads, self.rows) {
            (Contiguity::Elements, threads, 1) => threads.to_string(),
            (Contiguity::Elements, threads, rows) => format!("dim3({threads}, {rows})"),
            (Contiguity::Rows, 1, rows) => rows.to_string(),
            (Contiguity::Rows, threads, rows) => format!("dim3({rows}, {threads})"),
        };
        LaunchConfig {
            blocks: blocks(rows, self.rows),
            threads,
            max_threads: self.block(),
        }
    }

    /// What the threads of a row have found, put together for all of them.
    pub(super) fn combine(self, writer: &mut KernelWriter<'_>, fold: ReduceOp, name: &str) {
        let word = match fold {
            ReduceOp::Sum => "sum",
            ReduceOp::Product => "product",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            // Threads of a column never look for an index together.
            ReduceOp::ArgMax => "arg_max",
        };
        let threads = self.threads;
        let function = match self.contiguity {
            Contiguity::Rows if threads == 1 => return,
            Contiguity::Rows => format!("column_{word}<{threads}>"),
            Contiguity::Elements if threads == 32 => format!("warp_{word}"),
            Contiguity::Elements if threads < 32 => format!("warp_{word}<{threads}>"),
            Contiguity::Elements => format!("block_{word}<{threads}>"),
        };
        let function = writer.provided(&function);
        writer.line(format!("{name} = {function}({name});"));
    }
}

/// The threads for a kernel's rows; none where each row has one thread that goes through it in the order of its loops.
pub(super) fn schedule_rows(
    writer: &mut KernelWriter<'_>,
    kernel: &RowKernel,
) -> Option<RowSchedule> {
    let plan = &mut *writer.plan;
    if plan.strategy == Strategy::Plain {
        return None;
    }
    // What threads exchange are floats.
    let is_whole = |pass: &RowReduction| plan.reductions[pass.reduction.0].is_whole();
    if kernel.reductions.iter().any(is_whole) {
        return None;
    }
    // A window is looked through by one thread, coordinate by coordinate.
    let has_windows = |pass: &RowReduction| plan.reductions[pass.reduction.0].windows;
    if plan.is_regular() && kernel.reductions.iter().any(has_windows) {
        return None;
    }
    let tuned = plan.strategy == Strategy::Tuned;
    let count: i64 = kernel.outer.iter().product();
    let length = plan.reductions[kernel.reductions.first()?.reduction.0].length();
    let (mut along, mut across) = (0, 0);
    let mut finds_places = false;
    for pass in &kernel.reductions {
        let reduction = plan.reductions[pass.reduction.0].clone();
        finds_places |= reduction.op == ReduceOp::ArgMax;
        let (elements, rows) = plan.contiguous_loads(&reduction);
        along += elements;
        across += rows;
    }
    let few = count < 4096;
    let apart = along == 0 && !(few && across == 0) || across > along;
    // A row's own elements are side by side for its threads, or those of its neighbours.
    let may_be_either = tuned && !finds_places && count % 32 == 0 && length >= 8;
    let apart = if may_be_either {
        plan.knobs.whether("a row to a column of threads", apart)
    } else {
        apart
    };
    if apart || length < if tuned { 8 } else { THREADS / 2 } {
        let cells: i64 = kernel.row_shape.iter().product();
        let loops = kernel.reductions.len() + usize::from(cells == length);
        let alone = finds_places || count % 32 != 0;
        return tuned.then(|| columns(plan, count, length, if alone { 0 } else { loops }));
    }
    if !tuned {
        // One form for every length.
        return Some(RowSchedule {
            length,
            width: 1,
            threads: THREADS,
            rows: 1,
            contiguity: Contiguity::Elements,
        });
    }
    let width = match length % 4 {
        0 => plan.knobs.choose("elements of a load", 4, &[1]),
        _ => 1,
    };
    let threads = match length / width {
        // Several loads a thread are under way together; but what a row's threads load at once is a whole line of the cache.
        groups @ 0..=128 => {
            let line = (1 << groups.trailing_zeros()).min(8);
            (groups as u64 / 4).next_power_of_two().max(line).max(2) as i64
        }
        129..=256 => 32,
        257..=1024 => 128,
        1025..=2048 => 256,
        // So many that a long row stays in their registers.
        4097..=8192 => 1024,
        _ => 512,
    };
    let threads = if threads >= 64 {
        evenly(length / width, threads)
    } else {
        threads
    };
    // A warp whose threads exchange values ends as one.
    let threads = if threads < 32 && count % (32 / threads) != 0 {
        32
    } else {
        threads
    };
    let others = [threads * 2, threads / 2, threads / 4, threads * 4].map(|wanted| {
        // Part of a warp, or whole warps.
        if wanted < 32 {
            (wanted.max(1) as u64).next_power_of_two() as i64
        } else {
            wanted / 32 * 32
        }
    });
    let fits = |threads: &i64| {
        (2..=1024).contains(threads)
            && *threads <= (length / width).max(2)
            && (*threads >= 32 || count % (32 / threads) == 0)
    };
    let others: Vec<i64> = others.into_iter().filter(fits).collect();
    let threads = plan.knobs.choose("threads of a row", threads, &others);
    let block = match threads {
        ..=32 => plan
            .knobs
            .choose("threads of a block", THREADS, &[128, 512]),
        _ => threads,
    };
    Some(RowSchedule {
        length,
        width,
        threads,
        rows: block / threads,
        contiguity: Contiguity::Elements,
    })
}

/// About `usual` threads, whole warps, so many that each has as much to do as the others; `usual` where there is no such number.
fn evenly(groups: i64, usual: i64) -> i64 {
    let fits = |threads: &i64| groups % threads == 0 && 4 * threads >= 3 * usual;
    (32..=1024.min(usual * 3 / 2))
        .step_by(32)
        .filter(fits)
        .min_by_key(|threads| (threads - usual).abs())
        .unwrap_or(usual)
}

/// Neighbouring threads have neighbouring rows. More than one share a row where several loops go over it, so that it stays
/// in their registers, and where there are few rows.
fn columns(plan: &mut Plan, count: i64, length: i64, loops: usize) -> RowSchedule {
    let wanted = match loops {
        0 => 1,
        1 => (LATENCY_HIDING_THREADS / count).min(length / 8),
        _ if length <= 32 => 1,
        _ => length / 16,
    };
    let threads = (wanted.max(1) as u64).next_power_of_two().min(32) as i64;
    let threads = if loops == 0 {
        threads
    } else {
        let others = [threads * 2, threads / 2, threads * 4, threads / 4, 1];
        let fits = |threads: &i64| (1..=32).contains(threads) && *threads <= length;
        let others: Vec<i64> = others.into_iter().filter(fits).collect();
        plan.knobs.choose("threads of a row", threads, &others)
    };
    RowSchedule {
        length,
        width: 1,
        threads,
        rows: if threads == 1 { THREADS } else { 32 },
        contiguity: Contiguity::Rows,
    }
}

#[cfg(test)]
mod tests {
    use super::evenly;

    #[test]
    fn no_thread_waits_for_others_where_that_can_be_had() {
        assert_eq!(evenly(2304, 512), 576);
        assert_eq!(evenly(2048, 512), 512);
        assert_eq!(evenly(8192, 1024), 1024);
        // 7 · 11 · 13 groups have no whole warps in them.
        assert_eq!(evenly(1001, 128), 128);
    }
}
