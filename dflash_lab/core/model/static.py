"""The drafter behind a context cache of fixed size: the same launches at any length, for a batch of requests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_lab.core.kernels.edge_walk.reference import inverse_cdf
from dflash_lab.core.kernels.ops import Ops
from dflash_lab.core.model.backbone import ContextCache
from dflash_lab.core.model.drafter import Drafter
from dflash_lab.core.model.layers import DraftLayer


@dataclass(frozen=True)
class StaticDraft:
    """What one draft leaves on the device; axes as in DraftBlock."""

    candidate_ids: Tensor
    """`[B, K, C]` int64."""
    unary: Tensor
    """`[B, K, C]` float32."""
    proposal: Tensor
    """`[B, K]` int64 token ids."""
    path: Tensor
    """`[B, K]` int64, index into C."""
    q: Tensor | None
    """`[B, K, C]` float32; None when greedy."""
    edges: Tensor | None
    """`[B, K, C, C]` float32, if recorded and there is a selector."""
    log_norm: Tensor | None
    """`[B, K]` float32 logsumexp of the drafter's logits, if recorded."""


class _Layer:
    """One draft layer's weights, projections of the same input side by side."""

    def __init__(self, layer: DraftLayer) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.input_norm, self.post_norm = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = torch.cat([projection.weight for projection in projections])
        biased = projections[0].bias is not None
        self.qkv_bias = torch.cat([projection.bias for projection in projections]) if biased else None
        self.q_norm, self.k_norm = attention.q_norm.weight, attention.k_norm.weight
        self.out, self.out_bias = attention.o_proj.weight, attention.o_proj.bias
        self.gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
        self.down = mlp.down_proj.weight
        self.convs = (layer.attention_conv, layer.mlp_conv)


