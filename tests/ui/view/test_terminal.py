"""A step in the terminal: the same facts as on the page, in straight columns."""

from __future__ import annotations

import re

import pytest

from dflash_lab.ui.view.terminal import draw_step
from dflash_lab.ui.view.text import cell_width, graphemes
from tests.ui.toytraces import make_trace

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def width_of(line):
    return sum(map(cell_width, graphemes(line)))


@pytest.mark.parametrize("width", [40, 80, 132])
@pytest.mark.parametrize("hostile", [False, True])
def test_lines_fit(width, hostile):
    trace = make_trace(6, 16, 8, hostile=hostile)
    for i in range(6):
        grid = [line for line in draw_step(trace, i, width).split("\n") if re.match(r"^(   \d|target|       )", line)]
        assert max(map(width_of, grid)) <= width


def test_colour_only_adds_colour():
    trace = make_trace(6, 8, 8)
    for i in range(6):
        plain = draw_step(trace, i)
        assert "\x1b" not in plain
        lines = ANSI.sub("", draw_step(trace, i, color=True)).split("\n")
        assert [line.rstrip() for line in lines] == plain.split("\n")


def test_the_step_is_all_there():
    trace = make_trace(30, 8, 8)
    i = next(i for i, record in enumerate(trace.steps) if 0 < record.num_accepted < 7)
    record, text = trace.steps[i], draw_step(trace, i, 132)
    assert f"step {i} (of 30, from 0) · {record.num_accepted} of 7 accepted" in text
    assert f"commits {record.num_accepted + 1}" in text
    assert f"selected {1 + record.num_accepted}" in text
    grid = text.split("\n\n")[1]
    assert grid.count("[") == record.num_accepted
    assert grid.count("<") - grid.count("<.1") == 1
    assert grid.count("= path") == record.num_accepted
    assert "rank" in grid or "not in list" in grid
    assert f"{record.timings.total_ms:.1f} ms" in text


def test_full_acceptance_shows_the_bonus():
    trace = make_trace(30, 8, 8)
    i = next(i for i, record in enumerate(trace.steps) if record.num_accepted == 7)
    assert "★ bonus: " in draw_step(trace, i)


@pytest.mark.parametrize("options", [{"kind": "ar"}, {"kind": "dflash"}, {"leave_out": ("candidate_ids", "unary")}])
def test_whatever_was_recorded(options):
    text = draw_step(make_trace(3, 6, 4, **options), 1)
    assert "step 1 (of 3, from 0)" in text
    assert ("no drafter" in text) == (options == {"kind": "ar"})


def test_many_candidates_are_counted():
    assert "… 14 more candidates" in draw_step(make_trace(2, 6, 30), 0)


def test_no_such_step():
    with pytest.raises(IndexError, match=r"0\.\.2, got 3"):
        draw_step(make_trace(3, 6, 4), 3)
