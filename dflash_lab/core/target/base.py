"""What a target model must offer to be decoded speculatively."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dflash_lab.core.errors import TargetError


@dataclass(frozen=True)
class TargetOutput:
    """One forward pass of the target over a block."""

    logits: Tensor
    """`[B, L, V]`, padding rows of the head cut off; after prefill only the last position, `[B, 1, V]`."""
    features: Tensor | None
    """`[B, S, F*D]` target-layer features of every token of the pass; None when nothing is captured."""


@dataclass(frozen=True)
class TargetInfo:
    """What is known of a target without running it."""

    name: str
    """As the user named it."""
    architecture: str
    """The model class."""
    vocab_size: int
    """V, tokens of the vocabulary without padding rows."""
    embedding_rows: int
    """Rows of the embedding table, padding included."""
    hidden_size: int
    """D."""
    num_layers: int
    """Decoder layers."""
    stop_ids: tuple[int, ...]
    """Every token id that ends a text, from the generation config."""
    max_context: int | None
    """Most positions; None if unlimited."""
    rollback: str
    """How rejected tokens are taken out of the state: `crop` or `snapshot`."""
    warnings: tuple[str, ...] = ()
    """What a user should know."""


class Target(Protocol):
    """The model whose text is produced. It holds the state of one request at a time."""

    info: TargetInfo
    device: torch.device
    dtype: torch.dtype
    weights_bytes: int

    def capture(self, layer_ids: Sequence[int]) -> None:
        """Capture the output of these layers as features; an empty list captures nothing."""
        ...

    def prefill(self, ids: Tensor) -> TargetOutput:
        """Forget the last request and read a prompt `[B, S]`."""
        ...

    def verify(self, block_ids: Tensor) -> TargetOutput:
        """Read a block `[B, L]` behind the current state."""
        ...

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the state, as if the others had never been read."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """Raw embedding rows `[B, L, D]`, without any scale the architecture applies to them."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Output head: `[B, K, D]` to `[B, K, rows]`."""
        ...


def check_layer_ids(layer_ids: Sequence[int], num_layers: int, name: str) -> tuple[int, ...]:
    """Layer ids that exist in a target of `num_layers`, each once; else a TargetError that names them."""
    ids = tuple(layer_ids)
    if any(i < 0 or i >= num_layers for i in ids):
        raise TargetError(f"target_layer_ids {list(ids)} must lie in 0..{num_layers - 1}, the layers of {name}")
    if len(set(ids)) != len(ids):
        raise TargetError(f"target_layer_ids {list(ids)} names a layer twice")
    return ids
