//! What computes a model that learns.

use warpsmith_model::ModelError;
use warpsmith_model::policy::RunsOn;
use warpsmith_train::TrainError;
use warpsmith_train::network::{Actor, Critic, TrainingModel};

use super::learning::{LearningSettings, ModelToTrain};
use crate::args::ModelOn;
use crate::failure::Stop;
use crate::printer::Printer;

/// Makes networks of one model.
pub(super) struct Networks {
    model: TrainingModel,
    runs_on: RunsOn,
}

impl Networks {
    pub(super) fn open(
        model_to_train: &ModelToTrain,
        learning: &LearningSettings,
        device: u32,
        printer: &Printer,
    ) -> Result<Self, Stop> {
        let (seed, number) = (learning.seed, device as usize);
        let open = || {
            let model = TrainingModel::on_gpu(
                number,
                &model_to_train.weights,
                &model_to_train.learns,
                seed,
            )?;
            if let Some(name) = model.gpu_name()? {
                printer.note(&format!("`{}` learns on {name}", learning.model));
            }
            Ok(Some(model))
        };
        let gpu = match learning.model_on {
            ModelOn::Gpu => open()?,
            ModelOn::Auto if RunsOn::may_have_gpu() => open().or_else(|error| {
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
                printer.note(&format!("`{name}` learns on the processor: {error}"));
                Ok(None)
            })?,
            ModelOn::Cpu | ModelOn::Auto => None,
        };
        Ok(match gpu {
            Some(model) => Self {
                model,
                runs_on: RunsOn::Gpu(number),
            },
            None => Self {
                model: TrainingModel::on_cpu(
                    &model_to_train.weights,
                    &model_to_train.learns,
                    seed,
                )?,
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
