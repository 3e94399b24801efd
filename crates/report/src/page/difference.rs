//! How one text became another, line by line.

use maud::{Markup, Render, html};

/// Unchanged lines that are shown around a change.
const CONTEXT: usize = 3;
/// Beyond so many pairs of lines to compare, all of the middle counts as changed.
const MOST_PAIRS: usize = 4_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    Kept(&'a str),
    Removed(&'a str),
    Added(&'a str),
    /// So many lines are not shown.
    Skipped(usize),
}

/// The lines that changed, with a few around them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference<'a>(pub Vec<Line<'a>>);

pub fn difference<'a>(before: &'a str, after: &'a str) -> Difference<'a> {
    Difference(shortened(lines(before, after)))
}

impl Difference<'_> {
    pub fn added(&self) -> usize {
        self.0
            .iter()
            .filter(|line| matches!(line, Line::Added(_)))
            .count()
    }

    pub fn removed(&self) -> usize {
        self.0
            .iter()
            .filter(|line| matches!(line, Line::Removed(_)))
            .count()
    }
}

impl Render for Difference<'_> {
    fn render(&self) -> Markup {
        html! {
            pre tabindex="0" role="group" aria-label="what changed" {
                code {
                    @for line in &self.0 {
                        // The sign says it to those who see no colour.
                        @match line {
                            Line::Kept(text) => { "  " (text) "\n" },
                            Line::Removed(text) => { del { "- " (text) "\n" } },
                            Line::Added(text) => { ins { "+ " (text) "\n" } },
                            Line::Skipped(count) => { span.c { "  (" (count) " lines the same)\n" } },
                        }
                    }
                }
            }
        }
    }
}

/// All lines of both texts, by a longest common subsequence.
fn lines<'a>(before: &'a str, after: &'a str) -> Vec<Line<'a>> {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let head = old
        .iter()
        .zip(&new)
        .take_while(|(one, other)| one == other)
        .count();
    let (old_rest, new_rest) = (&old[head..], &new[head..]);
    let tail = (old_rest.iter().rev().zip(new_rest.iter().rev()))
        .take_while(|(one, other)| one == other)
        .count();
    let old_middle = &old_rest[..old_rest.len() - tail];
    let new_middle = &new_rest[..new_rest.len() - tail];
    let mut all: Vec<Line<'a>> = old[..head].iter().map(|line| Line::Kept(line)).collect();
    all.extend(middle(old_middle, new_middle));
    all.extend(old[old.len() - tail..].iter().map(|line| Line::Kept(line)));
    all
}

fn middle<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let width = new.len() + 1;
    let mut longest = vec![0_u32; 1];
    if old.len() * new.len() <= MOST_PAIRS {
        // longest[i][j]: of what two texts have in common from line i and line j on.
        longest = vec![0; (old.len() + 1) * width];
        for i in (0..old.len()).rev() {
            for j in (0..new.len()).rev() {
                longest[i * width + j] = if old[i] == new[j] {
                    longest[(i + 1) * width + j + 1] + 1
                } else {
                    longest[(i + 1) * width + j].max(longest[i * width + j + 1])
                };
            }
        }
    }
    let common = |i: usize, j: usize| longest.get(i * width + j).copied().unwrap_or(0);
    let (mut i, mut j) = (0, 0);
    let mut found = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            found.push(Line::Kept(old[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < old.len() && (j == new.len() || common(i + 1, j) >= common(i, j + 1)) {
            found.push(Line::Removed(old[i]));
            i += 1;
        } else {
            found.push(Line::Added(new[j]));
            j += 1;
        }
    }
    found
}

fn shortened(lines: Vec<Line<'_>>) -> Vec<Line<'_>> {
    let changed: Vec<usize> = (lines.iter().enumerate())
        .filter(|(_, line)| !matches!(line, Line::Kept(_)))
        .map(|(at, _)| at)
        .collect();
    let near = |at: usize| {
        let next = changed.partition_point(|change| *change < at);
        let close =
            |change: Option<&usize>| change.is_some_and(|change| change.abs_diff(at) <= CONTEXT);
        close(changed.get(next)) || close(next.checked_sub(1).and_then(|last| changed.get(last)))
    };
    let mut shown: Vec<Line<'_>> = Vec::new();
    for (at, line) in lines.into_iter().enumerate() {
        match (near(at), shown.last_mut()) {
            (true, _) => shown.push(line),
            (false, Some(Line::Skipped(count))) => *count += 1,
            (false, _) => shown.push(Line::Skipped(1)),
        }
    }
    shown
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
        let found = difference(&before, &after);
        let expected = [
            Line::Skipped(6),
            Line::Kept("7"),
            Line::Kept("8"),
            Line::Kept("9"),
            Line::Removed("10"),
            Line::Added("ten"),
            Line::Added("and a half"),
            Line::Kept("11"),
            Line::Kept("12"),
            Line::Kept("13"),
            Line::Skipped(7),
        ];
        assert_eq!(found.0, expected);
        assert_eq!((found.added(), found.removed()), (2, 1));
        let page = found.render().into_string();
        assert!(
            page.contains("<del>- 10\n</del><ins>+ ten\n</ins>"),
            "{page}"
        );
        assert_eq!(difference("a\n", "a\n").0, [Line::Skipped(1)]);
    }

    #[test]
    fn what_is_too_long_to_compare_is_replaced_whole() {
        let text = |letter: &str| format!("{letter}\n").repeat(2500);
        let (before, after) = (text("a"), text("b"));
        let found = difference(&before, &after);
        assert_eq!((found.added(), found.removed()), (2500, 2500));
    }

    proptest! {
        #[test]
        fn both_texts_can_be_read_from_it(before in "([abc]\n){0,12}", after in "([abc]\n){0,12}") {
            let all = lines(&before, &after);
            let side = |other: fn(&Line<'_>) -> bool| -> String {
                all.iter().filter(|line| !other(line)).map(|line| match line {
                    Line::Kept(text) | Line::Removed(text) | Line::Added(text) => format!("{text}\n"),
                    Line::Skipped(_) => String::new(),
                }).collect()
            };
            prop_assert_eq!(side(|line| matches!(line, Line::Added(_))), before.as_str());
            prop_assert_eq!(side(|line| matches!(line, Line::Removed(_))), after.as_str());
        }
    }
}
