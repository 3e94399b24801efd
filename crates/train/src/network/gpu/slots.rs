//! Where a network's tensors lie among the numbers that learn on a device.
//!
//! There matrices that read the same rows are one, gates and factors take turns, and low-rank matrices are blocks of larger
//! ones; here each has the name and shape that it has in files.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use warpsmith_kernels::AT_ONCE;
use warpsmith_kernels::training::{Factors, Layout, Parameter, Part, Shape, State};
use warpsmith_model::{LayerPart, Part as ModelPart, Place, Projection, Weights};

use crate::TrainError;
use crate::network::{FIRST, SECOND, VALUE_BIAS, VALUE_WEIGHT, of_state};

/// What a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// Of the model itself, where it is no projection.
    Model(ModelPart),
    Weight(Place),
    Bias(Place),
    A(Place),
    B(Place),
    ValueWeight,
    ValueBias,
}

impl Of {
    fn name(self) -> String {
        match self {
            Self::Model(part) => format!("{}.weight", part.in_safetensors()),
            Self::Weight(place) => format!("{place}.weight"),
            Self::Bias(place) => format!("{place}.bias"),
            Self::A(place) => format!("{place}.lora_A.weight"),
            Self::B(place) => format!("{place}.lora_B.weight"),
            Self::ValueWeight => VALUE_WEIGHT.into(),
            Self::ValueBias => VALUE_BIAS.into(),
        }
    }
}

/// One tensor: rows of neighbours.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) of: Of,
    dims: Vec<usize>,
    /// Where each row begins.
    rows: Vec<usize>,
    columns: usize,
}

impl Slot {
    fn vector(of: Of, start: usize, count: usize) -> Self {
        Self {
            of,
            dims: vec![count],
            rows: vec![start],
            columns: count,
        }
    }

    fn matrix(of: Of, rows: Vec<usize>, columns: usize) -> Self {
        Self {
            of,
            dims: vec![rows.len(), columns],
            rows,
            columns,
        }
    }

    pub(super) fn read(&self, numbers: &[f32]) -> Result<Tensor, TrainError> {
        let rows = self.rows.iter();
        let own: Vec<f32> = rows
            .flat_map(|start| &numbers[*start..*start + self.columns])
            .copied()
            .collect();
        Ok(Tensor::from_vec(own, self.dims.as_slice(), &Device::Cpu)?)
    }

    pub(super) fn write(&self, own: &[f32], numbers: &mut [f32]) {
        for (start, row) in self.rows.iter().zip(own.chunks_exact(self.columns)) {
            numbers[*start..*start + self.columns].copy_from_slice(row);
        }
    }
}

/// All of a network's.
#[derive(Debug)]
pub(super) struct Slots(pub(super) Vec<Slot>);

impl Slots {
    /// Of a head that makes values.
    pub(super) fn value_head(shape: &Shape) -> Self {
        let bias = AT_ONCE * shape.hidden;
        Self(vec![
            Slot::matrix(Of::ValueWeight, vec![0], shape.hidden),
            Slot::vector(Of::ValueBias, bias, 1),
        ])
    }

