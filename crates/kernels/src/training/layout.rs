//! The layout of a model's parameters: all in one vector, so that one optimizer kernel can update them all.

use std::ops::Range;

use crate::{Gpu, GpuError, VEC};

/// Sizes and variants of a model of the Llama, Qwen2 or Qwen3 family.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    pub layers: usize,
    pub hidden: usize,
    pub feed_forward: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
    pub norm_epsilon: f32,
    /// Radians a position, one a pair of dimensions.
    pub rope_frequencies: Vec<f32>,
    /// Whether the embedding is also the LM head.
    pub tied_embeddings: bool,
    pub biases: ProjectionBiases,
    /// Whether each query and key head has an RMS norm (Qwen3).
    pub head_norms: bool,
}

impl ModelShape {
    /// Width of a row of queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        self.attention().qkv_width()
    }

    /// Width of a row of queries.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    pub fn attention(&self) -> AttentionShape {
        AttentionShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }

    /// Whether the GPU kernels can train it.
    pub fn check(&self) -> Result<(), GpuError> {
        Gpu::supports_attention(self.head_dim, self.heads / self.kv_heads.max(1))?;
        let supported = ProjectionBiases {
            qkv: self.biases.qkv,
            ..ProjectionBiases::default()
        };
        if self.biases != supported {
            return Err(GpuError::UnsupportedBias);
        }
        for width in [self.hidden, self.feed_forward, self.vocabulary] {
            if width == 0 || !width.is_multiple_of(VEC) {
                return Err(GpuError::UnsupportedWidth { width });
            }
        }
        Ok(())
    }
}

/// Which projections have a bias.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProjectionBiases {
    /// Query, key and value (Qwen2).
    pub qkv: bool,
    pub attention_output: bool,
    pub gate_up: bool,
    pub down: bool,
}

/// Heads of a row of queries, keys and values: all query heads, then all key heads, then all value heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl AttentionShape {
    /// Width of a row of queries, keys and values.
    pub fn qkv_width(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// What scores are multiplied with.
    pub fn scale(self) -> f64 {
        (self.head_dim as f64).sqrt().recip()
    }

    /// Where the key head and the value head that a query head attends to begin in a row.
    pub fn kv_offsets(self, head: usize) -> (usize, usize) {
        let key_head = self.heads + head / (self.heads / self.kv_heads);
        (
            key_head * self.head_dim,
            (key_head + self.kv_heads) * self.head_dim,
        )
    }
}

/// A parameter as the kernels have it: projections that read the same rows are fused. Layers are counted from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    AttentionNorm(usize),
    FeedForwardNorm(usize),
    FinalNorm,
    /// Of queries, then of keys.
    HeadNorms(usize),
    QkvBias(usize),
    AttentionOutputBias(usize),
    GateUpBias(usize),
    DownBias(usize),
    Embedding,
    /// Where embeddings are not tied.
    LmHead,
    /// Rows of the query, then of the key, then of the value projection.
    Qkv(usize),
    AttentionOutput(usize),
    /// Rows alternate: eight of the gate projection, the eight of the up projection that belong to them, and so on.
    GateUp(usize),
    Down(usize),
}

/// A linear projection of a layer, as models name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Projection {
    Query,
    Key,
    Value,
    AttentionOutput,
    Gate,
    Up,
    Down,
}

impl Projection {
    pub const ALL: [Self; 7] = [
        Self::Query,
        Self::Key,
        Self::Value,
        Self::AttentionOutput,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// As transformers names it, and PEFT's `target_modules` with it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "q_proj",
            Self::Key => "k_proj",
            Self::Value => "v_proj",
            Self::AttentionOutput => "o_proj",
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }

    /// The fused parameter that has its rows.
    pub fn parameter(self, layer: usize) -> Parameter {
        match self {
            Self::Query | Self::Key | Self::Value => Parameter::Qkv(layer),
            Self::AttentionOutput => Parameter::AttentionOutput(layer),
            Self::Gate | Self::Up => Parameter::GateUp(layer),
            Self::Down => Parameter::Down(layer),
        }
    }

    pub fn rows(self, shape: &ModelShape) -> usize {
        match self {
            Self::Query => shape.query_width(),
            Self::Key | Self::Value => shape.kv_heads * shape.head_dim,
            Self::AttentionOutput | Self::Down => shape.hidden,
            Self::Gate | Self::Up => shape.feed_forward,
        }
    }

    /// The bias of that parameter.
    pub fn bias(self, layer: usize) -> Parameter {
        match self {
            Self::Query | Self::Key | Self::Value => Parameter::QkvBias(layer),
            Self::AttentionOutput => Parameter::AttentionOutputBias(layer),
            Self::Gate | Self::Up => Parameter::GateUpBias(layer),
            Self::Down => Parameter::DownBias(layer),
        }
    }

