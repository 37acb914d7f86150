"""Options that several commands share, each with one meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from dflash_lab.core.errors import RequestError

Decorator = Callable[[Callable], Callable]


def _stack(*options: Decorator) -> Decorator:
    """The options as one decorator, shown by --help in the order given."""

    def decorate(function: Callable) -> Callable:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


placement_options = _stack(
    click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True),
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        default="auto",
        show_default=True,
        help="auto is float32 on a CPU, bfloat16 on a GPU.",
    ),
    click.option("--kernels", type=click.Choice(["auto", "reference", "triton"]), default="auto", show_default=True),
    click.option(
        "--loop",
        type=click.Choice(["auto", "eager", "graph"]),
        default="auto",
        show_default=True,
        help="graph replays captured CUDA graphs; auto does where it can.",
    ),
    click.option(
        "--forward",
        type=click.Choice(["auto", "lean", "transformers"]),
        default="auto",
        show_default=True,
        help="The target's forward pass; auto is lean where the architecture has it.",
    ),
)
"""What runs where."""

pair_options = _stack(
    click.option("--target", default="bundled", show_default=True, metavar="NAME|PATH", help="Target model."),
    click.option(
        "--drafter", default="bundled", show_default=True, metavar="NAME|PATH|none", help="Drafter, or none for none."
    ),
    click.option("--block-size", type=int, metavar="L", help="Slots in a draft block with the anchor."),
    click.option("--num-candidates", type=int, metavar="C", help="Candidates at each position."),
    click.option("--max-new-tokens", type=int, default=256, show_default=True, metavar="N", help="Most new tokens."),
    placement_options,
)
"""Which models, which block, on what."""

sampling_options = _stack(
    click.option("--temperature", type=float, default=0.0, show_default=True, metavar="T", help="0 is greedy."),
    click.option("--top-p", type=float, default=1.0, show_default=True, metavar="P", help="Nucleus filter."),
    click.option("--top-k", type=int, default=0, show_default=True, metavar="K", help="Top-k filter; 0 keeps all."),
    click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="Seed; unused when greedy."),
)
"""How the target's distribution is turned into tokens."""

step_option = click.option("--step", type=int, default=0, show_default=True, metavar="I", help="Step, from 0.")


def drafter_name(value: str) -> str | None:
    """The value of --drafter as the library takes it: None for `none`."""
    return None if value == "none" else value


def check_writable(path: Path | None, option: str) -> None:
    """Refuse a file that could not be written, before any work is done. Raises RequestError."""
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise RequestError(f"{option} {path}: the folder {path.absolute().parent} does not exist; create it first")
    if path.is_dir():
        raise RequestError(f"{option} {path} is a folder; name a file in it")


def check_step(step: int, num_steps: int, name: str) -> None:
    """Refuse a step that the trace does not have. Raises RequestError."""
    if num_steps == 0:
        raise RequestError(f"{name} has no verification step: its text ended with the token from prefill")
    if not 0 <= step < num_steps:
        raise RequestError(f"{name} has steps 0 to {num_steps - 1}, asked for {step}")
