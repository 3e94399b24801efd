//! From hidden states to what is said of tokens, and back.
//!
//! Logits are a large vocabulary for every token, so they are made a few rows at a time, used and dropped, and made again on
//! the way back, whose formulas stand here.

use candle_core::{Device, Tensor};
use warpsmith_model::{Part, Weights};

use super::body::{Body, Taking};
use super::convert::{from_host, to_host};
use super::parameters::{Gradients, Parameters};
use crate::TrainError;
use crate::network::{Learns, Scores, VALUE_BIAS, VALUE_WEIGHT};

/// Numbers of logits at a time: 64 MB.
const LOGITS: usize = 1 << 24;

#[derive(Debug)]
pub(super) struct LanguageHead {
    /// `vocabulary x hidden`.
    matrix: Tensor,
    /// The name of the parameter, where it learns: the embedding's, where that is the same.
    name: Option<String>,
    tied: bool,
}

impl LanguageHead {
    pub(super) fn new(
        weights: &Weights,
        body: &Body,
        learns: &Learns,
        parameters: &mut Parameters,
    ) -> Result<Self, TrainError> {
        let everything = matches!(learns, Learns::Everything);
        let part = match weights.output {
            Some(_) => Part::Output,
            None => Part::Embedding,
        };
        let name = format!("{}.weight", part.in_safetensors());
        let matrix = match &weights.output {
            None => body.embedding.clone(),
            Some(output) => Taking {
                everything,
                parameters,
            }
            .tensor(name.clone(), from_host(&output.to_f32())?)?,
        };
        Ok(Self {
            matrix: matrix.detach(),
            name: everything.then_some(name),
            tied: weights.output.is_none(),
        })
    }

    pub(super) fn write(&self, weights: &mut Weights) -> Result<(), TrainError> {
        if !self.tied {
            weights.output = Some(to_host(&self.matrix)?.into());
        }
        Ok(())
    }

    pub(super) fn scores(&self, hidden: &Tensor, targets: &[u32]) -> Result<Scores, TrainError> {
        let mut scores = Scores::default();
        self.each(hidden, targets, |rows, _| {
            for (row, target) in rows {
                let row = Row::of(row);
                scores.logprobs.push(row.log_probability(target));
                scores.entropies.push(row.entropy as f32);
            }
            Ok(())
        })?;
        Ok(scores)
    }

    /// How a loss changes with the hidden states, from how it changes with the scores; and with the head itself.
    pub(super) fn backward(
        &self,
        hidden: &Tensor,
        targets: &[u32],
        slopes: &Scores,
        gradients: &mut Gradients,
    ) -> Result<Tensor, TrainError> {
        let mut back = Vec::new();
        let mut place = 0;
        let mut own: Option<Tensor> = None;
        self.each(hidden, targets, |rows, hidden| {
            let mut of_logits = Vec::new();
            for (row, target) in rows {
                let (by_logprob, by_entropy) = (slopes.logprobs[place], slopes.entropies[place]);
                Row::of(row).extend_slopes(target, by_logprob, by_entropy, &mut of_logits);
                place += 1;
            }
            let (count, _) = hidden.dims2()?;
            let shape = (count, self.matrix.dim(0)?);
            let of_logits = Tensor::from_vec(of_logits, shape, &Device::Cpu)?;
            back.push(of_logits.matmul(&self.matrix)?);
            if self.name.is_some() {
                let more = of_logits.t()?.matmul(hidden)?;
                own = Some(match own.take() {
                    Some(before) => (before + more)?,
                    None => more,
                });
            }
            Ok(())
        })?;
        if let (Some(name), Some(own)) = (&self.name, own) {
            gradients.insert(name.clone(), own);
        }
        Ok(Tensor::cat(&back, 0)?)
    }

