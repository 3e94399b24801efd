//! One CUDA file that includes PyTorch's headers as two files: kernels, which nvcc compiles in a second once it need not read those
//! headers, and host functions, which g++ compiles with the headers precompiled.
//!
//! The host file declares each kernel as the ordinary function that nvcc makes of it on the host, and a launch becomes what
//! nvcc makes of one. Where anything is not understood, or a name could mean something else in one of the files than in the
//! whole, there is no split and the file is compiled as it is.

use std::collections::BTreeSet;
use std::ops::Range;

use super::cxx_tokens::{TokenKind, Tokens};

/// Both files keep the lines of the whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SplitSource {
    pub(super) host: String,
    pub(super) device: String,
    /// Names of kernels that are templates: the host file decides for which arguments they are compiled.
    pub(super) templates: BTreeSet<String>,
}

/// What PyTorch's headers bring along that kernels use. Each is there in the whole file too.
const DEVICE_HEADERS: &str = "#include <cuda.h>\n#include <cuda_runtime.h>\n#include <cassert>\n#include <cfloat>\n#include <climits>\n\
    #include <cmath>\n#include <cstdint>\n#include <cstdio>\n#include <cstdlib>\n#include <limits>\n";
/// These too, but they take a while to read.
const NARROW_HEADERS: [(&str, &str); 2] = [
    ("half", "#include <cuda_fp16.h>\n"),
    ("bfloat16", "#include <cuda_bf16.h>\n"),
];
/// As the CUDA headers declare it where nvcc reads them.
const HOST_PREAMBLE: &str = "extern \"C\" unsigned __cudaPushCallConfiguration(dim3, dim3, size_t = 0, cudaStream_t = 0);\n";

/// The two files, or `None` where the file should be compiled as it is.
pub(super) fn split(text: &str) -> Option<SplitSource> {
    let tokens = Tokens::read(text)?;
    let items = items(&tokens)?;
    let (mut host, mut device) = (Edits::default(), Edits::default());
    let mut templates = BTreeSet::new();
    let mut macros = BTreeSet::new();
    // Functions that only one side has, and the words that each side uses.
    let (mut host_only, mut device_only) = (BTreeSet::new(), BTreeSet::new());
    let (mut host_words, mut device_words) = (BTreeSet::new(), BTreeSet::new());
    for item in &items {
        let whole = tokens.all[item.range.start].start..tokens.all[item.range.end - 1].end;
        if let Side::Directive = item.side {
            let line = &text[whole.clone()];
            match Directive::read(line)? {
                Directive::Include { torch: true } => {
                    device.remove(whole.clone());
                    if line.contains("torch/extension.h") {
                        host.remove(whole);
                    }
                }
                Directive::Define(name) => {
                    macros.insert(name);
                }
                Directive::Include { torch: false } | Directive::Other => {}
                Directive::Condition => return None,
            }
            continue;
        }
        let in_host = matches!(item.side, Side::Host | Side::Both);
        directives_inside(&tokens, item, in_host, &mut macros)?;
        let words = || tokens.words(item.range.clone());
        match item.side {
            Side::Host => {
                device.remove(whole);
                host_only.extend(item.name);
            }
            Side::Device => {
                host.remove(whole);
                device_only.extend(item.name);
            }
            Side::Kernel => {
                declare_kernel(&tokens, item, &mut host, &mut device)?;
                if words().next() == Some("template") {
                    templates.insert(item.name?.to_owned());
                }
            }
            Side::Both | Side::Directive => {}
        }
        if in_host {
            host_words.extend(words());
            let launches = rewrite_launches(&tokens, item, &mut host)?;
            if launches && item.side == Side::Both {
                return None;
            }
        }
        if item.side != Side::Host {
            device_words.extend(words());
        }
    }
    if !host_only.is_disjoint(&device_words) || !device_only.is_disjoint(&host_words) {
        return None;
    }
    let narrow = NARROW_HEADERS
        .iter()
        .filter(|(word, _)| device_words.iter().any(|used| used.contains(word)));
    let narrow: String = narrow.map(|(_, header)| *header).collect();
    let line = "#line 1\n";
    Some(SplitSource {
        host: format!("{HOST_PREAMBLE}{line}{}", host.apply(text)),
        device: format!("{DEVICE_HEADERS}{narrow}{line}{}", device.apply(text)),
        templates,
    })
}

