"""The records that cross package boundaries: frozen, plain Python values, standard library only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_lab.core.errors import RequestError


class StopReason(enum.StrEnum):
    """Why decoding ended."""

    STOP = "stop"
    """A stop token was committed."""
    LENGTH = "length"
    """`max_new_tokens` were committed."""
    CONTEXT = "context"
    """The target's context is full."""
    CANCELLED = "cancelled"
    """Cancelled between two steps; what was committed is kept."""


@dataclass(frozen=True)
class SamplingParams:
    """How the target's distribution is turned into tokens, and when to stop."""

    temperature: float = 0.0
    """0 is greedy; above 0 the logits are divided by it."""
    top_p: float = 1.0
    """Nucleus filter of the target's distribution, in (0, 1]; 1 keeps all."""
    top_k: int = 0
    """Top-k filter of the target's distribution; 0 keeps all."""
    max_new_tokens: int = 256
    """Most tokens to commit, the one from prefill included; at least 1."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end the text; the stop token itself is committed."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.temperature == float("inf"):
            raise RequestError(f"temperature must be 0 (greedy) or a positive number, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p must be in (0, 1], got {self.top_p}; use 1 to keep every token")
        if self.top_k < 0:
            raise RequestError(f"top_k must be 0 (keep all) or more, got {self.top_k}")
        if self.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""
        return self.temperature == 0


RECORD_LEVELS = ("none", "steps", "scores", "features")
"""What a recorder keeps, each level including the one before it."""


@dataclass(frozen=True)
class Turn:
    """One message of a chat."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str
    """Its text."""


@dataclass(frozen=True)
class Conversation:
    """A prompt of more than one message of the user's."""

    turns: tuple[Turn, ...]
    """The messages in order."""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template is told beside the messages: `enable_thinking` and the like."""


@dataclass(frozen=True)
class GenerateRequest:
    """One generation: the single object behind a command line, a click in the page and a cell of a sweep."""

    prompt: str | Conversation
    """The user's text before any chat template, or a whole conversation."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """Temperature, filters, length; stop ids are added from the target."""
    target: str = "bundled"
    """`bundled`, a hub id or a local folder."""
    drafter: str | None = "bundled"
    """`bundled`, a hub id or a local folder; None decodes autoregressively."""
    block_size: int | None = None
    """Tokens in a draft block with the anchor, L; None takes the checkpoint's."""
    num_candidates: int | None = None
    """Candidates at each position, C; None takes the checkpoint's."""
    seed: int = 0
    """Seed of the only random generator; unused when greedy."""
    kernels: str = "auto"
    """`reference`, `triton` or `auto`."""
    loop: str = "auto"
    """`eager` (operation by operation), `graph` (captured CUDA graphs), or `auto`: graph where it can run."""
    forward: str = "auto"
    """Whose forward pass the target runs on: `lean` (ours), `transformers`, or `auto`: lean where there is one."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    dtype: str = "auto"
    """`auto` (float32 on a CPU, bfloat16 on a GPU), `float32`, `bfloat16` or `float16`."""
    record: str = "none"
    """One of `RECORD_LEVELS`."""
    chat: bool = True
    """Whether the prompt is put through the tokenizer's chat template; a conversation always is."""

    def __post_init__(self) -> None:
        if self.record not in RECORD_LEVELS:
            raise RequestError(f"record must be one of {', '.join(RECORD_LEVELS)}, got {self.record!r}")


@dataclass(frozen=True)
class StepTimings:
    """Milliseconds of one verification step by phase; the sum is the step's time."""

    draft_ms: float = 0.0
    """Drafter backbone: context and block."""
    select_ms: float = 0.0
    """Head, candidates, edge scores and walk."""
    verify_ms: float = 0.0
    """The target's forward pass and the accept decision."""
    commit_ms: float = 0.0
    """Book-keeping: rollback, feature slice, stop check."""

    @property
    def total_ms(self) -> float:
        """Milliseconds of the whole step."""
        return self.draft_ms + self.select_ms + self.verify_ms + self.commit_ms


@dataclass(frozen=True)
class StepRecord:
    """One verification step in plain values."""

    index: int
    """Number of the step, from 0."""
    start: int
    """Absolute position of the anchor token in prompt + output."""
    anchor_id: int
    """The last committed token, slot 0 of the draft block."""
    draft_ids: tuple[int, ...]
    """The proposal, K tokens; empty when there is no drafter."""
    num_accepted: int
    """Leading proposals kept, 0..K, without the bonus token; not clipped."""
    bonus_id: int
    """The target's own token after the accepted ones."""
    committed_ids: tuple[int, ...]
    """Tokens appended to the text: accepted ones and the bonus, clipped at stop or length."""
    truncated: int
    """Tokens cut off by stop or length: `num_accepted + 1 - len(committed_ids)`."""
    timings: StepTimings = StepTimings()
    """Time by phase."""

    @property
    def commit_length(self) -> int:
        """Tokens appended by this step."""
        return len(self.committed_ids)


@dataclass(frozen=True)
class RunSummary:
    """What came of one generation, beyond its steps."""

    prompt_ids: tuple[int, ...]
    """The prompt as token ids, after the chat template."""
    output_ids: tuple[int, ...]
    """Committed tokens, the one from prefill included, without the prompt."""
    stop_reason: StopReason
    """Why it ended."""
    num_steps: int
    """Verification steps, m."""
    time_to_first_token_ms: float
    """Prefill with the first token, milliseconds."""
    decode_s: float
    """Seconds from the first token to the last."""
