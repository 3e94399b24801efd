//! A matrix product by itself, in the ways it is met.

#![expect(
    clippy::unnecessary_wraps,
    reason = "a step may not fit, so all of them have one type"
)]

use super::Chain;
use super::literal::{Extent, extent};
use super::text::InputDraw;

impl Chain<'_> {
    /// A length of a matrix: round, or not.
    fn length(&mut self) -> u64 {
        let rng = &mut *self.text.rng;
        if rng.chance(25) {
            return 33 + rng.below(9000) as u64;
        }
        rng.choose_of([
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
    pub(super) fn lone_product(&mut self) -> Option<()> {
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
        let (expression, words, shape): (String, &str, Vec<u64>) = match self.text.rng.below(31) {
            0..=3 | 16 | 17 => {
                self.two_inputs(names, vec![m_, k_], vec![k_, n_]);
                let expression = if self.text.rng.chance(20) {
                    format!("torch.mm({a}, {b})")
                } else {
                    matmul(self, a, b)
                };
                (expression, "a matrix product", vec![m, n])
            }
            4 | 19 | 20 => {
                self.two_inputs(names, vec![k_, m_], vec![k_, n_]);
                let left = transpose(self, a);
                (
                    matmul(self, &left, b),
                    "a product with the first matrix transposed",
                    vec![m, n],
                )
            }
            5 | 21 | 22 => {
                self.two_inputs(names, vec![m_, k_], vec![n_, k_]);
                let right = transpose(self, b);
                (
                    matmul(self, a, &right),
                    "a product with the second matrix transposed",
                    vec![m, n],
                )
            }
            6 | 23 => {
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
            27 | 28 => {
                let side = extent("N", m);
                self.text.input(a, vec![side, side], InputDraw::Symmetric);
                self.text.input(b, vec![side, side], InputDraw::Symmetric);
                (
                    matmul(self, a, b),
                    "a product of symmetric matrices",
                    vec![m, m],
                )
            }
            13 | 14 | 24 | 29 | 30 => {
                self.written_out = true;
                let n = n.min(4096);
                let side = extent("N", n);
                let part = self.text.rng.choose_of(["triu", "tril"]);
                let draw = match part {
                    "triu" => InputDraw::Upper,
                    _ => InputDraw::Lower,
                };
                self.text.input(a, vec![side, side], draw);
                self.text.input(b, vec![side, side], draw);
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
}
