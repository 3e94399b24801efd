"""A warm process that tries tasks out: one request a line on descriptor 3, one reply a line.

    {"verb": "hello", "tensors": {op: [name, …]}}         once: the tensors of each operator's functional form
    {"verb": "check", "code": …}                          may a task of a composer that is not ours run; none of it does
    {"verb": "screen", "code": …, "graph": … or null}     on the CPU, small: does it run, is it worth anything
    {"verb": "agree", "code": …, "device": …}             do eager and `torch.compile` say the same
    {"verb": "time", "code": …, "device": …, "limit_ms": …}     how long one call takes, what it needs of memory

A reply is `{"kept": facts}`, `{"dropped": [reason, detail]}` or `{"failed": message}`. On its way to a time
it says `{"wants": "visit"}` for what others may do beside it, `{"wants": "device"}` for what nobody may, waits for a line each
time, and says `{"wants": "nothing"}` after it. A task of a composer that is not ours is checked by `allowed.py` before any of
it runs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import linecache
import math
import os
import re
import socket
import statistics
import sys
import time
import types
import warnings

import torch
import torch._inductor.config
import torch.nn.functional as F

warnings.filterwarnings("ignore")

# Two results are the same within this share of their spread.
AGREEMENT = 1e-3
# Outputs for different inputs differ by more than this share of their size.
DISTINCT = 1e-3
LARGEST = 1e8
WARM_UPS, RUNS, SECONDS = 1, 9, 1.5
DETAIL = 300


class Dropped(Exception):
    """The task is not kept, for a reason."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


class Channel:
    """To whoever asks: a line of JSON each."""

    def __init__(self) -> None:
        self.socket = socket.socket(fileno=3)
        self.lines = self.socket.makefile("r", encoding="utf-8")

    def send(self, message: dict) -> None:
        text = re.sub(r"\bNaN\b|-?\bInfinity\b", "null", json.dumps(message))
        self.socket.sendall(text.encode() + b"\n")

    @contextlib.contextmanager
    def has(self, what: str):
        """With the device for ourselves, or for a visit while nobody else has it so."""
        self.send({"wants": what})
        self.lines.readline()
        try:
            yield
        finally:
            self.send({"wants": "nothing"})


class Module:
    """A task's module, executed."""

    def __init__(self, code: str, device: str) -> None:
        self.device = device
        space = types.ModuleType("model")
        # Seen by `inspect`, which the compiler asks.
        linecache.cache["model.py"] = (len(code), None, code.splitlines(True), "model.py")
        sys.modules["model"] = space
        try:
            exec(compile(code, "model.py", "exec"), space.__dict__)
            self.space = space
            torch.manual_seed(0)
            init = space.get_init_inputs() if hasattr(space, "get_init_inputs") else []
            self.model = self._made(lambda: space.Model(*init)).eval().to(device).requires_grad_(False)
            # Zeros and ones would hide what bias and scale do; the judge changes them too.
            with torch.no_grad():
                for name, tensor in self.model.state_dict().items():
                    if tensor.is_floating_point():
                        noise = 0.1 * torch.rand_like(tensor)
                        tensor.add_(noise)
        except Dropped:
            raise
        except Exception as error:
            raise Dropped("does_not_build", told(error)) from None

    def _made(self, make):
        if self.device == "cpu":
            return make()
        with torch.device(self.device):
            return make()

    def inputs(self, seed: int) -> list:
        torch.manual_seed(seed)
        try:
            made = self._made(self.space.get_inputs)
        except Exception as error:
            raise Dropped("does_not_run", f"get_inputs: {told(error)}") from None
        return [value.to(self.device) if isinstance(value, torch.Tensor) else value for value in made]

    def run(self, inputs: list, model=None) -> list[torch.Tensor]:
        try:
            result = (model or self.model)(*inputs)
            self.wait()
        except torch.OutOfMemoryError:
            raise Dropped("too_much_memory") from None
        except Exception as error:
            raise Dropped("does_not_run", told(error)) from None
        tensors = flat(result)
        if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            raise Dropped("not_tensors", f"forward returns {type(result).__name__}")
        if any(tensor.is_complex() or tensor.layout != torch.strided for tensor in tensors):
            raise Dropped("not_tensors", "complex or sparse")
        return tensors

    def wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()


def told(error: BaseException) -> str:
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0]}"[:DETAIL]


def flat(result) -> list:
    return [tensor for one in result for tensor in flat(one)] if isinstance(result, (tuple, list)) else [result]


