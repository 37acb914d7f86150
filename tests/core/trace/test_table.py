import csv
import io
import json

import pytest
from toy_traces import make_trace, with_header, without

from dflash_lab.core.trace.metrics import trace_metrics
from dflash_lab.core.trace.schema import TokenInfo
from dflash_lab.core.trace.table import STEP_COLUMNS, Table, position_table, step_table

TRACE = make_trace([0, 1, 2, 3, 4, 5] * 2, [3, 2])


def test_step_table():
    rows = step_table(TRACE).to_dicts()
    assert len(rows) == len(TRACE)
    assert list(rows[0]) == list(STEP_COLUMNS)
    assert [row["accepted"] for row in rows] == [record.num_accepted for record in TRACE.steps]
    assert "".join(row["text"] for row in rows) == "".join(f"t{i}" for i in TRACE.header.output_ids[1:])
    assert rows[0]["total_ms"] == 5.75
    assert step_table(TRACE, ("cause", "step")).columns == ("cause", "step")


def test_position_table_counts_from_the_first_draft():
    metrics = trace_metrics(TRACE)
    rows = position_table(TRACE).to_dicts()
    assert [row["position"] for row in rows] == [1, 2, 3]
    assert [row["survival"] for row in rows] == list(metrics.survival)
    assert [row["recall_n"] for row in rows] == list(metrics.recall_n)


def test_what_was_not_recorded_is_empty_not_zero():
    table = step_table(without(TRACE, "candidate_ids"), ("step", "best_length"))
    assert table.to_csv().splitlines()[1] == "0,"
    assert table.to_markdown().splitlines()[2] == "| 0 |  |"
    assert json.loads(table.to_json())[0] == {"step": 0, "best_length": None}


HOSTILE = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\tx",
    "\rx",
    'a"b,c',
    "a\nb",
    "</script>",
    "a|b",
    "`x`",
    "<img src=x>",
    "**b**",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_token_text(text):
    token = TRACE.steps[0].committed_ids[0]
    trace = with_header(TRACE, tokens={token: TokenInfo(text)})
    table = step_table(trace, ("text",))
    shown = table.rows[0][0]
    assert shown.startswith(text)
    _, (_, cell) = csv.reader(io.StringIO(Table(("n", "t"), ((1, shown),)).to_csv()))
    assert cell in (shown, f"'{shown}")
    assert cell[0] not in "=+-@\t\r"
    assert json.loads(table.to_json())[0]["text"] == shown
    lines = table.to_markdown().splitlines()
    assert len(lines) == 2 + len(table.rows)
    assert all(line.count("|") == 2 for line in lines)
    assert not set(lines[2]) & set("<>`*")


def test_numbers_are_exact_in_csv_and_short_in_markdown():
    table = Table(("x", "y"), ((1 / 3, -2),))
    assert table.to_csv() == f"x,y\r\n{1 / 3},-2\r\n"
    assert table.to_markdown() == "| x | y |\n| --- | --- |\n| 0.333 | -2 |\n"
