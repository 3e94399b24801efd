//! What follows in a block: activations, scaling, normalisation, pooling, reductions.

#![expect(
    clippy::unnecessary_wraps,
    reason = "a step may not fit, so all of them have one type"
)]

use super::Chain;
use super::literal::{Literal, extent, tuple};
use super::text::InputDraw;

/// Something that may be added to a chain.
type ChainStep<C> = fn(&mut C) -> Option<()>;

impl Chain<'_> {
    /// `VARIABLE = EXPRESSION`, which is the chain's value from now on.
    pub(super) fn step(&mut self, expression: &str, about: &str) {
        let mut variable = self.text.style.variable.to_owned();
        if self.text.style.numbered {
            self.steps += 1;
            variable = format!("{variable}{}", self.steps);
        }
        self.text.assign(&variable, expression, about);
        self.value = variable;
    }

    /// One step drawn from those that fit.
    pub(super) fn any_step(&mut self) -> Option<()> {
        let spatial = self.shape.len() >= 3;
        let flat = self.shape.len() == 2;
        let steps: [(usize, ChainStep<Self>); 19] = [
            (26, Self::activation),
            (5, Self::again),
            (4, Self::scale_by_parameter),
            (1, Self::unused),
            (if flat { 4 } else { 0 }, Self::as_an_image),
            (12, Self::scale),
            (10, Self::add_parameter),
            (8, Self::clamp),
            (6, Self::formula),
            (if spatial { 9 } else { 0 }, Self::pool),
            (9, Self::normalise),
            (8, Self::reduce),
            (5, Self::softmax),
            (4, Self::residual),
            (2, Self::dropout),
            (4, Self::with_input),
            (3, Self::with_itself),
            (4, Self::normalise_by_formula),
            (if flat { 2 } else { 0 }, Self::triangle),
        ];
        let chosen = self.text.rng.weighted(&steps.map(|(weight, _)| weight))?;
        steps[chosen].1(self)
    }

    /// With a number: times, by, plus, minus.
    pub(super) fn scale(&mut self) -> Option<()> {
        let number = self
            .text
            .rng
            .choose_of([0.1, 0.25, 0.5, 1.5, 2.0, 3.0, 10.0, 0.7, 1.2]);
        let (symbol, name, about, words) = self.text.rng.choose_of([
            ("*", "scaling_factor", "factor of the result", "scaling"),
            ("*", "scale", "factor of the result", "scaling"),
            ("*", "multiplier", "factor of the result", "multiplication"),
            (
                "/",
                "divisor",
                "what the result is divided by",
                "a division",
            ),
            ("-", "subtract_value", "what is subtracted", "a subtraction"),
            ("+", "add_value", "what is added", "an addition"),
            ("+", "offset", "what is added", "an addition"),
        ]);
        let number = self.text.setting(name, about, Literal::Float(number));
        let expression = match self.text.rng.below(10) {
            0 if symbol == "*" => format!("{number} * {}", self.value),
            1 => {
                let function = match symbol {
                    "*" => "mul",
                    "/" => "div",
                    "-" => "sub",
                    _ => "add",
                };
                format!("torch.{function}({}, {number})", self.value)
            }
            _ => format!("{} {symbol} {number}", self.value),
        };
        self.step(&expression, words);
        Some(())
    }

    /// A step that was done before, with the same layer.
    fn again(&mut self) -> Option<()> {
        let (line, about) = self.text.forward.last()?.clone();
        let (_, expression) = line.split_once(" = ")?;
        // The last step of a value that it is the only one of.
        let variable = self.text.style.variable;
        let fits = !self.text.style.numbered
            && self.text.forward.len() > 1
            && line.starts_with(&format!("{variable} = "))
            && self.value == variable
            && [
                "relu", "elu", "gelu", "mish", "silu", "tanh", "sigmoid", "hard", "clamp", " * ",
                " + ", " / ",
            ]
            .iter()
            .any(|part| expression.to_lowercase().contains(part))
            && !expression.contains("bias")
            && ![
                "residual", "identity", "skip", "before", "rms", "norm", "mean", "var", "matmul",
            ]
            .iter()
            .any(|part| expression.contains(part));
        if !fits {
            return None;
        }
        let expression = expression.to_owned();
        self.step(&expression, &about);
        Some(())
    }

    /// With a number that is learned.
    fn scale_by_parameter(&mut self) -> Option<()> {
        let number = self.text.rng.choose_of([0.5, 1.0, 1.5, 2.0, 0.1]);
        let (symbol, name, words) = self.text.rng.choose_of([
            ("*", "scale", "a learned scale"),
            ("*", "scaling", "a learned scale"),
            ("*", "gamma", "a learned scale"),
            ("-", "constant", "a learned offset"),
            ("+", "beta", "a learned offset"),
        ]);
        let given = self
            .text
            .made_with(name, "a number that is learned", Literal::Float(number));
        let parameter = self
            .text
            .attribute(name, &format!("nn.Parameter(torch.tensor({given}))"));
        self.step(&format!("{} {symbol} {parameter}", self.value), words);
        Some(())
    }

    /// What the constructor makes and `forward` forgets.
    fn unused(&mut self) -> Option<()> {
        let channels = *self.shape.get(1)?;
        let shape = vec![channels.cast_signed(), 1, 1];
        let given = self.text.made_with(
            "bias_shape",
            "shape of the parameter",
            Literal::Tuple(shape),
        );
        if self.text.rng.chance(60) {
            self.text
                .attribute("bias", &format!("nn.Parameter(torch.randn({given}))"));
        }
        Some(())
    }

    /// Features as a line, or as pixels, for a layer that wants these.
    fn as_an_image(&mut self) -> Option<()> {
        let value = self.value.clone();
        let features = *self.shape.get(1)?;
        if features < 64 {
            return None;
        }
        let given = self.channels_argument(features);
        let (expression, words) = match self.text.rng.below(3) {
            0 => {
                let layer = self
                    .text
                    .attribute("instance_norm", &format!("nn.InstanceNorm2d({given})"));
                (
                    format!("{layer}({value}.unsqueeze(1).unsqueeze(1)).squeeze(1).squeeze(1)"),
                    "instance normalisation",
                )
            }
            number => {
                let kernel = self.text.rng.choose_of([2_u64, 4, 8, 16]);
                let (kind, name) = match number {
                    1 => ("Avg", "avg_pool"),
                    _ => ("Max", "max_pool"),
                };
                let given = self
                    .text
                    .made_with("pool_kernel_size", "extent of the pool", kernel);
                let layer = self
                    .text
                    .attribute(name, &format!("nn.{kind}Pool1d(kernel_size={given})"));
                self.shape[1] = features / kernel;
                (
                    format!("{layer}({value}.unsqueeze(1)).squeeze(1)"),
                    "pooling of features",
                )
            }
        };
        self.step(&expression, words);
        Some(())
    }

    /// With a parameter, one number for each channel or feature.
    fn add_parameter(&mut self) -> Option<()> {
        let rank = self.shape.len();
        if rank < 2 {
            return None;
        }
        let mut shape = vec![1; rank - 1];
        if rank >= 4 || (rank == 3 && self.text.rng.chance(50)) {
            shape[0] = self.shape[1];
        } else {
            shape[rank - 2] = self.shape[rank - 1];
            if rank == 2 || self.text.rng.chance(60) {
                shape = vec![self.shape[rank - 1]];
            }
        }
        let shape: Vec<i64> = shape.into_iter().map(u64::cast_signed).collect();
        let (symbol, attribute, start, words) = self.text.rng.choose_of([
            ("+", "bias", "torch.randn", "a bias"),
            ("+", "bias", "torch.zeros", "a bias"),
            ("*", "scale", "torch.ones", "a learned scale"),
            ("*", "multiplier", "torch.randn", "a learned factor"),
            ("-", "shift", "torch.randn", "a learned shift"),
        ]);
        let argument = format!("{attribute}_shape");
        let given = if self.text.rng.chance(70) {
            self.text.made_with(
                &argument,
                "shape of the parameter",
                Literal::Tuple(shape.clone()),
            )
        } else {
            tuple(&shape)
        };
        let value = format!("nn.Parameter({start}({given}))");
        let parameter = self.text.attribute(attribute, &value);
        self.step(&format!("{} {symbol} {parameter}", self.value), words);
        Some(())
    }

    fn clamp(&mut self) -> Option<()> {
        let value = self.value.clone();
        let low = self.text.rng.choose_of([-1.0, 0.0, -0.5, -2.0]);
        let high = self.text.rng.choose_of([1.0, 2.0, 0.5, 6.0]);
        let (low_name, high_name) = self.text.rng.choose_of([
            ("min_value", "max_value"),
            ("clamp_min", "clamp_max"),
            ("min_val", "max_val"),
            ("lower_bound", "upper_bound"),
        ]);
        let expression = match self.text.rng.below(10) {
            0..=5 => {
                let low = self
                    .text
                    .setting(low_name, "lower limit", Literal::Float(low));
                let high = self
                    .text
                    .setting(high_name, "upper limit", Literal::Float(high));
                if self.text.rng.chance(60) {
                    format!("torch.clamp({value}, min={low}, max={high})")
                } else {
                    format!("torch.clamp({value}, {low}, {high})")
                }
            }
            6 => {
                let low = self
                    .text
                    .setting(low_name, "lower limit", Literal::Float(low));
                format!("torch.clamp({value}, min={low})")
            }
            7 => {
                let high = self
                    .text
                    .setting(high_name, "upper limit", Literal::Float(high));
                format!("torch.clamp({value}, max={high})")
            }
            8 => {
                let limit = self
                    .text
                    .setting("limit", "upper limit", Literal::Float(high));
                format!("torch.min({value}, torch.tensor({limit}, device={value}.device))")
            }
            _ => {
                let limit = self
                    .text
                    .setting("floor", "lower limit", Literal::Float(low));
                format!("torch.max({value}, torch.tensor({limit}, device={value}.device))")
            }
        };
        self.step(&expression, "clamping");
        Some(())
    }

    /// The result of an earlier step beside this one.
    fn residual(&mut self) -> Option<()> {
        let value = self.value.clone();
        if self.residual {
            return None;
        }
        let name = self
            .text
            .rng
            .choose_of(["identity", "residual", "skip", "before"]);
        self.text.assign(name, &value, "");
        self.residual = true;
        // Something in between that keeps the shape.
        self.activation()?;
        let symbol = self.text.rng.choose_of(["+", "+", "*", "-"]);
        self.step(&format!("{} {symbol} {name}", self.value), "a residual");
        Some(())
    }

    /// With another input of the same shape.
    fn with_input(&mut self) -> Option<()> {
        const NAMES: [&str; 6] = ["dim0", "dim1", "dim2", "dim3", "dim4", "dim5"];
        if self.second_input || self.shape.len() > NAMES.len() {
            return None;
        }
        self.second_input = true;
        let name = self
            .text
            .rng
            .choose_of(["other", "add_input", "bias_input", "z"]);
        let extents = NAMES.iter().zip(&self.shape).enumerate();
        let extents = extents.map(|(dim, (name, length))| {
            let name = match dim {
                0 => "batch_size",
                1 if self.shape.len() > 2 => "out_channels",
                1 => ["out_features", "hidden_size", "output_size", "hidden_dim"]
                    .into_iter()
                    .find(|one| self.text.has_argument(one, *length))
                    .unwrap_or("out_features"),
                _ => name,
            };
            extent(name, *length)
        });
        let extents = extents.collect();
        self.text.input(name, extents, InputDraw::Normal);
        let symbol = self.text.rng.choose_of(["+", "+", "*", "-"]);
        self.step(&format!("{} {symbol} {name}", self.value), "another input");
        Some(())
    }

    /// With what is made of the value itself.
    fn with_itself(&mut self) -> Option<()> {
        let value = self.value.clone();
        let rank = self.shape.len();
        let expression = match self.text.rng.below(7) {
            4 => format!("{value} * {}({value})", self.text.functional("hardswish")),
            5 => format!(
                "torch.multiply(torch.tanh({}({value})), {value})",
                self.text.functional("softplus")
            ),
            6 => format!("{value} * {value}"),
            0 => format!("{value} + {value}"),
            1 if rank >= 2 && self.shape[1] > 1 => {
                format!("{value} - {value}.mean(dim=1, keepdim=True)")
            }
            2 if rank >= 2 && self.shape[rank - 1] > 1 => {
                format!("{value} - torch.mean({value}, dim=-1, keepdim=True)")
            }
            _ => {
                let number =
                    self.text
                        .made_with("constant", "a limit that is learned", Literal::Float(2.0));
                let limit = self
                    .text
                    .attribute("constant", &format!("nn.Parameter(torch.tensor({number}))"));
                let op = self.text.rng.choose_of(["min", "max"]);
                format!("torch.{op}({value}, {limit})")
            }
        };
        self.step(&expression, "itself and a value of it");
        Some(())
    }

    /// Only what is on one side of the diagonal.
    fn triangle(&mut self) -> Option<()> {
        let part = self.text.rng.choose_of(["triu", "tril"]);
        self.step(&format!("torch.{part}({})", self.value), "a triangle of it");
        Some(())
    }

    /// Nothing in evaluation.
    fn dropout(&mut self) -> Option<()> {
        let value = self.value.clone();
        let rate = self.text.rng.choose_of([0.1, 0.2, 0.5]);
        let given = self
            .text
            .made_with("dropout_p", "share that is dropped", Literal::Float(rate));
        let layer = self
            .text
            .attribute("dropout", &format!("nn.Dropout({given})"));
        self.step(&format!("{layer}({value})"), "dropout");
        Some(())
    }
}
