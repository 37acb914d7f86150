"""What the captured loop does on a GPU, beyond `dflash-lab bench`: exactness, batches, and where a step's time goes.

    python benchmarks/decode_gpu.py --out DIR [--stage exact|batch|profile] [--num-prompts N]

`exact` compares 50 prompts with the eager loop and with transformers, in float32 token by token and in bfloat16 with
the margin of every difference. `batch` measures 1, 8 and 32 requests side by side with and without the drafter, in
turn. `profile` lists the kernels of a step. Each stage writes a JSON file of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from dflash_lab.core.bench import find_differences, pair_arm, target_margin
from dflash_lab.core.data.prompts import load_prompts
from dflash_lab.core.decode.batch import decode_batch
from dflash_lab.core.generate import Pair, load_pair
from dflash_lab.core.provenance import provenance
from dflash_lab.core.target.hf import HfTarget, load_model
from dflash_lab.core.types import GenerateRequest, SamplingParams

BLOCK_SIZE = 8
REPEATS = 3
PROFILED_STEPS = 20


def main() -> None:
    """Run the stages that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", choices=("exact", "batch", "profile"), action="append")
    parser.add_argument("--drafter", default="bundled")
    parser.add_argument("--dataset", default="gsm8k")
    parser.add_argument("--num-prompts", type=int, default=50)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    stages = {"exact": exact, "batch": batch, "profile": profile}
    for name in options.stage or stages:
        started = time.monotonic()
        document = stages[name](options)
        document |= {"wall_s": round(time.monotonic() - started, 1), "provenance": provenance()}
        partial = options.out / f"decode-{name}.json.part"
        partial.write_text(json.dumps(document, indent=1) + "\n")
        partial.replace(options.out / f"decode-{name}.json")


def _texts(options: argparse.Namespace) -> list[str]:
    return [prompt.text for prompt in load_prompts(options.dataset, options.num_prompts).prompts]


def exact(options: argparse.Namespace) -> dict[str, Any]:
    """Greedy texts of the captured loop against the eager loop's and transformers', in both precisions."""
    texts = _texts(options)
    document: dict[str, Any] = {"num_prompts": len(texts), "max_new_tokens": options.max_new_tokens}
    for dtype in ("float32", "bfloat16"):
        pair = load_pair(drafter=options.drafter, dtype=dtype)
        eager = load_pair(drafter=options.drafter, dtype=dtype, loop="eager")
        request = GenerateRequest("", SamplingParams(max_new_tokens=options.max_new_tokens), block_size=BLOCK_SIZE)
        arms = {
            "eager": pair_arm(eager, request),
            "captured": pair_arm(pair, request),
            "captured, no drafter": pair_arm(_alone(pair), request),
        }
        runs = {name: [arm(text) for text in texts] for name, arm in arms.items()}
        found = find_differences(runs, "eager", dtype, lambda i, ids, on=eager: target_margin(on, texts[i], ids))
        steps = {name: sum(run.num_steps for run in done) for name, done in runs.items()}
        wanted = _transformers_disagrees(pair, texts, [run.output_ids for run in runs["captured"]])
        document[dtype] = {
            "backends": {name: dict(each.backends) for name, each in (("captured", pair), ("eager", eager))},
            "differences_from_eager": [vars(difference) for difference in found],
            "tokens_compared": sum(len(run.output_ids) for run in runs["captured"]),
            "steps": steps,
            "transformers": wanted,
        }
        print(
            dtype, len(found), "differences from the eager loop,", len(wanted), "from transformers", steps, flush=True
        )
        for each in [*document[dtype]["differences_from_eager"], *wanted][:12]:
            print("  ", each, flush=True)
    return document


def _alone(pair: Pair) -> Pair:
    import dataclasses

    return dataclasses.replace(pair, drafter=None)


def _transformers_disagrees(pair: Pair, texts: list[str], outputs: list[tuple[int, ...]]) -> list[dict[str, Any]]:
    """Positions where transformers' arg-max after the same tokens is another token; none means the same greedy text."""
    model = load_model(pair.target_folder, dtype=pair.target.dtype, device=pair.target.device)
    target, found = HfTarget(model, "transformers"), []
    for number, (text, output) in enumerate(zip(texts, outputs, strict=True)):
        prompt = pair.text.encode(text)[0]
        ids = torch.tensor([[*prompt, *output[:-1]]], device=model.device)
        target.prefill(ids[:, :1])
        logits = target.verify(ids[:, 1:]).logits[0, len(prompt) - 2 :].float()
        top = logits.topk(2).values
        wrong = logits.argmax(-1) != torch.tensor(output, device=ids.device)
        for index in wrong.nonzero()[:1, 0].tolist():
            margin = float(top[index, 0] - logits[index, output[index]])
            found.append({"prompt": number, "index": index, "found_id": output[index], "margin": margin})
    return found


