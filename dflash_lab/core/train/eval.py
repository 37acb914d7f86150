"""Acceptance length of a drafter on text that the target has already written greedily.

Greedy decoding is lossless, so the text is what any run would commit, and a run can be replayed (see
core.ablate.replay). The target reads each text once. Two walks are replayed, one that proposes what the selector chose
and one that proposes the arg-max of each position; they visit anchors of their own. Text ends where it ends: a proposal
past its last token counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from dflash_lab.core.ablate.replay import Choice, Texts, Walks, read_context, replay
from dflash_lab.core.errors import DataError
from dflash_lab.core.model.drafter import Drafter
from dflash_lab.core.trace.bootstrap import draw_prompts, drawn_lengths, interval, pooled_length
from dflash_lab.core.train.corpus import Corpus
from dflash_lab.core.train.teacher import Teacher

WALKS = ("selector", "argmax")
"""The proposals replayed; for DFlash, which has no selector, both are the same."""
GROUP = 40
"""Texts that are replayed side by side."""


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
        texts = _pad(corpus, group, teacher.embedding.device)
        context = read_context(drafter, teacher.read(texts.ids).features)
        has_selector = drafter.config.selector is not None
        walks = replay(drafter, texts, context, length, [Choice(width, has_selector), Choice(width, False)])
        recall += _recall(walks, texts, width)
        for row, index in enumerate(group):
            scores[index] = _score(walks, row, str(corpus.sources[index]))
            advance()
    return _summary(scores, recall, length, width)


def _pad(corpus: Corpus, group: np.ndarray, device: torch.device) -> Texts:
    """Texts of a corpus side by side, whole."""
    lengths, starts = corpus.lengths[group], corpus.prompt_lengths[group]
    padded = np.zeros((len(group), int(lengths.max())), dtype=np.int64)
    for row, index in zip(padded, group, strict=True):
        row[: corpus.lengths[index]] = corpus.conversation(index)
    unlimited = np.full(len(group), np.iinfo(np.int64).max)
    return Texts(torch.from_numpy(padded).to(device), starts, lengths - 1, lengths, unlimited)


def _score(walks: Walks, row: int, dataset: str) -> PromptScore:
    """One text's two walks in numbers."""
    visited, accepted = walks.visited[:, row], walks.accepted[:, row]
    return PromptScore(
        dataset,
        {walk: int(accepted[i][visited[i]].sum()) for i, walk in enumerate(WALKS)},
        {walk: int(visited[i].sum()) for i, walk in enumerate(WALKS)},
    )


def _recall(walks: Walks, texts: Texts, width: int) -> np.ndarray:
    """`[labelled | first | among candidates, K]` at the anchors of the drafter's own walk."""
    text, anchor = np.nonzero(walks.visited[0])
    ranks = walks.ranks[text, anchor]
    following = texts.starts[text] + anchor + 1
    labelled = following[:, None] + np.arange(ranks.shape[1]) < texts.known[text, None]
    return np.stack([found.sum(0) for found in (labelled, ranks == 1, (ranks >= 1) & (ranks <= width))])


def _summary(scores: list[PromptScore], recall: np.ndarray, block_size: int, width: int) -> Evaluation:
    names = list(dict.fromkeys(score.dataset for score in scores))
    random = np.random.default_rng(0)
    by_dataset, draws = {}, []
    for name in names:
        own = [score for score in scores if score.dataset == name]
        totals = {
            walk: np.array([(score.accepted[walk], score.steps[walk]) for score in own], dtype=float) for walk in WALKS
        }
        drawn = drawn_lengths(totals["selector"], draw_prompts(len(own), random))
        draws.append(drawn)
        by_dataset[name] = SetScore(
            len(own),
            float(pooled_length(totals["selector"].sum(0))),
            interval(drawn),
            float(pooled_length(totals["argmax"].sum(0))),
        )
    labelled = np.maximum(recall[0], 1)
    return Evaluation(
        block_size=block_size,
        num_candidates=width,
        by_dataset=by_dataset,
        mean_acceptance_length=float(np.mean([score.mean_acceptance_length for score in by_dataset.values()])),
        interval=interval(np.mean(draws, axis=0)),
        argmax_acceptance_length=float(np.mean([score.argmax_acceptance_length for score in by_dataset.values()])),
        recall_at_1=tuple((recall[1] / labelled).tolist()),
        recall_at_c=tuple((recall[2] / labelled).tolist()),
    )
