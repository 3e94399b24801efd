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


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    if not tensor.is_contiguous():
        raise ValueError("kernels take contiguous tensors; call .contiguous() first")
    return ctypes.c_void_p(tensor.data_ptr())


def _argument(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return _pointer(value)
    if isinstance(value, (bool, int)):
        return ctypes.c_int64(value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    if value is None:
        return ctypes.c_void_p(None)
    raise TypeError(f"kernels take tensors, ints, floats and None, not {type(value).__name__}")


class Kernels:
    """The launchers of one built library, as attributes."""

    def __init__(self, library: ctypes.CDLL, cuda: bool, with_status: frozenset[str]) -> None:
        self._library = library
        self._cuda = cuda
        self._with_status = with_status

    def __getattr__(self, name: str):
        try:
            function = self._library[name]
        except AttributeError:
            raise AttributeError(f'no extern "C" launcher named {name!r} in kernels/') from None
        function.restype = ctypes.c_int
        cuda, has_status = self._cuda, name in self._with_status

        def launch(*arguments: object) -> None:
            stream = _stream(torch._C._cuda_getDevice()) if cuda else None
            code = function(*map(_argument, arguments), ctypes.c_void_p(stream))
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
