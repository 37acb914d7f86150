"""A sweep: axes, what stays the same, and the cells that come of them. From TOML, from flags, or from Python."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_lab.core.ablate.knobs import TRAINED, Knobs, edit_config
from dflash_lab.core.errors import RequestError
from dflash_lab.core.model.config import DraftConfig
from dflash_lab.core.model.drafter import DEFAULT_CANDIDATES, check_sizes

MODES = {
    "replay": "exact greedy acceptance along the target's own texts, many cells at once; times are measured apart",
    "decode": "the real loop, cell by cell, with its times; any temperature",
}
"""How cells are computed."""


@dataclass(frozen=True)
class Cell:
    """One setting of a drafter on one prompt set: a row of the results."""

    dataset: str
    """Name of the prompt set, or a file."""
    drafter: str
    """`bundled`, a hub id or a folder."""
    block_size: int
    """L."""
    num_candidates: int
    """C."""
    selector: bool
    """Whether the selector walks."""
    conv: bool
    """Whether the convolutions are there."""
    layers: str
    """Tapped layers, as in Knobs."""
    window: int
    """Positions a draft layer sees, as in Knobs."""
    temperature: float
    """0 is greedy."""

    @property
    def knobs(self) -> Knobs:
        """What is changed about the drafter."""
        return Knobs(self.selector, self.conv, self.layers, self.window)


@dataclass(frozen=True)
class Sweep:
    """Axes, each with the values it takes, and settings that hold for all cells."""

    block_size: tuple[int, ...] = ()
    """Axis: L; empty is the one each drafter was trained with."""
    num_candidates: tuple[int, ...] = ()
    """Axis: C; empty is the number each drafter was trained with."""
    selector: tuple[bool, ...] = ()
    """Axis: with the selector or without; empty is with, where there is one."""
    conv: tuple[bool, ...] = ()
    """Axis: with the convolution or without; empty is with, where there is one."""
    layers: tuple[str, ...] = (TRAINED,)
    """Axis: tapped layers."""
    window: tuple[int, ...] = (0,)
    """Axis: attention window."""
    temperature: tuple[float, ...] = (0.0,)
    """Axis: temperature; above 0 only by decoding."""
    drafter: tuple[str, ...] = ("bundled",)
    """Axis: drafters of the same target."""
    dataset: tuple[str, ...] = ("gsm8k",)
    """Axis: prompt sets."""
    mode: str = "replay"
    """A key of `MODES`."""
    num_prompts: int = 8
    """Prompts of each set."""
    max_new_tokens: int = 256
    """Most output tokens of each prompt."""
    target: str = "bundled"
    """The model whose text it is."""
    seed: int = 0
    """Of draws at temperature above 0."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    dtype: str = "auto"
    """As in GenerateRequest; this and the next three decide where `decode` runs and what texts are written with."""
    kernels: str = "auto"
    """As in GenerateRequest."""
    loop: str = "auto"
    """As in GenerateRequest."""
    forward: str = "auto"
    """As in GenerateRequest."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise RequestError(f"mode must be {' or '.join(MODES)}, got {self.mode!r}")
        for name in ("num_prompts", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in AXES:
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise RequestError(f"{name} names a value twice: {', '.join(map(str, values))}")
        if "none" in self.drafter:
            raise RequestError("a sweep compares settings of a drafter; drafter none leaves nothing to compare")
        if self.mode == "replay" and any(self.temperature):
            raise RequestError(
                "a replay walks along the target's greedy text, and temperature "
                f"{next(value for value in self.temperature if value):g} changes the text: use --mode decode"
            )

    def placement(self) -> dict[str, str]:
        """The settings that say what runs where, by the names of `load_pair`."""
        return {name: getattr(self, name) for name in ("device", "dtype", "kernels", "loop", "forward")}

    def command(self) -> str:
        """The command line that runs this sweep, but for its folder."""
        words = ["dflash-lab", "sweep", "run"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                text = ",".join(map(_word, value)) if isinstance(value, tuple) else _word(value)
                words += [f"--{field.name.replace('_', '-')}", text]
        return shlex.join(words)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            field.name: list(value) if isinstance(value := getattr(self, field.name), tuple) else value
            for field in dataclasses.fields(self)
        }


AXES: dict[str, Callable[[Any], Any]] = {}
"""Axes by name, each with what makes a value of it from a word or a TOML value."""


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _switch(value: Any) -> bool:
    known = {"on": True, "off": False, True: True, False: False}
    if value not in known:
        raise ValueError
    return known[value]


AXES |= {
    "dataset": str,
    "drafter": str,
    "conv": _switch,
    "layers": str,
    "window": _whole,
    "temperature": float,
    "block_size": _whole,
    "num_candidates": _whole,
    "selector": _switch,
}

_EXPECTED = {_whole: "whole numbers", _switch: "on or off", float: "numbers", str: "names"}


def read_sweep(path: Path) -> dict[str, Any]:
    """What a TOML file says, unchecked. Raises RequestError if it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not valid TOML: {error}") from None


