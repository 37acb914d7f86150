"""`dflash-lab bench`: how fast, against decoding one token at a time and against z-lab's dflash."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from dflash_lab.core.errors import RequestError
from dflash_lab.ui.cli.options import check_writable, drafter_name, pair_options
from dflash_lab.ui.cli.output import INTERRUPTED, Output, Result, json_text, story, write_file

if TYPE_CHECKING:
    from dflash_lab.core.bench import Arm, ArmRun
    from dflash_lab.core.data.prompts import PromptSet
    from dflash_lab.core.generate import Pair

WARMUP = "Write a short story about the keeper of a lighthouse."
"""Decoded once by each arm before anything is measured; of no prompt set."""

BASELINE, OURS, RECORDING, ZLAB = "autoregressive", "drafter", "drafter_recording", "zlab"
"""Arms by name: the target alone, with the drafter, the same recorded at level scores, z-lab's dflash 0.1.0."""

NUMBERS = ("decode_tok_s", "mean_commit_length", "speedup_vs_autoregressive", "ratio_vs_zlab", "recording_overhead")
"""What is null in the document when the arms wrote different texts."""


@click.command()
@click.option("--against", type=click.Choice(["zlab"]), help="Also run z-lab's dflash 0.1.0 on the same pair.")
@click.option("--dataset", default="gsm8k", show_default=True, metavar="NAME|FILE", help="Prompts to decode.")
@click.option("--num-prompts", type=click.IntRange(1), default=5, show_default=True, metavar="N")
@pair_options
@click.option("--out", "out_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON to FILE too.")
@story
def bench(
    out: Output, against: str | None, dataset: str, num_prompts: int, out_file: Path | None, **options: Any
) -> Result:
    """Measure decoding speed against no drafter, and z-lab's dflash.

    All arms run in one process, prompt by prompt in turn; speeds are given only if they all write the same text.
    """
    check_writable(out_file, "--out")
    drafter = drafter_name(options.pop("drafter"))
    if drafter is None:
        raise RequestError("bench measures a drafter; --drafter none leaves nothing to compare")

    from dflash_lab.core.bench import find_differences, import_zlab, interleave, measure_memory, target_margin
    from dflash_lab.core.data.prompts import load_prompts
    from dflash_lab.core.generate import load_pair

    prompts = load_prompts(dataset, num_prompts)
    texts = [prompt.text for prompt in prompts.prompts]
    zlab = import_zlab() if against == "zlab" else None
    before_bytes = _libraries_bytes()
    placed = {name: options[name] for name in ("device", "dtype", "kernels", "loop", "forward")}
    pair = load_pair(options["target"], drafter, **placed, notify=out.note)
    for warning in (*pair.warnings, *(f"{name} repeats the text of an earlier prompt" for name in prompts.duplicates)):
        out.warn(warning)
    arms = _arms(pair, drafter, options)
    arms[OURS](texts[0])
    memory = measure_memory(pair, before_bytes)
    if zlab is not None:
        arms[ZLAB] = _zlab_arm(zlab, pair, drafter, options)
    with out.progress("decoding", len(texts)) as advance:
        runs = interleave(arms, texts, WARMUP, advance)
    num_finished = len(runs[OURS])
    differences = find_differences(
        runs, BASELINE, pair.backends["dtype"], lambda i, ids: target_margin(pair, texts[i], ids)
    )
    exact = all(difference.rounding for difference in differences)
    document = {
        "exact": exact,
        "differences": [dataclasses.asdict(difference) for difference in differences],
        **_numbers(runs, exact),
        "memory": {**dataclasses.asdict(memory), "peak_over_weights": memory.peak_over_weights},
        **_setting(pair, prompts, num_finished, options),
    }
    if out_file is not None:
        write_file(out_file, json_text(document, indent=2) + "\n")
    exit_code = INTERRUPTED if num_finished < len(texts) else 0 if exact else 1
    return Result(document, _report(document), exit_code)


def _arms(pair: Pair, drafter: str, options: Mapping[str, Any]) -> dict[str, Arm]:
    """Our three arms over one loaded pair."""
    from dflash_lab.core.bench import pair_arm
    from dflash_lab.core.types import GenerateRequest, SamplingParams

    same = ("target", "block_size", "num_candidates", "kernels", "device", "dtype", "loop", "forward")
    request = GenerateRequest(
        prompt="",
        sampling=SamplingParams(max_new_tokens=options["max_new_tokens"]),
        drafter=drafter,
        **{name: options[name] for name in same},
    )
    return {
        BASELINE: pair_arm(dataclasses.replace(pair, drafter=None), dataclasses.replace(request, drafter=None)),
        OURS: pair_arm(pair, request),
        RECORDING: pair_arm(pair, dataclasses.replace(request, record="scores")),
    }


