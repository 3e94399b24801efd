//! `model_new.py`: the original's constructor, and a `forward` that calls kernels.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::not_covered::NotCovered;

/// What a solution needs to know of a task's module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Module {
    /// Imports and constants before the class.
    preamble: String,
    /// `__init__`, as it stands, with what it needs of the class.
    constructor: Option<String>,
    /// Arguments of `forward`.
    pub(crate) inputs: Vec<String>,
    /// The same with their defaults.
    signature: Vec<String>,
}

/// A call of a launcher.
pub(crate) struct Call {
    pub(crate) launcher: String,
    pub(crate) arguments: Vec<String>,
}

/// A tensor to allocate.
pub(crate) struct Allocation {
    pub(crate) name: String,
    pub(crate) shape: Vec<i64>,
    pub(crate) dtype: &'static str,
}

impl Module {
    pub(crate) fn read(source: &str) -> Result<Self, NotCovered> {
        let unreadable = |what: &str| NotCovered::Module {
            what: what.to_owned(),
        };
        let lines: Vec<&str> = source.lines().collect();
        let class = lines
            .iter()
            .position(|line| line.starts_with("class Model(") || line.starts_with("class Model:"))
            .ok_or_else(|| unreadable("there is no class `Model`"))?;
        let inside = |line: &str| line.is_empty() || line.starts_with([' ', '\t']);
        let end = (class + 1..lines.len())
            .find(|at| !inside(lines[*at]))
            .unwrap_or(lines.len());
        let body = &lines[class + 1..end];
        let method = |name: &str| -> Option<Vec<&str>> {
            let start = body
                .iter()
                .position(|line| line.trim_start().starts_with(&format!("def {name}(")))?;
            let indent = body[start].len() - body[start].trim_start().len();
            let below = |line: &str| {
                line.trim().is_empty()
                    || line.len() - line.trim_start().len() > indent
                    || line.trim() == "):"
            };
            let length = body[start + 1..]
                .iter()
                .take_while(|line| below(line))
                .count();
            Some(body[start..=start + length].to_vec())
        };
        let forward = method("forward").ok_or_else(|| unreadable("there is no `forward`"))?;
        let forward = forward.join("\n");
        let (_, arguments) = forward
            .split_once('(')
            .ok_or_else(|| unreadable("`forward` has no arguments"))?;
        let (mut inputs, mut signature) = (Vec::new(), Vec::new());
        for part in at_commas(arguments) {
            let (declared, default) = match part.split_once('=') {
                Some((declared, default)) => (declared, Some(default.trim())),
                None => (part.as_str(), None),
            };
            let name = declared.split(':').next().unwrap_or_default().trim();
            if name.is_empty() || name == "self" {
                continue;
            }
            inputs.push(name.to_owned());
            signature.push(match default {
                Some(default) => format!("{name}={default}"),
                None => name.to_owned(),
            });
        }
        let constructor = method("__init__").map(|lines| {
            let mut text = without_words(&lines).join("\n").trim_end().to_owned();
            // Layers are often made by methods.
            for called in needed(definitions(body), &text, &["__init__", "forward"]) {
                text = format!("{text}\n\n{called}");
            }
            for attribute in needed(attributes(body), &text, &[]).iter().rev() {
                text = format!("{attribute}\n\n{text}");
            }
            text.replace("super(Model, self).__init__()", "super().__init__()")
        });
        let made = constructor.as_deref().unwrap_or_default();
        let mut preamble = preamble(&lines[..class], made);
        // Python looks names up when they are used: a class may follow the one that makes it.
        for later in needed(definitions(&lines[end..]), made, &[]) {
            preamble = format!("{preamble}\n\n\n{later}");
        }
        Ok(Self {
            preamble,
            constructor,
            inputs,
            signature,
        })
    }

