"""Named prompt sets and prompt files, in the published format and order.

Format, order and seed follow the benchmark of z-lab's dflash 0.1.0, so that numbers compare: the rows' indices are
shuffled with `random.Random(seed)` and the first `num_prompts` are taken. Nothing is ever repeated to fill up.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_lab.core.errors import DataError

DATA_FOLDER_VARIABLE = "DFLASH_LAB_DATA"
"""Environment variable that names a folder of JSONL files, one for each set."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Prompt:
    """One prompt, as the user's turn of a chat."""

    id: str
    """`<data set>/<row>`, the row counted from 0 in the published file."""
    text: str
    """The user's text, instructions of the data set's format included."""
    category: str
    """Subject where rows have one, else the kind of the data set."""
    dataset: str
    """Name of the set or of the file."""


@dataclass(frozen=True)
class PromptSet:
    """A seeded selection from a data set."""

    name: str
    """Name of the set, or the file's name without its ending."""
    prompts: tuple[Prompt, ...]
    """The selection, in the order to run it."""
    source: str
    """File or hub id the rows came from."""
    available: int
    """Rows in the whole set."""
    seed: int
    """Seed of the shuffle."""
    duplicates: tuple[str, ...]
    """Ids of selected prompts whose text an earlier one has already; they are kept, as published."""


@dataclass(frozen=True)
class _Dataset:
    """What is known of a published set."""

    file: str
    """File name in the data folder."""
    hub: tuple[str, ...]
    """Hub id and, where there are several, the configuration."""
    split: str
    """Split on the hub."""
    text: Callable[[Row], str]
    """Row to prompt; of a conversation the first turn."""
    category: Callable[[Row], str]
    """Row to category."""


_REASONING = "\nPlease reason step by step, and put your final answer within \\boxed{}."
_CODE = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{}\n```"

_DATASETS = {
    "gsm8k": _Dataset(
        "gsm8k.jsonl", ("openai/gsm8k", "main"), "test", lambda row: row["question"] + _REASONING, lambda row: "math"
    ),
    "math500": _Dataset(
        "math500.jsonl",
        ("HuggingFaceH4/MATH-500",),
        "test",
        lambda row: row["problem"] + _REASONING,
        lambda row: row["subject"],
    ),
    "humaneval": _Dataset(
        "humaneval.jsonl",
        ("openai/openai_humaneval",),
        "test",
        lambda row: _CODE.format(row["prompt"]),
        lambda row: "code",
    ),
    "mbpp": _Dataset(
        "mbpp.jsonl",
        ("google-research-datasets/mbpp", "sanitized"),
        "test",
        lambda row: row["prompt"],
        lambda row: "code",
    ),
    # The hub calls the turns `prompt`, the published file calls them `turns`.
    "mt-bench": _Dataset(
        "mt_bench.jsonl",
        ("HuggingFaceH4/mt_bench_prompts",),
        "train",
        lambda row: (row["turns"] if "turns" in row else row["prompt"])[0],
        lambda row: row["category"],
    ),
}

DATASET_NAMES = tuple(_DATASETS)
"""Sets that `load_prompts` knows by name."""


def local_datasets() -> tuple[str, ...]:
    """Named sets that are on this machine: those in the folder that DFLASH_LAB_DATA names."""
    folder = os.environ.get(DATA_FOLDER_VARIABLE)
    return tuple(name for name, dataset in _DATASETS.items() if folder and (Path(folder) / dataset.file).is_file())


def load_prompts(name: str, num_prompts: int | None = None, seed: int = 42) -> PromptSet:
    """Select `num_prompts` of the set `name` (None: all), shuffled by `seed`.

    `name` is one of `DATASET_NAMES`, taken from the folder that DFLASH_LAB_DATA names, else from the Hugging Face
    hub; or the path of a `.jsonl` file (`prompt` or `turns`, `category` optional) or a `.txt` file (a prompt a line).

    Raises DataError for an unknown name, a broken file, or more prompts than the set holds.
    """
    prompts, label, source = _read(name)
    count = len(prompts) if num_prompts is None else num_prompts
    if not 1 <= count <= len(prompts):
        raise DataError(f"{label} holds {len(prompts)} prompts, asked for {count}; ask for 1 to {len(prompts)}")
    order = list(range(len(prompts)))
    random.Random(seed).shuffle(order)
    selected = tuple(prompts[index] for index in order[:count])
    return PromptSet(label, selected, source, len(prompts), seed, _duplicates(selected))


def _read(name: str) -> tuple[list[Prompt], str, str]:
    """All prompts of `name` in file order, its label and its source."""
    if name in _DATASETS:
        dataset = _DATASETS[name]
        rows, source = _named_rows(name, dataset)
        return _to_prompts(rows, name, source, dataset.text, dataset.category), name, source
    path = Path(name)
    if not path.is_file():
        raise DataError(f"no prompt set {name!r}: expected one of {', '.join(_DATASETS)}, or a .jsonl or .txt file")
    rows = [{"prompt": line} for line in _lines(path)] if path.suffix == ".txt" else _jsonl(path)
    return _to_prompts(rows, path.stem, name, _own_text, lambda row: str(row.get("category", ""))), path.stem, name


def _named_rows(name: str, dataset: _Dataset) -> tuple[Sequence[Row], str]:
    folder = os.environ.get(DATA_FOLDER_VARIABLE)
    if not folder:
        return _hub_rows(name, dataset), dataset.hub[0]
    path = Path(folder) / dataset.file
    if not path.is_file():
        raise DataError(
            f"{DATA_FOLDER_VARIABLE} is {folder!r}, which holds no {dataset.file}; put it there or unset it"
        )
    return _jsonl(path), str(path)


def _hub_rows(name: str, dataset: _Dataset) -> Sequence[Row]:
    help_line = f"set {DATA_FOLDER_VARIABLE} to a folder that holds {dataset.file}"
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"the prompts of {name} are not here: {help_line}, or pip install datasets to take {dataset.hub[0]} "
            "from the Hugging Face hub"
        ) from None
    try:
        return list(load_dataset(*dataset.hub, split=dataset.split))
    except Exception as error:  # the library raises what its transport raises
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"{dataset.hub[0]} could not be had from the hub ({reason}); {help_line}") from error


def _lines(path: Path) -> list[str]:
    """Lines that are not blank."""
    try:
        # Split at newlines only: a prompt may hold U+2028 and other characters that splitlines() cuts at.
        return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error


def _jsonl(path: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(_lines(path), 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, row {number}: expected one JSON object a line, got {error}") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, row {number}: expected a JSON object, got {type(row).__name__}")
        rows.append(row)
    return rows


def _own_text(row: Row) -> str:
    return row["prompt"] if "prompt" in row else row["turns"][0]


def _to_prompts(
    rows: Sequence[Row], name: str, source: str, text: Callable[[Row], str], category: Callable[[Row], str]
) -> list[Prompt]:
    prompts = []
    for index, row in enumerate(rows):
        try:
            prompt = Prompt(f"{name}/{index}", text(row), category(row), name)
        except (KeyError, IndexError, TypeError):
            raise DataError(f"{source}, row {index + 1}: no prompt in the keys {', '.join(row)}") from None
        if not isinstance(prompt.text, str) or not prompt.text.strip():
            raise DataError(f"{source}, row {index + 1}: expected a text that is not empty, got {prompt.text!r}")
        prompts.append(prompt)
    return prompts


def _duplicates(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    seen: set[str] = set()
    repeated = []
    for prompt in prompts:
        if prompt.text in seen:
            repeated.append(prompt.id)
        seen.add(prompt.text)
    return tuple(repeated)
