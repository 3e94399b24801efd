//! What each launch of a solution does, in a line.

use super::SolutionEmitter;
use crate::library::{Gemm, Library};
use crate::plan::{Kernel, KernelStep};

pub(super) fn listed<T: ToString>(shape: &[T], between: &str) -> String {
    let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
    extents.join(between)
}

/// Extents as a product: 8 x 64.
fn joined_extents(shape: &[i64]) -> String {
    let several: Vec<i64> = shape
        .iter()
        .copied()
        .filter(|extent| *extent != 1)
        .collect();
    match &several[..] {
        [] => "1".to_owned(),
        several => listed(several, " x "),
    }
}

impl SolutionEmitter {
    /// `mean`: 8 x 64 rows of 256 (sum), to (8, 64).
    pub(crate) fn describe_step(&self, step: &KernelStep) -> String {
        let plan = self.plan();
        let what = match &step.kernel {
            Kernel::Rows(rows) => {
                let result = listed(&plan.buffers[rows.out.0].shape, ", ");
                let mut lengths: Vec<(String, Vec<&str>)> = Vec::new();
                for pass in &rows.reductions {
                    let reduction = &plan.reductions[pass.reduction.0];
                    let (length, fold) = (joined_extents(&reduction.extents), reduction.op.word());
                    match lengths.iter_mut().find(|(known, _)| *known == length) {
                        Some((_, folds)) if folds.contains(&fold) => {}
                        Some((_, folds)) => folds.push(fold),
                        None => lengths.push((length, vec![fold])),
                    }
                }
                if lengths.is_empty() {
                    format!("each of ({result})")
                } else {
                    // The reduction's own extents, because a kernel may flatten them.
                    let first = &plan.reductions[rows.reductions[0].reduction.0];
                    let is_same = first.rows() == rows.outer.iter().product::<i64>();
                    let outer = joined_extents(if is_same { &first.outer } else { &rows.outer });
                    let lengths = lengths.iter();
                    let lengths =
                        lengths.map(|(length, folds)| format!("{length} ({})", folds.join(", ")));
                    let lengths: Vec<String> = lengths.collect();
                    let noun = if outer == "1" { "row" } else { "rows" };
                    format!("{outer} {noun} of {}, to ({result})", lengths.join(" and "))
                }
            }
            Kernel::Scan(scan) => {
                let [before, along, after] = scan.shape;
                let shape = &plan.buffers[scan.out.0].shape;
                let is_along = |dim: &usize| {
                    let (outer, rest) = shape.split_at(*dim);
                    let inner: i64 = rest[1..].iter().product();
                    (outer.iter().product::<i64>(), rest[0], inner) == (before, along, after)
                };
                let lines = match (0..shape.len()).find(is_along) {
                    Some(dim) => joined_extents(&[&shape[..dim], &shape[dim + 1..]].concat()),
                    None => (before * after).to_string(),
                };
                format!("{lines} lines of {along}, one after another along each")
            }
            Kernel::Attention(one) => format!(
                "{} x {} queries of {} keys, {} scores that are never stored",
                one.batch,
                one.queries,
                one.keys,
                one.scores()
            ),
            Kernel::Library(Library::Gemm(gemm)) => {
                let rows = listed(&self.rows_of_product(gemm), " x ");
                let of_batch = match gemm.batch {
                    1 => String::new(),
                    several => format!("{several} of "),
                };
                format!("library, {of_batch}{rows} x {} over {}", gemm.n, gemm.k)
            }
            Kernel::Library(Library::Convolution(_)) => "library".to_owned(),
        };
        format!("`{}`: {what}", step.name)
    }

    /// The extents of a result that are the rows of a product.
    pub(super) fn rows_of_product(&self, gemm: &Gemm) -> Vec<i64> {
        let shape = &self.plan().buffers[gemm.out.0].shape;
        let ends = (1..shape.len()).find(|end| shape[..*end].iter().product::<i64>() == gemm.m);
        let several = |end: usize| {
            shape[..end]
                .iter()
                .copied()
                .filter(|one| *one != 1)
                .collect()
        };
        match ends {
            Some(end) if gemm.batch == 1 && gemm.m > 1 => several(end),
            _ => vec![gemm.m],
        }
    }
}
