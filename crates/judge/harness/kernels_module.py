"""`warpsmith_kernels`: calls `extern "C"` launchers with tensors, for solutions in our own form.

    from warpsmith_kernels import kernels
    kernels.softmax(out, x, rows, columns)

Tensors become data pointers, ints and bools `int64_t`, floats `double`; the current stream is appended as `void*` (null on
the CPU). A launcher returns `void` or `int`; a non-zero int is raised.
"""

import ctypes
import types

import torch


_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_device = getattr(torch._C, "_cuda_getDevice", None)


def _kind(value: object) -> type:
    """What a launcher is given for it."""
    if isinstance(value, torch.Tensor) or value is None:
        return ctypes.c_void_p
    if isinstance(value, (bool, int)):
        return ctypes.c_int64
    if isinstance(value, float):
        return ctypes.c_double
    raise TypeError(f"kernels take tensors, ints, floats and None, not {type(value).__name__}")


class Kernels:
    """The launchers of one built library, as attributes."""

    def __init__(self, library: ctypes.CDLL, cuda: bool, with_status: frozenset[str]) -> None:
        self._library = library
        self._cuda = cuda
        self._with_status = with_status

    def __getattr__(self, name: str):
        try:
            self._library[name]
        except AttributeError:
            raise AttributeError(f'no extern "C" launcher named {name!r} in kernels/') from None
        cuda, has_status = self._cuda, name in self._with_status
        # For each way of calling it that was met, the function with its types declared, and which arguments are tensors: a call
        # of a few microseconds has no time to look at them anew.
        known: dict[tuple[type, ...], tuple[object, list[int]]] = {}

        def prepared(arguments: tuple[object, ...]) -> tuple[object, list[int]]:
            typed = self._library[name]
            typed.restype = ctypes.c_int
            typed.argtypes = [*map(_kind, arguments), ctypes.c_void_p]
            places = [place for place, value in enumerate(arguments) if isinstance(value, torch.Tensor)]
            return known.setdefault(tuple(map(type, arguments)), (typed, places))

        def launch(*arguments: object) -> None:
            typed, places = known.get(tuple(map(type, arguments))) or prepared(arguments)
            given = list(arguments)
            for place in places:
                tensor = given[place]
                if not tensor.is_contiguous():
                    raise ValueError("kernels take contiguous tensors; call .contiguous() first")
                given[place] = tensor.data_ptr()
            code = typed(*given, _stream(_device()) if cuda else None)
            # A void launcher leaves whatever was in the register.
            if has_status and code != 0:
                raise RuntimeError(f"{name} returned error {code}")

        setattr(self, name, launch)
        return launch


def module(library: ctypes.CDLL, cuda: bool, with_status: frozenset[str] = frozenset()) -> types.ModuleType:
    """`with_status` names the launchers that the sources declare to return `int`."""
    made = types.ModuleType("warpsmith_kernels", __doc__)
    made.kernels = Kernels(library, cuda, with_status)
    return made
