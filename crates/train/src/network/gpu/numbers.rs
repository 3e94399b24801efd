//! A model's weights as a device lays them out.

use std::collections::BTreeMap;

use warpsmith_kernels::training::{Factors, Parameter, Part, Shape};
use warpsmith_model::{Factors as Pair, Layer, Linear, ModelError, Place, Projection, Weights};

use super::slots;

/// What the model looks like, if a device can learn it.
pub(super) fn shape(weights: &Weights) -> Result<Shape, ModelError> {
    let config = &weights.config;
    let turned = [Projection::Query, Projection::Key, Projection::Value];
    let has_bias = |projection: Projection| {
        let mut layers = weights.layers.iter();
        layers.any(|layer| layer.projection(projection).bias.is_some())
    };
    let others = Projection::ALL.into_iter();
    let mut others = others.filter(|projection| !turned.contains(projection));
    if let Some(odd) = others.find(|projection| has_bias(*projection)) {
        return Err(ModelError::Setting {
            key: format!("{}.bias", odd.name()),
            reason: "there, which a GPU has no way for".into(),
        });
    }
    Ok(Shape {
        layers: config.layers,
        hidden: config.hidden,
        feed_forward: config.feed_forward,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        vocabulary: config.vocabulary,
        norm_epsilon: config.norm_epsilon,
        frequencies: config.frequencies(),
        tied: weights.output.is_none(),
        biased: turned.into_iter().any(has_bias),
        head_norms: weights
            .layers
            .iter()
            .any(|layer| layer.head_norms.is_some()),
    })
}

/// Numbers of a parameter.
pub(super) fn of(weights: &Weights, shape: &Shape, parameter: Parameter) -> Vec<f32> {
    let all = |matrix: &warpsmith_model::Matrix| matrix.to_f32().data().to_vec();
    match parameter {
        Parameter::AttentionNorm(layer) => weights.layers[layer].attention_norm.clone(),
        Parameter::FeedForwardNorm(layer) => weights.layers[layer].feed_forward_norm.clone(),
        Parameter::FinalNorm => weights.final_norm.clone(),
        Parameter::HeadNorms(layer) => match &weights.layers[layer].head_norms {
            Some(norms) => [norms.query.as_slice(), norms.key.as_slice()].concat(),
            None => Vec::new(),
        },
        Parameter::Bias(layer) => bias(&weights.layers[layer]),
        Parameter::Embedding => all(&weights.embedding),
        Parameter::Output => all(weights.head()),
        Parameter::Qkv(layer)
        | Parameter::AttentionOutput(layer)
        | Parameter::GateAndUp(layer)
        | Parameter::Down(layer) => matrix(&weights.layers[layer], shape, parameter),
    }
}

/// All biases one after the other; where some have one, the others' are zeros.
fn bias(layer: &Layer) -> Vec<f32> {
    let own = |linear: &Linear| match &linear.bias {
        Some(bias) => bias.clone(),
        None => vec![0.0; linear.weight.rows()],
    };
    [&layer.query, &layer.key, &layer.value].map(own).concat()
}

/// Rows of all that the parameter is made of, where they belong.
fn matrix(layer: &Layer, shape: &Shape, parameter: Parameter) -> Vec<f32> {
    let columns = parameter.inputs(shape);
    let parts = parameter.parts();
    let rows: usize = parts.iter().map(|part| part.rows(shape)).sum();
    let mut numbers = vec![0.0; rows * columns];
    for projection in Projection::ALL {
        let part: Part = slots::of(projection);
        if !parts.contains(&part) {
            continue;
        }
        let linear = layer.projection(projection).merged_weight();
        for (number, row) in linear.data().chunks_exact(columns).enumerate() {
            let start = part.row(shape, number) * columns;
            numbers[start..start + columns].copy_from_slice(row);
        }
    }
    numbers
}

/// Numbers of low-rank matrices. Where a layer has none they are zeros and stay so: each of the two is the other's slope.
pub(super) fn of_adapter(
    pairs: &BTreeMap<Place, Pair>,
    factors: &Factors,
    (shape, rank): (&Shape, usize),
) -> Vec<f32> {
    let mut numbers = vec![0.0; factors.count()];
    let slots = slots::Slots::adapter(pairs.keys(), factors, (shape, rank, 0));
    for slot in &slots.0 {
        let tensor = match slot.of {
            slots::Of::A(place) => &pairs[&place].a,
            slots::Of::B(place) => &pairs[&place].b,
            _ => continue,
        };
        slot.write(tensor.data(), &mut numbers);
    }
    numbers
}
