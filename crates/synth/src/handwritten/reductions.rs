//! Pools and reductions.

use super::Chain;
use super::literal::{Literal, tuple};

/// A pool, the same along every dimension of space.
struct PoolWindow {
    kind: &'static str,
    kernel: u64,
    /// That of the kernel where nobody says another.
    stride: Option<u64>,
    padding: u64,
    dilation: u64,
}

impl PoolWindow {
    fn shape_after(&self, shape: &[u64]) -> Option<Vec<u64>> {
        let reach = self.dilation * (self.kernel - 1) + 1;
        let step = self.stride.unwrap_or(self.kernel);
        let mut shape = shape.to_vec();
        for length in &mut shape[2..] {
            *length = (*length + 2 * self.padding).checked_sub(reach)? / step + 1;
        }
        Some(shape)
    }
}

impl Chain<'_> {
    pub(super) fn pool(&mut self) -> Option<()> {
        let dims = self.shape.len().checked_sub(2).filter(|dims| *dims >= 1)?;
        if dims > 3 {
            return None;
        }
        if !self.alone && self.text.rng.chance(30) {
            self.global_pool(dims);
            return Some(());
        }
        let value = self.value.clone();
        let window = self.drawn_pool();
        let shape = window.shape_after(&self.shape)?;
        let arguments = self.pool_arguments(&window);
        let name = self.text.rng.choose_of(match window.kind {
            "Max" => ["pool", "max_pool", "maxpool"],
            _ => ["pool", "avg_pool", "downsample"],
        });
        let layer = self.text.attribute(
            name,
            &format!("nn.{}Pool{dims}d({})", window.kind, arguments.join(", ")),
        );
        let words = match window.kind {
            "Max" => "max pooling",
            _ => "average pooling",
        };
        self.step(&format!("{layer}({value})"), words);
        self.shape = shape;
        Some(())
    }

    fn drawn_pool(&mut self) -> PoolWindow {
        let alone = self.alone;
        let rng = &mut *self.text.rng;
        let kind = rng.choose_of(["Max", "Max", "Avg"]);
        let kernel = if alone {
            rng.choose_of([2, 2, 3, 3, 4, 5, 6, 7, 8, 11])
        } else {
            rng.choose_of([2, 2, 2, 2, 3, 4, 5])
        };
        let stride = if alone {
            rng.choose_of([None, Some(1), Some(2), Some(3), Some(4)])
        } else {
            rng.choose_of([None, None, None, Some(2), Some(1)])
        };
        let borders = match (alone, kernel) {
            (true, _) => 65,
            (false, 3..) => 45,
            (false, _) => 12,
        };
        let padding = if rng.chance(borders) {
            1 + rng.below(kernel as usize / 2) as u64
        } else {
            0
        };
        let dilated = kind == "Max" && rng.chance(if alone { 45 } else { 8 });
        let dilation = if dilated {
            rng.choose_of([2, 2, 3, 4])
        } else {
            1
        };
        PoolWindow {
            kind,
            kernel,
            stride,
            padding: padding.min(kernel / 2),
            dilation,
        }
    }

    /// What the layer is made with: numbers of its own, or the constructor's.
    fn pool_arguments(&mut self, window: &PoolWindow) -> Vec<String> {
        let alone = self.alone;
        let text = &mut self.text;
        let defaults = text.style.defaults && text.style.arguments;
        let by_place = text.rng.chance(50);
        let own = ["kernel_size", "stride", "padding", "dilation"];
        let others: [&str; 4] = match (window.kind, text.rng.below(3)) {
            _ if alone => own,
            ("Max", 0) => [
                "maxpool_kernel_size",
                "maxpool_stride",
                "maxpool_padding",
                "maxpool_dilation",
            ],
            _ => [
                "pool_kernel_size",
                "pool_stride",
                "pool_padding",
                "pool_dilation",
            ],
        };
        let about = [
            "extent of the pool",
            "step of the pool",
            "added at each border",
            "step inside the pool",
        ];
        let numbers = [
            Some(window.kernel),
            window.stride,
            (window.padding > 0).then_some(window.padding),
            (window.dilation > 1).then_some(window.dilation),
        ];
        let usual = [None, Some(window.kernel), Some(0), Some(1)];
        let literal = !alone && text.rng.chance(25);
        let all = alone && text.rng.chance(75);
        let mut arguments = Vec::new();
        for (place, number) in numbers.into_iter().enumerate() {
            if place == 3 && window.kind == "Avg" {
                continue;
            }
            let (given, usual) = match (number, usual[place]) {
                (Some(number), usual) => (number, usual),
                (None, Some(usual)) if all => (usual, Some(usual)),
                _ => continue,
            };
            let value = match usual {
                _ if literal => given.to_string(),
                Some(usual) if alone && place > 1 && defaults => {
                    text.made_with_default(others[place], about[place], given, usual)
                }
                _ => text.made_with(others[place], about[place], given),
            };
            arguments.push(match place {
                0 if by_place => value,
                _ => format!("{}={value}", own[place]),
            });
        }
        arguments
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
        let dim = match self.text.rng.below(10) {
            0..=5 => 1,
            6..=7 => rank - 1,
            _ => 1 + self.text.rng.below(rank - 1),
        };
        // Nothing is left to reduce after another reduction, and yet people do.
        let rarely = op != "var" && op != "std" && self.text.rng.chance(15);
        if self.shape[dim] < 2 && !rarely {
            return None;
        }
        let keep = self.text.rng.chance(65);
        let written = if dim == rank - 1 && self.text.rng.chance(30) {
            "-1".to_owned()
        } else if self.text.rng.chance(12) {
            let name = self.text.rng.choose_of(["dim", "reduce_dim", "max_dim"]);
            let dim = Literal::from(dim as u64);
            self.text.setting(name, "dimension that is reduced", dim)
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
