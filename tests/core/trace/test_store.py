import dataclasses
import errno
import json
import pickle
import stat
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from safetensors import safe_open
from safetensors.numpy import save_file
from toy_traces import make_trace, traces, with_header

from dflash_lab.core.errors import TraceError
from dflash_lab.core.trace import store
from dflash_lab.core.trace.codec import to_json
from dflash_lab.core.trace.schema import TENSORS, TokenInfo, Trace, TraceHeader

TRACE = make_trace([0, 1, 2, 3, 4, 5] * 3, [3, 2])


@given(traces())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip(tmp_path, trace):
    store.save(trace, tmp_path / "trace.safetensors")
    loaded = store.load(tmp_path / "trace.safetensors")
    assert loaded.header == trace.header == store.read_header(tmp_path / "trace.safetensors")
    assert loaded.steps == trace.steps
    for step in range(len(trace) + 1):
        for name in TENSORS:
            before, after = trace.tensor(name, step), loaded.tensor(name, step)
            assert (before is None) == (after is None)
            if before is not None:
                np.testing.assert_array_equal(after, before)
                assert after.dtype == before.dtype


def test_special_values_and_hostile_text_survive(tmp_path):
    plain = make_trace([0, 1, 2, 3], [2], num_candidates=3)
    unary = np.array([[np.inf, 0, -np.inf], [np.nan, -0.0, 1]], np.float32)
    header = dataclasses.replace(
        plain.header,
        prompt="</script>\u2028\0é \N{PILE OF POO} lone \ud83d",
        tokens={7: TokenInfo("\ufffd", raw="e2", special=False)},
        warnings=("a\nb",),
    )
    trace = Trace.from_arrays(header, plain.steps[:1], {("unary", 0): unary})
    path = tmp_path / "träce ☃ \N{PILE OF POO}.safetensors"
    store.save(trace, path)
    loaded = store.load(path)
    assert loaded.name == path.name
    assert loaded.header == header
    assert loaded.tensor("unary", 0).tobytes() == unary.tobytes()


@pytest.mark.parametrize("status", ["complete", "cancelled", "failed"])
def test_no_tensors_missing_steps_and_every_status_are_allowed(tmp_path, status):
    trace = Trace.from_arrays(dataclasses.replace(TRACE.header, status=status), TRACE.steps[1::2], {})
    store.save(trace, tmp_path / "t")
    loaded = store.load(tmp_path / "t")
    assert loaded.steps == trace.steps
    assert loaded.tensor("unary", 1) is loaded.tensor("unary", 12345) is None
    store.save(Trace.from_arrays(TraceHeader(), (), {}), tmp_path / "t")
    assert store.load(tmp_path / "t").header == TraceHeader()


def test_the_layout_on_disk(tmp_path):
    path = tmp_path / "t"
    store.save(TRACE, path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(_plain_file(tmp_path / "plain").stat().st_mode)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
        assert set(metadata) == {"header", "steps"}
        assert metadata["header"].startswith('{"schema_version":1,')
        assert json.loads(metadata["steps"])[2]["index"] == 2
        np.testing.assert_array_equal(file.get_tensor("unary/000002"), TRACE.tensor("unary", 2))
    before = path.read_bytes()
    store.save(store.load(path), path)
    assert path.read_bytes() == before


def _plain_file(path):
    path.touch()
    return path


def refused(path):
    with pytest.raises(TraceError) as caught:
        store.load(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("content", [b"", b"hi", b"a text file of some length\n" * 9, pickle.dumps({"header": 1})])
def test_what_is_no_safetensors_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    assert refused(path) == "odd.safetensors: not a safetensors file; expected a trace written by dflash-lab"


def test_an_archive_a_folder_and_nothing_at_all_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("data.pkl", pickle.dumps([1]))
    assert "not a safetensors file" in refused(tmp_path / "model.pt")
    assert "cannot be read" in refused(tmp_path)
    assert refused(tmp_path / "none").startswith(f"no trace at {tmp_path / 'none'}")


def test_truncation_is_noticed_at_every_length(tmp_path):
    path = tmp_path / "t"
    store.save(TRACE, path)
    content = path.read_bytes()
    header_end = 8 + int.from_bytes(content[:8], "little")
    for length in {9, 100, header_end - 1, header_end, header_end + 1, len(content) - 1}:
        path.write_bytes(content[:length])
        assert "truncated" in refused(path)


def write(path, header=None, tensors=None, steps="[]"):
    metadata = {} if header is None else {"header": header if isinstance(header, str) else json.dumps(header)}
    save_file(tensors or {"path/000000": np.zeros(1, np.int32)}, path, metadata | {"steps": steps})
    return path


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, "t: a safetensors file without a trace header; expected one that --trace wrote"),
        ("{", "t: header: expected JSON, got '{'"),
        ("[" * 100_000, "t: header: expected JSON, got '[[["),
        ("[]", "t: header: expected an integer schema_version, got None"),
        ({"schema_version": "1"}, "t: header: expected an integer schema_version, got '1'"),
        ({"schema_version": 2, "new": 1}, "t: expected trace schema 1, got 2; update dflash-lab"),
        ({"schema_version": 0}, "t: expected trace schema 1, got 0; record the trace again"),
        (to_json(TraceHeader()) | {"colour": 1}, "t: header: unknown key 'colour'; expected schema_version, "),
        (to_json(TraceHeader()) | {"prompt_ids": "x"}, "t: header.prompt_ids: expected a list, got 'x'"),
    ],
)
def test_a_header_that_does_not_fit_is_refused_by_name(tmp_path, header, message):
    path = write(tmp_path / "t", header)
    assert refused(path).startswith(message)
    with pytest.raises(TraceError):
        store.read_header(path)


