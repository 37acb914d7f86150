"""Any token on one line: nothing invisible, nothing that turns the row around, columns that stay straight."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.ui.view.text import cell_width, clip, graphemes, visible
from tests.ui.toytraces import HOSTILE

ANY = st.text(st.characters(exclude_categories=()), max_size=30)
FAMILY = "👨\u200d👩\u200d👧"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "·the"),
        ("  ", "··"),
        ("a b", "a b"),
        ("\n", "⏎"),
        ("\r\n", "␍⏎"),
        ("\t", "⇥"),
        ("\0", "␀"),
        ("", "⟨empty⟩"),
        ("\u200b", "⟨ZWSP⟩"),
        ("a\u200db", "a⟨ZWJ⟩b"),
        ("\u202eabc", "⟨RLO⟩abc"),
        ("\u2028", "⟨LS⟩"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        (FAMILY, FAMILY),
        ("🇩🇪", "🇩🇪"),
        ("\ud800", "⟨U+D800⟩"),
        ("\u0085", "⟨U+0085⟩"),
        ("مرحبا", "مرحبا"),
        ("�", "�"),
        ("</script>", "</script>"),
    ],
)
def test_visible(text, shown):
    assert visible(text) == shown


@given(ANY)
def test_nothing_invisible_is_left(text):
    shown = visible(text)
    assert shown
    for char in shown.replace("\u200d", ""):
        assert unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
    assert "\u200d" not in shown or any(unicodedata.category(char) == "So" for char in shown)


@given(ANY)
def test_graphemes_lose_nothing(text):
    assert "".join(graphemes(text)) == text


def test_graphemes_stay_together():
    assert list(graphemes(f"e\u0301{FAMILY}🇩🇪🇫🇷👍🏽x")) == ["e\u0301", FAMILY, "🇩🇪", "🇫🇷", "👍🏽", "x"]


@given(st.one_of(ANY.map(visible), st.sampled_from(HOSTILE).map(visible)), st.integers(1, 20))
def test_clip_gives_exactly_the_width(text, width):
    assert sum(map(cell_width, graphemes(clip(text, width)))) == width


def test_clip_cuts_between_graphemes():
    assert clip("ab" + FAMILY, 4) == "ab" + FAMILY
    assert clip("abc" + FAMILY, 4) == "abc…"
    assert clip("e\u0301" * 5, 3) == "e\u0301e\u0301…"
