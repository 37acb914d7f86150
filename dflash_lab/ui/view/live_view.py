"""What a page shows of a server that is watched, or of a run of our own: words, numbers, figures, published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dflash_lab.core.acceptance import Acceptance
from dflash_lab.core.serve.published import DATASET_LABELS, tables_of
from dflash_lab.core.serve.records import LoadPlan, ServerInfo, Snapshot
from dflash_lab.core.serve.report import RunReport, report
from dflash_lab.core.serve.runfile import Run
from dflash_lab.core.serve.verdicts import SPECULATION
from dflash_lab.ui.view import live_figures as figures
from dflash_lab.ui.view.live import (
    late_window_s,
    load_series,
    numbers,
    position_chart,
    published_beside,
    run_acceptance,
    server_series,
    watched_acceptance,
    watched_numbers,
)
from dflash_lab.ui.view.live_tables import datasets_of, missing

View = dict[str, Any]

NO_POSITIONS = "The counters of this server do not tell positions; measure it with a load of our own."
AT_THE_END = "Counters of this server take a request's tokens when it ends."
DEFINITIONS = "measured: 1 + accepted / steps; published: completion tokens / steps, at concurrency 1"


def run_view(run: Run) -> View:
    """A run so far."""
    numbers_of_run, info, plan = report(run), run.header.server, run.header.plan
    start = run.segments[0].begin_at_s if run.segments else None
    load, server = load_series(run), _series(info, run.snapshots, start)
    load_text = f"{plan.rate:g}/s" if plan.rate is not None else str(plan.concurrency)
    published, unknown = _published(info, plan.dataset, load_text, plan)
    positions = position_chart(run_acceptance(run))
    spoken = _spoken(numbers_of_run.speculation, info)
    none = _no_acceptance(numbers_of_run, spoken)
    note = AT_THE_END if server["window_s"] else ""
    drawn = [
        figures.throughput(load, server, published, note),
        figures.acceptance(load, server, published, _acceptance_note(server, published), none),
        figures.requests(server, load["failures"]),
        figures.histogram(positions, none),
        figures.survival(positions, none),
    ]
    return {
        "title": f"{run.header.label} · {DATASET_LABELS.get(plan.dataset, plan.dataset)}, {_load_words(plan)}",
        "state": run.status,
        "message": _progress(numbers_of_run, run),
        "facts": facts(info),
        "numbers": _beside_numbers(numbers(numbers_of_run), published, run.header.label),
        "speculation": spoken,
        "warnings": [*numbers_of_run.warnings, *numbers_of_run.broken[:1]],
        "figures": drawn,
        "published": published,
        "missing": unknown,
    }


def watch_view(
    info: ServerInfo | None,
    snapshots: Sequence[Snapshot],
    began_at_s: float,
    state: str,
    message: str | None,
    beside: tuple[str, str] = ("gsm8k", "1"),
) -> View:
    """A server that is watched, `info` None until it has answered; `beside`: data set and load to show published."""
    server = _series(info, snapshots, began_at_s)
    published, unknown = _published(info, *beside) if info else ([], [])
    positions = position_chart(_positions(snapshots))
    off = info is not None and info.speculation is False
    none = SPECULATION["off"] if off else "No verification step was counted yet."
    blind = none if off or info is None or info.backend == "vllm" else NO_POSITIONS
    drawn = [
        figures.throughput(None, server, published, AT_THE_END if server["window_s"] else ""),
        figures.acceptance(None, server, published, _acceptance_note(server, published), none),
        figures.requests(server),
        figures.histogram(positions, blind),
        figures.survival(positions, blind),
    ]
    speculation = {True: "working", False: "off", None: "not reported"}[info.speculation if info else None]
    return {
        "title": f"{info.method if info else 'Connecting'} · {info.url if info else ''}".strip(" ·"),
        "state": state,
        "message": message or ("" if snapshots else "Asking the server…"),
        "facts": facts(info) if info else [],
        "numbers": watched_numbers(snapshots, server, info.speculation if info else None),
        "speculation": _spoken(speculation, info) if info else "",
        "warnings": list(info.warnings) if info else [],
        "figures": drawn,
        "published": published,
        "missing": unknown,
    }


def facts(info: ServerInfo) -> list[list[str]]:
    """Who was measured, name by name."""
    drafts = "" if info.drafts_per_step is None else f", {info.drafts_per_step} drafts per step"
    whose = {"server": "the server's word", "nvml": "the driver's word"}.get(info.hardware_from or "")
    told = [
        ["hardware", info.hardware_text + (f" ({whose})" if whose else "")],
        ["target", info.target or info.model],
        ["method", f"{info.method}{drafts}"],
        ["drafter", info.drafter or ("none" if info.speculation is False else "not told")],
        ["server", f"{info.backend} {info.version or '(version not told)'}"],
    ]
    return [*told, ["address", info.url]]


def _published(
    info: ServerInfo, dataset: str, load: str, plan: LoadPlan | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """What is published of this data set and load, and in words what is not known."""
    target = info.target or info.model
    name = DATASET_LABELS.get(dataset, dataset)
    tables = tables_of(target)
    entries = published_beside(info, dataset, load, plan)
    known = [entry for entry in entries if entry["acceptance_length"] or entry["throughput_tok_s"]]
    told = {entry["id"] for entry in known}
    elsewhere = [
        f"Nothing is published of {name} on {table.hardware}; the table has {', '.join(datasets_of(table))}."
        for table in tables
        if table.id not in told and datasets_of(table)
    ]
    return known, [*missing(tables, target), *elsewhere]


def _positions(snapshots: Sequence[Snapshot]) -> Acceptance | None:
    acceptance = watched_acceptance(snapshots)
    return acceptance if acceptance and acceptance.num_steps else None


def _no_acceptance(numbers_of_run: RunReport, spoken: str) -> str:
    """Why a run has no acceptance to draw: off, dead and unknown must not look alike."""
    if numbers_of_run.broken:
        return f"The server's statistics do not add up, so none are shown ({numbers_of_run.broken[0]})."
    if numbers_of_run.num_requests == numbers_of_run.num_failed and numbers_of_run.speculation != "off":
        return "No answer yet."
    return f"{spoken[:1].upper()}{spoken[1:]}." if spoken else "The answers carry no counts by position."


def _spoken(speculation: str, info: ServerInfo) -> str:
    """What is to be said of speculation: nothing if it works, for then the numbers say it."""
    if speculation == "not reported" and info.speculation:
        return "the server drafts and reports no acceptance"
    return "" if speculation == "working" else SPECULATION[speculation]


def _progress(numbers_of_run: RunReport, run: Run) -> str:
    answered = numbers_of_run.num_requests - numbers_of_run.num_failed
    words = [f"{answered} of {numbers_of_run.num_prompts} answered"]
    if numbers_of_run.failures:
        kinds = ", ".join(f"{kind} {count}" for kind, count in numbers_of_run.failures.items())
        words.append(f"{numbers_of_run.num_failed} failed ({kinds})")
    if run.status == "running" and not run.segments:
        words = [f"warming up, {len(run.warmups)} of {run.header.plan.num_warmup}"]
    if run.ends and run.ends[-1].message and run.status != "running":
        words.append(run.ends[-1].message)
    return ", ".join(words)


def _load_words(plan: LoadPlan) -> str:
    return f"{plan.rate:g} requests a second" if plan.rate is not None else f"concurrency {plan.concurrency}"


def _series(info: ServerInfo | None, snapshots: Sequence[Snapshot], start_s: float | None) -> dict[str, Any]:
    return server_series(snapshots, start_s, late_window_s(info, snapshots))


def _acceptance_note(server: Mapping[str, Any], published: Sequence[Mapping[str, Any]]) -> str:
    counted = f"server's counters: {server['convention']}" if server["convention"] else ""
    beside = DEFINITIONS if any(table["acceptance_length"] for table in published) else ""
    return "; ".join(filter(None, (beside, counted)))


def _beside_numbers(
    measured: list[dict[str, Any]], published: Sequence[Mapping[str, Any]], label: str
) -> list[dict[str, Any]]:
    """The numbers, each with what is published under the same definition and method; never their ratio."""
    keys = {"throughput": "throughput_tok_s", "tokens / step": "acceptance_length"}
    for item in measured:
        key = keys.get(item["name"])
        item["published"] = [
            f"◇ {table[key][label]:,} on {table['hardware']}" for table in published if key and label in table[key]
        ]
    return measured
