//! What a block begins with: a convolution, a linear layer or a product, with an input that fits it.

use super::Chain;
use super::literal::{Extent, Literal, by_place, extent};
use super::text::InputDraw;
use crate::splitmix::SplitMix64;

/// A window over space, one number for each of its dimensions.
pub(super) struct Window {
    kernel: Vec<u64>,
    stride: Vec<u64>,
    padding: Vec<u64>,
    dilation: Vec<u64>,
    output_padding: Vec<u64>,
    groups: u64,
    transposed: bool,
}

impl Window {
    /// One element of space, all channels.
    fn pointwise(dims: usize) -> Self {
        Self {
            kernel: vec![1; dims],
            stride: vec![1; dims],
            padding: vec![0; dims],
            dilation: vec![1; dims],
            output_padding: vec![0; dims],
            groups: 1,
            transposed: false,
        }
    }

    /// An extent after the convolution; `None` where the window does not fit.
    fn after(&self, length: u64, dim: usize) -> Option<u64> {
        if self.transposed {
            let grown = (length - 1) * self.stride[dim]
                + self.dilation[dim] * (self.kernel[dim] - 1)
                + self.output_padding[dim]
                + 1;
            return grown.checked_sub(2 * self.padding[dim]);
        }
        let reach = self.dilation[dim] * (self.kernel[dim] - 1) + 1;
        Some((length + 2 * self.padding[dim]).checked_sub(reach)? / self.stride[dim] + 1)
    }
}

