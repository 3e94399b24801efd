//! How one text became another, line by line.

use std::time::{Duration, Instant};

use maud::{Markup, Render, html};
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline, group_diff_ops};

/// Unchanged lines that are shown around a change.
const CONTEXT: usize = 3;
/// Texts that take longer to compare are shown with more changes than there are.
const MAX_TIME: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffLine<'a> {
    Kept(&'a str),
    Removed(&'a str),
    Added(&'a str),
    /// So many unchanged lines are not shown.
    Skipped(usize),
}

/// The lines that changed, with a few around them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineDiff<'a>(pub Vec<DiffLine<'a>>);

pub fn line_diff<'a>(before: &'a str, after: &'a str) -> LineDiff<'a> {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let deadline = Some(Instant::now() + MAX_TIME);
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, deadline);
    let mut shown = Vec::new();
    let skip = |shown: &mut Vec<DiffLine<'a>>, count: usize| {
        if count > 0 {
            shown.push(DiffLine::Skipped(count));
        }
    };
    // How much of the old text has been passed.
    let mut passed = 0;
    for op in group_diff_ops(ops, CONTEXT).into_iter().flatten() {
        // An insertion takes no line of the old text, and its place there is not always exact.
        if !op.old_range().is_empty() {
            skip(&mut shown, op.old_range().start - passed);
            passed = op.old_range().end;
        }
        push_lines(&op, &old, &new, &mut shown);
    }
    skip(&mut shown, old.len() - passed);
    LineDiff(shown)
}

fn push_lines<'a>(op: &DiffOp, old: &[&'a str], new: &[&'a str], shown: &mut Vec<DiffLine<'a>>) {
    let (before, after) = (&old[op.old_range()], &new[op.new_range()]);
    if let DiffOp::Equal { .. } = op {
        shown.extend(before.iter().map(|line| DiffLine::Kept(line)));
    } else {
        shown.extend(before.iter().map(|line| DiffLine::Removed(line)));
        shown.extend(after.iter().map(|line| DiffLine::Added(line)));
    }
}

impl LineDiff<'_> {
    pub fn added(&self) -> usize {
        self.0
            .iter()
            .filter(|line| matches!(line, DiffLine::Added(_)))
            .count()
    }

    pub fn removed(&self) -> usize {
        self.0
            .iter()
            .filter(|line| matches!(line, DiffLine::Removed(_)))
            .count()
    }
}

impl Render for LineDiff<'_> {
    fn render(&self) -> Markup {
        html! {
            pre tabindex="0" role="group" aria-label="what changed" {
                code {
                    @for line in &self.0 {
                        // The sign says it to those who see no colour.
                        @match line {
                            DiffLine::Kept(text) => { "  " (text) "\n" },
                            DiffLine::Removed(text) => { del { "- " (text) "\n" } },
                            DiffLine::Added(text) => { ins { "+ " (text) "\n" } },
                            DiffLine::Skipped(count) => { span.c { "  (" (count) " lines the same)\n" } },
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn changes_are_shown_with_a_few_lines_around() {
        let numbers: Vec<String> = (1..=20).map(|line| line.to_string()).collect();
        let before = numbers.join("\n") + "\n";
        let after = before.replace("10\n", "ten\nand a half\n");
        let found = line_diff(&before, &after);
        let expected = [
            DiffLine::Skipped(6),
            DiffLine::Kept("7"),
            DiffLine::Kept("8"),
            DiffLine::Kept("9"),
            DiffLine::Removed("10"),
            DiffLine::Added("ten"),
            DiffLine::Added("and a half"),
            DiffLine::Kept("11"),
            DiffLine::Kept("12"),
            DiffLine::Kept("13"),
            DiffLine::Skipped(7),
        ];
        assert_eq!(found.0, expected);
        assert_eq!((found.added(), found.removed()), (2, 1));
        let page = found.render().into_string();
        assert!(
            page.contains("<del>- 10\n</del><ins>+ ten\n</ins>"),
            "{page}"
        );
        assert_eq!(line_diff("a\n", "a\n").0, [DiffLine::Skipped(1)]);
    }

    #[test]
    fn what_is_too_long_to_compare_is_replaced_whole() {
        let text = |letter: &str| format!("{letter}\n").repeat(2500);
        let (before, after) = (text("a"), text("b"));
        let found = line_diff(&before, &after);
        assert_eq!((found.added(), found.removed()), (2500, 2500));
    }

    proptest! {
        #[test]
        fn both_texts_can_be_read_from_it(before in "([abc]\n){0,12}", after in "([abc]\n){0,12}") {
            let LineDiff(shown) = line_diff(&before, &after);
            // What is skipped is the same in both, so it is taken from the first.
            let old: Vec<&str> = before.lines().collect();
            let mut passed = 0;
            let mut all = Vec::new();
            for line in shown {
                let next = passed + match line {
                    DiffLine::Added(_) => 0,
                    DiffLine::Kept(_) | DiffLine::Removed(_) => 1,
                    DiffLine::Skipped(count) => count,
                };
                match line {
                    DiffLine::Skipped(_) => all.extend(old[passed..next].iter().map(|line| DiffLine::Kept(line))),
                    shown => all.push(shown),
                }
                passed = next;
            }
            let side = |other: fn(&DiffLine<'_>) -> bool| -> String {
                all.iter().filter(|line| !other(line)).map(|line| match line {
                    DiffLine::Kept(text) | DiffLine::Removed(text) | DiffLine::Added(text) => format!("{text}\n"),
                    DiffLine::Skipped(_) => String::new(),
                }).collect()
            };
            prop_assert_eq!(side(|line| matches!(line, DiffLine::Added(_))), before.as_str());
            prop_assert_eq!(side(|line| matches!(line, DiffLine::Removed(_))), after.as_str());
        }
    }
}
