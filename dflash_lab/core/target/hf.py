"""Targets from transformers: feature taps, a cache that rolls back, the model's own stop ids."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM
from transformers.cache_utils import Cache, DynamicLayer

from dflash_lab.core.errors import TargetError
from dflash_lab.core.target.base import TargetInfo, TargetOutput, check_layer_ids
from dflash_lab.core.target.config import first_line, load_config, target_info
from dflash_lab.core.target.families import family_of


class ReservedLayer(DynamicLayer):
    """A cache layer that writes into memory reserved by doubling instead of concatenating at each step."""

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        self.keys = self._grown("_key_memory", self.keys, key_states, start, end)
        self.values = self._grown("_value_memory", self.values, value_states, start, end)
        return self.keys, self.values

    def _grown(self, name: str, old: Tensor, new: Tensor, start: int, end: int) -> Tensor:
        memory = getattr(self, name, None)
        if memory is None or memory.shape[-2] < end:
            memory = new.new_empty(*new.shape[:-2], max(256, 1 << (end - 1).bit_length()), new.shape[-1])
            if start:
                memory[..., :start, :] = old
            setattr(self, name, memory)
        memory[..., start:end, :] = new
        return memory[..., :end, :]


class HfTarget:
    """A causal language model of transformers as a target."""

    def __init__(self, model, name: str) -> None:
        self.model, config = model, model.config
        family = family_of(type(model).__name__)
        self._layers = model.get_submodule(family.layers)
        self._backbone = model.get_submodule(family.layers.rpartition(".")[0])
        self._cache_argument = _cache_argument(self._backbone)
        self._embedding = model.get_input_embeddings()
        self._head = model.get_output_embeddings()
        self.device, self.dtype = model.device, model.dtype
        self.info: TargetInfo = target_info(config, model.generation_config, name, self._embedding.weight.shape[0])
        self.weights_bytes = sum({p.data_ptr(): p.nbytes for p in model.parameters()}.values())
        self._taps: list = []
        self._captured: dict[int, Tensor] = {}
        self._ids: tuple[int, ...] = ()
        self._cache = Cache(layer_class_to_replicate=ReservedLayer)

    def capture(self, layer_ids: Sequence[int]) -> None:
        for tap in self._taps:
            tap.remove()
        self._ids = check_layer_ids(layer_ids, self.info.num_layers, self.info.name)
        self._taps = [self._layers[i].register_forward_hook(self._tap(i)) for i in self._ids]

    def _tap(self, layer: int):
        def keep(module, inputs, output) -> None:
            self._captured[layer] = output[0] if isinstance(output, tuple) else output

        return keep

    @torch.inference_mode()
    def prefill(self, ids: Tensor) -> TargetOutput:
        self._cache = Cache(layer_class_to_replicate=ReservedLayer)
        return self._forward(ids, slice(-1, None))

    @torch.inference_mode()
    def verify(self, block_ids: Tensor) -> TargetOutput:
        return self._forward(block_ids, slice(None))

    def _forward(self, ids: Tensor, keep: slice) -> TargetOutput:
        start = self._cache.get_seq_length()
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
        hidden = self._backbone(ids, position_ids=positions, use_cache=True, **{self._cache_argument: self._cache})[0]
        logits = self._head(hidden[:, keep])[..., : self.info.vocab_size]
        features = torch.cat([self._captured[i] for i in self._ids], dim=-1) if self._ids else None
        self._captured.clear()
        return TargetOutput(logits, features)

    def rollback(self, length: int) -> None:
        surplus = self._cache.get_seq_length() - length
        if surplus:
            self._cache.crop(-surplus)

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._embedding.weight)

    def head(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)


def load_model(source: str | Path, *, dtype: torch.dtype, device: torch.device):
    """A causal language model from a folder or hub id; errors are one line."""
    config = load_config(source, str(source))
    try:
        model = AutoModelForCausalLM.from_pretrained(source, config=config, dtype=dtype, attn_implementation="sdpa")
    except (OSError, ValueError) as error:
        raise TargetError(f"target {str(source)!r} could not be loaded: {first_line(error)}") from None
    return model.to(device).eval().requires_grad_(False)


def _cache_argument(backbone) -> str:
    """transformers renamed `past_key_values` to `cache` during version 5."""
    parameters = inspect.signature(inspect.unwrap(backbone.forward)).parameters
    return "cache" if "cache" in parameters else "past_key_values"
