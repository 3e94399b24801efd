//! Everything of a network that learns, with its gradient and its optimiser's means.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor, Var};

use crate::TrainError;
use crate::network::{FIRST, SECOND, of_state};
use crate::optimizer::{Decays, Moments, Update};

/// By name, so that the order, and with it every sum, is always the same.
#[derive(Debug, Default)]
pub(super) struct Parameters(BTreeMap<String, Parameter>);

#[derive(Debug)]
struct Parameter {
    variable: Var,
    /// `None` where nothing has been added since the last update.
    gradient: Option<Tensor>,
    moments: Moments,
    decays: Decays,
}

/// Gradients by the names of their parameters.
pub(super) type Gradients = BTreeMap<String, Tensor>;

impl Parameters {
    /// A tensor that learns, to compute with. What an update does to it is seen by all its clones.
    pub(super) fn learn(&mut self, name: String, start: &Tensor) -> Result<Tensor, TrainError> {
        let variable = Var::from_tensor(&start.contiguous()?)?;
        let tensor = variable.as_tensor().clone();
        let decays = match start.dims() {
            [rows, _] if *rows > 1 => Decays::Yes,
            _ => Decays::No,
        };
        let parameter = Parameter {
            moments: Moments::zero(start.elem_count()),
            gradient: None,
            variable,
            decays,
        };
        self.0.insert(name, parameter);
        Ok(tensor)
    }

    pub(super) fn add(&mut self, gradients: Gradients) -> Result<(), TrainError> {
        for (name, gradient) in gradients {
            if let Some(parameter) = self.0.get_mut(&name) {
                parameter.add(gradient)?;
            }
        }
        Ok(())
    }

    /// Adds what comes of `slopes` when they go back from `output` through all that it was computed from. Gives what comes
    /// of them at `input`.
    pub(super) fn add_through(
        &mut self,
        output: &Tensor,
        slopes: &Tensor,
        input: &Tensor,
    ) -> Result<Tensor, TrainError> {
        let mut found = (output * slopes)?.sum_all()?.backward()?;
        let at_input = match found.get(input) {
            Some(gradient) => gradient.clone(),
            None => input.zeros_like()?,
        };
        for parameter in self.0.values_mut() {
            if let Some(gradient) = found.remove(&parameter.variable) {
                parameter.add(gradient)?;
            }
        }
        Ok(at_input)
    }

    pub(super) fn gradients(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        let mut gradients = BTreeMap::new();
        for (name, parameter) in &self.0 {
            let gradient = match &parameter.gradient {
                Some(gradient) => gradient.clone(),
                None => parameter.variable.zeros_like()?,
            };
            gradients.insert(name.clone(), gradient);
        }
        Ok(gradients)
    }

    pub(super) fn update(&mut self, update: &Update) -> Result<f64, TrainError> {
        let mut gradients: BTreeMap<&str, Vec<f32>> = BTreeMap::new();
        let mut squares = 0.0;
        for (name, parameter) in &mut self.0 {
            // Also where it turns out not to be finite: it must not spoil the next batch.
            let gradient = match parameter.gradient.take() {
                Some(gradient) => gradient.flatten_all()?.to_vec1::<f32>()?,
                None => vec![0.0; parameter.moments.first.len()],
            };
            squares += gradient
                .iter()
                .map(|one| f64::from(*one).powi(2))
                .sum::<f64>();
            gradients.insert(name, gradient);
        }
        let norm = squares.sqrt();
        if !norm.is_finite() {
            return Err(TrainError::NotFinite {
                what: "the gradient",
            });
        }
        let factor = update.shortening(norm);
        let mut changed = Vec::with_capacity(gradients.len());
        for (name, mut gradient) in gradients {
            for one in &mut gradient {
                *one = (f64::from(*one) * factor) as f32;
            }
            changed.push((name.to_owned(), gradient));
        }
        for (name, gradient) in changed {
            if let Some(parameter) = self.0.get_mut(&name) {
                parameter.step(update, &gradient)?;
            }
        }
        Ok(norm)
    }

    pub(super) fn state(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        let mut state = BTreeMap::new();
        for (name, parameter) in &self.0 {
            let shape = parameter.variable.shape();
            let Moments { first, second } = &parameter.moments;
            for (prefix, numbers) in [(FIRST, first), (SECOND, second)] {
                let tensor = Tensor::from_slice(numbers, shape, &Device::Cpu)?;
                state.insert(format!("{prefix}{name}"), tensor);
            }
            state.insert(
                name.clone(),
                parameter.variable.as_detached_tensor().copy()?,
            );
        }
        Ok(state)
    }

    /// Looks at everything before it changes anything.
    pub(super) fn restore(&mut self, state: &BTreeMap<String, Tensor>) -> Result<(), TrainError> {
        let mut found = Vec::with_capacity(self.0.len());
        for (name, parameter) in &self.0 {
            let dims = parameter.variable.dims();
            let numbers = of_state(state, name, dims)?.clone();
            let moment = |prefix: &str| -> Result<Vec<f32>, TrainError> {
                let tensor = of_state(state, &format!("{prefix}{name}"), dims)?;
                Ok(tensor.flatten_all()?.to_vec1()?)
            };
            let moments = Moments {
                first: moment(FIRST)?,
                second: moment(SECOND)?,
            };
            found.push((numbers, moments));
        }
        for (parameter, (numbers, moments)) in self.0.values_mut().zip(found) {
            parameter.variable.set(&numbers)?;
            parameter.moments = moments;
            parameter.gradient = None;
        }
        Ok(())
    }
}

impl Parameter {
    fn add(&mut self, gradient: Tensor) -> Result<(), TrainError> {
        self.gradient = Some(match self.gradient.take() {
            Some(before) => (before + gradient)?,
            None => gradient,
        });
        Ok(())
    }

    fn step(&mut self, update: &Update, gradient: &[f32]) -> Result<(), TrainError> {
        let mut numbers = self.variable.flatten_all()?.to_vec1::<f32>()?;
        update.apply(&mut numbers, gradient, &mut self.moments, self.decays);
        let tensor = Tensor::from_vec(numbers, self.variable.shape(), &Device::Cpu)?;
        Ok(self.variable.set(&tensor)?)
    }
}
