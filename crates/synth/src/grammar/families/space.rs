//! Operators over space: convolutions, pools, borders, resizing.

use serde_json::{Value, json};

use super::OperatorAttempt;
use crate::grammar::builder::{OperatorCall, ParameterInit, ValueId};
use crate::grammar::size::{Argument, Extent, Shape};
use crate::seeds::{CallForm, ValueDomain};

/// One number for every dimension of space.
fn all(number: u64, space: usize) -> Value {
    json!(vec![number; space])
}

impl OperatorAttempt<'_> {
    /// How many dimensions of space the seed works on: the digit before the `d` of its name.
    fn space_of_seed(&self) -> Option<usize> {
        let name = self.seed.path.trim_end_matches('d');
        let digit = name.chars().last()?.to_digit(10)? as usize;
        (digit + 2 == self.rank()).then_some(digit)
    }

    fn with_space(&self, rule: impl Fn(u64) -> Option<u64>) -> Option<Shape> {
        let mut shape = self.shape().clone();
        for extent in &mut shape[2..] {
            *extent = extent.map(&rule)?;
        }
        Some(shape)
    }

    fn new_channels(&mut self) -> Extent {
        let channels = self.shape()[1];
        let (times, by) = self.rng.choose_of([(1, 1), (2, 1), (1, 2), (3, 2)]);
        channels
            .map(|length| Some((length * times / by).clamp(8, 512) / 8 * 8))
            .unwrap_or(channels)
    }

    pub(super) fn convolution(&mut self) -> Option<ValueId> {
        let space = self.space_of_seed()?;
        let channels = self.shape()[1];
        channels.map(|length| (length <= 1024).then_some(length))?;
        let kernel = self.rng.choose_of([1, 3, 3, 3, 5]);
        let (stride, dilation) = self.rng.choose_of([(1, 1), (1, 1), (1, 1), (2, 1), (1, 2)]);
        let padding = self.rng.choose_of([0, kernel / 2, kernel / 2]);
        let groups = if self.rng.chance(20) && channels.divisible(4) {
            4
        } else {
            1
        };
        let to = self.new_channels();
        if !to.divisible(groups) || !channels.divisible(groups) {
            return None;
        }
        let mut shape = self.with_space(|length| {
            let reach = dilation * (kernel - 1) + 1;
            ((length + 2 * padding).checked_sub(reach)? / stride + 1).into()
        })?;
        shape[1] = to;
        let a_group = channels.map(|length| Some(length / groups))?;
        let mut weight = vec![to, a_group];
        weight.resize(space + 2, Extent::fixed(kernel));
        self.convolve(
            channels,
            to,
            weight,
            shape,
            &Window {
                kernel,
                stride,
                padding,
                dilation,
                groups,
                space,
            },
        )
    }

    pub(super) fn transposed_convolution(&mut self) -> Option<ValueId> {
        let space = self.space_of_seed()?;
        let channels = self.shape()[1];
        channels.map(|length| (length <= 512).then_some(length))?;
        let kernel = self.rng.choose_of([2, 3, 4]);
        let stride = self.rng.choose_of([1, 2]);
        let padding = self.rng.choose_of([0, 1]);
        let to = self.new_channels();
        let mut shape =
            self.with_space(|length| ((length - 1) * stride + kernel).checked_sub(2 * padding))?;
        shape[1] = to;
        let mut weight = vec![channels, to];
        weight.resize(space + 2, Extent::fixed(kernel));
        self.convolve(
            channels,
            to,
            weight,
            shape,
            &Window {
                kernel,
                stride,
                padding,
                dilation: 1,
                groups: 1,
                space,
            },
        )
    }

    fn convolve(
        &mut self,
        from: Extent,
        to: Extent,
        weight: Shape,
        shape: Shape,
        window: &Window,
    ) -> Option<ValueId> {
        let bias = self.rng.chance(75);
        let module = self.seed.form == CallForm::Module;
        let mut given = Vec::new();
        if module {
            given = vec![
                ("in_channels", Argument::Length(from)),
                ("out_channels", Argument::Length(to)),
                ("kernel_size", window.kernel.into()),
            ];
        }
        let mut functional: Vec<(&str, Argument)> = Vec::new();
        for (name, number, plain) in [
            ("stride", window.stride, 1),
            ("padding", window.padding, 0),
            ("dilation", window.dilation, 1),
        ] {
            if number != plain {
                given.push((name, number.into()));
            }
            functional.push((name, all(number, window.space).into()));
        }
        if window.groups != 1 {
            given.push(("groups", window.groups.into()));
        }
        let mut state = vec![("weight", weight, ParameterInit::Small)];
        if bias {
            state.push(("bias", vec![to], ParameterInit::Zeros));
        } else if module {
            given.push(("bias", false.into()));
        }
        self.apply(OperatorCall {
            given,
            functional,
            state,
            ..self.call(&[self.value], shape)
        })
    }

    pub(super) fn pool(&mut self) -> Option<ValueId> {
        let space = self.space_of_seed()?;
        let power = self.seed.op.starts_with("lp");
        // A root of a sum of squares is a norm of any number; of cubes it is not.
        let (kernel, stride, padding) = if power {
            (2, 2, 0)
        } else {
            self.rng
                .choose_of([(2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 2, 0), (4, 4, 0)])
        };
        let shape = self
            .with_space(|length| Some((length + 2 * padding).checked_sub(kernel)? / stride + 1))?;
        let mut given: Vec<(&str, Argument)> = Vec::new();
        if power {
            given.push(("norm_type", 2.0.into()));
        }
        given.push(("kernel_size", kernel.into()));
        if stride != kernel {
            given.push(("stride", stride.into()));
        }
        if padding != 0 {
            given.push(("padding", padding.into()));
        }
        let functional: Vec<(&str, Argument)> = if power {
            vec![("kernel_size", kernel.into()), ("stride", stride.into())]
        } else {
            vec![
                ("kernel_size", all(kernel, space).into()),
                ("stride", all(stride, space).into()),
                ("padding", all(padding, space).into()),
            ]
        };
        let mut call = OperatorCall {
            given,
            functional,
            domain: self.typed().domain,
            ..self.call(&[self.value], shape)
        };
        if self.seed.op.starts_with("max") {
            call.functional.push(("dilation", all(1, space).into()));
        }
        // An average over a border of zeros may be nearer to zero than any element.
        if call.domain == ValueDomain::Positive || call.domain == ValueDomain::Unit {
            call.domain = ValueDomain::NonNegative;
        }
        if power {
            call.domain = ValueDomain::NonNegative;
        }
        self.apply(call)
    }

    pub(super) fn adaptive_pool(&mut self) -> Option<ValueId> {
        let space = self.space_of_seed()?;
        let to = self.rng.choose_of([1, 2, 4]);
        if !self.shape()[2..]
            .iter()
            .all(|length| length.at_least(2 * to))
        {
            return None;
        }
        let shape = self.with_space(|_| Some(to))?;
        self.apply(OperatorCall {
            given: vec![("output_size", all(to, space).into())],
            ..self.call(&[self.value], shape)
        })
    }

    pub(super) fn pad(&mut self) -> Option<ValueId> {
        // The functional form takes any; modules those of their rank.
        let module = self.seed.form == CallForm::Module;
        let space = if module {
            self.space_of_seed()?
        } else {
            self.rank().checked_sub(2).filter(|space| *space >= 1)?
        };
        let by = self.rng.choose_of([1, 2]);
        let shape = self.with_space(|length| (length > by).then_some(length + 2 * by))?;
        let padding = all(by, 2 * space);
        let given = vec![(
            if module { "padding" } else { "pad" },
            padding.clone().into(),
        )];
        self.apply(OperatorCall {
            given,
            functional: vec![("pad", padding.into())],
            ..self.call(&[self.value], shape)
        })
    }

    pub(super) fn resize(&mut self) -> Option<ValueId> {
        let flat = self.seed.path.ends_with("2d");
        if self.rank() < 3 || (flat && self.rank() != 4) {
            return None;
        }
        let factor = 2;
        let shape = self.with_space(|length| Some(length * factor))?;
        self.apply(OperatorCall {
            given: vec![("scale_factor", 2.0.into())],
            domain: self.typed().domain,
            ..self.call(&[self.value], shape)
        })
    }

    pub(super) fn local_response(&mut self) -> Option<ValueId> {
        if self.rank() < 3 {
            return None;
        }
        let size = self.rng.choose_of([3, 5]);
        self.apply(OperatorCall {
            given: vec![("size", size.into())],
            ..self.call(&[self.value], self.shape().clone())
        })
    }
}

/// How a kernel moves over space.
struct Window {
    kernel: u64,
    stride: u64,
    padding: u64,
    dilation: u64,
    groups: u64,
    space: usize,
}
