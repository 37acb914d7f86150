"""The run file: everything comes back, also while it is written and after a torn line."""

from __future__ import annotations

import json

import pytest

from dflash_lab.core.errors import RunError
from dflash_lab.core.serve.records import LoadPlan, RequestRecord, RunEnd, RunHeader, ServerInfo, ServerStats, Snapshot
from dflash_lab.core.serve.runfile import RunReader, RunWriter, Segment, read_run

HEADER = RunHeader(
    label="DFlash 2",
    server=ServerInfo("http://127.0.0.1:1", "sglang", "tiny", settings={"tp_size": 1}, statistics=("meta_info",)),
    plan=LoadPlan("gsm8k", num_prompts=3),
    body={"temperature": 0.0},
    source="gsm8k.jsonl",
    available=3,
    prompt_ids=("gsm8k/2", "gsm8k/0", "gsm8k/1"),
)
STATS = ServerStats("meta_info", "sglang >= 0.5.12", 4, 6, 12, (1, 1, 1, 1), 3, 2.5, 0.5, "tokens_per_step")


def request(index: int, **more) -> RequestRecord:
    return RequestRecord(index, f"gsm8k/{index}", "math", "ab", sent_at_s=100.0 + index, duration_s=0.5, **more)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "run.jsonl"


def test_everything_comes_back(path):
    warm = request(0)
    good = request(0, chunk_s=(0.1, 0.2), completion_tokens=11, stats=STATS)
    bad = request(1, failure="cut", message="the connection ended")
    snapshot = Snapshot(101.0, "metrics", running=2, accepted_by_position=(3, 2, 1))
    with RunWriter(path, HEADER) as writer:
        writer.write("warmup", warm)
        writer.write("segment", Segment(0, 100.0))
        writer.write("request", good)
        writer.write("snapshot", snapshot)
        writer.write("request", bad)
        assert read_run(path).status == "running"
        writer.write("end", RunEnd("interrupted", 102.0))
    run = read_run(path)
    assert run.header == HEADER
    assert run.warmups == [warm]
    assert run.attempts == [good, bad]
    assert run.snapshots == [snapshot]
    assert run.status == "interrupted"
    assert run.missing == [2]
    assert run.requests[0].stats.acceptance_length == 2.5


def test_a_run_is_followed_while_it_is_written(path):
    with RunWriter(path, HEADER) as writer:
        reader = RunReader(path)
        assert not reader.poll()
        writer.write("segment", Segment(0, 100.0))
        writer.write("request", request(1))
        assert reader.poll()
        with open(path, "ab") as torn:
            torn.write(b'{"kind": "request", "ind')
        assert not reader.poll()
        assert [record.index for record in reader.run.attempts] == [1]


def test_a_torn_line_is_cut_away_before_it_goes_on(path):
    with RunWriter(path, HEADER) as writer:
        writer.write("segment", Segment(0, 100.0))
        writer.write("request", request(0, failure="cancelled"))
        writer.write("end", RunEnd("interrupted", 101.0))
    with open(path, "ab") as torn:
        torn.write(b'{"kind": "snapsh')
    with RunWriter(path) as writer:
        writer.write("segment", Segment(1, 200.0))
        writer.write("request", request(0, segment=1))
    run = read_run(path)
    assert run.status == "running"
    assert [record.segment for record in run.attempts] == [0, 1]
    assert [record.segment for record in run.requests] == [1]
    assert run.missing == [1, 2]


@pytest.mark.parametrize(("failure", "again"), [("connection", True), ("cut", True), ("status", False)])
def test_what_was_lost_with_the_server_is_asked_again(path, failure, again):
    with RunWriter(path, HEADER) as writer:
        writer.write("segment", Segment(0, 100.0))
        for index in range(3):
            writer.write("request", request(index, failure=failure if index == 1 else None))
        writer.write("end", RunEnd("server lost", 101.0))
    assert read_run(path).missing == ([1] if again else [])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no run"),
        ('{"kind": "header"', "holds no run"),
        ("hello\n", "line 1: expected a JSON object with a kind"),
        ('{"kind": "request"}\n', "expected a header"),
        ('{"kind": "header", "schema": 2}\n', "run schema 2, this dflash-lab reads 1"),
        ('{"kind": "header", "schema": 1, "colour": 1}\n', "does not fit RunHeader"),
    ],
)
def test_what_is_not_a_run_is_refused(tmp_path, text, complaint):
    file = tmp_path / "x.jsonl"
    file.write_text(text)
    with pytest.raises(RunError, match=complaint):
        read_run(file)


def test_an_unknown_line_is_refused_by_name(path):
    with RunWriter(path, HEADER):
        pass
    with open(path, "a") as file:
        file.write(json.dumps({"kind": "haiku"}) + "\n")
    with pytest.raises(RunError, match="'haiku'"):
        read_run(path)


def test_a_run_is_never_written_over(path):
    with RunWriter(path, HEADER):
        pass
    with pytest.raises(RunError, match="exists"):
        RunWriter(path, HEADER)
