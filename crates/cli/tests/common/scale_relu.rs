//! A small task that tests have written: what it says, and a solution that is right.

pub(crate) const TASK: &str = include_str!("scale_relu.py");

/// The example that small models are shown.
pub(crate) const MODEL_NEW: &str = include_str!("../../../agent/src/prompts/example.py");
pub(crate) const KERNEL: &str = include_str!("../../../agent/src/prompts/example.cpp");

/// What a policy says to write the solution with this kernel.
pub(crate) fn reply(kernel: &str) -> String {
    format!(
        "write model_new.py\n```python\n{MODEL_NEW}```\n\nwrite kernels/scale_relu.cpp\n```cpp\n{kernel}```\n"
    )
}
