"""The target's own greedy texts, which replays walk along, with the features that drafters read.

A text that is already known (shipped, kept from an earlier run, written in a batch) is read in one pass that also
checks it; where the target would have written something else, or the text ends too early, the drafter goes on, as
losslessly as in decoding. A block may reach past a stop token, and what is accepted there counts, so texts go on for a
few tokens after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dflash_lab.core.ablate.replay import Texts
from dflash_lab.core.decode.batch import decode_batch
from dflash_lab.core.decode.graph import Engine
from dflash_lab.core.errors import NumericsError, RequestError
from dflash_lab.core.model.drafter import Drafter
from dflash_lab.core.target.base import Target
from dflash_lab.core.trace.compare import ROUNDING_MARGIN
from dflash_lab.core.types import SamplingParams

NEAR_TIE = 1e-4
"""Margin of scores or logits below which float32 passes of different shapes may choose differently."""
READ_AT_ONCE = 512
"""Known tokens that one pass checks: their logits have to fit."""
WRITING_BLOCK = 8
"""Slots of the blocks that missing text is drafted in, where the drafter knows as many."""
BATCH = 32
"""Texts that a captured batch writes side by side."""


@dataclass(frozen=True)
class TextPlan:
    """How far texts go."""

    max_new_tokens: int
    """Most output tokens."""
    beyond: int
    """Tokens wanted after a stop token: as many as the largest block can reach."""
    stop_ids: tuple[int, ...]
    """Tokens that end a text."""

    def limit(self, num_prompt: int, max_context: int | None) -> int:
        """Most output tokens after a prompt, as in decoding. Raises RequestError if the prompt fills the context."""
        if max_context is None:
            return self.max_new_tokens
        if num_prompt >= max_context:
            raise RequestError(
                f"the prompt has {num_prompt} tokens, the target's context holds {max_context}: shorten it"
            )
        return min(self.max_new_tokens, max_context - num_prompt + 1)

    def num_output(self, ids: Sequence[int], limit: int) -> int:
        """Tokens up to the first stop token or the limit, whether they are all there or not."""
        stop = next((i for i, token in enumerate(ids) if token in self.stop_ids), None)
        return limit if stop is None else min(stop + 1, limit)

    def wanted(self, ids: Sequence[int], limit: int) -> int:
        """The same with the tokens beyond a stop token."""
        count = self.num_output(ids, limit)
        return min(count + self.beyond, limit)


@dataclass(frozen=True)
class NearTie:
    """A choice of the target that rounding may turn, or has turned."""

    index: int
    """Output token, from 0."""
    margin: float
    """Difference of its two largest logits."""
    turned: bool
    """Whether the text has another token than the one that this reading would choose."""


@dataclass(frozen=True)
class GreedyText:
    """What the target writes greedily after a prompt."""

    prompt_ids: tuple[int, ...]
    """The prompt, template included."""
    output_ids: tuple[int, ...]
    """Up to the stop token or the limit."""
    beyond_ids: tuple[int, ...]
    """What it would go on with after the stop token."""
    limit: int
    """Most output tokens there may be."""
    near_ties: tuple[NearTie, ...]
    """Tokens of the text that were nearly others."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The whole text."""
        return (*self.prompt_ids, *self.output_ids, *self.beyond_ids)


class Reading(NamedTuple):
    """A text and what the target's layers made of it."""

    text: GreedyText
    features: Tensor
    """`[S, F*D]` of every token of the text but its last."""


def tolerance_of(dtype: torch.dtype) -> float:
    """By how much a known token's logit may fall behind the largest and still be called the target's choice.

    In half precision passes of different shapes round differently, so text written one token at a time is not quite
    what a pass over it would have written.
    """
    return NEAR_TIE if dtype == torch.float32 else ROUNDING_MARGIN


