"""A trace in one `.safetensors` file: JSON header and steps in its metadata, tensors named `<name>/<step>`.

The file holds numbers and text only, so opening one from a stranger runs no code. Tensors are read when asked for.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

from dflash_lab.core.errors import TraceError
from dflash_lab.core.trace.codec import from_json, to_json
from dflash_lab.core.trace.schema import SCHEMA_VERSION, TENSORS, Trace, TraceHeader
from dflash_lab.core.types import StepRecord

_KEY = re.compile(r"(\w+)/(\d{6,})")
_SPEC = re.compile(r"(\w+) \[(.*?)\]")
_LAYOUT = {name: (m[1], tuple(m[2].split(", "))) for name, text in TENSORS.items() if (m := _SPEC.match(text))}
"""dtype and axis letters of each tensor, as its line in the schema says."""
_DTYPES = {"float32": "F32", "int32": "I32"}


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write `trace` to `path`, whole or not at all: to a temporary file beside it, flushed, then renamed.

    Raises TraceError if a tensor does not fit the schema or the file cannot be written; nothing is left behind.
    """
    path = Path(path)
    arrays = {}
    for record in trace.steps:
        for name in TENSORS:
            array = trace.tensor(name, record.index)
            if array is not None:
                check_tensor(name, array, record, trace.header)
                arrays[f"{name}/{record.index:06d}"] = array
    metadata = {"header": _dumps(trace.header), "steps": _dumps(trace.steps)}
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with open(temporary, "xb") as file:
            _write(file, metadata, arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise TraceError(f"cannot write the trace {path}: {error.strerror}; nothing was written") from error
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> Trace:
    """Open the trace at `path`; its tensors are read from the file when they are asked for.

    Raises TraceError if it is missing, truncated, no trace, of another schema version, or holds an unknown tensor.
    """
    path = Path(path)
    handle, metadata = _open(path)
    header = _header(path, metadata)
    where = f"{path.name}: steps"
    steps = from_json(tuple[StepRecord, ...], _loads(metadata.get("steps", "[]"), where), where)
    _check_records(steps, header, where)
    records = {record.index: record for record in steps}
    keys = frozenset(handle.keys())
    for key in keys:
        match = _KEY.fullmatch(key)
        if match is None or match[1] not in TENSORS:
            raise TraceError(f"{path.name}: unknown tensor {key!r}; expected <name>/<step>, names {', '.join(TENSORS)}")

    def fetch(name: str, step: int) -> np.ndarray | None:
        key = f"{name}/{step:06d}"
        if key not in keys or step not in records:
            return None
        array = handle.get_tensor(key)
        check_tensor(name, array, records[step], header)
        return array

    return Trace(header, steps, fetch, path.name)


def read_header(path: str | os.PathLike[str]) -> TraceHeader:
    """The header alone, without steps and tensors; raises TraceError as `load` does."""
    path = Path(path)
    return _header(path, _open(path)[1])


def check_tensor(name: str, array: np.ndarray, record: StepRecord, header: TraceHeader) -> None:
    """Raise TraceError unless dtype and shape of `array` are what the schema gives `name` in this step.

    K is the step's proposal, L is K + 1, C is the header's number of candidates; S, D and F*D may be anything.
    """
    dtype, axes = _LAYOUT[name]
    num_drafted = len(record.draft_ids)
    sizes = {"K": num_drafted, "L": num_drafted + 1, "C": header.num_candidates, "2": 2}
    expected = [sizes.get(axis, axis) for axis in axes]
    fits = array.ndim == len(axes) and all(
        isinstance(size, str) or size == length for size, length in zip(expected, array.shape, strict=True)
    )
    if str(array.dtype) != dtype or not fits:
        raise TraceError(
            f"tensor {name!r} of step {record.index}: expected {dtype} {expected}, "
            f"got {array.dtype} {list(array.shape)}; record the trace again"
        )


def _write(file: BinaryIO, metadata: dict[str, str], arrays: dict[str, np.ndarray]) -> None:
    """The safetensors layout: length of the index, the index as JSON, the tensors in the order of the steps.

    Written here because the library's own writer shuffles the metadata: equal traces give equal files.
    """
    index: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for key, array in arrays.items():
        start, end = end, end + array.nbytes
        index[key] = {"dtype": _DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(index, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors start aligned
    file.write(len(text).to_bytes(8, "little") + text)
    for array in arrays.values():
        file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def _open(path: Path) -> tuple[Any, dict[str, str]]:
    try:
        handle = safe_open(path, framework="numpy")
    except FileNotFoundError as error:
        raise TraceError(f"no trace at {path}; expected a .safetensors file") from error
    except (OSError, SafetensorError) as error:
        raise TraceError(f"{path.name}: {_diagnose(path)}") from error
    return handle, handle.metadata() or {}


def _diagnose(path: Path) -> str:
    """Why `path` could not be opened, from its first bytes: length of the header, then the header, a JSON object."""
    try:
        with open(path, "rb") as file:
            start, size = file.read(9), os.fstat(file.fileno()).st_size
    except OSError:
        return "cannot be read; expected a trace, a .safetensors file"
    # The format allows no header above 100 MB, so a larger length is text, an archive or a pickle.
    if start[8:] != b"{" or int.from_bytes(start[:8], "little") > 100_000_000:
        return "not a safetensors file; expected a trace written by dflash-lab"
    if int.from_bytes(start[:8], "little") + 8 > size:
        return "truncated inside its header; copy or record it again"
    return "truncated or damaged; copy or record it again"


def _header(path: Path, metadata: dict[str, str]) -> TraceHeader:
    if "header" not in metadata:
        raise TraceError(f"{path.name}: a safetensors file without a trace header; expected one that --trace wrote")
    where = f"{path.name}: header"
    data = _loads(metadata["header"], where)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int:
        raise TraceError(f"{where}: expected an integer schema_version, got {version!r:.60}; not a dflash-lab trace")
    if version != SCHEMA_VERSION:
        advice = "update dflash-lab" if version > SCHEMA_VERSION else "record the trace again"
        raise TraceError(f"{path.name}: expected trace schema {SCHEMA_VERSION}, got {version}; {advice}")
    return from_json(TraceHeader, data, where)


def _check_records(steps: tuple[StepRecord, ...], header: TraceHeader, where: str) -> None:
    """Raise TraceError where a step cannot be read against the text: every reader counts on these bounds."""
    previous = -1
    for record in steps:
        at, num_drafted, first = f"{where}: step {record.index}", len(record.draft_ids), len(header.prompt_ids)
        if record.index <= previous:
            raise TraceError(f"{at}: expected rising step numbers, the one before is {previous}; record it again")
        if not 0 <= record.num_accepted <= num_drafted:
            raise TraceError(f"{at}: expected 0 to {num_drafted} accepted, got {record.num_accepted}; record it again")
        if record.start < first:
            raise TraceError(f"{at}: expected a start after the prompt, {first}, got {record.start}; record it again")
        previous = record.index


def _dumps(value: Any) -> str:
    try:
        return json.dumps(to_json(value), allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise TraceError(
            "a trace's header and steps need finite numbers, got nan or infinity; record it again"
        ) from error


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: expected JSON, got {text!r:.40} ({error}); copy or record it again") from error
