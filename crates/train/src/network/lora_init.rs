//! The initial adapter: the same seed gives the same values on every device.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_model::{
    AdapterError, AdapterSettings, HostTensor, LoraPair, LoraTarget, ModelError, Weights,
};

use super::FineTuning;
use crate::TrainError;

/// Settings and matrices of the adapter that trains, if one does.
pub(super) type InitialAdapter = Option<(AdapterSettings, BTreeMap<LoraTarget, LoraPair>)>;

pub(super) fn initial_adapter(
    weights: &Weights,
    fine_tuning: &FineTuning,
    seed: u64,
) -> Result<InitialAdapter, TrainError> {
    let (settings, targets) = match fine_tuning {
        FineTuning::Full => return Ok(None),
        FineTuning::Lora(adapter) => {
            // Refuses the adapter of another model.
            let other_model = |error: AdapterError| ModelError::from(error);
            weights.stacked(adapter).map_err(other_model)?;
            let pairs = adapter.factors().iter();
            let pairs = pairs.map(|(place, pair)| (*place, pair.as_ref().clone()));
            return Ok(Some((adapter.settings().clone(), pairs.collect())));
        }
        FineTuning::NewLora { settings, targets } => (settings, targets),
    };
    let mut random = StdRng::seed_from_u64(seed);
    let mut pairs = BTreeMap::new();
    for (layer, weights) in weights.layers.iter().enumerate() {
        for &projection in targets {
            let matrix = &weights.projection(projection).weight;
            let (rank, columns) = (settings.rank, matrix.columns());
            // As PEFT: Kaiming's uniform initialisation with a = √5.
            let limit = (columns as f32).sqrt().recip();
            let a: Vec<f32> = (0..rank * columns)
                .map(|_| random.random_range(-limit..limit))
                .collect();
            let pair = LoraPair {
                a: HostTensor::new([rank, columns], a),
                b: HostTensor::zeros([matrix.rows(), rank]),
            };
            pairs.insert(LoraTarget { layer, projection }, pair);
        }
    }
    Ok(Some((settings.clone(), pairs)))
}