def parse_sweep(raw: Mapping[str, Any], source: str = "the sweep") -> Sweep:
    """A sweep from names and values; an axis may be one value, a list, or words with commas. Raises RequestError."""
    fields = {field.name: field for field in dataclasses.fields(Sweep)}
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in fields:
            raise RequestError(f"{source}: unknown key {name!r}; axes: {', '.join(AXES)}; settings: {_settings()}")
        if name in AXES:
            values[name] = _axis(name, value, source)
        elif isinstance(value, list):
            raise RequestError(
                f"{source}: {name} is no axis: another value may change the output text, and cells are compared on the "
                "same text; give one value, and run another sweep for the other"
            )
        elif type(value) is not type(fields[name].default):
            raise RequestError(f"{source}: {name} must be like {fields[name].default!r}, got {value!r}")
        else:
            values[name] = value
    return Sweep(**values)


def _axis(name: str, value: Any, source: str) -> tuple[Any, ...]:
    words = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    words = [word.strip() if isinstance(word, str) else word for word in words]
    try:
        made = tuple(AXES[name](word) for word in words)
    except (ValueError, TypeError):
        made = ()
    if not made or "" in made:
        raise RequestError(f"{source}: {name} must be {_EXPECTED[AXES[name]]} with commas, got {value!r}")
    return made


def _settings() -> str:
    return ", ".join(field.name for field in dataclasses.fields(Sweep) if field.name not in AXES)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def expand(sweep: Sweep, configs: Mapping[str, DraftConfig]) -> tuple[Cell, ...]:
    """Every cell, in the order to compute them; `configs` has every drafter's. Raises RequestError for impossible ones.

    Where an axis is empty each drafter's own value is taken.
    """
    cells = []
    for dataset, drafter in itertools.product(sweep.dataset, sweep.drafter):
        config = configs[drafter]
        has_selector, has_conv = config.selector is not None, config.conv is not None
        trained = min(config.selector.num_candidates if config.selector else DEFAULT_CANDIDATES, _rows(config))
        for name, has, asked in (("selector", has_selector, sweep.selector), ("conv", has_conv, sweep.conv)):
            if True in asked and not has:
                raise RequestError(f"{name} on: {drafter} is a {config.version} drafter, which has none; ask for off")
        axes = itertools.product(
            sweep.conv or (has_conv,),
            sweep.layers,
            sweep.window,
            sweep.temperature,
            sweep.block_size or (config.block_size,),
            sweep.num_candidates or (trained,),
            sweep.selector or (has_selector,),
        )
        for conv, layers, window, temperature, block_size, num_candidates, selector in axes:
            cell = Cell(dataset, drafter, block_size, num_candidates, selector, conv, layers, window, temperature)
            edit_config(config, cell.knobs)
            check_sizes(config, block_size, num_candidates)
            cells.append(cell)
    return tuple(cells)


def _rows(config: DraftConfig) -> int:
    return config.draft_vocab_size or config.vocab_size


def variants(cells: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    """Cells in groups that differ in nothing but block size, candidates and selector, in order."""

    def same(cell: Cell) -> tuple:
        return cell.dataset, cell.drafter, cell.conv, cell.layers, cell.window, cell.temperature

    groups: dict[tuple, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(same(cell), []).append(cell)
    return [tuple(group) for group in groups.values()]