    /// One for each of its rows among the fused parameter's rows, zero for rows of other projections.
    pub(super) fn row_mask(self, shape: &ModelShape) -> Vec<f32> {
        let mut mask = vec![0.0; self.parameter(0).rows(shape)];
        for index in 0..self.rows(shape) {
            mask[self.row(shape, index)] = 1.0;
        }
        mask
    }

    /// Where its row of this index is among the fused parameter's rows.
    pub fn row(self, shape: &ModelShape, index: usize) -> usize {
        let keys = shape.kv_heads * shape.head_dim;
        let interleaved = index / VEC * 2 * VEC + index % VEC;
        match self {
            Self::Query | Self::AttentionOutput | Self::Down => index,
            Self::Key => shape.query_width() + index,
            Self::Value => shape.query_width() + keys + index,
            Self::Gate => interleaved,
            Self::Up => VEC + interleaved,
        }
    }
}

impl Parameter {
    /// The matrices of a layer, in the order of the layout.
    pub fn matrices(layer: usize) -> [Self; 4] {
        [
            Self::Qkv(layer),
            Self::AttentionOutput(layer),
            Self::GateUp(layer),
            Self::Down(layer),
        ]
    }

    /// The projections that are fused into it; none where it is no matrix of a layer.
    pub fn projections(self) -> &'static [Projection] {
        match self {
            Self::Qkv(_) => &[Projection::Query, Projection::Key, Projection::Value],
            Self::AttentionOutput(_) => &[Projection::AttentionOutput],
            Self::GateUp(_) => &[Projection::Gate, Projection::Up],
            Self::Down(_) => &[Projection::Down],
            _ => &[],
        }
    }

    /// The bias that is added to a product with it, if the model has one.
    pub(super) fn bias_in(self, shape: &ModelShape) -> Option<Self> {
        let has_bias = match self {
            Self::Qkv(_) => shape.biases.qkv,
            Self::AttentionOutput(_) => shape.biases.attention_output,
            Self::GateUp(_) => shape.biases.gate_up,
            Self::Down(_) => shape.biases.down,
            _ => false,
        };
        let (Self::Qkv(layer)
        | Self::AttentionOutput(layer)
        | Self::GateUp(layer)
        | Self::Down(layer)) = self
        else {
            return None;
        };
        let projection = self.projections().first().filter(|_| has_bias)?;
        Some(projection.bias(layer))
    }

    /// Rows of a matrix of a layer: the width of what a product with it gives.
    pub(super) fn rows(self, shape: &ModelShape) -> usize {
        let projections = self.projections().iter();
        projections.map(|projection| projection.rows(shape)).sum()
    }

    /// Columns of a matrix: the width of what it is multiplied with.
    pub fn columns(self, shape: &ModelShape) -> usize {
        match self {
            Self::AttentionOutput(_) => shape.query_width(),
            Self::Down(_) => shape.feed_forward,
            _ => shape.hidden,
        }
    }
}

/// Norms, head norms and biases come first, each kind together; matrices after them.
#[derive(Debug, Clone)]
pub struct ParameterLayout {
    shape: ModelShape,
    head_norms: usize,
    biases: usize,
    embedding: usize,
    output: usize,
    layers: usize,
}

impl ParameterLayout {
    pub fn new(shape: ModelShape) -> Self {
        let (layers, hidden) = (shape.layers, shape.hidden);
        let head_norms = (2 * layers + 1) * hidden;
        let biases = head_norms + usize::from(shape.head_norms) * layers * 2 * shape.head_dim;
        let embedding = biases + layers * bias_len(&shape);
        let output = embedding + shape.vocabulary * hidden;
        let first = output + usize::from(!shape.tied_embeddings) * shape.vocabulary * hidden;
        Self {
            shape,
            head_norms,
            biases,
            embedding,
            output,
            layers: first,
        }
    }

    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Elements of all parameters.
    #[expect(clippy::len_without_is_empty, reason = "no layout is empty")]
    pub fn len(&self) -> usize {
        self.layers + self.shape.layers * self.layer_len()
    }

    /// Matrices, to which weight decay applies, begin here.
    pub fn decay_start(&self) -> usize {
        self.embedding
    }

    /// The parameter that computes logits.
    pub fn lm_head(&self) -> Parameter {
        if self.shape.tied_embeddings {
            Parameter::Embedding
        } else {
            Parameter::LmHead
        }
    }