def _zlab_arm(zlab: ModuleType, pair: Pair, drafter: str, options: Mapping[str, Any]) -> Arm:
    """z-lab's code over the same checkpoint."""
    from dflash_lab.core.bench import zlab_arm
    from dflash_lab.core.target.bundled import drafter_folder

    checkpoint = drafter_folder() if drafter == "bundled" else drafter
    return zlab_arm(zlab, pair, checkpoint, options["block_size"] or pair.drafter.block_size, options["max_new_tokens"])


def _libraries_bytes() -> int:
    """Memory of this process with the libraries but without the models."""
    import transformers.models.llama.modeling_llama  # noqa: F401

    import dflash_lab.core.generate
    import dflash_lab.core.target.lean  # noqa: F401
    from dflash_lab.core.bench import process_peak_bytes

    return process_peak_bytes()


def _numbers(runs: Mapping[str, Sequence[ArmRun]], exact: bool) -> dict[str, Any]:
    """Speeds and ratios; all null unless `exact`, for arms that wrote different texts are not comparable."""
    from dflash_lab.core.bench import Spread, paired_ratio

    if not exact:
        return dict.fromkeys(NUMBERS)
    against = paired_ratio(runs[OURS], runs[ZLAB]).median if ZLAB in runs else None
    return {
        "decode_tok_s": {
            name: dataclasses.asdict(Spread.of([run.decode_tok_s for run in done])) for name, done in runs.items()
        },
        "mean_commit_length": {
            name: statistics.mean(run.mean_commit_length for run in done) for name, done in runs.items()
        },
        "speedup_vs_autoregressive": paired_ratio(runs[OURS], runs[BASELINE]).median,
        "ratio_vs_zlab": against,
        "recording_overhead": paired_ratio(runs[OURS], runs[RECORDING]).median - 1,
    }


def _setting(pair: Pair, prompts: PromptSet, num_finished: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, where and on what: enough to do it again."""
    from dflash_lab.core.provenance import provenance

    return {
        "dataset": prompts.name,
        "prompt_ids": [prompt.id for prompt in prompts.prompts[:num_finished]],
        "num_prompts": num_finished,
        "max_new_tokens": options["max_new_tokens"],
        "block_size": options["block_size"] or pair.drafter.block_size,
        "num_candidates": options["num_candidates"] or pair.drafter.num_candidates,
        "target": pair.target.info.name,
        "drafter": pair.drafter.name,
        **{name: pair.backends[name] for name in ("device", "dtype", "kernels", "loop", "forward")},
        "provenance": provenance(),
    }


def _report(document: Mapping[str, Any]) -> str:
    """The numbers for people, after what was checked."""
    lines = [
        f"prompt {item['prompt']}, {item['arm']}: token {item['index']} is {item['found_id']}, alone the target writes "
        f"{item['expected_id']} (margin {item['margin']:.4f}{', rounding' if item['rounding'] else ''})"
        for item in document["differences"]
    ]
    if not document["exact"]:
        return "\n".join([*lines, "the texts differ by more than rounding: no speed is given"])
    lines.append(f"the same text in all arms{' but for rounding' if lines else ''}, {document['num_prompts']} prompts")
    width = max(map(len, document["decode_tok_s"]))
    for name, speed in document["decode_tok_s"].items():
        lines.append(
            f"{name:<{width}}  {speed['median']:7.1f} tok/s  (quartiles {speed['q1']:.1f} to {speed['q3']:.1f})"
            f"  {document['mean_commit_length'][name]:.2f} tokens per step"
        )
    lines.append(f"{document['speedup_vs_autoregressive']:.2f} times autoregressive, median of the prompts' ratios")
    if document["ratio_vs_zlab"] is not None:
        lines.append(f"{document['ratio_vs_zlab']:.2f} times z-lab's dflash")
    lines.append(f"recording at level scores: {document['recording_overhead']:+.1%} time")
    memory = document["memory"]
    lines.append(
        f"peak memory {memory['peak_bytes'] / 1e6:.0f} MB, weights {memory['weights_bytes'] / 1e6:.0f} MB: "
        f"{memory['peak_over_weights']:.2f} times"
    )
    return "\n".join(lines)
