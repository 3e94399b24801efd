//! Tasks with smaller shapes, for small machines.
//!
//! `KernelBench` modules define their sizes as unindented constants (`batch_size = 4096`, `M = 16384 * 2`,
//! `input_shape = (32768,)`). These are divided; sizes inside a class stay as they are. The result is another task. It may not
//! even run, which the judge then reports.

use warpsmith_schema::Task;

/// Smaller numbers are kernel sizes, groups and channels, which must not change.
const SCALED_FROM: u64 = 256;
/// A scaled number is at least this large.
const SCALED_MINIMUM: u64 = 64;

/// The task with its large constants and its batch sizes divided by `by`.
#[must_use]
pub fn scaled(task: &Task, by: u32) -> Task {
    let lines: Vec<String> = task
        .source
        .lines()
        .map(|line| scaled_line(line, u64::from(by.max(1))).unwrap_or_else(|| line.to_owned()))
        .collect();
    Task {
        source: lines.join("\n") + "\n",
        origin: format!("{} with shapes divided by {by}", task.origin),
        // It describes the original shapes.
        graph: None,
        ..task.clone()
    }
}

/// `None` if the line does not define a constant of whole numbers.
fn scaled_line(line: &str, by: u64) -> Option<String> {
    let (names, rest) = line.rsplit_once('=')?;
    let is_name = |name: &str| {
        let mut letters = name.trim_end().chars();
        letters
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    let mut parts = names.split('=');
    if !parts.next().is_some_and(is_name) || !parts.all(|name| is_name(name.trim_start())) {
        return None;
    }
    let (value, comment) = rest.split_at(rest.find('#').unwrap_or(rest.len()));
    if !value
        .chars()
        .all(|letter| letter.is_ascii_digit() || " *(),[]".contains(letter))
    {
        return None;
    }
    let is_batch = names.contains("batch");
    let mut scaled = String::new();
    let mut number = String::new();
    for letter in value.chars().chain([' ']) {
        if letter.is_ascii_digit() {
            number.push(letter);
            continue;
        }
        if !number.is_empty() {
            scaled.push_str(&match number.parse::<u64>().ok()? {
                size if size >= SCALED_FROM => {
                    (size / by).max(SCALED_MINIMUM).min(size).to_string()
                }
                size if is_batch => (size / by).max(1).to_string(),
                _ => number.clone(),
            });
            number.clear();
        }
        scaled.push(letter);
    }
    // The blank that ended the last number was added above.
    scaled.pop();
    Some(format!("{names}={scaled}{comment}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_at_the_margin_are_divided() {
        for (line, expected) in [
            ("batch_size = 4096", "batch_size = 256"),
            ("batch_size = 16  # heavier", "batch_size = 1  # heavier"),
            ("dim = 393216", "dim = 24576"),
            ("M = 16384 * 2", "M = 1024 * 2"),
            ("input_shape = (32768,)", "input_shape = (2048,)"),
            ("height = width = 512", "height = width = 64"),
            ("layer_sizes = [16384, 128]", "layer_sizes = [1024, 128]"),
            ("kernel_size = 11", "kernel_size = 11"),
            ("eps = 1e-5", "eps = 1e-5"),
            ("    self.size = 4096", "    self.size = 4096"),
            ("def f(size=4096):", "def f(size=4096):"),
            ("x = torch.rand(4096)", "x = torch.rand(4096)"),
        ] {
            let found = scaled_line(line, 16).unwrap_or_else(|| line.to_owned());
            assert_eq!(found, expected);
        }
    }
}
