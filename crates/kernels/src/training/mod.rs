//! Learning on a GPU: every step of a model's way forward has its way back, written out.
//!
//! Weights, gradients and what the optimiser keeps are float32; what matrices read is bfloat16. Sums over rows are made in an
//! order of their own, so that the same step gives the same numbers.

mod attention;
mod batch;
mod functions;
mod layout;
mod learner;
mod pass;
mod rows;
mod step;
mod work;

pub use attention::{Attended, AttendedBack, Stretch};
pub use batch::Batch;
pub(crate) use functions::Functions;
pub use layout::{Layout, Parameter, Shape};
pub use learner::{Heard, Learner, Scores, State};
pub use rows::{Adding, PARTS, Turning, Uses, turns};
pub use step::{AdamW, Parameters, Scored, Settings, Wanted};
pub use work::{Keep, Room};
