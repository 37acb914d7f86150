"""Two traces as the Compare page is given them: JSON-ready, every number under the name of its definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dflash_lab.core.serve.published import PublishedTable, published_tables, tables_of
from dflash_lab.core.trace.compare import VERDICTS, Comparison, compare
from dflash_lab.ui.view.text import visible

if TYPE_CHECKING:
    from dflash_lab.core.trace.schema import Trace

CONTEXT = 12
"""Tokens of common text shown before the first divergence."""

METRIC_WORDS = {
    "num_steps": "verification steps",
    "num_output_tokens": "output tokens",
    "mean_acceptance_length": "acceptance length",
    "zlab_list_mean": "z-lab list mean",
    "zlab_acceptance_length": "output tokens / step",
    "sglang_accept_length": "SGLang accept length",
    "acceptance_rate": "acceptance rate",
    "argmax_acceptance_length": "rank-1 path would keep",
    "best_path_acceptance_length": "best path would keep",
    "decode_tok_s": "tok/s",
    "steps_per_s": "steps per second",
}
"""How the metrics of a comparison are called on the page."""


def comparison_wire(a: Trace, b: Trace) -> dict[str, Any]:
    """What the page shows of two traces beyond their steps: verdict, configuration, numbers, published numbers."""
    found = compare(a, b)
    return {
        "comparable": found.comparable,
        "reasons": list(found.reasons),
        "notes": list(found.notes),
        "verdict": found.verdict,
        "verdictText": VERDICTS[found.verdict],
        "numCompared": found.num_compared,
        "divergence": _divergence(found, a, b),
        "differences": [[item.name, _shown(item.a), _shown(item.b)] for item in found.differences],
        "metrics": [[METRIC_WORDS[item.name], _shown(item.a), _shown(item.b)] for item in found.metrics],
        "published": _published(found, a, b),
    }


def _divergence(found: Comparison, a: Trace, b: Trace) -> dict[str, Any] | None:
    at = found.divergence
    if at is None:
        return None
    before = a.header.output_ids[max(0, at.index - CONTEXT) : at.index]
    return {
        "index": at.index,
        "before": "".join(visible(a.token(token_id).text) for token_id in before),
        "a": visible(a.token(at.a_id).text),
        "b": visible(b.token(at.b_id).text),
        "marginA": _shown(at.margin_a),
        "marginB": _shown(at.margin_b),
    }


def _published(found: Comparison, a: Trace, b: Trace) -> dict[str, Any]:
    """Measured values in the published tables' own definition, and the tables, those of these targets first."""
    measured = next(item for item in found.metrics if item.name == "zlab_acceptance_length")
    names = dict.fromkeys(str(trace.header.target.get("name")) for trace in (a, b))
    fitting = [table for name in names for table in tables_of(name)]
    others = [table for table in published_tables() if table not in fitting]
    return {
        "measured": [_shown(measured.a), _shown(measured.b)],
        "settings": [_settings(trace) for trace in (a, b)],
        "targets": list(names),
        "tables": [_table(table, table in fitting) for table in (*fitting, *others)],
    }


def _settings(trace: Trace) -> str:
    header = trace.header
    temperature = header.request.get("sampling", {}).get("temperature", 0)
    what = f"block {header.block_size}" if header.drafter else "no drafter"
    return f"one prompt, {what}, temperature {temperature:g}, {header.backends.get('device', 'device not recorded')}"


def _table(table: PublishedTable, fits: bool) -> dict[str, Any]:
    datasets = list(dict.fromkeys(name for row in table.acceptance_length.values() for name in row))
    sampling = ", ".join(f"{name} {value}" for name, value in table.sampling.items())
    return {
        "fits": fits,
        "target": table.target,
        "settings": f"block {table.block_size}, {sampling}, hardware: {table.hardware}",
        "source": table.source,
        "confidence": table.confidence,
        "definition": table.acceptance_definition,
        "datasets": datasets,
        "rows": [[method, *(_shown(row.get(n)) for n in datasets)] for method, row in table.acceptance_length.items()],
    }


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
