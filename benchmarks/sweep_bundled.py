"""The bundled pair's sweep: five sets, five block sizes, five candidate counts, selector on and off, 64 prompts each.

    python benchmarks/sweep_bundled.py --out DIR [--num-prompts N] [--device cuda]

Three stages; a stage that was stopped goes on. `replay` computes all cells and is timed, from loading the pair to the
last row. `decode` runs a few cells in the real loop on some of the prompts, for the time of a cell, one of them again
in the loop that waits for launches (on a GPU the other is captured), and some in float32 for agreement. `report` writes
DIR/sweep-bundled.json (what is quoted), .md, .html and .svg. Set DFLASH_LAB_DATA to the folder of the evaluation sets.
Needs no network once the bundled target is there.

`--stage texts` is apart: it writes DIR/held-out-greedy-float32.npz, the asset of that name, on the CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_lab.core.ablate.report import report
from dflash_lab.core.ablate.results import TEXTS, load_results
from dflash_lab.core.ablate.runner import Outcome, run_sweep
from dflash_lab.core.ablate.sweep import Sweep
from dflash_lab.core.ablate.tables import markdown
from dflash_lab.core.ablate.work import Workbench
from dflash_lab.core.data.prompts import DATASET_NAMES
from dflash_lab.core.errors import BackendError
from dflash_lab.core.provenance import provenance
from dflash_lab.core.train.corpus import HELD_OUT_FLOAT32, join, load_corpus
from dflash_lab.ui.view.sweep import grid_svg

GRID = {"block_size": (2, 4, 8, 12, 16), "num_candidates": (1, 2, 4, 8, 16)}
PICKED = {"block_size": (4, 8, 16), "num_candidates": (4, 16)}
"""Cells that are decoded for their time: the middle of the grid and its far corner."""
EAGER = {"block_size": (8,), "num_candidates": (16,)}
"""The cell that is decoded without captured graphs."""
BEYOND = 31
"""Tokens kept after the end of a text, enough for blocks of 32."""


def note(text: str) -> None:
    """A line with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", choices=("replay", "decode", "report", "texts"), action="append")
    parser.add_argument("--datasets", nargs="+", default=list(DATASET_NAMES))
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=512)
    parser.add_argument("--decode-prompts", type=int, default=4)
    parser.add_argument("--target", default="bundled")
    parser.add_argument("--drafter", default="bundled")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(argv)
    stages = options.stage or ["replay", "decode", "report"]
    whole = Sweep(
        **GRID,
        selector=(True, False),
        dataset=tuple(options.datasets),
        target=options.target,
        drafter=(options.drafter,),
        num_prompts=options.num_prompts,
        max_new_tokens=options.max_new_tokens,
        device=options.device,
    )
    if "replay" in stages:
        told(run_sweep(whole, options.out / "replay", notify=note))
    few = dataclasses.replace(whole, num_prompts=min(options.decode_prompts, options.num_prompts), selector=(True,))
    if "decode" in stages:
        timed = dataclasses.replace(few, **PICKED, mode="decode")
        told(run_sweep(timed, options.out / "decode", notify=note))
        eager = dataclasses.replace(few, **EAGER, mode="decode", loop="eager", dataset=few.dataset[:1])
        told(run_sweep(eager, options.out / "eager", notify=note))
        # In float32 both modes have to agree, but for listed near ties.
        exact = dataclasses.replace(few, **PICKED, dtype="float32", dataset=few.dataset[:1])
        for mode in ("replay", "decode"):
            told(run_sweep(dataclasses.replace(exact, mode=mode), options.out / "exact", notify=note))
    if "report" in stages:
        write_report(options.out, whole)
    if "texts" in stages:
        write_texts(options.out, dataclasses.replace(whole, device="cpu", dtype="float32"))


