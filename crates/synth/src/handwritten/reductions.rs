//! Pools and reductions.

use super::Chain;
use super::literal::{Literal, tuple};

impl Chain<'_> {
    pub(super) fn pool(&mut self) -> Option<()> {
        let dims = self.shape.len().checked_sub(2).filter(|dims| *dims >= 1)?;
        if dims > 3 {
            return None;
        }
        if self.text.rng.chance(30) {
            self.global_pool(dims);
            return Some(());
        }
        let value = self.value.clone();
        let kernel = self.text.rng.choose_of([2, 2, 2, 3, 4]);
        let stride = self
            .text
            .rng
            .choose_of([None, None, None, Some(2), Some(1)]);
        let padding = u64::from(self.text.rng.chance(if kernel >= 3 { 55 } else { 15 }));
        let kind = self.text.rng.choose_of(["Max", "Max", "Avg"]);
        let dilation = if kind == "Max" && padding == 0 && self.text.rng.chance(10) {
            2
        } else {
            1
        };
        let step = stride.unwrap_or(kernel);
        let mut shape = self.shape.clone();
        for length in &mut shape[2..] {
            *length = (*length + 2 * padding).checked_sub(dilation * (kernel - 1) + 1)? / step + 1;
        }
        self.shape = shape;
        let given = self
            .text
            .made_with("pool_kernel_size", "extent of the pool", kernel);
        let mut arguments = if self.text.rng.chance(50) {
            vec![given]
        } else {
            vec![format!("kernel_size={given}")]
        };
        if let Some(stride) = stride {
            let given = self
                .text
                .made_with("pool_stride", "step of the pool", stride);
            arguments.push(format!("stride={given}"));
        }
        if padding > 0 {
            let given = self
                .text
                .made_with("pool_padding", "added at each border", padding);
            arguments.push(format!("padding={given}"));
        }
        if dilation > 1 {
            arguments.push(format!("dilation={dilation}"));
        }
        let name = self.text.rng.choose_of(["pool", "pool", "downsample"]);
        let layer = self.text.attribute(
            name,
            &format!("nn.{kind}Pool{dims}d({})", arguments.join(", ")),
        );
        let words = if kind == "Max" {
            "max pooling"
        } else {
            "average pooling"
        };
        self.step(&format!("{layer}({value})"), words);
        Some(())
    }

    fn global_pool(&mut self, dims: usize) {
        let value = self.value.clone();
        let space: Vec<usize> = (2..dims + 2).collect();
        let keep = self.text.rng.chance(60);
        let expression = match self.text.rng.below(4) {
            0 if keep => {
                let class = format!("AdaptiveAvgPool{dims}d");
                let ones = if dims == 1 || self.text.rng.chance(50) {
                    "1".to_owned()
                } else {
                    tuple(&vec![1; dims])
                };
                let layer = self
                    .text
                    .attribute("global_pool", &format!("nn.{class}({ones})"));
                format!("{layer}({value})")
            }
            1 if keep => {
                let name = format!("adaptive_avg_pool{dims}d");
                format!("{}({value}, 1)", self.text.functional(&name))
            }
            _ => {
                let keep = if keep { ", keepdim=True" } else { "" };
                if self.text.rng.chance(60) {
                    format!("torch.mean({value}, dim={}{keep})", tuple(&space))
                } else {
                    let dims: Vec<String> = space.iter().map(ToString::to_string).collect();
                    format!("{value}.mean(dim=[{}]{keep})", dims.join(", "))
                }
            }
        };
        self.step(&expression, "global average pooling");
        self.shape.truncate(2);
        if keep {
            self.shape.extend(vec![1; dims]);
        }
    }

    /// Of an extreme and its place, the extreme.
    fn picked(&mut self, op: &str) -> &'static str {
        match op {
            "max" | "min" if self.text.rng.chance(50) => ".values",
            "max" | "min" => "[0]",
            _ => "",
        }
    }

    pub(super) fn reduce(&mut self) -> Option<()> {
        let rank = self.shape.len();
        if rank < 2 {
            return None;
        }
        let value = self.value.clone();
        let op = self.text.rng.choose_of([
            "sum",
            "sum",
            "mean",
            "mean",
            "max",
            "max",
            "min",
            "logsumexp",
            "logsumexp",
            "amax",
            "var",
            "std",
        ]);
        let dim = if rank > 2 && self.text.rng.chance(40) {
            rank - 1
        } else {
            1
        };
        if self.shape[dim] < 2 {
            return None;
        }
        let keep = self.text.rng.chance(65);
        let written = if dim == rank - 1 && self.text.rng.chance(40) {
            "-1".to_owned()
        } else {
            dim.to_string()
        };
        let kept = if keep { ", keepdim=True" } else { "" };
        let picked = self.picked(op);
        let expression = if self.text.rng.chance(75) {
            format!("torch.{op}({value}, dim={written}{kept}){picked}")
        } else {
            format!("{value}.{op}(dim={written}{kept}){picked}")
        };
        let words = match op {
            "sum" => "a sum",
            "mean" => "a mean",
            "max" | "amax" => "a maximum",
            "min" => "a minimum",
            "logsumexp" => "log-sum-exp",
            "var" => "a variance",
            _ => "a standard deviation",
        };
        self.step(&expression, words);
        if keep {
            self.shape[dim] = 1;
        } else {
            self.shape.remove(dim);
        }
        Some(())
    }

    pub(super) fn lone_pool(&mut self) -> Option<()> {
        let dims = self.text.rng.choose_of([1, 2, 2, 3]);
        let channels = self.text.rng.choose_of([16, 32, 64, 96, 128]);
        self.spatial_input(dims, channels);
        self.pool()
    }

    pub(super) fn lone_reduction(&mut self) -> Option<()> {
        self.any_input();
        if self.text.rng.chance(75) {
            // Over a dimension that the constructor is told, as often as not.
            let rank = self.shape.len();
            let dim = 1 + self.text.rng.below(rank - 1);
            let value = self.value.clone();
            let op = self.text.rng.choose_of([
                "sum", "mean", "max", "min", "min", "argmax", "argmin", "argmin", "prod", "amax",
                "amin", "var", "norm",
            ]);
            let given = self.text.setting(
                "dim",
                "dimension that is reduced",
                Literal::from(dim as u64),
            );
            let keep = !op.starts_with("arg") && self.text.rng.chance(40);
            let kept = if keep { ", keepdim=True" } else { "" };
            let picked = self.picked(op);
            let named = if self.text.rng.chance(80) {
                "dim="
            } else if op == "norm" {
                return None;
            } else {
                ""
            };
            let expression = if self.text.rng.chance(75) {
                format!("torch.{op}({value}, {named}{given}{kept}){picked}")
            } else {
                format!("{value}.{op}({named}{given}{kept}){picked}")
            };
            let mut shape = self.shape.clone();
            if keep {
                shape[dim] = 1;
            } else {
                shape.remove(dim);
            }
            self.returned(expression, "a reduction over one dimension", shape);
            return Some(());
        }
        self.reduce()
    }
}
