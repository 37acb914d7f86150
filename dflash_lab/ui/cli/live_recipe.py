"""`dflash-lab live recipe`: how to launch a published pair, and launching it."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

from dflash_lab.core.errors import BackendError, RequestError
from dflash_lab.core.serve.recipes import ENGINES, METHODS, PAIRS
from dflash_lab.ui.cli.output import Output, Result, story

if TYPE_CHECKING:
    from dflash_lab.core.serve.recipes import Pair, Recipe


@click.command()
@click.argument("name", type=click.Choice(list(PAIRS)))
@click.option("--engine", type=click.Choice(ENGINES), help="Only this server.")
@click.option("--method", type=click.Choice(METHODS), help="Only this way of decoding.")
@click.option("--block-size", type=int, metavar="B", help="Another block than the card's, anchor included.")
@click.option(
    "--run", "launch", is_flag=True, help="Launch it here; needs --method, takes SGLang unless told otherwise."
)
@story
def recipe(
    out: Output, name: str, engine: str | None, method: str | None, block_size: int | None, launch: bool
) -> Result:
    """Print how to serve a pair with SGLang and vLLM: autoregressive, MTP, DFlash 2.

    The commands are the model card's; `bundled` is the pair that comes with dflash-lab.
    """
    from dflash_lab.core.serve.recipes import recipes

    pair = _placed(out, name, launch)
    if launch:
        engine = engine or "sglang"
    found = [
        item for item in recipes(pair, block_size) if engine in (None, item.engine) and method in (None, item.method)
    ]
    if not found:
        raise RequestError(f"{name} has no recipe for {method}: its target has no heads to draft with")
    if launch:
        if len(found) != 1:
            raise RequestError("--run launches one server; say which with --method")
        _launch(out, found[0])
    document: dict[str, Any] = {"pair": dataclasses.asdict(pair), "recipes": [_document(item) for item in found]}
    return Result(document, "\n\n".join(_text(item) for item in found))


def _placed(out: Output, name: str, fetch: bool) -> Pair:
    """The pair; the bundled one in its folders, its target fetched only to be launched."""
    from dflash_lab.core.serve.recipes import placed

    pair = PAIRS[name]
    if name != "bundled":
        return pair
    from dflash_lab.core.target.bundled import drafter_folder, ensure_target, is_ready, target_folder

    if fetch:
        ensure_target(out.note)
    elif not is_ready():
        out.note("the bundled target is not on disk yet: dflash-lab models bundled --fetch")
    return placed(pair, str(target_folder()), str(drafter_folder()))


def _launch(out: Output, item: Recipe) -> None:
    """Become the server. Raises BackendError if it is not installed."""
    if importlib.util.find_spec(item.engine) is None:
        raise BackendError(f"{item.engine} is not installed here; {' && '.join(item.setup)}")
    out.note(item.text)
    words = list(item.command)
    if words[0] == "python":
        os.execv(sys.executable, [sys.executable, *words[1:]])
    program = shutil.which(words[0])
    if program is None:
        raise BackendError(f"{item.engine} is installed, but its program {words[0]} is not on the PATH")
    os.execv(program, words)


def _document(item: Recipe) -> dict[str, Any]:
    return {**dataclasses.asdict(item), "text": item.text}


def _text(item: Recipe) -> str:
    lines = [f"# {item.pair} with {item.engine}: {item.method} ({item.source})"]
    lines += [f"# {note}" for note in item.notes]
    lines += [*item.setup, "", item.text, "", "# measure it:", *item.bench]
    return "\n".join(lines)