impl Chain<'_> {
    fn uniform(&mut self) -> InputDraw {
        self.text
            .rng
            .choose_of([InputDraw::Uniform, InputDraw::Normal])
    }

    /// The extents of space for so many dimensions.
    fn space(&mut self, dims: usize) -> Vec<Extent> {
        let rng = &mut *self.text.rng;
        let lengths: &[u64] = match dims {
            1 => &[
                512, 1000, 1024, 2048, 3000, 4096, 8192, 16384, 32768, 65536, 131_072,
            ],
            2 => &[
                14, 27, 28, 32, 48, 56, 64, 65, 96, 100, 112, 128, 130, 200, 224, 256, 384, 512,
            ],
            _ => &[8, 10, 12, 16, 20, 24, 32, 40, 48, 64],
        };
        // Any number at all, now and then: sums are learnt with digits that no list has.
        let free: (u64, u64) = match dims {
            1 => (300, 300_000),
            2 => (17, 600),
            _ => (7, 80),
        };
        let length = |rng: &mut SplitMix64| {
            if rng.chance(30) {
                free.0 + rng.below((free.1 - free.0) as usize) as u64
            } else {
                lengths[rng.below(lengths.len())]
            }
        };
        let first = length(rng);
        // Of an extent for each dimension a model must do each sum: square ones teach to do one.
        let square = rng.chance(50);
        let names = self.text.style.space.of(dims);
        let rng = &mut *self.text.rng;
        names
            .iter()
            .map(|name| {
                let length = if square { first } else { length(rng) };
                extent(name, length)
            })
            .collect()
    }

    pub(super) fn batch(&mut self, dims: usize) -> u64 {
        let rng = &mut *self.text.rng;
        match dims {
            0 => rng.choose_of([1, 32, 64, 100, 128, 256, 512, 1000, 1024, 2048, 4096, 16384]),
            1 => rng.choose_of([1, 8, 16, 24, 32, 64, 128]),
            2 => rng.choose_of([1, 4, 8, 10, 16, 32, 48, 64, 128]),
            _ => rng.choose_of([1, 2, 4, 8, 16, 32, 64, 128]),
        }
    }

    /// An input `x` of a batch of channels over space, not larger than a GPU would hold several of.
    pub(super) fn spatial_input(&mut self, dims: usize, channels: u64) {
        let space = self.space(dims);
        let mut batch = self.batch(dims);
        let rest: u64 = channels * space.iter().map(|one| one.length).product::<u64>();
        while batch > 1 && batch * rest > 1 << 28 {
            batch /= 2;
        }
        let mut extents = vec![
            extent("batch_size", batch),
            extent(
                self.text
                    .rng
                    .choose_of(["in_channels", "in_channels", "channels", "features"]),
                channels,
            ),
        ];
        extents.extend(space);
        self.begin("x", extents);
    }

    pub(super) fn begin(&mut self, name: &'static str, extents: Vec<Extent>) {
        self.shape = extents.iter().map(|one| one.length).collect();
        let draw = self.uniform();
        self.text.input(name, extents, draw);
        name.clone_into(&mut self.value);
    }

    fn channels(&mut self) -> u64 {
        let rng = &mut *self.text.rng;
        if rng.chance(10) {
            return 1 + rng.below(140) as u64;
        }
        rng.choose_of([
            3, 3, 8, 12, 16, 24, 32, 32, 40, 48, 64, 64, 96, 128, 128, 192, 256, 512,
        ])
    }

    /// One number for all dimensions of space, mostly; else one for each.
    fn for_space(&mut self, dims: usize, uneven: bool, choices: &[u64]) -> Vec<u64> {
        let rng = &mut *self.text.rng;
        let one = choices[rng.below(choices.len())];
        if !uneven || dims == 1 {
            return vec![one; dims];
        }
        (0..dims)
            .map(|_| choices[rng.below(choices.len())])
            .collect()
    }

    /// The number, or the tuple where its numbers differ, or where this person writes tuples.
    fn spelled(&self, numbers: &[u64]) -> Literal {
        let tuples = self.text.style.tuples && numbers.len() > 1;
        match numbers {
            [first, rest @ ..] if !tuples && rest.iter().all(|other| other == first) => {
                Literal::from(*first)
            }
            _ => Literal::Tuple(numbers.iter().map(|one| one.cast_signed()).collect()),
        }
    }

    pub(super) fn convolution(&mut self, dims: usize, plain: bool) -> Option<()> {
        let mut from = self.channels();
        let mut to = self.channels();
        let uneven = self.text.rng.chance(if plain { 12 } else { 50 });
        let kernel = self.for_space(dims, uneven, &[1, 2, 3, 3, 3, 4, 5, 5, 7, 9]);
        let fancy = if plain { 15 } else { 40 };
        let stride = if self.text.rng.chance(fancy) {
            self.for_space(dims, uneven, &[1, 2, 2, 3])
        } else {
            vec![1; dims]
        };
        let padding = if self.text.rng.chance(fancy) {
            self.for_space(dims, uneven, &[0, 1, 1, 2, 2, 3, 4])
        } else {
            vec![0; dims]
        };
        let dilation = if self.text.rng.chance(fancy * 2 / 3) {
            self.for_space(dims, uneven, &[1, 2, 2, 3, 4])
        } else {
            vec![1; dims]
        };
        let mut groups = 1;
        if self.text.rng.chance(if plain { 6 } else { 25 }) {
            from = self.text.rng.choose_of([16, 32, 64, 96, 128]);
            if self.text.rng.chance(50) {
                // A depthwise one.
                groups = from;
                to = from * self.text.rng.choose_of([1, 1, 1, 2]);
            } else {
                groups = self.text.rng.choose_of([2, 4, 8]);
                to = self.text.rng.choose_of([32, 64, 128]);
            }
        }
        let window = Window {
            kernel,
            stride,
            padding,
            dilation,
            output_padding: vec![0; dims],
            groups,
            transposed: false,
        };
        self.convolve(from, to, &window)
    }

    pub(super) fn transposed_convolution(&mut self, dims: usize, plain: bool) -> Option<()> {
        let mut from = self.channels();
        let mut to = self.channels();
        let uneven = self.text.rng.chance(if plain { 10 } else { 45 });
        let kernel = self.for_space(dims, uneven, &[2, 3, 3, 3, 3, 4, 5, 7]);
        let stride = if self.text.rng.chance(65) {
            self.for_space(dims, uneven, &[1, 2, 2, 2, 2, 3, 4])
        } else {
            vec![1; dims]
        };
        let padding = if self.text.rng.chance(50) {
            self.for_space(dims, uneven, &[0, 1, 1, 2])
        } else {
            vec![0; dims]
        };
        let output_padding = if self.text.rng.chance(45) {
            stride.iter().map(|step| (step - 1).min(1)).collect()
        } else {
            vec![0; dims]
        };
        let dilation = if self.text.rng.chance(if plain { 5 } else { 30 }) {
            self.for_space(dims, uneven, &[1, 2, 2, 3])
        } else {
            vec![1; dims]
        };
        let mut groups = 1;
        if !plain && self.text.rng.chance(20) {
            (from, to) = self.text.rng.choose_of([(32, 32), (64, 32), (32, 64)]);
            groups = self.text.rng.choose_of([2, 4, 8]);
        }
        let window = Window {
            kernel,
            stride,
            padding,
            dilation,
            output_padding,
            groups,
            transposed: true,
        };
        self.convolve(from, to, &window)
    }

    /// The input, the layer and the line that applies it.
    fn convolve(&mut self, from: u64, to: u64, window: &Window) -> Option<()> {
        self.spatial_input(window.kernel.len(), from);
        self.apply_convolution(to, window, None)
    }

    /// A convolution of each channel by itself, then one that mixes channels.
    pub(super) fn separable_convolution(&mut self) -> Option<()> {
        let dims = self.text.rng.choose_of([1, 2, 2, 2]);
        let from = self.text.rng.choose_of([16, 32, 48, 64, 96, 128]);
        let to = self.text.rng.choose_of([32, 48, 64, 128, 192, 256]);
        let kernel = self.text.rng.choose_of([3, 3, 5, 7]);
        let depthwise = Window {
            kernel: vec![kernel; dims],
            stride: vec![self.text.rng.choose_of([1, 1, 2]); dims],
            padding: vec![self.text.rng.choose_of([0, 1, kernel / 2]); dims],
            dilation: vec![self.text.rng.choose_of([1, 1, 1, 2]); dims],
            output_padding: vec![0; dims],
            groups: from,
            transposed: false,
        };
        self.spatial_input(dims, from);
        let (first, second) = self.text.rng.choose_of([
            ("depthwise", "pointwise"),
            ("depthwise", "pointwise"),
            ("dw_conv", "pw_conv"),
            ("conv1", "conv2"),
        ]);
        self.apply_convolution(from, &depthwise, Some(first))?;
        self.apply_pointwise(to, second)?;
        // By itself, in two dimensions, it is a task of the benchmark.
        if dims == 2 {
            self.activation()?;
        }
        Some(())
    }

    /// A convolution of single elements, whose extent nobody is asked for.
    fn apply_pointwise(&mut self, to: u64, name: &str) -> Option<()> {
        let dims = self.shape.len().checked_sub(2).filter(|dims| *dims >= 1)?;
        let from = *self.shape.get(1)?;
        let given_in = self
            .text
            .made_with("in_channels", "channels of the input", from);
        let given_out = self
            .text
            .made_with("out_channels", "channels of the result", to);
        let one = self.text.rng.choose_of(["kernel_size=1", "1"]);
        let bias = if self.text.has_flag("bias") {
            ", bias=bias".to_owned()
        } else {
            String::new()
        };
        let layer = self.text.attribute(
            name,
            &format!("nn.Conv{dims}d({given_in}, {given_out}, {one}{bias})"),
        );
        self.step(
            &format!("{layer}({})", self.value),
            "a pointwise convolution",
        );
        self.shape[1] = to;
        Some(())
    }

    /// Another convolution on the value so far.
    pub(super) fn convolution_again(&mut self) -> Option<()> {
        let dims = self.shape.len().checked_sub(2).filter(|dims| *dims >= 1)?;
        let to = self.text.rng.choose_of([8, 16, 24, 32, 64]);
        let mut window = Window::pointwise(dims);
        if self.text.rng.chance(60) {
            window.kernel = vec![3; dims];
            window.padding = vec![self.text.rng.choose_of([0, 1]); dims];
        }
        self.apply_convolution(to, &window, Some("conv2"))
    }

    /// What a layer is told of its filters' extents.
    fn kernel_argument(&mut self, kernel: &[u64]) -> String {
        const PARTS: [&[&str]; 3] = [
            &["kernel_length"],
            &["kernel_height", "kernel_width"],
            &["kernel_depth", "kernel_height", "kernel_width"],
        ];
        let about = "extent of the filters";
        let even = kernel.iter().all(|taps| *taps == kernel[0]);
        let value = self.spelled(kernel);
        match value {
            Literal::Tuple(numbers) if self.text.rng.chance(20) => {
                let parts = PARTS[kernel.len() - 1];
                self.text
                    .made_with_parts("kernel_size", about, numbers, parts)
            }
            Literal::Int(_) if even && kernel.len() > 1 && self.text.rng.chance(12) => {
                let name = self.text.made_with("kernel_size", about, value);
                format!("({})", vec![name; kernel.len()].join(", "))
            }
            value => self.text.made_with("kernel_size", about, value),
        }
    }

    /// The layer and the line that applies it to the value so far.
    fn apply_convolution(
        &mut self,
        to: u64,
        window: &Window,
        name: Option<&'static str>,
    ) -> Option<()> {
        let dims = window.kernel.len();
        let from = *self.shape.get(1)?;
        let (class, attribute, words) = if window.transposed {
            (
                "ConvTranspose",
                "conv_transpose",
                "a transposed convolution",
            )
        } else {
            ("Conv", "conv", "a convolution")
        };
        let class = format!("{class}{dims}d");
        let mut shape = vec![self.shape[0], to];
        for (dim, length) in self.shape[2..].iter().enumerate() {
            shape.push(window.after(*length, dim).filter(|after| *after > 0)?);
        }
        if shape.iter().product::<u64>() > 1 << 30 {
            return None;
        }
        let each = [
            &window.stride,
            &window.padding,
            &window.output_padding,
            &window.dilation,
        ];
        let [stride, padding, output_padding, dilation] = each.map(|numbers| self.spelled(numbers));
        let alone = self.alone;
        let text = &mut self.text;
        let depthwise = window.groups == from && window.groups == to && text.rng.chance(40);
        let mut given = vec![text.made_with("in_channels", "channels of the input", from)];
        given.push(if depthwise {
            // As many results as inputs, which the constructor is not asked for.
            given[0].clone()
        } else {
            text.made_with("out_channels", "channels of the result", to)
        });
        given.push(self.kernel_argument(&window.kernel));
        let text = &mut self.text;
        if text.rng.chance(30) {
            given[2] = format!("kernel_size={}", given[2]);
        }
        let rest: [(&str, &'static str, &[u64], Literal, u64); 4] = [
            ("stride", "step of the filters", &window.stride, stride, 1),
            (
                "padding",
                "zeros added at each border",
                &window.padding,
                padding,
                0,
            ),
            (
                "output_padding",
                "added to one side of the result",
                &window.output_padding,
                output_padding,
                0,
            ),
            (
                "dilation",
                "step inside a filter",
                &window.dilation,
                dilation,
                1,
            ),
        ];
        // A module that is a convolution alone takes what the convolution takes.
        let defaults =
            text.style.arguments && (text.style.defaults || alone && text.rng.chance(50));
        for (name, about, numbers, value, usual) in rest {
            let is_usual = numbers.iter().all(|number| *number == usual);
            // Not everybody lets all of it be set.
            let left_out = is_usual && text.rng.chance(25);
            if defaults && !left_out && (name != "output_padding" || window.transposed) {
                let usual = match &value {
                    Literal::Tuple(numbers) => {
                        Literal::Tuple(vec![usual.cast_signed(); numbers.len()])
                    }
                    _ => Literal::from(usual),
                };
                let value = text.made_with_default(name, about, value, usual);
                given.push(format!("{name}={value}"));
                continue;
            }
            // What is left at its default is mostly not written.
            if numbers.iter().any(|number| *number != usual)
                || (text.rng.chance(15) && name != "output_padding")
            {
                let value = text.made_with(name, about, value);
                given.push(format!("{name}={value}"));
            }
        }
        if window.groups != 1 {
            let value = if window.groups == from && text.rng.chance(60) {
                given[0].clone()
            } else {
                text.made_with("groups", "channels are divided into these", window.groups)
            };
            given.push(format!("groups={value}"));
        } else if defaults && text.rng.chance(40) {
            let about = "channels are divided into these";
            let value = text.made_with_default("groups", about, 1_u64, 1_u64);
            given.push(format!("groups={value}"));
        }
        if text.rng.chance(15) {
            by_place(&mut given, window.transposed);
        }
        match text.rng.below(10) {
            _ if defaults => {
                let usual = Literal::Bool(text.rng.chance(25));
                let value = if text.rng.chance(90) {
                    usual.clone()
                } else {
                    Literal::Bool(usual != Literal::Bool(true))
                };
                let about = "whether there is a bias";
                let value = text.made_with_default("bias", about, value, usual);
                given.push(format!("bias={value}"));
            }
            0..=1 => given.push("bias=False".to_owned()),
            2 => {
                let value = text.made_with("bias", "whether there is a bias", Literal::Bool(false));
                given.push(format!("bias={value}"));
            }
            3 => given.push("bias=True".to_owned()),
            _ => {}
        }
        let name = match name {
            Some(name) => name.to_owned(),
            None if text.rng.chance(70) => attribute.to_owned(),
            None => class.to_lowercase().replace("transpose", "_transpose"),
        };
        let layer = text.attribute(&name, &format!("nn.{class}({})", given.join(", ")));
        self.step(&format!("{layer}({})", self.value), words);
        self.shape = shape;
        Some(())
    }
}
