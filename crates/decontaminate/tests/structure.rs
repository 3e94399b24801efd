//! Which modules are the same task, and which are not.

use std::time::Instant;

use proptest::prelude::*;
use warpsmith_decontaminate::{
    FingerprintIndex, NEAR_DUPLICATE_THRESHOLD, SimilarityBasis, Structure, validation_split,
};
use warpsmith_tasks::TaskError;

const HEAD: &str = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n";

fn module(setup: &str, forward: &str) -> String {
    let indented = |lines: &str| {
        let lines = lines.lines();
        lines.fold(String::new(), |all, line| all + "        " + line + "\n")
    };
    format!(
        "{HEAD}class Model(nn.Module):\n    def __init__(self, size=4, other=8):\n        super().__init__()\n{}\
         \x20   def forward(self, x):\n{}\
         def get_inputs():\n    return [torch.randn(16, 32)]\ndef get_init_inputs():\n    return [4, 8]\n",
        indented(setup),
        indented(forward)
    )
}

fn chain(operators: &str) -> String {
    module("", &format!("return {operators}"))
}

fn structure(source: &str) -> Structure {
    Structure::of(source).unwrap()
}

fn similarity(left: &str, right: &str) -> f64 {
    structure(left).similarity(&structure(right))
}

/// The same, whichever way round.
fn assert_same(left: &str, right: &str) {
    for (left, right) in [(left, right), (right, left)] {
        let found = similarity(left, right);
        assert!((found - 1.0).abs() < 1e-9, "{found}\n{left}\n{right}");
    }
}

fn assert_different(left: &str, right: &str) {
    for (left, right) in [(left, right), (right, left)] {
        let found = similarity(left, right);
        assert!(
            found <= NEAR_DUPLICATE_THRESHOLD,
            "{found}\n{left}\n{right}"
        );
    }
}

#[test]
fn names_numbers_words_and_layout_do_not_matter() {
    let plain = module(
        "self.conv = nn.Conv2d(size, other, 3)\nself.norm = nn.GroupNorm(4, other)\nself.scale = 2.5",
        "x = self.conv(x)\nx = self.norm(x)\nx = x * self.scale\nreturn torch.tanh(x)",
    );
    let other = format!(
        "'''Something else.'''\n{HEAD}\nchannels = 512 # more\n\nclass Model( nn.Module ):\n  \"\"\"Nothing of the sort.\"\"\"\n\
         \x20 def __init__(\n      self, a, b=9,\n  ):\n    super(Model, self).__init__()\n    '''Words.'''\n\
         \x20   self.factor = -7\n    self.second = nn.GroupNorm(num_groups=2, num_channels=b)\n\
         \x20   self.first = nn.Conv2d(a, b,\n        kernel_size=(5, 5))\n\
         \x20 def forward(self, picture):\n    found = self.second(self.first(picture)) # all at once\n\
         \x20   return torch.tanh(\n        found * self.factor)\n\ndef get_inputs():\n    return [torch.rand(8, 3)]\n"
    );
    assert_same(&plain, &other);
}

#[test]
fn spellings_of_one_operator_are_one() {
    for (left, right) in [
        ("torch.relu(x)", "F.relu(x)"),
        ("torch.relu(x)", "x.relu()"),
        ("torch.relu(x)", "nn.ReLU()(x)"),
        ("torch.relu(x)", "torch.nn.functional.relu(x, inplace=True)"),
        ("torch.relu(x)", "getattr(torch, 'relu')(x)"),
        ("x @ x.T", "torch.matmul(x, x.transpose(0, 1))"),
        ("x * 2 + 1", "torch.add(torch.mul(x, 3), 5)"),
        ("x / 2 - 1", "0.5 * x + 3"),
        ("x * torch.sigmoid(x)", "F.silu(x)"),
        ("torch.tanh(F.softplus(x)) * x", "nn.Mish()(x)"),
        ("x / (1 + torch.abs(x))", "F.softsign(x)"),
        ("x ** 2", "x * x"),
        ("x.pow(2)", "torch.square(x)"),
        (
            "torch.log(torch.sum(torch.exp(x), dim=1))",
            "torch.logsumexp(x, 1)",
        ),
        ("torch.log(F.softmax(x, dim=1))", "F.log_softmax(x, dim=-1)"),
        ("torch.max(x, dim=1)[0]", "torch.amax(x, 1, keepdim=True)"),
        ("torch.max(x, 1).values", "x.max(1)[0]"),
        ("torch.clamp(x, -1, 1)", "x.clip(min=0, max=6)"),
        ("1 / torch.sqrt(x)", "torch.rsqrt(x)"),
        (
            "x.view(-1).exp()",
            "torch.exp(x.reshape(4, 4).contiguous())",
        ),
        ("-x + 1", "x * 3 - 2"),
    ] {
        assert_same(&chain(left), &chain(right));
    }
}