class StaticDrafter:
    """A drafter's weights, with context caches for `batch` requests of up to `places` tokens each."""

    def __init__(
        self,
        drafter: Drafter,
        ops: Ops,
        *,
        batch: int,
        places: int,
        block_size: int,
        num_candidates: int,
        target_head: Tensor,
    ) -> None:
        """`target_head [rows, D]` is read unless the drafter has a head of its own."""
        self._drafter, self._ops, self._config = drafter, ops, drafter.config
        self._num_candidates = num_candidates
        self._head = target_head if drafter.head.weight is None else drafter.head.weight
        backbone, config = drafter.backbone, drafter.config
        self._layers = [_Layer(layer) for layer in backbone.layers]
        like = backbone.hidden_norm.weight
        shape = (2 * config.num_layers, batch, config.num_kv_heads, places, config.head_dim)
        self.cache = like.new_zeros(shape)
        self._cos, self._sin = backbone.rotary(0, places, like.dtype)
        # Keys and values of all layers from the context in one product: plane after plane.
        attentions = [layer.self_attn for layer in backbone.layers]
        planes = [projection for each in attentions for projection in (each.k_proj, each.v_proj)]
        self._context = torch.cat([projection.weight for projection in planes])
        biased = planes[0].bias is not None
        self._context_bias = torch.cat([projection.bias for projection in planes]) if biased else None
        self._context_norm = torch.stack([each.k_norm.weight for each in attentions])
        self._draft_ids = torch.full((batch, block_size), config.mask_token_id, device=like.device)

    def load(self, row: int, features: Tensor) -> None:
        """Take `features [1, S, F*D]` of the tokens before the anchor as the context of request `row`."""
        backbone, length = self._drafter.backbone, features.shape[1]
        cache = ContextCache(self._config)
        cache.reserve(1, length, features)
        backbone.extend(cache, backbone.context(features))
        for layer in range(self._config.num_layers):
            for plane, tensor in enumerate(cache.read(layer, 0, length)):
                self.cache[2 * layer + plane, row, :, :length] = tensor[0]

    def extend(self, features: Tensor, starts: Tensor) -> None:
        """Lay keys and values of a verified block's `features [B, L, F*D]` at positions `starts [B]`...

        Those of rejected tokens lie where the next block lays its own.
        """
        backbone = self._drafter.backbone
        context = self._ops.block_linear(features, backbone.fc.weight).out
        self._ops.block_qkv(
            context, self._context, self._context_bias, backbone.hidden_norm.weight, self._config.rms_norm_eps,
            None, None, None, self._context_norm, self._config.rms_norm_eps,
            self._cos, self._sin, self.cache, starts, 0,
        )  # fmt: skip

    def hidden(self, anchor_ids: Tensor, starts: Tensor, slots: Tensor | None) -> Tensor:
        """Draft hidden states `[B, K, D]` of blocks behind anchors `[B]` at positions `starts [B]`.

        `slots [B]` int32 shortens the blocks of requests that end soon.
        """
        config, backbone = self._config, self._drafter.backbone
        self._draft_ids[:, 0] = anchor_ids
        x = self._drafter.embed(self._draft_ids)
        for index, layer in enumerate(self._layers):
            x = self._layer(index, layer, x, starts, slots)
        return F.rms_norm(x[:, 1:].contiguous(), backbone.norm.weight.shape, backbone.norm.weight, config.rms_norm_eps)

    def _layer(self, index: int, layer: _Layer, x: Tensor, starts: Tensor, slots: Tensor | None) -> Tensor:
        config, ops, eps = self._config, self._ops, self._config.rms_norm_eps
        sliding = config.layer_types[index] == "sliding_attention"
        keys, values = self.cache[2 * index], self.cache[2 * index + 1]
        around, inner = self._around(layer.convs[0], x, layer.input_norm)
        queries = ops.block_qkv(
            x, layer.qkv, layer.qkv_bias, layer.input_norm, eps, *around,
            layer.q_norm, layer.k_norm[None], eps, self._cos, self._sin,
            self.cache[2 * index : 2 * index + 2], starts, config.num_heads,
        ).queries  # fmt: skip
        attended = ops.block_attention(
            queries, keys, values, starts, config.sliding_window if sliding else None, config.causal[index], slots=slots
        ).out
        x = ops.block_linear(attended.flatten(2), layer.out, layer.out_bias, residual=x, **inner).out
        around, inner = self._around(layer.convs[1], x, layer.post_norm)
        before, before_base = around
        gated = ops.block_linear(
            x, layer.gate_up, norm=layer.post_norm, eps=eps, before=before, before_base=before_base, gated=True
        ).out
        return ops.block_linear(gated, layer.down, residual=x, **inner).out

    def _around(self, conv, x: Tensor, norm: Tensor) -> tuple[tuple, dict]:
        """Arguments of the convolution before a sublayer and of the one after it."""
        if conv is None:
            return (None, None), {}
        deltas = self._ops.block_linear(x, conv.kernel_projection.weight, norm=norm, eps=self._config.rms_norm_eps).out
        before, after = deltas.unflatten(-1, (2, conv.taps, conv.groups)).unbind(2)
        return (before, conv.base_kernel[0]), {"after": after, "after_base": conv.base_kernel[1]}

    def select(
        self, hidden: Tensor, anchor_ids: Tensor, temperature: float, rng: torch.Generator | None, recorded: bool
    ) -> StaticDraft:
        """Candidates and a proposal from draft hidden states `[B, K, D]`."""
        head, selector = self._drafter.head, self._drafter.model.candidate_selector
        top = self._ops.head_topk(
            hidden, self._head, head.num_rows, self._num_candidates, head.multiplier, head.softcap, recorded
        )
        ids, unary = head.token_ids(top.rows), top.unary.float()
        uniforms = torch.rand(unary.shape[:2], generator=rng, device=unary.device) if temperature else None
        edges = None
        if selector is not None:
            path, q, edges = self._ops.edge_walk(
                unary, anchor_ids.contiguous(), ids, selector.project(hidden),
                selector.predecessor_codebook, selector.successor_codebook, temperature, uniforms, recorded,
            )  # fmt: skip
        elif temperature:
            q = torch.softmax(unary / temperature, dim=-1)
            path = inverse_cdf(q, uniforms)
        else:
            path, q = torch.zeros(unary.shape[:2], dtype=torch.int64, device=unary.device), None
        proposal = ids.gather(2, path.unsqueeze(-1)).squeeze(-1)
        return StaticDraft(ids, unary, proposal, path, q, edges, top.logsumexp)
