"""Runs and snapshots as plain chart data: sums kept, gaps kept, nothing made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_lab.core.serve.records import LoadPlan, RequestRecord, RunHeader, ServerInfo, ServerStats, Snapshot
from dflash_lab.core.serve.runfile import Run, Segment
from dflash_lab.ui.view.live import (
    load_series,
    position_chart,
    published_beside,
    run_acceptance,
    server_series,
    watched_acceptance,
)

INFO = ServerInfo(
    "http://h",
    "vllm",
    "m",
    target="Qwen/Qwen3.8-Flash-Next-FP8",
    method="DFlash 2",
    speculation=True,
    drafts_per_step=2,
)


def make_run(records) -> Run:
    header = RunHeader("DFlash 2", INFO, LoadPlan("gsm8k", len(records)), {}, "x", 9, ("a",))
    return Run(Path("run.jsonl"), header, [Segment(0, 1000.0)], [], list(records))


def answer(index: int, sent: float, **more) -> RequestRecord:
    stats = ServerStats("vllm_metrics", "vllm", 4, 4, 8, (1, 2, 1), 2)
    usual = {"completion_tokens": 12, "duration_s": 2.0, "stats": stats}
    return RequestRecord(index, f"gsm8k/{index}", "math", "h", sent_at_s=sent, **(usual | more))


def test_counters_become_rates_between_looks():
    snapshots = [
        Snapshot(10.0, "metrics", running=1, waiting=0, output_tokens=0, num_steps=0, num_accepted=0),
        Snapshot(12.0, "metrics", running=2, waiting=1, output_tokens=100, num_steps=40, num_accepted=60),
        Snapshot(13.0, "metrics", running=0, waiting=0, output_tokens=100, num_steps=40, num_accepted=60),
        Snapshot(14.0, "metrics", running=0, waiting=0, output_tokens=5, num_steps=1, num_accepted=1),
    ]
    series = server_series(snapshots)
    assert series["t_s"] == [0, 2, 3, 4]
    assert series["interval_t_s"] == [2, 3, 4]
    assert series["tok_s"] == [50, 0, None]
    assert series["acceptance_length"] == [2.5, None, None], "no step, no length; a restart is a gap"
    assert series["restarts"] == [4]
    assert series["running"] == [1, 2, 0, 0]
    assert "1 + accepted / verification steps" in series["convention"]
    json.dumps(series)


def test_a_gauge_speaks_only_while_something_runs():
    idle = Snapshot(0.0, "loads", running=0, gauge_length=4.0, gauge_tok_s=70.0)
    busy = Snapshot(1.0, "loads", running=2, gauge_length=4.5, gauge_tok_s=80.0)
    stale = Snapshot(2.0, "loads", running=0, gauge_length=4.5, gauge_tok_s=80.0)
    series = server_series([idle, busy, stale])
    assert series["acceptance_length"] == [4.5, None]
    assert series["tok_s"] == [80.0, None]
    assert "SGLang's gauge" in series["convention"]


def test_nothing_yet_is_an_empty_state():
    empty = server_series([])
    assert (empty["t_s"], empty["tok_s"], empty["convention"]) == ([], [], None)
    assert load_series(make_run([]))["tok_s"] == []
    assert position_chart(None)["positions"] == []
    assert run_acceptance(make_run([])) is None
    assert watched_acceptance([Snapshot(0.0, "metrics", num_steps=5)]) is None


@pytest.mark.parametrize("chunks", [(), tuple(0.2 * i for i in range(1, 11))])
def test_our_own_tokens_are_all_in_the_bins(chunks):
    run = make_run(
        [answer(0, 1000.0, chunk_s=chunks), answer(1, 1002.0), answer(2, 1003.0, failure="cut", message="x")]
    )
    series = load_series(run)
    assert sum(series["tok_s"]) * series["bin_s"] == pytest.approx(24)
    assert len(series["t_s"]) == len(series["tok_s"])
    assert series["request_t_s"] == [2, 4]
    assert series["request_acceptance_length"] == [2, 2]
    assert series["failures"] == [{"t_s": 5.0, "kind": "cut", "message": "x"}]


def test_a_long_run_has_few_bins():
    run = make_run([answer(i, 1000.0 + 10 * i) for i in range(500)])
    series = load_series(run)
    assert len(series["tok_s"]) <= 242
    assert sum(series["tok_s"]) * series["bin_s"] == pytest.approx(500 * 12)


def test_positions_start_at_the_first_draft():
    chart = position_chart(run_acceptance(make_run([answer(0, 1000.0), answer(1, 1002.0)])))
    assert chart["positions"] == [1, 2]
    assert chart["survival"] == [0.75, 0.25]
    assert chart["histogram"] == [2, 4, 2]
    assert chart["conditional_n"] == [8, 6]
    assert "the anchor is not counted" in chart["note"]
    broken = ServerStats("vllm_metrics", "vllm", 4, 4, 8, (1, 2, 1), 2, broken=("steps",))
    assert run_acceptance(make_run([answer(0, 1000.0, stats=broken)])) is None


def test_counters_by_position_make_the_same_chart():
    before = Snapshot(0.0, "metrics", num_steps=2, num_accepted=2, num_proposed=4, accepted_by_position=(1, 1))
    after = Snapshot(1.0, "metrics", num_steps=10, num_accepted=10, num_proposed=20, accepted_by_position=(7, 3))
    assert position_chart(watched_acceptance([before, after]))["survival"] == [0.75, 0.25]


def test_published_numbers_come_with_hardware_and_source():
    (beside,) = published_beside(INFO, "gsm8k", "8")
    assert beside["throughput_tok_s"] == {"Autoregressive": 924.8, "MTP": 1122.5, "DFlash 2": 1312.6}
    assert beside["acceptance_length"]["DFlash 2"] == 3.26
    assert (beside["hardware"], beside["source"]) == ("1x NVIDIA GB300", "model card Qwen3.8-Flash-Next-DFlash2")
    assert published_beside(INFO, "gsm8k", "5")[0]["throughput_tok_s"] == {}
    assert published_beside(ServerInfo("http://h", "vllm", "gpt2"), "gsm8k", "1") == []