#[test]
fn aliases_are_followed() {
    let plain = chain("F.gelu(F.linear(x, torch.ones(4, 4)))");
    for alias in [
        "G = torch.nn.functional\n",
        "import torch.nn.functional as G\n",
        "from torch.nn import functional as G\n",
        "import torch as t\nG = t.nn.functional\n",
    ] {
        let other = plain
            .replace("F.", "G.")
            .replace("class Model", &format!("{alias}class Model"));
        assert_same(&plain, &other);
    }
    let other = plain.replace("F.gelu(", "bend(").replace(
        "class Model",
        "from torch.nn.functional import gelu as bend\nclass Model",
    );
    assert_same(&plain, &other);
    let inside = module(
        "",
        "G = torch.nn.functional\nbend = G.gelu\nreturn bend(G.linear(x, torch.ones(4, 4)))",
    );
    assert_same(&plain, &inside);
}

#[test]
fn however_it_is_taken_apart() {
    let plain = module(
        "self.first = nn.Linear(size, other)\nself.second = nn.Linear(other, size)",
        "return self.second(torch.relu(self.first(x)))",
    );
    let variants = [
        // In sequence
        module(
            "self.all = nn.Sequential(nn.Linear(size, other), nn.ReLU(), nn.Linear(other, size))",
            "return self.all(x)",
        ),
        // From a list
        module(
            "layers = []\nlayers.append(nn.Linear(size, other))\nlayers += [nn.ReLU(inplace=True)]\nlayers.append(nn.Linear(other, size))\n\
             self.all = nn.Sequential(*layers)",
            "return self.all(x)",
        ),
        // By name, in an order that is not the alphabet's
        module(
            "from collections import OrderedDict\nself.all = nn.Sequential(OrderedDict([('z', nn.Linear(1, 2)), ('m', nn.ReLU()), ('a', nn.Linear(2, 1))]))",
            "return self.all(x)",
        ),
        // In a loop
        module(
            "self.all = nn.ModuleList([nn.Linear(size, other), nn.ReLU(), nn.Linear(other, size)])",
            "for layer in self.all:\n    x = layer(x)\nreturn x",
        ),
        // Through a function of its own, with something thrown away
        module(
            "self.first = nn.Linear(size, other)\nself.second = nn.Linear(other, size)\nself.unused = nn.Conv2d(1, 2, 3)",
            "bend = lambda value: F.relu(value)\ny = self.first(x)\nz = torch.exp(y)\ny = bend(y)\nreturn self.second(y)",
        ),
        // In place
        module(
            "self.first = nn.Linear(size, other)\nself.second = nn.Linear(other, size)",
            "y = self.first(x)\ny.relu_()\nreturn self.second(y)",
        ),
        // With weights of its own
        module(
            "self.w1 = nn.Parameter(torch.randn(4, 4))\nself.w2 = nn.Parameter(torch.randn(4, 4))",
            "return F.linear(F.linear(x, self.w1).relu(), self.w2, None)",
        ),
        // Only under a condition
        module(
            "self.first = nn.Linear(size, other)\nif size > 3:\n    self.act = nn.ReLU()\nelse:\n    self.act = None\nself.second = nn.Linear(other, size)",
            "x = self.first(x)\nif self.act is not None:\n    x = self.act(x)\nreturn self.second(x)",
        ),
    ];
    for variant in &variants {
        assert_same(&plain, variant);
    }
    // In a class of its own
    let block = format!(
        "{HEAD}class Part(nn.Module):\n    def __init__(self, a, b):\n        super().__init__()\n        self.inner = nn.Linear(a, b)\n    \
         def forward(self, value):\n        return self.inner(value)\nclass Base(nn.Module):\n    def forward(self, x):\n        \
         return self.part_b(torch.relu(self.part_a(x)))\nclass Model(Base):\n    def __init__(self):\n        super().__init__()\n        \
         self.part_a = Part(1, 2)\n        self.part_b = Part(2, 1)\n"
    );
    assert_same(&plain, &block);
}

