"""The inspector's ES module and style sheet, shipped as package data."""

from __future__ import annotations

from pathlib import Path

STATIC_DIR = Path(__file__).parent / "static"
"""Holds `inspector.js` and `inspector.css` and nothing else: a server may expose the whole folder."""


def module_text() -> str:
    """The source of the inspector's ES module."""
    return (STATIC_DIR / "inspector.js").read_text(encoding="utf-8")


def style_text() -> str:
    """The inspector's style sheet."""
    return (STATIC_DIR / "inspector.css").read_text(encoding="utf-8")