    /// Of all of a model, after `front` other numbers.
    pub(super) fn everything(weights: &Weights, layout: &Layout, front: usize) -> Self {
        let shape = layout.shape();
        let start = |parameter| front + layout.place(parameter).start;
        let table = |part, parameter| {
            let rows = (0..shape.vocabulary).map(|row| start(parameter) + row * shape.hidden);
            Slot::matrix(Of::Model(part), rows.collect(), shape.hidden)
        };
        let mut slots = vec![table(ModelPart::Embedding, Parameter::Embedding)];
        if weights.output.is_some() {
            slots.push(table(ModelPart::Output, Parameter::Output));
        }
        let norm = |part, parameter| Slot::vector(Of::Model(part), start(parameter), shape.hidden);
        slots.push(norm(ModelPart::FinalNorm, Parameter::FinalNorm));
        for (index, layer) in weights.layers.iter().enumerate() {
            let part = |part| ModelPart::Layer(index, part);
            slots.extend([
                norm(
                    part(LayerPart::AttentionNorm),
                    Parameter::AttentionNorm(index),
                ),
                norm(
                    part(LayerPart::FeedForwardNorm),
                    Parameter::FeedForwardNorm(index),
                ),
            ]);
            if layer.head_norms.is_some() {
                let (size, start) = (shape.head_dim, start(Parameter::HeadNorms(index)));
                let norm = |of, start| Slot::vector(Of::Model(part(of)), start, size);
                slots.push(norm(LayerPart::QueryNorm, start));
                slots.push(norm(LayerPart::KeyNorm, start + size));
            }
            for projection in Projection::ALL {
                let place = Place {
                    layer: index,
                    projection,
                };
                let own = of(projection);
                let parameter = own.parameter(index);
                let columns = parameter.inputs(shape);
                let row = |number| start(parameter) + own.row(shape, number) * columns;
                let rows = (0..own.rows(shape)).map(row).collect();
                slots.push(Slot::matrix(Of::Weight(place), rows, columns));
                if layer.projection(projection).bias.is_some() {
                    // Of queries, keys and values, as their rows are.
                    let start = start(Parameter::Bias(index)) + own.row(shape, 0);
                    slots.push(Slot::vector(Of::Bias(place), start, own.rows(shape)));
                }
            }
        }
        Self(slots)
    }

    /// Of low-rank matrices in these places, after `front` other numbers.
    pub(super) fn adapter<'a>(
        places: impl Iterator<Item = &'a Place>,
        factors: &Factors,
        (shape, rank, front): (&Shape, usize, usize),
    ) -> Self {
        let mut slots = Vec::new();
        for place in places {
            let part = of(place.projection);
            let inputs = part.parameter(place.layer).inputs(shape);
            let a = (0..rank).filter_map(|row| factors.a_row(place.layer, part, row));
            let a = a.map(|row| front + row.start).collect();
            let b = 0..part.rows(shape);
            let b = b.filter_map(|row| factors.b_row(place.layer, part, row));
            let b = b.map(|start| front + start).collect();
            slots.push(Slot::matrix(Of::A(*place), a, inputs));
            slots.push(Slot::matrix(Of::B(*place), b, rank));
        }
        Self(slots)
    }

    pub(super) fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// All tensors of one row of numbers, by name.
    pub(super) fn named(&self, numbers: &[f32]) -> Result<BTreeMap<String, Tensor>, TrainError> {
        let each = self.0.iter();
        each.map(|slot| Ok((slot.of.name(), slot.read(numbers)?)))
            .collect()
    }

    pub(super) fn state(&self, state: &State) -> Result<BTreeMap<String, Tensor>, TrainError> {
        let mut all = self.named(&state.weights)?;
        for (prefix, numbers) in [(FIRST, &state.first), (SECOND, &state.second)] {
            let named = self.named(numbers)?.into_iter();
            all.extend(named.map(|(name, tensor)| (format!("{prefix}{name}"), tensor)));
        }
        Ok(all)
    }

    /// Puts a state's tensors in their places; what has no name stays as it is.
    pub(super) fn restore(
        &self,
        from: &BTreeMap<String, Tensor>,
        to: &mut State,
    ) -> Result<(), TrainError> {
        for slot in &self.0 {
            let name = slot.of.name();
            for (prefix, numbers) in [
                ("", &mut to.weights),
                (FIRST, &mut to.first),
                (SECOND, &mut to.second),
            ] {
                let tensor = of_state(from, &format!("{prefix}{name}"), &slot.dims)?;
                let own: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
                slot.write(&own, numbers);
            }
        }
        Ok(())
    }
}

pub(super) fn of(projection: Projection) -> Part {
    match projection {
        Projection::Query => Part::Query,
        Projection::Key => Part::Key,
        Projection::Value => Part::Value,
        Projection::AttentionOutput => Part::AttentionOutput,
        Projection::Gate => Part::Gate,
        Projection::Up => Part::Up,
        Projection::Down => Part::Down,
    }
}
