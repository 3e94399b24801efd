//! `model_new.py`: the original's constructor, and a `forward` that calls kernels.

use std::fmt::Write;

use super::module_source::{Module, words};

/// A call of a launcher.
pub(crate) struct Call {
    pub(crate) launcher: String,
    pub(crate) arguments: Vec<String>,
}

/// A tensor to allocate.
pub(crate) struct Allocation {
    pub(crate) name: String,
    pub(crate) shape: Vec<i64>,
    pub(crate) dtype: &'static str,
}

const FUNCTIONAL: &str = "import torch.nn.functional as F\n";

impl Module {
    pub(crate) fn write(
        &self,
        allocations: &[Allocation],
        calls: &[Call],
        returned: &str,
        device: &str,
    ) -> String {
        let mut text = format!("{}\n\n\nclass ModelNew({}):\n", self.preamble, self.bases);
        if let Some(constructor) = &self.constructor {
            text.push_str(constructor);
            text.push_str("\n\n");
        }
        let _ = writeln!(
            text,
            "    def forward(self, {}):",
            self.signature.join(", ")
        );
        for allocation in allocations {
            let shape: Vec<String> = allocation.shape.iter().map(ToString::to_string).collect();
            let comma = if shape.len() == 1 { "," } else { "" };
            let _ = writeln!(
                text,
                "        {} = torch.empty(({}{comma}), dtype=torch.{}, device={device}.device)",
                allocation.name,
                shape.join(", "),
                allocation.dtype
            );
        }
        for call in calls {
            let _ = writeln!(
                text,
                "        kernels.{}({})",
                call.launcher,
                call.arguments.join(", ")
            );
        }
        let _ = writeln!(text, "        return {returned}");
        // The functions are rarely called any more.
        let without = text.replacen(FUNCTIONAL, "", 1);
        if words(&without).contains("F") {
            text
        } else {
            without
        }
    }
}

/// A parameter or buffer by its name in the state dict: `layers.0.weight` is `self.layers[0].weight`.
pub(crate) fn attribute(name: &str) -> String {
    let mut text = "self".to_owned();
    for part in name.split('.') {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        if part.chars().all(|letter| letter.is_ascii_digit()) {
            let _ = write!(text, "[{part}]");
        } else if !part.chars().all(is_word) || part.starts_with(|letter: char| letter.is_numeric())
        {
            text = format!("getattr({text}, \"{part}\")");
        } else {
            let _ = write!(text, ".{part}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_attributes() {
        assert_eq!(attribute("layers.0.weight"), "self.layers[0].weight");
        assert_eq!(attribute("scale"), "self.scale");
        assert_eq!(
            attribute("heads.top-1.weight"),
            "getattr(self.heads, \"top-1\").weight"
        );
    }
}
