"""The local server: SGLang's fields, the decoder's own numbers, a queue, a client that leaves, wrong input."""

import contextlib
import dataclasses
import json
import threading

import httpx
import pytest
from toy_pair import make_pair
from toy_server import TEMPLATE, serving

from dflash_lab.core.acceptance import from_counts
from dflash_lab.core.generate import generate
from dflash_lab.core.types import GenerateRequest, SamplingParams


def decoded(prompt="the duck", **sampling):
    """The same request by the decoder itself."""
    generation = generate(make_pair(), GenerateRequest(prompt, SamplingParams(**{"max_new_tokens": 40} | sampling)))
    counts = [(len(step.record.draft_ids), step.record.num_accepted) for step in generation]
    return generation, from_counts(counts)


def events(response: httpx.Response) -> list:
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_an_answer_is_the_decoders_own_with_its_acceptance(shared):
    generation, acceptance = decoded()
    body = shared.chat(return_meta_info=True, return_spec_tokens_details=True).json()
    choice = body["choices"][0]
    assert choice["message"]["content"] == generation.pair.text.decode(generation.output_ids)
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == len(generation.output_ids) == 40
    assert body["usage"]["prompt_tokens"] == len(generation.prompt_ids)
    meta = choice["meta_info"]
    assert meta["spec_verify_ct"] == acceptance.num_steps
    assert meta["spec_num_correct_drafts"] == acceptance.num_accepted
    assert 1 + meta["spec_num_correct_drafts"] / meta["spec_verify_ct"] == acceptance.mean_acceptance_length
    assert meta["spec_accept_length"] == 40 / acceptance.num_steps
    histogram = meta["spec_correct_drafts_histogram"]
    assert histogram[-1]
    assert histogram + [0] * (4 - len(histogram)) == list(acceptance.acceptance_histogram)
    assert meta["finish_reason"] == {"type": "length", "length": 40}
    assert 0 <= meta["queue_time"] < meta["first_token_latency"] < meta["e2e_latency"]
    details = body["sglext"]["spec_tokens_details"]
    assert {key: details[key] for key in details if key in meta} == {
        key: value for key, value in meta.items() if key.startswith("spec_")
    }


def test_statistics_only_where_asked_for_and_only_with_a_drafter(served):
    plain = served.chat().json()
    assert "meta_info" not in plain["choices"][0]
    assert "sglext" not in plain
    asked = {"return_meta_info": True, "return_spec_tokens_details": True}
    one = served.chat(max_tokens=1, **asked).json()
    with serving(dataclasses.replace(TEMPLATE, drafter=None)) as alone:
        baseline = alone.chat(**asked).json()
        assert alone.client.get("/server_info").json()["speculative_algorithm"] is None
        assert not [name for name in alone.metrics() if "spec" in name]
    assert baseline["choices"][0]["message"] == plain["choices"][0]["message"]
    for body in (one, baseline):
        assert "sglext" not in body
        assert not [key for key in body["choices"][0]["meta_info"] if key.startswith("spec_")]


def test_a_stream_has_the_same_text_in_sglangs_order(shared):
    whole = shared.chat(return_spec_tokens_details=True).json()
    chunks = events(shared.chat(stream=True, return_spec_tokens_details=True, stream_options={"include_usage": True}))
    first, *pieces, ending, extension, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    texts = [piece["choices"][0]["delta"]["content"] for piece in pieces]
    assert "".join(texts) == whole["choices"][0]["message"]["content"]
    assert "🦆" in "".join(texts)
    assert all(texts)
    assert len(texts) > 3, "a chunk for each step"
    assert ending["choices"][0]["finish_reason"] == "length"
    assert (extension["choices"], extension["sglext"]) == ([], whole["sglext"])
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert {chunk["id"] for chunk in chunks} == {first["id"]}
    bare = events(shared.chat(stream=True))
    assert [chunk["choices"][0]["finish_reason"] for chunk in bare][-1] == "length"
    assert all(chunk["usage"] is None for chunk in bare)


def test_usage_in_every_chunk(shared):
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk["usage"] for chunk in events(shared.chat(stream=True, stream_options=options)) if chunk["usage"]]
    tokens = [count["completion_tokens"] for count in counts]
    assert tokens[:2] == [0, 1], "the first token comes before the first step"
    assert tokens == sorted(tokens)
    assert tokens[-1] == 40


def test_a_stop_token_is_named(monkeypatch):
    pair = make_pair()
    stopping = dataclasses.replace(pair.target.info, stop_ids=(30,))
    monkeypatch.setattr("toy_server.make_pair", lambda: pair)
    pair.target.info = stopping
    with serving() as served:
        choice = served.chat(return_meta_info=True).json()["choices"][0]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", 30)
    assert choice["meta_info"]["finish_reason"] == {"type": "stop", "matched": 30}


