"""`dflash-lab live compare`: the card's tables out of one's own runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import click

from dflash_lab.core.errors import RunError
from dflash_lab.ui.cli.output import Output, Result, story


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@story
def compare(out: Output, runs: tuple[Path, ...]) -> Result:
    """Put runs of `live bench` side by side as a model card does.

    A RUN is a file, or a folder of them. Runs that were not made alike are refused. Greedy texts are compared too.
    """
    from dflash_lab.core.serve.compare import compare as put_together
    from dflash_lab.core.serve.runfile import read_run
    from dflash_lab.ui.view.live_text import comparison_text

    comparison = put_together([read_run(path) for path in run_files(runs)])
    for warning in comparison.warnings:
        out.warn(warning)
    return Result(dataclasses.asdict(comparison), comparison_text(comparison))


def run_files(paths: Iterable[Path]) -> list[Path]:
    """Files as they are, folders as the runs in them. Raises RunError for one that is not there or holds none."""
    found = []
    for path in paths:
        if not path.exists():
            raise RunError(f"{path} does not exist; expected a run that live bench wrote, or a folder of them")
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files:
            raise RunError(f"{path} holds no runs (.jsonl)")
        found += files
    return found
