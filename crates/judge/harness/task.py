"""A task's own code: building its module and inputs, and running the reference in the precisions the judge needs.

`model.py` is trusted not to attack, but not to be right: whatever it raises becomes a `TaskError` with a code a person can
act on. Everything runs under `no_grad`, in `eval()`, with TF32 off unless a run asks for it.
"""

from __future__ import annotations

import contextlib
import copy
import linecache
import math
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from values import FLOATS, NAMES, leaves, tensors, tree_map

GEMM_OPS = frozenset(
    "mm addmm bmm baddbmm addbmm linear matmul convolution _convolution cudnn_convolution cudnn_convolution_transpose "
    "mkldnn_convolution conv_depthwise3d _conv_depthwise2d convolution_overrideable slow_conv3d mkldnn_rnn_layer "
    "_cudnn_rnn lstm gru rnn_tanh rnn_relu _native_multi_head_attention _transformer_encoder_layer_fwd _trilinear "
    "_addmm_activation _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention "
    "_scaled_dot_product_attention_math _cdist_forward _flash_attention_forward _efficient_attention_forward".split()
)
# Kernels that stop the whole CUDA context when a value is out of range, and casts that turn floats into such values.
ASSERTING_OPS = frozenset("binary_cross_entropy multinomial bernoulli".split())
# Operators after which an input need not have been read in full: the least traffic is then unknown.
PARTIAL_OPS = frozenset(
    "slice select narrow index index_select gather take embedding embedding_bag tril triu diag diagonal where masked_select "
    "masked_fill split split_with_sizes chunk unbind max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d "
    "convolution upsample_nearest2d roll expand unfold as_strided constant_pad_nd".split()
)
# Where nothing but these ran, honest work is relatively exact in small elements too: none of them cancels or saturates in
# one way of computing it and not in another (`gelu`, `softplus` and `sigmoid` do).
ALL_SCALES_OPS = frozenset(
    "exp exp2 mul div sqrt rsqrt square pow sum mean amax amin max min add sub rsub neg abs relu clamp clamp_min clamp_max mm bmm "
    "addmm matmul _cdist_forward _euclidean_dist _softmax softmax view reshape _unsafe_view unsqueeze squeeze expand "
    "transpose permute t select slice cat clone contiguous detach alias copy_ _to_copy empty empty_like zeros zeros_like ones "
    "ones_like full full_like fill_ zero_ arange mul_ add_ sub_ div_ exp_ linalg_vector_norm norm".split()
)
DOUBLE_SECONDS = 10.0  # a longer float64 run is made once, not for every exact draw
FREE_SHARE = 0.25
SLICES = 16


class TaskError(Exception):
    """The task is at fault; `code` is one of PROTOCOL.md's refusals."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class IndexCall:
    """A call of the reference whose integer result chooses elements of `source`."""

    source: torch.Tensor
    version: int
    dims: int  # trailing dimensions an index runs over, or 0: along `dim`
    dim: int | None  # None: over the flattened source
    distinct: bool
    indices: torch.Tensor

    @property
    def intact(self) -> bool:
        return self.source._version == self.version


@contextlib.contextmanager
def blame(code: str, doing: str) -> Iterator[None]:
    """Turns whatever model.py raises inside into a `TaskError`."""
    try:
        yield
    except TaskError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise TaskError("too_large", f"{doing} ran out of memory: {first_sentences(error)}") from error
    except Exception as error:
        if "allocate memory" in str(error):
            raise TaskError("too_large", f"{doing} ran out of memory: {first_sentences(error)}") from error
        raise TaskError(code, f"{doing} raised {type(error).__name__}: {first_sentences(error)}") from error


def first_sentences(error: BaseException) -> str:
    """PyTorch goes on with an account of every process on the device, and advice."""
    return str(error).strip().split(" GPU 0 has a total", 1)[0][:600]


@contextlib.contextmanager
def math_mode(tf32: bool) -> Iterator[None]:
    """no_grad, and TF32 as asked. Set before every run: model.py may have changed the flags."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


