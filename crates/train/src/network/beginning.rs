//! What learns at first, whatever computes it: the same seed gives the same numbers.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_model::{
    AdapterError, AdapterSettings, Factors, HostTensor, ModelError, Place, Weights,
};

use super::Learns;
use crate::TrainError;

pub(super) type Factored = (Option<AdapterSettings>, BTreeMap<Place, Factors>);

/// What the adapter that learns begins as.
pub(super) fn adapter(
    weights: &Weights,
    learns: &Learns,
    seed: u64,
) -> Result<Factored, TrainError> {
    let (settings, targets) = match learns {
        Learns::Everything => return Ok((None, BTreeMap::new())),
        Learns::Adapter(adapter) => {
            // Refuses one of another model.
            let fits = |error: AdapterError| ModelError::from(error);
            weights.stacked(adapter).map_err(fits)?;
            let pairs = adapter.factors().iter();
            let pairs = pairs.map(|(place, pair)| (*place, pair.as_ref().clone()));
            return Ok((Some(adapter.settings().clone()), pairs.collect()));
        }
        Learns::NewAdapter { settings, targets } => (settings, targets),
    };
    let mut random = StdRng::seed_from_u64(seed);
    let mut factors = BTreeMap::new();
    for (layer, parts) in weights.layers.iter().enumerate() {
        for &projection in targets {
            let linear = &parts.projection(projection).weight;
            let (rank, columns) = (settings.rank, linear.columns());
            // As PEFT does: what Kaiming's rule with √5 comes to.
            let limit = (columns as f32).sqrt().recip();
            let numbers: Vec<f32> = (0..rank * columns)
                .map(|_| random.random_range(-limit..limit))
                .collect();
            let pair = Factors {
                a: HostTensor::new([rank, columns], numbers),
                b: HostTensor::zeros([linear.rows(), rank]),
            };
            factors.insert(Place { layer, projection }, pair);
        }
    }
    Ok((Some(settings.clone()), factors))
}
