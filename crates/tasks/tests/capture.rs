//! Graphs of real modules, by the Python that judges use.

use std::fmt::Write as _;

use serde_json::{Value, json};
use warpsmith_machine::{Caches, Python, PythonChoice, find_python};
use warpsmith_schema::{Dtype, OpGraph, Task, ValueSource};
use warpsmith_tasks::{CaptureError, CaptureStage, capture, capture_missing};

fn python() -> Python {
    let found = find_python(&PythonChoice::Auto, &Caches::locate().unwrap());
    found.unwrap().unwrap()
}

fn task(source: &str) -> Task {
    Task {
        id: "module".into(),
        name: "module".into(),
        source: source.into(),
        level: None,
        problem_id: None,
        origin: "test".into(),
        graph: None,
    }
}

/// A module whose `forward` is this, with its constructor's lines before it.
fn module(init: &str, forward: &str, inputs: &str) -> Task {
    task(&format!(
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\
         SCALE = 0.5\n\n\
         class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n\n    {forward}\n\n\
         def get_inputs():\n    return {inputs}\n\ndef get_init_inputs():\n    return []\n"
    ))
}

fn captured(task: &Task) -> Result<OpGraph, CaptureError> {
    let folder = tempfile::tempdir().unwrap();
    let caches = Caches {
        root: folder.path().into(),
    };
    capture(task, &python(), &caches)
}

/// Names of the operators, in order.
fn operators(graph: &OpGraph) -> Vec<&str> {
    let sources = graph.values.iter().map(|value| &value.from);
    sources
        .filter_map(|source| match source {
            ValueSource::Applied { op, .. } => Some(op.as_str()),
            _ => None,
        })
        .collect()
}

