"""Another arrangement to measure `edge_walk` against: compiled edge scores, written out, then a Triton walk.

SGLang's, made anew from its description: torch.compile makes `[B, K, C, C]`, one program a request walks through them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.kernels.edge_walk.reference import EdgeWalk, edge_scores
from dflash_lab.core.kernels.launch import launch, tile


@triton.jit
def _walk(edges, uniforms, path, q, temperature, K, C: tl.constexpr, C_TILE: tl.constexpr, SAMPLED: tl.constexpr):
    b = tl.program_id(0)
    c = tl.arange(0, C_TILE)
    index = 0
    for e in range(K):
        row = ((b * K + e) * C + index) * C
        scores = tl.load(edges + row + c, mask=c < C, other=float("-inf"))
        if SAMPLED:
            weights = tl.exp((scores - tl.max(scores, axis=0)) / temperature)
            probs = weights / tl.sum(weights, axis=0)
            cdf = tl.cumsum(probs, axis=0)
            threshold = tl.load(uniforms + b * K + e) * tl.max(cdf, axis=0)
            index = tl.minimum(tl.sum((cdf <= threshold).to(tl.int32), axis=0), C - 1)
            tl.store(q + (b * K + e) * C + c, probs, mask=c < C)
        else:
            index = tl.argmax(scores, axis=0)
        tl.store(path + b * K + e, index.to(tl.int64))


def _edges(
    unary: Tensor, anchor_ids: Tensor, candidate_ids: Tensor, hidden: Tensor, predecessors: Tensor, successors: Tensor
) -> Tensor:
    return edge_scores(
        unary,
        predecessors[anchor_ids].float(),
        predecessors[candidate_ids].float(),
        hidden,
        successors[candidate_ids].float(),
    )


def compiled_edges_then_walk() -> Callable[..., EdgeWalk]:
    """The arrangement, with `edge_walk`'s keyword arguments."""
    compiled = torch.compile(_edges, dynamic=False)

    def arranged(
        unary: Tensor,
        anchor_ids: Tensor,
        candidate_ids: Tensor,
        hidden: Tensor,
        predecessor_codebook: Tensor,
        successor_codebook: Tensor,
        temperature: float,
        uniforms: Tensor | None,
        want_edges: bool,
    ) -> EdgeWalk:
        edges = compiled(unary, anchor_ids, candidate_ids, hidden, predecessor_codebook, successor_codebook)
        batch, positions, candidates = unary.shape
        path = torch.empty(batch, positions, dtype=torch.int64, device=unary.device)
        q = torch.empty_like(unary) if temperature else None
        launch(
            _walk, (batch,), edges, uniforms, path, q, float(temperature), positions,
            C=candidates, C_TILE=tile(candidates), SAMPLED=temperature > 0, num_warps=1,
        )  # fmt: skip
        return EdgeWalk(path, q, edges if want_edges else None)

    return arranged
