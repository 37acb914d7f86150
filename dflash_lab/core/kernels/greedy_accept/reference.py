"""Greedy verification, in plain torch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Verdict(NamedTuple):
    """The target's decision, still on the device."""

    num_accepted: Tensor
    """`[B]` int64 leading proposals kept, 0..K."""
    bonus_id: Tensor
    """`[B]` int64, the target's own token after them."""


def greedy_accept(logits: Tensor, proposal: Tensor) -> Verdict:
    """Keep proposals while they equal the target's arg-max; logits `[B, K+1, V]`, proposal `[B, K]` int64."""
    wanted = logits.argmax(-1)
    num_accepted = (proposal == wanted[:, :-1]).cumprod(dim=1).sum(dim=1)
    return Verdict(num_accepted, wanted.gather(1, num_accepted[:, None])[:, 0])
