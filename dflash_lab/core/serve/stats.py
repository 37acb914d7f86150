"""Verification statistics out of an answer, whatever the server and its release call them, and whether they add up.

SGLang renamed its fields twice; all three generations are read, and a field that is missing stays None. vLLM reports
other estimators under similar names: see `records.CONVENTIONS`. The counts are what both agree on:

    acceptance length = 1 + accepted / steps        tokens per step = completion tokens / steps
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dflash_lab.core.acceptance import Acceptance, from_histograms
from dflash_lab.core.serve.records import ServerStats

SOURCES = {
    "meta_info": "choices[0].meta_info of each answer (SGLang; not when streamed)",
    "sglext": "sglext.spec_tokens_details of each answer (SGLang 0.5.19 or newer)",
    "vllm_metrics": "metrics.speculative_decoding of each answer (vLLM with --per-request-spec-decode-metrics)",
    "metrics": "counters at /metrics, over the whole run",
    "server_info": "avg_spec_accept_length at /server_info, over the server's life",
}
"""Where acceptance statistics may stand."""

_SGLANG_NAMES = {
    "sglang >= 0.5.12": ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
    "sglang 0.5.11": ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
    "sglang <= 0.5.10": ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
}
"""Generation to its names of accepted, proposed and histogram, the newest first."""

TOLERANCE = 0.005
"""Largest difference between a reported ratio and the same from counts: some servers round to two digits."""


def stats_of(answer: Mapping[str, Any], completion_tokens: int | None) -> ServerStats | None:
    """Statistics of a whole answer, or of the closing chunks of a stream put together; None if it has none."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    meta = first.get("meta_info")
    if isinstance(meta, Mapping) and any(name.startswith("spec_") for name in meta):
        return sglang_stats(meta, "meta_info", completion_tokens)
    extension = answer.get("sglext")
    details = extension.get("spec_tokens_details") if isinstance(extension, Mapping) else None
    if isinstance(details, list):  # one for each choice; we ask for one
        details = details[0] if details else None
    if isinstance(details, Mapping):
        return sglang_stats(details, "sglext", completion_tokens)
    metrics = answer.get("metrics")
    details = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
    return vllm_stats(details) if isinstance(details, Mapping) else None


def sglang_stats(fields: Mapping[str, Any], source: str, completion_tokens: int | None) -> ServerStats:
    """Statistics under any generation of SGLang's names."""
    faults: list[str] = []
    warnings: list[str] = []
    generation = next((name for name, keys in _SGLANG_NAMES.items() if keys[0] in fields), "sglang")
    accepted, proposed = (_by_any_name(fields, position, faults, warnings) for position in (0, 1))
    steps = _count(fields, "spec_verify_ct", faults)
    stats = ServerStats(
        source=source,
        names=generation,
        num_steps=steps,
        num_accepted=accepted,
        num_proposed=proposed,
        histogram=_histogram(fields, ("spec_correct_drafts_histogram", "spec_accept_histogram"), faults),
        drafts_per_step=proposed // steps if steps and proposed else None,
        reported_length=_number(fields, "spec_accept_length", faults),
        reported_rate=_number(fields, "spec_accept_rate", faults),
        convention="tokens_per_step" if "spec_accept_length" in fields else None,
    )
    faults += broken_identities(stats, completion_tokens)
    if steps and proposed is not None and proposed % steps:
        faults.append(f"proposed = steps * drafts per step: {proposed} is no multiple of {steps}")
    return dataclasses.replace(stats, warnings=tuple(warnings), broken=tuple(faults))


def vllm_stats(fields: Mapping[str, Any]) -> ServerStats:
    """Statistics of one request as vLLM names them."""
    faults: list[str] = []
    stats = ServerStats(
        source="vllm_metrics",
        names="vllm",
        num_steps=_count(fields, "num_spec_steps", faults),
        num_accepted=_count(fields, "num_accepted_draft_tokens", faults),
        num_proposed=_count(fields, "num_draft_tokens", faults),
        histogram=_histogram(fields, ("acceptance_histogram",), faults),
        drafts_per_step=_count(fields, "num_spec_tokens", faults),
        reported_length=_number(fields, "mean_acceptance_length", faults),
        reported_rate=_number(fields, "draft_acceptance_rate", faults),
        convention="accepted_per_step" if "mean_acceptance_length" in fields else None,
    )
    return dataclasses.replace(stats, broken=(*faults, *broken_identities(stats, None)))


