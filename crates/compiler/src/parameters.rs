//! Parameters that a source has, as far as they can be found without understanding it: numbers that were chosen rather than
//! computed, and hints to compilers. A change that breaks the kernel is found by the judge, like everything else.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::solution::SolutionFiles;

/// What kind of choice it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceParameterKind {
    Unroll,
    Schedule,
    Threads,
    VectorWidth,
    Constant,
    LaunchBounds,
    BlockSize,
}

impl SourceParameterKind {
    /// Whether another value leaves the meaning of the source as it is, whatever else it says.
    pub fn is_hint(self) -> bool {
        match self {
            Self::Unroll
            | Self::Schedule
            | Self::Threads
            | Self::VectorWidth
            | Self::LaunchBounds => true,
            Self::Constant | Self::BlockSize => false,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Unroll => "unroll",
            Self::Schedule => "schedule",
            Self::Threads => "num_threads",
            Self::VectorWidth => "simdlen",
            Self::Constant => "constant",
            Self::LaunchBounds => "launch bounds",
            Self::BlockSize => "block size",
        }
    }
}

/// A place of a file that could say something else. A block size has several places, which change together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceParameter {
    pub path: String,
    pub kind: SourceParameterKind,
    /// What it is called, where it has a name.
    pub name: String,
    /// The present value, as the file has it.
    pub value: String,
    /// Other values to try.
    pub choices: Vec<String>,
    /// Bytes of the file, each with what a value becomes there.
    places: Vec<(Range<usize>, Scale)>,
}

/// What a value becomes in one of a parameter's places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scale {
    /// The value itself.
    Same,
    /// So many times the value, plus this.
    Times(i64, i64),
}

impl SourceParameter {
    /// The files with another value.
    pub fn set(&self, files: &SolutionFiles, value: &str) -> SolutionFiles {
        let mut files = files.clone();
        if let Some(text) = files.get_mut(&self.path) {
            let mut places = self.places.clone();
            places.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
            for (range, scale) in places {
                let new = match scale {
                    Scale::Same => value.to_owned(),
                    Scale::Times(factor, plus) => value.parse::<i64>().map_or_else(
                        |_| value.to_owned(),
                        |number| (number * factor + plus).to_string(),
                    ),
                };
                text.replace_range(range, &new);
            }
        }
        files
    }

    /// What a change is called: `4 -> 8`, `TILE 32 -> 64`.
    pub fn describe(&self, value: &str) -> String {
        let shown = |value: &str| match value.trim() {
            "" => "none".to_owned(),
            value => value.to_owned(),
        };
        let change = format!("{} -> {}", shown(&self.value), shown(value));
        match self.name.as_str() {
            "" => change,
            name => format!("{name} {change}"),
        }
    }
}

/// Everything in the files that can be changed, in the order of the files.
pub fn parameters(files: &SolutionFiles) -> Vec<SourceParameter> {
    let mut found = Vec::new();
    for (path, text) in files {
        if path.ends_with(".py") {
            continue;
        }
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            in_line(path, line, start, &mut found);
            start += line.len();
        }
        found.extend(block_sizes(path, text));
    }
    found
}

/// The files with every parameter's value left out: two candidates with the same skeleton differ in parameters alone.
pub fn skeleton(files: &SolutionFiles) -> SolutionFiles {
    let mut files = files.clone();
    // One file after the other from its end, so that places stay where they are.
    let mut all: Vec<(String, Range<usize>)> = parameters(&files)
        .into_iter()
        .flat_map(|one| {
            let path = one.path.clone();
            one.places
                .into_iter()
                .map(move |(range, _)| (path.clone(), range))
        })
        .collect();
    all.sort_by_key(|(_, range)| std::cmp::Reverse((range.start, range.end)));
    let mut last: Option<(String, usize)> = None;
    for (path, range) in all {
        let overlaps = last
            .as_ref()
            .is_some_and(|(of, start)| *of == path && range.end > *start);
        if overlaps {
            continue;
        }
        if let Some(text) = files.get_mut(&path) {
            text.replace_range(range.clone(), "?");
        }
        last = Some((path, range.start));
    }
    files
}

