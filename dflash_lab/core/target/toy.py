"""Exact tiny targets for tests, documentation and demonstrations without a model.

`ToyTarget` is a Markov chain: the distribution of the next token depends on the current one alone, by a table, so
every probability is known exactly. Its layer i adds the constant i + 1 to the stream, which makes captured features
checkable by eye. `RecurrentToyTarget` carries a running sum, a state that cannot be cropped, and restores it from
snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_lab.core.target.base import TargetInfo, TargetOutput, check_layer_ids


class ToyTarget:
    """Next-token logits by a table `[V, V]`: row = current token, column = next token."""

    def __init__(
        self,
        table: Tensor,
        *,
        num_layers: int = 4,
        hidden_size: int = 8,
        stop_ids: Sequence[int] = (),
        max_context: int | None = None,
    ) -> None:
        self.table = table.float()
        self.device, self.dtype = table.device, torch.float32
        self.weights_bytes = self.table.nbytes
        vocab_size = table.shape[0]
        generator = torch.Generator().manual_seed(0)
        self._embedding = torch.randn(vocab_size, hidden_size, generator=generator).to(table.device)
        self.info = TargetInfo(
            name="toy",
            architecture=type(self).__name__,
            vocab_size=vocab_size,
            embedding_rows=vocab_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            stop_ids=tuple(stop_ids),
            max_context=max_context,
            rollback="crop",
        )
        self._captured: tuple[int, ...] = ()
        self._ids = torch.empty(1, 0, dtype=torch.long)

    @classmethod
    def random(cls, vocab_size: int, *, seed: int = 0, sharpness: float = 1.0, **options) -> ToyTarget:
        """A chain with normal logits times `sharpness`."""
        generator = torch.Generator().manual_seed(seed)
        return cls(torch.randn(vocab_size, vocab_size, generator=generator) * sharpness, **options)

    def capture(self, layer_ids: Sequence[int]) -> None:
        self._captured = check_layer_ids(layer_ids, self.info.num_layers, self.info.name)

    def prefill(self, ids: Tensor) -> TargetOutput:
        self._ids = ids[:, :0]
        output = self.verify(ids)
        return TargetOutput(output.logits[:, -1:], output.features)

    def verify(self, block_ids: Tensor) -> TargetOutput:
        self._ids = torch.cat((self._ids, block_ids), dim=1)
        return TargetOutput(self._logits(block_ids), self._features(block_ids))

    def rollback(self, length: int) -> None:
        self._ids = self._ids[:, :length]

    def embed(self, ids: Tensor) -> Tensor:
        return self._embedding[ids]

    def head(self, hidden: Tensor) -> Tensor:
        return hidden @ self._embedding.T

    def _logits(self, block_ids: Tensor) -> Tensor:
        return self.table[block_ids]

    def _features(self, block_ids: Tensor) -> Tensor | None:
        if not self._captured:
            return None
        stream = self.embed(block_ids)
        outputs = []
        for layer in range(self.info.num_layers):
            stream = stream + (layer + 1)
            outputs.append(stream)
        return torch.cat([outputs[layer] for layer in self._captured], dim=-1)


class RecurrentToyTarget(ToyTarget):
    """A chain whose next-token logits also depend on the running sum of all token ids modulo V.

    Cropping tokens would leave the sum; rollback restores it from the snapshot after each token.
    """

    def __init__(self, table: Tensor, **options) -> None:
        super().__init__(table, **options)
        self.info = TargetInfo(**{**vars(self.info), "rollback": "snapshot"})
        self._sums = torch.zeros(1, 1, dtype=torch.long, device=table.device)

    def prefill(self, ids: Tensor) -> TargetOutput:
        self._sums = torch.zeros(ids.shape[0], 1, dtype=torch.long, device=ids.device)
        return super().prefill(ids)

    def rollback(self, length: int) -> None:
        super().rollback(length)
        self._sums = self._sums[:, : length + 1]

    def _logits(self, block_ids: Tensor) -> Tensor:
        sums = self._sums[:, -1:] + block_ids.cumsum(1)
        self._sums = torch.cat((self._sums, sums), dim=1)
        return self.table[(block_ids + sums) % self.info.vocab_size]
