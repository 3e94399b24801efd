//! What follows in a block: activations, scaling, normalisation, pooling, reductions.

#![expect(
    clippy::unnecessary_wraps,
    reason = "a step may not fit, so all of them have one type"
)]

use super::Chain;
use super::text::{InputDraw, Literal, extent, float, tuple};

/// An activation: its module, its function in `torch.nn.functional`, its function in `torch`.
struct Activation {
    words: &'static str,
    module: &'static str,
    functional: Option<&'static str>,
    torch: Option<&'static str>,
}

const fn activation(
    words: &'static str,
    module: &'static str,
    functional: Option<&'static str>,
    torch: Option<&'static str>,
) -> Activation {
    Activation {
        words,
        module,
        functional,
        torch,
    }
}

/// Something that may be added to a chain.
type ChainStep<C> = fn(&mut C) -> Option<()>;

/// Without arguments.
const ACTIVATIONS: [Activation; 16] = [
    activation("ReLU", "ReLU()", Some("relu"), Some("relu")),
    activation("a sigmoid", "Sigmoid()", None, Some("sigmoid")),
    activation("tanh", "Tanh()", None, Some("tanh")),
    activation("GELU", "GELU()", Some("gelu"), None),
    activation("SiLU", "SiLU()", Some("silu"), None),
    activation("Mish", "Mish()", Some("mish"), None),
    activation("hard swish", "Hardswish()", Some("hardswish"), None),
    activation("a hard sigmoid", "Hardsigmoid()", Some("hardsigmoid"), None),
    activation("softplus", "Softplus()", Some("softplus"), None),
    activation("softsign", "Softsign()", Some("softsign"), None),
    activation("SELU", "SELU()", Some("selu"), Some("selu")),
    activation("ReLU6", "ReLU6()", Some("relu6"), None),
    activation("a log-sigmoid", "LogSigmoid()", Some("logsigmoid"), None),
    activation("tanhshrink", "Tanhshrink()", Some("tanhshrink"), None),
    activation("an exponential", "", None, Some("exp")),
    activation("an absolute value", "", None, Some("abs")),
];

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
        let steps: [(usize, ChainStep<Self>); 15] = [
            (26, Self::activation),
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
            (if self.shape.len() == 2 { 3 } else { 0 }, Self::triangle),
        ];
        let chosen = self.text.rng.weighted(&steps.map(|(weight, _)| weight))?;
        steps[chosen].1(self)
    }

    pub(super) fn activation(&mut self) -> Option<()> {
        if self.text.rng.chance(35) {
            return self.activation_with_argument();
        }
        let one = &ACTIVATIONS[self.text.rng.below(ACTIVATIONS.len())];
        let value = self.value.clone();
        let module = !one.module.is_empty() && self.text.style.module_activations;
        let expression = if module {
            let name = one.module.trim_end_matches("()").to_lowercase();
            let layer = self.text.attribute(&name, &format!("nn.{}", one.module));
            format!("{layer}({value})")
        } else {
            match (one.functional, one.torch) {
                (Some(name), None) => format!("{}({value})", self.text.functional(name)),
                (None, Some(name)) => self.of_torch(name, &value),
                (Some(name), Some(other)) => {
                    if self.text.rng.chance(50) {
                        format!("{}({value})", self.text.functional(name))
                    } else {
                        self.of_torch(other, &value)
                    }
                }
                (None, None) => return None,
            }
        };
        self.step(&expression, one.words);
        Some(())
    }

    /// `torch.NAME(x)`, or now and then `x.NAME()`.
    fn of_torch(&mut self, name: &str, value: &str) -> String {
        if self.text.rng.chance(15) {
            format!("{value}.{name}()")
        } else {
            format!("torch.{name}({value})")
        }
    }

    fn activation_with_argument(&mut self) -> Option<()> {
        let value = self.value.clone();
        let rng = &mut *self.text.rng;
        let (class, name, argument, number, words) = rng.choose_of([
            (
                "LeakyReLU",
                "leaky_relu",
                "negative_slope",
                0.01,
                "leaky ReLU",
            ),
            (
                "LeakyReLU",
                "leaky_relu",
                "negative_slope",
                0.2,
                "leaky ReLU",
            ),
            (
                "LeakyReLU",
                "leaky_relu",
                "negative_slope",
                0.1,
                "leaky ReLU",
            ),
            ("ELU", "elu", "alpha", 1.0, "ELU"),
            ("ELU", "elu", "alpha", 0.5, "ELU"),
            ("CELU", "celu", "alpha", 1.5, "CELU"),
            ("Softshrink", "softshrink", "lambd", 0.5, "soft shrinkage"),
            ("Hardshrink", "hardshrink", "lambd", 0.5, "hard shrinkage"),
            ("Softplus", "softplus", "beta", 2.0, "softplus"),
            ("Hardtanh", "hardtanh", "", 0.0, "a hard tanh"),
            ("Hardtanh", "hardtanh", "", 0.0, "a hard tanh"),
            ("GELU", "gelu", "approximate", 0.0, "GELU by tanh"),
        ]);
        let module = self.text.style.module_activations;
        let given = match argument {
            "" => {
                let (low, high) = self
                    .text
                    .rng
                    .choose_of([(-1.0, 1.0), (-2.0, 2.0), (0.0, 6.0)]);
                let low = self.number(module, "min_val", "lower limit", low);
                let high = self.number(module, "max_val", "upper limit", high);
                format!("min_val={low}, max_val={high}")
            }
            "approximate" => "approximate=\"tanh\"".to_owned(),
            _ => {
                let number = self.number(module, argument, "of the activation", number);
                format!("{argument}={number}")
            }
        };
        let expression = if module {
            let layer = self
                .text
                .attribute(&class.to_lowercase(), &format!("nn.{class}({given})"));
            format!("{layer}({value})")
        } else {
            format!("{}({value}, {given})", self.text.functional(name))
        };
        self.step(&expression, words);
        Some(())
    }

    /// A number for `__init__` or for `forward`.
    fn number(&mut self, constructor: bool, name: &str, about: &'static str, value: f64) -> String {
        if constructor {
            self.text.made_with(name, about, Literal::Float(value))
        } else {
            self.text.setting(name, about, Literal::Float(value))
        }
    }

    /// With a number: times, by, plus, minus.
    fn scale(&mut self) -> Option<()> {
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

    /// An activation written out.
    pub(super) fn formula(&mut self) -> Option<()> {
        let value = self.value.clone();
        let (expression, words) = match self.text.rng.below(7) {
            0 => (format!("{value} * torch.sigmoid({value})"), "swish"),
            1 => (format!("torch.sigmoid({value}) * {value}"), "swish"),
            2 => {
                let softplus = self.text.functional("softplus");
                (
                    format!("{value} * torch.tanh({softplus}({value}))"),
                    "mish, written out",
                )
            }
            3 => (
                format!("{value} / (1 + torch.abs({value}))"),
                "softsign, written out",
            ),
            4 => {
                let root = self.text.math("sqrt(2.0 / math.pi)");
                (
                    format!(
                        "0.5 * {value} * (1.0 + torch.tanh({root} * ({value} + 0.044715 * torch.pow({value}, 3.0))))"
                    ),
                    "GELU, written out",
                )
            }
            5 => {
                let relu = self.text.functional("relu");
                (format!("{relu}({value}) ** 2"), "squared ReLU")
            }
            _ => {
                let relu6 = self.text.functional("relu6");
                (
                    format!("{value} * {relu6}({value} + 3) / 6"),
                    "hard swish, written out",
                )
            }
        };
        self.step(&expression, words);
        Some(())
    }

    pub(super) fn pool(&mut self) -> Option<()> {
        let dims = self.shape.len().checked_sub(2).filter(|dims| *dims >= 1)?;
        if dims > 3 {
            return None;
        }
        if self.text.rng.chance(30) {
            return self.global_pool(dims);
        }
        let value = self.value.clone();
        let kernel = self.text.rng.choose_of([2, 2, 2, 3, 4]);
        let stride = self
            .text
            .rng
            .choose_of([None, None, None, Some(2), Some(1)]);
        let padding = u64::from(kernel >= 3 && self.text.rng.chance(40));
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

    fn global_pool(&mut self, dims: usize) -> Option<()> {
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
        Some(())
    }

    pub(super) fn normalise(&mut self) -> Option<()> {
        let rank = self.shape.len();
        let channels = *self.shape.get(1)?;
        let value = self.value.clone();
        let dims = rank - 2;
        let (layer, words) = match (self.text.rng.below(10), rank) {
            (0..=3, 2..=5) => {
                let given = self.channels_argument(channels);
                let class = format!("BatchNorm{}d", dims.max(1));
                let eps = if self.text.rng.chance(15) {
                    ", eps=1e-4"
                } else {
                    ""
                };
                let name = self.text.rng.choose_of(["bn", "batch_norm", "norm"]);
                (
                    self.text
                        .attribute(name, &format!("nn.{class}({given}{eps})")),
                    "batch normalisation",
                )
            }
            (4..=6, 2..=5) => {
                let groups = self.text.rng.choose_of([2, 4, 8, 16]);
                if channels % groups != 0 || channels < 2 * groups {
                    return None;
                }
                let number =
                    self.text
                        .made_with("num_groups", "groups of the normalisation", groups);
                let given = self.channels_argument(channels);
                let name = self.text.rng.choose_of(["group_norm", "norm", "gn"]);
                (
                    self.text
                        .attribute(name, &format!("nn.GroupNorm({number}, {given})")),
                    "group normalisation",
                )
            }
            (7, 3..=5) if self.shape[2..].iter().product::<u64>() > 1 => {
                let given = self.channels_argument(channels);
                let affine = if self.text.rng.chance(30) {
                    ", affine=True"
                } else {
                    ""
                };
                (
                    self.text.attribute(
                        "instance_norm",
                        &format!("nn.InstanceNorm{dims}d({given}{affine})"),
                    ),
                    "instance normalisation",
                )
            }
            (8..=9, 2..=3) => {
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
            (8..=9, 4) if self.shape[2] * self.shape[3] * channels <= 1 << 22 => {
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

    /// The channels, by the name that the layer before has for them.
    fn channels_argument(&mut self, channels: u64) -> String {
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
        let picked = match op {
            "max" | "min" if self.text.rng.chance(50) => ".values",
            "max" | "min" => "[0]",
            _ => "",
        };
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

    pub(super) fn softmax(&mut self) -> Option<()> {
        let rank = self.shape.len();
        if rank < 2 {
            return None;
        }
        let dim = if self.text.rng.chance(70) {
            1
        } else {
            rank - 1
        };
        if self.shape[dim] < 2 {
            return None;
        }
        let value = self.value.clone();
        let (function, class, words) = self.text.rng.choose_of([
            ("softmax", "Softmax", "softmax"),
            ("softmax", "Softmax", "softmax"),
            ("log_softmax", "LogSoftmax", "log-softmax"),
        ]);
        let expression = if self.text.style.module_activations {
            let layer = self
                .text
                .attribute(function, &format!("nn.{class}(dim={dim})"));
            format!("{layer}({value})")
        } else if self.text.rng.chance(50) {
            format!("torch.{function}({value}, dim={dim})")
        } else {
            format!("{}({value}, dim={dim})", self.text.functional(function))
        };
        self.step(&expression, words);
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
        let extents = NAMES.iter().zip(&self.shape);
        let extents = extents.map(|(name, length)| extent(name, *length));
        self.text.input(name, extents.collect(), InputDraw::Normal);
        let symbol = self.text.rng.choose_of(["+", "+", "*", "-"]);
        self.step(&format!("{} {symbol} {name}", self.value), "another input");
        Some(())
    }

    /// With what is made of the value itself.
    fn with_itself(&mut self) -> Option<()> {
        let value = self.value.clone();
        let rank = self.shape.len();
        let expression = match self.text.rng.below(4) {
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
        match self.text.rng.below(4) {
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
                let eps = self.epsilon();
                let expression =
                    format!("{value} / (torch.{total}(torch.abs({value}), {kept}) + {eps})");
                self.step(&expression, "L1 normalisation");
            }
            2 => {
                let expression = format!("{value} / torch.norm({value}, p=2, {kept})");
                self.step(&expression, "L2 normalisation");
            }
            _ => {
                let top = format!("torch.max({value}, {kept})[0]");
                self.step(&format!("{value} - {top}"), "a shift by the maximum");
            }
        }
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

    pub(super) fn epsilon(&mut self) -> String {
        let eps = self.text.rng.choose_of([1e-5, 1e-6, 1e-8]);
        if self.text.rng.chance(60) {
            self.text
                .setting("eps", "keeps a divisor from zero", Literal::Float(eps))
        } else {
            float(eps)
        }
    }
}
