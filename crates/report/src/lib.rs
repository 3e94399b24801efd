//! Runs read from their folders, counted, and put beside each other: as tables, as one page, as files for TensorBoard.
//!
//! [`metrics`] are a run's numbers; [`page`] and [`plot`] are what pages are made of.

mod compared;
mod export;
mod html;
mod learning;
pub mod metrics;
pub mod page;
pub mod plot;
mod read;
mod runs;
mod search;
mod story;
mod tables;
mod tensorboard;
mod training;

pub use compared::ComparedMode;
pub use export::write as write_export;
pub use html::{
    EpisodeAddress, html, overview, training_plots, verdict, verdict_line, verdict_words,
};
pub use learning::{Course, Learning, learning};
pub use read::{ReportError, Run, is_run, read};
pub use runs::{Report, ReportedStart, RunReport, TaskReport, TaskRow, same_rules, start_words};
pub use search::{FinalMeasurement, SearchHistory};
pub use story::{Story, StoryKernel};
pub use tables::{Cell, Table, tables, tasks as table_of_tasks, training_progress};
pub use tensorboard::{LiveCurves, write as write_tensorboard};
pub use training::{TrainingProgress, TrainingStep, curves, training_steps};
