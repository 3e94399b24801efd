//! A model that learns what to say.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use super::batch::{Batch, Extent};
use super::bench::Bench;
use super::layout::Layout;
use super::learnt::{Learns, Learnt};
use super::pass::Pass;
use super::pupil::Pupil;
use super::rows::Adding;
use super::step::{AdamW, Wanted};
use super::work::Room;
use crate::{Gpu, GpuError, Graph};

/// What a model thinks of tokens that were said, one number each.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scores {
    pub logprobs: Vec<f32>,
    pub entropies: Vec<f32>,
}

/// Passes that may be recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Alike {
    extent: Extent,
    adding: Adding,
    /// How often the bench had made room.
    times: u64,
}

pub struct Learner {
    pupil: Pupil,
    /// What was learnt from before, and a recording where that happened twice.
    seen: Vec<(Alike, Option<Graph>)>,
}

/// Recordings that are kept; beyond these, passes are launched kernel by kernel.
const MOST_SEEN: usize = 32;

impl Learner {
    /// With a device to itself, all of it learning: `weights` lie as the layout says.
    pub fn new(gpu: Gpu, layout: Layout, weights: &[f32], room: Room) -> Result<Self, GpuError> {
        let mut bench = Bench::new(gpu, layout.shape().clone())?;
        bench.make_room(room)?;
        Self::on(
            &Rc::new(RefCell::new(bench)),
            &Learns::All { layout, weights },
        )
    }

    /// On a bench that others may use too.
    pub fn on(bench: &Rc<RefCell<Bench>>, learns: &Learns<'_>) -> Result<Self, GpuError> {
        Ok(Self {
            pupil: Pupil::new(bench, learns, &[])?,
            seen: Vec::new(),
        })
    }

    pub fn pupil(&self) -> &Pupil {
        &self.pupil
    }

    pub fn pupil_mut(&mut self) -> &mut Pupil {
        &mut self.pupil
    }

    /// What it thinks of tokens that were said. Where a loss depends on that, it can then learn from the same pass; until
    /// then nobody else may use the bench.
    pub fn listen(&mut self, batch: &Batch) -> Result<Heard<'_>, GpuError> {
        let Pupil {
            bench,
            learnt,
            gradient,
        } = &mut self.pupil;
        let mut bench = bench.borrow_mut();
        bench.load(batch)?;
        let mut pass = bench.pass(learnt)?;
        pass.forward()?;
        pass.score(None)?;
        Ok(Heard {
            bench,
            learnt,
            gradient,
        })
    }

    /// Adds the gradient of a loss that changes with log-probabilities and entropies of what was said as told. Nothing is
    /// waited for.
    pub fn learn(&mut self, batch: &Batch, wanted: &[Wanted]) -> Result<(), GpuError> {
        if batch.said() == 0 {
            return Ok(());
        }
        let Pupil {
            bench,
            learnt,
            gradient,
        } = &mut self.pupil;
        let mut bench = bench.borrow_mut();
        bench.load(batch)?;
        let (gpu, loaded) = bench.batch()?;
        loaded.want(gpu, wanted)?;
        let adding = *gradient;
        let alike = Alike {
            extent: loaded.extent,
            adding,
            times: bench.times(),
        };
        // Of room that is no longer there.
        self.seen.retain(|(one, _)| one.times == alike.times);
        let seen = self.seen.iter().position(|(one, _)| *one == alike);
        let mut pass = bench.pass(learnt)?;
        match seen {
            None => {
                there_and_back(&mut pass, adding)?;
                if self.seen.len() < MOST_SEEN {
                    self.seen.push((alike, None));
                }
            }
            Some(place) => {
                if self.seen[place].1.is_none() {
                    let recorded = pass.gpu.capture(|| there_and_back(&mut pass, adding))?;
                    self.seen[place].1 = Some(recorded);
                }
                if let Some(graph) = &self.seen[place].1 {
                    graph.launch()?;
                }
            }
        }
        *gradient = Adding::OnTop;
        Ok(())
    }

    /// One step with the gradients added up, which are then gone. Nothing is waited for.
    pub fn update(&mut self, settings: AdamW) -> Result<(), GpuError> {
        self.pupil.update(settings)
    }

    /// Of the last batch. Tokens that the loss did not depend on have zeros after [`Self::learn`].
    pub fn scores(&self) -> Result<Scores, GpuError> {
        scores(&self.pupil.bench.borrow())
    }
}

fn scores(bench: &Bench) -> Result<Scores, GpuError> {
    let (gpu, batch) = (bench.gpu(), &bench.laid()?.batch);
    Ok(Scores {
        logprobs: gpu.read(&batch.logprobs, batch.said)?,
        entropies: gpu.read(&batch.entropies, batch.said)?,
    })
}

fn there_and_back(pass: &mut Pass<'_>, adding: Adding) -> Result<(), GpuError> {
    pass.forward()?;
    pass.score(Some(adding))?;
    pass.backward(adding)
}

/// A batch that was listened to, with everything that learning from it needs.
pub struct Heard<'a> {
    bench: RefMut<'a, Bench>,
    learnt: &'a mut Learnt,
    gradient: &'a mut Adding,
}

impl Heard<'_> {
    pub fn scores(&self) -> Result<Scores, GpuError> {
        scores(&self.bench)
    }

    /// Adds the gradient of a loss that changes with scores as told.
    pub fn learn(mut self, wanted: &[Wanted]) -> Result<(), GpuError> {
        let (gpu, batch) = self.bench.batch()?;
        if batch.said == 0 {
            return Ok(());
        }
        batch.want(gpu, wanted)?;
        let adding = *self.gradient;
        let mut pass = self.bench.pass(self.learnt)?;
        pass.score(Some(adding))?;
        pass.backward(adding)?;
        *self.gradient = Adding::OnTop;
        Ok(())
    }
}