fn in_line(path: &str, line: &str, start: usize, found: &mut Vec<SourceParameter>) {
    let trimmed = line.trim_start();
    let indent = line.len() - trimmed.len();
    let mut push = |kind, name: &str, range: Range<usize>, choices: Vec<String>| {
        let value = line[range.clone()].to_owned();
        let choices: Vec<String> = choices.into_iter().filter(|one| *one != value).collect();
        if !choices.is_empty() {
            found.push(SourceParameter {
                path: path.to_owned(),
                kind,
                name: name.to_owned(),
                value,
                choices,
                places: vec![(start + range.start..start + range.end, Scale::Same)],
            });
        }
    };
    let strings = |values: &[&str]| values.iter().map(ToString::to_string).collect::<Vec<_>>();
    if let Some(pragma) = trimmed.strip_prefix("#pragma") {
        let end = indent + trimmed.trim_end().len();
        if let Some(at) = pragma.find("unroll") {
            let after = indent + "#pragma".len() + at + "unroll".len();
            let values: &[&str] = if pragma.contains("GCC") {
                &[" 1", " 2", " 4", " 8", " 16"]
            } else {
                &["", " 1", " 2", " 4", " 8", " 16"]
            };
            push(SourceParameterKind::Unroll, "", after..end, strings(values));
            return;
        }
        if let Some(range) = argument(line, "schedule(") {
            let values = ["static", "dynamic", "guided", "static, 1", "dynamic, 8"];
            push(SourceParameterKind::Schedule, "", range, strings(&values));
        }
        if let Some(at) = line.find("parallel for") {
            let after = at + "parallel for".len();
            let clause = line[after..].strip_prefix(" num_threads(");
            let length = clause
                .and_then(|rest| rest.find(')'))
                .map_or(0, |end| " num_threads(".len() + end + 1);
            let values = ["", " num_threads(1)", " num_threads(2)", " num_threads(4)"];
            push(
                SourceParameterKind::Threads,
                "",
                after..after + length,
                strings(&values),
            );
        }
        if let Some(at) = line.find("omp simd").or_else(|| line.find("for simd")) {
            let after = at + "omp simd".len();
            let clause = line[after..].strip_prefix(" simdlen(");
            let length = clause
                .and_then(|rest| rest.find(')'))
                .map_or(0, |end| " simdlen(".len() + end + 1);
            let values = ["", " simdlen(4)", " simdlen(8)", " simdlen(16)"];
            push(
                SourceParameterKind::VectorWidth,
                "",
                after..after + length,
                strings(&values),
            );
        }
        return;
    }
    if let Some(range) = argument(line, "__launch_bounds__(") {
        let first = line[range.clone()]
            .split(',')
            .next()
            .unwrap_or_default()
            .trim();
        let values = [
            first.to_owned(),
            format!("{first}, 2"),
            format!("{first}, 4"),
            format!("{first}, 8"),
        ];
        push(
            SourceParameterKind::LaunchBounds,
            "",
            range,
            values.to_vec(),
        );
    }
    if let Some((name, range)) = constant(line)
        && let Ok(number) = line[range.clone()].parse::<i64>()
    {
        let around = [number / 4, number / 2, number * 2, number * 4];
        let values = around.iter().filter(|one| (1..=8192).contains(*one));
        let values = values.map(ToString::to_string).collect();
        push(SourceParameterKind::Constant, &name, range, values);
    }
}

/// What stands between the brackets that a text opens.
fn argument(line: &str, opening: &str) -> Option<Range<usize>> {
    let start = line.find(opening)? + opening.len();
    let end = start + line[start..].find(')')?;
    Some(start..end)
}