/// Definitions of template kernels for the arguments that the host file was compiled with, by their demangled names.
pub(super) fn instantiations<'a>(kernels: impl IntoIterator<Item = &'a str>) -> String {
    let lines = kernels
        .into_iter()
        .map(|kernel| format!("template __global__ {kernel};\n"));
    lines.collect()
}

/// A top-level declaration or directive, as a range of tokens.
struct Item<'a> {
    range: Range<usize>,
    /// Of a function: where its body opens.
    body: Option<usize>,
    /// Of a function.
    name: Option<&'a str>,
    side: Side,
}

/// Who needs an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Directive,
    Host,
    Device,
    Both,
    /// The device; the host only its declaration.
    Kernel,
}

const MEMORY_SPACES: [&str; 3] = ["__device__", "__constant__", "__managed__"];
/// What is followed by arguments of its own in a declaration.
const ATTRIBUTES: [&str; 6] = [
    "__launch_bounds__",
    "__cluster_dims__",
    "__align__",
    "__attribute__",
    "alignas",
    "decltype",
];

fn is_torch(word: &str) -> bool {
    ["torch", "at", "c10", "pybind11", "py"].contains(&word)
        || ["AT_", "TORCH_", "C10_", "PYBIND11_"]
            .iter()
            .any(|prefix| word.starts_with(prefix))
}

fn items<'a>(tokens: &Tokens<'a>) -> Option<Vec<Item<'a>>> {
    let mut items = Vec::new();
    let mut at = 0;
    while at < tokens.all.len() {
        let item = match tokens.all[at].kind {
            TokenKind::Directive => Item {
                range: at..at + 1,
                body: None,
                name: None,
                side: Side::Directive,
            },
            TokenKind::Symbol(b';') => {
                at += 1;
                continue;
            }
            _ => declaration(tokens, at)?,
        };
        at = item.range.end;
        items.push(item);
    }
    Some(items)
}

fn declaration<'a>(tokens: &Tokens<'a>, start: usize) -> Option<Item<'a>> {
    let mut head = start;
    while tokens.word(head) == Some("template") {
        head = after_parameters(tokens, head + 1)?;
    }
    let first = tokens.word(head)?;
    let opens_block = match first {
        "namespace" | "asm" => true,
        "inline" => tokens.word(head + 1) == Some("namespace"),
        "extern" => tokens.symbol(head + 2) == Some(b'{'),
        _ => false,
    };
    if opens_block {
        return None;
    }
    let is_type = [
        "struct",
        "class",
        "union",
        "enum",
        "typedef",
        "using",
        "static_assert",
    ]
    .contains(&first);
    let (mut name, mut parameters, mut value, mut body) = (None, false, false, None);
    let mut at = head;
    let end = loop {
        match tokens.all.get(at)?.kind {
            TokenKind::Directive => return None,
            TokenKind::Word if tokens.word(at) == Some("operator") => return None,
            TokenKind::Symbol(b'(') => {
                let before = at.checked_sub(1).and_then(|before| tokens.word(before));
                if !before.is_some_and(|word| ATTRIBUTES.contains(&word)) && !value {
                    parameters = true;
                    name = name.or(before);
                }
                at = tokens.matching(at)? + 1;
            }
            TokenKind::Symbol(b'[') => at = tokens.matching(at)? + 1,
            TokenKind::Symbol(b'=') => {
                value = true;
                at += 1;
            }
            TokenKind::Symbol(b'{') => {
                let close = tokens.matching(at)?;
                if is_type && parameters && first != "using" {
                    return None;
                }
                if !is_type && !value && parameters {
                    body = Some(at);
                    break close + 1;
                }
                at = close + 1;
            }
            TokenKind::Symbol(b';') => break at + 1,
            _ => at += 1,
        }
    };
    let header = start..body.unwrap_or(end);
    let has = |word: &str| tokens.words(header.clone()).any(|found| found == word);
    let torch = || tokens.words(start..end).any(is_torch);
    let is_function = parameters && !value && !is_type;
    let side = if has("__global__") {
        Side::Kernel
    } else if MEMORY_SPACES.iter().any(|space| has(space)) {
        if has("__host__") {
            Side::Both
        } else {
            Side::Device
        }
    } else if torch() {
        Side::Host
    } else if is_type || has("constexpr") || (!is_function && has("const")) {
        Side::Both
    } else {
        Side::Host
    };
    (side != Side::Both || !torch()).then_some(Item {
        range: start..end,
        body,
        name: name.filter(|_| is_function),
        side,
    })
}

