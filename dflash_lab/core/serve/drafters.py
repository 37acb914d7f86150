"""What a drafter's name or its folder tells: which method it is, how many tokens it drafts per step.

block B = the anchor + K drafts: a checkpoint and SGLang count B, vLLM counts K = B - 1
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dflash_lab.core.serve.published import published_tables
from dflash_lab.core.serve.records import ServerInfo

_WORDS = {"EAGLE3": "EAGLE-3", "NGRAM": "n-gram", "DSPARK": "DSpark"}


@dataclass(frozen=True)
class DrafterFolder:
    """A drafter on this machine, as far as its config.json tells."""

    architecture: str
    """`DFlash2DraftModel`, `DFlashDraftModel`, ...; empty if not said."""
    block_size: int | None
    """B, with the anchor."""


def read_drafter(path: str) -> DrafterFolder | None:
    """The drafter in a local folder; None if there is none. The nested keys win over the top ones."""
    try:
        config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
        nested = config.get("dflash_config") or {}
        architectures = config.get("architectures") or [""]
        block_size = nested.get("block_size") or config.get("block_size")
    except (OSError, ValueError, AttributeError):
        return None
    return DrafterFolder(str(architectures[0]), block_size if isinstance(block_size, int) else None)


def published_drafts(drafter: str) -> int | None:
    """Drafts per step in the published tables of this drafter, known by the last part of its name; None if unknown."""
    name = drafter.rstrip("/").rsplit("/", 1)[-1].lower()
    for table in published_tables():
        if table.drafter and table.drafter.rsplit("/", 1)[-1].lower() == name:
            return table.block_size - 1
    return None


def method_name(info: ServerInfo, local: bool) -> str:
    """The method as the published tables call it. A server says DFLASH for both DFlash and DFlash 2."""
    if info.speculation is False:
        return "Autoregressive"
    algorithm, drafter = (info.algorithm or "").upper(), info.drafter or ""
    if algorithm == "DFLASH":
        folder = read_drafter(drafter) if local else None
        second = "DFlash2" in folder.architecture if folder else "dflash2" in drafter.lower().replace("-", "")
        return "DFlash 2" if second else "DFlash"
    if algorithm.endswith("MTP") or (algorithm in ("EAGLE", "NEXTN") and drafter in ("", info.target)):
        return "MTP"
    return _WORDS.get(algorithm, info.algorithm or "unknown")
