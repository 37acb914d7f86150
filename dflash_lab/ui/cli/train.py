"""`dflash-lab train`: text from the target itself, a training run, its evaluation, the recipe for SpecForge."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_lab.core.errors import BackendError
from dflash_lab.ui.cli.output import Output, Result, story

if TYPE_CHECKING:
    from dflash_lab.core.train.corpus import Corpus
    from dflash_lab.core.train.eval import Evaluation
    from dflash_lab.core.train.recipe import Recipe

device_option = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
recipe_option = click.option(
    "--recipe", "recipe_name", default="smollm2-135m", show_default=True, metavar="NAME|FILE", help="What to train."
)
target_option = click.option("--target", metavar="NAME|PATH", help="Another target than the recipe's.")
corpus_option = click.option(
    "--corpus",
    "corpus_path",
    type=click.Path(path_type=Path),
    metavar="DIR|FILE",
    help="Text that the target wrote; left out, the small slice that comes with dflash-lab.",
)
held_out_option = click.option(
    "--held-out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Greedy text of evaluation prompts; left out, what comes with dflash-lab.",
)


@click.group()
def train() -> None:
    """Make a drafter: write its text, train it, evaluate it."""


@train.command()
@click.option("--out", "folder", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to fill.")
@target_option
@recipe_option
@corpus_option
@held_out_option
@click.option("--prompts", metavar="FILE", help="Prompts to answer: .jsonl or .txt.")
@click.option("--again", is_flag=True, help="Answer the corpus' sampled conversations greedily too.")
@click.option("--self-written", type=click.IntRange(0), default=0, metavar="N", help="Prompts the target finishes.")
@click.option("--greedy-share", type=click.FloatRange(0, 1), default=0.85, show_default=True, metavar="P")
@click.option("--rows", type=click.IntRange(1), default=64, show_default=True, metavar="N", help="Texts side by side.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="S")
@device_option
@story
def corpus(
    out: Output,
    folder: Path,
    target: str | None,
    recipe_name: str,
    corpus_path: Path | None,
    held_out: Path | None,
    device: str,
    **plan: Any,
) -> Result:
    """Copy a corpus without evaluation prompts, and let the target write more.

    A stopped run goes on. Prompts are compared with the evaluation's by text and by 13 words in a row.
    """
    from dflash_lab.core.train.compose import Plan, write_corpus

    recipe = _recipe(recipe_name, target)
    report = write_corpus(
        _open(out, recipe, _device(device)),
        _corpus(out, corpus_path),
        _held_out(held_out),
        folder,
        Plan(**plan),
        out.note,
    )
    text = f"{report.texts} conversations, {report.tokens} tokens in {folder}; left out {report.refused}"
    return Result(dataclasses.asdict(report), text)


@train.command()
@recipe_option
@click.option("--out", "folder", type=click.Path(path_type=Path), metavar="DIR", help="A run that is there goes on.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Budget in steps.")
@click.option("--seconds", type=float, metavar="S", help="Budget in seconds, compilation left out.")
@target_option
@corpus_option
@held_out_option
@click.option("--batch-size", type=int, metavar="B", help="Texts in a step and process, for the recipe's.")
@click.option("--anchors", type=int, metavar="A", help="Blocks in a text, for the recipe's.")
@click.option("--learning-rate", type=float, metavar="R", help="Peak rate, for the recipe's.")
@click.option("--evaluate-every", type=click.IntRange(1), metavar="N", help="Steps between held-out evaluations.")
@click.option("--num-prompts", type=click.IntRange(1), default=16, show_default=True, help="Held-out texts a set.")
@click.option("--compile", "compiled", is_flag=True, help="Compile target and drafter: about two minutes, once.")
@device_option
@story
def run(
    out: Output,
    recipe_name: str,
    folder: Path | None,
    target: str | None,
    corpus_path: Path | None,
    held_out: Path | None,
    num_prompts: int,
    compiled: bool,
    device: str,
    **options: Any,
) -> Result:
    """Train a drafter; under torchrun every process takes a GPU.

    On a CPU a step is 2 texts of 8 blocks unless told otherwise: enough to see the loss fall.
    """
    from dflash_lab.core.train.eval import first_prompts
    from dflash_lab.core.train.loop import Budget
    from dflash_lab.core.train.run import check_corpus, processes
    from dflash_lab.core.train.run import train as train_drafter

    steps, seconds, every = (options.pop(name) for name in ("steps", "seconds", "evaluate_every"))
    place = _device(device)
    few, slow = steps is not None and steps <= 40, place == "cpu"
    budget = Budget(steps, seconds, log_every=1 if few else 20, save_every=10 if slow else 1000, evaluate_every=every)
    changes = {"batch_size": 2, "anchors": 8} if place == "cpu" else {}
    changes |= {name: value for name, value in options.items() if value is not None}
    recipe = _recipe(recipe_name, target).change(training=changes)
    folder = folder or Path("runs") / recipe.name
    with processes(place) as (own, first):
        bench = _open(out, recipe, own, compiled)
        texts, evaluated = _corpus(out, corpus_path), _held_out(held_out)
        check_corpus(bench, texts, evaluated, out.note)
        chosen = first_prompts(evaluated, _names(evaluated), num_prompts) if every else None
        notify = out.note if first else lambda text: None
        last = train_drafter(recipe, bench, texts, chosen, budget, folder, compiled=compiled, notify=notify)
    if not first:
        raise SystemExit(0)
    document = {"folder": str(folder), "recipe": recipe.to_dict(), **last}
    return Result(document, f"{folder}: step {last['step']}, loss {last['loss']:.3f}")


@train.command(name="eval")
@click.option("--drafter", default="bundled", show_default=True, metavar="NAME|PATH", help="Checkpoint to evaluate.")
@click.option("--target", default="bundled", show_default=True, metavar="NAME|PATH", help="Its target.")
@click.option("--dataset", default="all", show_default=True, metavar="all|NAME,...", help="Sets of held-out text.")
@click.option("--num-prompts", type=click.IntRange(1), default=80, show_default=True, metavar="N", help="Texts a set.")
@click.option("--block-size", type=int, metavar="L", help="Slots in a block; left out, the checkpoint's.")
@click.option("--num-candidates", type=int, metavar="C", help="Candidates; left out, the checkpoint's.")
@held_out_option
@device_option
@story
def evaluate(
    out: Output,
    drafter: str,
    target: str,
    dataset: str,
    num_prompts: int,
    block_size: int | None,
    num_candidates: int | None,
    held_out: Path | None,
    device: str,
) -> Result:
    """Acceptance length on text that the target wrote greedily, replayed.

    Target and drafter run in bfloat16, which the text was written in.
    """
    from dflash_lab.core.generate import load_drafter
    from dflash_lab.core.train.corpus import check_target
    from dflash_lab.core.train.eval import evaluate as replay
    from dflash_lab.core.train.eval import first_prompts
    from dflash_lab.core.train.run import open_bench

    texts = _held_out(held_out)
    if held_out is None:
        out.note("held-out text: 512 tokens at most of up to 200 prompts a set, comes with dflash-lab")
    texts = first_prompts(texts, _names(texts) if dataset == "all" else dataset.split(","), num_prompts)
    bench = open_bench(target, device=_device(device), dtype=_bfloat16(), notify=out.note)
    check_target(texts, bench.text, bench.target.info.vocab_size, bench.name)
    loaded, warnings = load_drafter(drafter, bench.target, out.note)
    for warning in warnings:
        out.warn(warning)
    teacher = bench.teacher_of(loaded.config.target_layer_ids)
    with out.progress("replaying", len(texts)) as advance:
        result = replay(loaded, teacher, texts, block_size=block_size, num_candidates=num_candidates, advance=advance)
    document = {"drafter": drafter, "target": target, "num_prompts": num_prompts, **dataclasses.asdict(result)}
    return Result(document, _table(result))


@train.command(name="export-config")
@recipe_option
@target_option
@click.option("--data", required=True, metavar="FILE", help="Where SpecForge finds the conversations.")
@click.option("--out", "folder", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Where to write.")
@story
def export_config(out: Output, recipe_name: str, target: str | None, data: str, folder: Path) -> Result:
    """Write the recipe as SpecForge's YAML and the drafter's config.json, for training past one machine."""
    from dflash_lab.core.generate import BUNDLED, resolve
    from dflash_lab.core.target.bundled import ensure_target
    from dflash_lab.core.target.config import load_config
    from dflash_lab.core.train.specforge import export

    recipe = _recipe(recipe_name, target)
    source = ensure_target(out.note) if recipe.target == BUNDLED else resolve(recipe.target, out.note)
    files = export(recipe, load_config(source, recipe.target), str(source), data, folder)
    return Result({"files": [str(file) for file in files]}, "\n".join(map(str, files)))


def _recipe(name: str, target: str | None) -> Recipe:
    from dflash_lab.core.train.recipe import load_recipe

    recipe = load_recipe(name)
    return dataclasses.replace(recipe, target=target) if target else recipe


def _open(out: Output, recipe: Recipe, device: str, compiled: bool = False) -> Any:
    """The recipe's target, in the precision that trains on `device`."""
    import torch

    from dflash_lab.core.train.run import open_bench

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return open_bench(recipe.target, device=device, dtype=dtype, compiled=compiled, notify=out.note)


