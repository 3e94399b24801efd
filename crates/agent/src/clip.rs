//! Long texts, shortened.

/// Keeps the end, where tools say how it went, and a piece of the beginning, where they say what it was.
pub(crate) fn clip(text: &str, characters: usize) -> String {
    keep(text, characters / 4, characters - characters / 4)
}

/// Keeps the beginning, where compilers and checks say what is wrong, and the end, where a traceback does.
pub(crate) fn clip_middle(text: &str, characters: usize) -> String {
    keep(text, characters / 2, characters - characters / 2)
}

fn keep(text: &str, head: usize, tail: usize) -> String {
    let count = text.chars().count();
    if count <= head + tail {
        return text.to_owned();
    }
    let first: String = text.chars().take(head).collect();
    let last: String = text.chars().skip(count - tail).collect();
    let left_out = count - head - tail;
    format!("{first}\n[… {left_out} characters left out …]\n{last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_text_is_kept() {
        let long = format!("begin\n{}\nexit 1", "x".repeat(5000));
        let clipped = clip(&long, 400);
        assert!(clipped.starts_with("begin") && clipped.ends_with("exit 1"));
        assert!(clipped.chars().count() < 460);
        assert_eq!(clip("kürzer", 6), "kürzer");
    }

    #[test]
    fn both_ends_of_a_reason_are_kept() {
        let long = format!("error: first\n{}\nlast line", "x".repeat(10_000));
        let clipped = clip_middle(&long, 1500);
        assert!(clipped.starts_with("error: first") && clipped.ends_with("last line"));
        assert!(clipped.chars().count() < 1560);
    }
}
