//! Where a model's parameters lie: all in one row of numbers, so that one kernel can change them all.

use std::ops::Range;

use crate::twin::training::Heads;
use crate::{AT_ONCE, Gpu, GpuError};

/// What a model of the Llama family and its kin looks like.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    pub layers: usize,
    pub hidden: usize,
    pub feed_forward: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
    pub norm_epsilon: f32,
    /// One a pair of numbers: radians a position.
    pub frequencies: Vec<f32>,
    /// Whether the embedding makes logits too.
    pub tied: bool,
    /// Whether queries, keys and values have biases (Qwen2).
    pub biased: bool,
    /// Whether each query and key head has a norm (Qwen3).
    pub head_norms: bool,
}

impl Shape {
    /// Numbers of a row of queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        self.all_heads().width()
    }

    /// Numbers of a row of queries.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    pub(crate) fn all_heads(&self) -> Heads {
        Heads {
            queries: self.heads,
            keys: self.kv_heads,
            size: self.head_dim,
        }
    }

    /// Whether our kernels can train it.
    pub fn check(&self) -> Result<(), GpuError> {
        Gpu::attends(self.head_dim, self.heads / self.kv_heads.max(1))?;
        for width in [self.hidden, self.feed_forward, self.vocabulary] {
            if width == 0 || !width.is_multiple_of(AT_ONCE) {
                return Err(GpuError::Width { width });
            }
        }
        Ok(())
    }
}

/// One of a model's parameters; layers are counted from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    AttentionNorm(usize),
    FeedForwardNorm(usize),
    FinalNorm,
    /// Of queries, then of keys.
    HeadNorms(usize),
    /// Of queries, keys and values.
    Bias(usize),
    Embedding,
    /// Makes logits, where the embedding does not.
    Output,
    /// Rows that make queries, then keys, then values.
    Qkv(usize),
    AttentionOutput(usize),
    /// Eight rows of gates, the eight of their factors, and so on.
    GateAndUp(usize),
    Down(usize),
}

/// A matrix of a layer as models name it. Where several are rows of one parameter, one product makes what they all make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Query,
    Key,
    Value,
    AttentionOutput,
    Gate,
    Up,
    Down,
}

impl Part {
    pub const ALL: [Self; 7] = [
        Self::Query,
        Self::Key,
        Self::Value,
        Self::AttentionOutput,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// What has its rows.
    pub fn parameter(self, layer: usize) -> Parameter {
        match self {
            Self::Query | Self::Key | Self::Value => Parameter::Qkv(layer),
            Self::AttentionOutput => Parameter::AttentionOutput(layer),
            Self::Gate | Self::Up => Parameter::GateAndUp(layer),
            Self::Down => Parameter::Down(layer),
        }
    }

    pub fn rows(self, shape: &Shape) -> usize {
        match self {
            Self::Query => shape.query_width(),
            Self::Key | Self::Value => shape.kv_heads * shape.head_dim,
            Self::AttentionOutput | Self::Down => shape.hidden,
            Self::Gate | Self::Up => shape.feed_forward,
        }
    }

    /// Which of the parameter's rows is its row of this number.
    pub fn row(self, shape: &Shape, number: usize) -> usize {
        let keys = shape.kv_heads * shape.head_dim;
        let interleaved = number / AT_ONCE * 2 * AT_ONCE + number % AT_ONCE;
        match self {
            Self::Query | Self::AttentionOutput | Self::Down => number,
            Self::Key => shape.query_width() + number,
            Self::Value => shape.query_width() + keys + number,
            Self::Gate => interleaved,
            Self::Up => AT_ONCE + interleaved,
        }
    }
}

impl Parameter {
    /// The matrices of a layer, in the order in which they lie.
    pub fn matrices(layer: usize) -> [Self; 4] {
        [
            Self::Qkv(layer),
            Self::AttentionOutput(layer),
            Self::GateAndUp(layer),
            Self::Down(layer),
        ]
    }

    /// What its rows are, where it is a matrix of a layer.
    pub fn parts(self) -> &'static [Part] {
        match self {
            Self::Qkv(_) => &[Part::Query, Part::Key, Part::Value],
            Self::AttentionOutput(_) => &[Part::AttentionOutput],
            Self::GateAndUp(_) => &[Part::Gate, Part::Up],
            Self::Down(_) => &[Part::Down],
            _ => &[],
        }
    }

    /// Numbers that a row of it is multiplied with.
    pub fn inputs(self, shape: &Shape) -> usize {
        match self {
            Self::AttentionOutput(_) => shape.query_width(),
            Self::Down(_) => shape.feed_forward,
            _ => shape.hidden,
        }
    }
}

/// Norms, head norms and biases first, each kind together; matrices after them.
#[derive(Debug, Clone)]
pub struct Layout {
    shape: Shape,
    head_norms: usize,
    biases: usize,
    embedding: usize,
    output: usize,
    layers: usize,
}

