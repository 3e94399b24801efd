"""Finds seeds: walks the installed torch and writes down every operator that works, with arguments it works with.

    python walk.py > ../data/torch.jsonl

Nothing is taken on faith. A class or function is a seed when a call of it on real tensors gave finite values, twice the
same. What kind of operator it is (its family) is found the same way where that can be seen from outside: an operator is
pointwise when changing one element of its input changes that element of its output and no other. Families whose
arguments follow from shapes (convolutions, pools) are named in a table (`operators.py`), and still tried.

A module counts only if PyTorch's functional form, called with the arguments written here, gives the same values.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

from operators import ALIASES, BY_OPERATOR, FUNCTIONAL, LEAVE_OUT, PAD_MODES, SHAPED, VALUES

warnings.filterwarnings("ignore")


def draw(kind) -> torch.Tensor | list[torch.Tensor]:
    """A tensor of a shape; the letter before it says what stands in it."""
    if kind and isinstance(kind[0], list):
        return [draw(one) for one in kind]
    letter, shape = (kind[0], kind[1:]) if kind and isinstance(kind[0], str) else ("r", kind)
    match letter:
        case "r":
            return torch.randn(shape)
        case "i":
            return torch.randint(0, shape[0], shape[1:])
        case "b":
            return torch.rand(shape) > 0.5
        case "u":
            return torch.rand(shape) * 0.9 + 0.05
        case "s":
            return torch.where(torch.rand(shape) > 0.5, 1.0, -1.0)
        case "t":
            return (torch.rand(shape) > 0.5).float()
        case "l":
            return torch.log_softmax(torch.randn(shape), -1)
        case "p":
            half = torch.randn(shape)
            return half @ half.mT + shape[-1] * torch.eye(shape[-1])
    raise ValueError(letter)


DOMAINS = {"real": (-4.0, 4.0), "non_negative": (0.0, 4.0), "positive": (0.05, 4.0), "symmetric": (-0.95, 0.95), "unit": (0.05, 0.95)}


def flat(result) -> list:
    return [tensor for one in result for tensor in flat(one)] if isinstance(result, (tuple, list)) else [result]


def finite(result) -> bool:
    tensors = flat(result)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.is_complex() or tensor.numel() == 0:
            return False
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return False
    return bool(tensors)


def same(one, other) -> bool:
    ones, others = flat(one), flat(other)
    return len(ones) == len(others) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-6)
        for a, b in zip(ones, others))


class Signature:
    """Names of a function's tensors, in order, and of its other arguments with their defaults."""

    def __init__(self, tensors: list[tuple[str, bool]], others: list[tuple[str, object, bool]]):
        self.tensors = tensors
        self.others = others

    @property
    def required(self) -> list[str]:
        return [name for name, needed in self.tensors if needed]


def is_tensor(annotation: str) -> bool:
    return annotation.replace("torch.", "") in ("Tensor", "Optional[Tensor]", "Tensor | None", "Tensor?", "Tensor[]") or annotation == "<class 'torch.Tensor'>"


# Operators that the library below calls otherwise.
ATEN = {"logsigmoid": "log_sigmoid"}


def signatures(name: str, function) -> list[Signature]:
    """The Python signature where there is one, else those of the operator's overloads."""
    try:
        found = inspect.signature(function)
        tensors, others = [], []
        for parameter in found.parameters.values():
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            annotation = parameter.annotation if isinstance(parameter.annotation, str) else inspect.formatannotation(parameter.annotation)
            needed = parameter.default is parameter.empty
            if parameter.name == "out":
                continue
            if is_tensor(annotation.replace("torch.Tensor", "Tensor")) or parameter.name in ("input", "target"):
                tensors.append((parameter.name, needed))
            elif parameter.name not in ("size_average", "reduce", "_stacklevel"):
                others.append((parameter.name, None if needed else parameter.default, needed))
        if tensors:
            return [Signature(tensors, others)]
    except (TypeError, ValueError):
        pass
    result = []
    for prefix in ("aten::", "aten::special_", "aten::linalg_"):
        for schema in torch._C._jit_get_schemas_for_operator(prefix + ATEN.get(name, name)):
            if any(a.is_out for a in schema.arguments) or "Dimname" in str(schema):
                continue
            tensors, others = [], []
            for argument in schema.arguments:
                kind = str(argument.type)
                argument_name = "input" if argument.name == "self" else argument.name
                if kind in ("Tensor", "Optional[Tensor]", "List[Tensor]"):
                    tensors.append((argument_name, not argument.has_default_value() and kind != "Optional[Tensor]"))
                else:
                    default = argument.default_value if argument.has_default_value() else None
                    others.append((argument_name, default, not argument.has_default_value()))
            result.append(Signature(tensors, others))
    # The overload that can do more first: a dimension, a correction.
    return sorted(result, key=lambda signature: -sum(name in ("dim", "correction") for name, _, _ in signature.others))


