"""The inspector's ES modules and style sheet, shipped as package data."""

from __future__ import annotations

import re
from pathlib import Path

STATIC_DIR = Path(__file__).parent / "static"
"""Holds the inspector's modules and `inspector.css` and nothing else: a server may expose the whole folder."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)


def module_text() -> str:
    """The inspector as one ES module: `inspector.js` with everything it imports in front of it."""
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in parts:
            return
        text = (STATIC_DIR / f"{name}.js").read_text(encoding="utf-8")
        for imported in _IMPORT.findall(text):
            add(imported)
        parts[name] = _IMPORT.sub("", text)

    add("inspector")
    return "\n".join(parts.values())


def style_text() -> str:
    """The inspector's style sheet."""
    return (STATIC_DIR / "inspector.css").read_text(encoding="utf-8")