def broken_identities(stats: ServerStats, completion_tokens: int | None) -> list[str]:
    """Identities that must hold between the counts, each broken one in words; what is not reported is not checked."""
    steps, accepted, proposed = stats.num_steps, stats.num_accepted, stats.num_proposed
    broken = []

    def check(identity: str, expected: float, found: float, tolerance: float = 0) -> None:
        if not math.isclose(expected, found, rel_tol=0, abs_tol=tolerance):
            broken.append(f"{identity}: {expected:.5g} expected, {found:.5g} reported")

    if stats.histogram is not None:
        if steps is not None:
            check("steps = sum(histogram)", sum(stats.histogram), steps)
        if accepted is not None:
            check("accepted = sum(i * histogram[i])", sum(i * n for i, n in enumerate(stats.histogram)), accepted)
        if stats.drafts_per_step is not None and len(stats.histogram) > stats.drafts_per_step + 1:
            check("histogram has at most 1 + drafts per step entries", stats.drafts_per_step + 1, len(stats.histogram))
    if accepted is not None and proposed is not None:
        if accepted > proposed:
            broken.append(f"accepted <= proposed: {accepted} of {proposed} reported")
        if proposed and stats.reported_rate is not None:
            check("acceptance rate = accepted / proposed", accepted / proposed, stats.reported_rate, TOLERANCE)
    if steps and stats.reported_length is not None:
        if stats.convention == "accepted_per_step" and accepted is not None:
            check("acceptance length = 1 + accepted / steps", 1 + accepted / steps, stats.reported_length, TOLERANCE)
        if stats.convention == "tokens_per_step" and completion_tokens is not None:
            check("accept length = tokens / steps", completion_tokens / steps, stats.reported_length, TOLERANCE)
    return broken


def pooled(stats: Iterable[ServerStats]) -> Acceptance | None:
    """All steps of several requests together, from their histograms; None unless all have one and a draft length.

    Where steps drafted fewer tokens than K, position by position conditional rates are unknown and left None.
    """
    table: dict[int, list[int]] = {}
    proposed: list[int | None] = []
    for item in stats:
        if item.histogram is None or item.drafts_per_step is None:
            return None
        counts = table.setdefault(item.drafts_per_step, [0] * (item.drafts_per_step + 1))
        for accepted, steps in enumerate(item.histogram):
            counts[accepted] += steps
        proposed.append(item.num_proposed)
    if not table:
        return None
    acceptance = from_histograms({length: tuple(counts) for length, counts in sorted(table.items())})
    if None in proposed or sum(proposed) == acceptance.num_proposed:
        return acceptance
    total = sum(proposed)
    return dataclasses.replace(
        acceptance,
        num_proposed=total,
        acceptance_rate=acceptance.num_accepted / total if total else None,
        conditional_rate=(None,) * len(acceptance.conditional_rate),
    )


def _by_any_name(fields: Mapping[str, Any], position: int, faults: list[str], warnings: list[str]) -> int | None:
    """A count under the newest of its names that is there; other names with another value are a warning."""
    names = [keys[position] for keys in _SGLANG_NAMES.values() if keys[position] in fields]
    values = {name: _count(fields, name, faults) for name in names}
    if len(set(values.values())) > 1:
        told = ", ".join(f"{name} = {value}" for name, value in values.items())
        warnings.append(f"the same count under several names, and not the same: {told}; {names[0]} is taken")
    return values[names[0]] if names else None


def _count(fields: Mapping[str, Any], name: str, faults: list[str]) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or value < 0:
        faults.append(f"{name} is {value!r}, expected a count")
        return None
    return int(value)


def _number(fields: Mapping[str, Any], name: str, faults: list[str]) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        faults.append(f"{name} is {value!r}, expected a number")
        return None
    return float(value)


def _histogram(fields: Mapping[str, Any], names: Sequence[str], faults: list[str]) -> tuple[int, ...] | None:
    name = next((name for name in names if fields.get(name) is not None), None)
    if name is None:
        return None
    value = fields[name]
    if not isinstance(value, list) or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value):
        faults.append(f"{name} is {value!r}, expected a list of counts")
        return None
    return tuple(value)