def plain(value):
    """A value as JSON can hold it."""
    if isinstance(value, (torch.dtype, torch.layout, torch.device)):
        raise TypeError("not plain")
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError("not plain")
    if isinstance(value, (tuple, list, torch.Size)):
        return [plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError("not plain")


def candidates(name: str, argument: str, default, needed: bool) -> list:
    known = BY_OPERATOR.get((name, argument)) or (VALUES.get(argument) if needed or argument in ("negative_slope", "approximate") else None)
    if known:
        return known
    return [] if needed else [default]


def variants(name: str, signature: Signature) -> list[dict]:
    """Arguments to try: the first choice of each, and every other choice of one at a time."""
    choices = {argument: candidates(name, argument, default, needed) for argument, default, needed in signature.others}
    if any(not values for values in choices.values()):
        return []
    first = {argument: values[0] for argument, values in choices.items()}
    result = [first]
    for argument, values in choices.items():
        result += [first | {argument: value} for value in values[1:]]
    return result


def image(tensor: torch.Tensor) -> str:
    low, high = float(tensor.min()), float(tensor.max())
    for domain in ("unit", "positive", "non_negative", "symmetric"):
        least, most = {"unit": (1e-7, 1.0), "positive": (1e-7, math.inf), "non_negative": (0.0, math.inf), "symmetric": (-1.0, 1.0)}[domain]
        if least <= low and high <= most:
            return domain
    return "real"


def grids(low: float, high: float, count: int) -> list[torch.Tensor]:
    grid = torch.cat([torch.linspace(low, high, 4000), torch.zeros(1) if low <= 0.0 else torch.full((1,), low)])
    return [grid] if count == 1 else [grid[torch.randperm(4001)] for _ in range(count)]


def pointwise(call, count: int) -> dict | None:
    """Domain and image of a pointwise operator of `count` tensors; None if it is none."""
    for domain, (low, high) in DOMAINS.items():
        try:
            for shape in ((5,), (3, 4), (2, 4, 5), (2, 4, 3, 3)):
                inputs = [torch.rand(shape) * (high - low) + low for _ in range(count)]
                result = call(*inputs)
                if not isinstance(result, torch.Tensor) or result.shape != inputs[0].shape or not finite(result):
                    raise ValueError("not pointwise here")
                changed = [tensor.clone() for tensor in inputs]
                for tensor in changed:
                    tensor.view(-1)[1] = tensor.view(-1)[1] * 0.5 + 0.25 * (low + high) / 2 + 0.01
                other = call(*changed)
                differing = (other != result).view(-1).nonzero().view(-1).tolist()
                if differing not in ([], [1]):
                    raise ValueError("not local")
            result = call(*grids(low, high, count))
            if not finite(result):
                continue
            # Wider for the image: what is bounded near zero need not be bounded.
            wider = call(*grids(8 * low if low < 0 else low, 8 * high, count)) if domain in ("real", "positive", "non_negative") else result
            result = wider if finite(wider) else result
            if result.dtype == torch.bool or not result.is_floating_point():
                return {"domain": domain, "image": "real", "dtype": str(result.dtype).removeprefix("torch.")}
            if float(result.max() - result.min()) < 1e-6:
                return None
            return {"domain": domain, "image": image(result), "dtype": "float32"}
        except Exception:
            continue
    return None


def attempt(call, inputs) -> list | None:
    """What the call gives, if it is finite and twice the same."""
    try:
        one, other = call(*inputs), call(*inputs)
    except Exception:
        return None
    if not finite(one) or not same(one, other):
        return None
    return one


def described(tensor) -> dict | list:
    if isinstance(tensor, (tuple, list)):
        return [described(one) for one in tensor]
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}


