"""A run in numbers: definitions, verdicts, and what must be said beside them."""

from __future__ import annotations

import dataclasses

import pytest
from toy_runs import INFO, OFF, measure, prompts, record, run, stats

from dflash_lab.core.serve.fake_model import FakeModel
from dflash_lab.core.serve.fake_server import FakeServer
from dflash_lab.core.serve.records import LoadPlan, Snapshot
from dflash_lab.core.serve.report import report
from dflash_lab.core.serve.verdicts import SPECULATION, cold_ratio


def warned(records, words: str, **more) -> bool:
    return any(words in text for text in report(run(records, **more)).warnings)


def test_definitions_on_known_numbers():
    one = record(0, completion_tokens=60, duration_s=2.0, stats=stats([0, 0, 0, 20]))  # 20 steps, 60 accepted
    two = record(1, sent_at_s=1001.0, completion_tokens=30, duration_s=4.0, stats=stats([20, 0, 0, 0]))
    found = report(run([one, two]))
    assert found.wall_s == 5.0
    assert found.throughput_tok_s == 90 / 5
    assert found.mean_acceptance_length == 1 + 60 / 40
    assert found.mean_request_acceptance_length == (4 + 1) / 2
    assert found.zlab_acceptance_length == (60 / 20 + 30 / 20) / 2
    assert found.acceptance_rate == 60 / 120
    assert found.drafts_per_step == 3
    assert found.acceptance.survival == (0.5, 0.5, 0.5)
    assert found.acceptance.conditional_rate == (0.5, 1.0, 1.0)
    assert found.latency_ms.p50 == 3000
    assert (found.ttft_ms, found.tpot_ms, found.chunk_gap_ms) == (None, None, None)


def test_time_per_token_is_not_the_time_between_chunks():
    chunks = tuple(0.1 + 0.04 * i for i in range(11))  # 11 chunks of 4 tokens
    found = report(run([record(0, chunk_s=chunks, completion_tokens=41, duration_s=0.5)]))
    assert found.ttft_ms.p50 == pytest.approx(100)
    assert found.chunk_gap_ms.p50 == pytest.approx(40)
    assert found.tpot_ms.p50 == pytest.approx(10)
    assert found.decode_tok_s == pytest.approx(100)


def test_the_servers_own_first_token_is_said_to_be_its_own():
    found = report(run([record(0, server_first_token_s=0.2)]))
    assert (found.ttft_ms.p50, found.ttft_from) == (200, "server")


def test_failures_cost_time_and_give_no_tokens():
    good = record(0)
    bad = record(1, sent_at_s=1001.0, duration_s=9.0, failure="timeout", completion_tokens=None)
    found = report(run([good, bad]))
    assert (found.num_requests, found.num_failed, found.failures) == (2, 1, {"timeout": 1})
    assert found.throughput_tok_s == 100 / 10


def test_broken_statistics_refuse_all_acceptance():
    bad = stats([0, 0, 0, 20], broken=("steps = sum(histogram): 20 expected, 21 reported",))
    found = report(run([record(0, stats=stats([0, 0, 0, 20])), record(1, stats=bad)]))
    assert (found.mean_acceptance_length, found.zlab_acceptance_length, found.acceptance) == (None, None, None)
    assert found.broken == ("request 1: steps = sum(histogram): 20 expected, 21 reported",)
    assert found.throughput_tok_s > 0, "time and tokens are not the statistics' business"


@pytest.mark.parametrize("backend", ["sglang", "vllm"])
@pytest.mark.parametrize(
    ("acceptance", "verdict"),
    [(None, "off"), ((0.0, 0.0, 0.0), "no effect"), ((0.9, 0.8, 0.7), "working")],
)
def test_off_and_dead_and_working_are_told_apart(backend, acceptance, verdict, tmp_path):
    model = FakeModel(backend=backend, acceptance=acceptance)
    with FakeServer(model) as server:
        found = report(measure(server.url, LoadPlan("toy", 4, num_warmup=1, max_new_tokens=64), tmp_path / "r.jsonl"))
    assert found.speculation == verdict
    assert found.mean_acceptance_length == {"off": None, "no effect": 1.0}.get(verdict, found.mean_acceptance_length)
    assert (found.acceptance is None) == (verdict == "off"), "no table of zeros without speculation"
    assert (SPECULATION["no effect"] in found.warnings) == (verdict == "no effect")


def test_unknown_is_not_off():
    plain = dataclasses.replace(INFO, speculation=None, statistics=())
    assert report(run([record(0)], plain)).speculation == "not reported"
    silent = dataclasses.replace(INFO, statistics=())
    assert report(run([record(0)], silent)).speculation == "not reported"
    assert report(run([record(0)], INFO)).speculation == "not counted"
    assert report(run([record(0)], OFF)).speculation == "off"


