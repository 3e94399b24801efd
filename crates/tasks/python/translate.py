"""From the ATen graph of an exported program to the functional names of our own graphs, every default filled in."""

from __future__ import annotations

import math
import operator
from collections import namedtuple

import torch

from functional import CaptureError, call_of

FILE = "model.py"
# Tensors that are part of the module's text (`torch.tensor([...])` in `forward`) are written into the graph up to this size.
LARGEST_CONSTANT = 4096
REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}

# Operators that change nothing in inference: their first operand stands for them.
IDENTITIES = {
    "dropout", "feature_dropout", "alpha_dropout", "contiguous", "clone", "detach", "alias", "lift_fresh_copy", "lift_fresh",
    "detach_", "positive", "lift", "resolve_conj", "resolve_neg",
}
# Operators without a result.
EFFECTLESS = {"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size"}
# Where ATen's name differs from the functional one.
NAMES = {
    "multiply": "mul", "divide": "div", "true_divide": "div", "subtract": "sub", "negative": "neg", "absolute": "abs",
    "clip": "clamp", "concat": "cat", "concatenate": "cat", "bitwise_not": "logical_not", "bitwise_and": "logical_and",
    "bitwise_or": "logical_or", "special_expm1": "expm1", "swish": "silu", "_softmax": "softmax", "_log_softmax": "log_softmax",
    "linalg_vector_norm": "vector_norm", "cross_entropy_loss": "cross_entropy", "_unsafe_view": "reshape", "view": "reshape",
    "log_sigmoid": "logsigmoid", "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim", "special_erf": "erf",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne", "arctan": "atan",
    "linalg_norm": "norm", "fix": "trunc",
    "special_logsumexp": "logsumexp", "special_softmax": "softmax", "special_log_softmax": "log_softmax", "special_expit": "sigmoid",
}
# ATen's own arguments that decide nothing about the result.
IDLE_ARGUMENTS = {
    "cudnn_enable", "cudnn_enabled", "memory_format", "non_blocking", "copy", "layout", "device", "pin_memory", "generator", "inplace",
    "half_to_float", "rounding_mode", "out", "implicit",
}
# Tensors in the order of the functional form, where ATen has another.
ORDERS = {
    "batch_norm": ["input", "running_mean", "running_var", "weight", "bias"],
    "instance_norm": ["input", "running_mean", "running_var", "weight", "bias"],
    "embedding": ["indices", "weight"],
    "embedding_bag": ["indices", "weight", "offsets", "per_sample_weights"],
}
RENAMED = {"self": "input"}


class Captured:
    """Values of a graph under construction, and how to compute each again."""

    def __init__(self) -> None:
        self.values: list[dict] = []
        self.calls: list = []

    def add(self, meta: torch.Tensor, source: dict, call=None) -> int:
        dtype = str(meta.dtype).removeprefix("torch.")
        self.values.append({"shape": [int(extent) for extent in meta.shape], "dtype": dtype, "from": source})
        self.calls.append(call)
        return len(self.values) - 1


class Results:
    """Several results of one operator; each becomes a value when it is first used."""

    def __init__(self, make, count: int) -> None:
        self.make, self.made, self.count = make, {}, count

    def __getitem__(self, index: int) -> int:
        index = index if index >= 0 else index + self.count
        if index not in self.made:
            self.made[index] = self.make(index)
        return self.made[index]


def plain(value):
    """An argument as JSON has it."""
    if isinstance(value, (torch.dtype,)):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"non_finite": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    raise CaptureError("translate", f"an argument of type `{type(value).__name__}`")


def nested(spec):
    """How what `forward` returns is nested."""
    if spec.is_leaf():
        return "tensor"
    parts = [nested(child) for child in (spec.children() if hasattr(spec, "children") else spec.children_specs)]
    # `torch.topk` returns a tuple of a type of its own.
    if spec.type in (list, tuple, namedtuple) or isinstance(spec.type, type) and issubclass(spec.type, tuple):
        return {"sequence": parts}
    if spec.type is dict and all(isinstance(key, str) for key in spec.context):
        return {"dict": [list(pair) for pair in zip(spec.context, parts, strict=True)]}
    raise CaptureError("translate", f"`forward` returns a `{spec.type.__name__}`; a solution returns tensors, tuples, lists and dicts")


