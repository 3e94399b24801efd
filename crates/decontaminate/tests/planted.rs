//! A benchmark's tasks do not get into a set in disguise.
//!
//! Our own examples play the benchmark. Where `WARPSMITH_KERNELBENCH` names a checkout or a JSONL file of `KernelBench`, the
//! same is done with that, and the shipped fingerprints must recognise each of its tasks too.
#![allow(clippy::print_stderr, reason = "what was found is worth reading")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use warpsmith_decontaminate::{FingerprintIndex, NEAR_DUPLICATE_THRESHOLD, Structure};
use warpsmith_schema::Task;
use warpsmith_tasks::{load, load_all};

/// A piece of a Python text.
#[derive(Clone, PartialEq)]
enum Piece {
    Word(String),
    Number(String),
    /// With its quotes.
    Text(String),
    Comment(String),
    Other(char),
}

fn pieces(source: &str) -> Vec<Piece> {
    let letters: Vec<char> = source.chars().collect();
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < letters.len() {
        let start = at;
        let take_while = |at: &mut usize, wanted: &dyn Fn(char) -> bool| {
            while *at < letters.len() && wanted(letters[*at]) {
                *at += 1;
            }
            letters[start..*at].iter().collect::<String>()
        };
        match letters[at] {
            '#' => pieces.push(Piece::Comment(take_while(&mut at, &|letter| {
                letter != '\n'
            }))),
            quote @ ('"' | '\'') => {
                let triple = letters[at..].starts_with(&[quote; 3]);
                let width = if triple { 3 } else { 1 };
                at += width;
                while at < letters.len() && !letters[at..].starts_with(&[quote; 3][..width]) {
                    at += if letters[at] == '\\' { 2 } else { 1 };
                }
                at = (at + width).min(letters.len());
                pieces.push(Piece::Text(letters[start..at].iter().collect()));
            }
            letter if letter.is_ascii_digit() => {
                let number = take_while(&mut at, &|letter| {
                    letter.is_ascii_alphanumeric() || letter == '.'
                });
                pieces.push(Piece::Number(number));
            }
            letter if letter == '_' || letter.is_alphabetic() => {
                let word = take_while(&mut at, &|letter| letter == '_' || letter.is_alphanumeric());
                pieces.push(Piece::Word(word));
            }
            letter => {
                at += 1;
                pieces.push(Piece::Other(letter));
            }
        }
    }
    pieces
}

fn text(pieces: &[Piece]) -> String {
    pieces
        .iter()
        .map(|piece| match piece {
            Piece::Word(text) | Piece::Number(text) | Piece::Text(text) | Piece::Comment(text) => {
                text.clone()
            }
            Piece::Other(letter) => letter.to_string(),
        })
        .collect()
}

