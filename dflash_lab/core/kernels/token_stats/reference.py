"""What the target's logits say about each slot of a block, in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TokenStats(NamedTuple):
    """The target's judgement."""

    best_id: Tensor
    """`[B, L]` int64, the largest logit's token; of equal ones the lowest."""
    top2: Tensor
    """`[B, L, 2]` float32, the two largest logits."""
    log_norm: Tensor
    """`[B, L]` float32, logsumexp of the logits."""


def token_stats(logits: Tensor) -> TokenStats:
    """Of `logits [B, L, V]`, computed in float32 or, if they are wider, in their own dtype."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # arg-max as in verification: topk may break a tie the other way.
    best = wide.argmax(-1, keepdim=True)
    second = wide.scatter(-1, best, float("-inf")).amax(-1, keepdim=True)
    return TokenStats(best[..., 0], torch.cat((wide.gather(-1, best), second), dim=-1), wide.logsumexp(-1))
