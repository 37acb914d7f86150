"""Acceptance length of a drafter on text that the target has already written greedily.

Greedy decoding is lossless, so the text is what any run would commit, and a run can be replayed: the anchor moves from
accepted prefix to accepted prefix along the text, and only the anchors that it visits are drafted. The target reads
each text once. Two walks are replayed, one that proposes what the selector chose and one that proposes the arg-max of
each position; they visit anchors of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_lab.core.errors import DataError
from dflash_lab.core.hooks import NO_HOOKS
from dflash_lab.core.model.drafter import Drafter
from dflash_lab.core.train.blocks import ContextKeys, block_embeddings, block_labels, block_states, context_keys, layout
from dflash_lab.core.train.corpus import Corpus
from dflash_lab.core.train.teacher import Teacher

WALKS = ("selector", "argmax")
"""The proposals replayed; for DFlash, which has no selector, both are the same."""
GROUP = 40
"""Texts that are replayed side by side."""
RESAMPLES = 2000
"""Draws of prompts behind an interval."""


@dataclass(frozen=True)
class PromptScore:
    """One text, replayed."""

    dataset: str
    """Set of the prompt."""
    accepted: dict[str, int]
    """Accepted tokens in all, by walk, without bonus tokens."""
    steps: dict[str, int]
    """Verification steps, by walk."""


@dataclass(frozen=True)
class SetScore:
    """Acceptance lengths over the prompts of a set."""

    num_prompts: int
    """Texts replayed."""
    mean_acceptance_length: float
    """1 + accepted tokens a step, the drafter's own proposal."""
    interval: tuple[float, float]
    """95 % bootstrap interval of it over prompts."""
    argmax_acceptance_length: float
    """The same with the arg-max of each position proposed."""


@dataclass(frozen=True)
class Evaluation:
    """A drafter on held-out text."""

    block_size: int
    """L."""
    num_candidates: int
    """C."""
    by_dataset: dict[str, SetScore]
    """Scores of each set."""
    mean_acceptance_length: float
    """Mean over the sets."""
    interval: tuple[float, float]
    """95 % bootstrap interval of it."""
    argmax_acceptance_length: float
    """Mean over the sets, arg-max of each position."""
    recall_at_1: tuple[float, ...]
    """By position: how often the text's token is the first candidate, at the anchors of the drafter's own walk."""
    recall_at_c: tuple[float, ...]
    """By position: how often it is among the candidates."""


def first_prompts(corpus: Corpus, datasets: list[str], num_prompts: int | None) -> Corpus:
    """The first `num_prompts` texts of each set (all if None); a set may hold fewer. Raises DataError."""
    known = list(dict.fromkeys(corpus.sources.tolist()))
    unknown = [name for name in datasets if name not in known]
    if unknown:
        raise DataError(f"no held-out text of {unknown[0]!r}; there is some of {', '.join(known)}")
    keep = np.concatenate([np.flatnonzero(corpus.sources == name)[:num_prompts] for name in datasets])
    return corpus.select(keep)


