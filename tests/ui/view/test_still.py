"""A step as a table without script: every mark in characters, every token escaped."""

import re

import pytest
from toytraces import make_trace

from dflash_lab.ui.view.still import step_html


def cells(html: str, glyph: str) -> int:
    """Marked cells of the table's body."""
    return len(re.findall(rf"<td[^>]*><b>{glyph}", html))


def test_path_target_and_prefix_are_marked():
    trace = make_trace(30)
    for i, record in enumerate(trace.steps):
        html = step_html(trace, i)
        full = record.num_accepted == len(record.draft_ids)
        assert cells(html, "✓") == record.num_accepted == html.count("= path")
        assert html.count("<b>✗") == (not full)
        assert html.count("<b>★") == full
        listed = not full and record.bonus_id in trace.tensor("candidate_ids", i)[record.num_accepted]
        assert html.count("<b>◆") == (not full) + listed
        assert html.count("not in list") == (not full and not listed)


def test_only_as_many_rows_as_tell_something():
    trace = make_trace(30)
    for i, record in enumerate(trace.steps):
        rows = step_html(trace, i).count("<tr>") - 2
        path = trace.tensor("path", i)[: record.num_accepted + 1]
        assert max(4, path.max() + 1) <= rows <= 16


@pytest.mark.parametrize("leave_out", [("candidate_ids",), ("unary",), ("edges", "log_norm"), ("target_ids",)])
def test_whatever_was_not_recorded(leave_out):
    trace = make_trace(5, leave_out=leave_out)
    assert all("target" in step_html(trace, i) for i in range(5))


def test_hostile_tokens_stay_text():
    trace = make_trace(60, hostile=True)
    for i in range(60):
        assert set(re.findall(r"<(\w+)", step_html(trace, i))) <= set(
            "p strong br div table thead tbody tr th td b bdi small".split()
        )


def test_no_such_step():
    with pytest.raises(IndexError, match=r"step must be in 0\.\.4, got 5"):
        step_html(make_trace(5), 5)
