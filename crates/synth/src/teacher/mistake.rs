//! Mistakes that a person makes, planted in a solution that is right: what it takes to mend them is known.

use warpsmith_compiler::Files;
use warpsmith_schema::MODEL_NEW;

use super::luck::Luck;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Semicolon,
    Misspelt,
    OffByOne,
    Epsilon,
    Term,
    Launcher,
    Linkage,
}

const KINDS: [Kind; 7] = [
    Kind::Semicolon,
    Kind::Misspelt,
    Kind::OffByOne,
    Kind::Epsilon,
    Kind::Term,
    Kind::Launcher,
    Kind::Linkage,
];

/// One line that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) kind: Kind,
    pub(super) path: String,
    pub(super) wrong: String,
    pub(super) right: String,
}

impl Mistake {
    /// One that these files have room for.
    pub(super) fn choose(files: &Files, luck: &mut Luck) -> Option<Self> {
        let first = luck.below(KINDS.len());
        let order = (0..KINDS.len()).map(|step| KINDS[(first + step) % KINDS.len()]);
        order
            .into_iter()
            .find_map(|kind| Self::plant(kind, files, luck))
    }

    fn plant(kind: Kind, files: &Files, luck: &mut Luck) -> Option<Self> {
        let mut places = Vec::new();
        for (path, text) in files {
            if (path == MODEL_NEW) != (kind == Kind::Launcher) {
                continue;
            }
            for line in text.lines() {
                // An edit names its line by its text.
                if text.lines().filter(|other| *other == line).count() == 1
                    && let Some(wrong) = spoilt(kind, line)
                    && !text.lines().any(|other| other == wrong)
                {
                    places.push((path, line, wrong));
                }
            }
        }
        let (path, right, wrong) = match kind {
            // Of several loops the last is the one that stores.
            Kind::OffByOne => places.pop()?,
            _ if places.is_empty() => return None,
            _ => places.swap_remove(luck.below(places.len())),
        };
        Some(Self {
            kind,
            path: path.clone(),
            wrong,
            right: right.to_owned(),
        })
    }

    /// The files with it.
    pub(super) fn made(&self, files: &Files) -> Files {
        let mut spoilt = files.clone();
        if let Some(text) = spoilt.get_mut(&self.path) {
            *text = text.replacen(&self.right, &self.wrong, 1);
        }
        spoilt
    }
}

/// A line with this mistake, if it can be made there.
fn spoilt(kind: Kind, line: &str) -> Option<String> {
    let inside = line.starts_with("    ");
    match kind {
        Kind::Semicolon => {
            let declares = line.trim_start().starts_with("const ") && line.ends_with(';');
            (inside && declares).then(|| line.trim_end_matches(';').to_owned())
        }
        Kind::Misspelt => {
            let (left, right) = line.split_once("] = ")?;
            let name = right.strip_suffix("_v;")?;
            let plain = name
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
            (inside && plain).then(|| format!("{left}] = {name}_value;"))
        }
        Kind::OffByOne => {
            let (before, after) = line.split_once(" < ")?;
            let bound: String = after.chars().take_while(char::is_ascii_digit).collect();
            let loops =
                line.trim_start().starts_with("for (") && after[bound.len()..].starts_with(';');
            let large = bound.parse::<i64>().is_ok_and(|bound| bound > 4);
            (loops && large).then(|| format!("{before} < {bound} - 1{}", &after[bound.len()..]))
        }
        Kind::Epsilon => {
            let eps = ["1e-5f", "1e-6f", "1e-12f", "1e-8f"];
            let found = eps.iter().find(|eps| line.contains(&format!(" + {eps}")))?;
            Some(line.replacen(&format!(" + {found}"), "", 1))
        }
        Kind::Term => {
            let (before, after) = line.rsplit_once(" + ")?;
            let name: String = after
                .chars()
                .take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_')
                .collect();
            let is_bias = name.ends_with("bias_at");
            (inside && is_bias).then(|| format!("{before}{}", &after[name.len()..]))
        }
        Kind::Launcher => {
            let (before, after) = line.split_once("kernels.run_")?;
            Some(format!("{before}kernels.{after}"))
        }
        Kind::Linkage => line
            .strip_prefix("extern \"C\" int run_")
            .map(|rest| format!("int run_{rest}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_spoilt_where_they_can_be() {
        let cases = [
            (
                Kind::Semicolon,
                "    const float x_at = x[i];",
                Some("    const float x_at = x[i]"),
            ),
            (
                Kind::Misspelt,
                "        out[i] = relu_v;",
                Some("        out[i] = relu_value;"),
            ),
            (
                Kind::OffByOne,
                "    for (int64_t i = 0; i < 512; ++i) {",
                Some("    for (int64_t i = 0; i < 512 - 1; ++i) {"),
            ),
            (Kind::OffByOne, "    for (int l = 0; l < 4; ++l) {", None),
            (
                Kind::Epsilon,
                "    const float n = (x - m) / sqrtf(v + 1e-5f);",
                Some("    const float n = (x - m) / sqrtf(v);"),
            ),
            (
                Kind::Term,
                "        out[i] = hidden_at + linear_bias_at;",
                Some("        out[i] = hidden_at;"),
            ),
            (
                Kind::Launcher,
                "        kernels.run_relu(out, x)",
                Some("        kernels.relu(out, x)"),
            ),
            (
                Kind::Linkage,
                "extern \"C\" int run_relu(float* out) {",
                Some("int run_relu(float* out) {"),
            ),
        ];
        for (kind, right, wrong) in cases {
            assert_eq!(spoilt(kind, right).as_deref(), wrong, "{right}");
        }
    }
}