    pub(crate) fn write(
        &self,
        allocations: &[Allocation],
        calls: &[Call],
        returned: &[String],
        device: &str,
    ) -> String {
        let mut text = format!("{}\n\n\nclass ModelNew(nn.Module):\n", self.preamble);
        // The functions are not called any more.
        text = text.replace("import torch.nn.functional as F\n", "");
        if let Some(constructor) = &self.constructor {
            text.push_str(constructor);
            text.push_str("\n\n");
        }
        let _ = writeln!(
            text,
            "    def forward(self, {}):",
            self.signature.join(", ")
        );
        for allocation in allocations {
            let shape: Vec<String> = allocation.shape.iter().map(ToString::to_string).collect();
            let comma = if shape.len() == 1 { "," } else { "" };
            let _ = writeln!(
                text,
                "        {} = torch.empty(({}{comma}), dtype=torch.{}, device={device}.device)",
                allocation.name,
                shape.join(", "),
                allocation.dtype
            );
        }
        for call in calls {
            let _ = writeln!(
                text,
                "        kernels.{}({})",
                call.launcher,
                call.arguments.join(", ")
            );
        }
        let _ = writeln!(text, "        return {}", returned.join(", "));
        text
    }
}

/// A function without its docstring: who calls a solution has the module's.
fn without_words<'t>(lines: &[&'t str]) -> Vec<&'t str> {
    let opened = lines.iter().position(|line| line.trim_end().ends_with(':'));
    let first = opened.map_or(lines.len(), |at| at + 1);
    let quotes = ["\"\"\"", "'''"];
    let begins = lines.get(first).map_or("", |line| line.trim_start());
    let Some(quote) = quotes.into_iter().find(|quote| begins.starts_with(quote)) else {
        return lines.to_vec();
    };
    let closes = |(at, line): &(usize, &&str)| {
        let own = if *at == first { 2 } else { 1 };
        line.matches(quote).count() >= own
    };
    let rest = lines.iter().enumerate().skip(first);
    match rest.clone().find(closes) {
        // A function of words alone needs them.
        Some((last, _)) if lines[last + 1..].iter().any(|line| !line.trim().is_empty()) => {
            [&lines[..first], &lines[last + 1..]].concat()
        }
        _ => lines.to_vec(),
    }
}

/// Arguments, up to the bracket that closes them. Commas in brackets belong to a type or a default.
fn at_commas(text: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for letter in text.chars() {
        match letter {
            ')' | ']' | '}' if depth == 0 => break,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        match parts.last_mut() {
            Some(last) if letter != ',' || depth > 0 => last.push(letter),
            _ => parts.push(String::new()),
        }
    }
    parts
}

/// A function or a class as it stands, with its decorators.
struct Definition {
    name: String,
    text: String,
}

/// Those of a block of lines, not those inside them.
fn definitions(lines: &[&str]) -> Vec<Definition> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let name = |line: &str| {
        let mut words = line.trim_start().split([' ', '(', ':']);
        let keyword = words.next()?;
        let name = words.next()?;
        ["def", "class"].contains(&keyword).then(|| name.to_owned())
    };
    let starts = lines.iter().filter(|line| name(line).is_some());
    let Some(outer) = starts.map(|line| depth(line)).min() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let (mut at, mut decorated) = (0, None);
    while let Some(line) = lines.get(at) {
        let start = decorated.unwrap_or(at);
        decorated = None;
        if depth(line) == outer && line.trim_start().starts_with('@') {
            decorated = Some(start);
        } else if let Some(name) = name(line).filter(|_| depth(line) == outer) {
            let inside = |line: &&&str| {
                let text = line.trim_start();
                text.is_empty() || depth(line) > outer || text.starts_with(')')
            };
            let length = lines[at + 1..].iter().take_while(inside).count();
            at += length;
            let text = lines[start..=at].join("\n").trim_end().to_owned();
            found.push(Definition { name, text });
        }
        at += 1;
    }
    found
}

