"""Queries, keys and values of a draft block, the latter two straight into the cache, in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_lab.core.kernels.block_linear.reference import block_linear


class BlockQkv(NamedTuple):
    """Queries, and the cache that was written."""

    queries: Tensor
    """`[B, L, heads, head_dim]`, normed and rotated; of no size when there are no query heads."""
    cache: Tensor
    """The argument."""


def block_qkv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float,
    before: Tensor | None,
    before_base: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    head_eps: float,
    cos: Tensor,
    sin: Tensor,
    cache: Tensor,
    starts: Tensor,
    heads: int,
) -> BlockQkv:
    """Project `x [B, L, D]`; keys and values are laid in `cache [planes, B, H_kv, S, head_dim]`, which is returned.

    weight `[(heads + planes * H_kv) * head_dim, D]`: rows of the query heads, then of each plane's heads; the planes
    are keys and values by turns, of one layer or, with no query heads, of several layers. bias, norm, eps, before and
    before_base as in `block_linear`. q_norm `[head_dim]` and k_norm `[planes / 2, head_dim]`, weights of an RMS norm
    of each head with `head_eps`. starts `[B]` int32: slot i of request b is at position `starts[b] + i`, where its
    keys and values are laid unless that is past S. cos, sin `[positions, head_dim]`, both halves alike: queries and
    keys are rotated by their position's row, by the last one where there is none.
    """
    planes, _, kv_heads, places, size = cache.shape
    made = block_linear(x, weight, bias, norm, eps, before, before_base).out.unflatten(-1, (-1, size))
    at = starts.long()[:, None] + torch.arange(x.shape[1], device=x.device)
    row = at.clamp(max=len(cos) - 1)
    turn = cos[row][:, :, None], sin[row][:, :, None]
    queries = _turned(_normed(made[:, :, :heads], q_norm, head_eps), *turn)
    fresh = made[:, :, heads:].unflatten(2, (planes, kv_heads)).clone()
    for plane in range(0, planes, 2):
        weight_here = None if k_norm is None else k_norm[plane // 2]
        fresh[:, :, plane] = _turned(_normed(fresh[:, :, plane], weight_here, head_eps), *turn)
    # A slot past the end repeats the last one that fits, or what lies there: no copy depends on a value.
    place = at.clamp(max=places - 1)
    slot = (place - starts.long()[:, None])[:, :, None, None, None]
    request = torch.arange(len(x), device=x.device)[:, None]
    source = fresh.gather(1, slot.clamp(min=0).expand_as(fresh))
    cache[:, request, :, place] = torch.where(slot < 0, cache[:, request, :, place], source)
    return BlockQkv(queries, cache)


def _normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else F.rms_norm(x, weight.shape, weight, eps)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.addcmul(x * cos, torch.cat((-x[..., half:], x[..., :half]), dim=-1), sin)