    /// Where a parameter lies.
    pub fn range(&self, of: Parameter) -> Range<usize> {
        let shape = &self.shape;
        let (hidden, table) = (shape.hidden, shape.vocabulary * shape.hidden);
        let [qkv, output, both, down] = self.matrices();
        let layer = |index: usize| self.layers + index * self.layer_len();
        let (start, count) = match of {
            Parameter::AttentionNorm(index) => (2 * index * hidden, hidden),
            Parameter::FeedForwardNorm(index) => ((2 * index + 1) * hidden, hidden),
            Parameter::FinalNorm => (2 * shape.layers * hidden, hidden),
            Parameter::HeadNorms(index) => {
                assert!(shape.head_norms, "the model has no head norms");
                let count = 2 * shape.head_dim;
                (self.head_norms + index * count, count)
            }
            Parameter::QkvBias(index)
            | Parameter::AttentionOutputBias(index)
            | Parameter::GateUpBias(index)
            | Parameter::DownBias(index) => {
                let (mut start, mut count) = (self.biases + index * bias_len(shape), 0);
                for matrix in Parameter::matrices(index) {
                    match matrix.bias_in(shape) {
                        Some(bias) if bias == of => {
                            count = matrix.rows(shape);
                            break;
                        }
                        Some(_) => start += matrix.rows(shape),
                        None => {}
                    }
                }
                assert!(count > 0, "the model has no {of:?}");
                (start, count)
            }
            Parameter::Embedding => (self.embedding, table),
            Parameter::LmHead => {
                assert!(!shape.tied_embeddings, "the embeddings are tied");
                (self.output, table)
            }
            Parameter::Qkv(index) => (layer(index), qkv),
            Parameter::AttentionOutput(index) => (layer(index) + qkv, output),
            Parameter::GateUp(index) => (layer(index) + qkv + output, both),
            Parameter::Down(index) => (layer(index) + qkv + output + both, down),
        };
        start..start + count
    }

    /// All parameters, in the order of the layout.
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
        for index in each.clone() {
            let matrices = Parameter::matrices(index).into_iter();
            all.extend(matrices.filter_map(|matrix| matrix.bias_in(shape)));
        }
        all.push(Parameter::Embedding);
        if !shape.tied_embeddings {
            all.push(Parameter::LmHead);
        }
        all.extend(each.flat_map(Parameter::matrices));
        all
    }

    /// Elements of a layer's four matrices.
    fn matrices(&self) -> [usize; 4] {
        let shape = &self.shape;
        [
            shape.qkv_width() * shape.hidden,
            shape.hidden * shape.query_width(),
            2 * shape.feed_forward * shape.hidden,
            shape.hidden * shape.feed_forward,
        ]
    }

    fn layer_len(&self) -> usize {
        self.matrices().iter().sum()
    }
}

/// Elements of a layer's biases.
fn bias_len(shape: &ModelShape) -> usize {
    let matrices = Parameter::matrices(0).into_iter();
    let biased = matrices.filter(|matrix| matrix.bias_in(shape).is_some());
    biased.map(|matrix| matrix.rows(shape)).sum()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::training) fn shape() -> ModelShape {
        ModelShape {
            layers: 3,
            hidden: 64,
            feed_forward: 96,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            vocabulary: 40,
            norm_epsilon: 1e-5,
            rope_frequencies: vec![1.0; 32],
            tied_embeddings: true,
            biases: ProjectionBiases::default(),
            head_norms: false,
        }
    }

    #[test]
    fn parameters_follow_each_other_without_gaps() {
        let all = ProjectionBiases {
            qkv: true,
            attention_output: true,
            gate_up: true,
            down: true,
        };
        let qkv = ProjectionBiases {
            qkv: true,
            ..ProjectionBiases::default()
        };
        for (tied_embeddings, biases, head_norms) in [
            (true, ProjectionBiases::default(), false),
            (false, qkv, false),
            (true, all, true),
        ] {
            let layout = ParameterLayout::new(ModelShape {
                tied_embeddings,
                biases,
                head_norms,
                ..shape()
            });
            let mut next = 0;
            for parameter in layout.parameters() {
                let range = layout.range(parameter);
                assert_eq!(range.start, next, "{parameter:?}");
                assert!(range.start.is_multiple_of(VEC));
                next = range.end;
            }
            assert_eq!(next, layout.len());
            assert_eq!(
                layout.range(Parameter::Embedding).start,
                layout.decay_start()
            );
        }
    }

    #[test]
    fn projections_are_all_rows_of_their_parameter() {
        let layout = ParameterLayout::new(shape());
        for parameter in Parameter::matrices(1) {
            let shape = layout.shape();
            let projections = parameter.projections().iter();
            let mut rows: Vec<usize> = projections
                .flat_map(|projection| {
                    assert_eq!(projection.parameter(1), parameter);
                    (0..projection.rows(shape)).map(|index| projection.row(shape, index))
                })
                .collect();
            rows.sort_unstable();
            let count = layout.range(parameter).len() / parameter.columns(shape);
            assert!(rows.into_iter().eq(0..count), "{parameter:?}");
        }
        assert_eq!(Projection::Gate.row(layout.shape(), 9), 17);
        assert_eq!(Projection::Up.row(layout.shape(), 9), 25);
    }
}
