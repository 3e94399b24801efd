//! A transformer up to its last hidden states, of Llama, Qwen2 or Qwen3, so that gradients come back through all of it.
//!
//! The same arithmetic as the model's own forward pass, in operations that candle can differentiate: its quick ones for
//! norms, rotary positions and softmax silently give no gradient. Rows of all sequences go through the matrices together;
//! only attention looks at one sequence at a time, so nothing is padded.

use std::collections::BTreeMap;

use candle_core::{D, Device, Tensor, Var};
use warpsmith_model::{
    Adapter, AdapterSettings, Config, Factors, HeadNorms, LayerPart, Linear, ModelError, Part,
    Place, Projection, Weights,
};

use super::convert::{from_host, to_host};
use super::linear::{Adapted, Matrix, Projected};
use super::parameters::Parameters;
use crate::TrainError;
use crate::network::{Learns, Sequence, beginning, check};

#[derive(Debug)]
pub(super) struct Body {
    config: Config,
    frequencies: Vec<f32>,
    pub(super) embedding: Tensor,
    layers: Vec<Layer>,
    final_norm: Tensor,
    /// Of the adapter that learns.
    settings: Option<AdapterSettings>,
}

/// Cosines and sines of each row's position.
type Rotation = (Tensor, Tensor);

/// A batch on its way back.
pub(super) struct Passed {
    /// What goes into each layer, and what comes out of the last.
    states: Vec<Tensor>,
    rotation: Rotation,
}

impl Passed {
    pub(super) fn last(&self) -> &Tensor {
        &self.states[self.states.len() - 1]
    }
}

#[derive(Debug)]
struct Layer {
    attention_norm: Tensor,
    head_norms: Option<(Tensor, Tensor)>,
    feed_forward_norm: Tensor,
    projections: BTreeMap<Projection, Projected>,
}

impl Body {
    pub(super) fn new(
        weights: &Weights,
        learns: &Learns,
        parameters: &mut Parameters,
        seed: u64,
    ) -> Result<Self, TrainError> {
        let mut taking = Taking {
            everything: matches!(learns, Learns::Everything),
            parameters,
        };
        let (settings, factors) = beginning::adapter(weights, learns, seed)?;
        let mut layers = Vec::with_capacity(weights.layers.len());
        for (index, layer) in weights.layers.iter().enumerate() {
            let part = |part| Part::Layer(index, part);
            let mut projections = BTreeMap::new();
            for projection in Projection::ALL {
                let place = Place {
                    layer: index,
                    projection,
                };
                let linear = layer.projection(projection);
                let factors = factors.get(&place).zip(settings.as_ref());
                let projected = taking.projected(place, linear, factors)?;
                projections.insert(projection, projected);
            }
            let head_norms = match &layer.head_norms {
                None => None,
                Some(norms) => Some((
                    taking.vector(part(LayerPart::QueryNorm), &norms.query)?,
                    taking.vector(part(LayerPart::KeyNorm), &norms.key)?,
                )),
            };
            layers.push(Layer {
                attention_norm: taking
                    .vector(part(LayerPart::AttentionNorm), &layer.attention_norm)?,
                feed_forward_norm: taking
                    .vector(part(LayerPart::FeedForwardNorm), &layer.feed_forward_norm)?,
                head_norms,
                projections,
            });
        }
        Ok(Self {
            frequencies: weights.config.frequencies(),
            embedding: taking.tensor(
                weight(&Part::Embedding.in_safetensors()),
                from_host(&weights.embedding.to_f32())?,
            )?,
            final_norm: taking.vector(Part::FinalNorm, &weights.final_norm)?,
            config: weights.config.clone(),
            layers,
            settings,
        })
    }

    /// What goes into each layer, and what comes out of the last. Nothing else is kept on the way: the way back makes the
    /// rest again, a layer at a time, which is a third more work for a small part of the memory.
    pub(super) fn forward(&self, batch: &[&Sequence]) -> Result<Passed, TrainError> {
        check(batch, &self.config)?;
        let rotation = self.rotation(batch)?;
        let mut states = vec![self.embedded(batch)?.detach()];
        for layer in &self.layers {
            let input = &states[states.len() - 1];
            states.push(self.through(layer, input, batch, &rotation)?.detach());
        }
        Ok(Passed { states, rotation })
    }

