"""What a trace holds. Standard library and numpy only: reading a trace needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dflash_lab.core.types import StepRecord

if TYPE_CHECKING:
    import numpy as np

SCHEMA_VERSION = 1
"""Raised by one when a reader of the old version would misread a new file."""

SCORE_TENSORS: dict[str, str] = {
    "candidate_ids": "int32 [K, C] token ids, best unary score first",
    "unary": "float32 [K, C] drafter logits of the candidates",
    "log_norm": "float32 [K] logsumexp of the drafter's logits over the vocabulary: p = exp(unary - log_norm)",
    "edges": "float32 [K, C, C] edge scores, unary included: predecessor by successor; "
    "position 0 has the anchor as its only predecessor, so its rows are equal; absent for DFlash 1",
    "path": "int32 [K] chosen candidate at each position, an index into C",
    "q": "float32 [K, C] distribution the proposal was drawn from; absent when greedy",
    "target_ids": "int32 [L] the target's arg-max after each slot of the block; slot i judges position i (0-based)",
    "target_top2": "float32 [L, 2] the target's two largest logits: their difference is the margin",
    "target_log_norm": "float32 [L] logsumexp of the target's logits",
    "target_logit": "float32 [K, C] the target's logits of the candidates",
}
"""Tensors of record level `scores`, by name in the file."""

FEATURE_TENSORS: dict[str, str] = {
    "target_features": "float32 [S, F*D] target-layer features of the tokens committed last",
    "context": "float32 [S, D] the same after fc and hidden_norm",
    "draft_hidden": "float32 [K, D] the backbone's output at the masked slots",
}
"""Tensors added by record level `features`."""

TENSORS = {**SCORE_TENSORS, **FEATURE_TENSORS}

STATUSES = ("complete", "cancelled", "failed")


@dataclass(frozen=True)
class TokenInfo:
    """How one token id reads."""

    text: str
    """The token's own text; invalid UTF-8 is replaced by U+FFFD."""
    raw: str | None = None
    """The token's bytes in hex, only where `text` does not round-trip."""
    special: bool = False
    """True for control tokens such as `<|im_end|>`."""


@dataclass(frozen=True)
class TraceHeader:
    """Everything about a run that is not a step: enough to repeat it and to read it without the models."""

    schema_version: int = SCHEMA_VERSION
    """Version of this layout."""
    created: str = ""
    """UTC time of the start, ISO 8601."""
    status: str = "complete"
    """One of `STATUSES`."""
    level: str = "steps"
    """Record level: steps, scores or features."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """The GenerateRequest as a dict."""
    prompt: str = ""
    """The prompt as rendered by the chat template."""
    prompt_ids: tuple[int, ...] = ()
    """Prompt token ids."""
    output_ids: tuple[int, ...] = ()
    """Committed token ids, the one from prefill first."""
    text: str = ""
    """The output as text, decoded as a whole, special tokens left out."""
    stop_reason: str | None = None
    """stop, length, context or cancelled; None when the run failed."""
    time_to_first_token_ms: float | None = None
    """Prefill time, milliseconds."""
    decode_s: float | None = None
    """Seconds from the first token to the last."""
    target: Mapping[str, Any] = field(default_factory=dict)
    """Name, architecture, vocabulary, layers, rollback kind."""
    drafter: Mapping[str, Any] | None = None
    """Name, version (`dflash` or `dflash2`), configuration with the origin of each value; None when autoregressive."""
    block_size: int = 1
    """L: slots in a draft block with the anchor."""
    num_candidates: int = 0
    """C: candidates at each position; 0 without a drafter."""
    backends: Mapping[str, Any] = field(default_factory=dict)
    """What ran: kernels, dtype, device, cache, threads."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Git revision, package versions, machine, command line."""
    warnings: tuple[str, ...] = ()
    """Everything that was said while it ran."""
    tokens: Mapping[int, TokenInfo] = field(default_factory=dict)
    """Text of every token id that occurs in the trace."""


class Trace:
    """A header, steps, and tensors fetched on demand.

    `tensor(name, step)` gives a numpy array or None where it was not recorded; `store.load` opens a file,
    `recorder.Recorder` makes one from a running decode, tests build one from dicts.
    """

    def __init__(
        self,
        header: TraceHeader,
        steps: tuple[StepRecord, ...],
        fetch: Callable[[str, int], np.ndarray | None],
        name: str = "trace",
    ) -> None:
        self.header = header
        self.steps = steps
        self.name = name
        self._fetch = fetch

    def tensor(self, name: str, step: int) -> np.ndarray | None:
        """The tensor `name` (a key of TENSORS) of step number `step`, or None if it was not recorded."""
        assert name in TENSORS, name
        return self._fetch(name, step)

    @classmethod
    def from_arrays(
        cls,
        header: TraceHeader,
        steps: tuple[StepRecord, ...],
        arrays: Mapping[tuple[str, int], np.ndarray],
        name: str = "trace",
    ) -> Trace:
        """A trace held in memory; `arrays` by (tensor name, step)."""
        return cls(header, steps, lambda tensor, step: arrays.get((tensor, step)), name)

    def token(self, token_id: int) -> TokenInfo:
        """How `token_id` reads; an id without text reads as `<id>`."""
        return self.header.tokens.get(token_id) or TokenInfo(f"<{token_id}>")

    def __len__(self) -> int:
        return len(self.steps)
