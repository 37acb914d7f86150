"""Text by origin while it arrives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.core.types import StepRecord
from dflash_lab.ui.view.parts import Part, TextParts


def decode_bytes(ids) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def decode_words(ids) -> str:
    # Like SentencePiece: a space before every word but the first of the text.
    return " ".join(f"w{i}" for i in ids)


def record(draft, accepted, committed) -> StepRecord:
    return StepRecord(0, 0, 0, tuple(draft), accepted, 0, tuple(committed), accepted + 1 - len(committed))


def test_origins():
    parts = TextParts(decode_words)
    parts.add([1], "target")
    parts.add_step(record([2, 3], 1, [2, 9]))
    parts.add_step(record([4, 5], 2, [4, 5, 6]))
    parts.add_step(record([], 0, [7]))
    parts.add_step(record([8, 9], 2, [8]))
    assert parts.parts == [
        Part("target", "w1"), Part("accepted", " w2"), Part("corrected", " w9"), Part("accepted", " w4 w5"),
        Part("bonus", " w6"), Part("target", " w7"), Part("accepted", " w8"),
    ]  # fmt: skip


def test_a_character_in_several_tokens_waits_for_the_last():
    parts = TextParts(decode_bytes)
    first, *rest = "é".encode()
    parts.add([ord("a"), first], "accepted")
    assert parts.parts == []
    parts.add(rest, "corrected")
    assert parts.parts == [Part("corrected", "aé")]
    parts.add([0xE2], "accepted")
    parts.flush()
    assert parts.parts[-1] == Part("accepted", "\ufffd")


@given(st.text(max_size=40), st.lists(st.integers(1, 5), max_size=60))
def test_pieces_join_to_the_whole(text, sizes):
    data = list(text.encode())
    parts, at = TextParts(decode_bytes), 0
    for size in sizes:
        parts.add(data[at : at + size], "accepted")
        at += size
    parts.add(data[at:], "bonus")
    parts.flush()
    assert "".join(part.text for part in parts.parts) == text
