"""Live servers in the terminal: who answers, a run's numbers, the card's tables."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_lab.core.serve.compare import Cell, Comparison
from dflash_lab.core.serve.published import DATASET_LABELS, PublishedTable
from dflash_lab.core.serve.records import ServerInfo
from dflash_lab.core.serve.report import Group, RunReport, Spread
from dflash_lab.core.serve.stats import SOURCES
from dflash_lab.core.serve.texts import VERDICTS, TextVerdict
from dflash_lab.core.serve.verdicts import SPECULATION
from dflash_lab.ui.view.live import POSITIONS, numbers, settings_line
from dflash_lab.ui.view.live_tables import acceptance_load, estimate_text, load_words
from dflash_lab.ui.view.text import printable


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, the first column to the left and the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def info_text(info: ServerInfo) -> str:
    """Who answers at a URL."""
    speculation = {True: "on", False: "off", None: "not told"}[info.speculation]
    drafts = "" if info.drafts_per_step is None else f", {info.drafts_per_step} drafts per step"
    where = f" ({info.hardware_from}'s word)" if info.hardware_from in ("server", "nvml") else ""
    count = f"{info.num_devices}x " if info.num_devices else ""
    rows = [
        ("server", f"{info.backend} {info.version or '(version not told)'} at {info.url}"),
        ("model", f"{info.model}, at most {info.max_model_len or 'an unknown number of'} tokens"),
        ("target", info.target or "not told"),
        ("speculation", f"{speculation}: {info.method}{drafts}"),
        ("drafter", info.drafter or ("none" if info.speculation is False else "not told")),
        ("hardware", f"{count}{info.hardware}{where}" if info.hardware else "not told"),
        ("runs at a time", str(info.max_running_requests or "not told")),
        ("acceptance from", "; ".join(SOURCES[name] for name in info.statistics) or "nowhere"),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    lines += [f"{name:<{width}}  {value}" for name, value in info.settings.items()]
    return printable("\n".join(lines))


def report_text(report: RunReport, info: ServerInfo) -> str:
    """The numbers of a run."""
    head = f"{report.label} · {report.name} · {info.hardware or 'hardware not told'} · {report.status}"
    answered = report.num_requests - report.num_failed
    lines = [head, f"{answered} of {report.num_prompts} answered, {report.num_failed} failed"]
    if report.failures:
        lines.append("failures: " + ", ".join(f"{kind} {count}" for kind, count in report.failures.items()))
    lines.append(SPECULATION[report.speculation])
    known = [item for item in numbers(report) if item["value"] is not None]
    width = max((len(item["name"]) for item in known), default=0)
    lines += [f"{item['name']:<{width}}  {item['value']:10,.2f} {item['unit']:<5}  {item['meaning']}" for item in known]
    if report.acceptance is not None and report.acceptance.survival:
        lines += _positions(report)
    spreads = {"first token": report.ttft_ms, "per token": report.tpot_ms, "between chunks": report.chunk_gap_ms,
               "whole answer": report.latency_ms}  # fmt: skip
    lines += _spreads({name: spread for name, spread in spreads.items() if spread is not None})
    for title, groups in (
        ("category", report.categories if len(report.categories) > 1 else ()),
        ("prompt from cache", report.by_cached_share),
        ("prompt tokens", report.by_prompt_tokens),
    ):
        lines += _groups(title, groups)
    lines += [f"broken: {text}" for text in report.broken[:3]]
    if report.broken:
        lines.append(f"{len(report.broken)} broken identities: no acceptance is given")
    return printable("\n".join(lines))


def comparison_text(comparison: Comparison) -> str:
    """The card's tables."""
    cells = comparison.cells
    labels = list(dict.fromkeys(cell.label for cell in cells))
    lines = [f"{comparison.target} on {comparison.hardware}"]
    lines += _acceptance_table(cells, labels)
    for load in dict.fromkeys(cell.load for cell in cells):
        lines += _throughput_table([cell for cell in cells if cell.load == load], labels, load)
    for dataset, verdict in comparison.texts.items():
        lines += _texts(dataset, verdict)
    for published in comparison.published:
        lines += ["", "published, beside and not to be divided by unless hardware and settings are the same:"]
        lines += published_text(published).splitlines()
    if not comparison.published:
        lines += ["", f"nothing is published of {comparison.target} that is known here"]
    return printable("\n".join(lines))


def published_text(published: PublishedTable) -> str:
    """A published table with its source."""
    lines = [
        f"{published.target} with {published.drafter or 'no named drafter'}: {published.hardware}, {published.runtime}",
        f"{settings_line(published.block_size, published.sampling)}, "
        f"at most {published.max_new_tokens or 'an unstated number of'} new tokens",
        f"source: {published.source} ({published.confidence})",
    ]
    datasets = list(DATASET_LABELS.values())
    if published.acceptance_length:
        lines += ["", f"acceptance length: {published.acceptance_definition}"]
        methods = list(published.acceptance_length)
        rows = [[name, *(_two(published.acceptance_length[m].get(name)) for m in methods)] for name in datasets]
        lines += table([["", *methods], *rows])
    for concurrency, by_method in published.throughput_tok_s.items():
        lines += ["", f"tok/s at concurrency {concurrency} (×, divided here): {published.throughput_definition}"]
        rows = [[name, *_with_speedups([by_method[m].get(name) for m in by_method])] for name in datasets]
        lines += table([["", *by_method], *rows])
    if not published.acceptance_length and not published.throughput_tok_s:
        lines.append("its tables were not found: no numbers are shown")
    return "\n".join(lines)