def reseed(seed: int) -> None:
    """Every generator model.py may reach for. (`torch.manual_seed` also asks after devices that are not there, which takes
    a millisecond and remembers every asking.)"""
    torch.default_generator.manual_seed(seed % (1 << 64))
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed % (1 << 64))
    random.seed(seed)


def operator_name(func: Any) -> str:
    return func.name().split("::")[-1].split(".")[0]


# ---- modes -----------------------------------------------------------------------------------------------------------


class _Mode(TorchDispatchMode):
    """A mode of ours: none is ever compiled, so none needs the guard whose first use imports the compiler for seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Recorder(_Mode):
    """Notes which operators ran, counts the work of GEMMs and convolutions, and keeps the calls that made indices.

    The counts are PyTorch's own; its FlopCounterMode would do, but importing what it needs takes five seconds.
    """

    ALONG = {"argmax": 0, "argmin": 0, "max": 1, "min": 1, "topk": 1, "sort": 1, "kthvalue": 1, "median": 1, "nanmedian": 1,
             "mode": 1, "cummax": 1, "cummin": 1, "argsort": 0}
    POOLS = {"max_pool2d_with_indices": 2, "max_pool3d_with_indices": 3, "adaptive_max_pool2d": 2, "adaptive_max_pool3d": 3,
             "fractional_max_pool2d": 2, "fractional_max_pool3d": 3}

    def __init__(self, keep_calls: bool) -> None:
        super().__init__()
        self.operators: set[str] = set()
        self.casts_to_index = False
        self.calls: list[IndexCall] = []
        self.flops = 0
        self._keep = keep_calls

    def __torch_dispatch__(self, func: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = operator_name(func)
        self.operators.add(name)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=result)
        if name in ("_to_copy", "to") and isinstance(result, torch.Tensor) and args[0].is_floating_point():
            self.casts_to_index |= not result.is_floating_point()
        if self._keep and (name in self.ALONG or name in self.POOLS):
            self._note(func, name, args, kwargs or {}, result)
        return result

    def _note(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        place = self.ALONG.get(name, 1)
        indices = result[place] if isinstance(result, (tuple, list)) and len(result) > place else result
        if not isinstance(indices, torch.Tensor) or indices.dtype != torch.int64:
            return  # max(x) without a dimension, for one
        given = {argument.name: value for argument, value in zip(func._schema.arguments, args)} | kwargs
        default = {"topk": -1, "sort": -1, "kthvalue": -1, "mode": -1, "argsort": -1}.get(name)
        source = args[0]
        distinct = name in ("topk", "sort", "argsort")
        dims = self.POOLS.get(name, 0)
        self.calls.append(IndexCall(source, source._version, dims, given.get("dim", default), distinct, indices))


class OperandRounding(_Mode):
    """TF32 as a GPU does it, where there is none: operands of GEMMs and convolutions keep ten bits of mantissa."""

    def __torch_dispatch__(self, func: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if operator_name(func) in GEMM_OPS:
            args = tuple(_round_operands(item) for item in args)
        return func(*args, **(kwargs or {}))


def _round_operands(item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        return type(item)(_round_operands(part) for part in item)
    if isinstance(item, torch.Tensor) and item.dtype == torch.float32 and item.dim() >= 2:
        return round_to_tf32(item)
    return item


def round_to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


class Doubling(_Mode):
    """Reads every floating dtype model.py names as float64, so that a hard-coded one does not spoil the exact run."""

    def __torch_dispatch__(self, func: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        def widen(item: Any) -> Any:
            return torch.float64 if item in FLOATS.values() else item

        plain = tuple(widen(item) if isinstance(item, torch.dtype) else item for item in args)
        named = {key: widen(item) if isinstance(item, torch.dtype) else item for key, item in (kwargs or {}).items()}
        return func(*plain, **named)


class OwnEpsilon(TorchFunctionMode):
    """An RMS norm without an epsilon takes that of the type it computes in: float32's, of which float64 must not make another."""

    def __torch_function__(self, func: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if getattr(func, "__name__", "") == "rms_norm":
            given = dict(zip(("input", "normalized_shape", "weight", "eps"), args)) | (kwargs or {})
            if given.get("eps") is None:
                return func(**(given | {"eps": torch.finfo(torch.float32).eps}))
        return func(*args, **(kwargs or {}))


class SizeGuard(TorchFunctionMode):
    """Refuses tensors that would not fit before they are made: an allocation that succeeds can still end the process."""

    FACTORIES = frozenset("rand randn randint ones zeros empty full normal randperm arange".split())

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._left = limit

    def __torch_function__(self, func: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if getattr(func, "__name__", "") in self.FACTORIES:
            given = [(kwargs or {}).get("size"), *args]
            sizes = next((item for item in given if isinstance(item, (tuple, list))), args)
            self._left -= 4 * math.prod(item for item in sizes if type(item) is int)
            if self._left < 0:
                raise TaskError("too_large", "the task's tensors do not fit in a quarter of the free memory")
        return func(*args, **(kwargs or {}))


# ---- the module ------------------------------------------------------------------------------------------------------


def execute(source: str) -> types.ModuleType:
    """model.py as a module named `model`, visible to `inspect` through linecache."""
    torch.set_default_dtype(torch.float32)
    try:
        code = compile(source, "model.py", "exec")
    except (SyntaxError, ValueError) as error:
        raise TaskError("syntax", f"model.py does not parse: {error}") from None
    made = types.ModuleType("model")
    made.__file__ = "model.py"
    linecache.cache["model.py"] = (len(source), None, source.splitlines(True), "model.py")
    sys.modules["model"] = made
    with blame("model_raised", "importing model.py"):
        exec(code, made.__dict__)
    if not isinstance(getattr(made, "Model", None), type) or not issubclass(made.Model, torch.nn.Module):
        raise TaskError("missing_model", "model.py has no class `Model` derived from torch.nn.Module")
    if not callable(getattr(made, "get_inputs", None)):
        raise TaskError("missing_inputs", "model.py has no function `get_inputs`")
    return made


def init_inputs(module: types.ModuleType) -> list[Any]:
    if not hasattr(module, "get_init_inputs"):
        return []
    with blame("model_raised", "get_init_inputs()"):
        made = module.get_init_inputs()
    if not isinstance(made, (list, tuple)):
        raise TaskError("unsupported_input", "get_init_inputs() must return a list")
    return list(made)


def _on_device(target: str, make: Callable[[], Any]) -> Any:
    """What `make` returns, made on the GPU where its code lets us: drawing there is far faster than copying."""
    if target == "cuda":
        state = torch.get_rng_state()
        try:
            with torch.device("cuda"):
                return make()
        except torch.OutOfMemoryError:
            raise
        except Exception:
            torch.set_rng_state(state)
    return make()


def build(module: types.ModuleType, init: list[Any], target: str, seed: int) -> torch.nn.Module:
    reseed(seed)
    with blame("model_raised", "Model(...)"), torch.no_grad():
        model = _on_device(target, lambda: module.Model(*copy.deepcopy(init)))
        if target == "cuda":
            model = model.cuda()
            _move_attributes(model, lambda tensor: tensor.cuda())
        model = model.eval()
    return model.requires_grad_(False)


def _move_attributes(model: torch.nn.Module, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Tensors a module holds as plain attributes follow neither `.cuda()` nor `.double()`."""
    own = ("_parameters", "_buffers", "_modules")
    for part in model.modules():
        for name, value in list(part.__dict__.items()):
            if name not in own and isinstance(value, (torch.Tensor, list, tuple, dict)) and tensors(value):
                part.__dict__[name] = tree_map(move, value)


def inputs(module: types.ModuleType, variant: int, target: str, seed: int) -> list[Any]:
    """The inputs of one call: variant 0 is `get_inputs()`, the others `get_inputs_variants()` in order."""
    reseed(seed)
    with blame("model_raised", "get_inputs()"), torch.no_grad():
        made = _on_device(target, lambda: _variant(module, variant))
    if not isinstance(made, (list, tuple)):
        raise TaskError("unsupported_input", "get_inputs() must return a list")
    for leaf in leaves(list(made)):
        _supported(leaf.kind, leaf.value)
    return tree_map(lambda tensor: tensor.detach().to(target), list(made))


def _variant(module: types.ModuleType, variant: int) -> Any:
    return module.get_inputs() if variant == 0 else module.get_inputs_variants()[variant - 1]


def _supported(kind: str, value: Any) -> None:
    if kind == "tensor":
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
            raise TaskError("unsupported_input", f"an input is a {type(value).__name__} with layout {value.layout}")
        if value.dtype not in NAMES:
            raise TaskError("unsupported_input", f"an input is a tensor of {value.dtype}")
    elif kind not in ("int", "float", "bool", "NoneType", "str", "sequence", "dict"):
        raise TaskError("unsupported_input", f"an input is of type {kind}")


def variant_count(module: types.ModuleType) -> int:
    if not callable(getattr(module, "get_inputs_variants", None)):
        return 1
    with blame("model_raised", "get_inputs_variants()"), torch.no_grad():
        return 1 + len(module.get_inputs_variants())


# ---- running it ------------------------------------------------------------------------------------------------------


class Reference:
    """The task's module with its present weights, and every way the judge runs it."""

    def __init__(self, module: types.ModuleType, init: list[Any], target: str) -> None:
        self.module = module
        self.init = init
        self.target = target
        self.model: torch.nn.Module | None = None
        self.mutates = False
        self.calibrated = False
        self.double = "all"
        self.is_wide = False  # the task itself computes in float64
        self._wide: torch.nn.Module | None = None

    def use(self, model: torch.nn.Module) -> None:
        self.model, self._wide = model, None

    def state(self) -> dict[str, torch.Tensor]:
        return self.model.state_dict() if self.model is not None else {}

    def inputs(self, variant: int, seed: int) -> list[Any]:
        return inputs(self.module, variant, self.target, seed)

    def run(self, arguments: list[Any], mode: TorchDispatchMode | None = None, tf32: bool = False, wait: bool = True) -> Any:
        """The answer in the task's own precision. The arguments are left as they were.

        Without `wait` the device may still be at it, and a failure there is met by whoever waits next.
        """
        self.is_wide = any(tensor.dtype == torch.float64 for tensor in tensors([arguments, list(self.state().values())]))
        given = tree_map(torch.clone, arguments) if self.mutates else arguments
        before = [tensor._version for tensor in tensors(given)]
        with blame("model_raised", "Model.forward"), math_mode(tf32), mode or contextlib.nullcontext():
            answer = self.model(*given)
        if wait:
            self._synchronize()
        if not self.mutates and before != [tensor._version for tensor in tensors(given)]:
            self.mutates = True
            raise InputsChanged
        # An answer that shares memory with an input would follow that input's next change.
        spans = {tensor.untyped_storage().data_ptr() for tensor in tensors([given, list(self.state().values())])}
        return tree_map(lambda tensor: _own(tensor, spans), answer)

    def run_tf32(self, arguments: list[Any]) -> Any:
        """Eager with TF32 on; on the CPU, which has none, with the operands rounded the same way."""
        if self.target == "cuda":
            return self.run(arguments, tf32=True)
        return self.run(arguments, mode=OperandRounding())

    def run_double(self, arguments: list[Any], answer: Any) -> Any | None:
        """The answer in float64, or None where it cannot be had; `self.double` says how it is had."""
        if self.double == "none":
            return None
        started = time.monotonic()
        exact = None
        size = sum(tensor.nbytes for tensor in tensors([arguments, answer, list(self.state().values())]))
        if self.double in ("all", "one_draw") and 2 * size <= FREE_SHARE * free_memory(self.target):
            exact = self._attempt(lambda: self._widened(arguments))
        if exact is None or not _same_shape(exact, answer):
            exact = self._attempt(lambda: self._sliced(arguments, answer))
            self.double = "none" if exact is None else "sliced"
        if time.monotonic() - started > DOUBLE_SECONDS and self.double == "all":
            self.double = "one_draw"
        return exact

    def release(self) -> None:
        """Drops what can be made again."""
        self._wide = None
        if self.target == "cuda":
            torch.cuda.empty_cache()

    def _attempt(self, make: Callable[[], Any]) -> Any | None:
        try:
            return make()
        except Exception:  # float64 is ours to want: a module that cannot do it is not at fault
            self.release()
            return None

    def _widened(self, arguments: list[Any]) -> Any:
        if self._wide is None:
            self._wide = widen_model(self.model)
        return self.run_wide(self._wide, arguments)

    def run_wide(self, model: torch.nn.Module, arguments: list[Any]) -> Any:
        given = tree_map(widen, arguments)
        if self.mutates:
            given = tree_map(torch.clone, given)
        torch.set_default_dtype(torch.float64)
        try:
            with math_mode(tf32=False), Doubling(), contextlib.nullcontext() if self.is_wide else OwnEpsilon():
                answer = model(*given)
        finally:
            torch.set_default_dtype(torch.float32)
        self._synchronize()
        return tree_map(widen, answer)

    def _sliced(self, arguments: list[Any], answer: Any) -> Any:
        """Slices along the first dimension, where input and output share it; the caller compares them with the whole."""
        counts = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors(answer)}
        (rows,) = counts  # several sizes: not a batch
        if rows < 2 or not any(tensor.dim() and tensor.shape[0] == rows for tensor in tensors(arguments)):
            raise ValueError("no common batch")
        step = max(1, rows // SLICES)
        parts = []
        for start in range(0, rows, step):
            cut = tree_map(lambda t: t[start : start + step] if t.dim() and t.shape[0] == rows else t, arguments)
            parts.append(tensors(self._widened(cut)))
        joined = iter([torch.cat(column) for column in zip(*parts)])
        exact = tree_map(lambda _: next(joined), answer)
        if not _agree(exact, answer):
            raise ValueError("the slices are not the whole")
        return exact

    def _synchronize(self) -> None:
        if self.target == "cuda":
            torch.cuda.synchronize()


class InputsChanged(Exception):
    """The reference wrote to its inputs: draw them again, from now on it runs on copies."""


def _own(tensor: torch.Tensor, spans: set[int]) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.clone() if tensor.untyped_storage().data_ptr() in spans else tensor


def widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.dtype in FLOATS.values() else tensor


def widen_model(model: torch.nn.Module) -> torch.nn.Module:
    wide = copy.deepcopy(model).double()
    _move_attributes(wide, widen)
    return wide


def _same_shape(first: Any, second: Any) -> bool:
    def outline(tree: Any) -> list[Any]:
        return [(leaf.path, leaf.kind, tuple(leaf.value.shape) if leaf.kind == "tensor" else None) for leaf in leaves(tree)]

    return outline(first) == outline(second)


def _agree(exact: Any, answer: Any) -> bool:
    for wide, narrow in zip(tensors(exact), tensors(answer)):
        if wide.shape != narrow.shape:
            return False
        if narrow.dtype in FLOATS.values() and narrow.numel():
            error = torch.linalg.vector_norm((narrow - wide).double())
            if not error <= 1e-2 * torch.linalg.vector_norm(wide - wide.mean()) + 1e-5 * torch.linalg.vector_norm(wide):
                return False
    return True


def free_memory(target: str) -> int:
    """Bytes this process may still take."""
    if target == "cuda":
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
