"""The drafter's transformer layers, in the published tensor names."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_lab.core.model.config import DraftConfig, RopeConfig
from dflash_lab.core.model.conv import GroupedDynamicConv

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`attend(layer, q, k, v)`: the block's own q, k, v `[B, H, L, head_dim]` in, attention output `[B, H, L, head_dim]`
out. Who calls a layer decides here what else the block sees: cached context when decoding, packed anchors in training.
"""


class Rope(NamedTuple):
    """Rotary factors of some positions, `[S, head_dim]` each."""

    cos: Tensor
    sin: Tensor


class RMSNorm(nn.Module):
    """Root-mean-square norm with a plain (not centred) weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Rotary(nn.Module):
    """Rotary factors by position, from a table that grows by doubling."""

    inv_freq: Tensor

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        super().__init__()
        inv_freq, self.scaling = inverse_frequencies(config, head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self._table: Rope | None = None

    def forward(self, start: int, end: int, dtype: torch.dtype) -> Rope:
        """Factors of positions start..end-1 in `dtype` (angles in float32)."""
        table = self._table
        if (
            table is None
            or table.cos.shape[0] < end
            or table.cos.dtype != dtype
            or table.cos.device != self.inv_freq.device
        ):
            size = max(1024, 1 << (end - 1).bit_length())
            angles = torch.outer(torch.arange(size, device=self.inv_freq.device, dtype=torch.float32), self.inv_freq)
            angles = torch.cat((angles, angles), dim=-1)
            table = self._table = Rope((angles.cos() * self.scaling).to(dtype), (angles.sin() * self.scaling).to(dtype))
        return Rope(table.cos[start:end], table.sin[start:end])


def inverse_frequencies(config: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """`[head_dim/2]` inverse frequencies in float32 and the attention scaling; transformers' for scaled types."""
    if config.rope_type == "default":
        exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        return 1.0 / (config.theta**exponent), 1.0
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3RotaryEmbedding

    parameters = {"rope_type": config.rope_type, "rope_theta": config.theta, **config.parameters}
    rotary = Qwen3RotaryEmbedding(
        Qwen3Config(hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim, rope_parameters=parameters)
    )
    return rotary.inv_freq.float(), float(rotary.attention_scaling)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Apply rotary factors `[S, head_dim]` (or anything that broadcasts) to `[..., S, head_dim]`."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return torch.addcmul(x * rope.cos, turned, rope.sin)


class BlockAttention(nn.Module):
    """Projections of one attention sublayer; `attend` supplies the context."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=bias)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Keys (normed, rotated) and values of `x [B, S, D]`: `[B, H_kv, S, head_dim]` each."""
        keys = self.k_norm(self._heads(self.k_proj(x))).transpose(1, 2)
        return rotate(keys, rope), self._heads(self.v_proj(x)).transpose(1, 2)

    def forward(self, x: Tensor, rope: Rope, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        queries = rotate(self.q_norm(self._heads(self.q_proj(x))).transpose(1, 2), rope)
        keys, values = self.keys_values(x, rope)
        return self.o_proj(attend(queries, keys, values).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Gated SiLU."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DraftLayer(nn.Module):
    """Attention and MLP, each between the two sides of a convolution when there is one (DFlash 2)."""

    def __init__(self, config: DraftConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.self_attn = BlockAttention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention_conv = GroupedDynamicConv(config.hidden_size, config.conv) if config.conv else None
        self.mlp_conv = GroupedDynamicConv(config.hidden_size, config.conv) if config.conv else None

    def forward(self, x: Tensor, rope: Rope, attend: Attend) -> Tensor:
        """One layer over the blocks `x [B, L, D]`."""

        def attention(inner: Tensor) -> Tensor:
            return self.self_attn(inner, rope, lambda q, k, v: attend(self.index, q, k, v))

        x = x + _between(self.attention_conv, attention, self.input_layernorm(x))
        return x + _between(self.mlp_conv, self.mlp, self.post_attention_layernorm(x))


def _between(conv: GroupedDynamicConv | None, sublayer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`sublayer`, between the convolution's two sides if there is one."""
    if conv is None:
        return sublayer(x)
    before, after = conv.deltas(x)
    return conv(sublayer(conv(x, before, 0)), after, 1)