def test_sampling_repeats_by_seed_and_follows_the_running_number_without(served):
    def text(**fields):
        return served.chat(temperature=3.0, **fields).json()["choices"][0]["message"]["content"]

    assert text(seed=5) == text(seed=5)
    assert text() != text()
    first = served.chat(temperature=1.0, top_k=1).json()["choices"][0]["message"]["content"]
    assert first == decoded()[0].pair.text.decode(decoded()[0].output_ids)


def test_a_conversation_reaches_the_decoder(shared):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]
    body = shared.chat(messages=[*turns, {"role": "user", "content": "c"}]).json()
    assert body["usage"]["prompt_tokens"] == len("a.b.c.")


def test_who_it_is(shared):
    card = shared.client.get("/v1/models").json()["data"][0]
    assert (card["id"], card["owned_by"]) == ("toy", "dflash-lab")
    assert shared.client.get("/v1/models/toy").json() == card
    info = shared.client.get("/server_info").json()
    assert info["speculative_algorithm"] == "DFLASH"
    assert info["speculative_num_draft_tokens"] == 4
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 1
    assert info["dflash_lab"]["drafter"]["name"] == "toy drafter"
    assert shared.client.get("/get_server_info").json().keys() == info.keys()
    assert shared.client.get("/model_info").json()["served_model_name"] == "toy"
    assert shared.client.get("/v1/loads").json()["loads"][0]["max_running_requests"] == 1
    for path in ("/health", "/health_generate", "/ready"):
        assert shared.client.get(path).status_code == 200
    assert "not a product" in shared.client.get("/").text


def test_the_counters_add_up_over_requests(served):
    bodies = [served.chat(max_tokens=n, return_meta_info=True).json() for n in (40, 25)]
    events(served.chat(max_tokens=30, stream=True))
    steps = (
        sum(body["choices"][0]["meta_info"]["spec_verify_ct"] for body in bodies)
        + decoded(max_new_tokens=30)[1].num_steps
    )
    prompts = [body["usage"]["prompt_tokens"] for body in bodies]
    found = served.metrics()
    assert found["sglang:spec_verify_calls_total"] == steps
    assert found['sglang:generation_tokens_total{is_streaming="false"}'] == 65
    assert found['sglang:generation_tokens_total{is_streaming="true"}'] == 30
    assert found['sglang:prompt_tokens_total{is_streaming="false"}'] == sum(prompts)
    assert found['sglang:num_requests_total{is_streaming="true"}'] == 1
    decode = [
        value for name, value in found.items() if name.startswith("sglang:realtime_tokens_total") and "decode" in name
    ]
    assert decode == [95]
    assert found['sglang:time_to_first_token_seconds_count{is_streaming="false"}'] == 2
    assert found['sglang:e2e_request_latency_seconds_bucket{is_streaming="false",le="+Inf"}'] == 2
    gauges = {name.partition("{")[0]: value for name, value in found.items()}
    assert (gauges["sglang:num_running_reqs"], gauges["sglang:num_queue_reqs"]) == (0, 0)
    assert 1 <= gauges["sglang:spec_accept_length"] <= 4
    assert gauges["sglang:gen_throughput"] > 0


def test_flushing_resets_the_average_but_not_the_counters(served):
    assert "avg_spec_accept_length" not in served.client.get("/server_info").json()["internal_states"][0]
    served.chat()
    found = served.client.get("/server_info").json()["internal_states"][0]
    assert found["avg_spec_accept_length"] == pytest.approx(decoded()[1].mean_acceptance_length)
    before = served.metrics()
    assert served.client.post("/flush_cache").status_code == 200
    assert "avg_spec_accept_length" not in served.client.get("/server_info").json()["internal_states"][0]
    assert served.metrics() == before


def test_requests_wait_for_their_turn(slow):
    with serving() as served:
        slow.clear()
        answers = []
        senders = [threading.Thread(target=lambda: answers.append(served.chat().json())) for _ in range(3)]
        for sender in senders:
            sender.start()
        served.wait_for(lambda: (served.engine.counters.running, served.engine.counters.waiting) == (1, 2))
        gauges = {name.partition("{")[0]: value for name, value in served.metrics().items()}
        assert (gauges["sglang:num_running_reqs"], gauges["sglang:num_queue_reqs"]) == (1, 2)
        assert served.client.post("/flush_cache").status_code == 400
        slow.set()
        for sender in senders:
            sender.join()
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_request_running_or_waiting(slow, stream):
    with serving() as served:
        slow.clear()
        counters = served.engine.counters
        body = {"messages": [{"role": "user", "content": "the duck"}], "max_tokens": 500, "stream": stream}
        leaving = [threading.Thread(target=leave, args=(served.url, body)) for _ in range(2)]
        for client in leaving:
            client.start()
        served.wait_for(lambda: (counters.running, counters.waiting) == (1, 1))
        for client in leaving:
            client.join()
        slow.set()
        served.wait_for(lambda: (counters.running, counters.waiting) == (0, 0))
        totals = counters.totals
        assert totals["num_aborted"] == 2
        assert totals["completion_tokens"] < 100
        assert served.chat().json()["usage"]["completion_tokens"] == 40