#[test]
fn other_operators_are_another_task() {
    for (left, right) in [
        ("torch.relu(x)", "torch.tanh(x)"),
        ("torch.relu(torch.tanh(x))", "torch.tanh(torch.relu(x))"),
        ("torch.relu(x)", "torch.exp(torch.relu(x))"),
        ("F.max_pool1d(x, 2)", "F.max_pool2d(x, 2)"),
        ("torch.sum(x, 1)", "torch.mean(x, 1)"),
        ("x * 2", "x * x"),
        ("x + torch.relu(x)", "torch.relu(x)"),
        (
            "torch.cumsum(x, 1)",
            "torch.flip(torch.cumsum(torch.flip(x, [1]), 1), [1])",
        ),
    ] {
        assert_different(&chain(left), &chain(right));
    }
    let conv = |rest: &str| {
        module(
            "self.conv = nn.Conv2d(3, 8, 3)",
            &format!("x = self.conv(x)\n{rest}"),
        )
    };
    assert_different(
        &conv("x = torch.relu(x)\nreturn x + 1"),
        &conv("x = torch.relu(x)\nreturn torch.clamp(x, 0, 1)"),
    );
    assert_different(
        &conv("return F.gelu(torch.relu(x))"),
        &conv("return F.gelu(torch.relu(torch.tanh(x)))"),
    );
}

#[test]
fn more_in_common_is_more_similar() {
    let chain = |operators: &[&str]| {
        let lines: Vec<String> = operators
            .iter()
            .map(|operator| format!("x = torch.{operator}(x)"))
            .collect();
        module("", &format!("{}\nreturn x", lines.join("\n")))
    };
    let long = chain(&["exp", "tanh", "relu", "abs", "sin", "cos"]);
    let last = chain(&["exp", "tanh", "relu", "abs", "sin", "erf"]);
    let half = chain(&["exp", "tanh", "relu", "sqrt", "log", "erf"]);
    let none = chain(&["sigmoid", "floor", "ceil", "sqrt", "log", "erf"]);
    let found: Vec<f64> = [&long, &last, &half, &none]
        .map(|other| similarity(&long, other))
        .to_vec();
    assert!(found.is_sorted_by(|left, right| left > right), "{found:?}");
    assert!(
        found[3] < 0.1 && found[1] < NEAR_DUPLICATE_THRESHOLD,
        "{found:?}"
    );
}

#[test]
fn one_operator_on_inputs_of_the_same_dimensions_is_the_same_task_whatever_is_around_it() {
    let bare = chain("torch.softmax(x, dim=1)");
    let dressed = chain("torch.softmax(x.T, dim=0).T[:, :8]");
    let (similarity, why) = structure(&bare).compare(&structure(&dressed));
    assert_eq!((similarity, why), (1.0, SimilarityBasis::Operator));
    // With more dimensions the movements around it count.
    let higher = dressed.replace("randn(16, 32)", "randn(2, 16, 32)");
    assert_different(&bare, &higher);
    // Sizes alone make no other task, nor does the number of dimensions.
    assert_same(&bare, &bare.replace("randn(16, 32)", "randn(2, 16, 64)"));
    // What the text does not tell is taken for the same.
    assert_same(&bare, &dressed.replace("torch.randn(16, 32)", "make()"));
}

#[test]
fn without_a_model_there_is_no_structure() {
    for source in [
        "",
        "x = 1",
        "class Model:\n    pass\n",
        "class Modell(nn.Module):\n    def forward(self, x):\n        return x\n",
    ] {
        let error = Structure::of(source).unwrap_err();
        assert!(matches!(error, TaskError::NoForward), "{error}");
        assert!(error.hint().is_some());
    }
    assert_eq!(structure(&chain("x")).operators(), 0);
    assert_same(&chain("x"), &chain("x.view(-1)"));
    assert_different(&chain("x"), &chain("torch.exp(x)"));
}

