"""The drafter's backbone: target-layer features and block embeddings in, draft hidden states out."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_lab.core.errors import NumericsError
from dflash_lab.core.kernels.block_attention.reference import visible
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.layers import Attend, DraftLayer, RMSNorm, Rope, Rotary


class ContextCache:
    """Projected keys and values of the committed tokens before the anchor, per layer.

    The block's own keys and values are laid behind them for the length of one step and overwritten by the next, so
    rejected proposals never stay: after each step the cache is the committed context and nothing else.
    """

    def __init__(self, config: DraftConfig) -> None:
        self._shape = (config.num_layers, 2, config.num_kv_heads, config.head_dim)
        self._data: Tensor | None = None
        self.length = 0

    def reset(self) -> None:
        """Forget every token; the memory is kept for the next request."""
        self.length = 0

    def reserve(self, batch: int, length: int, like: Tensor) -> None:
        """Make room for `length` positions, growing by doubling."""
        data = self._data
        fits = data is not None and data.shape[2] == batch and data.dtype == like.dtype and data.device == like.device
        if fits and data.shape[4] >= length:
            return
        layers, two, heads, head_dim = self._shape
        size = max(256, 1 << (length - 1).bit_length())
        self._data = like.new_empty(layers, two, batch, heads, size, head_dim)
        if fits:
            self._data[..., : self.length, :] = data[..., : self.length, :]
        else:
            self.length = 0

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Lay `[B, H_kv, S, head_dim]` at positions start.. of a layer, without counting them as context."""
        end = start + keys.shape[2]
        self._data[layer, 0, :, :, start:end] = keys
        self._data[layer, 1, :, :, start:end] = values

    def read(self, layer: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of positions start..end-1: views, `[B, H_kv, end - start, head_dim]`."""
        data = self._data[layer]
        return data[0, :, :, start:end], data[1, :, :, start:end]


class DraftBackbone(nn.Module):
    """`fc`, `hidden_norm`, layers and `norm`, in the published names."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config, index) for index in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(config.rope, config.head_dim)

    def context(self, features: Tensor) -> Tensor:
        """Features `[B, S, F*D]` to what keys and values are made of, `[B, S, D]`."""
        return self.hidden_norm(self.fc(features))

    def extend(self, cache: ContextCache, context: Tensor) -> None:
        """Project `context [B, S, D]` to each layer's keys and values and append them to the cache."""
        start, end = cache.length, cache.length + context.shape[1]
        rope = self.rotary(start, end, context.dtype)
        for layer in self.layers:
            cache.write(layer.index, start, *layer.self_attn.keys_values(context, rope))
        cache.length = end

    def block(self, cache: ContextCache, embeddings: Tensor) -> Tensor:
        """Draft hidden states `[B, L, D]` of a block at positions cache.length.. given its embeddings `[B, L, D]`."""
        x = embeddings
        rope, attend = self._view(cache, embeddings)
        for layer in self.layers:
            x = layer(x, rope, attend)
        return self.norm(x)

    def _view(self, cache: ContextCache, embeddings: Tensor) -> tuple[Rope, Attend]:
        """The block's rotary factors, and attention over the cached context and the block itself."""
        start, length = cache.length, embeddings.shape[1]
        end = start + length
        masks = {
            kind: block_mask(self.config, *kind, start, length, embeddings.device)
            for kind in set(zip(self.config.layer_types, self.config.causal, strict=True))
        }

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(layer, start, k, v)
            first, mask = masks[self.config.layer_types[layer], self.config.causal[layer]]
            keys, values = cache.read(layer, first, end)
            return F.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=q.shape[1] != keys.shape[1])

        return self.rotary(start, end, embeddings.dtype), attend

    def locate_nonfinite(self, cache: ContextCache, embeddings: Tensor) -> NumericsError:
        """Run the block once more and name the first layer and position that is not finite."""
        rope, attend = self._view(cache, embeddings)
        x = embeddings
        stages = [("block embeddings", lambda x: x)]
        stages += [
            (f"draft layer {layer.index}", lambda x, layer=layer: layer(x, rope, attend)) for layer in self.layers
        ]
        stages += [("final norm", self.norm)]
        for name, stage in stages:
            x = stage(x)
            bad = (~torch.isfinite(x)).any(-1)[0].nonzero()
            if len(bad):
                slot = int(bad[0])
                return NumericsError(
                    f"{name} of the drafter is not finite at block slot {slot} (position {cache.length + slot}): "
                    "try --dtype float32, and check the checkpoint's tensors"
                )
        return NumericsError(
            f"drafter logits are not finite in the block at position {cache.length}, with finite hidden states: "
            "check the output head and output_multiplier"
        )


def block_mask(
    config: DraftConfig, layer_type: str, causal: bool, start: int, length: int, device: torch.device
) -> tuple[int, Tensor | None]:
    """First key position a block at `start` needs, and the mask `[L, keys]` (None where every key is visible).

    Query q sees key k if `|q - k| < window` (sliding layers, each query by its own position) and, when causal, k <= q.
    """
    window = config.sliding_window if layer_type == "sliding_attention" else None
    end = start + length
    first = 0 if window is None else max(0, start - window + 1)
    if not causal and (window is None or end - first <= window):
        return first, None
    queries = torch.arange(start, end, device=device)[:, None]
    return first, visible(queries, torch.arange(first, end, device=device), window, causal)