    /// Calls with the logits of some rows and their targets, and those rows.
    fn each(
        &self,
        hidden: &Tensor,
        targets: &[u32],
        mut visit: impl FnMut(
            &mut dyn Iterator<Item = (&[f32], u32)>,
            &Tensor,
        ) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let vocabulary = self.matrix.dim(0)?;
        let at_once = (LOGITS / vocabulary).max(1);
        for (chunk, targets) in targets.chunks(at_once).enumerate() {
            let rows = hidden.narrow(0, chunk * at_once, targets.len())?;
            let logits = rows.matmul(&self.matrix.t()?)?;
            let logits = logits.flatten_all()?.to_vec1::<f32>()?;
            let mut pairs = logits
                .chunks_exact(vocabulary)
                .zip(targets)
                .map(|(row, target)| (row, *target));
            visit(&mut pairs, &rows)?;
        }
        Ok(())
    }
}

/// The distribution that one row of logits stands for.
struct Row<'a> {
    logits: &'a [f32],
    /// What is taken off a logit to make it a log-probability.
    total: f64,
    entropy: f64,
}

impl<'a> Row<'a> {
    fn of(logits: &'a [f32]) -> Self {
        let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let (mut sum, mut weighted) = (0.0, 0.0);
        for logit in logits {
            let above = f64::from(*logit) - largest;
            let power = above.exp();
            sum += power;
            // Nothing, not "nothing times infinity", for what cannot be.
            weighted += if power > 0.0 { power * above } else { 0.0 };
        }
        Self {
            logits,
            total: largest + sum.ln(),
            entropy: sum.ln() - weighted / sum,
        }
    }

    fn log_probability(&self, token: u32) -> f32 {
        (f64::from(self.logits[token as usize]) - self.total) as f32
    }

    fn extend_slopes(&self, target: u32, by_logprob: f32, by_entropy: f32, to: &mut Vec<f32>) {
        let (by_logprob, by_entropy) = (f64::from(by_logprob), f64::from(by_entropy));
        let start = to.len();
        to.extend(self.logits.iter().map(|logit| {
            let log_probability = f64::from(*logit) - self.total;
            let probability = log_probability.exp();
            let surprise = if probability > 0.0 {
                log_probability + self.entropy
            } else {
                0.0
            };
            (-probability * (by_logprob + by_entropy * surprise)) as f32
        }));
        to[start + target as usize] += by_logprob as f32;
    }
}

/// One number from each hidden state.
#[derive(Debug)]
pub(super) struct ValueHead {
    /// `1 x hidden`.
    weight: Tensor,
    bias: Tensor,
}

impl ValueHead {
    pub(super) fn new(
        hidden: usize,
        expected: f32,
        parameters: &mut Parameters,
    ) -> Result<Self, TrainError> {
        let weight = Tensor::zeros((1, hidden), candle_core::DType::F32, &Device::Cpu)?;
        let bias = Tensor::new(&[expected], &Device::Cpu)?;
        Ok(Self {
            weight: parameters.learn(VALUE_WEIGHT.into(), &weight)?.detach(),
            bias: parameters.learn(VALUE_BIAS.into(), &bias)?.detach(),
        })
    }

    pub(super) fn values(&self, hidden: &Tensor) -> Result<Vec<f32>, TrainError> {
        let values = hidden.matmul(&self.weight.t()?)?;
        Ok(values.broadcast_add(&self.bias)?.flatten_all()?.to_vec1()?)
    }

    /// How a loss changes with the hidden states, from how it changes with the values; and with the head itself.
    pub(super) fn backward(
        &self,
        hidden: &Tensor,
        slopes: &[f32],
        gradients: &mut Gradients,
    ) -> Result<Tensor, TrainError> {
        let slopes = Tensor::from_slice(slopes, (slopes.len(), 1), &Device::Cpu)?;
        gradients.insert(VALUE_WEIGHT.into(), slopes.t()?.matmul(hidden)?);
        gradients.insert(VALUE_BIAS.into(), slopes.sum(0)?);
        Ok(slopes.matmul(&self.weight)?)
    }
}
