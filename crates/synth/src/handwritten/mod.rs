//! Tasks as people write them, in the form of `KernelBench`'s: docstrings and constants, constructor arguments, numbers as
//! attributes, extents that are no powers of two. The composed tasks of the grammar have none of this.
//!
//! Only the text is written here. What it computes is captured by PyTorch, so that text and graph cannot disagree; a text that
//! PyTorch refuses is dropped there. The words are our own: no sentence of a benchmark is in them.

mod activations;
mod layers;
mod linear;
mod literal;
mod lone;
mod normalise;
mod products;
mod reductions;
mod steps;
mod style;
mod text;
mod written;

use warpsmith_decontaminate::{FingerprintIndex, Structure};
use warpsmith_schema::Task;
use warpsmith_tasks::TaskError;

use crate::splitmix::SplitMix64;
use text::ModuleText;

/// What a written module is: one operator, or a layer and so many steps after it.
const LONE_PERCENT: usize = 50;

/// A module while it is written.
struct Chain<'a> {
    text: ModuleText<'a>,
    /// The expression of the value so far.
    value: String,
    shape: Vec<u64>,
    /// Lines so far, for names with numbers.
    steps: usize,
    /// Whether it is one operator.
    alone: bool,
    /// Whether that is written out in several: by itself it may be a task of the benchmark.
    written_out: bool,
    /// Whether there is a residual, and a second input; one of each is enough.
    residual: bool,
    second_input: bool,
}

/// Tasks without end; the same seed gives the same ones.
///
/// None is a near-duplicate of one of `KernelBench`'s tasks. A single operator is one only in the benchmark's own sizes: there is no
/// other way to learn it alone.
pub fn handwritten(seed: u64) -> Result<impl Iterator<Item = Task>, TaskError> {
    let benchmark = FingerprintIndex::kernelbench()?;
    Ok((0_u64..).filter_map(move |index| {
        let mut rng = SplitMix64::of_index(seed ^ 0x7772_6974, index);
        let source = write(&mut rng)?;
        let structure = Structure::of(&source).ok()?;
        if benchmark.near_duplicate_or_same_sizes(&structure).is_some() {
            return None;
        }
        let id = format!("handwritten-{seed}-{index:06}");
        Some(Task {
            name: id.clone(),
            id,
            source,
            level: None,
            problem_id: None,
            origin: "handwritten".into(),
            graph: None,
        })
    }))
}

/// One module's text; `None` if what was drawn does not fit together.
fn write(rng: &mut SplitMix64) -> Option<String> {
    let lone = rng.chance(LONE_PERCENT);
    let mut chain = Chain {
        text: ModuleText::new(rng),
        value: String::new(),
        shape: Vec::new(),
        steps: 0,
        alone: lone,
        written_out: false,
        residual: false,
        second_input: false,
    };
    if lone {
        chain.lone()?;
    } else {
        chain.block()?;
    }
    let value = chain.value.clone();
    Some(chain.text.finish(&value))
}

impl Chain<'_> {
    /// A layer and what follows it.
    fn block(&mut self) -> Option<()> {
        match self.text.rng.weighted(&[26, 10, 3, 12, 12, 2, 30])? {
            0 => self.convolution(2, true)?,
            1 => self.convolution(3, true)?,
            2 => self.convolution(1, true)?,
            3 => self.transposed_convolution(2, true)?,
            4 => self.transposed_convolution(3, true)?,
            5 => self.transposed_convolution(1, true)?,
            _ => self.linear()?,
        }
        if self.text.rng.chance(8) && self.shape.len() > 2 {
            self.convolution_again();
        }
        let steps = 1 + self.text.rng.weighted(&[14, 24, 26, 20, 10, 6])?;
        let mut tries = 0;
        let mut done = 0;
        while done < steps {
            tries += 1;
            if tries > 40 {
                return None;
            }
            // A step that does not fit leaves nothing behind: each looks before it writes.
            if self.any_step().is_some() {
                done += 1;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_many_and_the_same_again() {
        let some: Vec<Task> = handwritten(5).unwrap().take(200).collect();
        let again: Vec<Task> = handwritten(5).unwrap().take(200).collect();
        assert_eq!(some, again);
        let sources: std::collections::BTreeSet<&str> =
            some.iter().map(|task| task.source.as_str()).collect();
        assert_eq!(sources.len(), 200);
        let with_arguments = some
            .iter()
            .filter(|task| task.source.contains("def __init__(self, "))
            .count();
        assert!(with_arguments > 100, "{with_arguments}");
    }

    #[test]
    fn what_people_write_is_drawn_often_enough() {
        let some: Vec<Task> = handwritten(6).unwrap().take(3000).collect();
        let share = |words: &[&str]| {
            let has = |task: &&Task| words.iter().all(|word| task.source.contains(word));
            some.iter().filter(has).count()
        };
        for (words, least) in [
            (&["ConvTranspose", "output_padding"][..], 100),
            (&["Conv3d"], 60),
            (&["groups="], 60),
            (&["pointwise"], 10),
            (&["MaxPool", "dilation"], 25),
            (&["AvgPool", "padding"], 25),
            (&[".T) / 2"], 15),
            (&["torch.tril("], 15),
            (&["torch.triu("], 15),
            (&["argmin"], 10),
            (&[".flip("], 4),
            (&["riplet"], 5),
            (&["kl_div"], 5),
            (&["torch.rand(())"], 20),
            (&["nn.LeakyReLU()"], 20),
            (&["nn.Hardtanh()"], 10),
            (&["InstanceNorm"], 25),
            (&["LayerNorm"], 40),
            (&["momentum=0.1"], 3),
            (&["(out_channels, 1, 1"], 60),
            (&["kernel_height"], 20),
            (&["bias=False):"], 80),
            (&["Args:\n            ", "self, "], 200),
            (&["unsqueeze(1)"], 20),
            (&["nn.Parameter(torch.tensor("], 60),
        ] {
            let found = share(words);
            assert!(found >= least, "{words:?}: {found} of {}", some.len());
        }
    }

    /// Python reads names from above: a constant made of others stands below them.
    #[test]
    fn constants_are_there_before_they_are_used() {
        for task in handwritten(7).unwrap().take(1500) {
            let mut known: Vec<String> = Vec::new();
            for line in task.source.lines() {
                let Some((names, value)) = line.rsplit_once(" = ") else {
                    continue;
                };
                if line.starts_with([' ', '#']) {
                    continue;
                }
                let value = value.split('#').next().unwrap_or_default();
                let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
                let words = value.split(|letter| !is_word(letter));
                let unknown = words
                    .filter(|word| word.starts_with(char::is_alphabetic))
                    .find(|word| {
                        !["True", "False", "e"].contains(word)
                            && !known.iter().any(|name| name == word)
                    });
                assert_eq!(unknown, None, "{}", task.source);
                let names = names.split(" = ").flat_map(|name| name.split(", "));
                known.extend(names.map(|name| name.trim().to_owned()));
            }
        }
    }
}
