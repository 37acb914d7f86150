"""From names to a training run: the target, its text, the corpus, the held-out evaluation."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from transformers import AutoTokenizer

from dflash_lab.core.errors import TargetError
from dflash_lab.core.generate import BUNDLED, resolve
from dflash_lab.core.model.checkpoint import save_checkpoint
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.drafter import DraftCheckpoint, Drafter, DraftModel, bind
from dflash_lab.core.target.bundled import NAME, ensure_target
from dflash_lab.core.target.hf import HfTarget, load_model
from dflash_lab.core.target.text import Text
from dflash_lab.core.train.corpus import Corpus, Overlap, check_target, evaluation_texts, refuse_evaluation
from dflash_lab.core.train.eval import Evaluation, evaluate
from dflash_lab.core.train.loop import Budget, Trainer
from dflash_lab.core.train.recipe import Recipe, checkpoint_config, draft_config
from dflash_lab.core.train.state import TrainState
from dflash_lab.core.train.teacher import Teacher

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Bench:
    """A target that is ready to train for."""

    name: str
    """What a corpus of it is signed with."""
    folder: Path
    """Where its weights are."""
    target: HfTarget
    """For binding drafters."""
    text: Text
    """Its tokenizer, with a chat template."""
    teacher_of: Callable[[tuple[int, ...]], Teacher]
    """A teacher that taps these layers."""

    @property
    def config(self) -> Any:
        """The target's transformers config."""
        return self.target.model.config


def open_bench(target: str, *, device: str, dtype: torch.dtype, compiled: bool = False, notify: Notify) -> Bench:
    """Load a target to train for. Raises TargetError if it has no tokenizer or no chat template."""
    folder = ensure_target(notify) if target == BUNDLED else resolve(target, notify)
    notify(f"loading target {target}")
    model = load_model(folder, dtype=dtype, device=torch.device(device))
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise TargetError(f"target {target!r} has no tokenizer that loads: {str(error).splitlines()[0]}") from None
    if not tokenizer.chat_template:
        raise TargetError(f"target {target!r} has no chat template: drafters are trained on chats; set one first")
    name = NAME if target == BUNDLED else target
    return Bench(
        name,
        folder,
        HfTarget(model, name),
        Text(tokenizer, name),
        lambda layers: Teacher(model, layers, compiled=compiled),
    )


@contextmanager
def processes(device: str) -> Iterator[tuple[str, bool]]:
    """The device of this process, and whether it is the first: under torchrun one process for each GPU."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device, True
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield device, dist.get_rank() == 0
    finally:
        dist.destroy_process_group()


def check_corpus(bench: Bench, corpus: Corpus, held_out: Corpus, notify: Notify) -> None:
    """Refuse a corpus of another target, or one with evaluation prompts in it."""
    check_target(corpus, bench.text, bench.target.info.vocab_size, bench.name)
    texts, whole = evaluation_texts(bench.text, held_out)
    if not whole:
        notify("evaluation sets are not here: prompts are checked against those of the held-out text only")
    refuse_evaluation(corpus, bench.text, Overlap(texts))


def snapshot(model: DraftModel, config: DraftConfig, bench: Bench, name: str) -> Drafter:
    """A drafter of the weights as they are, in the precision that decodes."""
    frozen = copy.deepcopy(model).to(bench.target.dtype).eval().requires_grad_(False)
    return bind(DraftCheckpoint(config, frozen, {}, []), bench.target, name)


def train(
    recipe: Recipe,
    bench: Bench,
    corpus: Corpus,
    held_out: Corpus | None,
    budget: Budget,
    out: Path,
    *,
    compiled: bool = False,
    notify: Notify,
) -> dict[str, Any]:
    """Train in `out`, or go on with the run that is there; returns the last numbers. Saves the checkpoint in `out`.

    `held_out` is evaluated as the budget says and at the end; None leaves that out.
    """
    config = draft_config(recipe.drafter, bench.config)
    teacher = bench.teacher_of(config.target_layer_ids)

    publishable = (config.conv is None) == (config.selector is None)

    def publish(state: TrainState) -> None:
        if publishable:
            save_checkpoint(state.model, checkpoint_config(recipe.drafter, bench.config), out, torch.bfloat16)

    def held_out_numbers(state: TrainState) -> dict[str, Any]:
        # A run that is cut off later leaves the drafter that these numbers are of.
        publish(state)
        drafter = snapshot(state.model, config, bench, recipe.name)
        return {"held_out": brief(evaluate(drafter, teacher, held_out))}

    trainer = Trainer(
        recipe,
        config,
        teacher,
        corpus,
        out,
        dtype=bench.target.dtype,
        compiled=compiled,
        evaluate=held_out_numbers if held_out else None,
        notify=notify,
    )
    last = trainer.run(budget)
    if trainer.rank == 0:
        publish(trainer.state)
    return last


def brief(result: Evaluation) -> dict[str, Any]:
    """An evaluation as JSON values, the sets by acceptance length alone."""
    document = dataclasses.asdict(result)
    document["by_dataset"] = {name: score.mean_acceptance_length for name, score in result.by_dataset.items()}
    return document