fn argument<'a>(graph: &'a OpGraph, operator: &str, name: &str) -> &'a Value {
    let found = graph.values.iter().find_map(|value| match &value.from {
        ValueSource::Applied { op, arguments, .. } if op == operator => Some(&arguments[name]),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn modules_functions_and_methods_have_the_same_names() {
    let found = captured(&module(
        "self.fc = nn.Linear(8, 4)",
        "def forward(self, x):\n        return torch.softmax(F.gelu(self.fc(x).relu()) * SCALE, dim=-1)",
        "[torch.rand(3, 8)]",
    ))
    .unwrap();
    assert_eq!(
        operators(&found),
        ["linear", "relu", "gelu", "mul", "softmax"]
    );
    assert_eq!(argument(&found, "gelu", "approximate"), "none");
    assert_eq!(argument(&found, "mul", "other"), &json!(0.5));
    let names = found.values.iter().filter_map(|value| match &value.from {
        ValueSource::State { name } => Some(name.as_str()),
        _ => None,
    });
    assert_eq!(names.collect::<Vec<_>>(), ["fc.weight", "fc.bias"]);
    let line = found.values.last().unwrap().line;
    assert_eq!(line, Some(13));
}

#[test]
fn what_people_write_is_captured() {
    let cases = [
        (
            "A.T @ B",
            "pass",
            "def forward(self, a, b):\n        return a.T @ b",
            "[torch.rand(4, 3), torch.rand(4, 5)]",
        ),
        (
            "einsum",
            "pass",
            "def forward(self, a, b):\n        return torch.einsum('bij,bjk->bik', a, b)",
            "[torch.rand(2, 3, 4), torch.rand(2, 4, 5)]",
        ),
        (
            "exponential units",
            "self.units = nn.Sequential(nn.ELU(0.5), nn.CELU(0.5), nn.SELU())",
            "def forward(self, x):\n        return self.units(F.elu(x))",
            "[torch.randn(64)]",
        ),
        (
            "in place",
            "pass",
            "def forward(self, x):\n        y = x * 2\n        y.add_(1).relu_()\n        return y",
            "[torch.randn(5)]",
        ),
        (
            "views",
            "pass",
            "def forward(self, x):\n        a, b = x.chunk(2, dim=1)\n        return a.permute(1, 0).reshape(-1) + b.t().flatten()",
            "[torch.rand(4, 6)]",
        ),
        (
            "a buffer",
            "self.register_buffer('mask', torch.tril(torch.ones(4, 4)))",
            "def forward(self, x):\n        return x.masked_fill(self.mask == 0, float('-inf')).softmax(-1)",
            "[torch.rand(4, 4)]",
        ),
        (
            "a constant",
            "pass",
            "def forward(self, x):\n        return x * torch.tensor([1.0, 2.0, 3.0])",
            "[torch.rand(2, 3)]",
        ),
        (
            "a number",
            "pass",
            "def forward(self, x, s):\n        return x * s",
            "[torch.rand(4), 3.5]",
        ),
        (
            "several outputs",
            "pass",
            "def forward(self, x):\n        values, places = torch.topk(x, 2)\n        return values, places, x.sum()",
            "[torch.rand(3, 7)]",
        ),
        (
            "control flow of the configuration",
            "self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))",
            "def forward(self, x):\n        for layer in self.layers:\n            x = layer(x) if layer.bias is not None else x\n        return x",
            "[torch.rand(2, 4)]",
        ),
        (
            "a norm",
            "pass",
            "def forward(self, x):\n        return x / torch.norm(x, p='fro') + torch.linalg.vector_norm(x, dim=1, keepdim=True)",
            "[torch.rand(4, 3)]",
        ),
        (
            "an LSTM",
            "self.rnn = nn.LSTM(4, 6, batch_first=True)",
            "def forward(self, x):\n        return self.rnn(x)[0][:, -1]",
            "[torch.rand(2, 5, 4)]",
        ),
        (
            "a state of two layers in both directions",
            "self.rnn = nn.LSTM(4, 6, 2, bidirectional=True)",
            "def forward(self, x):\n        y, (h, c) = self.rnn(x)\n        return h[-1], c[0] + y[0, :, :6]",
            "[torch.rand(5, 2, 4)]",
        ),
        (
            "a GRU",
            "self.rnn = nn.GRU(4, 6, 2, batch_first=True)",
            "def forward(self, x):\n        y, h = self.rnn(x)\n        return y.sum(1) + h[-1]",
            "[torch.rand(2, 5, 4)]",
        ),
        (
            "half precision",
            "self.fc = nn.Linear(8, 8, dtype=torch.bfloat16)",
            "def forward(self, x):\n        return self.fc(x)",
            "[torch.rand(4, 8, dtype=torch.bfloat16)]",
        ),
        (
            "a transposed convolution",
            "self.conv = nn.ConvTranspose2d(3, 5, (3, 2), stride=2, padding=1, output_padding=1)",
            "def forward(self, x):\n        return self.conv(x)",
            "[torch.rand(1, 3, 6, 7)]",
        ),
    ];
    let found = captured(&together(&cases)).unwrap();
    assert!(found.returns.len() > cases.len(), "some have two outputs");
}

/// All cases in one module, as PyTorch takes seconds to start. Each has its own inputs; the results are theirs in order.
fn together(cases: &[(&str, &str, &str, &str)]) -> Task {
    let mut text =
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n".to_owned();
    let (mut modules, mut inputs) = (String::new(), String::new());
    for (number, (name, init, forward, given)) in cases.iter().enumerate() {
        let _ = write!(
            text,
            "# {name}\nclass Case{number}(nn.Module):\n    def __init__(self):\n        super().__init__()\n        \
             {init}\n\n    {forward}\n\n"
        );
        let _ = write!(modules, "Case{number}(), ");
        let _ = write!(inputs, "{given}, ");
    }
    let _ = write!(
        text,
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        \
         self.cases = nn.ModuleList([{modules}])\n        self.counts = [len(given) for given in all_inputs()]\n\n    \
         def forward(self, *given):\n        results, start = [], 0\n        \
         for case, count in zip(self.cases, self.counts):\n            \
         results.append(case(*given[start:start + count]))\n            start += count\n        return results\n\n\
         def all_inputs():\n    return [{inputs}]\n\n\
         def get_inputs():\n    return [one for given in all_inputs() for one in given]\n\n\
         def get_init_inputs():\n    return []\n"
    );
    task(&text)
}

#[test]
fn a_number_among_the_inputs_stays_one() {
    let forward = "def forward(self, x, s):\n        return x * s";
    let found = captured(&module("pass", forward, "[torch.rand(4), 3.5]")).unwrap();
    let sources: Vec<&ValueSource> = found.values.iter().map(|value| &value.from).collect();
    assert_eq!(
        sources[..2],
        [
            &ValueSource::Input { position: 0 },
            &ValueSource::Scalar { position: 1 }
        ]
    );
}

/// Its arithmetic is Python's: in double precision.
#[test]
fn numbers_of_numbers_are_captured() {
    let found = captured(&module(
        "pass",
        "def forward(self, x, s):\n        return x / (s * 2.0)",
        "[torch.rand(3, 8), 3.25]",
    ));
    assert_eq!(operators(&found.unwrap()), ["mul", "div"]);
}

/// Parameters are converted in the constructor, which fake tensors do not allow by themselves.
#[test]
fn modules_of_other_types_are_captured() {
    let found = captured(&module(
        "self.fc = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)); self.to(torch.bfloat16)",
        "def forward(self, x):\n        return torch.softmax(self.fc(x), -1, dtype=torch.float32)",
        "[torch.rand(3, 8, dtype=torch.bfloat16)]",
    ))
    .unwrap();
    assert_eq!(operators(&found), ["linear", "batch_norm", "softmax"]);
    let types = found.values.iter().map(|value| value.dtype);
    // The normalisation counts its batches.
    let floats: Vec<Dtype> = types.filter(|one| *one != Dtype::Int64).collect();
    let (last, before) = floats.split_last().unwrap();
    assert_eq!(*last, Dtype::Float32);
    assert!(
        before.iter().all(|one| *one == Dtype::Bfloat16),
        "{floats:?}"
    );
}

#[test]
fn what_cannot_be_captured_is_said_with_its_line() {
    let refused = |task: &Task| match captured(task) {
        Err(CaptureError::NotCaptured(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let branch = "def forward(self, x):\n        return x if x.sum() > 0 else -x";
    let reason = refused(&module("pass", branch, "[torch.rand(3)]"));
    assert_eq!((reason.stage, reason.line), (CaptureStage::Trace, Some(13)));
    let random = "def forward(self, x):\n        return x + torch.rand(3)";
    let reason = refused(&module("pass", random, "[torch.rand(3)]"));
    assert!(matches!(
        reason.stage,
        CaptureStage::Compare | CaptureStage::Translate
    ));
    let reason = refused(&task("import no_such_module"));
    assert_eq!(reason.stage, CaptureStage::Load);
    assert!(
        reason.message.contains("no_such_module"),
        "{}",
        reason.message
    );
}

/// The second time nothing runs: a Python that does not exist is not asked.
#[test]
fn a_graph_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let caches = Caches {
        root: folder.path().into(),
    };
    let forward = "def forward(self, x):\n        print('noise')\n        return x.exp()";
    let task = module("pass", forward, "[torch.rand(3)]");
    let first = capture(&task, &python(), &caches).unwrap();
    let gone = Python {
        executable: "/no/such/python".into(),
        ..python()
    };
    assert_eq!(capture(&task, &gone, &caches).unwrap(), first);
}

#[test]
fn a_task_that_ends_its_process_costs_itself_alone() {
    let forward = "def forward(self, x):\n        return x.exp()";
    let plain = module("pass", forward, "[torch.rand(3)]");
    let ending = ["os._exit(0)", "os._exit(3)", "os.abort()"];
    let mut tasks = Vec::new();
    for line in ending {
        tasks.push(task(&format!("import os\n{line}\n")));
        tasks.push(task(&format!("{}\n# after {line}\n", plain.source)));
    }
    // It is in nobody's way.
    let mut with_graph = plain.clone();
    with_graph.graph = Some(captured(&plain).unwrap());
    tasks.push(with_graph);
    let folder = tempfile::tempdir().unwrap();
    let caches = Caches {
        root: folder.path().into(),
    };
    let found = capture_missing(&tasks, &python(), &caches);
    let names: Vec<&str> = found
        .iter()
        .map(|found| match found {
            None => "none",
            Some(Ok(graph)) => operators(graph)[0],
            Some(Err(CaptureError::NoAnswer { .. })) => "no answer",
            Some(Err(error)) => panic!("{error}"),
        })
        .collect();
    assert_eq!(
        names,
        [
            "no answer",
            "exp",
            "no answer",
            "exp",
            "no answer",
            "exp",
            "none"
        ]
    );
}

/// On its real shapes, this module's values are too large to compare at all.
#[test]
fn large_shapes_are_compared_on_small_ones() {
    let source = "import torch\nimport torch.nn as nn\n\n\
        class Model(nn.Module):\n    def __init__(self, channels):\n        super().__init__()\n        \
        self.conv = nn.Conv2d(channels, 128, 3, padding=1)\n        self.pool = nn.MaxPool2d(2)\n\n    \
        def forward(self, x):\n        return self.pool(torch.sigmoid(self.conv(x))).mean(dim=(2, 3))\n\n\
        batch_size = 128\nchannels = 64\nheight = width = 256\n\n\
        def get_inputs():\n    return [torch.rand(batch_size, channels, height, width)]\n\n\
        def get_init_inputs():\n    return [channels]\n";
    let found = captured(&task(source)).unwrap();
    assert_eq!(
        operators(&found),
        ["conv2d", "sigmoid", "max_pool2d", "mean"]
    );
    assert!(
        found
            .values
            .iter()
            .any(|value| value.shape == [128, 128, 256, 256])
    );
}

/// With fewer rows the module is another one, which says nothing about this one.
#[test]
fn a_graph_that_small_shapes_do_not_have_is_compared_on_its_own() {
    let forward = |many: &str| {
        format!("def forward(self, x):\n        return {many} if x.shape[0] > 512 else x.exp()")
    };
    let inputs = "[torch.rand(2048, 1024)]";
    let found = captured(&module("pass", &forward("x.relu()"), inputs)).unwrap();
    assert_eq!(operators(&found), ["relu"]);
    let random = module("pass", &forward("x + torch.rand(1024)"), inputs);
    assert!(matches!(
        captured(&random),
        Err(CaptureError::NotCaptured(_))
    ));
}