@torch.no_grad()
def read_text(
    target: Target,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    known: Sequence[int],
    plan: TextPlan,
    after_stop: Sequence[int] = (),
) -> Reading:
    """Read a prompt and what is `known` of its greedy answer, and write the rest with `drafter`.

    `after_stop` is proposed behind a stop token, where no drafter was trained. Features are of the drafter's target
    layers. Raises RequestError if the prompt does not fit.
    """
    limit = plan.limit(len(prompt_ids), target.info.max_context)
    known = list(known[: plan.wanted(known, limit)])
    tolerance = tolerance_of(target.dtype)
    target.capture(drafter.config.target_layer_ids)
    drafter.reset()
    block_size = min(drafter.block_size, WRITING_BLOCK)
    output = target.prefill(torch.tensor([list(prompt_ids)], device=target.device))
    ids, choices = _decide(output.logits[0, -1:], known[:1], tolerance)
    read = [output.features]
    undrafted = 0
    while len(ids) < plan.wanted(ids, limit):
        trusted = len(ids) < len(known) and ids == known[: len(ids)]
        if trusted:
            proposal = known[len(ids) : len(ids) + READ_AT_ONCE]
        elif after_stop and ids[-1] in plan.stop_ids:
            proposal = list(after_stop[: limit - len(ids)])
        else:
            fresh, undrafted = torch.cat(read[undrafted:], dim=1), len(read)
            draft = drafter.draft(
                fresh,
                torch.tensor([ids[-1]], device=target.device),
                block_size=min(block_size, limit - len(ids) + 1),
                num_candidates=drafter.num_candidates,
            )
            proposal = draft.block_ids[0, 1:].tolist()
        output = target.verify(torch.tensor([[ids[-1], *proposal]], device=target.device))
        # What is known was the target's choice once; what is drafted has to be its choice now.
        tokens, found = _decide(output.logits[0], proposal, tolerance if trusted else 0.0)
        ids, choices = ids + tokens, choices + found
        target.rollback(len(prompt_ids) + len(ids) - 1)
        read.append(output.features[:, : len(tokens)])
    count = plan.wanted(ids, limit)
    num_output = plan.num_output(ids, limit)
    close = (NearTie(i, *choice) for i, choice in enumerate(choices[:count]) if choice.close or choice.turned)
    text = GreedyText(tuple(prompt_ids), tuple(ids[:num_output]), tuple(ids[num_output:count]), limit, tuple(close))
    return Reading(text, torch.cat(read, dim=1)[0, : len(text.ids) - 1])


class _Choice(NamedTuple):
    """How the target chose a token."""

    margin: float
    turned: bool

    @property
    def close(self) -> bool:
        """Whether rounding may turn it."""
        return self.margin < NEAR_TIE


def _decide(logits: Tensor, proposal: Sequence[int], tolerance: float) -> tuple[list[int], list[_Choice]]:
    """Accepted tokens of a proposal and the target's own after them, each with how it was chosen.

    Row i of `logits [n, V]` judges proposal i; a proposal that is nearly the largest passes.
    """
    best = logits.float().topk(2)
    values, margins = best.values[:, 0], (best.values[:, 0] - best.values[:, 1]).tolist()
    if not all(margin >= 0 for margin in margins):
        raise NumericsError("the target's logits are not finite: try --dtype float32")
    judged = logits[: len(proposal)].float().gather(1, torch.tensor([list(proposal)], device=logits.device).T.long())
    behind = (values[: len(proposal)] - judged[:, 0]).tolist()
    accepted = next((i for i, gap in enumerate(behind) if not gap <= tolerance), len(behind))
    tokens = list(proposal[:accepted])
    if accepted < len(logits):
        tokens.append(int(best.indices[accepted, 0]))
    turned = [gap > 0 for gap in behind[:accepted]] + [False]
    return tokens, [_Choice(*choice) for choice in zip(margins[: len(tokens)], turned[: len(tokens)], strict=True)]


