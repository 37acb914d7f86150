"""The decoding loop: one `Step` per verification step, the committed text always the target's own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dflash_lab.core.decode.clock import Clock
from dflash_lab.core.decode.graph import Engine, Start, places_for
from dflash_lab.core.decode.sampling import sample
from dflash_lab.core.decode.static import Shape
from dflash_lab.core.decode.verify import verify_sampled
from dflash_lab.core.errors import NumericsError, RequestError
from dflash_lab.core.hooks import NO_HOOKS, Hooks
from dflash_lab.core.kernels.greedy_accept.reference import Verdict, greedy_accept
from dflash_lab.core.model.drafter import Drafter
from dflash_lab.core.model.proposers import DraftBlock
from dflash_lab.core.target.base import Target, TargetOutput
from dflash_lab.core.types import RunSummary, SamplingParams, StepRecord, StopReason

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Step:
    """One verification step with its tensors; they live until the next step."""

    record: StepRecord
    """The step in plain values."""
    draft: DraftBlock | None
    """The draft block; None in autoregressive decoding, and from an engine."""
    output: TargetOutput | None
    """The target's pass over the block; None from an engine."""
    arrays: Mapping[str, np.ndarray] | None = None
    """From an engine: what was recorded of the step, already on the host, by the recorder's names."""


