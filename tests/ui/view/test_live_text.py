"""Live servers in the terminal: pictures and tables, with gaps where nothing is known."""

from __future__ import annotations

from dflash_lab.core.serve.published import published_tables
from dflash_lab.core.serve.records import ServerInfo
from dflash_lab.ui.view.live_frame import frame, spark
from dflash_lab.ui.view.live_text import info_text, published_text, table

POSITIONS = {
    "positions": [1, 2],
    "survival": [0.75, 0.5],
    "histogram": [25, 25, 50],
    "num_steps": 100,
    "note": "draft 1",
}
NOTHING = {"positions": [], "survival": [], "histogram": [], "num_steps": 0, "note": "draft 1"}


def test_sparklines_scale_from_zero_and_leave_gaps():
    assert spark([0, 4, 8], 10) == "▁▅█"
    assert spark([1, None, 1], 10) == "█ █"
    assert spark([5, 5, 1, 1], 2) == "██"
    assert spark([0, 0], 5) == "▁▁"
    assert spark([], 5) == ""


def test_a_frame_draws_what_there_is():
    series = {"tok_s": [10.0, 20.5], "acceptance_length": [None, 3.25], "running": [1, 2], "waiting": [None, None],
              "convention": "1 + accepted / steps"}  # fmt: skip
    text = frame("DFlash 2 · here", series, POSITIONS, ["a note"], width=60)
    lines = text.splitlines()
    assert lines[0] == "DFlash 2 · here"
    assert "20.50" in lines[2]
    assert "3.25" in lines[3]
    assert not any(line.startswith("waiting") for line in lines), "a series that is not reported is not drawn"
    assert "acceptance length is 1 + accepted / steps" in " ".join(text.split())
    assert "steps by accepted drafts, 100 steps" in text
    bars = [len(line) - len(line.replace("█", "")) for line in lines if line.endswith("%")]
    assert bars == [8, 8, 15, 22, 15], "the histogram's 25, 25 and 50 %, survival's 75 and 50 % of 30 cells"
    assert lines[-1] == "a note"
    assert all(len(line) <= 110 for line in lines)


def test_a_frame_of_nothing_says_so():
    text = frame("idle", {"tok_s": [], "running": []}, NOTHING, [])
    assert "not reported by this server's counters" in text


def test_names_from_a_server_cannot_steer_the_terminal():
    hostile = ServerInfo("http://h", "other", "m\x1b[2J\x9b31m\u202e", version="1\r2")
    text = info_text(hostile)
    assert all(char == "\n" or char.isprintable() for char in text)
    assert "m\N{REPLACEMENT CHARACTER}[2J" in text
    assert frame("\x1b[2J", {}, NOTHING, ["\x07"]).isprintable() is False, "lines remain lines"
    assert "\x1b" not in frame("\x1b[2J", {}, NOTHING, [])


def test_tables_line_up():
    assert table([["", "a"], ["long name", "1.00"]]) == ["              a", "long name  1.00"]


def test_published_tables_are_whole():
    texts = {item.target: published_text(item) for item in published_tables()}
    flash = texts["Qwen/Qwen3.8-Flash-Next-FP8"]
    rows = [line.split() for line in flash.splitlines()]
    assert ["MATH-500", "2,075.9", "2,566.6", "(1.24×)", "3,173.3", "(1.53×)"] in rows
    assert ["MT-Bench", "2.50", "2.83"] in rows
    assert "block 4 (3 drafts per step)" in flash
    assert "no numbers are shown" in texts["Qwen/Qwen3.6-35B-A3B"]
    assert "second-hand" in texts["Qwen/Qwen3.8-27B"]
