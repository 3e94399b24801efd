//! A linear layer, which many blocks begin with.

use super::Chain;
use super::literal::{Literal, extent};

impl Chain<'_> {
    /// A linear layer, or a product with a parameter, on rows or on positions of a sequence.
    pub(super) fn linear(&mut self) -> Option<()> {
        let rng = &mut *self.text.rng;
        let mut features = || {
            if rng.chance(12) {
                return 50 + rng.below(9000) as u64;
            }
            rng.choose_of([
                64, 100, 128, 256, 300, 512, 768, 1000, 1024, 2048, 4096, 8192, 16384, 32768,
            ])
        };
        let (from, to) = (features(), features());
        let batch = self.batch(0);
        let (words_in, words_out) = self.text.rng.choose_of([
            ("in_features", "out_features"),
            ("in_features", "out_features"),
            ("input_size", "hidden_size"),
            ("input_size", "output_size"),
            ("dim", "hidden_dim"),
        ]);
        let mut extents = vec![extent("batch_size", batch)];
        if self.text.rng.chance(12) {
            let length = self.text.rng.choose_of([16, 50, 128, 256]);
            extents.push(extent("seq_len", length));
        }
        extents.push(extent(words_in, from));
        let elements: u64 = extents.iter().map(|one| one.length).product();
        if elements > 1 << 28 || elements / from * to > 1 << 28 {
            return None;
        }
        self.begin("x", extents);
        let text = &mut self.text;
        let given_in = text.made_with(words_in, "features of the input", from);
        let given_out = text.made_with(words_out, "features of the result", to);
        let expression = if text.rng.chance(85) {
            let bias = if text.rng.chance(12) {
                ", bias=False".to_owned()
            } else if text.style.defaults && text.style.arguments && text.rng.chance(30) {
                let about = "whether there is a bias";
                let is_usual = text.rng.chance(80);
                let value = Literal::Bool(is_usual);
                let value = text.made_with_default("bias", about, value, Literal::Bool(true));
                format!(", bias={value}")
            } else {
                String::new()
            };
            let name = text
                .rng
                .choose_of(["linear", "fc", "gemm", "matmul", "proj"]);
            let layer = text.attribute(name, &format!("nn.Linear({given_in}, {given_out}{bias})"));
            format!("{layer}({})", self.value)
        } else if text.rng.chance(60) {
            let value = format!("nn.Parameter(torch.randn({given_out}, {given_in}))");
            let weight = text.attribute("weight", &value);
            format!("torch.matmul({}, {weight}.T)", self.value)
        } else {
            let value = format!("nn.Parameter(torch.randn({given_in}, {given_out}) * 0.02)");
            let weight = text.attribute("weight", &value);
            format!("{} @ {weight}", self.value)
        };
        self.step(&expression, "a linear layer");
        if let Some(last) = self.shape.last_mut() {
            *last = to;
        }
        Some(())
    }
}
