//! A model that learns what to expect: its head makes one number of a row.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use super::batch::Batch;
use super::bench::Bench;
use super::learnt::{Learns, Learnt, value_head};
use super::pupil::Pupil;
use super::rows::Adding;
use super::step::AdamW;
use crate::{AT_ONCE, GpuError};

/// What it has learnt lies after its head's numbers ([`value_head`]).
pub struct Valuer {
    pupil: Pupil,
    /// Of the head's bias, since the last update: slopes are known here, and their sum with them.
    bias_slope: f64,
}

impl Valuer {
    /// Its first values are all `expected`.
    pub fn on(
        bench: &Rc<RefCell<Bench>>,
        learns: &Learns<'_>,
        expected: f32,
    ) -> Result<Self, GpuError> {
        let shape = learns.shape();
        let mut head = vec![0.0; value_head(shape)];
        head[AT_ONCE * shape.hidden] = expected;
        Ok(Self {
            pupil: Pupil::new(bench, learns, &head)?,
            bias_slope: 0.0,
        })
    }

    pub fn pupil(&self) -> &Pupil {
        &self.pupil
    }

    /// What it expects before each token that was said. It can then learn from the same pass; until then nobody else may use
    /// the bench.
    pub fn look(&mut self, batch: &Batch) -> Result<Seen<'_>, GpuError> {
        let Pupil {
            bench,
            learnt,
            gradient,
        } = &mut self.pupil;
        let mut bench = bench.borrow_mut();
        bench.load(batch)?;
        let mut pass = bench.pass(learnt)?;
        pass.forward()?;
        pass.value(None)?;
        Ok(Seen {
            bench,
            learnt,
            gradient,
            bias_slope: &mut self.bias_slope,
        })
    }

    /// One step with the gradients added up, which are then gone. Nothing is waited for.
    pub fn update(&mut self, settings: AdamW) -> Result<(), GpuError> {
        if self.pupil.gradient == Adding::OnTop {
            let bench = self.pupil.bench.borrow();
            let learnt = &mut self.pupil.learnt;
            let mut slopes = [0.0; AT_ONCE];
            slopes[0] = self.bias_slope as f32;
            let (place, gradient) = (learnt.value_bias(), &mut learnt.parameters.gradient);
            bench.gpu().write_at(gradient, place, &slopes)?;
        }
        self.bias_slope = 0.0;
        self.pupil.update(settings)
    }

    /// What was added up since the last update, laid out as what learns is.
    pub fn gradient(&self) -> Result<Vec<f32>, GpuError> {
        let mut gradient = self.pupil.gradient()?;
        gradient[self.pupil.learnt.value_bias()] = self.bias_slope as f32;
        Ok(gradient)
    }

    /// Goes on from a state; gradients are gone.
    pub fn restore(&mut self, state: &super::State) -> Result<(), GpuError> {
        self.pupil.restore(state)?;
        self.bias_slope = 0.0;
        Ok(())
    }
}

/// A batch that was looked at, with everything that learning from it needs.
pub struct Seen<'a> {
    bench: RefMut<'a, Bench>,
    learnt: &'a mut Learnt,
    gradient: &'a mut Adding,
    bias_slope: &'a mut f64,
}

impl Seen<'_> {
    pub fn values(&self) -> Result<Vec<f32>, GpuError> {
        let (gpu, batch) = (self.bench.gpu(), &self.bench.laid()?.batch);
        let bias = self.learnt.value_bias();
        let weights = &self.learnt.parameters.weights;
        let bias = gpu.read_at(weights, bias..bias + 1)?[0];
        let values = gpu.read(&batch.values, AT_ONCE * batch.said)?;
        Ok(values
            .iter()
            .step_by(AT_ONCE)
            .map(|one| one + bias)
            .collect())
    }

    /// Adds the gradient of a loss that changes with values as told.
    pub fn learn(mut self, slopes: &[f32]) -> Result<(), GpuError> {
        let (gpu, batch) = self.bench.batch()?;
        if batch.said == 0 {
            return Ok(());
        }
        batch.want_values(gpu, slopes)?;
        let adding = *self.gradient;
        let mut pass = self.bench.pass(self.learnt)?;
        pass.value(Some(adding))?;
        pass.backward(adding)?;
        *self.gradient = Adding::OnTop;
        *self.bias_slope += slopes.iter().copied().map(f64::from).sum::<f64>();
        Ok(())
    }
}
