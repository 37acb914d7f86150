"""The published tables: read whole, matched by name only, and honest about what was not found."""

from __future__ import annotations

import pytest

from dflash_lab.core.serve.published import published_tables, tables_of


def test_every_table_names_hardware_source_and_confidence():
    for table in published_tables():
        assert all((table.target, table.hardware, table.source, table.confidence, table.acceptance_definition))
        assert table.block_size > 1
        for row in table.acceptance_length.values():
            assert all(1 <= value <= table.block_size for value in row.values())


def test_numbers_are_the_published_ones():
    (table,) = tables_of("Qwen/Qwen3.8-27B")
    assert table.acceptance_length["DFlash 2"]["GSM8K"] == 5.46
    assert table.hardware == "1x NVIDIA H200"


def test_a_table_without_numbers_has_none():
    (table,) = tables_of("qwen3.6-35b-a3b")
    assert table.acceptance_length == {}
    assert "not found" in table.confidence


@pytest.mark.parametrize("name", ["Qwen/Qwen3.5-4B", "/models/Qwen3.5-4B/", "qwen3.5-4b"])
def test_a_folder_named_like_the_target_fits(name):
    assert [table.target for table in tables_of(name)] == ["Qwen/Qwen3.5-4B"]


@pytest.mark.parametrize("name", ["bundled", "Qwen3.5-4B-Base", ""])
def test_another_target_has_no_table(name):
    assert tables_of(name) == ()
