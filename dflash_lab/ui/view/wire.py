"""What the page is given: a summary of the whole trace once, then one dict per step on demand.

Both are ready for `json.dumps(..., allow_nan=False)`. A number array travels as
`{"q": "f32" | "f16", "shape": [...], "d": base64 of the little-endian values}`; a token as
`{"t": text, "v": visible form if it differs, "b": bytes in hex if it does not round-trip, "s": 1 if special}`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash_lab.core.trace.metrics import is_greedy, step_analysis, trace_metrics
from dflash_lab.core.trace.schema import SCORE_TENSORS
from dflash_lab.core.trace.whatif import successors
from dflash_lab.ui.view.layers import token_layers
from dflash_lab.ui.view.text import visible

if TYPE_CHECKING:
    from dflash_lab.core.trace.schema import Trace, TraceHeader
    from dflash_lab.core.types import StepRecord

MAX_ROWS = 64
"""Most candidates per position that are sent; the page says how many there were."""
MAX_PROMPT = 4000
"""Most characters of the prompt that are sent."""
LIMIT_SAMPLE = 32
"""Steps looked at for the common colour scale of the edge maps."""


def trace_summary(trace: Trace) -> dict[str, Any]:
    """Everything the page needs of the whole trace: header, a few numbers per step, the output's tokens."""
    header, steps = trace.header, trace.steps
    causes = [step_analysis(trace, i).cause for i in range(len(steps))]
    return {
        "v": 1,
        "name": trace.name,
        "n": len(steps),
        "status": header.status,
        "level": header.level,
        "stop": header.stop_reason,
        "greedy": is_greedy(trace),
        "chips": _chips(header),
        "warnings": list(header.warnings),
        "prompt": header.prompt[:MAX_PROMPT],
        "promptChars": len(header.prompt),
        "promptTokens": len(header.prompt_ids),
        "text": header.text,
        "output": list(header.output_ids),
        "tokens": _tokens(trace, header.output_ids),
        "layers": _layers(trace),
        "steps": {
            "start": [step.start for step in steps],
            "acc": [step.num_accepted for step in steps],
            "k": [len(step.draft_ids) for step in steps],
            "com": [step.commit_length for step in steps],
            "cause": causes,
            "ms": [_milliseconds(step) for step in steps],
        },
        "totals": _totals(trace) if steps else {},
        "edgeLimit": _edge_limit(trace),
    }


def step_wire(trace: Trace, i: int) -> dict[str, Any]:
    """Step `i` of `trace` for the page: candidates, scores, path, verdict, timings.

    Raises IndexError if there is no such step. What was not recorded is None; edge scores are sent without their
    unary part, so that a map of them shows what the selector added.
    """
    if not 0 <= i < len(trace):
        raise IndexError(f"step must be in 0..{len(trace) - 1}, got {i}")
    record, analysis = trace.steps[i], step_analysis(trace, i)
    tensors = {name: trace.tensor(name, record.index) for name in SCORE_TENSORS}
    candidates, path, target_ids = tensors["candidate_ids"], tensors["path"], tensors["target_ids"]
    ids, unary, edges = _head(candidates), _head(tensors["unary"]), _head(tensors["edges"])
    after = successors(trace, i)
    shown = [record.anchor_id, record.bonus_id, *record.draft_ids]
    for recorded in (ids, target_ids):
        shown += [] if recorded is None else recorded.ravel().tolist()
    return {
        "v": 1,
        "i": i,
        "start": record.start,
        "anchor": record.anchor_id,
        "draft": list(record.draft_ids),
        "ids": None if ids is None else ids.tolist(),
        "rows": 0 if candidates is None else candidates.shape[1],
        "tokens": _tokens(trace, shown),
        "unary": _buffer(unary, "f32"),
        "logNorm": _numbers(tensors["log_norm"]),
        "edges": None if edges is None or unary is None else _buffer(edges - unary[:, None, :], "f16"),
        "path": None if path is None else path.tolist(),
        "next": None if after is None or path is None else after.tolist(),
        "continuation": list(analysis.wanted_ids),
        "q": _buffer(_head(tensors["q"]), "f32"),
        "acc": record.num_accepted,
        "bonus": record.bonus_id,
        "committed": list(record.committed_ids),
        "target": None if target_ids is None else target_ids.tolist(),
        "targetTop2": _numbers(tensors["target_top2"]),
        "targetNorm": _numbers(tensors["target_log_norm"]),
        "targetLogit": _buffer(_head(tensors["target_logit"]), "f32"),
        "cause": analysis.cause,
        "wanted": analysis.wanted_id,
        "wantedRank": analysis.target_rank,
        "lengths": {
            "argmax": analysis.argmax_length,
            "selected": analysis.selected_length,
            "best": analysis.best_length,
            "known": analysis.known,
        },
        "ms": _milliseconds(record),
    }