/// What a class's body assigns to names.
fn attributes(body: &[&str]) -> Vec<Definition> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let code = body.iter().filter(|line| !line.trim().is_empty());
    let outer = code.map(|line| depth(line)).min().unwrap_or(0);
    let mut found: Vec<Definition> = Vec::new();
    let (mut in_text, mut continues) = (false, false);
    for line in body {
        let quotes = line.matches("\"\"\"").count() + line.matches("'''").count();
        let is_text = in_text || quotes > 0;
        in_text ^= quotes % 2 == 1;
        if is_text || line.trim().is_empty() {
            continues = false;
        } else if depth(line) > outer || line.trim_start().starts_with([')', ']', '}']) {
            if let Some(last) = found.last_mut().filter(|_| continues) {
                last.text = format!("{}\n{line}", last.text);
            }
        } else {
            let name = line.trim_start().split([':', '=', ' ']).next();
            let name = name.unwrap_or_default();
            let rest = line.trim_start()[name.len()..].trim_start();
            let is_name = words(name).len() == 1 && !name.is_empty();
            continues = is_name && rest.starts_with([':', '=']);
            if continues {
                found.push(Definition {
                    name: name.to_owned(),
                    text: (*line).to_owned(),
                });
            }
        }
    }
    found
}

/// The definitions that a text names, and those that they name, in their order.
fn needed(definitions: Vec<Definition>, by: &str, except: &[&str]) -> Vec<String> {
    let mut named = words(by);
    let mut chosen = vec![false; definitions.len()];
    loop {
        let next = definitions.iter().zip(&chosen).position(|(one, chosen)| {
            !chosen && named.contains(&one.name) && !except.contains(&one.name.as_str())
        });
        let Some(next) = next else { break };
        chosen[next] = true;
        named.extend(words(&definitions[next].text));
    }
    let chosen = definitions.into_iter().zip(chosen);
    chosen
        .filter_map(|(one, chosen)| chosen.then_some(one.text))
        .collect()
}

fn words(text: &str) -> BTreeSet<String> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let parts = text.split(|letter| !is_word(letter));
    parts.map(str::to_owned).collect()
}

/// Imports, ours after them, and what else `__init__` may need. Sizes of the inputs are often written there too.
fn preamble(before: &[&str], constructor: &str) -> String {
    let (signature, body) = constructor.split_once("):").unwrap_or_default();
    let (given, used) = (words(signature), words(body));
    let is_unused = |line: &str| {
        let code = line.split('#').next().unwrap_or_default().trim_end();
        let (names, _) = code.rsplit_once('=').unwrap_or_default();
        let is_number = code.ends_with(|letter: char| letter.is_ascii_digit() || letter == ')');
        let is_plain = |letter: char| letter.is_alphanumeric() || "_ ,=".contains(letter);
        let is_names = !names.is_empty() && !code.starts_with(' ') && names.chars().all(is_plain);
        let mut names = words(names);
        names.remove("");
        let unneeded = |name: &String| given.contains(name) || !used.contains(name);
        line.starts_with('#') || is_names && is_number && names.iter().all(unneeded)
    };
    let mut kept: Vec<&str> = Vec::new();
    for line in before {
        let is_blank = line.trim().is_empty();
        let repeats_blank = is_blank && kept.last().is_none_or(|last| last.trim().is_empty());
        if !is_unused(line) && !repeats_blank {
            kept.push(line);
        }
    }
    while kept
        .last()
        .is_some_and(|line| line.trim().is_empty() || line.starts_with('@'))
    {
        kept.pop();
    }
    let is_import = |line: &&str| line.starts_with("import ") || line.starts_with("from ");
    let after = kept.iter().rposition(is_import).map_or(0, |last| last + 1);
    kept.insert(after, "from warpsmith_kernels import kernels");
    kept.join("\n")
}

