//! Normalisations: modules, or written out.

use super::Chain;
use super::literal::{Literal, float};

impl Chain<'_> {
    pub(super) fn normalise(&mut self) -> Option<()> {
        let rank = self.shape.len();
        let channels = *self.shape.get(1)?;
        let value = self.value.clone();
        let dims = rank - 2;
        let (layer, words) = match (self.text.rng.below(10), rank) {
            (0..=2, 2..=5) => {
                let given = self.channels_argument(channels);
                let class = format!("BatchNorm{}d", dims.max(1));
                let eps = self.settings_of_norm(true);
                let name = self.text.rng.choose_of(["bn", "batch_norm", "norm"]);
                (
                    self.text
                        .attribute(name, &format!("nn.{class}({given}{eps})")),
                    "batch normalisation",
                )
            }
            (3..=5, 2..=5) => {
                let groups = match rank {
                    2 => self.text.rng.choose_of([2, 4, 8, 16, 32, 64, 256, 512]),
                    _ => self.text.rng.choose_of([2, 4, 8, 16]),
                };
                if channels % groups != 0 || channels < 2 * groups {
                    return None;
                }
                let name = self
                    .text
                    .rng
                    .choose_of(["num_groups", "num_groups", "groups"]);
                let number = self
                    .text
                    .made_with(name, "groups of the normalisation", groups);
                let given = self.channels_argument(channels);
                let name = self
                    .text
                    .rng
                    .choose_of(["group_norm", "norm", "gn", "groupnorm"]);
                let groups_and_channels = if self.text.rng.chance(35) {
                    format!("num_groups={number}, num_channels={given}")
                } else {
                    format!("{number}, {given}")
                };
                let eps = self.settings_of_norm(false);
                (
                    self.text
                        .attribute(name, &format!("nn.GroupNorm({groups_and_channels}{eps})")),
                    "group normalisation",
                )
            }
            (6, 3..=5) if self.shape[2..].iter().product::<u64>() > 1 => {
                let given = self.channels_argument(channels);
                let affine = if self.text.rng.chance(30) {
                    ", affine=True".to_owned()
                } else {
                    self.settings_of_norm(true)
                };
                let given = if self.text.rng.chance(25) {
                    format!("num_features={given}")
                } else {
                    given
                };
                (
                    self.text.attribute(
                        if self.alone { "norm" } else { "instance_norm" },
                        &format!("nn.InstanceNorm{dims}d({given}{affine})"),
                    ),
                    "instance normalisation",
                )
            }
            (7..=9, 2..=3) => {
                let features = self.shape[rank - 1];
                let given = self
                    .text
                    .made_with("norm_shape", "normalised features", features);
                (
                    self.text
                        .attribute("layer_norm", &format!("nn.LayerNorm({given})")),
                    "layer normalisation",
                )
            }
            (7..=9, 4) if self.shape[2] * self.shape[3] * channels <= 1 << 22 => {
                let shape: Vec<i64> = self.shape[1..]
                    .iter()
                    .map(|one| one.cast_signed())
                    .collect();
                let given = self.text.made_with(
                    "normalized_shape",
                    "normalised extents",
                    Literal::Tuple(shape),
                );
                (
                    self.text
                        .attribute("layer_norm", &format!("nn.LayerNorm({given})")),
                    "layer normalisation",
                )
            }
            _ => return None,
        };
        self.step(&format!("{layer}({value})"), words);
        Some(())
    }

    /// What keeps a divisor from zero, and how running statistics are kept, as some constructors take them.
    fn settings_of_norm(&mut self, with_momentum: bool) -> String {
        let style = &self.text.style;
        let takes = style.defaults && style.arguments;
        match self.text.rng.below(10) {
            0 => ", eps=1e-4".to_owned(),
            1..=6 if takes => {
                let about = "keeps a divisor from zero";
                let usual = Literal::Float(1e-5);
                let eps = self
                    .text
                    .made_with_default("eps", about, usual.clone(), usual);
                if !with_momentum || self.text.rng.chance(30) {
                    return format!(", eps={eps}");
                }
                let about = "share of the latest statistics";
                let usual = Literal::Float(0.1);
                let momentum = self
                    .text
                    .made_with_default("momentum", about, usual.clone(), usual);
                format!(", eps={eps}, momentum={momentum}")
            }
            5 => {
                let eps =
                    self.text
                        .made_with("eps", "keeps a divisor from zero", Literal::Float(1e-5));
                format!(", eps={eps}")
            }
            _ => String::new(),
        }
    }

    /// The channels, by the name that the layer before has for them.
    pub(super) fn channels_argument(&mut self, channels: u64) -> String {
        let name = if self.shape.len() > 2 {
            "out_channels"
        } else {
            "out_features"
        };
        if self.text.has_argument(name, channels) {
            return name.to_owned();
        }
        self.text
            .made_with("num_features", "channels of the normalisation", channels)
    }

    /// A normalisation written out.
    pub(super) fn normalise_by_formula(&mut self) -> Option<()> {
        let rank = self.shape.len();
        let dim = if rank > 2 && self.text.rng.chance(40) {
            rank - 1
        } else {
            1
        };
        if self.shape.get(dim).is_none_or(|length| *length < 2) {
            return None;
        }
        let value = self.value.clone();
        let kept = format!("dim={dim}, keepdim=True");
        match self.text.rng.weighted(&[3, 2, 1, 1, 2, 2])? {
            0 => {
                let eps = self.epsilon();
                self.text.assign(
                    "rms",
                    &format!("torch.sqrt(torch.mean({value} ** 2, {kept}) + {eps})"),
                    "the root mean square",
                );
                self.step(&format!("{value} / rms"), "RMS normalisation");
            }
            1 => {
                let total = self.text.rng.choose_of(["sum", "mean"]);
                let sum = format!("torch.{total}(torch.abs({value}), {kept})");
                let expression = if self.text.rng.chance(50) {
                    format!("{value} / {sum}")
                } else {
                    let eps = self.epsilon();
                    format!("{value} / ({sum} + {eps})")
                };
                self.step(&expression, "L1 normalisation");
            }
            2 => {
                let expression = format!("{value} / torch.norm({value}, p=2, {kept})");
                self.step(&expression, "L2 normalisation");
            }
            3 => {
                let top = format!("torch.max({value}, {kept})[0]");
                self.step(&format!("{value} - {top}"), "a shift by the maximum");
            }
            4 => {
                let norm = self
                    .text
                    .rng
                    .choose_of([
                        "torch.norm({value})",
                        "torch.sqrt(torch.sum({value} * {value}))",
                    ])
                    .replace("{value}", &value);
                self.text.assign("norm", &norm, "the norm of all elements");
                self.step(&format!("{value} / norm"), "normalisation by it");
            }
            _ => {
                let eps = self.epsilon();
                let mean = format!("{value}.mean({kept})");
                self.text.assign("mean", &mean, "the mean");
                let var = format!("{value}.var(dim={dim}, unbiased=False, keepdim=True)");
                self.text.assign("var", &var, "the variance");
                self.step(
                    &format!("({value} - mean) / torch.sqrt(var + {eps})"),
                    "standardisation",
                );
            }
        }
        Some(())
    }

    pub(super) fn epsilon(&mut self) -> String {
        let eps = self.text.rng.choose_of([1e-5, 1e-6, 1e-8]);
        let style = &self.text.style;
        if style.defaults && style.arguments && style.settings && self.text.rng.chance(60) {
            let about = "keeps a divisor from zero";
            let value = Literal::Float(eps);
            let given = self
                .text
                .made_with_default("eps", about, value.clone(), value);
            return self.text.attribute("eps", &given);
        }
        if self.text.rng.chance(60) {
            self.text
                .setting("eps", "keeps a divisor from zero", Literal::Float(eps))
        } else {
            float(eps)
        }
    }

    pub(super) fn lone_norm(&mut self) -> Option<()> {
        if self.text.rng.chance(50) {
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
        self.write_out()?;
        self.normalise_by_formula()
    }
}
