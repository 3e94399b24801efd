//! Tasks that no benchmark contains, and a teacher that can solve them.
//!
//! Seeds are operators with arguments and shapes that work; a composer stacks them into a module and writes down what it
//! computes (its graph); filters run it; what is too near a benchmark is dropped. The teacher is a policy that solves
//! composed tasks because it reads their graphs.

pub mod teacher;
