//! How many threads share a row, and which.

use super::launch::blocks;
use super::{Launch, THREADS, integer};
use crate::emit::{Helper, Writer};
use crate::plan::{Fold, Rows, Strategy};

/// Threads of a GPU that hide its memory's latency.
const ENOUGH: i64 = 1 << 18;

/// What lies side by side in memory, and with it neighbouring threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Neighbours {
    /// Elements of a row.
    Elements,
    /// Rows; the elements of one lie far apart.
    Rows,
}

/// How threads share a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Team {
    /// Elements of a row.
    pub(super) length: i64,
    /// Elements that are loaded at once.
    pub(super) width: i64,
    /// Threads of a row.
    pub(super) threads: i64,
    /// Rows of a block.
    rows: i64,
    neighbours: Neighbours,
}

impl Team {
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

    /// The thread's number in its team; none where it is alone.
    pub(super) fn member(self) -> Option<&'static str> {
        match (self.neighbours, self.threads) {
            (Neighbours::Rows, 1) => None,
            (Neighbours::Rows, _) => Some("threadIdx.y"),
            (Neighbours::Elements, _) => Some("threadIdx.x"),
        }
    }

    /// Declares `row`.
    pub(super) fn announce(self, writer: &mut Writer<'_>, count: i64) {
        let int = integer(writer.plan);
        let number = match (self.neighbours, self.rows) {
            (Neighbours::Elements, 1) => "blockIdx.x".to_owned(),
            (Neighbours::Elements, rows) => format!("blockIdx.x * {rows} + threadIdx.y"),
            (Neighbours::Rows, rows) => format!("blockIdx.x * {rows} + threadIdx.x"),
        };
        writer.line(format!("const {int} row = {number};"));
        if count % self.rows != 0 {
            let count = writer.count(count);
            writer.line(format!("if (row >= {count}) return;"));
        }
    }

    pub(super) fn launch(self, rows: &[i64]) -> Launch {
        let threads = match (self.neighbours, self.threads, self.rows) {
            (Neighbours::Elements, threads, 1) => threads.to_string(),
            (Neighbours::Elements, threads, rows) => format!("dim3({threads}, {rows})"),
            (Neighbours::Rows, 1, rows) => rows.to_string(),
            (Neighbours::Rows, threads, rows) => format!("dim3({rows}, {threads})"),
        };
        Launch {
            blocks: blocks(rows, self.rows),
            threads,
            most: self.block(),
        }
    }

    /// What the threads of a row have found, put together for all of them.
    pub(super) fn combine(self, writer: &mut Writer<'_>, fold: Fold, name: &str) {
        let (warp, block, column, word) = match fold {
            Fold::Sum => (Helper::WarpSum, Helper::BlockSum, Helper::ColumnSum, "sum"),
            Fold::Product => (
                Helper::WarpProduct,
                Helper::BlockProduct,
                Helper::ColumnProduct,
                "product",
            ),
            Fold::Max => (Helper::WarpMax, Helper::BlockMax, Helper::ColumnMax, "max"),
            Fold::Min => (Helper::WarpMin, Helper::BlockMin, Helper::ColumnMin, "min"),
            // Threads of a column never look for a place together.
            Fold::ArgMax => (
                Helper::WarpArgMax,
                Helper::BlockArgMax,
                Helper::WarpArgMax,
                "best",
            ),
        };
        let threads = self.threads;
        let (helpers, call) = match self.neighbours {
            Neighbours::Rows if threads == 1 => {
                if fold == Fold::ArgMax {
                    writer.helpers.insert(Helper::WarpArgMax);
                }
                return;
            }
            Neighbours::Rows => (vec![column], format!("column_{word}<{threads}>({name})")),
            Neighbours::Elements if threads == 32 => (vec![warp], format!("warp_{word}({name})")),
            Neighbours::Elements if threads < 32 => {
                (vec![warp], format!("warp_{word}<{threads}>({name})"))
            }
            Neighbours::Elements => (
                vec![warp, block],
                format!("block_{word}<{threads}>({name})"),
            ),
        };
        writer.helpers.extend(helpers);
        writer.line(format!("{name} = {call};"));
    }
}

/// The threads for a kernel's rows; none where each row has one thread that goes through it in the order of its loops.
pub(super) fn shared_out(writer: &mut Writer<'_>, kernel: &Rows) -> Option<Team> {
    let plan = &mut *writer.plan;
    if plan.strategy == Strategy::Plain {
        return None;
    }
    let tuned = plan.strategy == Strategy::Tuned;
    let count: i64 = kernel.outer.iter().product();
    let length = plan.reductions[kernel.passes.first()?.reduction.0].length();
    let (mut along, mut across) = (0, 0);
    let mut finds_places = false;
    for pass in &kernel.passes {
        let reduction = plan.reductions[pass.reduction.0].clone();
        finds_places |= reduction.fold == Fold::ArgMax;
        let (elements, rows) = plan.neighbours(&reduction);
        along += elements;
        across += rows;
    }
    let few = count < 4096;
    let apart = along == 0 && !(few && across == 0) || across > along;
    if apart || length < if tuned { 8 } else { 32 } {
        let cells: i64 = kernel.cells.iter().product();
        let loops = kernel.passes.len() + usize::from(cells == length);
        let alone = finds_places || count % 32 != 0;
        return tuned.then(|| columns(count, length, if alone { 0 } else { loops }));
    }
    let width = if tuned && length % 4 == 0 { 4 } else { 1 };
    let threads = match length / width {
        // Several loads a thread are under way together; but what a row's threads load at once is a whole line of the cache.
        groups @ 0..=128 => {
            let line = if tuned {
                (1 << groups.trailing_zeros()).min(8)
            } else {
                2
            };
            (groups as u64 / 4).next_power_of_two().max(line).max(2) as i64
        }
        129..=256 => 32,
        257..=1024 => 128,
        1025..=2048 => 256,
        // So many that a long row stays in their registers.
        4097..=8192 if tuned => 1024,
        _ => 512,
    };
    let threads = if tuned && threads >= 64 {
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
    Some(Team {
        length,
        width,
        threads,
        rows: if threads <= 32 { THREADS / threads } else { 1 },
        neighbours: Neighbours::Elements,
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
fn columns(count: i64, length: i64, loops: usize) -> Team {
    let wanted = match loops {
        0 => 1,
        1 => (ENOUGH / count).min(length / 8),
        _ if length <= 32 => 1,
        _ => length / 16,
    };
    let threads = (wanted.max(1) as u64).next_power_of_two().min(32) as i64;
    Team {
        length,
        width: 1,
        threads,
        rows: if threads == 1 { THREADS } else { 32 },
        neighbours: Neighbours::Rows,
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