/// Every name the module gives itself, another one: variables, attributes, parameters, functions and classes.
fn renamed(source: &str) -> String {
    let pieces = pieces(source);
    // What stands beside a piece, blanks aside.
    let beside = |from: usize, step: isize| {
        let mut at = from as isize + step;
        while let Some(Piece::Other(' ')) = usize::try_from(at).ok().and_then(|at| pieces.get(at)) {
            at += step;
        }
        usize::try_from(at)
            .ok()
            .and_then(|at| pieces.get(at))
            .cloned()
    };
    let is = |piece: Option<Piece>, letter: char| piece == Some(Piece::Other(letter));
    let follows_word = |at: usize, word: &str| beside(at, -1) == Some(Piece::Word(word.into()));
    let equals = |at: usize| {
        let text = text(&pieces[at + 1..(at + 4).min(pieces.len())]);
        let text = text.trim_start();
        text.starts_with('=') && !text.starts_with("==")
    };
    let mut depth = 0;
    let mut names = BTreeSet::new();
    let mut in_definition = false;
    for (at, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Other('(' | '[' | '{') => depth += 1,
            Piece::Other(')' | ']' | '}') => {
                depth -= 1;
                in_definition &= depth > 0;
            }
            Piece::Word(word) if word == "def" => in_definition = true,
            Piece::Word(word) => {
                let defined = follows_word(at, "def") || follows_word(at, "class");
                let assigned = depth == 0 && equals(at);
                let parameter = in_definition
                    && depth == 1
                    && (is(beside(at, -1), '(') || is(beside(at, -1), ','));
                let unpacked = depth == 0 && is(beside(at, 1), ',') && !follows_word(at, "import");
                let of_self = pieces.get(at.wrapping_sub(2)) == Some(&Piece::Word("self".into()));
                let looped = follows_word(at, "for");
                if defined || assigned || parameter || unpacked || of_self || looped {
                    names.insert(word.clone());
                }
            }
            _ => {}
        }
    }
    for kept in [
        "self",
        "Model",
        "forward",
        "get_inputs",
        "get_init_inputs",
        "torch",
        "nn",
        "F",
        "None",
        "True",
        "False",
        "register_buffer",
        "register_parameter",
        "add_module",
        "apply",
        "training",
        "parameters",
        "modules",
        "x_",
        "int",
        "float",
        "range",
        "len",
    ] {
        names.remove(kept);
    }
    names.retain(|name| !name.starts_with("__"));
    let names: BTreeMap<String, String> = names
        .into_iter()
        .enumerate()
        .map(|(place, name)| (name, format!("renamed_{place}")))
        .collect();
    let mut depth = 0;
    let mut in_definition = false;
    let mut changed = pieces.clone();
    for (at, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Other('(' | '[' | '{') => depth += 1,
            Piece::Other(')' | ']' | '}') => {
                depth -= 1;
                in_definition &= depth > 0;
            }
            Piece::Word(word) if word == "def" => in_definition = true,
            Piece::Word(word) => {
                let after_dot = pieces.get(at.wrapping_sub(1)) == Some(&Piece::Other('.'));
                let of_self = after_dot
                    && pieces.get(at.wrapping_sub(2)) == Some(&Piece::Word("self".into()));
                // `nn.Linear(bias=False)`: somebody else's name.
                let keyword = depth > 0 && equals(at) && !in_definition;
                if let Some(name) = names.get(word)
                    && (!after_dot || of_self)
                    && !keyword
                {
                    changed[at] = Piece::Word(name.clone());
                }
            }
            // `register_buffer("mask", …)` names an attribute.
            Piece::Text(text) => {
                if let Some(name) = names.get(text.trim_matches(['"', '\''])) {
                    changed[at] = Piece::Text(format!("'{name}'"));
                }
            }
            _ => {}
        }
    }
    text(&changed)
}

/// Every number another one.
fn other_constants(source: &str) -> String {
    let mut pieces = pieces(source);
    for piece in &mut pieces {
        if let Piece::Number(number) = piece {
            *number = match number.parse::<u64>() {
                Ok(whole) => (whole * 3 + 2).to_string(),
                Err(_) => "0.37".to_owned(),
            };
        }
    }
    text(&pieces)
}

/// Indented by eleven, with comments and blank lines between, and blanks around brackets.
fn reformatted(source: &str) -> String {
    let mut pieces = pieces(source);
    for piece in &mut pieces {
        // The lines of a string are not the module's.
        if let Piece::Text(text) = piece
            && text.contains('\n')
        {
            *piece = Piece::Text("'words'".to_owned());
        }
    }
    let mut lines = String::new();
    for line in text(&pieces).lines() {
        let indent = line.len() - line.trim_start().len();
        let padded = line
            .trim()
            .replace('(', "( ")
            .replace(',', " ,")
            .replace(" = ", "  =  ");
        lines.push_str(&" ".repeat(indent / 4 * 11 + indent % 4));
        lines.push_str(&padded);
        lines.push_str(if padded.is_empty() || padded.ends_with('\\') {
            "\n"
        } else {
            "   # as it was\n\n"
        });
    }
    lines
}

/// Other words wherever there are any.
fn other_words(source: &str) -> String {
    let mut pieces = pieces(source);
    for piece in &mut pieces {
        match piece {
            Piece::Text(text) if text.len() >= 6 && text.starts_with("\"\"\"") => {
                *piece = Piece::Text("\"\"\"\n    import nothing\n    class Model: speaks of something else.\n    \"\"\"".to_owned());
            }
            Piece::Comment(_) => *piece = Piece::Comment("# x = torch.exp(x)".to_owned()),
            _ => {}
        }
    }
    text(&pieces)
}

/// Modules as functions, functions as modules, and everything by other names.
fn respelled(source: &str) -> String {
    let mut found = source.to_owned();
    for (from, to) in [
        ("torch.nn.functional.", "F."),
        ("F.relu(", "nn.ReLU()("),
        ("torch.relu(", "nn.ReLU()("),
        ("torch.sigmoid(", "nn.Sigmoid()("),
        ("torch.tanh(", "nn.Tanh()("),
        ("F.gelu(", "nn.GELU()("),
        ("F.mish(", "nn.Mish()("),
        ("F.hardswish(", "nn.Hardswish()("),
        ("nn.ReLU(inplace=True)", "F.relu"),
        ("nn.GELU(),", "F.gelu,"),
        ("nn.Tanh(),", "torch.tanh,"),
        ("torch.clamp(", "torch.clip("),
        ("torch.matmul(", "torch.mm("),
        ("torch.bmm(", "torch.matmul("),
        ("torch.softmax(", "F.softmax("),
        ("torch.cat(", "torch.concat("),
        ("torch.min(x, dim=", "torch.amin(x, dim="),
        ("import torch.nn as nn\n", "import torch.nn as modules\n"),
        ("nn.", "modules."),
        ("torch.modules.", "torch.nn."),
        ("F.", "functions."),
    ] {
        found = found.replace(from, to);
    }
    format!("import torch\nfunctions = torch.nn.functional\n{found}")
}