impl Layout {
    pub fn new(shape: Shape) -> Self {
        let (layers, hidden) = (shape.layers, shape.hidden);
        let head_norms = (2 * layers + 1) * hidden;
        let biases = head_norms + usize::from(shape.head_norms) * layers * 2 * shape.head_dim;
        let embedding = biases + usize::from(shape.biased) * layers * shape.qkv_width();
        let output = embedding + shape.vocabulary * hidden;
        let first = output + usize::from(!shape.tied) * shape.vocabulary * hidden;
        Self {
            shape,
            head_norms,
            biases,
            embedding,
            output,
            layers: first,
        }
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How many numbers there are.
    pub fn count(&self) -> usize {
        self.layers + self.shape.layers * self.layer()
    }

    /// From here on are matrices, which weight decay concerns.
    pub fn decays_from(&self) -> usize {
        self.embedding
    }

    /// What makes logits.
    pub fn head(&self) -> Parameter {
        if self.shape.tied {
            Parameter::Embedding
        } else {
            Parameter::Output
        }
    }

    pub fn place(&self, of: Parameter) -> Range<usize> {
        let shape = &self.shape;
        let (hidden, table) = (shape.hidden, shape.vocabulary * shape.hidden);
        let [qkv, output, both, down] = self.matrices();
        let layer = |index: usize| self.layers + index * self.layer();
        let (start, count) = match of {
            Parameter::AttentionNorm(index) => (2 * index * hidden, hidden),
            Parameter::FeedForwardNorm(index) => ((2 * index + 1) * hidden, hidden),
            Parameter::FinalNorm => (2 * shape.layers * hidden, hidden),
            Parameter::HeadNorms(index) => {
                assert!(shape.head_norms, "the model has no head norms");
                let count = 2 * shape.head_dim;
                (self.head_norms + index * count, count)
            }
            Parameter::Bias(index) => {
                assert!(shape.biased, "the model has no biases");
                let count = shape.qkv_width();
                (self.biases + index * count, count)
            }
            Parameter::Embedding => (self.embedding, table),
            Parameter::Output => {
                assert!(!shape.tied, "the embedding makes logits");
                (self.output, table)
            }
            Parameter::Qkv(index) => (layer(index), qkv),
            Parameter::AttentionOutput(index) => (layer(index) + qkv, output),
            Parameter::GateAndUp(index) => (layer(index) + qkv + output, both),
            Parameter::Down(index) => (layer(index) + qkv + output + both, down),
        };
        start..start + count
    }

    /// All of them, in the order in which they lie.
    pub fn parameters(&self) -> Vec<Parameter> {
        let shape = &self.shape;
        let each = 0..shape.layers;
        let mut all = Vec::new();
        for index in each.clone() {
            all.extend([
                Parameter::AttentionNorm(index),
                Parameter::FeedForwardNorm(index),
            ]);
        }
        all.push(Parameter::FinalNorm);
        if shape.head_norms {
            all.extend(each.clone().map(Parameter::HeadNorms));
        }
        if shape.biased {
            all.extend(each.clone().map(Parameter::Bias));
        }
        all.push(Parameter::Embedding);
        if !shape.tied {
            all.push(Parameter::Output);
        }
        all.extend(each.flat_map(Parameter::matrices));
        all
    }

    /// Numbers of a layer's four matrices.
    fn matrices(&self) -> [usize; 4] {
        let shape = &self.shape;
        [
            shape.qkv_width() * shape.hidden,
            shape.hidden * shape.query_width(),
            2 * shape.feed_forward * shape.hidden,
            shape.hidden * shape.feed_forward,
        ]
    }

    fn layer(&self) -> usize {
        self.matrices().iter().sum()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::training) fn shape() -> Shape {
        Shape {
            layers: 3,
            hidden: 64,
            feed_forward: 96,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            vocabulary: 40,
            norm_epsilon: 1e-5,
            frequencies: vec![1.0; 32],
            tied: true,
            biased: false,
            head_norms: false,
        }
    }

    #[test]
    fn parameters_lie_one_after_the_other_without_gaps() {
        for (tied, biased, head_norms) in [
            (true, false, false),
            (false, true, false),
            (true, true, true),
        ] {
            let layout = Layout::new(Shape {
                tied,
                biased,
                head_norms,
                ..shape()
            });
            let mut next = 0;
            for parameter in layout.parameters() {
                let place = layout.place(parameter);
                assert_eq!(place.start, next, "{parameter:?}");
                assert!(place.start.is_multiple_of(AT_ONCE));
                next = place.end;
            }
            assert_eq!(next, layout.count());
            assert_eq!(
                layout.place(Parameter::Embedding).start,
                layout.decays_from()
            );
        }
    }
    #[test]
    fn parts_are_all_rows_of_their_parameters() {
        let layout = Layout::new(shape());
        for parameter in Parameter::matrices(1) {
            let shape = layout.shape();
            let parts = parameter.parts().iter();
            let mut rows: Vec<usize> = parts
                .flat_map(|part| {
                    assert_eq!(part.parameter(1), parameter);
                    (0..part.rows(shape)).map(|number| part.row(shape, number))
                })
                .collect();
            rows.sort_unstable();
            let count = layout.place(parameter).len() / parameter.inputs(shape);
            assert!(rows.into_iter().eq(0..count), "{parameter:?}");
        }
        assert_eq!(Part::Gate.row(layout.shape(), 9), 17);
        assert_eq!(Part::Up.row(layout.shape(), 9), 25);
    }
}
