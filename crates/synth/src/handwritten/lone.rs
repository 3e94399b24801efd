//! A module of one operator: a product, a convolution, an activation, a norm, a pool, a reduction, a scan, a loss.

#![expect(
    clippy::unnecessary_wraps,
    reason = "a step may not fit, so all of them have one type"
)]

use super::Chain;
use super::literal::{Extent, Literal, extent};
use super::text::InputDraw;

impl Chain<'_> {
    /// One operator on inputs that fit it.
    pub(super) fn lone(&mut self) -> Option<()> {
        match self.text.rng.weighted(&[22, 33, 14, 15, 9, 11, 6, 10, 2])? {
            0 => self.lone_product(),
            1 => self.lone_convolution(),
            2 => self.lone_activation(),
            3 => self.lone_norm(),
            4 => self.lone_pool(),
            5 => self.lone_reduction(),
            6 => self.lone_scan(),
            7 => self.lone_loss(),
            _ => self.lone_attention(),
        }?;
        // With one step more it is a task of our own.
        if self.written_out && self.text.rng.chance(75) {
            if self.text.rng.chance(50) || self.shape.is_empty() {
                self.scale()?;
            } else {
                self.activation()?;
            }
        }
        Some(())
    }

    /// Marks what follows as written out in several operators, often with one before it.
    pub(super) fn write_out(&mut self) -> Option<()> {
        self.written_out = true;
        if self.text.rng.chance(45) {
            self.activation()?;
        }
        Some(())
    }

    fn lone_convolution(&mut self) -> Option<()> {
        if self.text.rng.chance(14) {
            return self.separable_convolution();
        }
        let dims = self.text.rng.choose_of([1, 2, 2, 3]);
        if self.text.rng.chance(55) {
            self.convolution(dims, false)
        } else {
            self.transposed_convolution(dims, false)
        }
    }

    /// `return EXPRESSION`, or a line for it.
    pub(super) fn returned(&mut self, expression: String, words: &str, shape: Vec<u64>) {
        if self.text.rng.chance(60) {
            self.text.says(words);
            self.value = expression;
        } else {
            self.step(&expression, words);
        }
        self.shape = shape;
    }

    /// An input of any rank for what works element by element.
    pub(super) fn any_input(&mut self) {
        let rng = &mut *self.text.rng;
        match rng.below(4) {
            0 | 1 => {
                let batch = if rng.chance(20) {
                    2 + rng.below(5000) as u64
                } else {
                    rng.choose_of([16, 64, 100, 512, 1024, 2048, 4096, 8192, 32768])
                };
                let mut dim = if rng.chance(25) {
                    130 + rng.below(400_000) as u64
                } else {
                    rng.choose_of([
                        1000, 4096, 8192, 16384, 30000, 65535, 131_072, 262_144, 393_000, 524_288,
                    ])
                };
                while batch * dim >= 1 << 31 {
                    dim /= 2;
                }
                let name = rng.choose_of(["dim", "dim", "features", "num_features"]);
                self.begin("x", vec![extent("batch_size", batch), extent(name, dim)]);
            }
            2 => {
                let dims = rng.choose_of([1, 2, 2, 3]);
                let channels = rng.choose_of([16, 32, 64, 96, 128]);
                self.spatial_input(dims, channels);
            }
            _ => {
                let (batch, length, dim) = (
                    rng.choose_of([8, 16, 32, 64]),
                    rng.choose_of([128, 500, 1024, 2048, 4096, 4000]),
                    rng.choose_of([128, 256, 768, 1024, 2047, 3000, 4095]),
                );
                let names = rng.choose_of([("seq_len", "dim"), ("dim1", "dim2"), ("dim1", "dim2")]);
                self.begin(
                    "x",
                    vec![
                        extent("batch_size", batch),
                        extent(names.0, length),
                        extent(names.1, dim),
                    ],
                );
            }
        }
    }

    fn lone_activation(&mut self) -> Option<()> {
        self.any_input();
        match self.text.rng.below(10) {
            0..=6 => self.activation(),
            7 => {
                self.write_out()?;
                self.formula()
            }
            _ => self.softmax(),
        }
    }

    fn lone_scan(&mut self) -> Option<()> {
        let rng = &mut *self.text.rng;
        let (batch, length) = (
            rng.choose_of([128, 1000, 2048, 4096, 16384, 32768]),
            rng.choose_of([512, 1000, 4096, 16384, 32768]),
        );
        if batch * length > 1 << 30 {
            return None;
        }
        let name = rng.choose_of(["dim", "length", "input_size"]);
        let extents = vec![extent("batch_size", batch), extent(name, length)];
        self.begin("x", extents.clone());
        let dim = self
            .text
            .setting("dim", "dimension of the scan", Literal::Int(1));
        let value = self.value.clone();
        let kind = self.text.rng.below(8);
        self.written_out = matches!(kind, 3 | 4 | 6);
        let (expression, words) = match kind {
            6 => (
                format!("torch.cumsum({value}, dim={dim}) - {value}"),
                "a cumulative sum of what comes before",
            ),
            0 | 1 => (
                format!("torch.cumsum({value}, dim={dim})"),
                "a cumulative sum",
            ),
            2 => (
                format!("torch.cumprod({value}, dim={dim})"),
                "a cumulative product",
            ),
            3 => (
                format!("torch.cumsum({value}.flip({dim}), dim={dim}).flip({dim})"),
                "a cumulative sum from the end",
            ),
            4 => {
                self.text.input("mask", extents, InputDraw::Boolean);
                (
                    format!("torch.cumsum({value} * mask, dim={dim})"),
                    "a cumulative sum of what a mask selects",
                )
            }
            _ => (
                format!("torch.cummax({value}, dim={dim})[0]"),
                "a cumulative maximum",
            ),
        };
        let shape = self.shape.clone();
        self.returned(expression, words, shape);
        Some(())
    }

    fn lone_loss(&mut self) -> Option<()> {
        let rng = &mut *self.text.rng;
        let (batch, dim) = (
            rng.choose_of([128, 1000, 4096, 16384, 32768]),
            rng.choose_of([64, 1000, 4096, 16384, 32768]),
        );
        if batch * dim > 1 << 30 {
            return None;
        }
        let shape = vec![extent("batch_size", batch), extent("num_features", dim)];
        let (p, t) = rng.choose_of([
            ("predictions", "targets"),
            ("pred", "target"),
            ("x", "target"),
        ]);
        let normal = rng.choose_of([InputDraw::Normal, InputDraw::Normal, InputDraw::Scaled]);
        // Such constants are mostly one.
        self.text.style.shape_constant |= self.text.rng.chance(40);
        let rng = &mut *self.text.rng;
        let (expression, words) = match rng.below(13) {
            11 | 12 => return self.triplet_loss(&shape),
            0 | 1 => {
                self.text.input(p, shape.clone(), normal);
                self.text.input(t, shape, normal);
                (
                    self.text
                        .rng
                        .choose_of(["torch.mean(({p} - {t}) ** 2)", "{F}mse_loss({p}, {t})"]),
                    "a mean squared error",
                )
            }
            2 | 3 => {
                self.text.input(p, shape.clone(), normal);
                self.text.input(t, shape, normal);
                (
                    self.text.rng.choose_of([
                        "{F}smooth_l1_loss({p}, {t})",
                        "{F}huber_loss({p}, {t})",
                        "{F}l1_loss({p}, {t})",
                        "torch.mean(torch.abs({p} - {t}))",
                    ]),
                    "an error that grows linearly",
                )
            }
            4 | 5 => {
                self.text.input(p, shape, normal);
                self.text.input(
                    t,
                    vec![extent("batch_size", batch)],
                    InputDraw::Below(dim.min(1000)),
                );
                ("{F}cross_entropy({p}, {t})", "cross-entropy")
            }
            6 => {
                self.text.input(p, shape.clone(), InputDraw::Probabilities);
                self.text.input(t, shape, InputDraw::Probabilities);
                (
                    "{F}kl_div(torch.log({p}), {t}, reduction=\"batchmean\")",
                    "a KL divergence",
                )
            }
            7 => {
                self.text.input(p, shape.clone(), normal);
                self.text.input(t, shape, normal);
                (
                    "torch.mean(1 - {F}cosine_similarity({p}, {t}, dim=1))",
                    "a cosine distance",
                )
            }
            8 | 9 => {
                self.text.input(p, shape, normal);
                self.text
                    .input(t, vec![extent("num_features", dim)], InputDraw::Signs);
                (
                    "torch.mean(torch.clamp(1 - {p} * {t}, min=0))",
                    "a hinge loss",
                )
            }
            _ => {
                self.text.input(p, shape.clone(), normal);
                self.text.input(t, shape, InputDraw::Uniform);
                (
                    "{F}binary_cross_entropy_with_logits({p}, {t})",
                    "binary cross-entropy",
                )
            }
        };
        let prefix = if expression.contains("{F}") {
            self.text.functional("")
        } else {
            String::new()
        };
        let expression = expression
            .replace("{F}", &prefix)
            .replace("{p}", p)
            .replace("{t}", t);
        self.written_out = !matches!(words, "cross-entropy" | "binary cross-entropy");
        self.returned(expression, words, Vec::new());
        Some(())
    }

    /// Of three tensors, how much nearer the second is to the first than the third.
    fn triplet_loss(&mut self, shape: &[Extent]) -> Option<()> {
        let names = ["anchor", "positive", "negative"];
        for name in names {
            self.text.input(name, shape.to_vec(), InputDraw::Normal);
        }
        let margin = self.text.rng.choose_of([0.3, 0.5, 1.0, 2.0]);
        let expression = if self.text.rng.chance(70) {
            let usual = Literal::Float(1.0);
            let value = Literal::Float(margin);
            let given =
                self.text
                    .made_with_default("margin", "how much nearer it is to be", value, usual);
            let layer = self
                .text
                .attribute("loss_fn", &format!("nn.TripletMarginLoss(margin={given})"));
            format!("{layer}({})", names.join(", "))
        } else {
            let value = Literal::Float(margin);
            let given = self
                .text
                .setting("margin", "how much nearer it is to be", value);
            let function = self.text.functional("triplet_margin_loss");
            format!("{function}({}, margin={given})", names.join(", "))
        };
        self.returned(expression, "a triplet loss", Vec::new());
        Some(())
    }

    fn lone_attention(&mut self) -> Option<()> {
        let rng = &mut *self.text.rng;
        let extents = vec![
            extent("batch_size", rng.choose_of([2, 4, 8, 16])),
            extent("num_heads", rng.choose_of([4, 8, 12, 16])),
            extent("seq_len", rng.choose_of([128, 256, 512, 1024])),
            extent("head_dim", rng.choose_of([32, 64, 128])),
        ];
        let shape = extents.iter().map(|one| one.length).collect();
        let causal = rng.chance(35);
        let names = rng.choose_of([["q", "k", "v"], ["Q", "K", "V"], ["query", "key", "value"]]);
        for name in names {
            self.text.input(name, extents.clone(), InputDraw::Normal);
        }
        let causal = if causal { ", is_causal=True" } else { "" };
        let function = self.text.functional("scaled_dot_product_attention");
        let expression = format!("{function}({}{causal})", names.join(", "));
        self.returned(expression, "attention", shape);
        Some(())
    }
}