def functional_of(op: str):
    for place in (F, torch, torch.special, torch.linalg):
        if hasattr(place, op):
            return getattr(place, op)
    return None


def along(call_with_dim) -> str | None:
    """`scan` where the result has the shape of the input, `reduction` where the dimension is gone, `total` where all are."""
    x = torch.rand(2, 4, 5) + 0.1
    result = attempt(lambda value: call_with_dim(value, 1), [x])
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return None
    if result.shape == x.shape:
        return "scan"
    return "reduction" if list(result.shape) == [2, 5] else None


def seeds_of_function(path: str, name: str, function, form: str) -> list[dict]:
    if name in SHAPED:
        family, given, shapes = SHAPED[name]
        if family == "skip":
            return []
        inputs = [draw(shape) for shape in shapes]
        for signature in signatures(name, function):
            names = [tensor for tensor, _ in signature.tensors]
            if len(names) < len(inputs) or not set(given) <= {other for other, _, _ in signature.others}:
                continue
            if any(needed and other not in given for other, _, needed in signature.others):
                continue
            if len(signature.required) > len(inputs):
                continue
            arguments = {other: default for other, default, _ in signature.others} | given
            bound = names[:len(inputs)]
            call = (lambda *tensors: function(*tensors, **given)) if form == "method" else (lambda *tensors: function(**dict(zip(bound, tensors)), **given))
            result = attempt(call, inputs)
            if result is None:
                continue
            try:
                arguments = {key: plain(value) for key, value in arguments.items()}
            except TypeError:
                continue
            return [{"path": path, "op": name, "form": form, "family": family, "tensors": names, "given": given, "arguments": arguments,
                     "inputs": [described(tensor) for tensor in inputs], "outputs": described(flat(result))}]
        return []
    found = []
    for signature in signatures(name, function):
        count = len(signature.required)
        if not 1 <= count <= 3:
            continue
        names = signature.required
        for arguments in variants(name, signature):
            try:
                arguments = {key: plain(value) for key, value in arguments.items()}
            except TypeError:
                continue
            given = {key: value for (key, default, needed), value in ((other, arguments[other[0]]) for other in signature.others) if needed or value != default}
            def call(*tensors, extra=given):
                if form == "method":
                    return function(*tensors, **extra)
                return function(**dict(zip(names, tensors)), **extra)
            seed = {"path": path, "op": name, "form": form, "tensors": [tensor for tensor, _ in signature.tensors], "given": given, "arguments": arguments}
            facts = pointwise(call, count)
            if facts:
                # The second operand may be smaller: broadcasting is tried, not assumed.
                if count > 1 and attempt(call, [torch.rand(2, 4, 5) * 0.5 + 0.2] + [torch.rand(5) * 0.5 + 0.2] * (count - 1)) is None:
                    family = "other"
                else:
                    family = {1: "pointwise", 2: "binary", 3: "ternary"}[count]
                if facts["dtype"] != "float32":
                    family = "predicate" if facts["dtype"] == "bool" else "other"
                if family in ("binary", "predicate") and count == 2 and form != "module":
                    seed["scalar"] = attempt(lambda value: call(value, 0.5), [torch.rand(3, 4) + 0.1]) is not None
                shape = [3, 4]
                found.append(seed | facts | {"family": family, "inputs": [{"shape": shape, "dtype": "float32"}] * count, "outputs": [{"shape": shape, "dtype": facts["dtype"]}]})
                continue
            if count == 1 and "dim" in arguments:
                extra = {key: value for key, value in given.items() if key != "dim"}
                kind = along(lambda value, dim: function(value, dim=dim, **extra))
                if kind:
                    result = function(torch.rand(2, 4, 5), dim=1, **extra)
                    found.append(seed | {"family": kind, "inputs": [{"shape": [2, 4, 5], "dtype": "float32"}], "outputs": described([result]), "image": image(result)})
                    continue
            if count == 1:
                x = torch.rand(2, 4, 5) + 0.1
                result = attempt(call, [x])
                if isinstance(result, torch.Tensor):
                    total = result.dim() == 0 and result.is_floating_point()
                    found.append(seed | {"family": "total" if total else "other", "inputs": [described(x)], "outputs": described([result])})
        if found:
            break
    return found


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def seed_of_module(path: str, name: str, cls) -> list[dict]:
    family, constructor, shapes = SHAPED.get(name, (None, {}, []))
    if family == "skip":
        return []
    op = FUNCTIONAL.get(name) or next((guess for guess in (name.lower(), snake(name)) if functional_of(guess)), snake(name))
    functional = functional_of(op)
    parameters = inspect.signature(cls).parameters
    choices = [(key, p.default if p.default is not p.empty else None, p.default is p.empty)
               for key, p in parameters.items() if key not in ("device", "dtype", "inplace", "size_average", "reduce") and p.kind is p.POSITIONAL_OR_KEYWORD]
    if family is None:
        options = variants(op, Signature([], choices))
    else:
        options = [constructor]
    found = []
    for option in options:
        defaults = {key: default for key, default, _ in choices}
        given = option if family else {key: value for key, value in option.items() if value != defaults[key]}
        torch.manual_seed(1)
        try:
            module = cls(**given).eval()
        except Exception:
            continue
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.uniform_(-0.5, 0.5)
        state = {key: list(value.shape) for key, value in module.state_dict().items() if value.is_floating_point()}
        seed = {"path": path, "op": op, "form": "module", "given": given, "state": state}
        facts = pointwise(module, 1) if family is None else None
        inputs = [draw(shape) for shape in shapes] or [torch.randn(2, 4, 5)]
        if facts:
            seed |= facts | {"family": "pointwise"}
        elif family is None:
            kind = along(lambda value, dim: cls(**{key: value_ for key, value_ in given.items() if key != "dim"}, dim=dim)(value)) if "dim" in parameters else None
            seed["family"] = kind or "other"
        else:
            seed["family"] = family
        result = attempt(module, inputs)
        if result is None and facts is None:
            continue
        if facts and result is None:
            inputs = [torch.rand(2, 4, 5) * 0.5 + 0.2]
            result = attempt(module, inputs)
        outputs = described(flat(result))
        # The functional form with the same arguments must give the same.
        known = signatures(op, functional) if functional else []
        told = None
        for signature in known:
            names = [tensor for tensor, _ in signature.tensors]
            arguments = {}
            for key, default, _ in signature.others:
                if key in given:
                    arguments[key] = given[key]
                elif key == "use_input_stats":
                    arguments[key] = True
                elif key == "pad" and "Pad" in name:
                    arguments[key] = given["padding"]
                elif key in ("mode", "value") and "Pad" in name:
                    arguments[key] = PAD_MODES[name[:name.index("Pad")]][0 if key == "mode" else 1]
                elif isinstance(getattr(module, key, None), (bool, int, float, str, tuple)):
                    arguments[key] = getattr(module, key)
                elif key in defaults and not callable(defaults[key]):
                    arguments[key] = defaults[key]
                else:
                    arguments[key] = default
            if op == "softmax" and name == "Softmax2d":
                arguments["dim"] = 1
            full = dict(module.named_parameters()) | dict(module.named_buffers())
            tensors, flowing = {}, list(inputs)
            for tensor in names:
                if tensor in full:
                    tensors[tensor] = full[tensor]
                elif flowing and tensor not in ("weight", "bias", "running_mean", "running_var", "pos_weight"):
                    tensors[tensor] = flowing.pop(0)
            try:
                passed = {key: value for key, value in arguments.items() if not key.startswith("_")}
                if op in ("softmax", "log_softmax", "softmin"):
                    passed.pop("_stacklevel", None)
                direct = functional(**tensors, **passed)
                arguments = {key: plain(value) for key, value in passed.items()}
            except Exception:
                continue
            with torch.no_grad():
                if same(direct if not isinstance(direct, tuple) or isinstance(result, tuple) else direct[0], result):
                    told = (names, arguments)
                    break
        if told:
            seed |= {"tensors": told[0], "arguments": told[1]}
        elif seed["family"] not in ("recurrent",):
            seed |= {"tensors": [], "arguments": {}, "family": "other"}
        else:
            seed |= {"tensors": [], "arguments": {}}
        found.append(seed | {"inputs": [described(tensor) for tensor in inputs], "outputs": outputs})
    return found


