"""ES modules and style sheets of the inspector and of the live views, shipped as package data."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from dflash_lab.core.errors import BackendError

STATIC_DIR = Path(__file__).parent / "static"
"""Holds modules and style sheets and nothing else: a server may expose the whole folder."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)


def module_text(name: str = "inspector") -> str:
    """One ES module: `inspector.js`, or that of another name, with everything it imports in front of it."""
    parts: dict[str, str] = {}

    def add(part: str) -> None:
        if part in parts:
            return
        text = (STATIC_DIR / f"{part}.js").read_text(encoding="utf-8")
        for imported in _IMPORT.findall(text):
            add(imported)
        parts[part] = _IMPORT.sub("", text)

    add(name)
    return "\n".join(parts.values())


def style_text(*names: str) -> str:
    """The inspector's style sheet, and after it those of these names."""
    return "".join((STATIC_DIR / f"{name}.css").read_text(encoding="utf-8") for name in ("inspector", *names))


def plotly_js() -> Path:
    """Plotly's script as the Python package brings it, which is not loaded for that. Raises BackendError without it."""
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise BackendError("charts need plotly, which is not there: pip install 'dflash-lab[ui]' or '[notebook]'")
    return Path(found.origin).parent / "package_data" / "plotly.min.js"
