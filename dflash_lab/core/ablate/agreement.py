"""Whether replayed and decoded rows of the same cells say the same, and how much faster replaying was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dflash_lab.core.ablate.results import Row

_SAME = (
    "target", "dataset", "drafter", "block_size", "num_candidates", "selector", "conv", "layers", "window",
    "temperature", "num_prompts", "max_new_tokens", "device", "dtype",
)  # fmt: skip
_COUNTS = ("num_steps", "num_accepted", "num_output_tokens", "output_hash")
"""What has to be equal for each prompt."""


def agreement(rows: Sequence[Row], runs: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Cells that were both replayed and decoded, prompt by prompt; None if there are none.

    A difference is `explained` if the replay counts a near tie in that prompt: a choice with a margin so small that
    passes of another shape may round it the other way. In half precision rounding alone makes differences, so they
    prove nothing and `explained` is None.
    """
    decoded = {tuple(row[name] for name in _SAME): row for row in rows if row["mode"] == "decode"}
    pairs = [
        (row, decoded[name])
        for row in rows
        if row["mode"] == "replay" and (name := tuple(row[name] for name in _SAME)) in decoded
    ]
    if not pairs:
        return None
    differences = [difference for pair in pairs for difference in _differences(*pair)]
    touched = {difference["key"] for difference in differences}
    return {
        "num_cells": len(pairs),
        "num_equal": len(pairs) - len(touched),
        "differences": differences,
        "holds": all(difference["explained"] is not False for difference in differences),
        "largest_difference": max(abs(_length(a) - _length(b)) for a, b in pairs),
        **_speedup(runs),
    }


def _length(row: Row) -> float:
    return row["mean_acceptance_length"] or 0.0


def _differences(replayed: Row, decoded: Row) -> Iterable[dict[str, Any]]:
    others = {prompt["prompt"]: prompt for prompt in decoded["per_prompt"]}
    for prompt in replayed["per_prompt"]:
        other = others[prompt["prompt"]]
        if any(prompt[name] != other[name] for name in _COUNTS):
            ties = [tie for tie in replayed["near_ties"] if tie["prompt"] == prompt["prompt"]]
            yield {
                "key": replayed["key"],
                **{name: replayed[name] for name in ("dataset", "block_size", "num_candidates", "selector")},
                "prompt": prompt["prompt"],
                "replay": prompt["mean_acceptance_length"],
                "decode": other["mean_acceptance_length"],
                "near_ties": ties,
                "explained": bool(prompt["num_near_ties"]) if replayed["dtype"] == "float32" else None,
            }


def _speedup(runs: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Seconds that computing a cell took in each mode, loading included, and their ratio."""
    per_cell = {}
    for mode in ("replay", "decode"):
        own = [run for run in runs if run["sweep"]["mode"] == mode and run.get("num_computed")]
        cells = sum(run["num_computed"] for run in own)
        per_cell[mode] = sum(run["wall_s"] for run in own) / cells if cells else None
    both = None not in per_cell.values()
    return {
        "replay_s_per_cell": per_cell["replay"],
        "decode_s_per_cell": per_cell["decode"],
        "speedup": per_cell["decode"] / per_cell["replay"] if both else None,
    }