    /// The last hidden states, normed, before each token that was said: one row each, sequence after sequence.
    pub(super) fn before_said(
        &self,
        batch: &[&Sequence],
        last: &Tensor,
    ) -> Result<Tensor, TrainError> {
        let mut start = 0;
        let mut before = Vec::new();
        for sequence in batch {
            let said = sequence.said().iter();
            // What follows from a place is the token after it.
            before.extend(said.map(|place| (start + place - 1) as u32));
            start += sequence.len();
        }
        let before = Tensor::new(before, &Device::Cpu)?;
        let epsilon = f64::from(self.config.norm_epsilon);
        norm(&last.index_select(&before, 0)?, &self.final_norm, epsilon)
    }

    /// Adds the gradients of a loss that changes with [`Body::before_said`] by `slopes`.
    pub(super) fn backward(
        &self,
        batch: &[&Sequence],
        passed: Passed,
        slopes: &Tensor,
        parameters: &mut Parameters,
    ) -> Result<(), TrainError> {
        let Passed {
            mut states,
            rotation,
        } = passed;
        let mut back = |input: Tensor,
                        slopes: &Tensor,
                        through: &dyn Fn(&Tensor) -> Result<Tensor, TrainError>|
         -> Result<Tensor, TrainError> {
            let input = Var::from_tensor(&input)?;
            let input = input.as_tensor();
            parameters.add_through(&through(input)?, slopes, input)
        };
        let mut slopes = match states.pop() {
            Some(last) => back(last, slopes, &|last| self.before_said(batch, last))?,
            None => return Ok(()),
        };
        for (layer, input) in self.layers.iter().zip(states).rev() {
            slopes = back(input, &slopes, &|input| {
                self.through(layer, input, batch, &rotation)
            })?;
        }
        if self.settings.is_none() {
            let table = &self.embedding;
            parameters.add_through(&self.embedded(batch)?, &slopes, table)?;
        }
        Ok(())
    }

    fn embedded(&self, batch: &[&Sequence]) -> Result<Tensor, TrainError> {
        let tokens = batch.iter().flat_map(|one| one.tokens());
        let tokens: Vec<u32> = tokens.copied().collect();
        let tokens = Tensor::new(tokens, &Device::Cpu)?;
        Ok(self.embedding.index_select(&tokens, 0)?)
    }

    fn through(
        &self,
        layer: &Layer,
        input: &Tensor,
        batch: &[&Sequence],
        rotation: &Rotation,
    ) -> Result<Tensor, TrainError> {
        let epsilon = f64::from(self.config.norm_epsilon);
        let normed = norm(input, &layer.attention_norm, epsilon)?;
        let hidden = (input + self.attend(layer, &normed, batch, rotation)?)?;
        let normed = norm(&hidden, &layer.feed_forward_norm, epsilon)?;
        let gate = layer.project(Projection::Gate, &normed)?.silu()?;
        let up = layer.project(Projection::Up, &normed)?;
        Ok((hidden + layer.project(Projection::Down, &(gate * up)?)?)?)
    }

    /// Cosines and sines of each row's position, for all heads.
    fn rotation(&self, batch: &[&Sequence]) -> Result<Rotation, TrainError> {
        let angles: Vec<f32> = batch
            .iter()
            .flat_map(|one| 0..one.len())
            .flat_map(|position| {
                self.frequencies
                    .iter()
                    .map(move |one| position as f32 * one)
            })
            .collect();
        let pairs = self.frequencies.len();
        let shape = (angles.len() / pairs, 1, pairs);
        let tensor = |turn: fn(f32) -> f32| {
            let numbers = angles.iter().copied().map(turn).collect();
            Tensor::from_vec(numbers, shape, &Device::Cpu)
        };
        Ok((tensor(f32::cos)?, tensor(f32::sin)?))
    }

