"""`edge_walk` as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dflash_lab.core.kernels.edge_walk.reference import EdgeWalk, edge_walk
from dflash_lab.core.kernels.opspec import (
    OpSpec,
    rand,
    randn,
    relative_error,
    some_ids,
    uniform_misses,
    widen,
)


@dataclass(frozen=True)
class Case:
    """Sizes of one call."""

    batch: int
    """B."""
    positions: int
    """K."""
    candidates: int
    """C."""
    rank: int
    """R."""
    vocab: int
    """V, rows of the codebooks."""
    temperature: float = 0.0
    """0 is greedy."""
    want_edges: bool = False
    """Whether the edge scores are written."""


def weights(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    shape = (case.vocab, case.rank)
    return {
        f"{name}_codebook": randn(*shape, device=device, dtype=dtype, generator=generator)
        for name in ("predecessor", "successor")
    }


def inputs(case: Case, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    on = {"device": device, "generator": generator}
    lattice = (case.batch, case.positions, case.candidates)
    unary = randn(*lattice, dtype=torch.float32, **on)
    # Scores of about the unary ones' size, so that neither decides alone.
    hidden = randn(*lattice[:2], case.rank, dtype=torch.float32, **on) * case.rank**-0.5
    return {
        "unary": unary.sort(-1, descending=True).values,
        "anchor_ids": some_ids(case.vocab, case.batch, **on),
        "candidate_ids": some_ids(case.vocab, *lattice, **on),
        "hidden": hidden,
        "temperature": case.temperature,
        "uniforms": rand(*lattice[:2], **on) if case.temperature else None,
        "want_edges": case.want_edges,
    }


def judge(arguments: dict[str, Any], found: EdgeWalk) -> dict[str, float]:
    """The path's scores against the best ones from the same predecessors; q and edges against float64."""
    wide = {**widen(arguments), "want_edges": True}
    edges = edge_walk(**wide).edges
    candidates = edges.shape[-1]
    if not bool(((found.path >= 0) & (found.path < candidates)).all()):
        return {"path": float("inf")}
    came = torch.cat((torch.zeros_like(found.path[:, :1]), found.path[:, :-1]), dim=1)
    rows = edges.gather(2, came[:, :, None, None].expand(-1, -1, 1, candidates))[:, :, 0]
    errors = {}
    if arguments["want_edges"]:
        errors["edges"] = relative_error(found.edges, edges)
    if arguments["temperature"] == 0:
        chosen = rows.gather(2, found.path[:, :, None])[:, :, 0]
        return errors | {"path": relative_error(chosen, rows.max(-1).values)}
    q = torch.softmax(rows / arguments["temperature"], dim=-1)
    misses = uniform_misses(q.flatten(0, 1), arguments["uniforms"].flatten(), found.path.flatten(), slack=1e-5)
    return errors | {"q": relative_error(found.q, q), "path": misses}


def minimum_bytes(case: Case, dtype: torch.dtype) -> int:
    cells = case.batch * case.positions * case.candidates
    codes = (cells + case.batch * case.positions) * case.rank * dtype.itemsize
    rows = case.batch * case.positions * (4 * case.rank + 8)
    written = 4 * cells * ((case.temperature > 0) + case.want_edges * case.candidates)
    return codes + rows + cells * (4 + 8) + written


def flops(case: Case) -> int:
    return 2 * case.batch * case.positions * case.candidates * case.rank


SPEC = OpSpec(
    name="edge_walk",
    summary="edge scores and the walk through the candidate lattice",
    reference=edge_walk,
    weights=weights,
    inputs=inputs,
    judge=judge,
    # Scores are float32 whatever the codebooks' dtype.
    tolerance=dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), 1e-5),
    cases=(
        Case(1, 1, 1, 64, 50),
        Case(2, 3, 3, 37, 50),
        Case(8, 7, 17, 64, 1000, want_edges=True),
        Case(1, 7, 16, 256, 49152, temperature=1.0),
        Case(3, 15, 5, 20, 50, temperature=0.7, want_edges=True),
        Case(33, 3, 64, 64, 1000, temperature=1.3),
    ),
    published=tuple(
        Case(batch, positions, 16, 256, 248320, temperature)
        for batch in (1, 8, 32)
        for positions in (3, 7, 15)
        for temperature in (0.0, 1.0)
    ),
    bytes=minimum_bytes,
    flops=flops,
)