def walk() -> list[dict]:
    torch.manual_seed(0)
    seeds = []
    for name in sorted(dir(nn)):
        cls = getattr(nn, name)
        if inspect.isclass(cls) and issubclass(cls, nn.Module) and name not in ALIASES and not name.startswith("Lazy") and not LEAVE_OUT.search(snake(name)):
            seeds += seed_of_module(f"torch.nn.{name}", name, cls)
    functional = set()
    for prefix, place in (("torch.nn.functional", F), ("torch", torch), ("torch.special", torch.special), ("torch.linalg", torch.linalg)):
        for name in sorted(dir(place)):
            function = getattr(place, name)
            if not callable(function) or inspect.isclass(function) or name.startswith("_") or name.endswith("_") or not name.islower():
                continue
            if name in ALIASES or LEAVE_OUT.search(name) or f"{prefix}.{name}" in ("torch.linalg.norm",):
                continue
            if prefix == "torch" and (name in functional):
                continue
            try:
                found = seeds_of_function(f"{prefix}.{name}", name, function, "function")
            except Exception as error:
                print(f"{prefix}.{name}: {error}", file=sys.stderr)
                continue
            if prefix in ("torch.special", "torch.linalg") and any(seed["op"] == name for seed in seeds):
                continue
            functional.add(name)
            seeds += found
            # The same as a tensor's method, where a tensor has it.
            method = getattr(torch.Tensor, name, None)
            if method and prefix == "torch" and found and found[0]["family"] != "other":
                known = [seed for seed in found]
                for seed in known:
                    try:
                        tensors = [torch.rand(one["shape"]) * 0.5 + 0.2 if one["dtype"] == "float32" else draw(["i", 2, *one["shape"]]) if one["dtype"] == "int64" else draw(["b", *one["shape"]]) for one in seed["inputs"]]
                        place_of_self = 0
                        if name == "where":
                            continue
                        extra = dict(seed["given"])
                        if "dim" in seed["arguments"] and "dim" not in extra and seed["family"] in ("scan", "reduction"):
                            extra["dim"] = 1
                        result = getattr(tensors[place_of_self], name)(*tensors[1:], **extra)
                        if finite(result):
                            seeds.append(seed | {"path": f"torch.Tensor.{name}", "form": "method"})
                    except Exception:
                        continue
    return seeds


if __name__ == "__main__":
    with torch.no_grad():
        lines = walk()
    # One line a seed: variants of the same path stand together in it.
    grouped: dict[str, dict] = {}
    for seed in lines:
        entry = grouped.setdefault(seed["path"], {key: seed[key] for key in ("path", "op", "form", "family", "tensors")} | {"state": seed.get("state", {}), "scalar": seed.get("scalar", False), "variants": []})
        if entry["family"] != seed["family"]:
            continue
        entry["variants"].append({key: seed[key] for key in ("given", "arguments", "domain", "image", "inputs", "outputs") if key in seed})
    for entry in grouped.values():
        print(json.dumps(entry))
    families: dict[str, int] = {}
    for entry in grouped.values():
        families[entry["family"]] = families.get(entry["family"], 0) + 1
    print(len(grouped), "seeds,", len({e["op"] for e in grouped.values()}), "operators:", dict(sorted(families.items())), file=sys.stderr)