def leave(url: str, body: dict) -> None:
    """Send and go away without an answer."""
    with pytest.raises(httpx.ReadTimeout), httpx.Client(timeout=0.4, trust_env=False) as client:
        client.post(f"{url}/v1/chat/completions", json=body)


@pytest.mark.parametrize("stream", [True, False])
def test_stopping_the_server_ends_what_is_running(stream):
    with serving() as served:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 10**6, "stream": stream}
        sender = threading.Thread(target=cut_off, args=(served.url, body))
        sender.start()
        served.wait_for(lambda: served.engine.counters.running == 1)
    sender.join()
    assert served.engine.counters.running == 0
    assert served.engine.counters.totals["num_aborted"] == 1


def cut_off(url: str, body: dict) -> None:
    """Send and get no whole answer."""
    with contextlib.suppress(httpx.HTTPError):
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20, trust_env=False)
        assert answer.status_code == 500


def test_a_decoder_that_breaks_off_is_an_error_and_the_next_request_is_served(served, monkeypatch):
    from dflash_lab.core.errors import NumericsError
    from dflash_lab.core.generate import Generation

    steps = Generation.__iter__

    def breaking(self):
        for step in steps(self):
            if step.record.index == 2:
                raise NumericsError("logits are not finite in step 2")
            yield step

    monkeypatch.setattr(Generation, "__iter__", breaking)
    answer = served.chat()
    assert answer.status_code == 500
    assert answer.json()["message"] == "logits are not finite in step 2"
    streamed = events(served.chat(stream=True))
    assert streamed[-1]["error"]["message"] == "logits are not finite in step 2"
    monkeypatch.setattr(Generation, "__iter__", steps)
    assert served.chat().status_code == 200
    assert served.engine.counters.totals["num_aborted"] == 2


def test_a_fault_of_the_servers_own_is_told_as_one(served):
    answer = served.chat(messages=[{"role": "user", "content": "letters the toy does not know: É"}])
    assert answer.status_code == 500
    assert answer.json()["message"] == "ValueError: substring not found"
    assert (served.engine.counters.running, served.engine.counters.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"model": "other"}, 404, "the model 'other' is not served here; this server has 'toy'"),
        ({"messages": []}, 400, "messages: list should have at least 1 item"),
        ({"messages": "hi"}, 400, "messages: input should be a valid list"),
        ({"messages": [{"role": "user", "content": "  "}]}, 400, "the prompt is empty"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, 400, "messages.0.role: input should be 'system'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages.0.content.0.type"),
        ({"max_tokens": 0}, 400, "max_tokens: input should be greater than or equal to 1"),
        ({"max_tokens": "5"}, 400, "max_tokens: input should be a valid integer"),
        ({"temperature": -1}, 400, "temperature must be 0 (greedy) or a positive number, got -1.0"),
        ({"top_p": 0}, 400, "top_p must be in (0, 1], got 0.0"),
        ({"n": 2}, 400, "n = 2 is not something this bench server does: leave it out"),
        ({"stop": ["\n"]}, 400, "stop = ['\\n'] is not something"),
        ({"stream": True, "return_meta_info": True}, 400, "return_meta_info is not supported with streaming"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(shared, fields, code, message):
    answer = shared.chat(**fields)
    assert answer.status_code == code
    body = answer.json()
    assert body["message"].startswith(message)
    assert "\n" not in body["message"]
    assert (body["object"], body["code"]) == ("error", code)
    assert shared.engine.counters.waiting == 0


def test_bodies_that_are_none(shared):
    def post(content, kind="application/json"):
        answer = shared.client.post("/v1/chat/completions", content=content, headers={"content-type": kind})
        return answer.status_code, answer.json()["message"]

    assert post("{") == (
        400,
        "the body is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    )
    assert post("[]") == (400, "the body is a list, expected a JSON object with messages")
    assert post("\xff".encode("latin-1"))[0] == 400
    assert post("{}", "text/plain") == (415, "expected Content-Type application/json, got text/plain")
    assert shared.client.get("/v1/chat/completions").json()["code"] == 405
    assert shared.client.get("/v1/completions").json()["type"] == "NotFound"
    assert shared.client.get("/v1/models/other").status_code == 404


def test_a_key_is_wanted_everywhere_but_for_health_and_metrics():
    with serving(api_key="secret") as served:
        for path in ("/health", "/ready", "/metrics"):
            assert served.client.get(path).status_code == 200
        assert served.client.get("/server_info").status_code == 401
        assert served.chat().status_code == 401
        served.client.headers["authorization"] = "Bearer secret"
        assert served.chat().status_code == 200
