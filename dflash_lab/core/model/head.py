"""From draft hidden states to candidates, through the real output head."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dflash_lab.core.kernels.head_topk.reference import shape_logits
from dflash_lab.core.model.config import DraftConfig

Head = Callable[[Tensor], Tensor]
"""Hidden states `[B, K, D]` to logits `[B, K, rows]`: the target's head as it is (tied, quantised, padded)."""


class DraftHead:
    """Logits with multiplier and soft-cap, padding rows cut off, reduced vocabularies mapped to target ids."""

    def __init__(
        self,
        config: DraftConfig,
        head: Head,
        d2t: Tensor | None = None,
        source: str = "the target's",
        weight: Tensor | None = None,
    ) -> None:
        """`head` is the one that `source` names; `d2t [draft_vocab]` holds target id - draft id.

        `weight [rows, D]` is the drafter's own head, if it has one: fused kernels read it.
        """
        self.source, self.weight = source, weight
        self._head = head
        self.multiplier = config.output_multiplier
        self.softcap = config.final_logit_softcapping
        self._rows = config.draft_vocab_size or config.vocab_size
        self._d2t = d2t

    @property
    def num_rows(self) -> int:
        """Tokens the drafter can propose."""
        return self._rows

    def logits(self, hidden: Tensor) -> Tensor:
        """Drafter logits `[B, K, V]` in the head's dtype."""
        return shape_logits(self._head(hidden), self._rows, self.multiplier, self.softcap)

    def token_ids(self, rows: Tensor) -> Tensor:
        """Head rows to the target's token ids."""
        return rows if self._d2t is None else rows + self._d2t[rows]
