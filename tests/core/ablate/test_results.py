"""The folder of a sweep: whole rows, one writer, models known by their contents."""

import json

import pytest

from dflash_lab.core.ablate import results
from dflash_lab.core.ablate.results import PLAN, ROWS, cell_key, fingerprint, load_results, open_results
from dflash_lab.core.errors import DataError, RequestError


def row(key, **values):
    return {"schema_version": 1, "key": key, **values}


def test_rows_come_back_and_the_last_of_a_cell_counts(tmp_path):
    with open_results(tmp_path / "s") as writer:
        for each in (row("a", error="out of memory"), row("b", value=1), row("a", value=2)):
            writer.append(each)
    found = load_results(tmp_path / "s")
    assert [(each["key"], each.get("value")) for each in found.rows] == [("a", 2), ("b", 1)]
    assert found.warnings == ()
    with open_results(tmp_path / "s") as writer:
        assert writer.done == {"a", "b"}


def test_a_failed_cell_is_tried_again(tmp_path):
    with open_results(tmp_path) as writer:
        writer.append(row("a", error="out of memory"))
    with open_results(tmp_path) as writer:
        assert writer.done == set()


@pytest.mark.parametrize("torn", ['{"schema_version": 1, "key": "c", "val', "{", "\x00\x00"])
def test_a_half_written_row_is_cut_off_and_nothing_else(tmp_path, torn):
    with open_results(tmp_path) as writer:
        writer.append(row("a", text="ä\u2028"))
    with open(tmp_path / ROWS, "a", encoding="utf-8") as sink:
        sink.write(torn)
    found = load_results(tmp_path)
    assert [each["key"] for each in found.rows] == ["a"]
    assert "half-written" in found.warnings[0]
    with open_results(tmp_path) as writer:
        writer.append(row("b"))
    lines = (tmp_path / ROWS).read_text(encoding="utf-8").split("\n")
    assert [json.loads(line)["key"] for line in lines[:-1]] == ["a", "b"]
    assert lines[-1] == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [("not json", "row 2: not a row of a sweep"), ('{"a": 1}', "row 2: not a row"), ('[1]', "row 2: not a row"),
     ('{"schema_version": 9, "key": "k"}', "row 2 has schema_version 9, this version reads 1")],
)  # fmt: skip
def test_a_row_that_is_none_is_named(tmp_path, line, said):
    (tmp_path / ROWS).write_text(json.dumps(row("a")) + "\n" + line + "\n")
    with pytest.raises(DataError, match=said):
        load_results(tmp_path)


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(DataError, match="no results.jsonl in"):
        load_results(tmp_path)
    (tmp_path / ROWS).write_text("")
    (tmp_path / PLAN).write_text("{")
    with pytest.raises(DataError, match="not a sweep's plan"):
        load_results(tmp_path)


def test_one_sweep_writes_at_a_time(tmp_path):
    with open_results(tmp_path), pytest.raises(RequestError, match="another sweep is writing to"):  # noqa: SIM117
        with open_results(tmp_path):
            pass
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot write to"), open_results(tmp_path / "file"):
        pass


def test_a_key_depends_on_everything():
    assert cell_key({"a": 1, "b": 2}) == cell_key({"b": 2, "a": 1})
    assert len({cell_key({"a": 1}), cell_key({"a": 2}), cell_key({"b": 1})}) == 3


def test_a_model_is_known_by_its_contents(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="no config.json and no"):
        fingerprint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(range(200)))
    before = fingerprint(tmp_path)
    assert before == fingerprint(tmp_path)
    weights.write_bytes(bytes(range(1, 200)) + b"\0")
    assert fingerprint(tmp_path) != before
    monkeypatch.setattr(results, "SAMPLES", 3)
    monkeypatch.setattr(results, "SAMPLE_BYTES", 10)
    starts = list(results._sample_starts(200))
    assert starts == [0, 95, 190], "from the first byte to the last"
    assert list(results._sample_starts(25)) == [0, 10, 20]