    fn attend(
        &self,
        layer: &Layer,
        input: &Tensor,
        batch: &[&Sequence],
        rotation: &Rotation,
    ) -> Result<Tensor, TrainError> {
        let Config {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.config;
        let epsilon = f64::from(self.config.norm_epsilon);
        let rows = input.dim(0)?;
        let by_head = |projection, heads| -> Result<Tensor, TrainError> {
            let output = layer.project(projection, input)?;
            Ok(output.reshape((rows, heads, head_dim))?)
        };
        let mut queries = by_head(Projection::Query, heads)?;
        let mut keys = by_head(Projection::Key, kv_heads)?;
        let values = by_head(Projection::Value, kv_heads)?;
        if let Some((query, key)) = &layer.head_norms {
            queries = norm(&queries, query, epsilon)?;
            keys = norm(&keys, key, epsilon)?;
        }
        let queries = rotated(&queries, rotation)?;
        let keys = rotated(&keys, rotation)?;
        let (mut start, mut attended) = (0, Vec::with_capacity(batch.len()));
        for sequence in batch {
            let length = sequence.len();
            // Heads first. Queries that share a head of keys are rows of one product.
            let of = |tensor: &Tensor| tensor.narrow(0, start, length)?.transpose(0, 1);
            let shared = (kv_heads, heads / kv_heads * length, head_dim);
            let queries = of(&queries)?.contiguous()?.reshape(shared)?;
            let keys = of(&keys)?.contiguous()?;
            let values = of(&values)?.contiguous()?;
            let scores = queries.matmul(&keys.transpose(1, 2)?)?;
            let scores = scores.affine((head_dim as f64).sqrt().recip(), 0.0)?;
            let scores = scores.broadcast_add(&future(length, heads / kv_heads)?)?;
            let output = softmax(&scores)?.matmul(&values)?;
            let output = output
                .reshape((heads, length, head_dim))?
                .transpose(0, 1)?
                .reshape((length, heads * head_dim))?;
            attended.push(output);
            start += length;
        }
        layer.project(Projection::AttentionOutput, &Tensor::cat(&attended, 0)?)
    }

    pub(super) fn adapter(&self) -> Result<Option<Adapter>, TrainError> {
        let Some(settings) = &self.settings else {
            return Ok(None);
        };
        let mut factors = BTreeMap::new();
        for (layer, parts) in self.layers.iter().enumerate() {
            for (&projection, projected) in &parts.projections {
                if let Some(Adapted { a, b, .. }) = &projected.adapter {
                    // A copy: what is published does not change with the next update.
                    let (a, b) = (to_host(a)?, to_host(b)?);
                    factors.insert(Place { layer, projection }, Factors { a, b });
                }
            }
        }
        let adapter = Adapter::new(settings.clone(), factors).map_err(ModelError::from)?;
        Ok(Some(adapter))
    }

    /// Weights with these numbers in place of their own.
    pub(super) fn written(&self, before: &Weights) -> Result<Weights, TrainError> {
        let mut weights = before.clone();
        let copy = |tensor: &Tensor| -> Result<warpsmith_model::Matrix, TrainError> {
            Ok(to_host(tensor)?.into())
        };
        weights.embedding = copy(&self.embedding)?;
        weights.final_norm = self.final_norm.to_vec1()?;
        for (layer, learnt) in weights.layers.iter_mut().zip(&self.layers) {
            layer.attention_norm = learnt.attention_norm.to_vec1()?;
            layer.feed_forward_norm = learnt.feed_forward_norm.to_vec1()?;
            layer.head_norms = match &learnt.head_norms {
                None => None,
                Some((query, key)) => Some(HeadNorms {
                    query: query.to_vec1()?,
                    key: key.to_vec1()?,
                }),
            };
            for (&projection, projected) in &learnt.projections {
                let linear = layer.projection_mut(projection);
                linear.weight = copy(projected.weight.tensor())?;
                linear.adapters.clear();
                linear.bias = match &projected.bias {
                    None => None,
                    Some(bias) => Some(bias.to_vec1()?),
                };
            }
        }
        Ok(weights)
    }
}

impl Layer {
    fn project(&self, projection: Projection, input: &Tensor) -> Result<Tensor, TrainError> {
        self.projections[&projection].forward(input)
    }
}

/// Takes a model's numbers, as parameters where everything learns.
pub(super) struct Taking<'a> {
    pub(super) everything: bool,
    pub(super) parameters: &'a mut Parameters,
}

