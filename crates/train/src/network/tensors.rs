//! Trainable tensors by the names and shapes that they have in files, and where they lie in a trainable model's vector.
//!
//! In the vector, projections that read the same rows are fused, gate and up rows alternate, and LoRA matrices are blocks of larger
//! ones ([`warpsmith_kernels::training`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use warpsmith_kernels::training::{
    LoraLayout, ModelShape, Parameter, ParameterLayout, ProjectionBiases, TrainState,
    TrainableLayout,
};
use warpsmith_model::{
    HeadNorms, HostTensor, LayerWeight, LoraTarget, Matrix, ModelError, Projection, WeightName,
    Weights,
};

use super::OPTIMIZER;

const FIRST_MOMENT: &str = "first.";
const SECOND_MOMENT: &str = "second.";

/// What a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TensorId {
    /// Of the model itself, where it is no projection.
    Model(WeightName),
    Weight(LoraTarget),
    Bias(LoraTarget),
    LoraA(LoraTarget),
    LoraB(LoraTarget),
    ValueWeight,
    ValueBias,
}

impl TensorId {
    fn name(self) -> String {
        match self {
            Self::Model(part) => format!("{}.weight", part.in_safetensors()),
            Self::Weight(place) => format!("{place}.weight"),
            Self::Bias(place) => format!("{place}.bias"),
            Self::LoraA(place) => format!("{place}.lora_A.weight"),
            Self::LoraB(place) => format!("{place}.lora_B.weight"),
            Self::ValueWeight => "value_head.weight".into(),
            Self::ValueBias => "value_head.bias".into(),
        }
    }
}

/// One tensor: rows of the vector.
#[derive(Debug)]
pub(super) struct NamedTensor {
    pub(super) id: TensorId,
    shape: Vec<usize>,
    /// Where each row begins.
    rows: Vec<usize>,
    columns: usize,
}

impl NamedTensor {
    fn vector(id: TensorId, start: usize, len: usize) -> Self {
        Self {
            id,
            shape: vec![len],
            rows: vec![start],
            columns: len,
        }
    }

    fn matrix(id: TensorId, rows: Vec<usize>, columns: usize) -> Self {
        Self {
            id,
            shape: vec![rows.len(), columns],
            rows,
            columns,
        }
    }

    pub(super) fn read(&self, vector: &[f32]) -> HostTensor {
        let rows = self.rows.iter();
        let values: Vec<f32> = rows
            .flat_map(|start| &vector[*start..*start + self.columns])
            .copied()
            .collect();
        HostTensor::new(self.shape.clone(), values)
    }

    pub(super) fn write(&self, tensor: &HostTensor, vector: &mut [f32]) {
        self.write_from(0, tensor, vector);
    }

    /// The same into a part of the vector that begins at `first`.
    fn write_from(&self, first: usize, tensor: &HostTensor, vector: &mut [f32]) {
        let rows = tensor.data().chunks_exact(self.columns);
        for (start, row) in self.rows.iter().zip(rows) {
            vector[start - first..][..self.columns].copy_from_slice(row);
        }
    }
}

/// All trainable tensors of a network.
#[derive(Debug)]
pub(super) struct NamedTensors(Vec<NamedTensor>);