def write_batch(engine: Engine, prompts: Sequence[Sequence[int]], plan: TextPlan) -> list[list[int]]:
    """Greedy answers of many prompts at once through captured steps, as far as `plan` wants them: what goes on beyond
    a stop token is written in a second round. Raises RequestError."""
    answers = _write_to_stop(engine, prompts, plan.max_new_tokens, plan.stop_ids)
    limits = [plan.limit(len(prompt), engine.target.info.max_context) for prompt in prompts]
    ended = [i for i, answer in enumerate(answers) if len(answer) < plan.wanted(answer, limits[i])]
    further = [(*prompts[i], *answers[i]) for i in ended]
    for i, more in zip(ended, _write_to_stop(engine, further, plan.beyond, ()), strict=True):
        answers[i] += more
    return answers


def _write_to_stop(
    engine: Engine, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop_ids: tuple[int, ...]
) -> list[list[int]]:
    drafter, answers = engine.drafter, []
    for start in range(0, len(prompts), BATCH):
        run = decode_batch(
            engine,
            prompts[start : start + BATCH],
            SamplingParams(max_new_tokens=max_new_tokens, stop_ids=stop_ids),
            block_size=min(drafter.block_size, WRITING_BLOCK),
            num_candidates=drafter.num_candidates,
        )
        answers += [list(ids) for ids in run.output_ids]
    return answers


class Reader:
    """Texts of one prompt set with features of one drafter's target layers, read again where memory is short."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        prompts: Sequence[Sequence[int]],
        known: Mapping[tuple[int, ...], Sequence[int]],
        plan: TextPlan,
        keep_bytes: int,
    ) -> None:
        """`known` has an answer, or the beginning of one, for some prompts. Up to `keep_bytes` of features are kept."""
        self._target, self._drafter, self._plan = target, drafter, plan
        self._prompts, self._known = [tuple(ids) for ids in prompts], dict(known)
        self._kept: dict[int, Reading] = {}
        self._free = keep_bytes
        self._after_stop: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._prompts)

    def read(self, index: int) -> Reading:
        """The text after prompt number `index`."""
        if index in self._kept:
            return self._kept[index]
        prompt = self._prompts[index]
        known = self._known.get(prompt, ())
        reading = read_text(self._target, self._drafter, prompt, known, self._plan, self._after_stop)
        # A target goes on alike after most of its texts.
        self._after_stop = reading.text.beyond_ids or self._after_stop
        self._known[prompt] = (*reading.text.output_ids, *reading.text.beyond_ids)
        if reading.features.nbytes <= self._free:
            self._free -= reading.features.nbytes
            self._kept[index] = reading
        return reading

    def group(self, indices: Sequence[int]) -> tuple[Texts, Tensor]:
        """Some texts side by side, and their features `[B, S, F*D]`."""
        readings = [self.read(index) for index in indices]
        return pad_texts([reading.text for reading in readings], self._target.device), _pad_features(readings)


def pad_texts(texts: Sequence[GreedyText], device: torch.device) -> Texts:
    """Greedy texts as replays take them."""
    longest = max(len(text.ids) for text in texts)
    padded = np.zeros((len(texts), longest), dtype=np.int64)
    for row, text in zip(padded, texts, strict=True):
        row[: len(text.ids)] = text.ids
    starts = np.array([len(text.prompt_ids) for text in texts])
    outputs, limits = (np.array(values) for values in zip(*((len(t.output_ids), t.limit) for t in texts), strict=True))
    known = np.array([len(text.ids) for text in texts])
    return Texts(torch.from_numpy(padded).to(device), starts, starts + outputs - 1, known, starts + limits)


def _pad_features(readings: Sequence[Reading]) -> Tensor:
    longest = max(len(reading.features) for reading in readings)
    like = readings[0].features
    padded = like.new_zeros(len(readings), longest, like.shape[1])
    for row, reading in zip(padded, readings, strict=True):
        row[: len(reading.features)] = reading.features
    return padded
