"""The published tables: read whole, matched by name only, and honest about what was not found."""

from __future__ import annotations

import dataclasses

import pytest
from toy_runs import INFO

from dflash_lab.core.serve.published import BASELINE, DATASET_LABELS, differences, published_tables, tables_of
from dflash_lab.core.serve.records import LoadPlan

CARD = LoadPlan("gsm8k", 8, temperature=1.0, top_p=0.95, top_k=20, reasoning="xhigh", max_new_tokens=4096)


def test_every_table_names_hardware_source_and_confidence():
    for table in published_tables():
        assert all((table.target, table.hardware, table.source, table.confidence, table.acceptance_definition))
        assert table.block_size > 1
        for row in table.acceptance_length.values():
            assert all(1 <= value <= table.block_size for value in row.values())


def test_throughput_comes_with_its_load_and_definition():
    (table,) = tables_of("Qwen/Qwen3.8-Flash-Next-FP8")
    assert list(table.throughput_tok_s) == ["1", "8", "32"]
    assert table.throughput_tok_s["32"]["DFlash 2"]["MATH-500"] == 3173.3
    assert next(iter(table.throughput_tok_s["1"])) == BASELINE
    assert table.throughput_definition == "total output tokens / end-to-end wall time"
    assert (table.hardware, table.max_new_tokens, table.samples["8"]) == ("1x NVIDIA GB300", 4096, 1024)
    assert set(table.throughput_tok_s["1"][BASELINE]) == set(DATASET_LABELS.values())


def test_numbers_are_the_published_ones():
    (table,) = tables_of("Qwen/Qwen3.8-27B")
    assert table.acceptance_length["DFlash 2"]["GSM8K"] == 5.46
    assert table.hardware == "1x NVIDIA H200"


def test_a_table_without_numbers_has_none():
    (table,) = tables_of("qwen3.6-35b-a3b")
    assert (table.acceptance_length, table.throughput_tok_s) == ({}, {})
    assert "not found" in table.confidence


@pytest.mark.parametrize("name", ["Qwen/Qwen3.5-4B", "/models/Qwen3.5-4B/", "qwen3.5-4b"])
def test_a_folder_named_like_the_target_fits(name):
    assert [table.target for table in tables_of(name)] == ["Qwen/Qwen3.5-4B"]


@pytest.mark.parametrize("name", ["bundled", "Qwen3.5-4B-Base", ""])
def test_another_target_has_no_table(name):
    assert tables_of(name) == ()


def test_what_was_measured_as_published_differs_in_nothing():
    (table,) = tables_of(INFO.target)
    assert differences(table, INFO, CARD) == ()
    off = dataclasses.replace(INFO, speculation=False, drafts_per_step=None)
    assert differences(table, off, CARD) == ()


@pytest.mark.parametrize(
    ("server", "plan", "said"),
    [
        ({"hardware": "NVIDIA H200"}, {}, "hardware 1x NVIDIA GB300 there, 1x NVIDIA H200 here"),
        ({"num_devices": 2}, {}, "hardware 1x NVIDIA GB300 there, 2x NVIDIA GB300 here"),
        ({"hardware": None}, {}, "hardware 1x NVIDIA GB300 there, not told here"),
        ({"drafts_per_step": 7}, {}, "drafts per step 3 there, 7 here"),
        ({}, {"temperature": 0.0}, "temperature 1 there, 0 here"),
        ({}, {"reasoning": None}, "reasoning xhigh there, not set here"),
        ({}, {"max_new_tokens": 2048}, "most new tokens 4096 there, 2048 here"),
    ],
)
def test_every_difference_is_named(server, plan, said):
    (table,) = tables_of(INFO.target)
    assert differences(table, dataclasses.replace(INFO, **server), dataclasses.replace(CARD, **plan)) == (said,)
