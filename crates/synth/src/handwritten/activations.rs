//! Activations: modules, functions, or written out.

#![expect(
    clippy::unnecessary_wraps,
    reason = "a step may not fit, so all of them have one type"
)]

use super::Chain;
use super::literal::Literal;

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

/// Without arguments. Where PyTorch has a number by default, the text does not say it.
const ACTIVATIONS: [Activation; 23] = [
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
    activation("leaky ReLU", "LeakyReLU()", Some("leaky_relu"), None),
    activation("leaky ReLU", "LeakyReLU()", Some("leaky_relu"), None),
    activation("a hard tanh", "Hardtanh()", Some("hardtanh"), None),
    activation("ELU", "ELU()", Some("elu"), None),
    activation("CELU", "CELU()", Some("celu"), None),
    activation("soft shrinkage", "Softshrink()", Some("softshrink"), None),
    activation("hard shrinkage", "Hardshrink()", Some("hardshrink"), None),
    activation("an exponential", "", None, Some("exp")),
    activation("an absolute value", "", None, Some("abs")),
];

impl Chain<'_> {
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
}
