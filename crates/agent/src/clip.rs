//! Long texts, shortened.

/// Keeps the end, where tools say how it went, and a piece of the beginning, where they say what it was.
pub(crate) fn clip(text: &str, characters: usize) -> String {
    let count = text.chars().count();
    if count <= characters {
        return text.to_owned();
    }
    let head = characters / 4;
    let tail = characters - head;
    let first: String = text.chars().take(head).collect();
    let last: String = text.chars().skip(count - tail).collect();
    format!(
        "{first}\n[… {} characters left out …]\n{last}",
        count - head - tail
    )
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
}
