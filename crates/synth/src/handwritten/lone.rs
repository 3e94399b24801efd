//! A module of one operator: a product, a convolution, an activation, a norm, a pool, a reduction, a scan, a loss.

#![expect(
    clippy::unnecessary_wraps,
    reason = "a step may not fit, so all of them have one type"
)]

use super::Chain;
use super::text::{Extent, InputDraw, Literal, extent};

impl Chain<'_> {
    /// One operator on inputs that fit it.
    pub(super) fn lone(&mut self) -> Option<()> {
        match self.text.rng.weighted(&[20, 30, 14, 12, 8, 12, 6, 8, 2])? {
            0 => self.lone_product(),
            1 => self.lone_convolution(),
            2 => self.lone_activation(),
            3 => self.lone_norm(),
            4 => self.lone_pool(),
            5 => self.lone_reduction(),
            6 => self.lone_scan(),
            7 => self.lone_loss(),
            _ => self.lone_attention(),
        }
    }

    fn lone_convolution(&mut self) -> Option<()> {
        let dims = self.text.rng.choose_of([1, 2, 2, 2, 3]);
        if self.text.rng.chance(60) {
            self.convolution(dims, false)
        } else {
            self.transposed_convolution(dims, false)
        }
    }

    /// A length of a matrix: round, or not.
    fn length(&mut self) -> u64 {
        self.text.rng.choose_of([
            32, 64, 100, 128, 205, 256, 300, 512, 640, 1000, 1024, 1536, 2048, 2949, 4096, 5000,
            6144, 8192,
        ])
    }

    /// Names of two operands.
    fn operand_names(&mut self) -> (&'static str, &'static str) {
        self.text
            .rng
            .choose_of([("A", "B"), ("A", "B"), ("a", "b"), ("x", "y")])
    }

    fn two_inputs(&mut self, names: (&'static str, &'static str), a: Vec<Extent>, b: Vec<Extent>) {
        let draw = self
            .text
            .rng
            .choose_of([InputDraw::Uniform, InputDraw::Normal]);
        self.text.input(names.0, a, draw);
        self.text.input(names.1, b, draw);
    }

    #[expect(
        clippy::many_single_char_names,
        reason = "a matrix product is m by n over k"
    )]
    fn lone_product(&mut self) -> Option<()> {
        let names = self.operand_names();
        let (a, b) = names;
        let (m, n, k) = (self.length(), self.length(), self.length());
        let rows = |m| extent("M", m);
        let (m_, n_, k_) = (rows(m), extent("N", n), extent("K", k));
        let matmul = |chain: &mut Self, left: &str, right: &str| match chain.text.rng.below(4) {
            0 => format!("{left} @ {right}"),
            _ => format!("torch.matmul({left}, {right})"),
        };
        let transpose = |chain: &mut Self, name: &str| match chain.text.rng.below(3) {
            0 => format!("{name}.t()"),
            1 => format!("{name}.transpose(0, 1)"),
            _ => format!("{name}.T"),
        };
        let (expression, words, shape): (String, &str, Vec<u64>) = match self.text.rng.below(20) {
            0..=3 | 16 | 17 => {
                self.two_inputs(names, vec![m_, k_], vec![k_, n_]);
                let expression = if self.text.rng.chance(20) {
                    format!("torch.mm({a}, {b})")
                } else {
                    matmul(self, a, b)
                };
                (expression, "a matrix product", vec![m, n])
            }
            4 => {
                self.two_inputs(names, vec![k_, m_], vec![k_, n_]);
                let left = transpose(self, a);
                (
                    matmul(self, &left, b),
                    "a product with the first matrix transposed",
                    vec![m, n],
                )
            }
            5 => {
                self.two_inputs(names, vec![m_, k_], vec![n_, k_]);
                let right = transpose(self, b);
                (
                    matmul(self, a, &right),
                    "a product with the second matrix transposed",
                    vec![m, n],
                )
            }
            6 => {
                self.two_inputs(names, vec![k_, m_], vec![n_, k_]);
                let (left, right) = (transpose(self, a), transpose(self, b));
                (
                    matmul(self, &left, &right),
                    "a product of two transposed matrices",
                    vec![m, n],
                )
            }
            7 | 8 => {
                let batch = self.text.rng.choose_of([4, 8, 16, 32, 100, 128]);
                let (m, n, k) = (m.min(1024), n.min(1024), k.min(1024));
                let batch_ = extent("batch_size", batch);
                self.two_inputs(
                    names,
                    vec![batch_, extent("m", m), extent("k", k)],
                    vec![batch_, extent("k", k), extent("n", n)],
                );
                let expression = if self.text.rng.chance(60) {
                    format!("torch.bmm({a}, {b})")
                } else {
                    matmul(self, a, b)
                };
                (
                    expression,
                    "products of batches of matrices",
                    vec![batch, m, n],
                )
            }
            9 | 18 => {
                let batch = self.text.rng.choose_of([4, 8, 16, 24]);
                let (m, k, n) = (m.min(2048), k.min(2048), n.min(2048));
                self.two_inputs(
                    names,
                    vec![extent("N", batch), extent("M", m), extent("K", k)],
                    vec![extent("K", k), extent("L", n)],
                );
                (
                    matmul(self, a, b),
                    "a tensor times a matrix",
                    vec![batch, m, n],
                )
            }
            10 => {
                let (b_, i, j) = (
                    self.text.rng.choose_of([2, 4, 8]),
                    self.text.rng.choose_of([16, 64, 256]),
                    self.text.rng.choose_of([100, 256, 512]),
                );
                let (k, l) = (k.min(768), n.min(512));
                self.two_inputs(
                    names,
                    vec![
                        extent("batch", b_),
                        extent("rows", i),
                        extent("cols", j),
                        extent("inner", l),
                    ],
                    vec![extent("inner", l), extent("outer", k)],
                );
                let expression = if self.text.rng.chance(50) {
                    format!("torch.einsum(\"nijl,lk->nijk\", {a}, {b})")
                } else {
                    matmul(self, a, b)
                };
                (
                    expression,
                    "a four-dimensional tensor times a matrix",
                    vec![b_, i, j, k],
                )
            }
            11 => {
                let (m, k) = (
                    self.text.rng.choose_of([256, 1000, 2048, 4096]),
                    self.text.rng.choose_of([4096, 65536, 131_072]),
                );
                self.two_inputs(
                    names,
                    vec![extent("M", m), extent("K", k)],
                    vec![extent("K", k), extent("one", 1)],
                );
                (matmul(self, a, b), "a matrix times a vector", vec![m, 1])
            }
            12 => {
                let d = self.length().min(4096);
                self.two_inputs(
                    names,
                    vec![extent("N", d)],
                    vec![extent("N", d), extent("M", m)],
                );
                let expression = match self.text.rng.below(3) {
                    0 => format!("{a}.unsqueeze(1) * {b}"),
                    1 => format!("{a}[:, None] * {b}"),
                    _ => format!("torch.diag({a}) @ {b}"),
                };
                (expression, "a diagonal matrix times a matrix", vec![d, m])
            }
            13 | 14 => {
                let n = n.min(4096);
                let side = extent("N", n);
                self.two_inputs(names, vec![side, side], vec![side, side]);
                let part = self.text.rng.choose_of(["triu", "tril"]);
                let product = matmul(self, a, b);
                (
                    format!("torch.{part}({product})"),
                    "a product of triangular matrices",
                    vec![n, n],
                )
            }
            _ => {
                let (k, m, n) = (
                    self.text.rng.choose_of([65536, 131_072, 262_144]),
                    self.text.rng.choose_of([64, 200, 256]),
                    self.text.rng.choose_of([64, 128, 256]),
                );
                self.two_inputs(
                    names,
                    vec![extent("M", m), extent("K", k)],
                    vec![extent("K", k), extent("N", n)],
                );
                (
                    matmul(self, a, b),
                    "a product over a long dimension",
                    vec![m, n],
                )
            }
        };
        self.returned(expression, words, shape);
        Some(())
    }

    /// `return EXPRESSION`, or a line for it.
    fn returned(&mut self, expression: String, words: &str, shape: Vec<u64>) {
        if self.text.rng.chance(60) {
            self.text.says(words);
            self.value = expression;
        } else {
            self.step(&expression, words);
        }
        self.shape = shape;
    }

    /// An input of any rank for what works element by element.
    fn any_input(&mut self) {
        let rng = &mut *self.text.rng;
        match rng.below(4) {
            0 | 1 => {
                let batch = rng.choose_of([16, 64, 100, 512, 1024, 2048, 4096]);
                let dim = rng.choose_of([
                    1000, 4096, 16384, 30000, 65536, 131_072, 262_144, 393_000, 524_288,
                ]);
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
                    rng.choose_of([128, 500, 1024, 2048, 4096]),
                    rng.choose_of([128, 256, 768, 1024, 4095]),
                );
                self.begin(
                    "x",
                    vec![
                        extent("batch_size", batch),
                        extent("seq_len", length),
                        extent("dim", dim),
                    ],
                );
            }
        }
    }

    fn lone_activation(&mut self) -> Option<()> {
        self.any_input();
        match self.text.rng.below(10) {
            0..=6 => self.activation(),
            7 => self.formula(),
            _ => self.softmax(),
        }
    }

    fn lone_norm(&mut self) -> Option<()> {
        if self.text.rng.chance(60) {
            let dims = self.text.rng.choose_of([1, 2, 2, 2, 3]);
            let channels = self.text.rng.choose_of([16, 32, 64, 96, 128]);
            if self.text.rng.chance(15) {
                self.any_input();
            } else {
                self.spatial_input(dims, channels);
            }
            return self.normalise();
        }
        self.any_input();
        let rank = self.shape.len();
        let dim = if rank == 2 || self.text.rng.chance(60) {
            1
        } else {
            rank - 1
        };
        let value = self.value.clone();
        let kept = "keepdim=True";
        match self.text.rng.below(5) {
            0 => {
                let eps = self.epsilon();
                let mean = format!("torch.mean({value} ** 2, dim={dim}, {kept})");
                if self.text.rng.chance(50) {
                    self.text.assign(
                        "rms",
                        &format!("torch.sqrt({mean} + {eps})"),
                        "the root mean square",
                    );
                    self.step(&format!("{value} / rms"), "RMS normalisation");
                } else {
                    self.step(
                        &format!("{value} * torch.rsqrt({mean} + {eps})"),
                        "RMS normalisation",
                    );
                }
            }
            1 => {
                let sum = match self.text.rng.below(2) {
                    0 => format!("torch.sum(torch.abs({value}), dim={dim}, {kept})"),
                    _ => format!("torch.mean({value}.abs(), dim={dim}, {kept})"),
                };
                self.step(&format!("{value} / {sum}"), "L1 normalisation");
            }
            2 => {
                let norm = match self.text.rng.below(3) {
                    0 => format!("{value}.norm(p=2, dim={dim}, {kept})"),
                    1 => format!("torch.norm({value}, p=2, dim={dim}, {kept})"),
                    _ => format!("torch.linalg.vector_norm({value}, dim={dim}, {kept})"),
                };
                self.step(&format!("{value} / {norm}"), "L2 normalisation");
            }
            3 => {
                let norm = match self.text.rng.below(2) {
                    0 => format!("torch.norm({value})"),
                    _ => format!("torch.sqrt(torch.sum({value} * {value}))"),
                };
                if self.text.rng.chance(50) {
                    self.text.assign("norm", &norm, "the norm of all elements");
                    self.step(&format!("{value} / norm"), "normalisation by it");
                } else {
                    self.step(
                        &format!("{value} / {norm}"),
                        "normalisation by the norm of all",
                    );
                }
            }
            _ => {
                let eps = self.epsilon();
                self.text.assign(
                    "mean",
                    &format!("{value}.mean(dim={dim}, {kept})"),
                    "the mean",
                );
                self.text.assign(
                    "var",
                    &format!("{value}.var(dim={dim}, unbiased=False, {kept})"),
                    "the variance",
                );
                self.step(
                    &format!("({value} - mean) / torch.sqrt(var + {eps})"),
                    "standardisation",
                );
            }
        }
        Some(())
    }

    fn lone_pool(&mut self) -> Option<()> {
        let dims = self.text.rng.choose_of([1, 2, 2, 3]);
        let channels = self.text.rng.choose_of([16, 32, 64, 96, 128]);
        self.spatial_input(dims, channels);
        self.pool()
    }

    fn lone_reduction(&mut self) -> Option<()> {
        self.any_input();
        if self.text.rng.chance(75) {
            // Over a dimension that the constructor is told, as often as not.
            let rank = self.shape.len();
            let dim = 1 + self.text.rng.below(rank - 1);
            let value = self.value.clone();
            let op = self.text.rng.choose_of([
                "sum", "mean", "max", "min", "argmax", "argmin", "prod", "amax", "amin", "var",
                "norm",
            ]);
            let given = self.text.setting(
                "dim",
                "dimension that is reduced",
                Literal::from(dim as u64),
            );
            let keep = !op.starts_with("arg") && self.text.rng.chance(40);
            let kept = if keep { ", keepdim=True" } else { "" };
            let picked = match op {
                "max" | "min" if self.text.rng.chance(50) => ".values",
                "max" | "min" => "[0]",
                _ => "",
            };
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
        let (expression, words) = match self.text.rng.below(6) {
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
        let normal = InputDraw::Normal;
        let (expression, words) = match rng.below(11) {
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
        self.returned(expression, words, Vec::new());
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
