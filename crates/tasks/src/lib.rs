//! Loaders for tasks: a module, a KernelBench folder, JSONL.
