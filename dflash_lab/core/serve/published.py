"""The tables that were published about DFlash, each with its hardware, settings and source. Nothing is estimated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dflash_lab.core.serve.records import LoadPlan, ServerInfo

FILE = Path(__file__).parents[2] / "assets" / "published.json"


@dataclass(frozen=True)
class PublishedTable:
    """What somebody published of one target: acceptance lengths, and throughput where there is some."""

    id: str
    """Short name."""
    target: str
    """The target's name on the Hugging Face hub."""
    drafter: str | None
    """The drafter's, where one is named."""
    hardware: str
    """What it ran on; `not stated` where the source does not say."""
    block_size: int
    """L, with the anchor."""
    sampling: Mapping[str, Any]
    """Temperature, filters, reasoning mode."""
    source: str
    """Where the numbers stand."""
    confidence: str
    """How sure they are: published, or second-hand, or not found."""
    acceptance_definition: str
    """What its acceptance length is a mean of."""
    acceptance_length: Mapping[str, Mapping[str, float]]
    """Method to data set to tokens per verification step; empty where the numbers were not found."""
    throughput_tok_s: Mapping[str, Mapping[str, Mapping[str, float]]]
    """Concurrency to method to data set to tokens per second; empty where the numbers were not found."""
    throughput_definition: str
    """What its throughput is."""
    runtime: str
    """The server and its settings."""
    max_new_tokens: int | None
    """Most tokens of an answer; None where not stated."""
    samples: Mapping[str, int]
    """Concurrency to requests; empty where not stated."""


BASELINE = "Autoregressive"
"""The method that speed-ups are against."""

DATASET_LABELS = {
    "gsm8k": "GSM8K",
    "math500": "MATH-500",
    "humaneval": "HumanEval",
    "mbpp": "MBPP",
    "mt-bench": "MT-Bench",
}
"""Our names of the data sets to those in the tables."""


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """All tables that ship with the package."""
    tables = json.loads(FILE.read_text(encoding="utf-8"))["tables"]
    return tuple(
        PublishedTable(
            id=table["id"],
            target=table["target"],
            drafter=table.get("drafter"),
            hardware=table["hardware"],
            block_size=table["block_size"],
            sampling=table["sampling"],
            source=table["source"],
            confidence=table["confidence"],
            acceptance_definition=table.get("acceptance_definition", "not stated"),
            acceptance_length=table["acceptance_length"] or {},
            throughput_tok_s=table["throughput_tok_s"] or {},
            throughput_definition=table.get("throughput_definition", "not stated"),
            runtime=table.get("runtime", "not stated"),
            max_new_tokens=table.get("max_new_tokens"),
            samples=table.get("samples", {}),
        )
        for table in tables
    )


def tables_of(target: str) -> tuple[PublishedTable, ...]:
    """The tables of the target called `target`: a hub name, or a folder or file named like one."""
    name = target.rstrip("/").rsplit("/", 1)[-1].lower()
    return tuple(table for table in published_tables() if table.target.rsplit("/", 1)[-1].lower() == name)


def differences(table: PublishedTable, server: ServerInfo, plan: LoadPlan) -> tuple[str, ...]:
    """How a measurement was made unlike a published table, in words; a ratio to its numbers needs this to be empty."""
    reasoning = {True: "on", False: "off"}.get(table.sampling.get("thinking"))
    pairs = [(name, table.sampling.get(name), getattr(plan, name)) for name in ("temperature", "top_p", "top_k")]
    pairs += [
        ("reasoning", table.sampling.get("reasoning", reasoning), plan.reasoning),
        ("most new tokens", table.max_new_tokens, plan.max_new_tokens),
    ]
    if server.speculation is not False:
        pairs.append(("drafts per step", table.block_size - 1, server.drafts_per_step))
    found = [] if same_hardware(table, server) else [_unlike("hardware", table.hardware, server.hardware_text)]
    return (*found, *(_unlike(name, there, here) for name, there, here in pairs if there != here))


def same_hardware(table: PublishedTable, server: ServerInfo) -> bool:
    """Whether a server runs on as many of the same devices."""
    number, _, name = table.hardware.partition("x ")
    here = server.hardware
    return (
        bool(here)
        and number.isdigit()
        and name.lower() == str(here).lower()
        and server.num_devices in (None, int(number))
    )


def _unlike(name: str, there: Any, here: Any) -> str:
    told = [
        "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        for value in (there, here)
    ]
    return f"{name.replace('_', '-')} {told[0]} there, {told[1]} here"
