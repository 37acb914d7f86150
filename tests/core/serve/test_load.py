"""A load on fake servers: throughput and acceptance against what they really did, failures kept, runs resumed."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading

import pytest
from toy_runs import Prompt, measure, prompts

from dflash_lab.core.errors import DataError, RunError, ServerError
from dflash_lab.core.serve.fake_model import FakeModel, decode
from dflash_lab.core.serve.fake_server import FakeServer
from dflash_lab.core.serve.plan import check_same, prompt_repetition, request_body, select, template_arguments
from dflash_lab.core.serve.records import FAILURES, LoadPlan, ServerInfo
from dflash_lab.core.serve.report import report
from dflash_lab.core.serve.runfile import read_run

PLAN = LoadPlan("toy", num_prompts=8, concurrency=4, max_new_tokens=64, num_warmup=2, timeout_s=10)


def plan(**other) -> LoadPlan:
    return dataclasses.replace(PLAN, **other)


@pytest.mark.parametrize("per_chunk", [1, 2, 4, 8, 16])
def test_throughput_is_right_to_two_percent_whatever_a_chunk_holds(per_chunk, tmp_path):
    # Long enough that a busy machine's delays between the two sides do not count.
    model = FakeModel(tokens_per_chunk=per_chunk, output_tokens=192, step_s=0.025)
    with FakeServer(model) as server:
        run = measure(
            server.url, plan(stream=True, num_prompts=4, max_new_tokens=192, num_warmup=0), tmp_path / "r.jsonl"
        )
        truth = server.ledger.throughput_tok_s(4)
    numbers = report(run)
    assert numbers.throughput_tok_s == pytest.approx(truth, rel=0.02)
    assert numbers.output_tokens == 4 * 192
    assert numbers.tpot_ms.p50 == pytest.approx(1000 * 0.025 / model.acceptance_length, rel=0.15)
    assert numbers.ttft_from == "client"


@pytest.mark.parametrize("backend", ["sglang", "vllm", "llamacpp"])
@pytest.mark.parametrize("per_chunk", [1, 16])
def test_a_chunk_is_not_a_token(backend, per_chunk, tmp_path):
    model = FakeModel(backend=backend, tokens_per_chunk=per_chunk, output_tokens=50)
    with FakeServer(model) as server:
        run = measure(server.url, plan(stream=True), tmp_path / "run.jsonl")
    assert [len(record.chunk_s) for record in run.requests] == [-(-50 // per_chunk)] * 8
    assert report(run).output_tokens == 8 * 50


@pytest.mark.parametrize("backend", ["sglang", "vllm", "llamacpp"])
@pytest.mark.parametrize("stream", [False, True])
def test_without_usage_tokens_are_estimated_and_said_to_be(backend, stream, tmp_path):
    model = FakeModel(backend=backend, usage=False, output_tokens=192, step_s=0.003)
    with FakeServer(model) as server:
        run = measure(server.url, plan(stream=stream, max_new_tokens=192), tmp_path / "run.jsonl")
        truth = server.ledger.throughput_tok_s(8)
    numbers = report(run)
    assert numbers.output_tokens == 8 * 192
    assert numbers.throughput_tok_s == pytest.approx(truth, rel=0.1)
    assert numbers.tokens_from == "estimated"
    assert any("8 answers had no usage" in text for text in numbers.warnings)


def test_without_usage_and_tokenizer_there_is_no_throughput(tmp_path):
    with FakeServer(FakeModel(usage=False, tokenizer=False)) as server:
        numbers = report(measure(server.url, PLAN, tmp_path / "run.jsonl"))
    assert (numbers.throughput_tok_s, numbers.output_tokens, numbers.tokens_from) == (None, None, None)
    assert any("no throughput is given" in text for text in numbers.warnings)
    assert numbers.mean_acceptance_length > 1, "statistics do not need usage"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("backend", ["sglang", "vllm"])
def test_acceptance_is_that_of_the_configured_process(backend, stream, tmp_path):
    model = FakeModel(backend=backend, output_tokens=2000, prefill_s=0, step_s=0)
    with FakeServer(model) as server:
        run = measure(server.url, plan(stream=stream, max_new_tokens=4096, num_warmup=1), tmp_path / "run.jsonl")
        histogram = server.ledger.histogram
    numbers = report(run)
    assert numbers.mean_acceptance_length == pytest.approx(model.acceptance_length, rel=0.02)
    assert numbers.acceptance.conditional_rate == pytest.approx(model.acceptance, abs=0.02)
    asked = decode(model, "Count from one to ten.", 8).histogram
    others = [asked, *(record.stats.histogram for record in run.warmups)]
    expected = [n - sum(h[i] for h in others if i < len(h)) for i, n in enumerate(histogram)]
    assert list(numbers.acceptance.acceptance_histogram) == expected, "every step, and none of probe and warm-up"
    assert numbers.zlab_acceptance_length == pytest.approx(numbers.mean_acceptance_length, rel=0.01)
    assert numbers.acceptance_from == {
        ("sglang", False): "meta_info", ("sglang", True): "sglext",
        ("vllm", False): "vllm_metrics", ("vllm", True): "vllm_metrics",
    }[backend, stream]  # fmt: skip
    # The server's own counters, read before and after, agree.
    assert numbers.counters.num_steps == numbers.acceptance.num_steps
    if backend == "vllm":
        assert numbers.counters.acceptance_length == numbers.mean_acceptance_length
        assert numbers.counters.histogram == numbers.acceptance.acceptance_histogram
    else:
        assert numbers.counters.reported_length == pytest.approx(numbers.zlab_acceptance_length, rel=0.01)


def test_vllm_without_statistics_in_its_answers_is_read_by_its_counters(tmp_path):
    model = FakeModel(backend="vllm", per_request=False, output_tokens=1000, prefill_s=0, step_s=0)
    with FakeServer(model) as server:
        numbers = report(measure(server.url, plan(max_new_tokens=1000), tmp_path / "run.jsonl"))
    assert numbers.acceptance_from == "metrics"
    assert numbers.mean_acceptance_length == pytest.approx(model.acceptance_length, rel=0.02)
    assert numbers.zlab_acceptance_length is None


@pytest.mark.parametrize("stream", [False, True])
def test_every_kind_of_failure_is_kept(stream, tmp_path):
    kinds = sorted(set(FAILURES) - {"cancelled"})
    texts = prompts(64)
    failures = {prompt.text: kind for prompt, kind in zip(texts, kinds, strict=False)}
    with FakeServer(FakeModel(failures=failures)) as server:
        run = measure(
            server.url,
            plan(stream=stream, num_prompts=12, timeout_s=0.5),
            tmp_path / "run.jsonl",
            [*texts, *prompts(64)],
        )
    assert run.status == "complete"
    numbers = report(run)
    assert (numbers.num_requests, numbers.num_failed) == (12, len(kinds))
    assert numbers.failures == dict.fromkeys(kinds, 1)
    kept = {record.failure: record for record in run.requests if not record.ok}
    assert set(kept) == set(kinds)
    assert all(record.message for record in kept.values())
    assert numbers.output_tokens == (12 - len(kinds)) * 40
    assert any(f"{len(kinds)} of 12 requests failed" in text for text in numbers.warnings)
    assert numbers.zlab_acceptance_length > 1


def test_a_server_that_dies_leaves_what_was_measured(tmp_path):
    texts = prompts(64)
    path = tmp_path / "run.jsonl"
    with FakeServer(FakeModel(failures={texts[5].text: "die"})) as server:
        run = measure(server.url, plan(num_prompts=30, concurrency=2), path, texts)
    assert run.status == "server lost"
    assert "no longer answers" in run.ends[-1].message
    numbers = report(run)
    assert numbers.num_requests < 10, "nothing more is sent"
    assert numbers.throughput_tok_s > 0
    assert numbers.mean_acceptance_length > 1
    assert set(numbers.failures) <= {"cut", "connection"}
    with FakeServer() as server:
        run = measure(server.url, plan(num_prompts=30, concurrency=2), path, texts)
    assert run.status == "complete"
    assert [record.index for record in run.requests] == list(range(30))
    assert report(run).num_failed == 0
    assert len(run.attempts) > 30, "the lost ones are kept"
    assert any("in 2 goes" in text for text in report(run).warnings)


@pytest.fixture
def heeded():
    """Ctrl-C is heard, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded")
