//! The run folder: append-only JSONL is the truth.
