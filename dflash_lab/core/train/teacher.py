"""The frozen target as training sees it: whole texts in, target-layer features and final hidden states out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_lab.core.target.base import check_layer_ids
from dflash_lab.core.target.families import family_of


class Reading(NamedTuple):
    """One pass over a batch of texts."""

    features: Tensor
    """`[B, S, F*D]` outputs of the tapped layers."""
    hidden: Tensor
    """`[B, S, D]` what the output head reads: after the final norm."""


class Teacher:
    """A transformers model with taps. Texts are padded on the right: causal attention keeps them apart."""

    def __init__(self, model, layer_ids: Sequence[int], *, compiled: bool = False) -> None:
        path = family_of(type(model).__name__).layers
        layers = model.get_submodule(path)
        self._backbone = model.get_submodule(path.rpartition(".")[0])
        self._ids = check_layer_ids(layer_ids, len(layers), type(model).__name__)
        self._captured: dict[int, Tensor] = {}
        for index in self._ids:
            layers[index].register_forward_hook(self._tap(index))
        if compiled:
            for layer in layers:
                layer.forward = torch.compile(layer.forward, dynamic=True)
        self.embedding = model.get_input_embeddings().weight
        self.head = model.get_output_embeddings().weight[: model.config.vocab_size]

    def _tap(self, index: int):
        def keep(module, inputs, output) -> None:
            self._captured[index] = output[0] if isinstance(output, tuple) else output

        return keep

    @torch.no_grad()
    def read(self, ids: Tensor) -> Reading:
        """Read `ids [B, S]`."""
        hidden = self._backbone(ids, use_cache=False)[0]
        features = torch.cat([self._captured[index] for index in self._ids], dim=-1)
        self._captured.clear()
        return Reading(features, hidden)