def write_texts(out: Path, sweep: Sweep) -> None:
    """What the target writes in float32 on a CPU, which is what a replay there walks along."""
    bench = Workbench(sweep, out, note)
    for dataset in sweep.dataset:
        bench.reader(dataset, bench.pair.drafter, BEYOND)
    corpus = join([load_corpus(file) for file in sorted((out / TEXTS).glob("*.npz"))])
    dataclasses.replace(corpus, target="").save(out / HELD_OUT_FLOAT32.name)
    note(f"{len(corpus)} texts, {len(corpus.tokens)} tokens")


def told(outcome: Outcome) -> None:
    """A line about what came of a run; failures are not passed over."""
    note(f"{outcome.sweep.mode}: {json.dumps(outcome.brief())}")
    for row in outcome.failed:
        note(f"FAILED {row['dataset']} block {row['block_size']} C {row['num_candidates']}: {row['error']}")


def write_report(out: Path, sweep: Sweep) -> None:
    """What is quoted, and the pictures."""
    found = report(load_results(out / "replay"))
    curves = found["curves"]
    document = {
        "sweep": sweep.to_dict(),
        "num_rows": found["num_rows"],
        "num_failed": len(found["failed"]),
        "runs": found["runs"],
        "speed": {loop: speed(out, folder) for loop, folder in (("auto", "decode"), ("eager", "eager"))},
        "exact": _exact(out),
        "recommended": found["recommended"],
        "grids": found["grids"],
        "contrasts": found["contrasts"],
        "costs": [{"label": each["label"], "block_sizes": each["block_sizes"], **each["costs"]} for each in curves],
        "provenance": provenance(),
    }
    save(out / "sweep-bundled.json", json.dumps(document, indent=1, allow_nan=False) + "\n")
    save(out / "sweep-bundled.md", markdown(found))
    for grid in found["grids"]:
        if grid["selector"]:
            for metric, name in (("mean_acceptance_length", "acceptance"), ("tok_s", "speed")):
                save(out / f"sweep-{Path(grid['dataset']).stem}-{name}.svg", grid_svg(grid, metric))
    try:
        from dflash_lab.ui.view.sweep_page import sweep_html

        save(out / "sweep-bundled.html", sweep_html(found))
    except BackendError as error:  # Plotly may not be on a bare machine; the rest is written
        note(f"no page: {error}")
    note(json.dumps({"speed": document["speed"], "exact": document["exact"], "num_rows": found["num_rows"]}))


def speed(out: Path, folder: str) -> dict[str, Any] | None:
    """How much longer decoding every cell, as those in `folder` were, would have taken than replaying it did.

    Estimated from the decoded cells' seconds a token in their steps alone (no loading, prompts or capturing), for the
    tokens of all cells. Replaying is counted whole, loading, texts and costs included.
    """
    if not (out / folder).exists():
        return None
    replayed, decoded = load_results(out / "replay"), load_results(out / folder)
    rows = [row for row in replayed.rows if "error" not in row]
    measured = [row for row in decoded.rows if "error" not in row]
    replay_s = sum(run["wall_s"] for run in replayed.runs if run.get("num_computed"))
    steps_s = sum(row["num_steps"] * row["step_ms"] for row in measured) / 1e3
    tokens, own_tokens = (sum(row["num_output_tokens"] for row in some) for some in (rows, measured))
    return {
        "replay_s": replay_s,
        "replay_seconds": [run["seconds"] for run in replayed.runs if run.get("num_computed")],
        "num_cells": len(rows),
        "tokens_of_all_cells": tokens,
        "decoded_cells": len(measured),
        "decoded_tokens": own_tokens,
        "decode_tok_s": own_tokens / steps_s,
        "ratio": steps_s / own_tokens * tokens / replay_s,
    }


def _exact(out: Path) -> dict[str, Any] | None:
    """Whether both modes agreed in float32."""
    if not (out / "exact").exists():
        return None
    found = report(load_results(out / "exact"))["agreement"]
    return None if found is None else {**found, "differences": found["differences"][:50]}


def save(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = file.with_name(f".{file.name}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)


if __name__ == "__main__":
    main()