/// What would take for ever, or all memory, or the stack, if it were followed to its end.
#[test]
fn hostile_modules_end_soon() {
    let deep =
        |open: &str, close: &str| format!("{}x{}", open.repeat(50_000), close.repeat(50_000));
    for forward in [
        format!("return {}", deep("(", ")")),
        format!("return {}", deep("torch.relu(", ")")),
        format!("return {}", deep("[", "]")),
        format!("return {}", deep("-", "")),
        format!("return {}x", "x + ".repeat(50_000)),
        format!("return x{}", ".relu()".repeat(50_000)),
        format!("return {}x", "x ** ".repeat(50_000)),
        format!("return {}x", "lambda x: ".repeat(50_000)),
        format!("return {}x{}", "x if x else ".repeat(50_000), ""),
        "return self.forward(x)".to_owned(),
        "s = nn.Sequential()\ns.append(s)\nreturn s(x)".to_owned(),
        "f = lambda y: f(f(y))\nreturn f(x)".to_owned(),
        "return self.forward(x) + self.forward(x)".to_owned(),
        "y = [x]\nfor _ in y:\n    y = y + y\n    y.append(y)\nreturn y".to_owned(),
        format!("y = [x]\n{}return torch.cat(y)", "y = y + y\n".repeat(64)),
        format!("y = [x, x]\n{}return y", "y = [y, y]\n".repeat(64)),
        format!(
            "{}return x",
            "y = [y for y in [y for y in x]]\n".repeat(200)
        ),
    ] {
        let started = Instant::now();
        structure(&module("", &forward));
        let spent = started.elapsed();
        assert!(
            spent.as_secs() < 20,
            "{spent:?} for {}",
            &forward[..forward.len().min(60)]
        );
    }
    let mut nested = String::new();
    for depth in 0..3000 {
        nested.push_str(&" ".repeat(depth));
        nested.push_str("if x:\n");
    }
    let _ = Structure::of(&nested);
    let _ = Structure::of(&format!("if x:\n  y\n{}", "elif x:\n  y\n".repeat(20_000)));
}

#[test]
fn a_benchmark_is_written_and_read_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("benchmark.jsonl");
    let mut benchmark = FingerprintIndex::default();
    benchmark.insert("one".into(), structure(&chain("torch.relu(x)")));
    benchmark.insert(
        "two".into(),
        structure(&chain("torch.relu(torch.relu(torch.relu(torch.relu(x))))")),
    );
    benchmark.insert("none".into(), structure(&chain("x")));
    benchmark.write(&path).unwrap();
    let text = fs_err::read_to_string(&path).unwrap();
    assert!(!text.contains("relu"), "{text}");
    let read = FingerprintIndex::read(&path).unwrap();
    assert_eq!(read.ids().collect::<Vec<_>>(), ["one", "two", "none"]);
    for operators in ["torch.relu(x)", "torch.tanh(torch.relu(x))", "x"] {
        let structure = structure(&chain(operators));
        assert_eq!(read.nearest(&structure), benchmark.nearest(&structure));
        assert_eq!(
            read.near_duplicate(&structure),
            benchmark.near_duplicate(&structure)
        );
    }
    for (broken, expected) in [
        ("", ":1: not a fingerprint"),
        ("{\"format\":99}\n", "format 99, expected 1"),
        (
            "{\"format\":1}\n{}\n",
            ":2: not a fingerprint: missing field",
        ),
        (
            "{\"format\":1}\n{\"id\":\"a\",\"parts\":\"xyz\",\"operators\":1}\n",
            "`xyz` is no hash",
        ),
        (
            "{\"format\":1}\n{\"id\":\"a\",\"parts\":\"00000002 00000001\",\"operators\":1}\n",
            "out of order",
        ),
        (
            "{\"format\":1}\n{\"id\":\"a\",\"parts\":\"00000002*x\",\"operators\":1}\n",
            "has no count",
        ),
    ] {
        fs_err::write(&path, broken).unwrap();
        let error = FingerprintIndex::read(&path).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.hint().unwrap().contains("fingerprints"));
    }
}

