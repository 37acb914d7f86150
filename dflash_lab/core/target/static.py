"""The lean forward pass behind a cache of fixed size: the same launches at any length, for a batch of requests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_lab.core.kernels.ops import Ops
from dflash_lab.core.target.base import TargetOutput
from dflash_lab.core.target.lean import LeanTarget


class StaticTarget:
    """A lean target's weights, with a state for `batch` requests of up to `places` tokens each.

    Where each request stands is a tensor, so no launch depends on it and a step can be captured.
    """

    def __init__(self, target: LeanTarget, ops: Ops, *, batch: int, places: int, layer_ids: Sequence[int]) -> None:
        """`layer_ids` are the layers whose output is a feature."""
        self._target, self._ops, self._layer_ids = target, ops, tuple(layer_ids)
        layers, two, _, heads, _, head_dim = target.cache.shape
        self.cache = target.cache.new_zeros(layers, two, batch, heads, places, head_dim)
        self._cos, self._sin = target.rope_table(places)
        self._weights = [
            (layer, layer.qkv.weight, layer.out.weight, layer.gate_up.weight, layer.down.weight)
            for layer in target.layers
        ]
        self.head_weight = target.head_weight

    def load(self, row: int, length: int) -> None:
        """Take over, as request `row`, the first `length` tokens of what the target has read last."""
        self.cache[:, :, row, :, :length] = self._target.cache[:, :, 0, :, :length]

    def forward(self, ids: Tensor, starts: Tensor) -> TargetOutput:
        """Read blocks `ids [B, L]` at positions `starts [B]` int32.. behind each request's state."""
        target, ops = self._target, self._ops
        x = target.embed(ids)
        tapped = {}
        for index, (layer, qkv, out, gate_up, down) in enumerate(self._weights):
            cache = self.cache[index]
            k_norm = None if layer.k_norm is None else layer.k_norm[None]
            queries = ops.block_qkv(
                x, qkv, layer.qkv.bias, layer.input_norm, target.eps, None, None,
                layer.q_norm, k_norm, target.eps, self._cos, self._sin, cache, starts, target.heads,
            ).queries  # fmt: skip
            attended = ops.block_attention(queries, cache[0], cache[1], starts, None, True).out
            x = ops.block_linear(attended.flatten(2), out, layer.out.bias, residual=x).out
            inner = ops.block_linear(x, gate_up, norm=layer.post_norm, eps=target.eps, gated=True).out
            x = ops.block_linear(inner, down, residual=x).out
            if index in self._layer_ids:
                tapped[index] = x
        hidden = F.rms_norm(x, target.norm.shape, target.norm, target.eps)
        features = torch.cat([tapped[i] for i in self._layer_ids], dim=-1) if self._layer_ids else None
        return TargetOutput(F.linear(hidden, self.head_weight)[..., : target.info.vocab_size], features)
