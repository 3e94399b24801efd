//! A model that learns on a GPU, all of it.

use super::batch::{Batch, DeviceBatch, Extent};
use super::layout::Layout;
use super::pass::Pass;
use super::rows::{Adding, turns};
use super::step::{AdamW, Parameters, Wanted};
use super::work::{ROUND_CHUNK, Room, Work};
use crate::{Buffer, Gpu, GpuError, Graph};

/// What a model thinks of tokens that were said, one number each.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scores {
    pub logprobs: Vec<f32>,
    pub entropies: Vec<f32>,
}

/// Everything it needs to go on elsewhere bit for bit.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    pub weights: Vec<f32>,
    /// The optimiser's running means of the gradient and of its square.
    pub first: Vec<f32>,
    pub second: Vec<f32>,
}

/// Passes that may be recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Alike {
    extent: Extent,
    adding: Adding,
}

pub struct Learner {
    gpu: Gpu,
    layout: Layout,
    parameters: Parameters,
    work: Work,
    batch: DeviceBatch,
    turns: Buffer<f32>,
    /// Whether there is a gradient that the next one is added to.
    gradient: Adding,
    /// What was learnt from before, and a recording where that happened twice.
    seen: Vec<(Alike, Option<Graph>)>,
}

/// Recordings that are kept; beyond these, passes are launched kernel by kernel.
const MOST_SEEN: usize = 32;

/// Whether there is a number for each parameter.
fn belongs(numbers: &[f32], layout: &Layout) -> Result<(), GpuError> {
    if numbers.len() == layout.count() {
        return Ok(());
    }
    Err(GpuError::OtherState {
        found: numbers.len(),
        wanted: layout.count(),
    })
}

impl Learner {
    /// `weights` lie as the layout says.
    pub fn new(gpu: Gpu, layout: Layout, weights: &[f32], room: Room) -> Result<Self, GpuError> {
        let shape = layout.shape();
        shape.check()?;
        belongs(weights, &layout)?;
        gpu.training()?;
        let batch = DeviceBatch::new(&gpu, room.rows, shape.head_dim)?;
        let room = Room {
            rows: batch.room(),
            chunk: room.chunk.next_multiple_of(ROUND_CHUNK),
            ..room
        };
        Ok(Self {
            parameters: Parameters::new(&gpu, weights, layout.decays_from())?,
            work: Work::new(&gpu, shape, room)?,
            turns: gpu.upload(&turns(&shape.frequencies, room.positions))?,
            batch,
            gradient: Adding::Anew,
            seen: Vec::new(),
            layout,
            gpu,
        })
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What it thinks of tokens that were said. Where a loss depends on that, it can then learn from the same pass.
    pub fn listen(&mut self, batch: &Batch) -> Result<Heard<'_>, GpuError> {
        self.load(batch)?;
        let mut pass = self.pass();
        pass.forward()?;
        pass.score(None)?;
        Ok(Heard(self))
    }

    /// Adds the gradient of a loss that changes with log-probabilities and entropies of what was said as told. Nothing is
    /// waited for.
    pub fn learn(&mut self, batch: &Batch, wanted: &[Wanted]) -> Result<(), GpuError> {
        if batch.said() == 0 {
            return Ok(());
        }
        self.load(batch)?;
        self.batch.want(&self.gpu, wanted)?;
        let alike = Alike {
            extent: self.batch.extent,
            adding: self.gradient,
        };
        let seen = self.seen.iter().position(|(one, _)| *one == alike);
        match seen {
            None => {
                self.there_and_back()?;
                if self.seen.len() < MOST_SEEN {
                    self.seen.push((alike, None));
                }
            }
            Some(place) => {
                if self.seen[place].1.is_none() {
                    self.seen[place].1 = Some(self.record()?);
                }
                if let Some(graph) = &self.seen[place].1 {
                    graph.launch()?;
                }
            }
        }
        self.gradient = Adding::OnTop;
        Ok(())
    }

    /// One step with the gradients added up, which are then gone. Nothing is waited for.
    pub fn update(&mut self, settings: AdamW) -> Result<(), GpuError> {
        self.gpu.set_adamw(&mut self.parameters, settings)?;
        self.gradient = Adding::Anew;
        self.gpu.training_update(&mut self.parameters)
    }

