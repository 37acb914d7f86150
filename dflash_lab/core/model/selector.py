"""The candidate selector of DFlash 2: codebooks, edge scores, walk."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dflash_lab.core.kernels.edge_walk.reference import (
    Walk,
    edge_scores,
    inverse_cdf,
)
from dflash_lab.core.model.config import SelectorConfig


class CandidateSelector(nn.Module):
    """Scores edges between neighbouring candidates by codebooks A (predecessor) and B (successor) of rank R.

    All scores are float32, whatever the weights' dtype: the proposal is drawn from, and judged by, the same q.
    """

    def __init__(self, config: SelectorConfig, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocab_size, config.rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab_size, config.rank))
        self.hidden_projection = nn.Linear(hidden_size, config.rank, bias=False)

    def project(self, hidden: Tensor) -> Tensor:
        """H(h): `[B, K, D]` to float32 `[B, K, R]`."""
        return self.hidden_projection(hidden).float()

    def predecessor(self, ids: Tensor) -> Tensor:
        """A: float32 codes `[..., R]` of token ids."""
        return self.predecessor_codebook[ids].float()

    def successor(self, ids: Tensor) -> Tensor:
        """B: float32 codes `[..., R]` of token ids."""
        return self.successor_codebook[ids].float()

    def edges(self, hidden: Tensor, anchor_ids: Tensor, candidate_ids: Tensor, unary: Tensor) -> Tensor:
        """Edge scores `[B, K, C, C]`, float32."""
        return edge_scores(
            unary,
            self.predecessor(anchor_ids),
            self.predecessor(candidate_ids),
            self.project(hidden),
            self.successor(candidate_ids),
        )

    def walk_rows(
        self,
        hidden: Tensor,
        anchor_ids: Tensor,
        candidate_ids: Tensor,
        unary: Tensor,
        temperature: float,
        uniforms: Tensor | None,
    ) -> Walk:
        """The same walk for many candidates: only the chosen predecessor's row is computed at each position."""
        projected = self.project(hidden)
        predecessor = anchor_ids
        path, rows = [], []
        for position in range(unary.shape[1]):
            ids = candidate_ids[:, position]
            code = self.predecessor(predecessor) * projected[:, position]
            scores = unary[:, position] + (self.successor(ids) @ code.unsqueeze(-1)).squeeze(-1)
            if temperature == 0:
                index = scores.argmax(-1)
            else:
                rows.append(torch.softmax(scores / temperature, dim=-1))
                index = inverse_cdf(rows[-1], uniforms[:, position])
            predecessor = ids.gather(1, index[:, None])[:, 0]
            path.append(index)
        return Walk(torch.stack(path, dim=1), torch.stack(rows, dim=1) if rows else None)