class Translator:
    """Writes one exported program as a graph."""

    def __init__(self, program, scalars: set[int]) -> None:
        self.program, self.scalars = program, scalars
        self.captured, self.of = Captured(), {}

    def run(self) -> dict:
        signature = self.program.graph_signature
        parameters, buffers = signature.inputs_to_parameters, signature.inputs_to_buffers
        constants = signature.inputs_to_lifted_tensor_constants
        position = 0
        for node in self.program.graph.nodes:
            self.node = node
            if node.op == "placeholder":
                meta = node.meta.get("val")
                if node.name in parameters or node.name in buffers:
                    name = parameters.get(node.name) or buffers[node.name]
                    self.of[node] = self.captured.add(meta, {"kind": "state", "name": name})
                elif node.name in constants:
                    self.of[node] = self.constant(self.program.constants[constants[node.name]])
                else:
                    if isinstance(meta, torch.Tensor):
                        kind = "scalar" if position in self.scalars else "input"
                        self.of[node] = self.captured.add(meta, {"kind": kind, "position": position})
                    position += 1
            elif node.op == "call_function":
                self.translate(node)
            elif node.op == "output":
                return self.output(node)
        raise CaptureError("trace", "the exported graph has no output")

    def output(self, node) -> dict:
        signature = self.program.graph_signature
        mutated = {name for name in signature.buffers_to_mutate} | {name for name in signature.user_inputs_to_mutate}
        if mutated:
            raise CaptureError("translate", "`forward` writes to its inputs or to buffers of the module")
        flat = []

        def collect(value) -> None:
            if isinstance(value, (list, tuple)):
                for one in value:
                    collect(one)
            elif isinstance(value, torch.fx.Node):
                found = self.of[value]
                flat.extend([found] if isinstance(found, int) else [found[index] for index in range(found.count)])
            else:
                raise CaptureError("translate", f"`forward` returns a `{type(value).__name__}`, not only tensors")

        collect(node.args[0])
        graph = {"values": self.captured.values, "returns": flat}
        nesting = nested(self.program.call_spec.out_spec)
        if nesting not in ("tensor", {"sequence": ["tensor"] * max(2, len(flat))}):
            graph["nesting"] = nesting
        return graph

    def constant(self, tensor: torch.Tensor) -> int:
        if tensor.numel() > LARGEST_CONSTANT:
            raise CaptureError(
                "translate", f"a tensor of {tensor.numel()} elements is neither a parameter nor a buffer of the module; register it with `register_buffer`")
        source = {"kind": "constant", "data": [plain(one) for one in tensor.flatten().tolist()]}
        return self.captured.add(tensor, source, tensor.clone())

    # -- one operator --

    def translate(self, node) -> None:
        target = node.target
        if target is operator.getitem:
            if not node.users:
                return
            found = self.of[node.args[0]]
            self.of[node] = found[node.args[1]]
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise CaptureError("translate", f"`{target}` is not an operator of PyTorch", str(target), self.line())
        namespace, name = target._schema.name.split("::")
        if namespace != "aten":
            raise CaptureError("translate", f"`{namespace}::{name}` is a custom operator", f"{namespace}::{name}", self.line())
        if name in EFFECTLESS:
            return
        arguments = self.arguments(node)
        in_place = name.endswith("_") and not name.endswith("__") and name not in IDENTITIES
        base = name.removesuffix("_") if in_place else name
        if base in IDENTITIES:
            self.of[node] = self.of[node.args[0]]
            return
        result = self.applied(node, base, arguments)
        self.of[node] = result
        if in_place:
            # Whoever reads the tensor later reads what was written.
            self.of[node.args[0]] = result

    def arguments(self, node) -> dict:
        """Every argument by name, defaults filled in."""
        given = {}
        for place, argument in enumerate(node.target._schema.arguments):
            name = RENAMED.get(argument.name, argument.name)
            if place < len(node.args) and not argument.kwarg_only:
                given[name] = node.args[place]
            elif argument.name in node.kwargs:
                given[name] = node.kwargs[argument.name]
            else:
                given[name] = argument.default_value if argument.has_default_value() else None
        return given

    def line(self) -> int | None:
        trace = self.node.meta.get("stack_trace") or ""
        lines = [part for part in trace.splitlines() if f'File "{FILE}"' in part]
        return int(lines[-1].split("line ")[1].split(",")[0]) if lines else None

    def applied(self, node, base: str, given: dict):
        meta = node.meta["val"]
        special = getattr(self, f"op_{base}", None)
        if special is not None:
            made = special(node, dict(given), meta)
            if made is not None:
                return made
        return self.emit(NAMES.get(base, base), given, meta)

    def place(self, value) -> int | None:
        if value is None:
            return None
        found = self.of[value]
        if not isinstance(found, int):
            raise CaptureError("translate", "an operator reads several results at once", None, self.line())
        return found

    def emit(self, op: str, given: dict, meta):
        """One operator with tensors and arguments by name."""
        given = {name: value for name, value in given.items() if name not in IDLE_ARGUMENTS}
        if "reduction" in given and isinstance(given["reduction"], int):
            given["reduction"] = REDUCTIONS[given["reduction"]]
        is_tensor = {argument for argument, value in given.items() if isinstance(value, torch.fx.Node)}
        optional = {RENAMED.get(one.name, one.name) for one in self.schema_tensors()}
        names = [name for name in given if name in is_tensor or (name in optional and given[name] is None)]
        names = [name for name in ORDERS.get(op, names) if name in names] if op in ORDERS else names
        places = [self.place(given[name]) for name in names]
        arguments = {name: plain(value) for name, value in given.items() if name not in names}
        if op == "embedding":
            names = ["input", "weight"]
        return self.add(op, names, places, arguments, meta)

    def schema_tensors(self):
        schema = self.node.target._schema
        return [one for one in schema.arguments if "Tensor" in str(one.type) and "List" not in str(one.type)]

    def add(self, op: str, names: list[str], places: list, arguments: dict, meta):
        line = self.line()

        def make(result: int, one) -> int:
            source = {"kind": "applied", "op": op, "inputs": places, "arguments": arguments, "result": result}
            value = self.captured.add(one, source, call_of(op, names))
            if line is not None:
                self.captured.values[value]["line"] = line
            return value

        if isinstance(meta, torch.Tensor):
            return make(0, meta)
        if isinstance(meta, (list, tuple)):
            return Results(lambda index: make(index, meta[index]), len(meta))
        raise CaptureError("translate", f"`{op}` gives a `{type(meta).__name__}`, not a tensor", op, line)

    # -- operators that are written in another form --

    def reshaped(self, node, given, meta):
        return self.add("reshape", ["input"], [self.place(given["input"])], {"shape": list(map(int, meta.shape))}, meta)

    op_view = op_reshape = op__unsafe_view = op_flatten = op_unflatten = op_squeeze = op_unsqueeze = op_view_as = op_reshape_as = reshaped

    def op_numpy_T(self, node, given, meta):
        dims = list(range(meta.dim()))[::-1]
        return self.add("permute", ["input"], [self.place(given["input"])], {"dims": dims}, meta)

    op_t = op_mT = None

    def op_t(self, node, given, meta):  # noqa: F811
        if meta.dim() < 2:
            return self.of[node.args[0]]
        return self.add("transpose", ["input"], [self.place(given["input"])], {"dim0": 0, "dim1": 1}, meta)

    def op_mT(self, node, given, meta):  # noqa: F811
        return self.add("transpose", ["input"], [self.place(given["input"])], {"dim0": -2, "dim1": -1}, meta)

    def expanded(self, node, given, meta):
        return self.add("expand", ["input"], [self.place(given["input"])], {"size": list(map(int, meta.shape))}, meta)

    op_expand = op_expand_as = op_broadcast_to = expanded

    def op_broadcast_tensors(self, node, given, meta):
        parts = given["tensors"]
        return Results(lambda index: self.add("expand", ["input"], [self.place(parts[index])], {"size": list(map(int, meta[index].shape))}, meta[index]), len(parts))

    def op_slice(self, node, given, meta):
        before = node.args[0].meta["val"].shape
        dim = given["dim"] % len(before)
        start, step = given["start"] or 0, given["step"] or 1
        start = min(max(start + before[dim] if start < 0 else start, 0), before[dim])
        length = int(meta.shape[dim])
        if length == before[dim]:
            return self.of[node.args[0]]
        place = [self.place(given["input"])]
        if step == 1:
            return self.add("narrow", ["input"], place, {"dim": dim, "start": int(start), "length": length}, meta)
        return self.add("slice", ["input"], place, {"dim": dim, "start": int(start), "length": length, "step": step}, meta)

    def pieces(self, node, given, meta):
        """`split` and `chunk`: each piece is a `narrow`."""
        dim = (given.get("dim") or 0) % node.args[0].meta["val"].dim()
        place, starts = [self.place(given["input"])], [0]
        for piece in meta:
            starts.append(starts[-1] + int(piece.shape[dim]))

        def make(index: int) -> int:
            arguments = {"dim": dim, "start": starts[index], "length": int(meta[index].shape[dim])}
            return self.add("narrow", ["input"], place, arguments, meta[index])

        return Results(make, len(meta))

    op_split = op_split_with_sizes = op_chunk = op_tensor_split = pieces

    def op_unbind(self, node, given, meta):
        dim, place = given.get("dim") or 0, [self.place(given["input"])]
        return Results(lambda index: self.add("select", ["input"], place, {"dim": dim, "index": index}, meta[index]), len(meta))

    def joined(self, node, given, meta):
        op = NAMES.get(node.target._schema.name.split("::")[1], node.target._schema.name.split("::")[1])
        tensors = [one for one in given["tensors"] if one.meta["val"].numel() > 0 or op == "stack"]
        return self.add(op, [], [self.place(one) for one in tensors], {"dim": given["dim"]}, meta)

    op_cat = op_concat = op_concatenate = op_stack = joined

    def op_einsum(self, node, given, meta):
        return self.add("einsum", [], [self.place(one) for one in given["tensors"]], {"equation": given["equation"]}, meta)

    def op_embedding_bag(self, node, given, meta):
        """Bags of one size, as of two-dimensional indices, are slices that are summed up; others only the tensor's values tell."""
        indices, weight, offsets = (given[name] for name in ("indices", "weight", "offsets"))
        values = indices.meta["val"]
        starts = offsets.target is torch.ops.aten.arange.start_step and offsets.args
        size = starts[2] if starts and len(starts) > 2 else 1
        bags = offsets.meta["val"].numel() - bool(given.get("include_last_offset"))
        if not starts or starts[0] != 0 or bags * size != values.numel() or given.get("padding_idx", -1) not in (None, -1):
            raise CaptureError("translate", "bags of different sizes, or with padding", "embedding_bag", self.line())
        mode, rows = int(given["mode"]), weight.meta["val"]
        many = [self.place(indices)]
        shape = [bags, size]
        many = [self.add("reshape", ["input"], many, {"shape": shape}, values.reshape(shape))]
        found = rows.new_empty((*shape, rows.shape[1]))
        rest = {"padding_idx": None, "max_norm": None, "norm_type": 2.0, "scale_grad_by_freq": False, "sparse": False}
        picked = self.add("embedding", ["input", "weight"], [many[0], self.place(weight)], rest, found)
        if given.get("per_sample_weights") is not None:
            factors = given["per_sample_weights"].meta["val"].reshape([*shape, 1])
            factor = self.add("reshape", ["input"], [self.place(given["per_sample_weights"])], {"shape": [*shape, 1]}, factors)
            picked = self.add("mul", ["input", "other"], [picked, factor], {}, found)
        op = ("sum", "mean", "amax")[mode]
        arguments = {"dim": [1], "keepdim": False} | ({} if op == "amax" else {"dtype": None})
        result = self.add(op, ["input"], [picked], arguments, meta[0])
        return Results(lambda index: result, len(meta))

    op__embedding_bag = op__embedding_bag_forward_only = op_embedding_bag

    def op_index(self, node, given, meta):
        dims = [dim for dim, one in enumerate(given["indices"]) if one is not None]
        places = [self.place(given["input"]), *(self.place(given["indices"][dim]) for dim in dims)]
        if len(dims) == 1 and given["indices"][dims[0]].meta["val"].dim() == 1:
            return self.add("index_select", ["input", "index"], places, {"dim": dims[0]}, meta)
        return self.add("index", [], places, {"dims": dims}, meta)

    def converted(self, node, given, meta):
        if meta.dtype == node.args[0].meta["val"].dtype:
            return self.of[node.args[0]]
        dtype = str(meta.dtype).removeprefix("torch.")
        return self.add("to", ["input"], [self.place(given["input"])], {"dtype": dtype}, meta)

    op_to = op__to_copy = op_type_as = op_float = converted

    def filled(self, node, given, meta):
        name = node.target._schema.name.split("::")[1]
        value = 0 if "zeros" in name else 1 if "ones" in name else given.get("fill_value", given.get("value"))
        if isinstance(value, torch.fx.Node):
            return None
        arguments = {"size": list(map(int, meta.shape)), "fill_value": plain(value), "dtype": str(meta.dtype).removeprefix("torch.")}
        return self.add("full", [], [], arguments, meta)

    op_zeros = op_ones = op_full = op_zeros_like = op_ones_like = op_full_like = op_new_zeros = op_new_ones = op_new_full = filled
    op_scalar_tensor = filled

    def op_arange(self, node, given, meta):
        arguments = {"start": given.get("start") or 0, "step": given.get("step") or 1, "length": int(meta.shape[0]),
                     "dtype": str(meta.dtype).removeprefix("torch.")}
        return self.add("arange", [], [], arguments, meta)

    def extremum(self, node, given, meta):
        """`max` and `min` are three operators: of two tensors, along a dimension, and of everything."""
        name = node.target._schema.name.split("::")[1]
        overload = node.target._overloadname
        if overload == "other":
            return self.emit("maximum" if name == "max" else "minimum", given, meta)
        if overload == "dim":
            return None
        return self.add("a" + name, ["input"], [self.place(given["input"])], {"dim": list(range(node.args[0].meta["val"].dim())), "keepdim": False}, meta)

    op_max = op_min = extremum

    def op_elu(self, node, given, meta):
        """ATen's has two scales more; with some of them it is `celu` or `selu`."""
        alpha, scale, inner = (given.pop(name) for name in ("alpha", "scale", "input_scale"))
        if (scale, inner) == (1, 1):
            return self.emit("elu", {**given, "alpha": alpha}, meta)
        if scale == 1 and inner * alpha == 1:
            return self.emit("celu", {**given, "alpha": alpha}, meta)
        raise CaptureError("translate", "`elu` with a scale", "elu", self.line())

    def op_div(self, node, given, meta):
        mode = given.get("rounding_mode")
        if mode is None:
            return None
        op = "floor_divide" if mode == "floor" else "div_trunc"
        return self.emit(op, {name: given[name] for name in ("input", "other")}, meta)

    def op_conv(self, node, given, meta):
        """Padding by name becomes numbers."""
        padding = given["padding"]
        if not isinstance(padding, str):
            return None
        space = len(meta.shape) - 2
        if padding == "valid":
            given["padding"] = [0] * space
            return self.emit(node.target._schema.name.split("::")[1], given, meta)
        kernel = node.args[1].meta["val"].shape[2:]
        total = [given["dilation"][i % len(given["dilation"])] * (int(kernel[i]) - 1) for i in range(space)]
        if any(one % 2 for one in total):
            raise CaptureError("translate", "`padding='same'` with an even kernel pads unevenly; pad the input first", "conv", self.line())
        given["padding"] = [one // 2 for one in total]
        return self.emit(node.target._schema.name.split("::")[1], given, meta)

    op_conv1d = op_conv2d = op_conv3d = op_conv

    def recurrent(self, node, given, meta):
        """`lstm`, `gru` and `rnn_tanh`: the input, the states, then the weights layer by layer."""
        op = node.target._schema.name.split("::")[1]
        states = given["hx"] if isinstance(given["hx"], (list, tuple)) else [given["hx"]]
        places = [self.place(one) for one in (given["input"], *states, *given["params"])]
        arguments = {name: given[name] for name in ("has_biases", "num_layers", "bidirectional", "batch_first")}
        return self.add(op, [], places, arguments, meta)

    op_lstm = op_gru = op_rnn_tanh = op_rnn_relu = recurrent

    def resized(self, node, given, meta):
        """ATen has an operator for each mode and number of dimensions."""
        name = node.target._schema.name.split("::")[1]
        scales = given.get("scale_factors")
        arguments = {
            "size": None if scales else list(map(int, meta.shape[2:])), "scale_factor": plain(scales) if scales else None,
            "mode": name.removeprefix("upsample_").rstrip("123d"), "align_corners": given.get("align_corners") or None, "antialias": False,
        }
        return self.add("interpolate", ["input"], [self.place(given["input"])], arguments, meta)

    op_upsample_nearest1d = op_upsample_nearest2d = op_upsample_nearest3d = op_upsample_linear1d = resized
    op_upsample_bilinear2d = op_upsample_trilinear3d = op_upsample_bicubic2d = resized

    def op_cdist(self, node, given, meta):
        mode = {None: "use_mm_for_euclid_dist_if_necessary", 1: "use_mm_for_euclid_dist", 2: "donot_use_mm_for_euclid_dist"}
        return self.emit("cdist", {**given, "compute_mode": mode.get(given["compute_mode"], mode[None])}, meta)

    def op_scaled_dot_product_attention(self, node, given, meta):
        if given.get("dropout_p"):
            raise CaptureError("translate", "attention with dropout is random")
        return None


