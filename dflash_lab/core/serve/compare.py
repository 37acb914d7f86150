"""The card's tables out of runs of one's own: acceptance, throughput by concurrency, speed-up over autoregressive.

Runs are put side by side only if they were made alike; the first setting that differs is named, and nothing is shown.
Published numbers stand beside them with their hardware; a ratio to one needs the same hardware and settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dflash_lab.core.errors import RunError
from dflash_lab.core.serve.published import BASELINE, DATASET_LABELS, PublishedTable, differences, tables_of
from dflash_lab.core.serve.records import RequestRecord
from dflash_lab.core.serve.report import RunReport, report, tokens_per_step
from dflash_lab.core.serve.runfile import Run
from dflash_lab.core.serve.texts import TextVerdict, compare_texts

METHODS = (BASELINE, "MTP", "EAGLE-3", "DSpark", "DFlash", "DFlash 2")
"""Columns of a table, in their order."""

RESAMPLES = 1000
"""Bootstrap samples behind an interval."""


@dataclass(frozen=True)
class Estimate:
    """A value with the 95 % interval of a bootstrap over prompts."""

    value: float
    """As measured."""
    low: float | None
    """Lower end; None for fewer than two prompts."""
    high: float | None
    """Upper end."""


@dataclass(frozen=True)
class Cell:
    """One run in the tables."""

    dataset: str
    """Data set, by the tables' name."""
    load: str
    """`1`, `8`, ... requests at a time, or `2/s` arriving."""
    label: str
    """Method."""
    report: RunReport
    """All its numbers."""
    acceptance: Estimate | None
    """Mean over requests of completion tokens / steps; None without speculation."""
    speedup: Estimate | None
    """Throughput by the autoregressive run's of the same prompts and load; None for that run, or without one."""
    published_tok_s: float | None
    """The published throughput of this cell; None if there is none."""
    of_published: float | None
    """Throughput by the published; None unless hardware and settings are the same."""


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side."""

    target: str
    """The target of all of them."""
    hardware: str
    """What all of them ran on."""
    cells: tuple[Cell, ...]
    """One for each run that the tables hold."""
    published: tuple[PublishedTable, ...]
    """What is published of this target."""
    texts: Mapping[str, TextVerdict]
    """Data set to what its greedy texts say."""
    warnings: tuple[str, ...]
    """What the tables should not be read without."""


def compare(runs: Sequence[Run]) -> Comparison:
    """Two runs or more side by side. Raises RunError if they are not alike."""
    if len(runs) < 2:
        raise RunError("expected two runs or more to compare")
    return tabulate(runs)


def tabulate(runs: Sequence[Run]) -> Comparison:
    """The tables of one run or more. Raises RunError if they are not alike."""
    check_alike(runs)
    cells: dict[tuple[str, str, str], Run] = {}
    warnings = []
    for run in runs:
        key = (_dataset(run), _load(run), run.header.label)
        if key in cells:
            warnings.append(f"{run.path.name} repeats {cells[key].path.name}: only its texts are compared")
        cells.setdefault(key, run)
    first = runs[0].header.server
    reports = {key: report(run) for key, run in cells.items()}
    tables = tables_of(first.target or first.model)
    made = []
    for key, run in sorted(cells.items(), key=lambda item: _order(*item[0])):
        base = next((other for k, other in cells.items() if k[:2] == key[:2] and _is_baseline(other)), None)
        made.append(_cell(key, run, reports[key], None if base is run else base, tables))
    by_dataset = {name: [run for run in runs if _dataset(run) == name] for name, _, _ in cells}
    return Comparison(
        target=first.target or first.model,
        hardware=first.hardware_text,
        cells=tuple(made),
        published=tables,
        texts={name: compare_texts(group) for name, group in by_dataset.items()},
        warnings=(*warnings, *_warnings(list(cells.values()), reports)),
    )


def bootstrap(num: int, value: Callable[[np.ndarray], float]) -> tuple[float, float] | None:
    """95 % interval of `value`, a function of indices drawn from `num` prompts with replacement."""
    if num < 2:
        return None
    draws = np.random.default_rng(0).integers(0, num, (RESAMPLES, num))
    low, high = np.percentile([value(indices) for indices in draws], (2.5, 97.5))
    return float(low), float(high)


def check_alike(runs: Sequence[Run]) -> None:
    """Raises RunError with the first setting that is not the same in all runs."""
    plan = ("max_new_tokens", "temperature", "top_p", "top_k", "reasoning", "stream", "salt", "seed")
    settings: dict[str, Callable[[Run], object]] = {
        "target": lambda run: run.header.server.target or run.header.server.model,
        "hardware": lambda run: run.header.server.hardware_text,
        "server": lambda run: run.header.server.backend,
        **{name: (lambda run, name=name: getattr(run.header.plan, name)) for name in plan},
    }
    for name, value in settings.items():
        _same(name, runs, value)
    for group in {_dataset(run): [r for r in runs if _dataset(r) == _dataset(run)] for run in runs}.values():
        for load in {_load(run) for run in group}:
            alike = [run for run in group if _load(run) == load]
            _same(f"prompts of {_dataset(alike[0])}", alike, lambda run: run.header.prompt_ids)
        _check_rendering(group)


def _same(name: str, runs: Sequence[Run], value: Callable[[Run], object]) -> None:
    for run in runs[1:]:
        if value(run) != value(runs[0]):
            shown = ("", "") if name.startswith("prompts") else (f" ({value(runs[0])!r}", f", {value(run)!r})")
            raise RunError(
                f"not comparable: {name} differs between {runs[0].path.name} and {run.path.name}{''.join(shown)}; "
                "measure both alike"
            )


def _check_rendering(runs: Sequence[Run]) -> None:
    """The same prompt must have been the same number of tokens, or the chat template was rendered differently."""
    seen: dict[str, tuple[int, str]] = {}
    for run in runs:
        for record in run.requests:
            if not record.ok or record.prompt_tokens is None:
                continue
            tokens, name = seen.setdefault(record.prompt_id, (record.prompt_tokens, run.path.name))
            if tokens != record.prompt_tokens:
                raise RunError(
                    f"not comparable: prompt {record.prompt_id} has {tokens} tokens in {name} and "
                    f"{record.prompt_tokens} in {run.path.name}: the chat template was rendered differently"
                )


def _cell(
    key: tuple[str, str, str], run: Run, numbers: RunReport, base: Run | None, tables: Sequence[PublishedTable]
) -> Cell:
    dataset, load, label = key
    table, published = _published(tables, dataset, load, label)
    same = table is not None and not differences(table, run.header.server, run.header.plan)
    return Cell(
        dataset=dataset,
        load=load,
        label=label,
        report=numbers,
        acceptance=_acceptance(run, numbers),
        speedup=_speedup(run, base, numbers) if base is not None and run.header.plan.rate is None else None,
        published_tok_s=published,
        of_published=numbers.throughput_tok_s / published if same and published and numbers.throughput_tok_s else None,
    )


def _acceptance(run: Run, numbers: RunReport) -> Estimate | None:
    if numbers.zlab_acceptance_length is None:
        return None
    lengths = np.array([length for r in run.requests if r.ok and (length := tokens_per_step(r)) is not None])
    interval = bootstrap(len(lengths), lambda indices: lengths[indices].mean())
    return Estimate(numbers.zlab_acceptance_length, *(interval or (None, None)))


def _speedup(run: Run, base: Run, numbers: RunReport) -> Estimate | None:
    """Throughput ratio; its interval draws prompts that both answered, and lets each keep its overlap of requests.

    At a fixed concurrency throughput is tokens / (time of all requests / how many ran at a time on average).
    """
    mine, theirs = numbers.throughput_tok_s, report(base).throughput_tok_s
    if not mine or not theirs:
        return None
    both = _answered_by_both(run, base)
    tokens, seconds = (
        np.array([[getattr(record, name) for record in pair] for pair in both], dtype=float).reshape(-1, 2)
        for name in ("completion_tokens", "duration_s")
    )

    def ratio(indices: np.ndarray) -> float:
        ours, other = tokens[indices].sum(0) / seconds[indices].sum(0)
        return float(ours / other)

    interval = bootstrap(len(both), ratio)
    if interval is None:
        return Estimate(mine / theirs, None, None)
    scale = mine / theirs / ratio(np.arange(len(both)))
    return Estimate(mine / theirs, interval[0] * scale, interval[1] * scale)


def _answered_by_both(run: Run, base: Run) -> list[tuple[RequestRecord, RequestRecord]]:
    others = {record.index: record for record in base.requests if record.ok and record.completion_tokens}
    return [(r, others[r.index]) for r in run.requests if r.ok and r.completion_tokens and r.index in others]


def _warnings(runs: Sequence[Run], reports: Mapping[tuple[str, str, str], RunReport]) -> list[str]:
    found = [
        f"{run.path.name} is {run.status}: {len(run.requests)} of {run.header.plan.num_prompts} requests"
        for run in runs
        if run.status != "complete"
    ]
    drafts = {number.drafts_per_step for number in reports.values() if number.zlab_acceptance_length is not None}
    if len(drafts) > 1:
        shown = ", ".join(str(count) for count in sorted(drafts, key=str))
        found.append(
            f"drafts per step differ ({shown}): compare acceptance lengths, not rates, whose denominator they are"
        )
    versions = {run.header.server.version for run in runs}
    if len(versions) > 1:
        found.append(f"versions of the server differ: {', '.join(sorted(map(str, versions)))}")
    if not any(_is_baseline(run) for run in runs):
        found.append("no run without speculation: no speed-up can be given")
    found += _about_caches(runs)
    for run, number in zip(runs, reports.values(), strict=True):
        if number.num_failed:
            found.append(f"{run.path.name}: {number.num_failed} of {number.num_requests} requests failed")
        found += [f"{run.path.name}: {text}" for text in number.broken[:1]]
    return found


def _about_caches(runs: Sequence[Run]) -> list[str]:
    """A prefix cache that works in one arm and not in the other makes speed-ups of the whole request untrue."""
    shares: dict[bool, list[int]] = {True: [], False: []}
    for run in runs:
        known = [record.cached_tokens for record in run.requests if record.ok and record.cached_tokens is not None]
        if known:
            shares[_is_baseline(run)].append(sum(known))
    if not shares[True] or not shares[False]:
        return []
    if any(shares[True]) and not any(shares[False]):
        return ["the prefix cache hits without speculation and never with it: compare decode tok/s too, or use --salt"]
    return []


def _published(
    tables: Sequence[PublishedTable], dataset: str, load: str, label: str
) -> tuple[PublishedTable | None, float | None]:
    """The published throughput of a cell with its table."""
    for table in tables:
        value = table.throughput_tok_s.get(load, {}).get(label, {}).get(dataset)
        if value is not None:
            return table, value
    return None, None


def _order(dataset: str, load: str, label: str) -> tuple[int, float, int]:
    """The card's order of rows, tables and columns; one's own names after them, as they come."""
    datasets = list(DATASET_LABELS.values())
    at_a_time = float(load) if load.isdigit() else math.inf
    return (
        datasets.index(dataset) if dataset in datasets else len(datasets),
        at_a_time,
        METHODS.index(label) if label in METHODS else len(METHODS),
    )


def _is_baseline(run: Run) -> bool:
    return run.header.server.speculation is False or run.header.label == BASELINE


def _dataset(run: Run) -> str:
    return DATASET_LABELS.get(run.header.plan.dataset, run.header.plan.dataset)


def _load(run: Run) -> str:
    plan = run.header.plan
    return f"{plan.rate:g}/s" if plan.rate is not None else str(plan.concurrency)
