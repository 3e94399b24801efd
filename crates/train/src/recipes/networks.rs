//! What computes a model that learns.

use warpsmith_model::ModelError;
use warpsmith_model::policy::RunsOn;

use super::learning::{LearningOptions, ModelToTrain, Placement, RunHost};
use crate::TrainError;
use crate::network::{Actor, Critic, TrainingModel};

/// Makes networks of one model.
pub(super) struct NetworkFactory {
    model: TrainingModel,
    runs_on: RunsOn,
}

impl NetworkFactory {
    pub(super) fn open(
        model_to_train: &ModelToTrain,
        learning: &LearningOptions,
        host: &dyn RunHost,
    ) -> Result<Self, TrainError> {
        let (seed, number) = (learning.seed, learning.device as usize);
        let ModelToTrain {
            weights,
            fine_tuning,
            ..
        } = model_to_train;
        let open = || {
            let model = TrainingModel::on_gpu(number, weights, fine_tuning, seed)?;
            if let Some(name) = model.gpu_name()? {
                host.note(&format!("`{}` learns on {name}", learning.model));
            }
            Ok(Some(model))
        };
        let gpu = match learning.placement {
            Placement::Gpu => open()?,
            Placement::Auto if RunsOn::may_have_gpu() => open().or_else(|error| {
                // A GPU that is full or failed is told of: on the processor it would take days.
                let another = match &error {
                    TrainError::Model(ModelError::Gpu(error)) => error.is_unsupported(),
                    TrainError::Model(ModelError::Setting { .. }) => true,
                    _ => false,
                };
                if !another {
                    return Err(error);
                }
                let name = &learning.model;
                host.note(&format!("`{name}` learns on the processor: {error}"));
                Ok(None)
            })?,
            Placement::Processor | Placement::Auto => None,
        };
        Ok(match gpu {
            Some(model) => Self {
                model,
                runs_on: RunsOn::Gpu(number),
            },
            None => Self {
                model: TrainingModel::on_cpu(weights, fine_tuning, seed)?,
                runs_on: RunsOn::Processor,
            },
        })
    }

    pub(super) fn actor(&self) -> Result<Box<dyn Actor>, TrainError> {
        Ok(Box::new(self.model.actor()?))
    }

    /// Its first values are all `expected`.
    pub(super) fn critic(&self, expected: f32) -> Result<Box<dyn Critic>, TrainError> {
        Ok(Box::new(self.model.critic(expected)?))
    }

    /// What runs the model while it tries: the same as computes it.
    pub(super) fn runs_on(&self) -> RunsOn {
        self.runs_on
    }
}