@pytest.mark.parametrize("key", ["logits/000000", "path", "path/0", "path/00000x", "path/000000/1"])
def test_an_unknown_tensor_is_refused_by_name(tmp_path, key):
    path = write(tmp_path / "t", to_json(TraceHeader()), {key: np.zeros(1, np.int32)})
    assert refused(path).startswith(f"t: unknown tensor {key!r}; expected <name>/<step>")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_accepted": 9}, "step 1: expected 0 to 2 accepted, got 9"),
        ({"num_accepted": -1}, "step 1: expected 0 to 2 accepted, got -1"),
        ({"start": 1}, "step 1: expected a start after the prompt, 2, got 1"),
        ({"index": 0}, "step 0: expected rising step numbers, the one before is 0"),
        ({"bonus": 0}, "unknown key 'bonus'"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_by_name(tmp_path, change, message):
    steps = to_json(TRACE.steps)
    steps[1] |= change
    assert message in refused(write(tmp_path / "t", to_json(TRACE.header), steps=json.dumps(steps)))


@pytest.mark.parametrize(
    ("name", "array", "got"),
    [
        ("unary", np.zeros((3, 3), np.float64), r"expected float32 \[3, 3\], got float64 \[3, 3\]"),
        ("unary", np.zeros((3, 4), np.float32), r"expected float32 \[3, 3\], got float32 \[3, 4\]"),
        ("path", np.zeros(4, np.int32), r"expected int32 \[3\], got int32 \[4\]"),
        ("target_top2", np.zeros((4, 3), np.float32), r"expected float32 \[4, 2\], got float32 \[4, 3\]"),
        ("context", np.zeros(4, np.float32), r"expected float32 \['S', 'D'\], got float32 \[4\]"),
    ],
)
def test_wrong_shapes_are_refused_when_asked_for_and_when_saved(tmp_path, name, array, got):
    path = write(
        tmp_path / "t", to_json(TRACE.header), {f"{name}/000000": array}, steps=json.dumps(to_json(TRACE.steps))
    )
    loaded = store.load(path)
    message = f"tensor '{name}' of step 0: {got}"
    with pytest.raises(TraceError, match=message):
        loaded.tensor(name, 0)
    with pytest.raises(TraceError, match=message):
        store.save(Trace.from_arrays(TRACE.header, TRACE.steps, {(name, 0): array}), tmp_path / "u")
    assert not (tmp_path / "u").exists()


def test_any_length_of_context_fits(tmp_path):
    arrays = {("context", 0): np.zeros((11, 5), np.float32), ("context", 1): np.zeros((2, 5), np.float32)}
    store.save(Trace.from_arrays(TRACE.header, TRACE.steps, arrays), tmp_path / "t")
    assert store.load(tmp_path / "t").tensor("context", 0).shape == (11, 5)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, number):
    path = tmp_path / "t"
    store.save(TRACE, path)
    before = path.read_bytes()

    def half_written(file, metadata, arrays):
        file.write(b"half")
        raise OSError(number, "no luck")

    monkeypatch.setattr(store, "_write", half_written)
    with pytest.raises(TraceError, match=r"cannot write the trace .*no luck; nothing was written"):
        store.save(with_header(TRACE, text="new"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(file, metadata, arrays):
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.save(TRACE, tmp_path / "t")
    assert not list(tmp_path.iterdir())


def test_impossible_places_and_numbers_are_one_line(tmp_path):
    with pytest.raises(TraceError, match=r"cannot write the trace .*No such file"):
        store.save(TRACE, tmp_path / "no" / "t")
    with pytest.raises(TraceError, match=r"cannot write the trace .*directory"):
        store.save(TRACE, tmp_path)
    with pytest.raises(TraceError, match="finite numbers, got nan or infinity"):
        store.save(with_header(TRACE, decode_s=float("nan")), tmp_path / "t")
    assert not list(tmp_path.iterdir())
