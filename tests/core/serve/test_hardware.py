"""GPU names by the driver's library, whatever is missing of it."""

from __future__ import annotations

import ctypes

import pytest

from dflash_lab.core.serve.hardware import gpu_names


class Nvml:
    """A driver with these GPUs; `broken` functions answer with an error."""

    def __init__(self, names: list[str], broken: str = "") -> None:
        self.names = names
        self.broken = broken
        self.closed = 0

    def _code(self, name: str) -> int:
        return 999 if name == self.broken else 0

    def nvmlInit_v2(self) -> int:
        return self._code("init")

    def nvmlDeviceGetCount_v2(self, count) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_uint))[0] = len(self.names)
        return self._code("count")

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device) -> int:
        self.asked = index
        return self._code("handle") if index == 0 else 0

    def nvmlDeviceGetName(self, device, name, size: int) -> int:
        name.value = self.names[self.asked].encode()
        return 0

    def nvmlShutdown(self) -> None:
        self.closed += 1


def test_names_come_in_the_drivers_order():
    nvml = Nvml(["NVIDIA GB300", "NVIDIA H200"])
    assert gpu_names(lambda name: nvml) == ("NVIDIA GB300", "NVIDIA H200")
    assert nvml.closed == 1


@pytest.mark.parametrize("broken", ["init", "count"])
def test_a_driver_that_does_not_answer_gives_no_names(broken):
    assert gpu_names(lambda name: Nvml(["NVIDIA GB300"], broken)) == ()


def test_a_gpu_that_is_lost_is_left_out():
    assert gpu_names(lambda name: Nvml(["NVIDIA GB300", "NVIDIA H200"], "handle")) == ("NVIDIA H200",)


def test_no_library_or_another_one_is_no_error():
    def missing(name: str):
        raise OSError(f"{name}: cannot open shared object file")

    assert gpu_names(missing) == ()
    assert gpu_names(lambda name: object()) == ()
