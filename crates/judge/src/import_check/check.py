"""Imports a result's package as a user would, in a process of its own, and compares it with the original: `check.py RESULT JOB OUT`.

Writes to OUT what `_shapes.json` is to hold: for each of the job's shapes its inputs and what comes out.
"""

import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path

import torch

# The judge has compared exactly: here a module that was built or loaded wrongly is found.
TOLERANCE = 2e-2


def described(value, with_stride: bool):
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    told = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch."), "device": value.device.type}
    return told | ({"stride": list(value.stride())} if with_stride else {})


def flat(results) -> list:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def compare(own, right) -> None:
    for one, other in zip(flat(own), flat(right), strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            raise AssertionError(f"a result has shape {tuple(one.shape)}, not {tuple(other.shape)}")
        if not other.is_floating_point():
            continue
        one, other = one.double(), other.double()
        both = one.isfinite() & other.isfinite()
        apart = float((one - other)[both].abs().max()) if both.any() else 0.0
        if apart > TOLERANCE * (float(other[both].abs().max()) if both.any() else 1.0) + 1e-6:
            raise AssertionError(f"a result is {apart:.3g} off")


def main() -> None:
    result, job, out = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
    begun = time.monotonic()
    spec = importlib.util.spec_from_file_location("original", result / "model.py")
    original = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(original)
    sys.path.insert(0, str(result / "package"))
    package = importlib.import_module(job["package"])
    drop_in = importlib.import_module(job["package"] + "._drop_in")
    further = getattr(original, "further_inputs", None) or getattr(original, "get_inputs_variants", list)
    drawn = [original.get_inputs(), *further()]
    # Kernels that were not written for each shape are for all of them.
    folders = job["folders"] + [""] * (len(drawn) - len(job["folders"]))
    made_with = original.get_init_inputs() if hasattr(original, "get_init_inputs") else []
    args, kwargs = (made_with, {}) if not isinstance(made_with, dict) else ([], made_with)
    reference = original.Model(*args, **kwargs).eval().to(job["device"])
    made = package.ModelNew(*args, **kwargs).eval().to(job["device"])
    made.load_state_dict(reference.state_dict())
    shapes = []
    with torch.no_grad():
        for folder, inputs in zip(folders, drawn, strict=True):
            inputs = [one.to(job["device"]) if isinstance(one, torch.Tensor) else one for one in inputs]
            copies = lambda: [one.clone() if isinstance(one, torch.Tensor) else one for one in inputs]
            right = reference(*copies())
            own = right if folder is None else made.run(folder, *copies())
            shapes.append({
                "inputs": [described(one, False) for one in inputs], "outputs": [described(one, True) for one in flat(own)],
                "single": isinstance(own, torch.Tensor), "folder": folder,
            })
            drop_in.Known.read({"guard": job["guard"], "shapes": shapes})
            compare(made(*copies()), right)
    out.write_text(json.dumps({"seconds": time.monotonic() - begun, "shapes": {"guard": job["guard"], "shapes": shapes}}))


if __name__ == "__main__":
    main()