impl NamedTensors {
    /// Of a network with this layout. `weights` is the base model, `places` are the adapter's projections where one trains.
    pub(super) fn new<'a>(
        layout: &TrainableLayout,
        weights: &Weights,
        places: impl Iterator<Item = &'a LoraTarget>,
    ) -> Self {
        let start = layout.head_len();
        let mut tensors = match layout.lora() {
            Some(lora) => lora_tensors(lora, layout.shape(), places, start),
            None => model_tensors(weights, layout.base(), start),
        };
        if start > 0 {
            // A critic has no logits.
            tensors.retain(|tensor| tensor.id != TensorId::Model(WeightName::Output));
            let hidden = layout.shape().hidden;
            let (weight, bias) = (layout.value_weight().start, layout.value_bias());
            tensors.push(NamedTensor::matrix(
                TensorId::ValueWeight,
                vec![weight],
                hidden,
            ));
            tensors.push(NamedTensor::vector(TensorId::ValueBias, bias, 1));
        }
        Self(tensors)
    }

    /// Of an adapter alone.
    pub(super) fn lora<'a>(
        lora: &LoraLayout,
        layout: &ParameterLayout,
        places: impl Iterator<Item = &'a LoraTarget>,
    ) -> Self {
        Self(lora_tensors(lora, layout.shape(), places, 0))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &NamedTensor> {
        self.0.iter()
    }

    /// All tensors of a vector, by name.
    pub(super) fn named(&self, vector: &[f32]) -> BTreeMap<String, HostTensor> {
        let tensors = self.0.iter();
        tensors
            .map(|tensor| (tensor.id.name(), tensor.read(vector)))
            .collect()
    }

    pub(super) fn state(&self, state: &TrainState) -> BTreeMap<String, HostTensor> {
        let mut all = self.named(&state.weights);
        for (moment, vector) in [
            (FIRST_MOMENT, &state.first_moment),
            (SECOND_MOMENT, &state.second_moment),
        ] {
            let named = self.named(vector).into_iter();
            all.extend(named.map(|(name, tensor)| (format!("{OPTIMIZER}{moment}{name}"), tensor)));
        }
        all
    }

    /// Overwrites all tensors of a state.
    pub(super) fn restore(
        &self,
        from: &BTreeMap<String, HostTensor>,
        to: &mut TrainState,
    ) -> Result<(), ModelError> {
        let find = |name: String, shape: &[usize]| -> Result<&HostTensor, ModelError> {
            let Some(tensor) = from.get(&name) else {
                return Err(ModelError::MissingTensor { name });
            };
            if tensor.shape() != shape {
                return Err(ModelError::Shape {
                    name,
                    found: tensor.shape().to_vec(),
                    expected: shape.to_vec(),
                });
            }
            Ok(tensor)
        };
        for tensor in &self.0 {
            let name = tensor.id.name();
            for (prefix, vector) in [
                (String::new(), &mut to.weights),
                (format!("{OPTIMIZER}{FIRST_MOMENT}"), &mut to.first_moment),
                (format!("{OPTIMIZER}{SECOND_MOMENT}"), &mut to.second_moment),
            ] {
                let found = find(format!("{prefix}{name}"), &tensor.shape)?;
                tensor.write(found, vector);
            }
        }
        Ok(())
    }
}

/// Tensors of all of a model, from element `start` of the vector on.
pub(super) fn model_tensors(
    weights: &Weights,
    layout: &ParameterLayout,
    start: usize,
) -> Vec<NamedTensor> {
    let shape = layout.shape();
    let start = |parameter| start + layout.range(parameter).start;
    let table = |part, parameter| {
        let rows = (0..shape.vocabulary).map(|row| start(parameter) + row * shape.hidden);
        NamedTensor::matrix(TensorId::Model(part), rows.collect(), shape.hidden)
    };
    let mut tensors = vec![table(WeightName::Embedding, Parameter::Embedding)];
    if weights.output.is_some() {
        tensors.push(table(WeightName::Output, Parameter::LmHead));
    }
    let norm = |part, parameter| {
        NamedTensor::vector(TensorId::Model(part), start(parameter), shape.hidden)
    };
    tensors.push(norm(WeightName::FinalNorm, Parameter::FinalNorm));
    for (index, layer) in weights.layers.iter().enumerate() {
        let part = |part| WeightName::Layer(index, part);
        tensors.push(norm(
            part(LayerWeight::AttentionNorm),
            Parameter::AttentionNorm(index),
        ));
        tensors.push(norm(
            part(LayerWeight::FeedForwardNorm),
            Parameter::FeedForwardNorm(index),
        ));
        if layer.head_norms.is_some() {
            let (dim, start) = (shape.head_dim, start(Parameter::HeadNorms(index)));
            let norm = |of, start| NamedTensor::vector(TensorId::Model(part(of)), start, dim);
            tensors.push(norm(LayerWeight::QueryNorm, start));
            tensors.push(norm(LayerWeight::KeyNorm, start + dim));
        }
        for projection in Projection::ALL {
            let place = LoraTarget {
                layer: index,
                projection,
            };
            let parameter = projection.parameter(index);
            let columns = parameter.columns(shape);
            let row = |row| start(parameter) + projection.row(shape, row) * columns;
            let rows = (0..projection.rows(shape)).map(row).collect();
            tensors.push(NamedTensor::matrix(TensorId::Weight(place), rows, columns));
            if layer.projection(projection).bias.is_some() {
                tensors.push(bias_tensor(layout, place, start(projection.bias(index))));
            }
        }
    }
    tensors
}

