"""Times of the kernels on a GPU, each after its check: beside torch, torch.compile and the floor of the chip."""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels.check import MOST_ARRIVALS, CaseCheck, check_case
from dflash_lab.core.kernels.launch import interpreting, load_kernel, new_arrivals
from dflash_lab.core.kernels.opspec import OpSpec, describe, load_spec

DTYPE = torch.bfloat16
"""What drafters are published in."""
BEYOND_CACHE = 2 * 64 << 20
"""Bytes of arguments that calls rotate through: more than any L2 holds, for a decoder's step pushes all else out."""
MOST_SETS = 512
"""Sets of arguments at most."""
REPLAYS = 20
"""Timed replays of a graph; their median counts."""


@dataclass(frozen=True)
class Ceilings:
    """What this chip was measured to do."""

    bytes_s: float
    """Read and written by a large copy, per second."""
    flop_s: float
    """Of a large bfloat16 product of random matrices, per second."""


@dataclass(frozen=True)
class Timing:
    """One case; times are of one call in a CUDA graph, in microseconds."""

    op: str
    """Operation."""
    case: str
    """Sizes."""
    check: CaseCheck
    """What its check found at this size; unless it passed there are no times."""
    floor_us: float
    """The larger of bytes over the copy's rate and operations over the product's."""
    kernel_us: float | None = None
    """Our kernel."""
    torch_us: float | None = None
    """The reference, operation by operation."""
    compiled_us: float | None = None
    """The reference under torch.compile; None where that fails."""
    other_us: float | None = None
    """For edge_walk: compiled edge scores, then a Triton walk."""
    not_compiled: str | None = None
    """Why torch.compile fails, in its words."""


def require_gpu() -> torch.device:
    """The device to measure. Raises BackendError, in one line, where there is none."""
    if not torch.cuda.is_available():
        raise BackendError(
            "kernels bench needs a CUDA device and torch sees none on this machine: "
            "run it on one, or check the kernels here with dflash-lab kernels check"
        )
    if interpreting():
        raise BackendError("kernels bench needs compiled kernels and TRITON_INTERPRET=1 is set: unset it")
    return torch.device("cuda")


def measure_ceilings(device: torch.device) -> Ceilings:
    """A kernel that reads and writes 4 GiB each, and a product of 8,192 x 8,192 matrices."""
    source = torch.empty(1 << 30, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    # Not a copy: in a graph that is the copy engine's, which is slower than the multiprocessors.
    copy_us = time_us(lambda: torch.neg(source, out=target), [{}])
    left, right = (torch.randn(8192, 8192, dtype=DTYPE, device=device) for _ in range(2))
    product_us = time_us(lambda: left @ right, [{}])
    return Ceilings(2 * source.nbytes / copy_us * 1e6, 2 * 8192**3 / product_us * 1e6)


def bench_ops(names: Sequence[str], device: torch.device, ceilings: Ceilings) -> Iterator[Timing]:
    """Every published size of the operations."""
    for name in names:
        spec = load_spec(name)
        for case in spec.published:
            yield bench_case(spec, case, device, ceilings)
            torch.cuda.empty_cache()


def num_timings(names: Sequence[str]) -> int:
    """How many there will be."""
    return sum(len(load_spec(name).published) for name in names)


def bench_case(spec: OpSpec, case: Any, device: torch.device, ceilings: Ceilings) -> Timing:
    """Check one size, then time it; no times unless the check passed."""
    floor = 1e6 * max(spec.bytes(case, DTYPE) / ceilings.bytes_s, spec.flops(case) / ceilings.flop_s)
    check = check_case(spec, case, device, DTYPE)
    if not check.passed:
        return Timing(spec.name, describe(case), check, floor)
    sets = _argument_sets(spec, case, device)
    kernel = load_kernel(spec.name, device)
    counters = {}
    if "arrivals" in inspect.signature(kernel).parameters:
        counters["arrivals"] = new_arrivals(MOST_ARRIVALS, device)
    torch.compiler.reset()
    other = None
    if spec.name == "edge_walk":
        from dflash_lab.core.kernels.edge_walk.baseline import compiled_edges_then_walk

        other = time_us(compiled_edges_then_walk(), sets)
    compiled, why = _compiled_us(spec, sets)
    return Timing(
        op=spec.name,
        case=describe(case),
        check=check,
        floor_us=floor,
        kernel_us=time_us(kernel, sets, **counters),
        torch_us=time_us(spec.reference, sets),
        compiled_us=compiled,
        not_compiled=why,
        other_us=other,
    )


def _compiled_us(spec: OpSpec, sets: Sequence[dict[str, Any]]) -> tuple[float | None, str | None]:
    """The time of the compiled reference, or why there is none."""
    try:
        return time_us(torch.compile(spec.reference, dynamic=False), sets), None
    except torch._dynamo.exc.TorchDynamoException as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return None, lines[0][:200]


def _argument_sets(spec: OpSpec, case: Any, device: torch.device) -> list[dict[str, Any]]:
    """Calls with the same weights and new inputs, as many as it takes to leave the cache."""
    generator = torch.Generator(device).manual_seed(1)
    count = min(MOST_SETS, 1 + BEYOND_CACHE // spec.bytes(case, DTYPE))
    weights = spec.weights(case, device, DTYPE, generator)
    return [{**weights, **spec.inputs(case, device, DTYPE, generator)} for _ in range(count)]


@torch.inference_mode()
def time_us(call: Callable[..., Any], sets: Sequence[dict[str, Any]], **more: Any) -> float:
    """Median time of one call: a CUDA graph calls once with each set of arguments and is replayed."""
    stream = torch.cuda.Stream()
    # The arguments may still be on their way.
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call(**sets[0], **more)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for arguments in sets:
            call(**arguments, **more)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPLAYS)]
    for _ in range(3):
        graph.replay()
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) * 1e3 / len(sets)
