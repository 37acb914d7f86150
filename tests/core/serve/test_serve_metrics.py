"""Counters of servers into snapshots and intervals."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_lab.core.serve.metrics import between, parse, snapshot_of, snapshot_of_loads
from dflash_lab.core.serve.records import Snapshot

CAPTURE = (Path(__file__).parent / "captures" / "vllm_0.32.0_metrics.txt").read_text()


def test_a_captured_page_of_vllm():
    found = snapshot_of(CAPTURE, 5.0, "tiny")
    assert (found.num_steps, found.num_accepted, found.num_proposed) == (18, 58, 58)
    assert found.accepted_by_position == (18, 14, 14, 12)
    assert (found.output_tokens, found.prompt_tokens, found.finished, found.aborted) == (80, 40, 2, 0)
    assert (found.running, found.waiting) == (0, 0)
    # 1 + 58/18: the `_created` twins, Unix times, must not be taken for counters.
    nothing = Snapshot(0.0, "metrics")
    stats = between(nothing, found).stats
    assert stats.acceptance_length == pytest.approx(1 + 58 / 18)
    assert stats.histogram == (0, 4, 0, 2, 12)


def test_another_model_on_the_same_server_is_not_counted():
    page = (
        'vllm:generation_tokens_total{model_name="a"} 5\nvllm:generation_tokens_total{model_name="b"} 7\n'
        'vllm:num_requests_running{model_name="a"} 1\n'
    )
    assert snapshot_of(page, 0.0, "b").output_tokens == 7
    assert snapshot_of(page, 0.0, "b").running is None


def sglang_page(**values: float) -> str:
    return "".join(f'sglang:{name}{{model_name="m",tp_rank="0"}} {value}\n' for name, value in values.items())


def test_sglang_gives_tokens_per_step():
    before = snapshot_of(sglang_page(num_running_reqs=1), 10.0, "m")
    assert before.output_tokens == 0, "SGLang leaves out a counter until it is used"
    after = snapshot_of(
        sglang_page(
            num_running_reqs=0, generation_tokens_total=300, spec_verify_calls_total=100, spec_accept_length=2.9
        ),
        12.0,
        "m",
    )
    found = between(before, after)
    assert (found.tok_s, found.output_tokens) == (150, 300)
    assert (found.stats.reported_length, found.stats.convention) == (3.0, "tokens_per_step")
    assert found.stats.acceptance_length is None, "SGLang counts no accepted drafts"
    assert after.gauge_length == 2.9


def test_ranks_of_one_copy_count_once_and_copies_add_up():
    lines = [
        f'sglang:num_running_reqs{{dp_rank="{dp}",model_name="m",tp_rank="{tp}"}} {value}'
        for dp, tp, value in ((0, 0, 2), (0, 1, 2), (1, 2, 3), (1, 3, 3))
    ]
    lines += ['sglang:generation_tokens_total{is_streaming="true",model_name="m"} 10',
              'sglang:generation_tokens_total{is_streaming="false",model_name="m"} 4']  # fmt: skip
    found = snapshot_of("\n".join(lines), 0.0, "m")
    assert (found.running, found.output_tokens) == (5, 14)


def test_the_live_counter_gives_the_speed_and_the_final_one_the_tokens():
    page = 'sglang:realtime_tokens_total{{mode="decode",model_name="m"}} {}\nsglang:generation_tokens_total{{}} {}\n'
    before, after = (snapshot_of(page.format(*values), at, "m") for at, values in ((0.0, (0, 0)), (2.0, (100, 0))))
    found = between(before, after)
    assert (found.tok_s, found.output_tokens) == (50, 0)


def test_a_counter_that_runs_backwards_is_a_restart():
    found = between(Snapshot(0.0, "metrics", output_tokens=500), Snapshot(1.0, "metrics", output_tokens=3))
    assert found.restarted
    assert (found.tok_s, found.stats, found.output_tokens) == (None, None, None)


def test_no_steps_are_no_statistics():
    idle = Snapshot(0.0, "metrics", output_tokens=5, num_steps=7, num_accepted=9)
    assert between(idle, Snapshot(1.0, "metrics", output_tokens=5, num_steps=7, num_accepted=9)).stats is None
    off = between(Snapshot(0.0, "metrics", output_tokens=5), Snapshot(1.0, "metrics", output_tokens=9))
    assert off.stats is None
    assert off.tok_s == 4


def test_counters_read_a_moment_apart_make_no_histogram():
    before = Snapshot(0.0, "metrics", num_steps=0, num_accepted=0, accepted_by_position=(0, 0))
    after = Snapshot(1.0, "metrics", num_steps=3, num_accepted=8, accepted_by_position=(4, 4))
    assert between(before, after).stats.histogram is None


def test_loads_for_a_server_without_metrics():
    loads = {
        "loads": [
            {"num_running_reqs": 2, "num_waiting_reqs": 1, "token_usage": 0.3, "speculative": {"accept_length": 4.0}},
            {"num_running_reqs": 1, "num_waiting_reqs": 0, "token_usage": 0.5},
        ]
    }
    found = snapshot_of_loads(loads, 1.0)
    assert (found.running, found.waiting, found.kv_cache_usage, found.gauge_length) == (3, 1, 0.5, 4.0)
    assert found.output_tokens is None
    assert snapshot_of_loads({}, 1.0).running is None


def test_pages_of_neither_are_none():
    assert snapshot_of("go_goroutines 5\nnot a metric at all\n", 0.0, "m") is None
    assert snapshot_of("", 0.0, "m") is None
    assert parse('x{a="1\\"2",b="c"} 4 1700000000\n# x 5\nx nonsense\n')[0].labels == {"a": '1\\"2', "b": "c"}
