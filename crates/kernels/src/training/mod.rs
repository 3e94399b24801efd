//! Learning on a GPU: every step of a model's way forward has its way back, written out.
//!
//! What learns ([`Learns`]) is all of a model, or low-rank matrices beside one that is [`Frozen`], which many can share. A
//! [`Learner`] learns what to say, a [`Valuer`] what to expect; all that learn on a device work on one [`Bench`] in turn.
//!
//! Weights that learn, gradients and what the optimiser keeps are float32; what matrices read is bfloat16. Sums over rows are
//! made in an order of their own, so that the same step gives the same numbers.

mod attention;
mod batch;
mod bench;
mod factors;
mod frozen;
mod functions;
mod layout;
mod learner;
mod learnt;
mod pass;
mod pupil;
mod rows;
mod step;
mod valuer;
mod work;

pub use attention::{Attended, AttendedBack, Attention, Stretch, Stretches};
pub use batch::Batch;
pub use bench::Bench;
pub use factors::{Between, Factors, LowRank};
pub use frozen::Frozen;
pub(crate) use functions::Functions;
pub use layout::{Layout, Parameter, Part, Shape};
pub use learner::{Heard, Learner, Scores};
pub use learnt::{Learns, value_head};
pub use pupil::{Pupil, State};
pub use rows::{Adding, PARTS, Turning, Uses, turns};
pub use step::{AdamW, Parameters, Scored, Settings, Wanted};
pub use valuer::{Seen, Valuer};
pub use work::{Keep, Room};