def test_an_interrupt_keeps_what_was_finished_and_goes_on_later(tmp_path):
    path = tmp_path / "run.jsonl"
    done = threading.Event()

    def interrupt_after_six(record) -> None:
        if record.index >= 5 and not done.is_set():
            done.set()
            os.kill(os.getpid(), signal.SIGINT)

    load = plan(num_prompts=20, concurrency=2, max_new_tokens=40)
    with FakeServer(FakeModel(step_s=0.002)) as server:
        run = measure(server.url, load, path, observe=interrupt_after_six)
        assert run.status == "interrupted"
        assert run.attempts[-1].failure == "cancelled"
        kept = [record for record in run.attempts if record.ok]
        assert 5 <= len(kept) < 20
        run = measure(server.url, load, path)
    assert run.status == "complete"
    assert [record.index for record in run.requests] == list(range(20))
    assert all(record.ok for record in run.requests)
    assert [r for r in run.attempts if r.ok and r.segment == 0] == kept, "nothing is measured twice"
    assert len({record.segment for record in run.attempts}) == 2


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_so_many_requests_run_at_a_time(concurrency, tmp_path):
    with FakeServer() as server:
        run = measure(server.url, plan(concurrency=concurrency, num_prompts=12), tmp_path / "run.jsonl")
    moments = sorted((at, step) for r in run.attempts for at, step in ((r.sent_at_s, 1), (r.end_at_s, -1)))
    running, most = 0, 0
    for _, step in moments:
        running += step
        most = max(most, running)
    assert most == concurrency