/// A parameter or buffer by its name in the state dict: `layers.0.weight` is `self.layers[0].weight`.
pub(crate) fn attribute(name: &str) -> String {
    let mut text = "self".to_owned();
    for part in name.split('.') {
        if part.chars().all(|letter| letter.is_ascii_digit()) {
            let _ = write!(text, "[{part}]");
        } else {
            let _ = write!(text, ".{part}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_read() {
        let source = "import torch\nimport torch.nn as nn\n\nSIZE = 4\n\n\nclass Model(nn.Module):\n    \"\"\"Words.\"\"\"\n\n    def __init__(self, size):\n        super(Model, self).__init__()\n        self.layer = nn.Linear(size, SIZE)\n\n    def forward(self, x: torch.Tensor, y=None):\n        return self.layer(x)\n\n\ndef get_inputs():\n    return []\n";
        let module = Module::read(source).unwrap();
        assert_eq!(module.inputs, ["x", "y"]);
        assert_eq!(module.signature, ["x", "y=None"]);
        let typed = source.replace("y=None", "y: tuple[int, int] = (1, 2), z: dict = {}");
        let typed = Module::read(&typed).unwrap();
        assert_eq!(typed.inputs, ["x", "y", "z"]);
        assert_eq!(typed.signature, ["x", "y=(1, 2)", "z={}"]);
        assert_eq!(
            module.preamble,
            "import torch\nimport torch.nn as nn\nfrom warpsmith_kernels import kernels\n\nSIZE = 4"
        );
        let unused = source.replace(
            "SIZE = 4",
            "# Sizes\nSIZE = 4\nsize = 8  # more\nbatch = (2, 3)\nheight = width = 64\nrows, columns = 2, 3",
        );
        assert_eq!(Module::read(&unused).unwrap(), module);
        let said = source.replace(
            "        super(Model",
            "        \"\"\"\n        Words.\n\n        Args:\n            size (int): more\n        \"\"\"\n        super(Model",
        );
        assert_eq!(Module::read(&said).unwrap(), module);
        let said = source.replace(
            "        super(Model",
            "        \"\"\"Words.\"\"\"\n        super(Model",
        );
        assert_eq!(Module::read(&said).unwrap(), module);
        assert_eq!(
            module.constructor.as_deref(),
            Some(
                "    def __init__(self, size):\n        super().__init__()\n        self.layer = nn.Linear(size, SIZE)"
            )
        );
    }

    #[test]
    fn what_a_constructor_needs_comes_with_it() {
        let source = "import torch.nn as nn\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layer = self._make(4)\n\n    @staticmethod\n    def _make(size):\n        return Block(size)\n\n    def _unused(self):\n        pass\n\n    def forward(self, x):\n        return self.layer(x)\n\n\nclass Base(nn.Module):\n    pass\n\nclass Other:\n    pass\n\nclass Block(Base):\n    pass\n\ndef get_inputs():\n    return []\n";
        let text = Module::read(source)
            .unwrap()
            .write(&[], &[], &["x".to_owned()], "x");
        let order = [
            "class Base",
            "class Block",
            "class ModelNew",
            "def __init__",
            "@staticmethod",
            "def _make",
            "def forward",
        ];
        let places: Vec<Option<usize>> = order.iter().map(|part| text.find(part)).collect();
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{text}"
        );
        for left_out in ["_unused", "class Other", "get_inputs"] {
            assert!(!text.contains(left_out), "{text}");
        }
    }

    #[test]
    fn a_constructor_finds_the_attributes_of_its_class() {
        let source = "class Model(nn.Module):\n    \"\"\"Words:\n    scale = 3\n    \"\"\"\n    expansion: int = 4\n    sizes = [\n        expansion,\n        8,\n    ]\n    unused = 1\n\n    def __init__(self, scale):\n        super().__init__()\n        self.layer = nn.Linear(self.sizes[0], scale)\n\n    def forward(self, x):\n        return x\n";
        let constructor = Module::read(source).unwrap().constructor.unwrap();
        assert!(
            constructor.starts_with("    expansion: int = 4\n\n    sizes = [\n        expansion,\n        8,\n    ]\n\n    def __init__"),
            "{constructor}"
        );
        assert!(!constructor.contains("unused"), "{constructor}");
        assert!(!constructor.contains("scale = 3"), "{constructor}");
    }

    #[test]
    fn states_are_attributes() {
        assert_eq!(attribute("layers.0.weight"), "self.layers[0].weight");
        assert_eq!(attribute("scale"), "self.scale");
    }
}