def _corpus(out: Output, path: Path | None) -> Corpus:
    from dflash_lab.core.train.corpus import SLICE, load_corpus

    if path is None:
        out.note("corpus: the slice that comes with dflash-lab, enough to try; --corpus names a real one")
    return load_corpus(path or SLICE)


def _held_out(path: Path | None) -> Corpus:
    from dflash_lab.core.train.corpus import HELD_OUT, load_corpus

    return load_corpus(path or HELD_OUT)


def _names(corpus: Corpus) -> list[str]:
    return list(dict.fromkeys(corpus.sources.tolist()))


def _bfloat16() -> Any:
    import torch

    return torch.bfloat16


def _device(name: str) -> str:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise BackendError("device cuda was asked for, but torch finds no CUDA device: use --device cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def _table(result: Evaluation) -> str:
    """Acceptance lengths by set and recall by position."""
    lines = [f"{'':<12}{'texts':>6}{'acceptance':>12}{'95 %':>16}{'arg-max':>9}"]
    for name, score in result.by_dataset.items():
        low, high = score.interval
        lines.append(
            f"{name:<12}{score.num_prompts:>6}{score.mean_acceptance_length:>12.2f}"
            f"{f'{low:.2f} to {high:.2f}':>16}{score.argmax_acceptance_length:>9.2f}"
        )
    low, high = result.interval
    lines.append(
        f"{'mean':<12}{'':>6}{result.mean_acceptance_length:>12.2f}{f'{low:.2f} to {high:.2f}':>16}"
        f"{result.argmax_acceptance_length:>9.2f}"
    )
    for label, recall in (("recall@1", result.recall_at_1), (f"recall@{result.num_candidates}", result.recall_at_c)):
        lines.append(f"{label:<12}{' '.join(f'{value:.2f}' for value in recall)}")
    return "\n".join([*lines, f"block {result.block_size}, {result.num_candidates} candidates"])
