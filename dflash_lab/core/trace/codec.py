"""Frozen dataclasses to JSON and back, strictly: an unknown, missing or mistyped key is an error that names it."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from dflash_lab.core.errors import TraceError

_Read = Callable[[Any, str], Any]


def to_json(value: Any) -> Any:
    """`value` as plain JSON data: dataclasses and mappings become objects, tuples become lists, enums their value.

    Fields keep their order. Raises TraceError for anything else, so that nothing is written that cannot be read back.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if dataclasses.is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    raise TraceError(
        f"a record may hold numbers, strings, lists and mappings, got {type(value).__name__}: convert it first"
    )


def from_json(kind: Any, value: Any, where: str) -> Any:
    """Read `value`, JSON data, as `kind`: a dataclass, or a type made of int, float, str, tuple, Mapping, `|`.

    `where` opens every message. Raises TraceError naming the place and what was expected there.
    """
    return _reader(kind)(value, where)


@functools.cache
def _reader(kind: Any) -> _Read:
    """The function that reads JSON data as `kind`; made once, because a trace has thousands of records."""
    if kind is Any:
        return lambda value, where: value
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments[0])
    if origin is Mapping:
        return _mapping_reader(*arguments)
    return _scalar_reader(kind)


def _union_reader(kinds: tuple[Any, ...]) -> _Read:
    """One kind or null, or a dataclass among others: JSON tells it from them, being an object."""
    objects = [_reader(kind) for kind in kinds if dataclasses.is_dataclass(kind)]
    others = [_reader(kind) for kind in kinds if kind is not type(None) and not dataclasses.is_dataclass(kind)]
    assert max(len(objects), len(others)) <= 1, kinds
    nothing = type(None) in kinds

    def read(value: Any, where: str) -> Any:
        if nothing and value is None:
            return None
        choices = objects if objects and (isinstance(value, dict) or not others) else others
        return choices[0](value, where)

    return read


def _scalar_reader(kind: type) -> _Read:
    # JSON does not tell 2.0 from 2, and Python counts a bool as an int.
    accepted = (int, float) if kind is float else (kind,)

    def read(value: Any, where: str) -> Any:
        if type(value) not in accepted:
            raise TraceError(f"{where}: expected {kind.__name__}, got {value!r:.60}")
        return kind(value)

    return read


def _tuple_reader(item: Any) -> _Read:
    read_item = _reader(item)

    def read(value: Any, where: str) -> tuple:
        if not isinstance(value, list):
            raise TraceError(f"{where}: expected a list, got {value!r:.60}")
        return tuple([read_item(entry, where) for entry in value])

    return read


def _mapping_reader(key: type, item: Any) -> _Read:
    read_item = _reader(item)

    def read(value: Any, where: str) -> dict:
        if not isinstance(value, dict):
            raise TraceError(f"{where}: expected an object, got {value!r:.60}")
        try:
            return {key(name): read_item(entry, f"{where}.{name}") for name, entry in value.items()}
        except ValueError as error:
            raise TraceError(f"{where}: expected {key.__name__} keys, got {', '.join(value)!r:.60}") from error

    return read


def _dataclass_reader(kind: type) -> _Read:
    hints = typing.get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in dataclasses.fields(kind)}

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise TraceError(f"{where}: expected an object, got {value!r:.60}")
        if odd := sorted(value.keys() ^ readers.keys()):
            state = "unknown" if odd[0] in value else "missing"
            raise TraceError(f"{where}: {state} key {odd[0]!r}; expected {', '.join(readers)}")
        return kind(**{name: read_field(value[name], f"{where}.{name}") for name, read_field in readers.items()})

    return read
