"""How a GPU runs at this moment, from the driver's own library: asking `nvidia-smi` takes a tenth of a second and more."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

_SM, _MEMORY = 1, 2
_DIE = 0


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def clocks(uuid: str) -> dict[str, Any]:
    """Clocks, temperature and power of the GPU of that name; empty where the driver does not say."""
    library, device = _library(), ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)) != 0:
        return {}

    def ask(function: str, *arguments: int) -> int | None:
        value = ctypes.c_uint()
        status = getattr(library, function)(device, *map(ctypes.c_uint, arguments), ctypes.byref(value))
        return value.value if status == 0 else None

    power = ask("nvmlDeviceGetPowerUsage")
    return {
        "sm_mhz": ask("nvmlDeviceGetClockInfo", _SM),
        "memory_mhz": ask("nvmlDeviceGetClockInfo", _MEMORY),
        "temperature_c": ask("nvmlDeviceGetTemperature", _DIE),
        "power_w": None if power is None else power / 1000,
    }
