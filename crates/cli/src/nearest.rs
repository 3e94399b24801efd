//! What was probably meant.

/// The known name most like this one, where one is like it at all.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let alike = |known: &'a str| (strsim::jaro_winkler(known, name), known);
    let nearest = known.into_iter().map(alike);
    let nearest = nearest.max_by(|(first, _), (second, _)| first.total_cmp(second));
    nearest
        .filter(|(alike, _)| *alike > ALIKE)
        .map(|(_, known)| known)
}

/// Of 0 to 1, where 1 is the same.
const ALIKE: f64 = 0.7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_like_it_is_named() {
        let known = ["samples", "seed", "max_tokens"];
        assert_eq!(nearest("sampels", known), Some("samples"));
        assert_eq!(nearest("max-tokens", known), Some("max_tokens"));
        assert_eq!(nearest("xyz", known), None);
    }
}
