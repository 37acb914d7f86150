"""How any token reads on one line: nothing invisible, nothing that turns the row around."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

ZWJ = "\u200d"
NAMED = {
    "\n": "⏎",
    "\t": "⇥",
    "\x7f": "␡",
    "\u00a0": "⟨NBSP⟩",
    "\u00ad": "⟨SHY⟩",
    "\u061c": "⟨ALM⟩",
    "\u200b": "⟨ZWSP⟩",
    "\u200c": "⟨ZWNJ⟩",
    ZWJ: "⟨ZWJ⟩",
    "\u200e": "⟨LRM⟩",
    "\u200f": "⟨RLM⟩",
    "\u2028": "⟨LS⟩",
    "\u2029": "⟨PS⟩",
    "\u202a": "⟨LRE⟩",
    "\u202b": "⟨RLE⟩",
    "\u202c": "⟨PDF⟩",
    "\u202d": "⟨LRO⟩",
    "\u202e": "⟨RLO⟩",
    "\u2060": "⟨WJ⟩",
    "\u2066": "⟨LRI⟩",
    "\u2067": "⟨RLI⟩",
    "\u2068": "⟨FSI⟩",
    "\u2069": "⟨PDI⟩",
    "\ufeff": "⟨BOM⟩",
}
"""Characters that show nothing or steer others, by what is shown instead."""


def visible(text: str) -> str:
    """`text` with every invisible, controlling or lone combining character spelled out; leading spaces as `·`."""
    if not text:
        return "⟨empty⟩"
    lead = len(text) - len(text.lstrip(" "))
    shown = ["·" * lead]
    for cluster in graphemes(text[lead:]):
        if unicodedata.category(cluster[0]) in ("Mn", "Me"):
            shown.append("◌")
        joined = ZWJ in cluster and _is_symbol(cluster[0])
        shown.extend(char if joined and char == ZWJ else _spell(char) for char in cluster)
    return "".join(shown)


def printable(text: str) -> str:
    """Lines of text from elsewhere without characters that steer a terminal, each replaced by a sign that is seen."""
    return "".join(char if char == "\n" or char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def clip(text: str, width: int) -> str:
    """`text` in exactly `width` terminal cells: cut between graphemes with an ellipsis, or padded with spaces."""
    total = sum(map(cell_width, graphemes(text)))
    if total <= width:
        return text + " " * (width - total)
    kept, used = [], 0
    for cluster in graphemes(text):
        if used + cell_width(cluster) > width - 1:
            break
        kept.append(cluster)
        used += cell_width(cluster)
    return "".join(kept) + "…" + " " * (width - 1 - used)


def cell_width(cluster: str) -> int:
    """Terminal cells that one grapheme takes."""
    if unicodedata.east_asian_width(cluster[0]) in "WF" or "\ufe0f" in cluster or _is_regional(cluster[0]):
        return 2
    return 0 if unicodedata.category(cluster[0]) in ("Mn", "Me") else 1


def graphemes(text: str) -> Iterator[str]:
    """`text` in user-perceived characters: combining marks, joined emoji and flag pairs stay together."""
    cluster = ""
    for char in text:
        if cluster and not _continues(cluster, char):
            yield cluster
            cluster = ""
        cluster += char
    if cluster:
        yield cluster


def _continues(cluster: str, char: str) -> bool:
    if unicodedata.category(cluster[0]) in ("Cc", "Zl", "Zp") or char == "\n":
        return False
    if unicodedata.category(char) in ("Mn", "Me", "Mc") or "\U0001f3fb" <= char <= "\U0001f3ff":
        return True
    if char == ZWJ:
        return _is_symbol(cluster[0])
    if cluster[-1] == ZWJ:
        return _is_symbol(cluster[0]) and _is_symbol(char)
    return _is_regional(char) and len(cluster) == 1 and _is_regional(cluster)


def _is_symbol(char: str) -> bool:
    return unicodedata.category(char) == "So"


def _is_regional(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _spell(char: str) -> str:
    if char in NAMED:
        return NAMED[char]
    if char < " ":
        return chr(0x2400 + ord(char))
    category = unicodedata.category(char)
    if category in ("Cc", "Cf", "Cs", "Zs") and char != " ":
        return f"⟨U+{ord(char):04X}⟩"
    return char