def test_a_cold_start_is_seen_and_a_warm_up_hides_it(tmp_path):
    slow = {prompt.text: 6.0 for prompt in prompts(8)}
    shown = prompts(24)
    hidden = [*shown[8:], *shown[:8]]  # the slow ones are the next of the set: the warm-up
    plan = LoadPlan("toy", 24, num_warmup=0, max_new_tokens=64)
    with FakeServer(FakeModel(slow=slow)) as server:
        cold = measure(server.url, plan, tmp_path / "cold.jsonl", shown)
        warm = measure(
            server.url, dataclasses.replace(plan, num_prompts=16, num_warmup=8), tmp_path / "warm.jsonl", hidden
        )
    assert cold_ratio(cold.requests) < 0.5
    assert any("the first 8 requests ran at" in text for text in report(cold).warnings)
    assert not any("the first 8" in text for text in report(warm).warnings)
    assert cold_ratio(warm.requests[:15]) is None, "too few to say"


def test_short_answers_are_said_to_bias_tokens_per_step():
    assert warned([record(0, stats=stats([1, 1, 1, 2]))], "short answers, a median of 5 steps")
    assert not warned([record(0, stats=stats([10, 10, 10, 20]))], "short answers")


def test_the_prefix_cache_is_told_and_split(tmp_path):
    hits = {prompt.text for prompt in prompts(64) if int(prompt.id[4:]) % 2}
    model = FakeModel(cached=lambda prompt, salt: 3 if prompt in hits and salt is None else 0)
    plan = LoadPlan("toy", 16, num_warmup=1, max_new_tokens=64)
    with FakeServer(model) as server:
        first = report(measure(server.url, plan, tmp_path / "first.jsonl"))
        salted = report(measure(server.url, dataclasses.replace(plan, salt=True), tmp_path / "salted.jsonl"))
    assert first.cached_share == 0.5
    assert [(group.name, group.num_requests) for group in first.by_cached_share] == [
        ("1: nothing cached", 8),
        ("3: more than half", 8),
    ]
    assert all(group.mean_acceptance_length > 1 and group.request_tok_s > 0 for group in first.by_cached_share)
    assert any("50% of the prompt tokens came from the prefix cache" in text for text in first.warnings)
    assert salted.cached_share == 0
    assert salted.by_cached_share == ()


def test_categories_and_prompt_lengths_have_rows_of_their_own():
    steps = stats([0, 0, 0, 20])
    records = [
        record(0, category="math", prompt_tokens=10, stats=steps),
        record(1, category="code", prompt_tokens=300, stats=stats([20, 0, 0, 0])),
        record(2, category="code", prompt_tokens=2000),
    ]
    found = report(run(records))
    assert [(group.name, group.num_requests, group.mean_acceptance_length) for group in found.categories] == [
        ("code", 2, 1.0),
        ("math", 1, 4.0),
    ]
    assert [group.name for group in found.by_prompt_tokens] == ["1: below 64", "3: 256 to 1023", "4: 1024 or more"]


def test_a_server_that_answers_others_too_is_noticed():
    counted = [Snapshot(999.0, "metrics", output_tokens=0), Snapshot(1010.0, "metrics", output_tokens=500)]
    assert warned([record(0)], "it answered others too", snapshots=counted)
    alone = [counted[0], dataclasses.replace(counted[1], output_tokens=100)]
    assert not warned([record(0)], "answered others", snapshots=alone)


def test_drafts_that_are_not_what_the_server_says_are_noticed():
    assert warned([record(0, stats=stats([5] * 8, drafts=7))], "the server says 3 drafts per step, its answers 7")


def test_the_rate_falls_while_the_length_grows():
    """The same drafter at block 4, 8 and 16: length first, rate second with its denominator."""
    found = []
    for drafts in (3, 7, 15):
        info = dataclasses.replace(INFO, drafts_per_step=drafts)
        histogram = [10] + [0] * (drafts - 1) + [10 if drafts < 15 else 5]
        found.append(report(run([record(0, stats=stats(histogram, drafts))], info)))
    assert [item.drafts_per_step for item in found] == [3, 7, 15]
    assert found[0].mean_acceptance_length < found[1].mean_acceptance_length < found[2].mean_acceptance_length
    assert found[2].acceptance_rate < found[1].acceptance_rate


def test_an_answer_that_ended_at_prefill_has_no_steps_and_breaks_nothing(tmp_path):
    with FakeServer(FakeModel(output_tokens=1)) as server:
        found = report(measure(server.url, LoadPlan("toy", 4, num_warmup=1), tmp_path / "run.jsonl"))
    assert (found.output_tokens, found.num_failed, found.mean_acceptance_length) == (4, 0, None)
    assert not any("carried no" in text for text in found.warnings)


def test_a_run_without_requests_yet_is_a_report_of_nothing():
    found = report(run([], status=None, num_prompts=5))
    assert (found.status, found.num_requests, found.throughput_tok_s, found.wall_s) == ("running", 0, None, 0.0)
    assert (found.mean_acceptance_length, found.latency_ms, found.categories) == (None, None, ())