#[test]
fn kernelbench_comes_with_the_crate() {
    let benchmark = FingerprintIndex::kernelbench().unwrap();
    let count = |level: &str| benchmark.ids().filter(|id| id.starts_with(level)).count();
    assert_eq!(
        (
            count("level1/"),
            count("level2/"),
            count("level3/"),
            benchmark.len()
        ),
        (100, 100, 41, 241)
    );
    // Operators that everybody knows to be in its first level.
    for operators in [
        "torch.relu(x)",
        "F.gelu(x)",
        "torch.softmax(x, 1)",
        "torch.cumsum(x, 1)",
        "nn.LayerNorm(4)(x)",
    ] {
        let found = benchmark.near_duplicate(&structure(&chain(operators)));
        assert!(
            found.is_some_and(|found| found.id.starts_with("level1/")),
            "{operators}"
        );
    }
    // And a composition that nobody would put there.
    let odd = chain("torch.erf(torch.fft.fft(torch.lgamma(x)).abs())");
    assert_eq!(benchmark.near_duplicate(&structure(&odd)), None);
    let nearest = benchmark.nearest(&structure(&odd)).unwrap();
    assert!(
        !nearest.is_near_duplicate() && nearest.similarity < 0.5,
        "{nearest:?}"
    );
}

const OPERATORS: [&str; 24] = [
    "exp", "tanh", "relu", "abs", "sin", "cos", "sqrt", "log", "erf", "sigmoid", "floor", "ceil",
    "neg", "sinh", "cosh", "atan", "log1p", "expm1", "sign", "round", "trunc", "frac", "rsqrt",
    "square",
];

fn composed(choices: &[usize]) -> String {
    let mut lines = String::new();
    for choice in choices {
        lines.push_str("x = torch.");
        lines.push_str(OPERATORS[choice % OPERATORS.len()]);
        lines.push_str("(x)\n");
    }
    module("", &format!("{lines}return x"))
}

/// The index never leaves out a near-duplicate or a task of the same family.
#[test]
fn the_index_finds_what_comparing_with_all_finds() {
    let sources: Vec<String> = (0..400_usize)
        .map(|seed| {
            let digits: Vec<usize> = (0..=seed % 6)
                .map(|position| (seed * 7 + position * position) % 5)
                .collect();
            composed(&digits)
        })
        .collect();
    let mut benchmark = FingerprintIndex::default();
    for (place, source) in sources.iter().enumerate() {
        let structure = structure(source);
        let nearest = benchmark
            .nearest(&structure)
            .filter(warpsmith_decontaminate::SimilarTask::is_near_duplicate);
        assert_eq!(benchmark.near_duplicate(&structure), nearest);
        benchmark.insert(place.to_string(), structure);
    }
}

#[test]
fn no_family_is_split() {
    let mut tasks: Vec<(String, Structure)> = (0..300_usize)
        .map(|seed| {
            let source = composed(&[seed % 24, seed / 24, seed % 5, seed % 7]);
            (format!("task{seed:03}"), structure(&source))
        })
        .collect();
    let chosen = validation_split(&tasks, 0.2, 7);
    assert!((40..=60).contains(&chosen.len()), "{}", chosen.len());
    for (id, left) in &tasks {
        for (other, right) in &tasks {
            if left.similarity(right) > warpsmith_decontaminate::FAMILY_THRESHOLD {
                assert_eq!(chosen.contains(id), chosen.contains(other), "{id} {other}");
            }
        }
    }
    assert_ne!(chosen, validation_split(&tasks, 0.2, 8));
    tasks.reverse();
    assert_eq!(chosen, validation_split(&tasks, 0.2, 7));
    assert!(validation_split(&tasks, 0.0, 7).is_empty());
    assert_eq!(validation_split(&tasks, 1.0, 7).len(), tasks.len());
    assert!(validation_split(&[], 0.5, 7).is_empty());
}