/// Past the parameters of a template.
fn after_parameters(tokens: &Tokens<'_>, open: usize) -> Option<usize> {
    let mut depth = 0;
    let mut at = open;
    loop {
        match tokens.all.get(at)?.kind {
            TokenKind::Symbol(b'(' | b'[' | b'{') => at = tokens.matching(at)?,
            TokenKind::Symbol(b'<') => depth += 1,
            TokenKind::Symbol(b'>') => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

enum Directive<'a> {
    Include { torch: bool },
    Define(&'a str),
    Condition,
    Other,
}

impl<'a> Directive<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let rest = line.strip_prefix('#')?.trim_start();
        let (name, rest) = rest.split_at(
            rest.find(|c: char| !c.is_alphabetic())
                .unwrap_or(rest.len()),
        );
        let rest = rest.trim_start();
        match name {
            "include" => {
                let torch = ["torch/", "ATen/", "c10/", "pybind11/"];
                Some(Self::Include {
                    torch: torch.iter().any(|header| rest.contains(header)),
                })
            }
            // A macro that hides what is looked for here.
            "define"
                if ["<<<", "__global__", "__device__", "__host__"]
                    .iter()
                    .any(|hidden| rest.contains(hidden)) =>
            {
                None
            }
            "define" => {
                let end = rest
                    .find(|c: char| !(c.is_alphanumeric() || c == '_'))
                    .unwrap_or(rest.len());
                Some(Self::Define(&rest[..end]))
            }
            "undef" | "pragma" => Some(Self::Other),
            "if" | "ifdef" | "ifndef" | "elif" | "else" | "endif" => Some(Self::Condition),
            _ => None,
        }
    }

    /// Whether a condition asks only for what both files and the whole have alike.
    fn is_settled(line: &str, macros: &BTreeSet<&str>) -> bool {
        let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let mut words =
            words.filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'));
        words.all(|word| {
            [
                "if",
                "ifdef",
                "ifndef",
                "elif",
                "else",
                "endif",
                "defined",
                "__CUDA_ARCH__",
            ]
            .contains(&word)
                || macros.contains(word)
        })
    }
}

/// Conditions may stand in what only the device has.
fn directives_inside<'a>(
    tokens: &Tokens<'a>,
    item: &Item<'_>,
    in_host: bool,
    macros: &mut BTreeSet<&'a str>,
) -> Option<()> {
    for token in &tokens.all[item.range.clone()] {
        if token.kind != TokenKind::Directive {
            continue;
        }
        let line = tokens.of(*token);
        match Directive::read(line)? {
            Directive::Define(name) => {
                macros.insert(name);
            }
            Directive::Other => {}
            Directive::Condition if !in_host && Directive::is_settled(line, macros) => {}
            Directive::Condition | Directive::Include { .. } => return None,
        }
    }
    Some(())
}