impl Taking<'_> {
    pub(super) fn tensor(&mut self, name: String, numbers: Tensor) -> Result<Tensor, TrainError> {
        if self.everything {
            self.parameters.learn(name, &numbers)
        } else {
            Ok(numbers)
        }
    }

    fn vector(&mut self, part: Part, numbers: &[f32]) -> Result<Tensor, TrainError> {
        let name = weight(&part.in_safetensors());
        self.tensor(name, Tensor::new(numbers, &Device::Cpu)?)
    }

    fn projected(
        &mut self,
        place: Place,
        linear: &Linear,
        learnt: Option<(&Factors, &AdapterSettings)>,
    ) -> Result<Projected, TrainError> {
        let numbers = self.tensor(
            weight(&place.to_string()),
            from_host(&linear.merged_weight())?,
        )?;
        let bias = match &linear.bias {
            None => None,
            Some(bias) => {
                let numbers = Tensor::new(bias.as_slice(), &Device::Cpu)?;
                Some(self.tensor(format!("{place}.bias"), numbers)?)
            }
        };
        let adapter = match learnt {
            None => None,
            Some((Factors { a, b }, settings)) => Some(Adapted {
                a: self
                    .parameters
                    .learn(format!("{place}.lora_A.weight"), &from_host(a)?)?,
                b: self
                    .parameters
                    .learn(format!("{place}.lora_B.weight"), &from_host(b)?)?,
                scale: f64::from(settings.scale()),
            }),
        };
        Ok(Projected {
            weight: if self.everything {
                Matrix::Learns(numbers)
            } else {
                Matrix::Frozen(numbers)
            },
            bias,
            adapter,
        })
    }
}

fn weight(name: &str) -> String {
    format!("{name}.weight")
}

/// Root mean square norm of the last dimension.
fn norm(rows: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor, TrainError> {
    let mean = rows.sqr()?.mean_keepdim(D::Minus1)?;
    let scale = mean.affine(1.0, epsilon)?.sqrt()?.recip()?;
    Ok(rows.broadcast_mul(&scale)?.broadcast_mul(weight)?)
}

/// Each head's first half turns against its second.
fn rotated(heads: &Tensor, (cosines, sines): &Rotation) -> Result<Tensor, TrainError> {
    let pairs = heads.dim(D::Minus1)? / 2;
    let one = heads.narrow(D::Minus1, 0, pairs)?;
    let two = heads.narrow(D::Minus1, pairs, pairs)?;
    let first = (one.broadcast_mul(cosines)? - two.broadcast_mul(sines)?)?;
    let second = (two.broadcast_mul(cosines)? + one.broadcast_mul(sines)?)?;
    Ok(Tensor::cat(&[first, second], D::Minus1)?)
}

/// Nothing for what a position may see, minus infinity for what comes after it, as often as heads share keys.
fn future(length: usize, times: usize) -> Result<Tensor, TrainError> {
    let numbers: Vec<f32> = (0..times * length)
        .map(|row| row % length)
        .flat_map(|row| (0..length).map(move |column| (row, column)))
        .map(|(row, column)| if column > row { f32::NEG_INFINITY } else { 0.0 })
        .collect();
    let shape = (1, times * length, length);
    Ok(Tensor::from_vec(numbers, shape, &Device::Cpu)?)
}

fn softmax(scores: &Tensor) -> Result<Tensor, TrainError> {
    let largest = scores.max_keepdim(D::Minus1)?.detach();
    let powers = scores.broadcast_sub(&largest)?.exp()?;
    let sums = powers.sum_keepdim(D::Minus1)?;
    Ok(powers.broadcast_div(&sums)?)
}