/// Each candidate is compared with the benchmark and with all candidates kept before it.
#[test]
fn ten_thousand_candidates_take_seconds() {
    let benchmark = FingerprintIndex::kernelbench().unwrap();
    let sources: Vec<String> = (0..10_000_usize)
        .map(|seed| {
            let hash = seed.wrapping_mul(2_654_435_761);
            let choices: Vec<usize> = (0..=seed % 5)
                .map(|position| hash >> (5 * position + 3))
                .collect();
            composed(&choices)
        })
        .collect();
    let started = Instant::now();
    let structures: Vec<Structure> = sources.iter().map(|source| structure(source)).collect();
    let read = started.elapsed();
    let compared = Instant::now();
    let far: Vec<&Structure> = structures
        .iter()
        .filter(|structure| !benchmark.nearest(structure).unwrap().is_near_duplicate())
        .collect();
    let compared = compared.elapsed();
    let inside = Instant::now();
    let mut kept = FingerprintIndex::default();
    for (place, structure) in far.iter().enumerate() {
        if kept.near_duplicate(structure).is_none() {
            kept.insert(place.to_string(), (*structure).clone());
        }
    }
    let inside = inside.elapsed();
    let all = started.elapsed();
    eprintln!(
        "10000 candidates: read {read:?}, against {} of the benchmark {compared:?}, against each other {inside:?}; {} far, {} kept",
        benchmark.len(),
        far.len(),
        kept.len()
    );
    assert!(kept.len() > 1000 && kept.len() < far.len());
    assert!(
        all.as_secs() < if cfg!(debug_assertions) { 300 } else { 60 },
        "{all:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_text_is_read(text in any::<String>()) {
        let _ = Structure::of(&text);
    }

    /// Pieces of Python in any order, which goes deeper than noise.
    #[test]
    fn any_pieces_are_read(pieces in proptest::collection::vec(proptest::sample::select(vec![
        "class Model(nn.Module):\n", "    def forward(self, x):\n", "    def __init__(self):\n", "        ", "    ", "\n",
        "return ", "x", "self", ".", "(", ")", "[", "]", "{", "}", ",", ":", "=", "+=", "+", "-", "*", "**", "@", "if ",
        "else", "elif ", "for ", "in ", "lambda ", "'", "\"\"\"", "\\\n", "#", "import ", "from ", "as ", "torch.relu", "super()",
        "nn.Sequential", "0", "1e-5", "not ", "and ", "while ", "with ", "try:\n", "except:\n", "yield ", "await ", "async ",
        ":=", "->", "...", "@staticmethod\n", "\t", "del ", "y", "append", "é", "\u{0}",
    ]), 0..120)) {
        let text = pieces.concat();
        let _ = Structure::of(&text);
        let inside = format!("class Model:\n    def forward(self, x):\n        {}\n", text.replace('\n', "\n        "));
        // Unless the pieces hold another `Model`, perhaps one without a `forward`.
        prop_assert!(text.contains("class Model") || Structure::of(&inside).is_ok());
    }

    #[test]
    fn similarity_is_symmetric_and_bounded(left in proptest::collection::vec(0..8_usize, 0..7), right in proptest::collection::vec(0..8_usize, 0..7)) {
        let (left, right) = (structure(&composed(&left)), structure(&composed(&right)));
        let found = left.similarity(&right);
        prop_assert!((0.0..=1.0).contains(&found));
        prop_assert_eq!(found.to_bits(), right.similarity(&left).to_bits());
        prop_assert_eq!(left.similarity(&left).to_bits(), 1.0_f64.to_bits());
    }
}

/// A demonstration may show an operator alone, but not in the benchmark's sizes, and no chain of the benchmark.
#[test]
fn a_lone_operator_may_be_taught_in_other_sizes() {
    let mut known = FingerprintIndex::default();
    let lone = module("", "return torch.tanh(x)");
    known.insert("lone".into(), structure(&lone));
    let chain = module("", "return torch.relu(torch.tanh(x).sum(1))");
    known.insert("chain".into(), structure(&chain));
    let taught = |source: &str| {
        known
            .near_duplicate_or_same_sizes(&structure(source))
            .is_none()
    };
    let larger = |source: &str| source.replace("16, 32", "100, 3000");
    assert!(!taught(&lone) && taught(&larger(&lone)));
    assert!(!taught(&chain) && !taught(&larger(&chain)));
    // Sets keep both out.
    assert!(known.near_duplicate(&structure(&larger(&lone))).is_some());
}
