//! Adapters on frozen weights: stacked as they are, or merged into matrices of their own.

use super::{LayerWeights, Weights};
use crate::adapter::{Adapter, AdapterError, LoraUpdate, Projection};
use crate::matrix::{Linear, Matrix};

impl Weights {
    /// The same model with an adapter on top, and on top of those it has. Matrices are shared, not copied.
    pub fn stacked(&self, adapter: &Adapter) -> Result<Self, AdapterError> {
        let mut weights = self.clone();
        let layers = weights.layers.len();
        let scale = adapter.settings().scale();
        for (place, factors) in adapter.factors() {
            let layer = weights.layers.get_mut(place.layer);
            let layer = layer.ok_or_else(|| AdapterError::NoSuchModule {
                module: place.to_string(),
                layers,
            })?;
            let linear = layer.projection_mut(place.projection);
            let expected = [linear.weight.rows(), linear.weight.columns()];
            let found = [factors.b.rows(), factors.a.columns()];
            if found != expected {
                return Err(AdapterError::Shape {
                    module: place.to_string(),
                    found,
                    expected,
                });
            }
            linear.adapters.push(LoraUpdate {
                pair: factors.clone(),
                scale,
            });
        }
        Ok(weights)
    }

    /// The same model without adapters: what they change is one matrix each, in `f32`; the rest stays as it is.
    #[must_use]
    pub fn merged(&self) -> Self {
        let mut weights = self.clone();
        for layer in &mut weights.layers {
            for projection in Projection::ALL {
                let linear = layer.projection_mut(projection);
                if !linear.adapters.is_empty() {
                    linear.weight = Matrix::Full(linear.merged_weight());
                    linear.adapters.clear();
                }
            }
        }
        weights
    }
}

impl LayerWeights {
    pub fn projection(&self, projection: Projection) -> &Linear {
        match projection {
            Projection::Query => &self.query,
            Projection::Key => &self.key,
            Projection::Value => &self.value,
            Projection::AttentionOutput => &self.attention_output,
            Projection::Gate => &self.gate,
            Projection::Up => &self.up,
            Projection::Down => &self.down,
        }
    }

    pub fn projection_mut(&mut self, projection: Projection) -> &mut Linear {
        match projection {
            Projection::Query => &mut self.query,
            Projection::Key => &mut self.key,
            Projection::Value => &mut self.value,
            Projection::AttentionOutput => &mut self.attention_output,
            Projection::Gate => &mut self.gate,
            Projection::Up => &mut self.up,
            Projection::Down => &mut self.down,
        }
    }
}