def _head(tensor: np.ndarray | None) -> np.ndarray | None:
    """A per-candidate tensor cut to the rows that are sent."""
    if tensor is None:
        return None
    return tensor[:, :MAX_ROWS, :MAX_ROWS] if tensor.ndim == 3 else tensor[:, :MAX_ROWS]


def _tokens(trace: Trace, ids: Iterable[int]) -> dict[str, dict[str, Any]]:
    return {str(token_id): _token(trace, token_id) for token_id in dict.fromkeys(ids)}


def _token(trace: Trace, token_id: int) -> dict[str, Any]:
    info = trace.token(token_id)
    shown = visible(info.text)
    token: dict[str, Any] = {"t": info.text}
    if shown != info.text:
        token["v"] = shown
    if info.raw is not None:
        token["b"] = info.raw.replace(" ", "").lower()
    if info.special:
        token["s"] = 1
    return token


def _layers(trace: Trace) -> dict[str, Any] | None:
    layers = token_layers(trace)
    return None if layers is None else {"p": _buffer(layers[0], "f16"), "margin": _buffer(layers[1], "f16")}


def _buffer(array: np.ndarray | None, kind: str) -> dict[str, Any] | None:
    if array is None:
        return None
    values = array if kind == "f32" else array.clip(-65504, 65504)
    raw = values.astype({"f32": "<f4", "f16": "<f2"}[kind]).tobytes()
    return {"q": kind, "shape": list(array.shape), "d": base64.b64encode(raw).decode("ascii")}


def _numbers(array: np.ndarray | None) -> list[Any] | None:
    """A small array as a list, with None for what JSON has no number for."""
    if array is None:
        return None
    return [_numbers(row) if getattr(row, "ndim", 0) else _number(row) for row in array]


def _number(value: float | None) -> float | None:
    return round(float(value), 5) if value is not None and math.isfinite(value) else None


def _milliseconds(record: StepRecord) -> list[float | None]:
    times = record.timings
    return [_number(value) for value in (times.draft_ms, times.select_ms, times.verify_ms, times.commit_ms)]


def _chips(header: TraceHeader) -> list[list[str]]:
    """Label and value of what the run was, for the header line."""
    sampling = header.request.get("sampling", {})
    drafter = header.drafter or {}
    chips = [["target", header.target.get("name")], ["drafter", drafter.get("name") or "none"]]
    if header.drafter:
        chips += [["block", header.block_size], ["candidates", header.num_candidates]]
    chips.append(["temperature", sampling.get("temperature", 0)])
    chips += [[key, header.backends.get(key)] for key in ("device", "dtype", "forward", "loop", "kernels")]
    if sampling.get("temperature"):
        chips.append(["seed", header.request.get("seed")])
    known = [(label, value) for label, value in chips if value is not None]
    return [[label, f"{value:g}" if isinstance(value, float) else str(value)] for label, value in known]


def _totals(trace: Trace) -> dict[str, Any]:
    """The averages of the header line, each under the name of its definition."""
    metrics = trace_metrics(trace)
    return {
        "acceptanceLength": _number(metrics.mean_acceptance_length),
        "acceptanceRate": _number(metrics.acceptance_rate),
        "tokens": metrics.num_output_tokens,
        "tokS": _number(metrics.decode_tok_s),
        "causes": dict(metrics.causes),
    }


def _edge_limit(trace: Trace) -> float:
    """Half-width of the edge maps' colour scale, one per trace: the 95th percentile of |edge - unary|."""
    stride = max(1, len(trace) // LIMIT_SAMPLE)
    largest = 0.0
    for record in trace.steps[::stride]:
        edges, unary = (_head(trace.tensor(name, record.index)) for name in ("edges", "unary"))
        if edges is None or unary is None or not edges.size:
            continue
        added = np.abs(edges - unary[:, None, :])
        finite = added[np.isfinite(added)]
        if finite.size:
            largest = max(largest, float(np.percentile(finite, 95)))
    return round(largest, 4) or 1.0