def test_an_open_loop_sends_when_requests_are_due(tmp_path):
    load = plan(concurrency=None, rate=100.0, num_prompts=20)
    with FakeServer(FakeModel(step_s=0.005)) as server:
        run = measure(server.url, load, tmp_path / "a.jsonl")
        again = measure(server.url, load, tmp_path / "b.jsonl")
    gaps = [b.due_at_s - a.due_at_s for a, b in zip(run.requests, run.requests[1:], strict=False)]
    assert gaps == pytest.approx(
        [b.due_at_s - a.due_at_s for a, b in zip(again.requests, again.requests[1:], strict=False)], abs=1e-5
    ), "arrivals have a seed"
    assert 0.5 < sum(gaps) / len(gaps) * 100 < 2
    assert all(record.sent_at_s - record.due_at_s < 0.1 for record in run.requests)
    last_sent = max(record.sent_at_s for record in run.requests)
    assert min(record.end_at_s for record in run.requests) < last_sent < run.requests[0].end_at_s + 1


def test_the_warm_up_is_not_measured(tmp_path):
    slow = {prompt.text: 20.0 for prompt in prompts(64)[8:10]}
    with FakeServer(FakeModel(slow=slow)) as server:
        run = measure(server.url, PLAN, tmp_path / "run.jsonl")
        sent = [body["messages"][0]["content"] for body in server.ledger.bodies]
        limits = [body["max_tokens"] for body in server.ledger.bodies]
    assert len(run.warmups) == 2
    assert all(record.prompt_id.startswith("warm-up") for record in run.warmups)
    assert sent[1:3] == ["question number 8", "question number 9"], "the next prompts of the set, as z-lab takes them"
    assert limits[:3] == [8, 64, 64]
    assert sorted(sent[3:]) == sorted(prompt.text for prompt in prompts(8))
    assert report(run).latency_ms.p99 < 1000 * min(record.duration_s for record in run.warmups)


def test_a_server_that_answers_no_warm_up_is_not_measured(tmp_path):
    failing = {prompt.text: "status" for prompt in prompts(64)}
    path = tmp_path / "run.jsonl"
    with FakeServer(FakeModel(failures=failing)) as server, pytest.raises(ServerError) as caught:
        measure(server.url, PLAN, path)
    assert "no warm-up request was answered (status: HTTP 500: out of memory)" in str(caught.value)
    assert read_run(path).attempts == []


def test_every_request_has_a_salt_of_its_own_if_asked(tmp_path):
    with FakeServer() as server:
        measure(server.url, plan(salt=True), tmp_path / "run.jsonl")
        salts = [body.get("cache_salt") for body in server.ledger.bodies]
    assert salts[:3] == [None] * 3
    assert len(set(salts[3:])) == 8


