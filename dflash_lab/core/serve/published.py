"""The tables that were published about DFlash, each with its hardware, settings and source. Nothing is estimated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "assets" / "published.json"


@dataclass(frozen=True)
class PublishedTable:
    """Acceptance lengths of one target, as somebody published them."""

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
        )
        for table in tables
    )


def tables_of(target: str) -> tuple[PublishedTable, ...]:
    """The tables of the target called `target`: a hub name, or a folder or file named like one."""
    name = target.rstrip("/").rsplit("/", 1)[-1].lower()
    return tuple(table for table in published_tables() if table.target.rsplit("/", 1)[-1].lower() == name)
