"""The card's tables from one's own runs, and the refusal of what is not alike."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from toy_runs import INFO, OFF, record, run, stats

from dflash_lab.core.errors import RunError
from dflash_lab.core.serve.compare import bootstrap, compare

CARD = {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "reasoning": "xhigh", "max_new_tokens": 4096}
"""The sampling of Flash-Next's card."""


def fast(count: int = 10, seconds: float = 0.5, **more):
    """Answers of 100 tokens in 33 steps."""
    steps = stats([1, 1, 11, 20])
    return [record(i, sent_at_s=1000 + seconds * i, duration_s=seconds, stats=steps, **more) for i in range(count)]


def slow(count: int = 10, **more):
    return [record(i, sent_at_s=1000.0 + i, **more) for i in range(count)]


def test_tables_with_speed_up_and_intervals():
    found = compare([run(slow(), OFF, "off.jsonl"), run(fast(), name="on.jsonl")])
    off, on = found.cells
    assert (off.label, off.speedup, off.acceptance) == ("Autoregressive", None, None)
    assert (on.dataset, on.load, on.label) == ("GSM8K", "1", "DFlash 2")
    assert on.speedup.value == pytest.approx(2.0)
    assert on.speedup.low == pytest.approx(2.0)
    assert on.acceptance.value == pytest.approx(100 / 33)
    assert found.hardware == "1x NVIDIA GB300"
    assert found.warnings == ()


def test_intervals_hold_the_value_and_widen_with_noise():
    rng = np.random.default_rng(1)
    noisy = [record(i, sent_at_s=1000 + 2.0 * i, duration_s=float(rng.uniform(0.2, 0.9)), stats=stats([1, 1, 11, 20]))
             for i in range(40)]  # fmt: skip
    base = [record(i, sent_at_s=1000 + 2.0 * i) for i in range(40)]
    on = compare([run(base, OFF, "off.jsonl"), run(noisy, name="on.jsonl")]).cells[1]
    assert on.speedup.low < on.speedup.value < on.speedup.high
    values = rng.normal(10, 2, 400)
    low, high = bootstrap(400, lambda indices: values[indices].mean())
    assert low < values.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * 2 / 20, rel=0.2)
    assert bootstrap(1, lambda indices: 0.0) is None


def test_cells_are_by_data_set_and_load():
    runs = [
        run(slow(), OFF, "a.jsonl"),
        run(fast(), name="b.jsonl"),
        run(slow(), OFF, "c.jsonl", concurrency=8),
        run(fast(), name="d.jsonl", concurrency=8),
        run(fast(prompt_id="mbpp/1"), name="e.jsonl", dataset="mbpp"),
    ][::-1]
    found = compare(runs)
    assert [(cell.dataset, cell.load, cell.label) for cell in found.cells] == [
        ("GSM8K", "1", "Autoregressive"),
        ("GSM8K", "1", "DFlash 2"),
        ("GSM8K", "8", "Autoregressive"),
        ("GSM8K", "8", "DFlash 2"),
        ("MBPP", "1", "DFlash 2"),
    ]
    assert found.cells[-1].speedup is None, "there is no autoregressive run of these prompts"


@pytest.mark.parametrize(
    ("info", "plan", "name"),
    [
        ({"target": "other"}, {}, "target"),
        ({"hardware": "NVIDIA H200"}, {}, "hardware"),
        ({"num_devices": 4}, {}, "hardware"),
        ({"backend": "vllm"}, {}, "server"),
        ({}, {"temperature": 1.0}, "temperature"),
        ({}, {"top_p": 0.9}, "top_p"),
        ({}, {"top_k": 20}, "top_k"),
        ({}, {"max_new_tokens": 4096}, "max_new_tokens"),
        ({}, {"reasoning": "on"}, "reasoning"),
        ({}, {"stream": True}, "stream"),
        ({}, {"salt": True}, "salt"),
        ({}, {"seed": 7}, "seed"),
    ],
)
def test_unlike_runs_are_refused_by_name(info, plan, name):
    runs = [run(slow(), OFF, "off.jsonl"), run(fast(), dataclasses.replace(INFO, **info), "on.jsonl", **plan)]
    with pytest.raises(RunError, match=f"not comparable: {name} differs between off.jsonl and on.jsonl"):
        compare(runs)


def test_other_prompts_and_other_rendering_are_refused():
    with pytest.raises(RunError, match="prompts of GSM8K differ"):
        compare([run(slow(10), OFF, "off.jsonl"), run(fast(9), name="on.jsonl")])
    with pytest.raises(RunError, match="prompt gsm8k/0 has 50 tokens in off.jsonl and 54 in on.jsonl"):
        compare([run(slow(), OFF, "off.jsonl"), run(fast(prompt_tokens=54), name="on.jsonl")])
    with pytest.raises(RunError, match="two runs or more"):
        compare([run(slow())])