def spread(tensor: torch.Tensor) -> float:
    wide = tensor.double()
    return float(wide.std(correction=0)) if wide.numel() > 1 else 0.0


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """How far apart, as a share of their size."""
    a, b = one.double(), other.double()
    size = max(float(torch.linalg.vector_norm(a)), float(torch.linalg.vector_norm(b)), 1e-30)
    return float(torch.linalg.vector_norm(a - b)) / size


def check_values(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.numel() == 0:
            raise Dropped("empty")
        if tensor.is_floating_point():
            if not bool(torch.isfinite(tensor).all()):
                raise Dropped("not_finite")
            if float(tensor.abs().max()) > LARGEST:
                raise Dropped("not_finite", f"values above {LARGEST:g}")
        if tensor.numel() > 1 and spread(tensor) <= 1e-6 * max(float(tensor.double().abs().max()), 1e-30):
            raise Dropped("constant")


def check_distinct(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    found = max((difference(a, b) for a, b in zip(one, other)), default=0.0)
    if found <= DISTINCT:
        raise Dropped("indistinguishable", f"outputs for different inputs differ by {found:.1e} of their size")
    return found


def screen(code: str, graph: dict | None, tensors: dict[str, list[str]]) -> dict:
    module = Module(code, "cpu")
    inputs = module.inputs(1)
    before = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    answer = module.run(inputs)
    for value, kept in zip(inputs, before):
        if isinstance(value, torch.Tensor) and not torch.equal(value, kept):
            raise Dropped("writes_to_inputs")
    check_values(answer)
    for again in (module.run(inputs), module.run(inputs)):
        if not all(torch.equal(a, b) for a, b in zip(answer, again)):
            raise Dropped("not_deterministic")
    check_distinct(answer, module.run(module.inputs(2)))
    check_every_input(module, inputs, answer)
    if graph is not None:
        check_graph(module, graph, inputs, answer, tensors)
    return {}


def check_every_input(module: Module, inputs: list, answer: list[torch.Tensor]) -> None:
    """What one input alone says must show in the answer."""
    for place, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            continue
        others = module.inputs(3)
        given = [others[at] if at == place else kept for at, kept in enumerate(inputs)]
        changed = module.run(given)
        if max(difference(a, b) for a, b in zip(answer, changed)) <= 1e-5:
            raise Dropped("unused_input", f"input {place} does not matter")


def functional(op: str):
    for place in (F, torch, torch.special, torch.linalg, torch.Tensor):
        if hasattr(place, op):
            return getattr(place, op)
    raise Dropped("graph", f"no operator is called {op}")


def interpret(graph: dict, state: dict[str, torch.Tensor], inputs: list, tensors: dict[str, list[str]]) -> list:
    """Every value of the graph, by PyTorch's functional forms alone."""
    values: list = []
    for value in graph["values"]:
        source = value["from"]
        match source["kind"]:
            case "input":
                made = inputs[source["position"]]
            case "state":
                made = state[source["name"]]
            case "applied":
                operands = [None if place is None else values[place] for place in source["inputs"]]
                names = [name for name in tensors[source["op"]] if name not in source["arguments"]]
                made = functional(source["op"])(**dict(zip(names, operands)), **source["arguments"])
                made = made[source["result"]] if isinstance(made, tuple) else made
        if list(made.shape) != value["shape"] or str(made.dtype) != f"torch.{value['dtype']}":
            raise Dropped("graph", f"value {len(values)} is {list(made.shape)} {made.dtype}, the graph says {value['shape']} {value['dtype']}")
        values.append(made)
    return values


def check_graph(module: Module, graph: dict, inputs: list, answer: list, tensors: dict[str, list[str]]) -> None:
    try:
        values = interpret(graph, module.model.state_dict(), inputs, tensors)
    except Dropped:
        raise
    except Exception as error:
        raise Dropped("graph", told(error)) from None
    for place, result in zip(graph["returns"], answer, strict=True):
        found = values[place]
        if found.shape != result.shape or found.dtype != result.dtype or (found != result).any() and difference(found, result) > 1e-5:
            raise Dropped("graph", "the graph computes something else than the module")
    for place, value in enumerate(graph["values"]):
        if value["from"]["kind"] != "applied":
            continue
        for operand in value["from"]["inputs"]:
            if operand is not None and values[operand].shape == values[place].shape and values[operand].dtype == values[place].dtype and torch.equal(values[operand], values[place]):
                raise Dropped("idle_operator", f"{value['from']['op']} changes nothing")


def agree(code: str, device: str) -> dict:
    module = Module(code, device)
    inputs = module.inputs(1)
    answer = module.run(inputs)
    torch._dynamo.reset()
    started = time.monotonic()
    compiled = torch.compile(module.model, dynamic=False)
    try:
        found = flat(compiled(*inputs))
        module.wait()
    except Exception as error:
        raise Dropped("does_not_compile", told(error)) from None
    seconds = time.monotonic() - started
    worst = 0.0
    for eager, other in zip(answer, found, strict=True):
        if eager.shape != other.shape or eager.dtype != other.dtype:
            raise Dropped("compile_disagrees", "another shape or dtype")
        if eager.is_floating_point():
            apart = float(torch.linalg.vector_norm((eager - other).double()))
            size = max(spread(eager) * math.sqrt(eager.numel()), 1e-6 * float(torch.linalg.vector_norm(eager.double())), 1e-30)
            if eager.numel() == 1:
                size = max(float(eager.double().abs()), 1e-30)
            worst = max(worst, apart / size)
        elif float((eager != other).double().mean()) > 1e-3:
            raise Dropped("compile_disagrees", "other integers")
    if not worst <= AGREEMENT:
        raise Dropped("compile_disagrees", f"apart by {worst:.1e} of the spread")
    return {"compile_seconds": round(seconds, 3), "compile_error": worst}


def measure(code: str, device: str, limit_ms: float, channel: Channel) -> dict:
    """One call's time. Values are looked at as well: a sum over more elements may tell inputs apart no longer."""
    torch.set_num_threads(os.cpu_count() or 1)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    try:
        with channel.has("visit"):
            module = Module(code, device)
            inputs = module.inputs(1)
            # Not timed: what is far too long is not called again, and the first call loads and chooses.
            started = time.perf_counter()
            answer = module.run(inputs)
            elapsed = time.perf_counter() - started
        if elapsed > 4e-3 * limit_ms + 0.1:
            return {"eager_ms": elapsed * 1e3, "runs": 1}
        with channel.has("device"):
            times = timed(module, inputs)
        facts = {"eager_ms": statistics.median(times) * 1e3, "runs": len(times)}
        if device != "cpu":
            facts["peak_bytes"] = torch.cuda.max_memory_allocated()
        with channel.has("visit"):
            check_values(answer)
            kept = [tensor.clone() for tensor in answer]
            check_distinct(kept, module.run(module.inputs(2)))
            module.wait()
        return facts
    finally:
        torch.set_num_threads(1)


def timed(module: Module, inputs: list) -> list[float]:
    times: list[float] = []
    begun = time.monotonic()
    for turn in range(WARM_UPS + RUNS):
        started = time.perf_counter()
        module.run(inputs)
        if turn >= WARM_UPS:
            times.append(time.perf_counter() - started)
        if time.monotonic() - begun > SECONDS and len(times) >= 3:
            break
    return times


def check(code: str) -> None:
    import allowed

    found = allowed.objection(code)
    if found:
        raise Dropped("not_allowed", found)


def answer(request: dict, tensors: dict[str, list[str]], channel: Channel) -> dict:
    try:
        if request.get("untrusted"):
            check(request["code"])
            # In the sandbox each process would make its headers anew, which takes longer than doing without.
            torch._inductor.config.cpp_cache_precompile_headers = False
        with torch.no_grad():
            match request["verb"]:
                case "check":
                    return {"kept": {}}
                case "screen":
                    return {"kept": screen(request["code"], request.get("graph"), tensors)}
                case "agree":
                    return {"kept": agree(request["code"], request["device"])}
                case "time":
                    return {"kept": measure(request["code"], request["device"], request["limit_ms"], channel)}
        return {"failed": f"no verb {request['verb']}"}
    except Dropped as dropped:
        return {"dropped": [dropped.reason, dropped.detail]}
    except torch.OutOfMemoryError:
        return {"dropped": ["too_much_memory", ""]}
    except Exception as error:
        return {"failed": told(error)}
    finally:
        sys.modules.pop("model", None)
        gc.collect()
        if request.get("device", "cpu") != "cpu":
            torch.cuda.empty_cache()


def main() -> None:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import vector_isas

    vector_isas.load_without_import()
    channel = Channel()
    torch.set_num_threads(1)
    # Like the judge's own baselines.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    # What PyTorch itself is made of stays; looking through it after every task would take longer than many a task.
    gc.freeze()
    tensors: dict[str, list[str]] = {}
    for line in channel.lines:
        request = json.loads(line)
        if request["verb"] == "hello":
            tensors = request["tensors"]
            reply = {"kept": {"torch": torch.__version__}}
        else:
            reply = answer(request, tensors, channel)
        channel.send(reply)


if __name__ == "__main__":
    main()
