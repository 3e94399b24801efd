//! A policy as composer: it is given seeds by name and writes one module of them.
//!
//! What it says is parsed, never trusted: the text is checked against a list of what may stand in it before any of it runs
//! (`python/allowed.py`), and it runs in the sandbox only.

use std::fmt::Write;
use std::thread::sleep;
use std::time::Duration;

use warpsmith_model::policy::{Policy, PolicyError, PolicyRequest, SamplingParams};
use warpsmith_schema::Message;

use crate::candidate::{CandidateSource, TaskCandidate};
use crate::compose::{ComposeError, TaskComposer, candidate};
use crate::filter::FilterRejection;
use crate::mix::TaskGroup;
use crate::seeds::{OperatorSeed, SeedCatalogue};
use crate::splitmix::SplitMix64;

const SYSTEM: &str = "You write small PyTorch modules that serve as tasks for people who write fast kernels. You answer with \
one Python code block and nothing else.";
/// How often a server that is busy is asked again, and after how long.
const RETRY_DELAYS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(20),
];

/// Asks a policy.
pub struct LlmComposer<'a> {
    pub policy: Box<dyn Policy>,
    pub seeds: &'a SeedCatalogue,
    pub seed: u64,
}

impl TaskComposer for LlmComposer<'_> {
    fn name(&self) -> String {
        format!("llm:{}", self.policy.version().name)
    }

    fn compose(&mut self, index: u64, group: TaskGroup) -> Result<TaskCandidate, ComposeError> {
        let TaskGroup::Stacked(ops) = group else {
            return Err(ComposeError::NoFit);
        };
        let chosen = self.chosen(index, ops);
        let messages = [
            Message::System {
                text: SYSTEM.into(),
            },
            Message::User {
                text: prompt(&chosen),
            },
        ];
        let said = self.ask(&messages, index).map_err(ComposeError::Policy)?;
        let nonsense =
            |detail: String| ComposeError::Invalid(FilterRejection::new("nonsense", detail));
        let code = code_block(&said).ok_or_else(|| nonsense("no code block".into()))?;
        for seed in &chosen {
            if !code.contains(called(seed)) {
                return Err(nonsense(format!("does not use `{}`", seed.path)));
            }
        }
        let ops: Vec<&str> = chosen.iter().map(|seed| seed.op.as_str()).collect();
        let name = format!("written{}-{index:06}-{}", ops.len(), ops.join("-"));
        let paths = chosen.iter().map(|seed| seed.path.clone()).collect();
        candidate(index, group, paths, name, CandidateSource::Written(code))
    }

    /// Layers of libraries stay alone: there is nothing to compose.
    fn supply(&self, group: TaskGroup) -> Option<usize> {
        (group == TaskGroup::Transformers).then_some(0)
    }
}

impl<'a> LlmComposer<'a> {
    fn chosen(&self, index: u64, ops: usize) -> Vec<&'a OperatorSeed> {
        let mut rng = SplitMix64::of_index(self.seed, index);
        let all = self.seeds.all();
        (0..ops).filter_map(|_| rng.choose(all)).collect()
    }

    fn ask(&mut self, messages: &[Message], index: u64) -> Result<String, PolicyError> {
        let request = PolicyRequest {
            messages,
            tools: &[],
            sampling: SamplingParams {
                seed: Some(self.seed.wrapping_add(index)),
                max_tokens: 1500,
                ..SamplingParams::default()
            },
        };
        for pause in RETRY_DELAYS {
            match self.policy.reply(&request, &mut |_| {}) {
                Err(error) if error.retryable() => sleep(pause),
                other => return other.map(|reply| reply.text),
            }
        }
        self.policy
            .reply(&request, &mut |_| {})
            .map(|reply| reply.text)
    }
}

fn prompt(chosen: &[&OperatorSeed]) -> String {
    let mut text = String::from(
        "Write one module that applies these operators in this order, each to the result of the one before:\n\n",
    );
    for (number, seed) in chosen.iter().enumerate() {
        let variant = seed.variants.first();
        let given =
            variant.map(|variant| serde_json::to_string(&variant.given).unwrap_or_default());
        let inputs =
            variant.map(|variant| serde_json::to_string(&variant.inputs).unwrap_or_default());
        let _ = writeln!(
            text,
            "{}. `{}`, which works for instance with arguments {} on inputs {}",
            number + 1,
            seed.path,
            given.unwrap_or_default(),
            inputs.unwrap_or_default()
        );
    }
    text.push_str(
        "\nReshape or add parameters between them where shapes need it. Choose sizes so that one call takes some \
milliseconds: a few million elements. The file has exactly:\n\n\
- `import torch`, `import torch.nn as nn`, `import torch.nn.functional as F`, and no other import\n\
- `class Model(nn.Module)` with `__init__` and `forward`; no randomness in `forward`\n\
- `def get_inputs()`, which returns a list of tensors drawn with `torch.randn`, `torch.rand` or `torch.randint`\n\
- `def get_init_inputs()`, which returns the list of arguments of `__init__`\n",
    );
    text
}

/// What stands in a text that uses it.
fn called(seed: &OperatorSeed) -> &str {
    seed.path.rsplit('.').next().unwrap_or(&seed.path)
}

/// The first fenced block, whatever language it says.
fn code_block(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("```")?;
    let (_, rest) = rest.split_once('\n')?;
    let (code, _) = rest.split_once("```")?;
    (!code.trim().is_empty()).then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_block_is_code() {
        assert_eq!(
            code_block("a\n```python\nx = 1\n```\nb"),
            Some("x = 1\n".into())
        );
        for text in ["", "no block", "```python\ncut off", "```\n\n```"] {
            assert_eq!(code_block(text), None, "{text}");
        }
    }
}
