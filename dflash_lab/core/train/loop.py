"""The training loop: one process on each device, everything gathered on the device, a state that resumes exactly."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from dflash_lab.core.errors import BackendError, DataError, NumericsError, RequestError
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.train.blocks import (
    Layout,
    block_embeddings,
    block_labels,
    block_states,
    context_keys,
    layout,
    sample_anchors,
    slots,
)
from dflash_lab.core.train.corpus import Corpus, epoch_batches
from dflash_lab.core.train.objective import Objective
from dflash_lab.core.train.recipe import Recipe
from dflash_lab.core.train.state import STATE, TrainState, new_model
from dflash_lab.core.train.teacher import Teacher

LOG = "training.jsonl"
WIDTH_STEP = 64
"""Texts are padded to a multiple of this, so that compiled code and memory see few shapes."""
UNTIMED_STEPS = 8
"""Steps after a start that do not count towards a budget of seconds: they compile."""


@dataclass(frozen=True)
class Budget:
    """When to stop, and how often to write. One of steps and seconds."""

    steps: int | None = None
    """Optimiser steps."""
    seconds: float | None = None
    """Seconds of training, without compilation and evaluation."""
    log_every: int = 20
    """Steps between lines of the log."""
    save_every: int = 1000
    """Steps between checkpoints."""
    evaluate_every: int | None = None
    """Steps between held-out evaluations; None evaluates only at the end."""

    def __post_init__(self) -> None:
        given = [value for value in (self.steps, self.seconds) if value is not None]
        if len(given) != 1 or given[0] <= 0:
            raise RequestError(f"the budget is either steps or seconds, above 0; got {self.steps} and {self.seconds}")

    def progress(self, state: TrainState) -> float:
        """Part of the budget that is used, 0 to 1."""
        used = state.step / self.steps if self.steps else state.elapsed_s / self.seconds
        return min(1.0, used)


class Trainer:
    """A run. `evaluate` gets the working model and returns what to log of it."""

    def __init__(
        self,
        recipe: Recipe,
        config: DraftConfig,
        teacher: Teacher,
        corpus: Corpus,
        folder: Path,
        *,
        dtype: torch.dtype,
        compiled: bool = False,
        evaluate: Callable[[TrainState], dict[str, Any]] | None = None,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._training, self._config, self._teacher = recipe.training, config, teacher
        self._corpus = _trainable(corpus)
        self._folder, self._evaluate, self._notify = folder, evaluate, notify
        self._device = teacher.embedding.device
        self.rank, self._world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.state = TrainState(new_model(config, recipe.training), recipe.training, self._device, dtype)
        self._objective = Objective(
            recipe.training, config.selector.num_candidates if config.selector else 1, compiled=compiled
        )
        self._compiled = compiled
        self._states = torch.compile(_draft_states) if compiled else _draft_states
        self._tokens = torch.from_numpy(self._corpus.tokens.astype(np.int32)).to(self._device)
        self._starts = torch.from_numpy(self._corpus.starts).to(self._device)
        self._generator = torch.Generator(device=self._device)
        self._batches: tuple[int, np.ndarray] = (-1, np.empty(0))
        self._about = {
            "recipe": recipe.to_dict(),
            "texts": len(self._corpus),
            "tokens": len(self._corpus.tokens),
            "world": self._world,
        }
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / STATE).exists():
            self.state.load(folder, self._about)
            self._trim_log()
            notify(f"continuing {folder} from step {self.state.step}")

    def run(self, budget: Budget) -> dict[str, Any]:
        """Train until the budget is spent; returns the last line of the log."""
        state, sums, last = self.state, [], {}
        first, started = state.step, time.perf_counter()
        while budget.progress(state) < 1:
            sums.append(self._step(budget.progress(state)))
            done = state.step - first
            if done == UNTIMED_STEPS:
                self._synchronise()
            now = time.perf_counter()
            if done > UNTIMED_STEPS:
                state.elapsed_s = self._agreed(state.elapsed_s + now - started)
            started = now
            finished = budget.progress(state) >= 1
            if finished or state.step % budget.log_every == 0:
                last, sums = self._report(sums, budget), []
            if finished:
                break
            if state.step % budget.save_every == 0:
                self._save(sums)
                started = time.perf_counter()
            if budget.evaluate_every and state.step % budget.evaluate_every == 0:
                self._log(self._evaluation())
                started = time.perf_counter()
        if state.step == first:
            return json.loads((self._folder / LOG).read_text(encoding="utf-8").splitlines()[-1])
        self._save([])
        final = self._evaluation()
        self._log(final)
        return {**last, **final}

    def _batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids `[B, S]`, lengths and prompt lengths `[B]` of this step and rank."""
        lengths, size = self._corpus.lengths, self._training.batch_size
        position = self.state.step * self._world + self.rank
        per_epoch = len(lengths) // size
        if not per_epoch:
            raise DataError(f"the corpus has {len(lengths)} texts, a step needs {size}: lower --batch-size")
        epoch, index = divmod(position, per_epoch)
        if self._batches[0] != epoch:
            self._batches = epoch, epoch_batches(lengths, size, self._training.seed, epoch)
        chosen = self._batches[1][index]
        width = -(-int(lengths[chosen].max()) // WIDTH_STEP) * WIDTH_STEP
        rows = torch.from_numpy(chosen).to(self._device)
        own = torch.from_numpy(lengths[chosen]).to(self._device)
        places = self._starts[rows].unsqueeze(1) + torch.arange(width, device=self._device)
        ids = self._tokens[places.clamp(max=len(self._tokens) - 1)].long()
        prompts = torch.from_numpy(self._corpus.prompt_lengths[chosen]).to(self._device)
        return ids, own, prompts

    def _step(self, progress: float) -> Tensor:
        """One update; returns the sums that the log averages, on the device."""
        training, config, state = self._training, self._config, self.state
        try:
            ids, lengths, prompts = self._batch()
            self._generator.manual_seed(training.seed * 1_000_000_007 + state.step * self._world + self.rank)
            anchors = sample_anchors(prompts, lengths, training.anchors, self._generator)
            reading = self._teacher.read(ids)
            embeddings = block_embeddings(self._teacher.embedding, ids, anchors, config, config.block_size)
            where = layout(state.model.backbone, anchors, ids.shape[1], config.block_size, embeddings.dtype)
            if self._compiled:
                _let_width_vary(reading.features, where)
            hidden = self._states(state.model.backbone, reading.features, embeddings, where)[:, :, 1:].flatten(0, 1)
            labels = block_labels(ids, lengths, anchors, config.block_size).flatten(0, 1)
            read = slots(anchors, config.block_size)[..., :-1].flatten(1).clamp(max=ids.shape[1] - 1)
            taught = reading.hidden.gather(1, read.unsqueeze(-1).expand(-1, -1, config.hidden_size))
            result = self._objective.base(hidden, taught.view_as(hidden), self._teacher.head, labels)
            loss, choice = result.loss, torch.zeros((), device=self._device)
            if config.selector:
                choice = self._objective.selector(
                    state.model.candidate_selector, hidden, ids.gather(1, anchors).flatten(), labels, result
                )
                loss = loss + training.selector_weight * choice
            loss.backward()
            norm = state.update(self._learning_rate(progress), self._average)
        except torch.OutOfMemoryError:
            raise BackendError(
                f"out of memory at {training.batch_size} texts x {training.anchors} anchors: lower --batch-size "
                "(the state so far is kept and resumes)"
            ) from None
        found = result.candidate_ids == labels.unsqueeze(-1)
        first = found[..., 0]
        return torch.stack(
            (
                result.loss.detach(),
                choice.detach(),
                norm,
                1 + first.long().cumprod(1).sum(1).float().mean(),
                first.sum() / (labels >= 0).sum(),
                found.any(-1).sum() / (labels >= 0).sum(),
            )
        ).float()

    def _learning_rate(self, progress: float) -> float:
        training = self._training
        if progress < training.warmup:
            return training.learning_rate * max(progress, 1e-3) / training.warmup
        done = (progress - training.warmup) / (1 - training.warmup)
        return training.learning_rate * 0.5 * (1 + math.cos(math.pi * done))

    def _average(self, gradients: Sequence[Tensor]) -> None:
        """Mean of the gradients over all devices."""
        if self._world == 1:
            return
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= self._world

    def _agreed(self, seconds: float) -> float:
        """The slowest rank's clock, so that all ranks stop at the same step."""
        if self._world == 1:
            return seconds
        clock = torch.tensor(seconds, device=self._device, dtype=torch.float64)
        dist.all_reduce(clock, dist.ReduceOp.MAX)
        return float(clock)

    def _report(self, sums: list[Tensor], budget: Budget) -> dict[str, Any]:
        """Log the mean of the last steps. Raises NumericsError if it is not finite."""
        values = torch.stack(sums).mean(0).tolist()
        if not all(map(math.isfinite, values)):
            raise NumericsError(
                f"the loss is not finite near step {self.state.step}: the checkpoint before it is kept in "
                f"{self._folder}; lower --learning-rate"
            )
        names = ("loss", "selector_loss", "gradient_norm", "argmax_acceptance_length", "recall_at_1", "recall_at_c")
        line = {
            "step": self.state.step,
            "elapsed_s": round(self.state.elapsed_s, 3),
            "learning_rate": self._learning_rate(budget.progress(self.state)),
            **{name: round(value, 5) for name, value in zip(names, values, strict=True)},
        }
        self._log(line)
        self._notify(
            f"step {line['step']}  {line['elapsed_s']:.0f} s  loss {line['loss']:.3f}  "
            f"selector {line['selector_loss']:.3f}  accepted (arg-max, training text) "
            f"{line['argmax_acceptance_length']:.2f}"
        )
        return line

    def _evaluation(self) -> dict[str, Any]:
        """Held-out numbers of the weights as they are."""
        if self._evaluate is None:
            return {}
        return {"step": self.state.step, "elapsed_s": round(self.state.elapsed_s, 3), **self._evaluate(self.state)}

    def _log(self, line: dict[str, Any]) -> None:
        if self.rank == 0 and line:
            with open(self._folder / LOG, "a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")

    def _trim_log(self) -> None:
        """Drop the lines of steps that will be made again."""
        log = self._folder / LOG
        if self.rank == 0 and log.exists():
            lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
            log.write_text("".join(line for line in lines if json.loads(line)["step"] <= self.state.step))

    def _save(self, sums: list[Tensor]) -> None:
        """Write the state, unless the steps since the last report went wrong."""
        if sums and not torch.stack(sums).isfinite().all():
            return
        if self.rank == 0:
            self.state.save(self._folder, self._about)

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _draft_states(backbone, features: Tensor, embeddings: Tensor, where: Layout) -> Tensor:
    """Context and blocks in one function, which is what is compiled."""
    return block_states(backbone, context_keys(backbone, features, where.context_rope), embeddings, where)


def _let_width_vary(features: Tensor, where: Layout) -> None:
    """Tell the compiler which axes follow the width of a batch, so that it compiles once."""
    varying = [(features, 1), (where.context_rope.cos, 0), (where.context_rope.sin, 0)]
    for tensor, axis in varying + [(mask, 3) for mask in where.masks.values()]:
        torch._dynamo.maybe_mark_dynamic(tensor, axis)


def _trainable(corpus: Corpus) -> Corpus:
    """Conversations whose answer has at least two tokens, an anchor and its label."""
    answers = corpus.lengths - corpus.prompt_lengths
    return corpus if (answers >= 2).all() else corpus.select(answers >= 2)