def _acceptance_table(cells: Sequence[Cell], labels: Sequence[str]) -> list[str]:
    """Acceptance at the lowest load measured, as the card gives it at concurrency 1."""
    load = acceptance_load(cells)
    if load is None:
        return ["", "acceptance length: no run reports any"]
    at_load = {(cell.dataset, cell.label): cell for cell in cells if cell.load == load and cell.acceptance is not None}
    shown = [label for label in labels if any(key[1] == label for key in at_load)]
    rows = [
        [
            dataset,
            *(estimate_text(cell.acceptance) if (cell := at_load.get((dataset, label))) else "–" for label in shown),
        ]
        for dataset in dict.fromkeys(key[0] for key in at_load)
    ]
    title = f"acceptance length at load {load}: mean of requests of completion tokens / steps, 95 % interval"
    return ["", title, *table([["", *shown], *rows])]


def _throughput_table(cells: Sequence[Cell], labels: Sequence[str], load: str) -> list[str]:
    by_key = {(cell.dataset, cell.label): cell for cell in cells}
    shown = [label for label in labels if any(key[1] == label for key in by_key)]
    rows = [
        [dataset, *(_throughput(by_key.get((dataset, label))) for label in shown)]
        for dataset in dict.fromkeys(cell.dataset for cell in cells)
    ]
    title = f"tok/s at {load_words(load)} (times autoregressive, 95 % interval)"
    lines = ["", title, *table([["", *shown], *rows])]
    for cell in cells:
        if cell.of_published is not None:
            lines.append(
                f"{cell.dataset}, {cell.label}: {cell.of_published:.1%} of the published {cell.published_tok_s:,.1f}"
            )
    return lines


def _throughput(cell: Cell | None) -> str:
    if cell is None or cell.report.throughput_tok_s is None:
        return "–"
    text = f"{cell.report.throughput_tok_s:,.1f}"
    return text if cell.speedup is None else f"{text} ({estimate_text(cell.speedup, '×')})"


def _texts(dataset: str, verdict: TextVerdict) -> list[str]:
    if verdict.verdict == "not compared":
        return []
    lines = ["", f"greedy texts of {dataset}: {VERDICTS[verdict.verdict]}"]
    lines += [
        f"  {pair.a} against {'its repetition' if pair.a == pair.b else pair.b}: "
        f"{pair.num_different} of {pair.num_compared} differ"
        for pair in verdict.pairs
    ]
    if verdict.unrepeated:
        lines.append(f"  not repeated: {'; '.join(verdict.unrepeated)}")
    return lines


def _positions(report: RunReport) -> list[str]:
    acceptance = report.acceptance
    assert acceptance is not None
    rows = [["draft", *(str(i) for i in range(1, len(acceptance.survival) + 1))]]
    rows.append(["accepted up to here", *(f"{share:.3f}" for share in acceptance.survival)])
    rows.append(
        ["accepted if reached", *("–" if rate is None else f"{rate:.3f}" for rate in acceptance.conditional_rate)]
    )
    rows.append(["of steps", *(str(count) for count in acceptance.conditional_n)])
    return ["", f"by position ({POSITIONS})", *table(rows)]


def _spreads(spreads: dict[str, Spread]) -> list[str]:
    if not spreads:
        return []
    rows = [["ms", "mean", "p50", "p90", "p99", "n"]]
    for name, spread in spreads.items():
        values = (spread.mean, spread.p50, spread.p90, spread.p99)
        rows.append([name, *(f"{value:.1f}" for value in values), str(spread.n)])
    return ["", *table(rows)]


def _groups(title: str, groups: Sequence[Group]) -> list[str]:
    if not groups:
        return []
    rows = [[title, "requests", "tokens", "acceptance length", "tokens / step", "tok/s whole", "tok/s decode"]]
    for group in groups:
        numbers = (group.mean_acceptance_length, group.zlab_acceptance_length, group.request_tok_s, group.decode_tok_s)
        tokens = "–" if group.output_tokens is None else str(group.output_tokens)
        rows.append([group.name, str(group.num_requests), tokens, *map(_two, numbers)])
    return ["", *table(rows)]


def _with_speedups(values: Sequence[float | None]) -> list[str]:
    """Tokens per second, each but the first with its ratio to the first."""
    first = values[0] if values else None
    return [
        "–" if value is None else f"{value:,.1f}" + (f" ({value / first:.2f}×)" if i and first else "")
        for i, value in enumerate(values)
    ]


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
