//! Bugs that are injected into correct solutions, so that demonstrations show a failure and its fix.

use warpsmith_compiler::SolutionFiles;
use warpsmith_schema::MODEL_NEW;

use crate::splitmix::SplitMix64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BugKind {
    MissingSemicolon,
    MisspeltName,
    OffByOne,
    MissingEpsilon,
    MissingBias,
    /// `model_new.py` calls a launcher that does not exist.
    WrongLauncher,
    MissingExternC,
}

const BUG_KINDS: [BugKind; 7] = [
    BugKind::MissingSemicolon,
    BugKind::MisspeltName,
    BugKind::OffByOne,
    BugKind::MissingEpsilon,
    BugKind::MissingBias,
    BugKind::WrongLauncher,
    BugKind::MissingExternC,
];

/// One line that is replaced by a wrong one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InjectedBug {
    pub(super) kind: BugKind,
    pub(super) path: String,
    pub(super) wrong: String,
    pub(super) right: String,
}

impl InjectedBug {
    /// A bug that can be injected into these files.
    pub(super) fn choose(files: &SolutionFiles, rng: &mut SplitMix64) -> Option<Self> {
        let first = rng.below(BUG_KINDS.len());
        let mut kinds = BUG_KINDS
            .into_iter()
            .cycle()
            .skip(first)
            .take(BUG_KINDS.len());
        kinds.find_map(|kind| Self::inject(kind, files, rng))
    }

    fn inject(kind: BugKind, files: &SolutionFiles, rng: &mut SplitMix64) -> Option<Self> {
        let mut places = Vec::new();
        for (path, text) in files {
            if (path == MODEL_NEW) != (kind == BugKind::WrongLauncher) {
                continue;
            }
            for line in text.lines() {
                // The edit that fixes the bug finds its line by its text.
                if text.lines().filter(|other| *other == line).count() == 1
                    && let Some(wrong) = buggy_line(kind, line)
                    && !text.lines().any(|other| other == wrong)
                {
                    places.push((path, line, wrong));
                }
            }
        }
        let (path, right, wrong) = match kind {
            // The last loop is the one that stores results.
            BugKind::OffByOne => places.pop()?,
            _ if places.is_empty() => return None,
            _ => places.swap_remove(rng.below(places.len())),
        };
        Some(Self {
            kind,
            path: path.clone(),
            wrong,
            right: right.to_owned(),
        })
    }

    /// The files with the bug.
    pub(super) fn apply(&self, files: &SolutionFiles) -> SolutionFiles {
        let mut buggy = files.clone();
        if let Some(text) = buggy.get_mut(&self.path) {
            *text = text.replacen(&self.right, &self.wrong, 1);
        }
        buggy
    }
}

/// The line with a bug of this kind, if the line allows one.
fn buggy_line(kind: BugKind, line: &str) -> Option<String> {
    let inside = line.starts_with("    ");
    match kind {
        BugKind::MissingSemicolon => {
            let declares = line.trim_start().starts_with("const ") && line.ends_with(';');
            (inside && declares).then(|| line.trim_end_matches(';').to_owned())
        }
        BugKind::MisspeltName => {
            let (left, right) = line.split_once("] = ")?;
            let name = right.strip_suffix("_v;")?;
            let plain = name
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
            (inside && plain).then(|| format!("{left}] = {name}_value;"))
        }
        BugKind::OffByOne => {
            let (before, after) = line.split_once(" < ")?;
            let bound: String = after.chars().take_while(char::is_ascii_digit).collect();
            let loops =
                line.trim_start().starts_with("for (") && after[bound.len()..].starts_with(';');
            let large = bound.parse::<i64>().is_ok_and(|bound| bound > 4);
            (loops && large).then(|| format!("{before} < {bound} - 1{}", &after[bound.len()..]))
        }
        BugKind::MissingEpsilon => {
            let eps = ["1e-5f", "1e-6f", "1e-12f", "1e-8f"];
            let found = eps.iter().find(|eps| line.contains(&format!(" + {eps}")))?;
            Some(line.replacen(&format!(" + {found}"), "", 1))
        }
        BugKind::MissingBias => {
            let (before, after) = line.rsplit_once(" + ")?;
            let name: String = after
                .chars()
                .take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_')
                .collect();
            let is_bias = name.ends_with("bias_at");
            (inside && is_bias).then(|| format!("{before}{}", &after[name.len()..]))
        }
        BugKind::WrongLauncher => {
            let (before, after) = line.split_once("kernels.run_")?;
            Some(format!("{before}kernels.{after}"))
        }
        BugKind::MissingExternC => line
            .strip_prefix("extern \"C\" int run_")
            .map(|rest| format!("int run_{rest}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_are_injected_into_lines_that_allow_them() {
        let cases = [
            (
                BugKind::MissingSemicolon,
                "    const float x_at = x[i];",
                Some("    const float x_at = x[i]"),
            ),
            (
                BugKind::MisspeltName,
                "        out[i] = relu_v;",
                Some("        out[i] = relu_value;"),
            ),
            (
                BugKind::OffByOne,
                "    for (int64_t i = 0; i < 512; ++i) {",
                Some("    for (int64_t i = 0; i < 512 - 1; ++i) {"),
            ),
            (BugKind::OffByOne, "    for (int l = 0; l < 4; ++l) {", None),
            (
                BugKind::MissingEpsilon,
                "    const float n = (x - m) / sqrtf(v + 1e-5f);",
                Some("    const float n = (x - m) / sqrtf(v);"),
            ),
            (
                BugKind::MissingBias,
                "        out[i] = hidden_at + linear_bias_at;",
                Some("        out[i] = hidden_at;"),
            ),
            (
                BugKind::WrongLauncher,
                "        kernels.run_relu(out, x)",
                Some("        kernels.relu(out, x)"),
            ),
            (
                BugKind::MissingExternC,
                "extern \"C\" int run_relu(float* out) {",
                Some("int run_relu(float* out) {"),
            ),
        ];
        for (kind, right, wrong) in cases {
            assert_eq!(buggy_line(kind, right).as_deref(), wrong, "{right}");
        }
    }
}