def test_the_body_is_that_of_z_labs_client():
    info = ServerInfo("http://h", "sglang", "m")
    body = request_body(LoadPlan("gsm8k", 1), info)
    assert body == {
        "model": "m", "max_tokens": 2048, "temperature": 0.0, "top_p": 1.0,
        "return_spec_tokens_details": True, "return_meta_info": True,
    }  # fmt: skip
    card = LoadPlan("gsm8k", 1, temperature=1.0, top_p=0.95, top_k=20, reasoning="xhigh", stream=True)
    body = request_body(card, info)
    assert body["top_k"] == 20
    assert body["chat_template_kwargs"] == {
        "enable_thinking": True, "reasoning_effort": "xhigh", "reasoning_strength": "xhigh",
    }  # fmt: skip
    assert "return_meta_info" not in body, "SGLang refuses it in a stream"
    assert body["stream_options"] == {"include_usage": True}
    assert template_arguments("off") == {"enable_thinking": False}
    sampled = request_body(LoadPlan("gsm8k", 1, temperature=1.0), info)
    assert sampled["top_k"] == -1, "not left to the model's generation_config.json"
    plain = request_body(LoadPlan("gsm8k", 1), dataclasses.replace(info, backend="other"))
    assert set(plain) == {"model", "max_tokens", "temperature", "top_p"}


def test_prompts_are_not_repeated_unless_asked():
    texts = prompts(80)
    with pytest.raises(DataError, match="toy holds 80 prompts, asked for 128; ask for 80 or fewer, or repeat"):
        select(texts, plan(num_prompts=128))
    chosen = select(texts, plan(num_prompts=128, repeat=True))
    assert [prompt.id for prompt in chosen.measured[78:82]] == ["toy/78", "toy/79", "toy/0", "toy/1"]
    assert chosen.repeated == 48
    assert chosen.overlapping == 0, "the warm-up has texts of its own when the set is used up"
    all_of_it = select(texts, plan(num_prompts=80, num_warmup=8))
    assert (all_of_it.repeated, all_of_it.overlapping, len(all_of_it.warmup)) == (0, 0, 8)
    twice = [Prompt("a", "same"), Prompt("b", "same"), Prompt("c", "same")]
    chosen = select(twice, plan(num_prompts=2, num_warmup=1))
    assert (chosen.repeated, chosen.overlapping) == (1, 1)


def test_filler_prompts_are_seen():
    assert prompt_repetition(["the quick brown fox jumps over the lazy dog and runs away"]) == 0
    assert prompt_repetition(["all work and no play " * 50]) > 0.9
    assert prompt_repetition([]) == 0


def test_what_is_odd_about_a_plan_is_known_before(tmp_path):
    texts = [Prompt(f"t/{i}", "all work and no play " * 50) for i in range(10)]
    with FakeServer(FakeModel(max_running=4, max_model_len=512)) as server:
        run = measure(server.url, plan(concurrency=6, num_warmup=0), tmp_path / "run.jsonl", texts)
        words = " | ".join(run.header.warnings)
        assert "concurrency 6 is above the server's limit of 4" in words
        assert "7 of 8 prompts repeat an earlier one" in words
        assert "the prompts repeat themselves" in words
        assert "no warm-up" in words
        with pytest.raises(ServerError, match="takes 512 tokens, prompt included, and 512 new ones"):
            measure(server.url, plan(max_new_tokens=512), tmp_path / "long.jsonl")


def test_thinking_is_held_against_what_the_drafter_was_made_for(tmp_path):
    with FakeServer(FakeModel()) as server:
        off = measure(server.url, plan(reasoning="off"), tmp_path / "off.jsonl")
        on = measure(server.url, plan(reasoning="on"), tmp_path / "on.jsonl")
    assert any("made for reasoning answers" in text for text in off.header.warnings)
    assert not any("made for" in text for text in on.header.warnings)
    assert off.header.body["chat_template_kwargs"] == {"enable_thinking": False}
    assert off.requests[0].prompt_hash != on.requests[0].prompt_hash, "the flag is part of what was sent"
    with FakeServer(FakeModel(name="SmolLM2-135M-Instruct", drafter="bundled")) as server:
        run = measure(server.url, plan(reasoning="on"), tmp_path / "small.jsonl")
    assert any("made for answers without reasoning" in text for text in run.header.warnings)


def test_a_run_goes_on_only_as_it_began(tmp_path):
    path = tmp_path / "run.jsonl"
    with FakeServer() as server:
        header = measure(server.url, PLAN, path).header
    for change, name in (
        ({"plan": plan(temperature=1.0)}, "plan temperature was 0.0, now 1.0"),
        ({"server": dataclasses.replace(header.server, drafter="other")}, "server drafter"),
        ({"prompt_ids": ("toy/9",)}, "prompts are others"),
        ({"label": "mine"}, "label was 'DFlash 2', now 'mine'"),
    ):
        with pytest.raises(RunError, match=name):
            check_same(header, dataclasses.replace(header, **change))
    check_same(header, header)