class Decoding:
    """A generation under way: iterate over it for its steps, read `output_ids` at any time.

    With a drafter each step verifies a block of up to `block_size` tokens, cut to what is left of `max_new_tokens`.
    Without one (the autoregressive baseline) the block is the anchor alone.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        block_size: int | None = None,
        num_candidates: int | None = None,
        rng: torch.Generator | None = None,
        hooks: Hooks = NO_HOOKS,
        engine: Engine | None = None,
        recorded: bool = False,
    ) -> None:
        """Check the request; nothing runs yet. Raises RequestError.

        With an `engine` its captured steps run instead of the loop here, and `recorded` says whether they keep scores;
        no hook is called then.
        `params.stop_ids` are used as they are: add the target's own (`target.info.stop_ids`) if they shall count.
        """
        self.target, self.drafter, self.params = target, drafter, params
        self.prompt_ids = tuple(prompt_ids)
        self.output_ids: list[int] = []
        self.stop_reason: StopReason | None = None
        self.warnings: list[str] = []
        self.time_to_first_token_ms = 0.0
        self.block_size, self.num_candidates = 1, 0
        if drafter is not None:
            self.block_size = drafter.block_size if block_size is None else block_size
            self.num_candidates = drafter.num_candidates if num_candidates is None else num_candidates
            self.warnings += drafter.check(self.block_size, self.num_candidates)
        self._limit = self._check_length()
        if rng is None and not params.greedy:
            raise RequestError("sampling needs a seeded torch.Generator: pass rng")
        self._rng, self._hooks = rng, hooks
        self._engine, self._recorded = engine, recorded
        self._clock = Clock(target.device)
        self._stop_ids = frozenset(params.stop_ids)
        self._cancelled = False
        self._started = self._ended = 0.0
        self._num_steps = 0
        self._ahead: tuple[Tensor | None, Tensor] | None = None

    def _check_length(self) -> int:
        """Most tokens that may be committed."""
        if not self.prompt_ids:
            raise RequestError("the prompt has no tokens: give some text")
        context, length = self.target.info.max_context, len(self.prompt_ids)
        if context is None:
            return self.params.max_new_tokens
        if length >= context:
            raise RequestError(
                f"the prompt has {length} tokens, the target's context holds {context}: shorten it to leave room"
            )
        # The last token needs no place of its own in the state.
        return min(self.params.max_new_tokens, context - length + 1)

    def cancel(self) -> None:
        """Stop before the next step; may be called from another thread."""
        self._cancelled = True

    @torch.inference_mode()
    def prefill(self) -> None:
        """Read the prompt and commit the first token, before the iteration that otherwise begins with it."""
        self._ahead = self._prefill()
        self._started = self._ended = time.perf_counter()

    @torch.inference_mode()
    def __iter__(self) -> Iterator[Step]:
        if self._ahead is None:
            self.prefill()
        (features, anchor), self._ahead = self._ahead, None
        if self._engine is not None:
            yield from self._captured(features, int(anchor))
            return
        while self.stop_reason is None:
            if self._cancelled:
                self.stop_reason = StopReason.CANCELLED
                break
            step, features, anchor = self._step(features, anchor)
            self._ended = time.perf_counter()
            self._num_steps += 1
            yield step

    def _prefill(self) -> tuple[Tensor | None, Tensor]:
        """The first step's features and anchor."""
        before = time.perf_counter()
        self.target.capture(self.drafter.config.target_layer_ids if self.drafter else ())
        if self.drafter:
            self.drafter.reset()
        ids = torch.tensor([self.prompt_ids], device=self.target.device)
        output = self.target.prefill(ids)
        first = sample(output.logits[:, -1], self.params, self._rng)
        self._commit([int(first)])
        self.time_to_first_token_ms = (time.perf_counter() - before) * 1e3
        return output.features, first

    def _step(self, features: Tensor | None, anchor: Tensor) -> tuple[Step, Tensor | None, Tensor]:
        """Draft, verify, commit; the next step's features and anchor come back with the step."""
        clock, start = self._clock, len(self.prompt_ids) + len(self.output_ids) - 1
        draft = self._draft(features, anchor)
        block_ids = draft.block_ids if draft else anchor[:, None]
        with clock("verify"):
            output = self.target.verify(block_ids)
            self._hooks("target_logits", output.logits)
            verdict = self._verify(output, draft, block_ids)
            accepted, bonus, drafted = self._read(verdict, draft, block_ids)
        with clock("commit"):
            produced = [*drafted[:accepted], bonus]
            committed = self._commit(produced)
            self.target.rollback(start + len(committed))
            if output.features is not None:
                features = output.features[:, : len(committed)]
            anchor = torch.tensor([committed[-1]], device=block_ids.device)
        record = StepRecord(
            index=self._num_steps,
            start=start,
            anchor_id=self.output_ids[-len(committed) - 1],
            draft_ids=tuple(drafted),
            num_accepted=accepted,
            bonus_id=bonus,
            committed_ids=tuple(committed),
            truncated=len(produced) - len(committed),
        )
        return Step(replace(record, timings=clock.take()), draft, output), features, anchor

    def _captured(self, features: Tensor | None, anchor_id: int) -> Iterator[Step]:
        """The steps of an engine, with what it left on the host."""
        if self.stop_reason is not None:
            return
        start, left = len(self.prompt_ids), self._limit - 1
        batch = self._engine.open(self._shape())
        batch.seed(self._rng)
        batch.load(0, Start(start, anchor_id, left), features)
        self._started = self._ended = time.perf_counter()
        for (row,) in batch.steps():
            committed = self._commit([*row.draft_ids[: row.num_accepted], row.bonus_id])
            assert len(committed) == row.num_committed, "device and host committed differently"
            record = StepRecord(
                index=self._num_steps,
                start=start,
                anchor_id=anchor_id,
                draft_ids=row.draft_ids[:left] if self.params.greedy else row.draft_ids,
                num_accepted=row.num_accepted,
                bonus_id=row.bonus_id,
                committed_ids=tuple(committed),
                truncated=row.num_accepted + 1 - len(committed),
                timings=row.timings,
            )
            start, left, anchor_id = start + len(committed), left - len(committed), committed[-1]
            self._ended = time.perf_counter()
            self._num_steps += 1
            yield Step(record, None, None, _without_past(row.arrays, len(record.draft_ids)))
            if self._cancelled and self.stop_reason is None:
                self.stop_reason = StopReason.CANCELLED
            if self.stop_reason is not None:
                break

    def _shape(self) -> Shape:
        params = self.params
        return Shape(
            batch=1,
            places=places_for(len(self.prompt_ids) + self._limit + self.block_size),
            block_size=self.block_size,
            num_candidates=self.num_candidates,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            stop_ids=params.stop_ids,
            recorded=self._recorded,
        )

    def _draft(self, features: Tensor | None, anchor: Tensor) -> DraftBlock | None:
        if self.drafter is None:
            return None
        left = self._limit - len(self.output_ids)
        return self.drafter.draft(
            features,
            anchor,
            block_size=min(self.block_size, left + 1),
            num_candidates=self.num_candidates,
            temperature=self.params.temperature,
            rng=self._rng,
            hooks=self._hooks,
            clock=self._clock,
        )

    def _verify(self, output: TargetOutput, draft: DraftBlock | None, block_ids: Tensor) -> Verdict:
        if draft is None:
            token = sample(output.logits[:, -1], self.params, self._rng)
            return Verdict(torch.zeros_like(token), token)
        if draft.q is None:
            return greedy_accept(output.logits, block_ids[:, 1:])
        return verify_sampled(output.logits, block_ids[:, 1:], draft.candidate_ids, draft.q, self.params, self._rng)

    def _read(self, verdict: Verdict, draft: DraftBlock | None, block_ids: Tensor) -> tuple[int, int, list[int]]:
        """Bring the verdict to the host: the only transfer of a step."""
        parts = [verdict.num_accepted, verdict.bonus_id, block_ids[0, 1:]]
        if draft is not None:
            parts.append(torch.isfinite(draft.unary).all()[None])
        values = torch.cat([part.long() for part in parts]).tolist()
        if draft is not None and not values.pop():
            raise self.drafter.locate_nonfinite()
        if not 0 <= values[1] < self.target.info.vocab_size:
            raise NumericsError(f"the target's logits are not finite in step {self._num_steps}: try --dtype float32")
        return values[0], values[1], values[2:]

    def _commit(self, tokens: list[int]) -> list[int]:
        """Append tokens up to the first stop token or the limit; sets the reason when decoding is over."""
        kept = tokens[: self._limit - len(self.output_ids)]
        for place, token in enumerate(kept):
            if token in self._stop_ids:
                kept = kept[: place + 1]
                self.stop_reason = StopReason.STOP
                break
        self.output_ids += kept
        if self.stop_reason is None and len(self.output_ids) >= self._limit:
            full = self._limit < self.params.max_new_tokens
            self.stop_reason = StopReason.CONTEXT if full else StopReason.LENGTH
        return kept

    @property
    def summary(self) -> RunSummary:
        """What came of it so far; a run that is not over counts as cancelled."""
        return RunSummary(
            prompt_ids=self.prompt_ids,
            output_ids=tuple(self.output_ids),
            stop_reason=self.stop_reason or StopReason.CANCELLED,
            num_steps=self._num_steps,
            time_to_first_token_ms=self.time_to_first_token_ms,
            decode_s=self._ended - self._started,
        )


def _without_past(arrays: Mapping[str, np.ndarray], num_drafted: int) -> dict[str, np.ndarray]:
    """The arrays of a block cut to `num_drafted` proposals; slot i of a target's tensor judges position i."""
    return {
        name: array[: num_drafted + (name in ("target_ids", "target_top2", "target_log_norm"))]
        for name, array in arrays.items()
    }


def decode(
    target: Target, drafter: Drafter | None, prompt_ids: Sequence[int], params: SamplingParams, **options
) -> Iterator[Step]:
    """Yield one Step per verification step; see `Decoding`, of which this is the bare iterator."""
    yield from Decoding(target, drafter, prompt_ids, params, **options)
