"""`dflash-lab live bench`: a load like z-lab's on a server, written down request by request."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash_lab.core.errors import RequestError
from dflash_lab.ui.cli.live_options import model_option, url_argument
from dflash_lab.ui.cli.output import INTERRUPTED, Output, Result, story

if TYPE_CHECKING:
    from dflash_lab.core.data.prompts import PromptSet
    from dflash_lab.core.serve.endpoint import Endpoint
    from dflash_lab.core.serve.measure import Task
    from dflash_lab.core.serve.records import LoadPlan, RunHeader, ServerInfo
    from dflash_lab.core.serve.report import RunReport
    from dflash_lab.core.serve.runfile import Run

NUM_PROMPTS = 128
"""Prompts of a run unless told otherwise, or all of a smaller set: as in the example of z-lab's client."""


@click.command()
@url_argument
@model_option
@click.option("--dataset", default="gsm8k", show_default=True, metavar="NAME|FILE,...", help="Prompt sets, in turn.")
@click.option("--num-prompts", type=click.IntRange(1), metavar="N", help=f"Requests to measure; {NUM_PROMPTS} or all.")
@click.option("--concurrency", metavar="N,...", help="Requests under way at a time, in turn; 1 unless told otherwise.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), metavar="R", help="Requests a second that arrive instead."
)
@click.option("--max-new-tokens", type=click.IntRange(1), default=2048, show_default=True, metavar="N")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, metavar="T")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True, metavar="P")
@click.option("--top-k", type=click.IntRange(0), default=0, show_default=True, metavar="K", help="0 keeps all.")
@click.option("--reasoning", metavar="on|off|LEVEL", help="For the chat template; left out, it decides itself.")
@click.option("--stream", is_flag=True, help="Stream answers: shows first token and time per token. z-lab's does not.")
@click.option("--salt", is_flag=True, help="Keep requests from finding each other's prefix in the cache.")
@click.option("--repeat", is_flag=True, help="Use prompts again when the set is too small, as z-lab's client does.")
@click.option(
    "--warmup", type=click.IntRange(0), metavar="N", help="Requests before, not measured; 8 or --concurrency."
)
@click.option("--seed", type=int, default=42, show_default=True, metavar="S", help="Of the choice of prompts.")
@click.option("--timeout-s", type=click.FloatRange(0, min_open=True), default=3600.0, show_default=True, metavar="S")
@click.option("--label", metavar="NAME", help="What tables call this run; left out, its method.")
@click.option("--min-accept", type=float, metavar="A", help="Exit with 1 below this acceptance length.")
@click.option("--out", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Where runs go, or go on.")
@story
def bench(
    out: Output,
    url: str,
    model: str | None,
    dataset: str,
    num_prompts: int | None,
    concurrency: str | None,
    rate: float | None,
    label: str | None,
    min_accept: float | None,
    folder: Path | None,
    **options: Any,
) -> Result:
    """Measure throughput and acceptance of the server at URL.

    Prompts, order, sampling and limits are those of z-lab's benchmark unless told otherwise. Each data set and
    concurrency becomes a file of JSON lines in DIR, written while it runs; the same call with the same DIR goes on
    with what is missing. DFLASH_LAB_API_KEY is sent as the server's key.
    """
    from dflash_lab.core.data.prompts import load_prompts
    from dflash_lab.core.serve.measure import make_task
    from dflash_lab.core.serve.report import report

    if rate is not None and concurrency is not None:
        raise RequestError("--rate lets requests arrive, --concurrency keeps their number; give one of them")
    loads = [None] if rate is not None else _numbers(concurrency or "1")
    sets = [load_prompts(name.strip(), None, options["seed"]) for name in dataset.split(",")]
    plans = [
        make_task(prompts, _plan(prompts, num_prompts, at_a_time, rate, options))
        for prompts in sets
        for at_a_time in loads
    ]
    folder = folder or Path("live-runs") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    runs = asyncio.run(_measure(out, url, model, plans, folder, label))
    reports = [report(run) for run in runs]
    documents = [_document(run, numbers) for run, numbers in zip(runs, reports, strict=True)]
    for name, numbers in zip((run.path.name for run in runs), reports, strict=True):
        for warning in numbers.warnings:
            out.warn(f"{name}: {warning}" if len(reports) > 1 else warning)
    for missed in _too_low(reports, min_accept):
        out.warn(missed)
    document = documents[0] if len(documents) == 1 else {"runs": documents}
    return Result(document, _text(runs, reports), _exit_code(reports, len(plans), min_accept))


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise RequestError(f"--concurrency expects a number of requests or several as 1,8,32, got {text!r}")
    return found


def _plan(
    prompts: PromptSet, num_prompts: int | None, at_a_time: int | None, rate: float | None, options: dict[str, Any]
) -> LoadPlan:
    from dflash_lab.core.serve.plan import MIN_WARMUP
    from dflash_lab.core.serve.records import LoadPlan

    rest = {name: value for name, value in options.items() if name != "warmup"}
    warmup = options["warmup"]
    return LoadPlan(
        dataset=prompts.name,
        num_prompts=min(NUM_PROMPTS, prompts.available) if num_prompts is None else num_prompts,
        concurrency=at_a_time,
        rate=rate,
        num_warmup=max(MIN_WARMUP, at_a_time or 1) if warmup is None else warmup,
        **rest,
    )


async def _measure(
    out: Output, url: str, model: str | None, tasks: Sequence[Task], folder: Path, label: str | None
) -> list[Run]:
    """Run the tasks one after another; the last one may have been interrupted or have lost its server."""
    from dflash_lab.core.serve.endpoint import KEY_VARIABLE, Endpoint
    from dflash_lab.core.serve.probe import probe

    runs = []
    async with Endpoint(url, os.environ.get(KEY_VARIABLE), tasks[0].plan.timeout_s) as endpoint:
        info = await probe(endpoint, model)
        out.note(f"{info.backend} {info.version or ''} with {info.model}, {info.method}; writing to {folder}")
        for task in tasks:
            runs.append(await _one(out, endpoint, info, task, folder, label))
            if runs[-1].status != "complete":
                break
    return runs


async def _one(out: Output, endpoint: Endpoint, info: ServerInfo, task: Task, folder: Path, label: str | None) -> Run:
    """Measure a task, or what is missing of it."""
    from dflash_lab.core.serve.measure import next_go, send
    from dflash_lab.core.serve.runfile import read_run

    path = folder / f"{task.plan.name}.jsonl"
    go = next_go(task, info, path, label)
    if go.complete:
        out.note(f"{path} is complete already; nothing is sent")
        return read_run(path)
    if go.segment:
        out.note(f"{path} goes on: {len(go.missing)} of {task.plan.num_prompts} requests are missing")
    with out.progress(task.plan.name, len(go.missing)) as advance:
        return await send(endpoint, task, go, observe=lambda record: advance())


def _document(run: Run, numbers: RunReport) -> dict[str, Any]:
    header = run.header
    return {
        **dataclasses.asdict(numbers),
        "file": str(run.path),
        "server": dataclasses.asdict(header.server),
        "plan": dataclasses.asdict(header.plan),
        "sampling_sent": dict(header.body),
        "sampling_text": _sampling(header),
        "prompts": {"source": header.source, "available": header.available, "ids": header.prompt_ids,
                    "repeated": header.repeated, "repetition": header.prompt_repetition},
        "provenance": header.provenance,
    }  # fmt: skip


def _text(runs: Sequence[Run], reports: Sequence[RunReport]) -> str:
    from dflash_lab.ui.view.live import published_beside
    from dflash_lab.ui.view.live_text import report_text

    blocks = []
    for run, numbers in zip(runs, reports, strict=True):
        plan = run.header.plan
        lines = [report_text(numbers, run.header.server)]
        for item in published_beside(run.header.server, plan.dataset, str(plan.concurrency)):
            told = {"acceptance length": item["acceptance_length"], "tok/s": item["throughput_tok_s"]}
            words = [f"{unit}: " + ", ".join(f"{m} {v:,}" for m, v in by.items()) for unit, by in told.items() if by]
            lines.append(f"published on {item['hardware']}, {item['source']}: {'; '.join(words) or 'no numbers found'}")
        lines += [_sampling(run.header), f"written to {run.path}"]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _sampling(header: RunHeader) -> str:
    """What decided how tokens were drawn: what was sent, and where the server takes the rest from."""
    names = ("temperature", "top_p", "top_k", "max_tokens", "chat_template_kwargs")
    sent = ", ".join(f"{name} {header.body[name]}" for name in names if name in header.body)
    settings = header.server.settings
    rest = settings.get("sampling_defaults") or settings.get("model.generation_config") or "not told"
    if rest in ("model", "auto"):
        rest = "the model's generation_config.json"
    return f"sampling sent: {sent}; penalties and the like are the server's defaults ({rest})"


def _too_low(reports: Sequence[RunReport], least: float | None) -> list[str]:
    """What is below --min-accept; a run that reports no acceptance is."""
    if least is None:
        return []
    return [
        f"{numbers.name}: acceptance length is {numbers.mean_acceptance_length or 'not reported'}, expected {least}"
        for numbers in reports
        if (numbers.mean_acceptance_length or 0) < least
    ]


def _exit_code(reports: Sequence[RunReport], num_plans: int, least: float | None) -> int:
    if any(numbers.status == "interrupted" for numbers in reports):
        return INTERRUPTED
    bad = any(numbers.broken or numbers.num_failed == numbers.num_requests for numbers in reports)
    unfinished = len(reports) < num_plans or any(numbers.status != "complete" for numbers in reports)
    return 1 if bad or unfinished or _too_low(reports, least) else 0
