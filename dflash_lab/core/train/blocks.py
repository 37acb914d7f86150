"""Many draft blocks of many texts at once, over the very modules that decode.

A text of S tokens is read once; A anchors are chosen in it, and the A blocks of L slots lie end to end behind the
context: queries `[A*L]`, keys `[S + A*L]`. A block sees the context before its own anchor and itself, nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_lab.core.model.backbone import DraftBackbone
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.layers import Rope

Masks = dict[tuple[str, bool], Tensor]
"""What a block sees, `[B, 1, A*L, S + A*L]` bool, by layer type and causality."""


class Layout(NamedTuple):
    """Where the blocks lie: everything that the anchors' positions decide."""

    context_rope: Rope
    """Rotary factors of the S context positions."""
    block_rope: Rope
    """Rotary factors of the slots, `[B*A, 1, L, head_dim]` each."""
    masks: Masks
    """Visible keys of each kind of layer."""


class ContextKeys(NamedTuple):
    """Keys and values of the context in one layer, `[B, H_kv, S, head_dim]` each."""

    keys: Tensor
    values: Tensor


def sample_anchors(prompt_lengths: Tensor, lengths: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random anchors `[B, count]` in increasing order, spread evenly over each answer.

    From the answer's first token, which is where decoding puts the first anchor, to the last but one: each has at
    least one token after it. `prompt_lengths` and `lengths` are `[B]`.
    """
    span = (lengths - 1 - prompt_lengths).unsqueeze(1)
    noise = torch.rand(len(lengths), count, generator=generator, device=lengths.device)
    strata = torch.arange(count, device=lengths.device)
    offsets = ((strata + noise) / count * span).long()
    return prompt_lengths.unsqueeze(1) + torch.minimum(offsets, span - 1)


def slots(anchors: Tensor, block_size: int) -> Tensor:
    """Positions of all slots, `[B, A, L]`."""
    return anchors.unsqueeze(-1) + torch.arange(block_size, device=anchors.device)


def layout(
    backbone: DraftBackbone,
    anchors: Tensor,
    context_length: int,
    block_size: int,
    dtype: torch.dtype,
    lengths: Tensor | None = None,
) -> Layout:
    """The layout of blocks at `anchors [B, A]` behind `context_length` tokens.

    `lengths [B, A]` shortens blocks: the slots past a block's length are there, but none of its others sees them.
    """
    positions = slots(anchors, block_size).flatten(0, 1)
    # The last block of a text may reach past it.
    table = backbone.rotary(0, context_length + block_size, dtype)
    block_rope = Rope(table.cos[positions].unsqueeze(1), table.sin[positions].unsqueeze(1))
    context_rope = Rope(table.cos[:context_length], table.sin[:context_length])
    kinds = set(zip(backbone.config.layer_types, backbone.config.causal, strict=True))
    masks = {kind: visible(backbone.config, *kind, anchors, context_length, block_size, lengths) for kind in kinds}
    return Layout(context_rope, block_rope, masks)


def visible(
    config: DraftConfig,
    layer_type: str,
    causal: bool,
    anchors: Tensor,
    context_length: int,
    block_size: int,
    lengths: Tensor | None = None,
) -> Tensor:
    """`[B, 1, A*L, S + A*L]` bool: the same rule as in decoding, for all blocks at once."""
    batch, count = anchors.shape
    query = slots(anchors, block_size).flatten(1).unsqueeze(2)
    context = torch.arange(context_length, device=anchors.device)
    block = torch.arange(count, device=anchors.device).repeat_interleave(block_size)
    before_anchor = context < anchors.repeat_interleave(block_size, dim=1).unsqueeze(2)
    own_block = (block.unsqueeze(1) == block).expand(batch, -1, -1)
    if lengths is not None:
        inside = torch.arange(block_size, device=anchors.device) < lengths.unsqueeze(-1)
        # A slot sees itself always: without any key it would be NaN, which a weight of zero does not silence.
        itself = torch.eye(len(block), dtype=torch.bool, device=anchors.device)
        own_block = own_block & (inside.flatten(1).unsqueeze(1) | itself)
    seen = torch.cat((before_anchor, own_block), dim=2)
    if layer_type == "sliding_attention" or causal:
        key = torch.cat((context.expand(batch, 1, -1), query.transpose(1, 2)), dim=2)
        if layer_type == "sliding_attention":
            seen &= (query - key).abs() < config.sliding_window
        if causal:
            seen &= key <= query
    return seen.unsqueeze(1)


def context_keys(backbone: DraftBackbone, features: Tensor, rope: Rope) -> list[ContextKeys]:
    """Keys and values that each layer makes from `features [B, S, F*D]`."""
    context = backbone.context(features)
    return [ContextKeys(*layer.self_attn.keys_values(context, rope)) for layer in backbone.layers]


def block_states(backbone: DraftBackbone, context: list[ContextKeys], embeddings: Tensor, where: Layout) -> Tensor:
    """Draft hidden states `[B, A, L, D]` of blocks with embeddings `[B, A, L, D]`."""
    config = backbone.config
    batch, count = embeddings.shape[:2]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = torch.cat((context[layer].keys, _end_to_end(k, batch)), dim=2)
        values = torch.cat((context[layer].values, _end_to_end(v, batch)), dim=2)
        groups = q.shape[1] // keys.shape[1]
        out = F.scaled_dot_product_attention(
            _end_to_end(q, batch),
            keys.repeat_interleave(groups, dim=1),
            values.repeat_interleave(groups, dim=1),
            where.masks[config.layer_types[layer], config.causal[layer]],
        )
        return out.unflatten(2, (count, -1)).transpose(1, 2).flatten(0, 1)

    x = embeddings.flatten(0, 1)
    for layer in backbone.layers:
        x = layer(x, where.block_rope, attend)
    return backbone.norm(x).unflatten(0, (batch, count))


def _end_to_end(x: Tensor, batch: int) -> Tensor:
    """`[B*A, H, L, head_dim]` to `[B, H, A*L, head_dim]`."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)


def block_embeddings(embedding: Tensor, ids: Tensor, anchors: Tensor, config: DraftConfig, block_size: int) -> Tensor:
    """`[B, A, L, D]`: each anchor's row of the target's embedding, then the mask token's. `ids` is `[B, S]`."""
    tokens = torch.full((*anchors.shape, block_size), config.mask_token_id, device=ids.device)
    tokens[..., 0] = ids.gather(1, anchors)
    return F.embedding(tokens, embedding) * config.input_embedding_scale


def block_labels(ids: Tensor, lengths: Tensor, anchors: Tensor, block_size: int) -> Tensor:
    """`[B, A, K]` tokens that follow each anchor in the text; -1 past its end."""
    positions = slots(anchors, block_size)[..., 1:]
    labels = ids.gather(1, positions.flatten(1).clamp(max=ids.shape[1] - 1)).view_as(positions)
    return labels.masked_fill(positions >= lengths[:, None, None], -1)