@torch.no_grad()
def evaluate(
    drafter: Drafter,
    teacher: Teacher,
    corpus: Corpus,
    *,
    block_size: int | None = None,
    num_candidates: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Replay every text of `corpus`; `advance` is called once a text. `teacher` taps what the drafter reads."""
    length = block_size or drafter.block_size
    width = num_candidates or drafter.num_candidates
    drafter.check(length, width)
    order = np.argsort(corpus.lengths, kind="stable")
    scores: list[PromptScore | None] = [None] * len(corpus)
    recall = np.zeros((3, length - 1))
    for start in range(0, len(order), GROUP):
        group = order[start : start + GROUP]
        replay = _Replay(drafter, teacher, corpus, group, length, width)
        for index, score in zip(group, replay.run(recall), strict=True):
            scores[index] = score
            advance()
    return _summary(scores, recall, length, width)


class _Replay:
    """A group of texts, read once, and the two walks along each."""

    def __init__(
        self, drafter: Drafter, teacher: Teacher, corpus: Corpus, group: np.ndarray, block_size: int, width: int
    ) -> None:
        device = teacher.embedding.device
        self._drafter, self._embedding = drafter, teacher.embedding
        self._block_size, self._width = block_size, width
        self._lengths = corpus.lengths[group]
        texts = [corpus.conversation(index).astype(np.int64) for index in group]
        padded = np.zeros((len(group), int(self._lengths.max())), dtype=np.int64)
        for row, text in zip(padded, texts, strict=True):
            row[: len(text)] = text
        self._ids = torch.from_numpy(padded).to(device)
        features = teacher.read(self._ids).features
        rope = drafter.backbone.rotary(0, padded.shape[1], features.dtype)
        self._context = context_keys(drafter.backbone, features, rope)
        self._sources = corpus.sources[group]
        self._position = {walk: corpus.prompt_lengths[group].copy() for walk in WALKS}

    def run(self, recall: np.ndarray) -> Iterator[PromptScore]:
        """Walk to the end of every text; adds to `recall [labelled | first | among candidates, K]`."""
        count = len(self._lengths)
        accepted = {walk: np.zeros(count, dtype=int) for walk in WALKS}
        steps = {walk: np.zeros(count, dtype=int) for walk in WALKS}
        while True:
            active = {walk: np.flatnonzero(self._position[walk] < self._lengths - 1) for walk in WALKS}
            visits = [(walk, text, self._position[walk][text]) for walk in WALKS for text in active[walk]]
            if not visits:
                break
            places = sorted({(text, anchor) for _, text, anchor in visits})
            where = {place: row for row, place in enumerate(places)}
            kept = self._draft(np.array(places), {where[t, a] for w, t, a in visits if w == "selector"}, recall)
            for walk, text, anchor in visits:
                num_accepted = kept[walk][where[text, anchor]]
                accepted[walk][text] += num_accepted
                steps[walk][text] += 1
                self._position[walk][text] += num_accepted + 1
        for text in range(count):
            yield PromptScore(
                str(self._sources[text]),
                {walk: int(accepted[walk][text]) for walk in WALKS},
                {walk: int(steps[walk][text]) for walk in WALKS},
            )

    def _draft(self, places: np.ndarray, counted: set[int], recall: np.ndarray) -> dict[str, np.ndarray]:
        """Draft at `places [n, (text, anchor)]`; accepted tokens of both walks, `[n]` each."""
        device, drafter = self._ids.device, self._drafter
        rows, anchors = torch.from_numpy(places).to(device).unbind(1)
        anchors = anchors.unsqueeze(1)
        ids = self._ids[rows]
        embeddings = block_embeddings(self._embedding, ids, anchors, drafter.config, self._block_size)
        context = [ContextKeys(layer.keys[rows], layer.values[rows]) for layer in self._context]
        where = layout(drafter.backbone, anchors, ids.shape[1], self._block_size, embeddings.dtype)
        # Contiguous, or the head would be copied for every block.
        hidden = block_states(drafter.backbone, context, embeddings, where)[:, 0, 1:].contiguous()
        anchor_ids = ids.gather(1, anchors).squeeze(1)
        block = drafter.proposer.propose(hidden, anchor_ids, drafter.head, self._width, 0.0, None, NO_HOOKS)
        lengths = torch.from_numpy(self._lengths).to(device)[rows]
        labels = block_labels(ids, lengths, anchors, self._block_size).squeeze(1)
        best = block.candidate_ids[..., 0]
        own = torch.tensor(sorted(counted), device=device, dtype=torch.long)
        found = torch.stack((labels >= 0, best == labels, (block.candidate_ids == labels.unsqueeze(-1)).any(-1)))[
            :, own
        ]
        recall += found.sum(1).cpu().numpy()
        return {"selector": _leading(block.block_ids[:, 1:] == labels), "argmax": _leading(best == labels)}


def _leading(matches: Tensor) -> np.ndarray:
    """Leading true values of each row."""
    return matches.long().cumprod(1).sum(1).cpu().numpy()


def _summary(scores: list[PromptScore], recall: np.ndarray, block_size: int, width: int) -> Evaluation:
    names = list(dict.fromkeys(score.dataset for score in scores))
    random = np.random.default_rng(0)
    by_dataset, draws = {}, []
    for name in names:
        own = [score for score in scores if score.dataset == name]
        totals = {
            walk: np.array([(score.accepted[walk], score.steps[walk]) for score in own], dtype=float) for walk in WALKS
        }
        picked = random.integers(len(own), size=(RESAMPLES, len(own)))
        drawn = _length(totals["selector"][picked].sum(1))
        draws.append(drawn)
        by_dataset[name] = SetScore(
            len(own),
            float(_length(totals["selector"].sum(0))),
            _interval(drawn),
            float(_length(totals["argmax"].sum(0))),
        )
    labelled = np.maximum(recall[0], 1)
    return Evaluation(
        block_size=block_size,
        num_candidates=width,
        by_dataset=by_dataset,
        mean_acceptance_length=float(np.mean([score.mean_acceptance_length for score in by_dataset.values()])),
        interval=_interval(np.mean(draws, axis=0)),
        argmax_acceptance_length=float(np.mean([score.argmax_acceptance_length for score in by_dataset.values()])),
        recall_at_1=tuple((recall[1] / labelled).tolist()),
        recall_at_c=tuple((recall[2] / labelled).tolist()),
    )


def _length(totals: np.ndarray) -> np.ndarray:
    """Acceptance length from `[..., (accepted, steps)]`."""
    return 1 + totals[..., 0] / np.maximum(totals[..., 1], 1)


def _interval(drawn: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)
