"""Our own forward pass of the Llama and Qwen families: fused projections, one cache, nothing per layer but the calls.

It reads the files that transformers reads and is checked against it. Query heads that share a key head are laid
along the query axis, so that grouped attention reads the cache as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_lab.core.errors import TargetError
from dflash_lab.core.kernels.linear import PackedLinear
from dflash_lab.core.kernels.sdpa import attention_kernels
from dflash_lab.core.target.base import TargetInfo, TargetOutput, check_layer_ids
from dflash_lab.core.target.config import load_config, load_generation_config, target_info
from dflash_lab.core.target.weights import Weights

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Families whose decoder layer is the one written here."""
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary types whose frequencies do not change with the length."""


class Layer(NamedTuple):
    """One decoder layer's weights."""

    input_norm: Tensor
    qkv: PackedLinear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: PackedLinear
    post_norm: Tensor
    gate_up: PackedLinear
    down: PackedLinear


def supports(config) -> bool:
    """Whether a transformers configuration is of a family written here: plain SiLU layers, static rotary factors."""
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    return (
        (config.architectures or [None])[0] in ARCHITECTURES
        and config.hidden_act == "silu"
        and rope in STATIC_ROPE
        and getattr(config, "quantization_config", None) is None
    )


class LeanTarget:
    """A target on its own forward pass, its weights read from a safetensors folder."""

    def __init__(self, folder: Path, name: str, *, dtype: torch.dtype, device: torch.device) -> None:
        config = load_config(folder, name)
        if not supports(config):
            raise TargetError(
                f"target {name!r} ({', '.join(config.architectures or ['unnamed'])}) has no lean forward pass; "
                f"that exists for unquantised {', '.join(ARCHITECTURES)}: use --forward transformers"
            )
        self.device, self.dtype = device, dtype
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.eps = config.rms_norm_eps
        self._inv_freq, self._rope_scaling = _rope(config, device)
        weights = Weights(folder)
        self._read_weights(weights, config)
        self.info: TargetInfo = target_info(config, load_generation_config(folder), name, len(self.embedding))
        self._rope = torch.empty(2, 0, self.head_dim, device=device, dtype=dtype)
        shape = (len(self.layers), 2, 0, self.kv_heads, 0, self.head_dim)
        self.cache = torch.empty(shape, device=device, dtype=dtype)
        self.taps: tuple[int, ...] = ()
        self._length = 0

    def _read_weights(self, weights: Weights, config) -> None:
        def read(name: str) -> Tensor:
            tensor = weights.read(name, self.device, self.dtype)
            self.weights_bytes += tensor.nbytes
            return tensor

        self.weights_bytes = 0
        """What the weights take in `dtype`, each counted once."""
        # Rows are looked up, not multiplied: the file's own dtype is exact and may be half the size.
        self.embedding = weights.read("model.embed_tokens.weight", self.device)
        if config.tie_word_embeddings:
            self._head = PackedLinear(read("model.embed_tokens.weight"))
        else:
            self.weights_bytes += self.embedding.nbytes
            self._head = PackedLinear(read("lm_head.weight"))
        # The head is the largest tensor: packed first, while there is little else, it does not raise the peak.
        self.layers = [_layer(f"model.layers.{i}.", weights, read) for i in range(config.num_hidden_layers)]
        self.norm = read("model.norm.weight")

    def capture(self, layer_ids: Sequence[int]) -> None:
        self.taps = check_layer_ids(layer_ids, self.info.num_layers, self.info.name)

    @torch.inference_mode()
    def prefill(self, ids: Tensor) -> TargetOutput:
        self._length = 0
        with attention_kernels(self.device):
            return self._forward(ids, last_only=True)

    @torch.inference_mode()
    def verify(self, block_ids: Tensor) -> TargetOutput:
        with attention_kernels(self.device):
            return self._forward(block_ids, last_only=False)

    def rollback(self, length: int) -> None:
        self._length = length

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.embedding).to(self.dtype)

    def head(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)

    @property
    def head_weight(self) -> Tensor:
        """Rows of the output head `[rows, D]`."""
        return self._head.weight

    def rope_table(self, length: int) -> Tensor:
        """Rotary factors (cos, sin) of positions 0.. `[2, length, head_dim]`."""
        angles = torch.outer(torch.arange(length, device=self.device).float(), self._inv_freq)
        angles = torch.cat((angles, angles), dim=-1)
        return (torch.stack((angles.cos(), angles.sin())) * self._rope_scaling).to(self.dtype)

    def _forward(self, ids: Tensor, *, last_only: bool) -> TargetOutput:
        batch, length = ids.shape
        start, end = self._length, self._length + length
        self._reserve(batch, end)
        cos, sin = self._rope[:, start:end]
        mask = self._mask(start, length)
        x = self.embed(ids)
        tapped = {}
        for index, layer in enumerate(self.layers):
            x = x + self._attention(index, layer, self._normed(x, layer.input_norm), cos, sin, mask, start)
            gate, up = layer.gate_up(self._normed(x, layer.post_norm)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
            if index in self.taps:
                tapped[index] = x
        self._length = end
        hidden = self._normed(x[:, -1:] if last_only else x, self.norm)
        features = torch.cat([tapped[i] for i in self.taps], dim=-1) if self.taps else None
        return TargetOutput(self._head(hidden)[..., : self.info.vocab_size], features)

    def _attention(
        self, index: int, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, start: int
    ) -> Tensor:
        """Self-attention of a block behind the cache: `x [B, L, D]` in and out."""
        batch, length, _ = x.shape
        heads, kv_heads, end = self.heads, self.kv_heads, start + length
        qkv = layer.qkv(x).view(batch, length, heads + 2 * kv_heads, self.head_dim).transpose(1, 2)
        turning, values = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.q_norm is not None:
            turning = torch.cat(
                (self._normed(turning[:, :heads], layer.q_norm), self._normed(turning[:, heads:], layer.k_norm)), dim=1
            )
        half = self.head_dim // 2
        turned = torch.cat((-turning[..., half:], turning[..., :half]), dim=-1)
        turning = torch.addcmul(turning * cos, turned, sin)
        cache = self.cache[index]
        cache[0, :, :, start:end] = turning[:, heads:]
        cache[1, :, :, start:end] = values
        # Query heads of a group stand one behind the other along the query axis: [B, H_kv, G * L, head_dim].
        queries = turning[:, :heads].reshape(batch, kv_heads, -1, self.head_dim)
        out = F.scaled_dot_product_attention(queries, cache[0, :, :, :end], cache[1, :, :, :end], mask)
        out = out.reshape(batch, heads, length, self.head_dim).transpose(1, 2).reshape(batch, length, -1)
        return layer.out(out)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.eps)

    def _mask(self, start: int, length: int) -> Tensor | None:
        """Causal mask `[G * L, start + L]` of a block behind `start` tokens; None for a single token."""
        if length == 1:
            return None
        keys = torch.arange(start + length, device=self.device)
        visible = keys[None, :] <= keys[start:, None]
        return visible.repeat(self.heads // self.kv_heads, 1)

    def _reserve(self, batch: int, length: int) -> None:
        """Room for `length` positions in the cache and the rotary table, growing by doubling."""
        if self.cache.shape[2] != batch:
            self.cache = self.cache.new_empty(*self.cache.shape[:2], batch, *self.cache.shape[3:], dtype=self.dtype)
        if self.cache.shape[4] >= length:
            return
        size = max(256, 1 << (length - 1).bit_length())
        grown = self.cache.new_empty(*self.cache.shape[:4], size, self.head_dim)
        grown[..., : self._length, :] = self.cache[..., : self._length, :]
        self.cache = grown
        self._rope = self.rope_table(size)


def _layer(prefix: str, weights: Weights, read: Callable[[str], Tensor]) -> Layer:
    """Read one decoder layer and fuse its projections."""

    def norm(name: str) -> Tensor | None:
        return read(f"{prefix}{name}.weight") if f"{prefix}{name}.weight" in weights else None

    def fused(*names: str) -> PackedLinear:
        parts = [read(f"{prefix}{name}.weight") for name in names]
        biased = f"{prefix}{names[0]}.bias" in weights
        bias = torch.cat([read(f"{prefix}{name}.bias") for name in names]) if biased else None
        return PackedLinear(torch.cat(parts) if len(parts) > 1 else parts[0], bias)

    return Layer(
        input_norm=read(f"{prefix}input_layernorm.weight"),
        qkv=fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        q_norm=norm("self_attn.q_norm"),
        k_norm=norm("self_attn.k_norm"),
        out=fused("self_attn.o_proj"),
        post_norm=read(f"{prefix}post_attention_layernorm.weight"),
        gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
        down=fused("mlp.down_proj"),
    )


def _rope(config, device: torch.device) -> tuple[Tensor, float]:
    """Inverse frequencies `[head_dim/2]` in float32 and the attention scaling, from transformers' own rotary module."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(config)
    return rotary.inv_freq.float().to(device), float(rotary.attention_scaling)
