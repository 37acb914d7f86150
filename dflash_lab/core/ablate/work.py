"""What a sweep computes with: a loaded target, one edited drafter at a time, prompt sets and their greedy texts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dflash_lab.core.ablate.costs import StepCost, measure_cost
from dflash_lab.core.ablate.knobs import Knobs, edit
from dflash_lab.core.ablate.results import TEXTS, cell_key
from dflash_lab.core.ablate.sweep import Sweep
from dflash_lab.core.ablate.texts import Reader, TextPlan, write_batch
from dflash_lab.core.data.prompts import PromptSet, load_prompts
from dflash_lab.core.decode.graph import Engine
from dflash_lab.core.generate import BUNDLED, Pair, load_pair, resolve
from dflash_lab.core.kernels.linear import pack_linears
from dflash_lab.core.model.checkpoint import load_checkpoint
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.drafter import DraftCheckpoint, Drafter, bind
from dflash_lab.core.target.bundled import drafter_folder
from dflash_lab.core.train.corpus import HELD_OUT, HELD_OUT_FLOAT32, Corpus, load_corpus

Notify = Callable[[str], None]

KEEP_BYTES = {"cpu": 2 << 30, "cuda": 16 << 30}
"""Target-layer features that are kept, by device; what is beyond is read again when it is needed."""
VARIANTS = 2
"""Edited drafters kept at a time: with and without the selector."""
SAVE_EVERY = 8
"""Texts read between two savings."""


def drafter_path(name: str, notify: Notify) -> Path:
    """Folder of a drafter by name."""
    return drafter_folder() if name == BUNDLED else resolve(name, notify)


class Workbench:
    """Loads what cells ask for, when they ask, and keeps what the next ones will ask for again."""

    def __init__(self, sweep: Sweep, folder: Path, notify: Notify = lambda text: None) -> None:
        """`folder` is the sweep's, where texts are kept; `notify` is told what takes long."""
        self.sweep, self._folder, self._notify = sweep, folder, notify
        self.seconds = {"load": 0.0, "texts": 0.0, "costs": 0.0}
        """Where time went, beside computing cells."""
        self._pair: Pair | None = None
        self._checkpoints: dict[str, DraftCheckpoint] = {}
        self._variants: dict[tuple[str, Knobs], Pair] = {}
        self._prompts: dict[str, PromptSet] = {}
        self._readers: dict[tuple[str, int, tuple[int, ...]], Reader] = {}
        self._costs: dict[tuple[str, Knobs, int, int], StepCost | None] = {}

    @contextmanager
    def clock(self, phase: str) -> Iterator[None]:
        """Count the time inside towards a phase."""
        started = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - started

    @property
    def pair(self) -> Pair:
        """The target with the sweep's first drafter, as it was trained. Raises what loading raises."""
        if self._pair is None:
            with self.clock("load"):
                placed = self.sweep.placement()
                self._pair = load_pair(self.sweep.target, self.sweep.drafter[0], **placed, notify=self._notify)
        return self._pair

    def variant(self, drafter: str, knobs: Knobs) -> Pair:
        """The target with a drafter whose knobs are turned. Raises RequestError and the errors of a checkpoint."""
        name = (drafter, knobs)
        if drafter == self.sweep.drafter[0] and knobs.change_nothing(self.pair.drafter.config):
            return self.pair
        if name not in self._variants:
            # Few at a time: on a GPU a variant's captured steps hold memory.
            if len(self._variants) == VARIANTS:
                self._variants.pop(next(iter(self._variants)))
            target, backend = self.pair.target, self.pair.backends["kernels"]
            checkpoint = edit(self._checkpoint(drafter), knobs)
            made = bind(checkpoint, target, drafter)
            pack_linears(checkpoint.model)
            engine = Engine(target, made, backend) if self.pair.engine else None
            self._variants[name] = dataclasses.replace(self.pair, drafter=made, engine=engine)
        return self._variants[name]

    def config(self, drafter: str) -> DraftConfig:
        """A drafter's configuration as it was trained."""
        return self.pair.drafter.config if drafter == self.sweep.drafter[0] else self._checkpoint(drafter).config

    def _checkpoint(self, name: str) -> DraftCheckpoint:
        if name not in self._checkpoints:
            target = self.pair.target
            folder = drafter_path(name, self._notify)
            self._checkpoints[name] = load_checkpoint(folder, dtype=target.dtype, device=target.device)
        return self._checkpoints[name]

    def prompts(self, dataset: str) -> PromptSet:
        """A prompt set. Raises DataError if it has fewer prompts than the sweep asks for."""
        if dataset not in self._prompts:
            self._prompts[dataset] = load_prompts(dataset, self.sweep.num_prompts)
        return self._prompts[dataset]

    def cost(self, drafter: str, knobs: Knobs, block_size: int, num_candidates: int) -> StepCost | None:
        """What a step costs; measured once for each block size and drafter."""
        name = (drafter, knobs, block_size, num_candidates)
        if name not in self._costs:
            with self.clock("costs"):
                prompt = self.prompts(self.sweep.dataset[0]).prompts[0].text
                self._costs[name] = measure_cost(self.variant(drafter, knobs), prompt, block_size, num_candidates)
        return self._costs[name]

    def reader(self, dataset: str, drafter: Drafter, beyond: int) -> Reader:
        """The texts of a prompt set, with features of the drafter's target layers.

        Each text goes on for at least `beyond` tokens after its stop token.
        """
        plan = TextPlan(self.sweep.max_new_tokens, beyond, tuple(self.pair.target.info.stop_ids))
        name, written = (dataset, beyond, drafter.config.target_layer_ids), self.pair.drafter
        if any(kept[0] != dataset for kept in self._readers):
            self._readers.clear()
        if name in self._readers:
            return self._readers[name]
        base = (dataset, beyond, written.config.target_layer_ids)
        with self.clock("texts"):
            if base not in self._readers:
                self._readers[base] = self._write(dataset, written, plan)
            if name not in self._readers:
                first = self._readers[base]
                texts = [first.read(index).text for index in range(len(first))]
                known = {text.prompt_ids: (*text.output_ids, *text.beyond_ids) for text in texts}
                self._readers[name] = self._open(drafter, [text.prompt_ids for text in texts], known, plan)
        return self._readers[name]

    def _open(self, drafter: Drafter, prompts: Sequence[Sequence[int]], known, plan: TextPlan) -> Reader:
        target = self.pair.target
        return Reader(target, drafter, prompts, known, plan, KEEP_BYTES[target.device.type])

    def _write(self, dataset: str, drafter: Drafter, plan: TextPlan) -> Reader:
        """All texts of a prompt set, from what is known of them, saved as they come."""
        pair = self.pair
        prompts = [tuple(pair.text.encode(prompt.text)[0]) for prompt in self.prompts(dataset).prompts]
        file = self._folder / TEXTS / f"{self._text_key(prompts)}.npz"
        known = self._known(prompts, file)
        if pair.engine:
            missing = [ids for ids in dict.fromkeys(prompts) if ids not in known]
            self._notify(f"{dataset}: the target writes {len(missing)} texts")
            known |= zip(missing, write_batch(pair.engine, missing, plan), strict=True)
        self._notify(f"{dataset}: reading {len(prompts)} texts")
        reader = self._open(drafter, prompts, known, plan)
        file.parent.mkdir(parents=True, exist_ok=True)
        for index in range(len(reader)):
            reader.read(index)
            if index % SAVE_EVERY == SAVE_EVERY - 1 or index == len(reader) - 1:
                texts = [(ids, reader.read(i).text.ids[len(ids) :]) for i, ids in enumerate(prompts[: index + 1])]
                _corpus(texts, dataset, pair.target.info.name).save(file)
        return reader

    def _known(self, prompts: Sequence[tuple[int, ...]], file: Path) -> dict[tuple[int, ...], Sequence[int]]:
        """Answers from an earlier call, and on a CPU those that come with dflash-lab for its own target.

        They were written in bfloat16, but for those in a file of float32: where precision turned a near tie, the text
        is another from there on.
        """
        known: dict[tuple[int, ...], Sequence[int]] = {}
        if self.sweep.target == BUNDLED and self.pair.engine is None:
            known |= _answers(load_corpus(HELD_OUT))
            if self.sweep.dtype == "float32":
                known |= _answers(load_corpus(HELD_OUT_FLOAT32))
        if file.exists():
            known |= _answers(load_corpus(file))
        return {ids: known[ids] for ids in prompts if ids in known}

    def _text_key(self, prompts: Sequence[Sequence[int]]) -> str:
        pair = self.pair
        backends = {name: pair.backends[name] for name in ("device", "dtype", "forward")}
        asked = {"target": pair.target.info.name, "max_new_tokens": self.sweep.max_new_tokens, **backends}
        return cell_key({**asked, "prompts": list(map(list, prompts))})


def _answers(corpus: Corpus) -> dict[tuple[int, ...], Sequence[int]]:
    """Answer by prompt."""
    found = {}
    for index, (prompt, length) in enumerate(zip(corpus.prompts(), corpus.prompt_lengths, strict=True)):
        found[tuple(prompt.tolist())] = corpus.conversation(index)[length:].tolist()
    return found


def _corpus(texts: Sequence[tuple[Sequence[int], Sequence[int]]], source: str, target: str) -> Corpus:
    """Prompts and answers as a corpus."""
    count = len(texts)
    whole = np.array([token for prompt, answer in texts for token in (*prompt, *answer)], dtype=np.uint32)
    return Corpus(
        whole,
        np.array([len(prompt) + len(answer) for prompt, answer in texts], dtype=np.int64),
        np.array([len(prompt) for prompt, _ in texts], dtype=np.int64),
        np.zeros(count, dtype=np.float32),
        np.full(count, source),
        target,
    )
