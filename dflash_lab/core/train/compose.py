"""A corpus for a target: which prompts, what is left out, files that a stopped run goes on from."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dflash_lab.core.data.prompts import DATASET_NAMES, load_prompts
from dflash_lab.core.errors import DataError
from dflash_lab.core.target.text import Text
from dflash_lab.core.train.corpus import (
    Corpus,
    Overlap,
    check_target,
    evaluation_texts,
    load_corpus,
    overlapping,
    template_ends,
)
from dflash_lab.core.train.run import Bench, Notify
from dflash_lab.core.train.write import Draft, Writer, answer_again, new_prompts, row_target


@dataclass(frozen=True)
class Plan:
    """What to write."""

    prompts: str | None = None
    """A .jsonl or .txt file of prompts to answer."""
    self_written: int = 0
    """Prompts to begin like the seed corpus' and to be finished by the target."""
    again: bool = False
    """Whether sampled conversations of the seed corpus get a greedy answer too."""
    greedy_share: float = 0.85
    """Part of the answers that are greedy; the others are sampled at temperature 1."""
    rows: int = 64
    """Conversations side by side."""
    seed: int = 0
    """Of the choice of prompts, and of sampling."""
    seconds: float | None = None
    """Stop before a batch that would begin later than this; None writes everything."""


@dataclass(frozen=True)
class CorpusReport:
    """What is in the folder now."""

    folder: str
    """Where."""
    texts: int
    """Conversations."""
    tokens: int
    """Tokens, prompts included."""
    refused: int
    """Conversations left out in this call because of their prompt."""


def write_corpus(
    bench: Bench, seed_corpus: Corpus, held_out: Corpus, folder: Path, plan: Plan, notify: Notify
) -> CorpusReport:
    """Fill `folder` with the seed corpus and what `plan` adds, a file for each batch; files that are there are kept.

    No conversation whose prompt is one of the evaluation's is kept. Raises DataError if nothing would be left to write.
    """
    check_target(seed_corpus, bench.text, bench.target.info.vocab_size, bench.name)
    texts, whole = evaluation_texts(bench.text, held_out)
    notify(f"evaluation sets here in full: {', '.join(whole) or 'none, only the prompts with held-out text count'}")
    evaluation = Overlap(texts)
    folder.mkdir(parents=True, exist_ok=True)
    found = overlapping(seed_corpus, bench.text, evaluation)
    seeds, refused = seed_corpus.select(~found), int(found.sum())
    if not (folder / "corpus-seed.npz").exists():
        seeds.save(folder / "corpus-seed.npz")
    drafts = _drafts(bench.text, seeds, evaluation, plan)
    writer = None
    started = time.monotonic()
    for number, start in enumerate(range(0, len(drafts), plan.rows)):
        file = folder / f"corpus-{number:05d}.npz"
        if file.exists():
            continue
        if plan.seconds is not None and time.monotonic() - started > plan.seconds:
            break
        if writer is None:
            target = row_target(bench.folder, bench.name, dtype=bench.target.dtype, device=bench.target.device)
            writer = Writer(target)
        part = writer.write(drafts[start : start + plan.rows], seed=plan.seed * 1_000_003 + number)
        found = overlapping(part, bench.text, evaluation)
        refused += int(found.sum())
        part.select(~found).save(file)
        notify(f"{file.name}: {len(part)} conversations, {time.monotonic() - started:.0f} s")
    corpus = load_corpus(folder)
    return CorpusReport(str(folder), len(corpus), len(corpus.tokens), refused)


def _drafts(text: Text, seeds: Corpus, evaluation: Overlap, plan: Plan) -> list[Draft]:
    """Every conversation to begin, in an order that depends on the plan alone."""
    random = np.random.default_rng(plan.seed)
    drafts = _given(text, evaluation, plan, random) if plan.prompts else []
    if plan.again:
        drafts += answer_again(seeds.select(seeds.temperatures > 0), 0.0)
    random.shuffle(drafts)
    if plan.self_written:
        head, tail = map(len, template_ends(text))
        drafts += new_prompts(seeds, head, tail, plan.self_written, random, plan.greedy_share)
    return drafts


def _given(text: Text, evaluation: Overlap, plan: Plan, random: np.random.Generator) -> list[Draft]:
    if plan.prompts in DATASET_NAMES:
        raise DataError(f"{plan.prompts} is an evaluation set and is never trained on; give a file of other prompts")
    prompts = [prompt.text for prompt in load_prompts(plan.prompts).prompts]
    kept = [prompt for prompt in prompts if prompt not in evaluation]
    if not kept:
        raise DataError(f"all {len(prompts)} prompts of {plan.prompts} are evaluation prompts; give a file of others")
    return [
        Draft(tuple(text.encode(prompt)[0]), (), float(random.random() >= plan.greedy_share), "given")
        for prompt in kept
    ]