    /// Length of the last update's gradient before it was shortened. Where it is not finite, that update changed nothing.
    pub fn gradient_length(&self) -> Result<f32, GpuError> {
        self.parameters.gradient_length(&self.gpu)
    }

    /// Of the last batch. Tokens that the loss did not depend on have zeros after [`Self::learn`].
    pub fn scores(&self) -> Result<Scores, GpuError> {
        Ok(Scores {
            logprobs: self.gpu.read(&self.batch.logprobs, self.batch.said)?,
            entropies: self.gpu.read(&self.batch.entropies, self.batch.said)?,
        })
    }

    /// What was added up since the last update, laid out as weights are.
    pub fn gradient(&self) -> Result<Vec<f32>, GpuError> {
        match self.gradient {
            Adding::Anew => Ok(vec![0.0; self.layout.count()]),
            Adding::OnTop => self
                .gpu
                .read(&self.parameters.gradient, self.layout.count()),
        }
    }

    pub fn state(&self) -> Result<State, GpuError> {
        let count = self.layout.count();
        Ok(State {
            weights: self.gpu.read(&self.parameters.weights, count)?,
            first: self.gpu.read(&self.parameters.first, count)?,
            second: self.gpu.read(&self.parameters.second, count)?,
        })
    }

    /// Goes on from a state; gradients are gone.
    pub fn restore(&mut self, state: &State) -> Result<(), GpuError> {
        for numbers in [&state.weights, &state.first, &state.second] {
            belongs(numbers, &self.layout)?;
        }
        let narrow: Vec<_> = state
            .weights
            .iter()
            .copied()
            .map(crate::bf16::from_f32)
            .collect();
        self.gpu
            .write(&mut self.parameters.weights, &state.weights)?;
        self.gpu.write(&mut self.parameters.narrow, &narrow)?;
        self.gpu.write(&mut self.parameters.first, &state.first)?;
        self.gpu.write(&mut self.parameters.second, &state.second)?;
        self.gradient = Adding::Anew;
        Ok(())
    }

    fn load(&mut self, batch: &Batch) -> Result<(), GpuError> {
        let longest = batch.lengths.iter().max().copied().unwrap_or(0);
        let room = self.work.room.positions;
        if longest > room {
            return Err(GpuError::NoRoom {
                what: "positions",
                count: longest,
                room,
            });
        }
        self.batch.load(&self.gpu, batch)
    }

    fn pass(&mut self) -> Pass<'_> {
        Pass {
            gpu: &self.gpu,
            layout: &self.layout,
            parameters: &mut self.parameters,
            work: &mut self.work,
            batch: &mut self.batch,
            turns: &self.turns,
        }
    }

    fn there_and_back(&mut self) -> Result<(), GpuError> {
        let adding = self.gradient;
        there_and_back(&mut self.pass(), adding)
    }

    fn record(&mut self) -> Result<Graph, GpuError> {
        let adding = self.gradient;
        let mut pass = self.pass();
        pass.gpu.capture(|| there_and_back(&mut pass, adding))
    }
}

fn there_and_back(pass: &mut Pass<'_>, adding: Adding) -> Result<(), GpuError> {
    pass.forward()?;
    pass.score(Some(adding))?;
    pass.backward(adding)
}

/// A batch that was listened to, with everything that learning from it needs.
pub struct Heard<'a>(&'a mut Learner);

impl Heard<'_> {
    pub fn scores(&self) -> Result<Scores, GpuError> {
        self.0.scores()
    }

    /// Adds the gradient of a loss that changes with scores as told.
    pub fn learn(self, wanted: &[Wanted]) -> Result<(), GpuError> {
        let learner = self.0;
        if learner.batch.said == 0 {
            return Ok(());
        }
        learner.batch.want(&learner.gpu, wanted)?;
        let adding = learner.gradient;
        let mut pass = learner.pass();
        pass.score(Some(adding))?;
        pass.backward(adding)?;
        learner.gradient = Adding::OnTop;
        Ok(())
    }
}
