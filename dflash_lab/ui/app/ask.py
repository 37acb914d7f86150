"""What the Live tab's form asks for, as a command line and as runs to be made."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_lab.core.data.prompts import load_prompts
from dflash_lab.core.errors import RequestError
from dflash_lab.core.serve.endpoint import base_address
from dflash_lab.core.serve.measure import Task, make_task
from dflash_lab.core.serve.plan import MIN_WARMUP
from dflash_lab.core.serve.published import PublishedTable, published_tables
from dflash_lab.core.serve.records import LoadPlan

WATCH, MEASURE = "Watch", "Measure"
OWN = "own prompts"
MOST_PROMPTS = 128
"""Prompts of a run unless told otherwise, or all of a smaller set: as `live bench`."""
ZLAB = "z-lab's client"


@dataclass(frozen=True)
class Ask:
    """What the form asks for."""

    url: str
    """Address of the server."""
    model: str | None = None
    """Served model, if there are several."""
    label: str | None = None
    """What tables call the runs."""
    datasets: tuple[str, ...] = ()
    """Prompt sets, in turn; empty to watch only."""
    own_prompts: str = ""
    """Prompts line by line, for the set `OWN`."""
    num_prompts: int | None = None
    """Requests of a run; None takes all, 128 at most."""
    concurrency: tuple[int, ...] = (1,)
    """Requests under way at a time, in turn."""
    options: dict[str, Any] = field(default_factory=dict)
    """The other fields of a LoadPlan."""


def make_ask(
    mode: str,
    url: str,
    model: str,
    label: str,
    datasets: list[str],
    own_prompts: str,
    num_prompts: str,
    concurrency: str,
    max_new_tokens: float | None,
    temperature: float | None,
    top_p: float | None,
    top_k: float | None,
    reasoning: str,
    stream: bool,
) -> Ask:
    """What the form asks for. Raises RequestError, ServerError, naming what is empty or out of range."""
    url = base_address(url)
    names = (model.strip() or None, label.strip() or None)
    if mode == WATCH:
        return Ask(url, names[0])
    _check("max tokens", max_new_tokens, 1)
    _check("temperature", temperature, 0)
    _check("top-p", top_p, 0, 1)
    _check("top-k", top_k, 0)
    if not datasets:
        raise RequestError("expected a prompt set, got none; choose one or more")
    if OWN in datasets and not own_prompts.strip():
        raise RequestError("expected prompts, one a line, got none; write some")
    options = {
        "max_new_tokens": int(max_new_tokens),
        "temperature": float(temperature),
        "top_p": float(top_p),
        "top_k": int(top_k),
        "reasoning": reasoning.strip() or None,
        "stream": stream,
    }
    count = _counts("prompts", num_prompts, "nothing for all")[0] if num_prompts.strip() else None
    loads = _counts("concurrency", concurrency, "several as 1,8,32")
    return Ask(url, *names, tuple(datasets), own_prompts, count, loads, options)


def _check(name: str, value: float | None, low: int, high: int | None = None) -> None:
    """Raises RequestError unless `value` is at least `low`; or above `low` and at most `high`."""
    if value is None:
        raise RequestError(f"expected a number for {name}, got none; fill it in")
    if high is None and value < low:
        raise RequestError(f"{name} must be {low} or more, got {value:g}")
    if high is not None and not low < value <= high:
        raise RequestError(f"{name} must be above {low} and at most {high}, got {value:g}")


def _counts(name: str, text: str, other: str) -> tuple[int, ...]:
    """Whole numbers of 1 or more, separated by commas. Raises RequestError."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise RequestError(f"{name} must be a number of 1 or more, or {other}, got {text[:40]!r}")
    return found


def command_line(ask: Ask) -> str:
    """The command that does the same in a terminal, with one's own prompts in prompts.txt."""
    words = [["dflash-lab", "live", "bench" if ask.datasets else "watch", ask.url]]
    if ask.model:
        words.append(["--model", ask.model])
    if ask.datasets:
        names = ("prompts.txt" if name == OWN else name for name in ask.datasets)
        words.append(["--dataset", ",".join(names)])
        if ask.num_prompts is not None:
            words.append(["--num-prompts", str(ask.num_prompts)])
        words.append(["--concurrency", ",".join(map(str, ask.concurrency))])
        words += [[f"--{name.replace('_', '-')}", *_value(value)] for name, value in _unusual(ask.options).items()]
        if ask.label:
            words.append(["--label", ask.label])
    return " \\\n  ".join(shlex.join(line) for line in words)


def _unusual(options: dict[str, Any]) -> dict[str, Any]:
    """The options whose value is not the default of the command."""
    usual = LoadPlan("", 1)
    return {name: value for name, value in options.items() if value != getattr(usual, name)}


def _value(value: Any) -> list[str]:
    return [] if value is True else [f"{value:g}" if isinstance(value, float) else str(value)]


def make_tasks(ask: Ask, folder: Path) -> list[Task]:
    """The runs that are asked for. Raises DataError. One's own prompts are written to `folder`."""
    tasks = []
    for name in ask.datasets:
        if name == OWN:
            folder.mkdir(parents=True, exist_ok=True)
            own = folder / "prompts.txt"
            own.write_text(ask.own_prompts.strip() + "\n", encoding="utf-8")
            name = str(own)
        prompts = load_prompts(name)
        count = min(MOST_PROMPTS, prompts.available) if ask.num_prompts is None else ask.num_prompts
        for at_a_time in ask.concurrency:
            warmup = max(MIN_WARMUP, at_a_time)
            plan = LoadPlan(prompts.name, count, at_a_time, num_warmup=warmup, **ask.options)
            tasks.append(make_task(prompts, plan))
    return tasks


def preset(name: str) -> dict[str, Any]:
    """Max tokens, temperature, top-p, top-k and reasoning of a name in `PRESETS`."""
    table = PRESETS[name]
    if table is None:
        usual = LoadPlan("", 1)
        return {"max_new_tokens": usual.max_new_tokens, "temperature": usual.temperature, "top_p": usual.top_p,
                "top_k": usual.top_k, "reasoning": ""}  # fmt: skip
    sampling = table.sampling
    thinking = {True: "on", False: "off"}.get(sampling.get("thinking"), "")
    return {
        "max_new_tokens": table.max_new_tokens or LoadPlan("", 1).max_new_tokens,
        "temperature": sampling["temperature"],
        "top_p": sampling["top_p"],
        "top_k": sampling["top_k"],
        "reasoning": sampling.get("reasoning", thinking),
    }


def _preset_name(table: PublishedTable) -> str:
    return f"{table.target.rsplit('/', 1)[-1]}, {table.hardware}"


PRESETS: dict[str, PublishedTable | None] = {
    ZLAB: None,
    **{_preset_name(table): table for table in published_tables()},
}
"""Settings to measure with, by name: z-lab's own, or those that a published table was made with."""
