"""Makes the episodes in `runs/`: `optimize` by the real binary, with policies that follow a script, on the CPU.

    python make_runs.py path/to/warpsmith

Tasks are examples of this repository, numbered like a benchmark's. Conversations, paths and the device's name are taken out:
the first are long, the others differ from machine to machine.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"

# Level, number, KernelBench's kind of name, example.
TASKS = [
    (1, 1, "1_Softmax", "softmax"),
    (1, 2, "2_LayerNorm", "layernorm"),
    (2, 3, "3_Matmul_Epilogue", "matmul_epilogue"),
    (3, 4, "4_MLP", "pointwise_chain"),
]


def sources(example: str) -> dict[str, str]:
    folder = EXAMPLES / example
    files = [folder / "model_new.py", *sorted((folder / "kernels").iterdir())]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def reply(files: dict[str, str]) -> str:
    blocks = [f"write {name}\n```{'python' if name.endswith('.py') else 'cpp'}\n{text}```\n" for name, text in files.items()]
    return "\n".join(blocks)


def solved(example: str) -> str:
    return reply(sources(example))


def broken(example: str) -> str:
    return reply({name: text.replace(";", "", 1) if name.endswith(".cpp") else text for name, text in sources(example).items()})


def wrong(example: str) -> str:
    """The kernel is called and its answer left where it is."""
    new = sources(example)
    new["model_new.py"] = new["model_new.py"].replace("return out", "return torch.zeros_like(out)")
    return reply(new)


def cheating(example: str) -> str:
    """PyTorch does the work."""
    body = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, *inputs):\n        return torch.softmax(inputs[0], dim=-1)\n"
    return reply({"model_new.py": body, **{k: v for k, v in sources(example).items() if k != "model_new.py"}})


# Replies of each episode, by the number of the task.
RUNS = {
    "first": {
        1: [[cheating, solved]],
        2: [[broken, solved]],
        3: [[wrong]],
        4: [[lambda _: "I would rather not."]],
    },
    "second": {
        1: [[solved], [wrong]],
        2: [[wrong], [broken]],
        3: [[solved], [solved]],
    },
}


def episodes(warpsmith: str, task: tuple, replies: list, place: Path) -> list[dict]:
    level, number, name, example = task
    line = {"level": level, "problem_id": number, "name": name, "code": (EXAMPLES / example / "model.py").read_text()}
    (place / "tasks.jsonl").write_text(json.dumps(line) + "\n")
    found = []
    for sample, makers in enumerate(replies, 1):
        script = "".join(json.dumps({"text": make(example)}) + "\n" for make in makers)
        (place / "script.jsonl").write_text(script)
        arguments = ["optimize", f"tasks.jsonl#level{level}/{number}", "--policy", "script:script.jsonl", "--target", "cpu"]
        arguments += ["--repairs", str(len(makers) - 1), "--out", f"{number}-{sample}", "-q", "--json"]
        subprocess.run([warpsmith, *arguments], cwd=place, check=True, stdout=subprocess.DEVNULL)
        events = (place / f"{number}-{sample}" / "events.jsonl").read_text().splitlines()
        ended = [event for event in (json.loads(line)["event"] for line in events) if event["kind"] == "episode_ended"]
        found.append({**ended[0]["trajectory"], "sample": sample})
    return found


def without_the_machine(trajectory: dict, run: str) -> dict:
    for number, attempt in enumerate(trajectory["attempts"], 1):
        verdict = attempt["verdict"]
        verdict["device"] = "a processor"
        verdict["evidence"] = f"runs/{run}/attempts/{trajectory['task']['problem_id']}-{number}"
        verdict["isolation"] = {name: "yes" for name in verdict["isolation"] or {}}
        attempt["message"] = 0
    trajectory["messages"] = []
    trajectory["policy"]["name"] = f"script:{run}.jsonl"
    trajectory["task"]["origin"] = "tasks.jsonl"
    return trajectory


def main() -> None:
    for run, tasks in RUNS.items():
        lines = []
        for task in TASKS:
            with tempfile.TemporaryDirectory() as place:
                for found in episodes(sys.argv[1], task, tasks.get(task[1], []), Path(place)):
                    lines.append(json.dumps(without_the_machine(found, run)))
        folder = HERE / "runs" / run
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trajectories.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
