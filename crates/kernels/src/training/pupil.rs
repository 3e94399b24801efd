//! Whoever learns, whatever its head says.

use std::cell::RefCell;
use std::rc::Rc;

use super::bench::Bench;
use super::learnt::{Learns, Learnt};
use super::rows::Adding;
use super::step::AdamW;
use crate::{Gpu, GpuError, bf16};

/// Everything it needs to go on elsewhere bit for bit.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    pub weights: Vec<f32>,
    /// The optimiser's running means of the gradient and of its square.
    pub first: Vec<f32>,
    pub second: Vec<f32>,
}

/// A model on a bench, which others may work on in turn.
pub struct Pupil {
    pub(super) bench: Rc<RefCell<Bench>>,
    pub(super) learnt: Learnt,
    /// Whether there is a gradient that the next one is added to.
    pub(super) gradient: Adding,
}

impl Pupil {
    pub(super) fn new(
        bench: &Rc<RefCell<Bench>>,
        learns: &Learns<'_>,
        head: &[f32],
    ) -> Result<Self, GpuError> {
        let there = bench.borrow();
        assert!(there.shape() == learns.shape(), "a bench is for one shape");
        Ok(Self {
            learnt: Learnt::new(there.gpu(), learns, head)?,
            bench: bench.clone(),
            gradient: Adding::Anew,
        })
    }

    pub(super) fn update(&mut self, settings: AdamW) -> Result<(), GpuError> {
        let bench = self.bench.borrow();
        let (gpu, learnt) = (bench.gpu(), &mut self.learnt);
        if self.gradient == Adding::Anew {
            // Nothing was learnt from: what is there is of the update before.
            gpu.training_clear(&mut learnt.parameters.gradient)?;
        }
        learnt.mask(gpu)?;
        gpu.set_adamw(&mut learnt.parameters, settings)?;
        self.gradient = Adding::Anew;
        gpu.training_update(&mut learnt.parameters)
    }

    /// Length of the last update's gradient before it was shortened. Where it is not finite, that update changed nothing.
    pub fn gradient_length(&self) -> Result<f32, GpuError> {
        let bench = self.bench.borrow();
        self.learnt.parameters.gradient_length(bench.gpu())
    }

    /// What was added up since the last update, laid out as what learns is. Beside blocks of low-rank matrices are numbers
    /// that mean nothing.
    pub fn gradient(&self) -> Result<Vec<f32>, GpuError> {
        let count = self.learnt.count();
        match self.gradient {
            Adding::Anew => Ok(vec![0.0; count]),
            Adding::OnTop => {
                let gradient = &self.learnt.parameters.gradient;
                self.bench.borrow().gpu().read(gradient, count)
            }
        }
    }

    pub fn state(&self) -> Result<State, GpuError> {
        let (count, of) = (self.learnt.count(), &self.learnt.parameters);
        let bench = self.bench.borrow();
        let read = |numbers| bench.gpu().read(numbers, count);
        Ok(State {
            weights: read(&of.weights)?,
            first: read(&of.first)?,
            second: read(&of.second)?,
        })
    }

    /// Goes on from a state; gradients are gone.
    pub fn restore(&mut self, state: &State) -> Result<(), GpuError> {
        for numbers in [&state.weights, &state.first, &state.second] {
            self.learnt.check(numbers)?;
        }
        let narrow: Vec<bf16> = state.weights.iter().copied().map(bf16::from_f32).collect();
        let bench = self.bench.borrow();
        let (gpu, to): (&Gpu, _) = (bench.gpu(), &mut self.learnt.parameters);
        gpu.write(&mut to.weights, &state.weights)?;
        gpu.write(&mut to.narrow, &narrow)?;
        gpu.write(&mut to.first, &state.first)?;
        gpu.write(&mut to.second, &state.second)?;
        self.gradient = Adding::Anew;
        Ok(())
    }
}