/// In the host file a kernel is a function that is defined elsewhere in the same library, and must be found there.
fn declare_kernel(
    tokens: &Tokens<'_>,
    item: &Item<'_>,
    host: &mut Edits,
    device: &mut Edits,
) -> Option<()> {
    let end = item.body.unwrap_or(item.range.end);
    let mut at = item.range.start;
    while at < end {
        let place = tokens.all[at].start..tokens.all[at].end;
        match tokens.word(at) {
            Some("__global__") => {
                host.replace(place, "__attribute__((visibility(\"hidden\")))".to_owned());
            }
            Some("static") => {
                host.remove(place.clone());
                device.remove(place);
            }
            Some("inline" | "__forceinline__" | "__noinline__" | "__grid_constant__") => {
                host.remove(place);
            }
            Some("__launch_bounds__" | "__cluster_dims__") => {
                at = tokens.matching(at + 1)?;
                host.remove(place.start..tokens.all[at].end);
            }
            _ => {}
        }
        at += 1;
    }
    if let Some(body) = item.body {
        let body = tokens.all[body].start..tokens.all[item.range.end - 1].end;
        host.replace(body, ";".to_owned());
    }
    Some(())
}

/// `kernel<<<configuration>>>(arguments)` as nvcc writes it for the host. Whether there was any.
fn rewrite_launches(tokens: &Tokens<'_>, item: &Item<'_>, host: &mut Edits) -> Option<bool> {
    let mut found = false;
    let mut at = item.range.start;
    while at < item.range.end {
        if !tokens.tripled(at, b'<') {
            at += 1;
            continue;
        }
        found = true;
        let kernel = kernel_before(tokens, at)?;
        let kernel = tokens.all[kernel].start..tokens.all[at - 1].end;
        let mut close = at + 3;
        while !tokens.tripled(close, b'>') {
            close = match tokens.symbol(close) {
                Some(b'(' | b'[' | b'{') => tokens.matching(close)? + 1,
                Some(b';' | b'}' | b')') => return None,
                _ => close + 1,
            };
            if close >= item.range.end {
                return None;
            }
        }
        let arguments = close + 3;
        if tokens.symbol(arguments) != Some(b'(') {
            return None;
        }
        let end = tokens.all[tokens.matching(arguments)?].end;
        let name = &tokens.text[kernel.clone()];
        host.replace(
            kernel.start..tokens.all[at + 2].end,
            "(__cudaPushCallConfiguration(".to_owned(),
        );
        let between = tokens.all[close].start..tokens.all[close + 2].end;
        host.replace(
            between,
            format!(") ? (void)0 : {}", name.replace('\n', " ")),
        );
        host.replace(end..end, ")".to_owned());
        // Launches among the arguments are none.
        at = arguments;
    }
    Some(found)
}

/// Where the name of a launched kernel begins, with its namespaces.
fn kernel_before(tokens: &Tokens<'_>, launch: usize) -> Option<usize> {
    let mut at = launch.checked_sub(1)?;
    if tokens.symbol(at) == Some(b'>') {
        let mut depth = 0;
        loop {
            match tokens.symbol(at) {
                Some(b'>') => depth += 1,
                Some(b'<') => depth -= 1,
                Some(b';' | b'{' | b'}') => return None,
                _ => {}
            }
            at = at.checked_sub(1)?;
            if depth == 0 {
                break;
            }
        }
    }
    tokens.word(at)?;
    while at >= 2 && tokens.symbol(at - 1) == Some(b':') && tokens.symbol(at - 2) == Some(b':') {
        at -= 2;
        if at > 0 && tokens.word(at - 1).is_some_and(|word| word != "return") {
            at -= 1;
        }
    }
    Some(at)
}

/// Changes to a text that keep its lines.
#[derive(Default)]
struct Edits(Vec<(Range<usize>, String)>);

impl Edits {
    fn remove(&mut self, range: Range<usize>) {
        self.replace(range, String::new());
    }

    fn replace(&mut self, range: Range<usize>, by: String) {
        self.0.push((range, by));
    }

    fn apply(mut self, text: &str) -> String {
        self.0.sort_by_key(|(range, _)| range.start);
        let mut made = String::with_capacity(text.len());
        let mut at = 0;
        for (range, by) in self.0 {
            made.push_str(&text[at..range.start]);
            made.push_str(&by);
            made.extend(text[range.clone()].chars().filter(|c| *c == '\n'));
            at = range.end;
        }
        made.push_str(&text[at..]);
        made
    }
}

#[cfg(test)]
mod tests;