type Disguise = (&'static str, fn(&str) -> String);

const DISGUISES: [Disguise; 6] = [
    ("renamed", renamed),
    ("other constants", other_constants),
    ("reformatted", reformatted),
    ("other words", other_words),
    ("respelled", respelled),
    ("all at once", |source| {
        reformatted(&other_constants(&renamed(&other_words(&respelled(source)))))
    }),
];

/// How many of the tasks are caught in each disguise, and which are not.
fn planted(tasks: &[Task], benchmark: &FingerprintIndex) -> Vec<String> {
    let mut survivors = Vec::new();
    for (name, disguise) in DISGUISES {
        let mut caught = 0;
        for task in tasks {
            let planted = disguise(&task.source);
            assert_ne!(planted, task.source);
            match Structure::of(&planted).map(|structure| benchmark.nearest(&structure)) {
                Ok(Some(near)) if near.is_near_duplicate() => caught += 1,
                other => survivors.push(format!("{} {name}: {other:?}\n{planted}", task.id)),
            }
        }
        eprintln!("{name}: {caught} of {} caught", tasks.len());
    }
    survivors
}

#[test]
fn no_task_of_a_benchmark_survives_in_disguise() {
    let examples = examples();
    assert!(examples.len() > 8, "{}", examples.len());
    let mut survivors = planted(&examples, &FingerprintIndex::of(&examples).unwrap());
    if let Some(path) = std::env::var_os("WARPSMITH_KERNELBENCH") {
        let tasks = load_all(Path::new(&path)).unwrap();
        survivors.extend(planted(&tasks, &FingerprintIndex::of(&tasks).unwrap()));
        survivors.extend(planted_in_kernelbench(&tasks));
        distribution(&tasks);
    }
    assert!(
        survivors.is_empty(),
        "{} survive:\n{}",
        survivors.len(),
        survivors.join("\n")
    );
}

fn examples() -> Vec<Task> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let entries = fs_err::read_dir(&folder).unwrap();
    let folders = entries.map(|entry| entry.unwrap().path());
    folders
        .filter(|path| path.join("model.py").exists())
        .map(|path| load(&path.display().to_string()).unwrap())
        .collect()
}

/// By the fingerprints that everybody has.
fn planted_in_kernelbench(tasks: &[Task]) -> Vec<String> {
    let shipped = FingerprintIndex::kernelbench().unwrap();
    let ids: BTreeSet<&str> = shipped.ids().collect();
    let covered: Vec<Task> = tasks
        .iter()
        .filter(|task| ids.contains(task.id.as_str()))
        .cloned()
        .collect();
    eprintln!(
        "of {} tasks {} have a fingerprint",
        tasks.len(),
        covered.len()
    );
    // Those made by other rules than these would still catch most.
    for task in &covered {
        let nearest = shipped.nearest(&Structure::of(&task.source).unwrap());
        let similarity = nearest.map(|nearest| nearest.similarity);
        assert_eq!(similarity, Some(1.0), "{} must be made anew", task.id);
    }
    planted(&covered, &shipped)
}

/// How similar different tasks of a benchmark are: what would be dropped although it is another task.
fn distribution(tasks: &[Task]) {
    let structures: Vec<Structure> = tasks
        .iter()
        .map(|task| Structure::of(&task.source).unwrap())
        .collect();
    let mut histogram = [0; 11];
    let mut near_duplicates = Vec::new();
    for (place, left) in structures.iter().enumerate() {
        let others = structures
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != place);
        let (other, highest) = others
            .map(|(other, right)| (other, left.similarity(right)))
            .reduce(|best, next| if next.1 > best.1 { next } else { best })
            .unwrap();
        histogram[(highest * 10.0) as usize] += 1;
        if highest > NEAR_DUPLICATE_THRESHOLD {
            near_duplicates.push(format!(
                "{} ~ {} {highest:.3}",
                tasks[place].name, tasks[other].name
            ));
        }
    }
    eprintln!("nearest other task, by tenths from 0.0 to 1.0: {histogram:?}");
    eprintln!("{}", near_duplicates.join("\n"));
}
