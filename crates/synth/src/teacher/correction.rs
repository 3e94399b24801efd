//! A right reply after a policy's own failure: it names the first place where that one went astray, then gives all of the solution.

/// Longer ones are cut: what matters of a line stands in front.
const QUOTED: usize = 160;

/// The words before a solution that corrects what `failed` said.
pub(super) fn lead(failed: &str, right: &str) -> String {
    match first_difference(&statements(failed), &statements(right)) {
        Some((Some(wrong), Some(right))) => {
            format!("Wrong: `{}`. Right: `{}`. ", cut(wrong), cut(right))
        }
        Some((None, Some(right))) => format!("Missing: `{}`. ", cut(right)),
        Some((Some(wrong), None)) => format!("Too much: `{}`. ", cut(wrong)),
        _ => String::new(),
    }
}

/// What two replies say at the first place where they differ.
fn first_difference<'a>(
    failed: &[&'a str],
    right: &[&'a str],
) -> Option<(Option<&'a str>, Option<&'a str>)> {
    let longest = failed.len().max(right.len());
    (0..longest)
        .map(|place| (failed.get(place).copied(), right.get(place).copied()))
        .find(|(one, other)| one != other)
}

/// The parts of the plan, then the lines of the files.
fn statements(reply: &str) -> Vec<&str> {
    let (plan, files) = match reply.find("\nwrite ") {
        Some(place) => reply.split_at(place),
        None => (reply, ""),
    };
    let lines = files.lines().map(str::trim);
    let parts = parts(plan).into_iter();
    parts.chain(lines).filter(|part| !part.is_empty()).collect()
}

/// A plan cut behind commas, semicolons, colons and full stops, but not inside brackets: shapes stay whole.
fn parts(plan: &str) -> Vec<&str> {
    let (mut found, mut begun, mut depth) = (Vec::new(), 0, 0_usize);
    let mut letters = plan.char_indices().peekable();
    while let Some((place, letter)) = letters.next() {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ',' | ';' | ':' | '.' if depth == 0 => {
                let ends = letters.peek().is_none_or(|(_, next)| next.is_whitespace());
                if ends {
                    found.push(plan[begun..place].trim());
                    begun = place + letter.len_utf8();
                }
            }
            _ => {}
        }
    }
    found.push(plan[begun..].trim());
    found
}

fn cut(text: &str) -> &str {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: &str = "Input (8, 3, 4). In order: `pool` by kernel 2, extent 4 / 2 = 2 to (8, 3, 2).\n\nwrite model_new.py\n```python\na = 1\n```";

    #[test]
    fn a_shape_is_quoted_whole() {
        let failed = RIGHT.replace("to (8, 3, 2)", "to (8, 3, 3)");
        assert_eq!(
            lead(&failed, RIGHT),
            "Wrong: `extent 4 / 2 = 2 to (8, 3, 3)`. Right: `extent 4 / 2 = 2 to (8, 3, 2)`. "
        );
    }

    #[test]
    fn lines_of_files_are_compared_after_the_plan() {
        let failed = RIGHT.replace("a = 1", "a = 2");
        assert_eq!(lead(&failed, RIGHT), "Wrong: `a = 2`. Right: `a = 1`. ");
    }

    #[test]
    fn what_was_cut_off_is_missing_and_the_same_is_nothing() {
        let failed = RIGHT.strip_suffix("a = 1\n```").unwrap();
        assert_eq!(lead(failed, RIGHT), "Missing: `a = 1`. ");
        assert_eq!(lead(RIGHT, RIGHT), "");
    }

    #[test]
    fn any_text_has_parts() {
        for text in ["", "écart, ", "((", "write", "\nwrite x\n", "1.5, a.b: c"] {
            lead(text, RIGHT);
        }
        assert_eq!(parts("by 1.5, a"), ["by 1.5", "a"]);
    }
}
