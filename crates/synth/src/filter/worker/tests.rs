//! Tasks that die, and tasks of a composer that is not ours, with the real Python and the real sandbox.

use warpsmith_machine::{Caches, PythonChoice, find_python};
use warpsmith_sandbox::Isolation;

use super::*;

fn python() -> Python {
    let caches = Caches::locate().unwrap();
    let found = find_python(&PythonChoice::Auto, &caches).unwrap();
    found.expect("this test needs a Python with torch")
}

const HONEST: &str = "import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 32)

    def forward(self, x):
        return F.gelu(self.linear(x)).mean(dim=-1)


def get_inputs():
    return [torch.randn(64, 16)]


def get_init_inputs():
    return [16]
";

/// Each reaches for something that is no part of a task.
const HOSTILE: [&str; 9] = [
    "import os\n",
    "from torch import hub\n",
    "x = __import__('os')\n",
    "x = torch.load('a')\n",
    "x = torch.ops.aten.relu\n",
    "x = ().__class__.__bases__\n",
    "x = open('/etc/passwd').read()\n",
    "F.relu = None\n",
    "@print\ndef f():\n    return 1\n",
];

#[test]
fn what_somebody_else_wrote_runs_in_the_sandbox_if_nothing_in_it_is_objected_to() {
    let seeds = SeedCatalogue::torch().unwrap();
    let workshop = FilterEnvironment::new(python(), Target::Cpu, 0, &seeds).unwrap();
    let mut worker = FilterWorker::new(&workshop, Containment::Sandboxed, Isolation::Strict, 0);
    assert_eq!(worker.screen(HONEST, None).unwrap().map(drop), Ok(()));
    assert!(worker.process.is_none(), "a task ran in it");
    for hostile in HOSTILE {
        let code = format!("{HONEST}\n{hostile}");
        let dropped = worker.screen(&code, None).unwrap().unwrap_err();
        assert_eq!(dropped.reason, "not_allowed", "{hostile}: {dropped:?}");
        assert!(worker.process.is_some(), "nothing of it ran: {hostile}");
    }
}

#[test]
fn a_task_that_dies_is_dropped_and_the_next_one_runs() {
    let seeds = SeedCatalogue::torch().unwrap();
    let workshop = FilterEnvironment::new(python(), Target::Cpu, 0, &seeds).unwrap();
    let mut worker = FilterWorker::new(&workshop, Containment::None, Isolation::Strict, 0);
    let dying = HONEST.replace(
        "return F.gelu",
        "import os; os._exit(3)\n        return F.gelu",
    );
    let dropped = worker.screen(&dying, None).unwrap().unwrap_err();
    assert_eq!(dropped.reason, "crashed");
    let random = HONEST.replace("F.gelu(", "F.dropout(");
    assert_eq!(
        worker.screen(&random, None).unwrap().unwrap_err().reason,
        "not_deterministic"
    );
    let constant = HONEST.replace(".mean(dim=-1)", ".mul(0.0)");
    assert_eq!(
        worker.screen(&constant, None).unwrap().unwrap_err().reason,
        "constant"
    );
    assert_eq!(worker.screen(HONEST, None).unwrap().map(drop), Ok(()));
}
