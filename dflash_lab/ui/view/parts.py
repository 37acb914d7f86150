"""Committed tokens as text, told apart by where they come from, while they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash_lab.core.types import StepRecord


@dataclass(frozen=True)
class Part:
    """A piece of output text of one origin."""

    origin: str
    """`accepted`, `corrected` (the target's token at a mismatch), `bonus` (its token after a fully accepted block), or
    `target` where nothing was proposed."""
    text: str
    """The text, decoded in the context of what stands before it."""


class TextParts:
    """Decodes tokens as they come; `decode(ids)` turns ids into text."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self.parts: list[Part] = []
        self._decode = decode
        self._before: list[int] = []
        self._pending: list[int] = []
        self._origin = "target"

    def add_step(self, record: StepRecord) -> None:
        """The tokens that a verification step committed."""
        accepted = record.committed_ids[: record.num_accepted]
        last = record.committed_ids[record.num_accepted :]
        self.add(accepted, "accepted")
        full = record.num_accepted == len(record.draft_ids)
        self.add(last, "target" if not record.draft_ids else "bonus" if full else "corrected")

    def add(self, ids: Sequence[int], origin: str) -> None:
        """Tokens of one origin. A character that is not complete waits for its last token, and goes with that."""
        if not ids:
            return
        self._pending.extend(ids)
        self._origin = origin
        text = self._text()
        if not text.endswith("\ufffd"):
            self._commit(text)

    def flush(self) -> None:
        """The end: show what is still waiting."""
        if self._pending:
            self._commit(self._text())

    def _text(self) -> str:
        # With what stands before, since many tokenizers drop or add a space at the start of a text.
        return self._decode(self._before + self._pending)[len(self._decode(self._before)) :]

    def _commit(self, text: str) -> None:
        self.parts.append(Part(self._origin, text))
        self._before, self._pending = self._pending, []