def test_what_can_mislead_is_said():
    nine = dataclasses.replace(INFO, drafts_per_step=7, method="MTP", version="0.5.20")
    other = [record(i, stats=stats([1] * 8, drafts=7)) for i in range(10)]
    found = compare([run(fast(), name="a.jsonl"), run(other, nine, "b.jsonl", status="server lost")])
    words = " | ".join(found.warnings)
    assert "drafts per step differ (3, 7): compare acceptance lengths, not rates" in words
    assert "versions of the server differ: 0.5.20, 0.5.23" in words
    assert "no run without speculation" in words
    assert "b.jsonl is server lost: 10 of 10 requests" in words


def test_a_cache_that_hits_in_one_arm_only_is_said():
    runs = [run(slow(cached_tokens=40), OFF, "off.jsonl"), run(fast(cached_tokens=0), name="on.jsonl")]
    assert any("never with it" in text for text in compare(runs).warnings)
    both = [run(slow(cached_tokens=40), OFF, "off.jsonl"), run(fast(cached_tokens=40), name="on.jsonl")]
    assert not any("never with it" in text for text in compare(both).warnings)


def test_published_numbers_stand_beside_and_are_divided_by_on_the_same_hardware_only():
    same = compare([run(slow(), OFF, "off.jsonl", **CARD), run(fast(), name="on.jsonl", **CARD)])
    (table,) = same.published
    assert table.hardware == "1x NVIDIA GB300"
    on = same.cells[1]
    assert on.published_tok_s == 368.2
    assert on.of_published == pytest.approx(200 / 368.2)
    h200 = dataclasses.replace(INFO, hardware="NVIDIA H200")
    elsewhere = compare([
        run(slow(), dataclasses.replace(OFF, hardware="NVIDIA H200"), "off.jsonl", **CARD),
        run(fast(), h200, "on.jsonl", **CARD),
    ])  # fmt: skip
    assert (elsewhere.cells[1].published_tok_s, elsewhere.cells[1].of_published) == (368.2, None)
    for change in ({"temperature": 0.0}, {"max_new_tokens": 2048}, {"reasoning": None}):
        other = compare([run(slow(), OFF, "a.jsonl", **CARD | change), run(fast(), name="b.jsonl", **CARD | change)])
        assert other.cells[1].of_published is None
    unknown = dataclasses.replace(INFO, target="gpt2"), dataclasses.replace(OFF, target="gpt2")
    nothing = compare([run(slow(), unknown[1], "a.jsonl"), run(fast(), unknown[0], "b.jsonl")])
    assert (nothing.published, nothing.cells[1].published_tok_s) == ((), None)


def texts(info, name, written, concurrency=1):
    records = [record(i, output_hash=text, stats=None) for i, text in enumerate(written)]
    return run(records, info, name, concurrency=concurrency)


@pytest.mark.parametrize(
    ("off", "off_again", "off_wide", "on", "on_wide", "verdict"),
    [
        ("abcd", "abcd", "abcd", "abcd", "abcd", "same"),
        ("abcd", "abxd", "abcd", "abcd", "abxd", "target"),
        ("abcd", "abcd", "axyd", "abcd", "axyd", "batching"),
        ("abcd", "abcd", "abcd", "axyd", "axyd", "speculation"),
        ("abcd", "abcd", "abcd", "abcd", "axyz", "speculation"),
    ],
)
def test_texts_tell_who_changed_them(off, off_again, off_wide, on, on_wide, verdict):
    runs = [
        texts(OFF, "1.jsonl", off),
        texts(OFF, "2.jsonl", off_again),
        texts(OFF, "3.jsonl", off_wide, 8),
        texts(INFO, "4.jsonl", on),
        texts(INFO, "5.jsonl", on_wide, 8),
    ]
    found = compare(runs).texts["GSM8K"]
    assert found.verdict == verdict
    counts = {(pair.a, pair.b): (pair.num_different, pair.num_compared) for pair in found.pairs}
    assert counts["off, serial", "off, serial"][1] == 4
    assert counts["off, serial", "on, serial"][1] == 8
    assert "on, serial" in found.unrepeated
    assert any("2.jsonl repeats 1.jsonl: only its texts are compared" in text for text in compare(runs).warnings)


def test_speculation_is_never_blamed_without_a_run_that_did_not_speculate():
    on = [texts(INFO, "4.jsonl", "abcd"), texts(INFO, "5.jsonl", "axyz", 8)]
    assert compare(on).texts["GSM8K"].verdict == "cannot tell"
    sampled = [run(slow(), OFF, "a.jsonl", temperature=1.0), run(fast(), name="b.jsonl", temperature=1.0)]
    assert compare(sampled).texts["GSM8K"].verdict == "not compared"