/// A projection's bias, whose elements are in the order of the fused parameter's rows.
fn bias_tensor(layout: &ParameterLayout, place: LoraTarget, start: usize) -> NamedTensor {
    let (projection, shape) = (place.projection, layout.shape());
    let rows = projection.rows(shape);
    NamedTensor {
        id: TensorId::Bias(place),
        shape: vec![rows],
        rows: (0..rows)
            .map(|row| start + projection.row(shape, row))
            .collect(),
        columns: 1,
    }
}

/// Tensors of an adapter on these projections.
fn lora_tensors<'a>(
    lora: &LoraLayout,
    shape: &ModelShape,
    places: impl Iterator<Item = &'a LoraTarget>,
    start: usize,
) -> Vec<NamedTensor> {
    let rank = lora.rank();
    let mut tensors = Vec::new();
    for &place in places {
        let projection = place.projection;
        let columns = projection.parameter(place.layer).columns(shape);
        let a = (0..rank).filter_map(|row| lora.a_row(place.layer, projection, row));
        let a = a.map(|row| start + row.start).collect();
        let b = 0..projection.rows(shape);
        let b = b.filter_map(|row| lora.b_row(place.layer, projection, row));
        let b = b.map(|row| start + row).collect();
        tensors.push(NamedTensor::matrix(TensorId::LoraA(place), a, columns));
        tensors.push(NamedTensor::matrix(TensorId::LoraB(place), b, rank));
    }
    tensors
}

/// A base model's weights in the order of a layout.
pub(super) struct BaseValues<'a> {
    weights: &'a Weights,
    layout: &'a ParameterLayout,
    tensors: Vec<NamedTensor>,
}

impl<'a> BaseValues<'a> {
    pub(super) fn new(weights: &'a Weights, layout: &'a ParameterLayout) -> Self {
        Self {
            tensors: model_tensors(weights, layout, 0),
            weights,
            layout,
        }
    }

    /// Values of one fused parameter, adapters merged.
    pub(super) fn parameter(&self, parameter: Parameter) -> Vec<f32> {
        let range = self.layout.range(parameter);
        let mut values = vec![0.0; range.len()];
        for tensor in &self.tensors {
            let inside = tensor.rows.first().is_some_and(|row| range.contains(row));
            if inside {
                let from = base_tensor(self.weights, tensor.id);
                tensor.write_from(range.start, &from, &mut values);
            }
        }
        values
    }

    /// Values of all parameters.
    pub(super) fn all(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.layout.len()];
        for tensor in &self.tensors {
            tensor.write(&base_tensor(self.weights, tensor.id), &mut values);
        }
        values
    }
}

/// A tensor of the base model, adapters merged.
fn base_tensor(weights: &Weights, id: TensorId) -> Arc<HostTensor> {
    let vector = |values: &[f32]| Arc::new(HostTensor::vector(values.to_vec()));
    match id {
        TensorId::Model(WeightName::Embedding) => weights.embedding.to_f32(),
        TensorId::Model(WeightName::Output) => weights.head().to_f32(),
        TensorId::Model(WeightName::FinalNorm) => vector(&weights.final_norm),
        TensorId::Model(WeightName::Layer(index, part)) => {
            let layer = &weights.layers[index];
            match (part, &layer.head_norms) {
                (LayerWeight::FeedForwardNorm, _) => vector(&layer.feed_forward_norm),
                (LayerWeight::QueryNorm, Some(HeadNorms { query, .. })) => vector(query),
                (LayerWeight::KeyNorm, Some(HeadNorms { key, .. })) => vector(key),
                _ => vector(&layer.attention_norm),
            }
        }
        TensorId::Bias(place) => {
            let linear = weights.layers[place.layer].projection(place.projection);
            vector(linear.bias.as_deref().unwrap_or_default())
        }
        TensorId::Weight(place) | TensorId::LoraA(place) | TensorId::LoraB(place) => {
            let linear = weights.layers[place.layer].projection(place.projection);
            linear.merged_weight()
        }
        TensorId::ValueWeight | TensorId::ValueBias => vector(&[]),
    }
}

