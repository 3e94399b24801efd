//! What computes a model that learns.

use warpsmith_model::ModelError;
use warpsmith_model::policy::RunsOn;
use warpsmith_train::TrainError;
use warpsmith_train::network::cpu::{CpuActor, CpuCritic};
use warpsmith_train::network::gpu::GpuModel;
use warpsmith_train::network::{Actor, Critic};

use super::learning::{LearningSettings, Pupil};
use crate::args::ModelOn;
use crate::failure::Stop;
use crate::printer::Printer;

/// Makes networks of one model.
pub(super) struct Networks<'a> {
    pupil: &'a Pupil,
    seed: u64,
    gpu: Option<(GpuModel, usize)>,
}

impl<'a> Networks<'a> {
    pub(super) fn open(
        pupil: &'a Pupil,
        learning: &LearningSettings,
        device: u32,
        printer: &Printer,
    ) -> Result<Self, Stop> {
        let (seed, number) = (learning.seed, device as usize);
        let open = || {
            let model = GpuModel::open(number, &pupil.weights, &pupil.learns, seed)?;
            let name = model.device()?;
            printer.note(&format!("`{}` learns on {name}", learning.model));
            Ok(Some((model, number)))
        };
        let gpu = match learning.model_on {
            ModelOn::Gpu => open()?,
            ModelOn::Auto if RunsOn::may_have_gpu() => open().or_else(|error| {
                // A GPU that is full or failed is told of: on the processor it would take days.
                let another = match &error {
                    TrainError::Model(ModelError::Gpu(error)) => error.is_of_the_machine(),
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
        Ok(Self { pupil, seed, gpu })
    }

    pub(super) fn actor(&self) -> Result<Box<dyn Actor>, TrainError> {
        let Pupil {
            weights, learns, ..
        } = self.pupil;
        Ok(match &self.gpu {
            Some((model, _)) => Box::new(model.actor()?),
            None => Box::new(CpuActor::new(weights, learns, self.seed)?),
        })
    }

    /// Its first values are all `expected`.
    pub(super) fn critic(&self, expected: f32) -> Result<Box<dyn Critic>, TrainError> {
        let Pupil {
            weights, learns, ..
        } = self.pupil;
        Ok(match &self.gpu {
            Some((model, _)) => Box::new(model.critic(expected)?),
            None => Box::new(CpuCritic::new(weights, learns, expected, self.seed)?),
        })
    }

    /// What runs the model while it tries: the same as computes it.
    pub(super) fn runs_on(&self) -> RunsOn {
        match self.gpu {
            Some((_, number)) => RunsOn::Gpu(number),
            None => RunsOn::Processor,
        }
    }
}