/// `#define NAME 4`, `constexpr int NAME = 4;` or `const int NAME = 4;`, with a whole number that may be a size.
fn constant(line: &str) -> Option<(String, Range<usize>)> {
    let trimmed = line.trim_start();
    let is_number = |text: &str| {
        text.parse::<i64>()
            .is_ok_and(|number| (2..=4096).contains(&number))
            && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let range = |text: &str| {
        let start = text.as_ptr() as usize - line.as_ptr() as usize;
        start..start + text.len()
    };
    if let Some(rest) = trimmed.strip_prefix("#define ") {
        let mut words = rest.split_whitespace();
        let (name, value) = (words.next()?, words.next()?);
        return (words.next().is_none() && is_number(value))
            .then(|| (name.to_owned(), range(value)));
    }
    let declared = trimmed.split(['=', ';']).next()?;
    let mut words: Vec<&str> = declared.split_whitespace().collect();
    let name = words.pop()?;
    let constant = words.contains(&"constexpr") || words.first() == Some(&"const");
    let whole = ["int", "int64_t", "unsigned", "size_t", "auto", "int32_t"];
    let typed = words.iter().any(|word| whole.contains(word));
    let (_, value) = trimmed.split_once('=')?;
    let value = value.split([';', ',']).next()?.trim();
    (constant && typed && is_number(value)).then(|| (name.to_owned(), range(value)))
}

/// Threads of a block that stand in a launch as a number, with all that depends on them: the same number anywhere in the file,
/// and the blocks, which are counted as `(n + 1023) / 1024` for 256 threads of four elements.
fn block_sizes(path: &str, text: &str) -> Vec<SourceParameter> {
    let mut sizes = BTreeSet::new();
    for (at, _) in text.match_indices("<<<") {
        let Some(end) = text[at..].find(">>>") else {
            continue;
        };
        let launch = &text[at + 3..at + end];
        let threads = top_level(launch).nth(1).map(str::trim).unwrap_or_default();
        if let Ok(number) = threads.parse::<i64>()
            && (32..=1024).contains(&number)
        {
            sizes.insert(number);
        }
    }
    let sizes: Vec<i64> = sizes.into_iter().collect();
    let of = |size: i64| {
        let mut places = Vec::new();
        for (range, number) in numbers(text) {
            let scale = if number == size {
                Scale::Same
            } else if number > size && number % size == 0 && is_divisor(text, &range, number) {
                Scale::Times(number / size, 0)
            } else if number > size
                && (number + 1) % size == 0
                && is_divisor(text, &range, number + 1)
            {
                Scale::Times((number + 1) / size, -1)
            } else if number + 1 == size && is_divisor(text, &range, size) {
                Scale::Times(1, -1)
            } else {
                continue;
            };
            places.push((range, scale));
        }
        let choices = [64, 128, 256, 512, 1024]
            .into_iter()
            .filter(|one| *one != size);
        SourceParameter {
            path: path.to_owned(),
            kind: SourceParameterKind::BlockSize,
            name: String::new(),
            value: size.to_string(),
            choices: choices.map(|one| one.to_string()).collect(),
            places,
        }
    };
    sizes.into_iter().map(of).collect()
}

/// Whether a number stands in `(… + 1023) / 1024`.
fn is_divisor(text: &str, range: &Range<usize>, divisor: i64) -> bool {
    let line_start = text[..range.start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[range.end..]
        .find('\n')
        .map_or(text.len(), |at| range.end + at);
    text[line_start..line_end].contains(&format!("+ {}) / {divisor}", divisor - 1))
}

/// Whole numbers of a text that are no part of a name or of another number.
fn numbers(text: &str) -> Vec<(Range<usize>, i64)> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_alphanumeric() && bytes[at] != b'_' && bytes[at] != b'.' {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len()
            && (bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_' || bytes[at] == b'.')
        {
            at += 1;
        }
        if let Ok(number) = text[start..at].parse::<i64>() {
            found.push((start..at, number));
        }
    }
    found
}

/// The arguments of a launch: commas inside brackets separate nothing.
fn top_level(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |letter| {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(text: &str) -> SolutionFiles {
        SolutionFiles::from([("kernels/a.cu".to_owned(), text.to_owned())])
    }

    fn values(text: &str) -> Vec<(&'static str, String)> {
        let found = parameters(&files(text)).into_iter();
        found.map(|one| (one.kind.name(), one.value)).collect()
    }

    #[test]
    fn parameters_are_found_with_their_values() {
        let text = "#define TILE 32\nconstexpr int threads = 256, warps = 8;\nconst int64_t last = first + 4;\n\
            const float x = 4;\n#pragma unroll\n  #pragma GCC unroll 8\n#pragma omp parallel for schedule(static)\n\
            #pragma omp simd reduction(+ : part)\n__global__ void __launch_bounds__(256) k() {}\n";
        let expected = [
            ("constant", "32"),
            ("constant", "256"),
            ("unroll", ""),
            ("unroll", " 8"),
            ("schedule", "static"),
            ("num_threads", ""),
            ("simdlen", ""),
            ("launch bounds", "256"),
        ];
        let expected = expected.map(|(kind, value)| (kind, value.to_owned()));
        assert_eq!(values(text), expected);
    }

    #[test]
    fn a_value_is_set_where_it_stands() {
        let text = "#pragma omp parallel for num_threads(2) schedule(static)\n#pragma omp simd simdlen(8)\n";
        let files = files(text);
        let found = parameters(&files);
        let set =
            |number: usize, value: &str| found[number].set(&files, value)["kernels/a.cu"].clone();
        assert_eq!(set(0, "dynamic"), text.replace("static", "dynamic"),);
        assert_eq!(set(1, ""), text.replace(" num_threads(2)", ""));
        assert_eq!(set(2, " simdlen(16)"), text.replace('8', "16"));
        assert_eq!(found[0].describe("dynamic"), "static -> dynamic");
        assert_eq!(found[1].describe(""), "num_threads(2) -> none");
    }

    #[test]
    fn a_block_size_changes_with_all_that_depends_on_it() {
        let text = "int i = blockIdx.x * 256 + threadIdx.x;\nsum = block_sum<256>(sum);\n\
            k<<<(4096 * 1000 + 1023) / 1024, 256, 0, stream>>>(a);\nj<<<(100 + 255) / 256, 256>>>(a);\n";
        let files = files(text);
        let found = parameters(&files);
        assert_eq!(found.len(), 1, "{found:#?}");
        let set = found[0].set(&files, "128");
        let expected = "int i = blockIdx.x * 128 + threadIdx.x;\nsum = block_sum<128>(sum);\n\
            k<<<(4096 * 1000 + 511) / 512, 128, 0, stream>>>(a);\nj<<<(100 + 127) / 128, 128>>>(a);\n";
        assert_eq!(set["kernels/a.cu"], expected);
    }

    #[test]
    fn a_skeleton_is_what_parameters_leave() {
        let one = files("#pragma unroll 4\nk<<<n, 256>>>(a);\n");
        let other = files("#pragma unroll\nk<<<n, 128>>>(a);\n");
        assert_eq!(skeleton(&one), skeleton(&other));
        assert_ne!(
            skeleton(&one),
            skeleton(&files("#pragma unroll\nj<<<n, 128>>>(a);\n"))
        );
    }
}
