"""What several kernels do on the device."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

PRECISION = tl.constexpr("tf32x3")
"""A float32 product as three on the tensor cores, nearly as exact as one in float32. Half precision is not touched."""


@triton.jit
def follow(OVERLAP: tl.constexpr):
    """Wait until the launch before this one is over, and let the next one start up meanwhile.

    With OVERLAP (see `launch`) a kernel's programs may be there early; before this they touch nothing that changes.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def arrives_last(counter, total):
    """Whether this program is the last of `total` to get here; the counter is zero again afterwards.

    The last one sees everything the others stored before: the barrier orders the program's threads, the atomic the
    programs. It must read with `cache_modifier=".cg"`, past the multiprocessor's own cache.
    """
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == total - 1
    if last:
        tl.store(counter, 0)
    return last
