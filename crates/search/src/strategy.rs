//! Ways to make a kernel faster, from which a bandit chooses those that the profile does not rule out.

use warpsmith_schema::{ReferenceBound, Target};

/// A way to make a kernel faster, as a policy is told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchStrategy {
    pub(crate) name: &'static str,
    pub(crate) instruction: &'static str,
    applies: fn(&Situation<'_>) -> bool,
}

/// What decides which strategies can help.
struct Situation<'a> {
    on_gpu: bool,
    bound: &'a str,
    operators: &'a [String],
}

impl Situation<'_> {
    fn has(&self, words: &[&str]) -> bool {
        let mut operators = self.operators.iter();
        operators.any(|operator| words.iter().any(|word| operator.contains(word)))
    }

    fn has_products(&self) -> bool {
        self.has(&["mm", "conv", "linear", "matmul", "dot"])
    }

    fn has_reductions(&self) -> bool {
        self.has(&[
            "sum", "mean", "max", "min", "norm", "softmax", "var", "prod", "loss", "entropy",
            "pool",
        ])
    }

    /// Without a profile nothing is ruled out.
    fn unknown(&self) -> bool {
        self.operators.is_empty()
    }
}

const ALL: [SearchStrategy; 9] = [
    SearchStrategy {
        name: "vectorise",
        instruction: "Read and write wider: 16 bytes a thread on a GPU (`float4`, where aligned), whole vectors in inner loops on a CPU.",
        applies: |of| of.unknown() || of.bound != "compute" || !of.has_products(),
    },
    SearchStrategy {
        name: "tile",
        instruction: "Work in tiles that stay in fast memory (registers and shared memory on a GPU, the first-level cache on a CPU), so that each value is read from main memory once.",
        applies: |of| of.unknown() || of.bound == "compute" || of.has_products(),
    },
    SearchStrategy {
        name: "fuse",
        instruction: "Fuse kernels: what one writes and the next reads should never reach main memory.",
        applies: |of| of.unknown() || of.operators.len() > 1,
    },
    SearchStrategy {
        name: "split reduction",
        instruction: "Split the reduction over more threads or blocks with independent partial results, and combine them at the end.",
        applies: |of| of.unknown() || of.has_reductions(),
    },
    SearchStrategy {
        name: "double buffer",
        instruction: "Load the next tile while the present one is computed (asynchronous copies or a second buffer; prefetching on a CPU).",
        applies: |of| of.unknown() || of.has_products() || of.on_gpu && of.bound == "memory",
    },
    SearchStrategy {
        name: "tensor cores",
        instruction: "Use tensor cores for the products, in a precision that the task's class allows (TF32 where a matrix product or convolution is).",
        applies: |of| of.on_gpu && (of.unknown() || of.has_products()),
    },
    SearchStrategy {
        name: "fewer passes",
        instruction: "Make fewer passes over the data: compute several reductions in one pass (online softmax, Welford), keep values in registers between passes.",
        applies: |of| of.unknown() || of.has_reductions(),
    },
    SearchStrategy {
        name: "library call",
        instruction: "Leave the product to the provided library call with its epilogue, and write only what is around it.",
        applies: |of| of.unknown() || of.has_products(),
    },
    SearchStrategy {
        name: "occupancy",
        instruction: "Change how work is shared out: block size, work for each thread, unrolling, threads for a row; more independent loads under way at a time.",
        applies: |_| true,
    },
];

/// Those that can help here.
pub(crate) fn strategies(
    target: Target,
    reference: Option<&ReferenceBound>,
) -> Vec<SearchStrategy> {
    let none = Vec::new();
    let situation = Situation {
        on_gpu: target == Target::Cuda,
        bound: reference.map_or("unknown", |one| &one.bound),
        operators: reference.map_or(&none, |one| &one.operators),
    };
    let all = ALL.into_iter();
    all.filter(|one| (one.applies)(&situation)).collect()
}

#[cfg(test)]
mod tests {
    use warpsmith_schema::Number;

    use super::*;

    fn names(target: Target, bound: &str, operators: &[&str]) -> Vec<&'static str> {
        let reference = ReferenceBound {
            bound: bound.to_owned(),
            floor_us: Number(1.0),
            operators: operators.iter().map(ToString::to_string).collect(),
        };
        let found = strategies(target, Some(&reference)).into_iter();
        found.map(|one| one.name).collect()
    }

    #[test]
    fn the_profile_rules_strategies_out() {
        assert_eq!(
            names(Target::Cuda, "memory", &["aten::relu"]),
            ["vectorise", "double buffer", "occupancy"]
        );
        let product = names(Target::Cuda, "compute", &["aten::addmm", "aten::gelu"]);
        assert!(
            product.contains(&"tensor cores") && product.contains(&"library call"),
            "{product:?}"
        );
        assert!(!product.contains(&"split reduction"), "{product:?}");
        assert!(!names(Target::Cpu, "compute", &["aten::addmm"]).contains(&"tensor cores"));
        assert_eq!(strategies(Target::Cuda, None).len(), ALL.len());
    }
}