def batch(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of a batch, drafter and no drafter in turn, after a comparison with each request alone."""
    pair = load_pair(drafter=options.drafter)
    params = SamplingParams(max_new_tokens=128, stop_ids=pair.target.info.stop_ids)
    rows = []
    for size in options.batches:
        options.num_prompts = size
        prompts = [pair.text.encode(text)[0] for text in _texts(options)]
        speeds: dict[str, list[float]] = {"drafter": [], "autoregressive": []}
        outputs, accepted = {}, ()
        for repeat in range(REPEATS + 1):
            for name, block_size in (("drafter", BLOCK_SIZE), ("autoregressive", 1)):
                run = decode_batch(pair.engine, prompts, params, block_size=block_size, num_candidates=16)
                outputs[name] = run.output_ids
                if name == "drafter":
                    accepted = run.num_accepted
                if repeat:
                    speeds[name].append(run.decode_tok_s)
        same = sum(a == b for a, b in zip(outputs["drafter"], outputs["autoregressive"], strict=True))
        lengths = [1 + statistics.mean(counts) for counts in accepted if counts]
        rows.append(
            {
                "batch": size,
                "decode_tok_s": {name: statistics.median(values) for name, values in speeds.items()},
                "runs_tok_s": speeds,
                "speedup": statistics.median(speeds["drafter"]) / statistics.median(speeds["autoregressive"]),
                "same_text": same,
                "acceptance_length": statistics.mean(lengths),
            }
        )
        print(rows[-1], flush=True)
    return {"block_size": BLOCK_SIZE, "dataset": options.dataset, "backends": dict(pair.backends), "rows": rows}


@torch.inference_mode()
def profile(options: argparse.Namespace) -> dict[str, Any]:
    """Device time of a captured step by kernel, with and without the drafter."""
    from torch.profiler import ProfilerActivity

    pair = load_pair(drafter=options.drafter)
    prompt = pair.text.encode(_texts(options)[0])[0]
    document: dict[str, Any] = {"backends": dict(pair.backends), "steps": {}}
    for name, block_size in (("drafter", BLOCK_SIZE), ("autoregressive", 1)):
        params = SamplingParams(max_new_tokens=600)
        decode_batch(pair.engine, [prompt], SamplingParams(max_new_tokens=16), block_size=block_size, num_candidates=16)
        (runner,) = [r for shape, r in pair.engine._runners.items() if shape.block_size == block_size]
        runner.step.place(0, length=200, anchor_id=28, left=600)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(PROFILED_STEPS):
            runner.graph.replay()
        torch.cuda.synchronize()
        step_us = (time.perf_counter() - started) / PROFILED_STEPS * 1e6
        runner.step.place(0, length=200, anchor_id=28, left=600)
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as recorded:
            for _ in range(PROFILED_STEPS):
                runner.graph.replay()
            torch.cuda.synchronize()
        times, counts = Counter(), Counter()
        for event in recorded.events():
            times[event.name] += event.device_time
            counts[event.name] += 1
        kernels = [
            {"name": kernel[:80], "us": us / PROFILED_STEPS, "launches": counts[kernel] / PROFILED_STEPS}
            for kernel, us in times.most_common(25)
        ]
        document["steps"][name] = {
            "max_new_tokens": params.max_new_tokens,
            "step_us": step_us,
            "kernels_us": sum(times.values()) / PROFILED_STEPS,
            "launches": sum(counts.values()) / PROFILED_STEPS,
            "kernels": kernels,
        }
        print(name, f"{step_us:.0f} us a step, {document['steps'][name]['launches']:.0f} launches", flush=True)
        for kernel in kernels[:14]:
            print(f"  {kernel['us']:7.1f} us {kernel['launches']:6.1f}x {kernel['name'][:60]}", flush=True)
    return document


if __name__ == "__main__":
    main()
