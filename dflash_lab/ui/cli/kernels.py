"""`dflash-lab kernels`: the lab's own operations, checked and timed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_lab.core.kernels import OPS
from dflash_lab.ui.cli.options import check_writable
from dflash_lab.ui.cli.output import INTERRUPTED, Output, Result, json_text, story, write_file

if TYPE_CHECKING:
    from dflash_lab.core.kernels.bench import Ceilings, Timing
    from dflash_lab.core.kernels.check import CaseCheck

ops_option = click.option("--op", "ops", type=click.Choice(OPS), multiple=True, help="Only this operation; repeatable.")


@click.group()
def kernels() -> None:
    """List, check and time the lab's own operations."""


@kernels.command("list")
@story
def list_(out: Output) -> Result:
    """Every operation, and whether its Triton kernel can run here."""
    import torch

    from dflash_lab.core.errors import BackendError
    from dflash_lab.core.kernels.launch import require_triton
    from dflash_lab.core.kernels.opspec import load_spec

    try:
        require_triton()
        path = "compiled" if torch.cuda.is_available() else "interpreter"
        runs = f"kernels run {'compiled, on the GPU' if path == 'compiled' else 'in the interpreter, for checking'}"
    except BackendError as error:
        path, runs = None, str(error)
    found = [
        {"name": spec.name, "summary": spec.summary, "dtypes": [_name(dtype) for dtype in spec.tolerance]}
        for spec in map(load_spec, OPS)
    ]
    width = max(map(len, OPS))
    lines = [f"{op['name']:<{width}}  {op['summary']}" for op in found]
    return Result({"ops": found, "triton": path}, "\n".join([*lines, runs]))


@kernels.command()
@ops_option
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@story
def check(out: Output, ops: Sequence[str], device: str) -> Result:
    """Compare the Triton kernels with their references in float64, at odd sizes.

    On a CPU they run in Triton's interpreter, in float32 only.
    """
    import torch

    from dflash_lab.core.errors import BackendError
    from dflash_lab.core.kernels.check import check_ops, num_checks
    from dflash_lab.core.kernels.launch import interpreting, require_triton

    require_triton()
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise BackendError("--device cuda: torch sees no CUDA device on this machine; use --device cpu")
    place = torch.device("cuda" if has_gpu and device != "cpu" else "cpu")
    names, checks = ops or OPS, []
    with out.progress("checking", num_checks(names, place)) as advance:
        for found in check_ops(names, place):
            checks.append(found)
            advance()
    passed = all(found.passed for found in checks)
    document = {
        "passed": passed,
        "num_checked": len(checks),
        **_setting(place, "interpreter" if interpreting() else "compiled"),
        "checks": [{**dataclasses.asdict(found), "passed": found.passed} for found in checks],
    }
    return Result(document, _checks_text(checks), 0 if passed else 1)


@kernels.command()
@ops_option
@click.option("--out", "out_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON to FILE too.")
@story
def bench(out: Output, ops: Sequence[str], out_file: Path | None) -> Result:
    """Time the Triton kernels at published sizes on a GPU, each after its check.

    Beside them: the reference, the reference under torch.compile, and the least time that the bytes and operations
    take on this chip.
    """
    check_writable(out_file, "--out")

    from dflash_lab.core.kernels.bench import bench_ops, measure_ceilings, num_timings, require_gpu

    place = require_gpu()
    ceilings = measure_ceilings(place)
    names, timings = ops or OPS, []
    with out.progress("timing", num_timings(names)) as advance, contextlib.suppress(KeyboardInterrupt):
        for timing in bench_ops(names, place, ceilings):
            timings.append(timing)
            advance()
    passed = all(timing.check.passed for timing in timings)
    finished = len(timings) == num_timings(names)
    document = {
        "passed": passed,
        **_setting(place, "compiled"),
        "ceilings": dataclasses.asdict(ceilings),
        "timings": [_timing(timing) for timing in timings],
    }
    if out_file is not None:
        write_file(out_file, json_text(document, indent=2) + "\n")
    return Result(document, _timings_text(timings, ceilings), (0 if passed else 1) if finished else INTERRUPTED)


def _setting(device: Any, path: str) -> dict[str, Any]:
    import triton

    from dflash_lab.core.provenance import provenance

    return {"device": device.type, "path": path, "triton": triton.__version__, "provenance": provenance()}


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _checks_text(checks: Sequence[CaseCheck]) -> str:
    """A line for each operation and dtype, with its worst error; then a line for each case that failed."""
    groups: dict[tuple[str, str], list[CaseCheck]] = {}
    for found in checks:
        groups.setdefault((found.op, found.dtype), []).append(found)
    lines = [
        f"{op:<16}  {dtype:<8}  {len(group):>2} cases  worst {max(_worst(found) for found in group):.1e}"
        f" of {group[0].tolerance:.0e}  {'passed' if all(found.passed for found in group) else 'FAILED'}"
        for (op, dtype), group in groups.items()
    ]
    for found in checks:
        if not found.passed:
            wrong = [f"{name} {error:.1e}" for name, error in found.errors.items() if error > found.tolerance]
            lines.append(f"{found.op} {found.dtype}, {found.case}: {'; '.join([*found.faults, *wrong])}")
    return "\n".join(lines)


def _worst(found: CaseCheck) -> float:
    return max(found.errors.values(), default=float("inf"))


def _timing(timing: Timing) -> dict[str, Any]:
    """JSON values with the ratios that readers look for; null where nothing was measured."""

    def ratio(over: float | None) -> float | None:
        return None if over is None or timing.kernel_us is None else over / timing.kernel_us

    return {
        **dataclasses.asdict(timing),
        "share_of_floor": ratio(timing.floor_us),
        "speedup_vs_torch": ratio(timing.torch_us),
        "speedup_vs_compiled": ratio(timing.compiled_us),
        "speedup_vs_other": ratio(timing.other_us),
    }


def _timings_text(timings: Sequence[Timing], ceilings: Ceilings) -> str:
    """A line for each case: microseconds, share of the floor, ratios."""
    lines = [
        f"this chip copies {ceilings.bytes_s / 1e12:.2f} TB/s and multiplies {ceilings.flop_s / 1e12:.0f} TFLOP/s; "
        "microseconds of one call:",
        f"{'kernel':>9} {'floor':>9} {'share':>6} {'torch':>9} {'compiled':>9} {'other':>9}",
    ]
    for timing in timings:
        name = f"{timing.op}, {timing.case}"
        if timing.kernel_us is None:
            lines.append(f"no time, its check failed: {name}")
            continue
        other = "" if timing.other_us is None else f"{timing.other_us:.2f}"
        compiled = "fails" if timing.compiled_us is None else f"{timing.compiled_us:.2f}"
        lines.append(
            f"{timing.kernel_us:9.2f} {timing.floor_us:9.2f} {timing.floor_us / timing.kernel_us:6.0%} "
            f"{timing.torch_us:9.2f} {compiled:>9} {other:>9}  {name}"
        )
    if any(timing.other_us is not None for timing in timings):
        lines.append("other: compiled edge scores, then a Triton walk")
    return "\n".join(lines)
