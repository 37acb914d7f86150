"""Attention of a draft block over cached context, in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Attended(NamedTuple):
    """One output, named for the check."""

    out: Tensor
    """`[B, L, H, head_dim]`."""


def visible(queries: Tensor, keys: Tensor, window: int | None, causal: bool) -> Tensor:
    """Which keys a query sees, by positions that broadcast: `|q - k| < window`, each query by its own position, and,
    when causal, `k <= q`."""
    seen = keys <= queries if causal else torch.ones_like(keys <= queries)
    return seen if window is None else seen & ((queries - keys).abs() < window)


def block_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    window: int | None,
    causal: bool,
    slots: Tensor | None = None,
) -> Attended:
    """Attention of a block at positions `lengths[b]..` over the context before it and the block itself.

    queries `[B, L, H, head_dim]`; keys and values `[B, H_kv, S, head_dim]`, each request's context and behind it the
    block's own; lengths `[B]` int32, tokens of context, at most S - L. H is a multiple of H_kv. slots `[B]` int32: how
    many of the block's own keys there are, L if not given; a query that sees no key gives zero.
    """
    block = torch.arange(queries.shape[1], device=queries.device)
    places = torch.arange(keys.shape[2], device=queries.device)
    at = (lengths[:, None] + block)[:, :, None]
    end = lengths + (len(block) if slots is None else slots)
    seen = visible(at, places, window, causal) & (places < end[:, None, None])
    out = F.scaled_dot_product_attention(
        queries.transpose(1, 2), keys, values, seen[:, None], enable_gqa=queries.shape[2] != keys.shape[1]
    )
    return Attended(out.transpose(1, 2))
