//! Tasks that no benchmark contains, and a teacher that can solve them.
//!
//! Seeds are operators with arguments and shapes that work. A composer stacks them into a module and records the module's
//! graph. Filters run the module, and near-duplicates of a benchmark are dropped. The teacher is a policy that solves composed
//! tasks because it reads their graphs.

mod candidate;
mod compose;
mod demos;
mod exercises;
mod filter;
mod grammar;
mod handwritten;
mod llm;
mod mix;
mod record;
mod run;
mod seeds;
mod set;
mod splitmix;
pub mod teacher;

pub use candidate::{CandidateSource, TaskCandidate};
pub use compose::{ComposeError, GrammarComposer, TaskComposer};
pub use demos::{Demo, DemoPlan, Demos, demos, has_relatives};
pub use exercises::exercises;
pub use filter::{
    Containment, FilterEnvironment, FilterError, FilterRejection, FilterWorker, TaskMeasurements,
};
pub use filter::{FilterSeconds, FilterStage, FilterStageSummary};
pub use grammar::{Composition, MAX_OPS, TaskSize};
pub use handwritten::handwritten;
pub use llm::LlmComposer;
pub use mix::{TaskGroup, TaskMix};
pub use record::{CandidateOutcome, CandidateRecord, SynthRow};
pub use run::{SynthError, SynthPlan, SynthProgress, SynthResources, SynthStopRequest, run};
pub use seeds::{
    CallForm, OperatorFamily, OperatorSeed, SeedCatalogue, SeedError, SeedVariant,
    TransformerLayer, ValueDomain, transformer_layers,
};
pub use set::{DecontaminationSummary, GroupSummary, SynthSummary, TaskSet};
