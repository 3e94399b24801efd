//! One file a verb.

pub(crate) mod judge;