/// Replaces a tensor of a model.
pub(super) fn set_tensor(weights: &mut Weights, id: TensorId, tensor: HostTensor) {
    match id {
        TensorId::Model(WeightName::Embedding) => weights.embedding = Matrix::from(tensor),
        TensorId::Model(WeightName::Output) => weights.output = Some(Matrix::from(tensor)),
        TensorId::Model(WeightName::FinalNorm) => weights.final_norm = tensor.into_data(),
        TensorId::Model(WeightName::Layer(index, part)) => {
            let layer = &mut weights.layers[index];
            let values = tensor.into_data();
            match (part, &mut layer.head_norms) {
                (LayerWeight::AttentionNorm, _) => layer.attention_norm = values,
                (LayerWeight::FeedForwardNorm, _) => layer.feed_forward_norm = values,
                (LayerWeight::QueryNorm, Some(HeadNorms { query, .. })) => *query = values,
                (LayerWeight::KeyNorm, Some(HeadNorms { key, .. })) => *key = values,
                _ => {}
            }
        }
        TensorId::Weight(place) => {
            let linear = weights.layers[place.layer].projection_mut(place.projection);
            linear.weight = Matrix::from(tensor);
            linear.adapters.clear();
        }
        TensorId::Bias(place) => {
            let linear = weights.layers[place.layer].projection_mut(place.projection);
            linear.bias = Some(tensor.into_data());
        }
        TensorId::LoraA(_) | TensorId::LoraB(_) | TensorId::ValueWeight | TensorId::ValueBias => {}
    }
}

/// Sizes and variants of a model.
pub(super) fn model_shape(weights: &Weights) -> Result<ModelShape, ModelError> {
    let config = &weights.config;
    Ok(ModelShape {
        layers: config.layers,
        hidden: config.hidden,
        feed_forward: config.feed_forward,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        vocabulary: config.vocabulary,
        norm_epsilon: config.norm_epsilon,
        rope_frequencies: config.frequencies(),
        tied_embeddings: weights.output.is_none(),
        biases: ProjectionBiases {
            qkv: have_bias(
                weights,
                &[Projection::Query, Projection::Key, Projection::Value],
            )?,
            attention_output: have_bias(weights, &[Projection::AttentionOutput])?,
            gate_up: have_bias(weights, &[Projection::Gate, Projection::Up])?,
            down: have_bias(weights, &[Projection::Down])?,
        },
        head_norms: weights
            .layers
            .iter()
            .any(|layer| layer.head_norms.is_some()),
    })
}

/// Whether these projections have biases: all of them in all layers, or none.
fn have_bias(weights: &Weights, projections: &[Projection]) -> Result<bool, ModelError> {
    let missing = |projection: &&Projection| {
        let mut layers = weights.layers.iter();
        layers.any(|layer| layer.projection(**projection).bias.is_none())
    };
    let Some(without) = projections.iter().find(missing) else {
        return Ok(true);
    };
    let mut all = weights.layers.iter().flat_map(|layer| {
        let projections = projections.iter();
        projections.map(|projection| &layer.projection(*projection).bias)
    });
    if all.any(Option::is_some) {
        return Err(ModelError::Setting {
            key: format!("{}.bias", without.name()),
            reason: "absent where others beside it are present, which training does not support"
                .into(),
        });
    }
    Ok(false)
}
