"""Names of this machine's GPUs by the driver's own library, without a package for it. No GPU is no error."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_NAME_BYTES = 96
"""Length of NVML's name buffer."""


def gpu_names(load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> tuple[str, ...]:
    """The NVIDIA GPUs of this machine in the driver's order; empty without library, driver or GPU."""
    try:
        nvml = load("libnvidia-ml.so.1")
    except OSError:
        return ()
    try:
        if nvml.nvmlInit_v2() != 0:
            return ()
    except AttributeError:
        return ()
    try:
        return _names(nvml)
    finally:
        nvml.nvmlShutdown()


def _names(nvml: ctypes.CDLL) -> tuple[str, ...]:
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return ()
    names = []
    for index in range(count.value):
        device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
        found = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        if found == 0 and nvml.nvmlDeviceGetName(device, name, _NAME_BYTES) == 0:
            names.append(name.value.decode(errors="replace"))
    return tuple(names)
