"""`dflash-lab sweep`: block sizes, candidates and other settings of a drafter compared on the same texts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dflash_lab.ui.cli.options import check_writable, placement_options
from dflash_lab.ui.cli.output import INTERRUPTED, Output, Result, story, write_file

if TYPE_CHECKING:
    from dflash_lab.core.ablate.runner import Executor, Outcome


@click.group()
def sweep() -> None:
    """Compare settings of a drafter: which block size, how many candidates, what pays."""


def _axis(name: str, metavar: str, text: str):
    return click.option(name, metavar=metavar, help=text)


@sweep.command()
@click.argument("sweep_file", required=False, type=click.Path(path_type=Path), metavar="[SWEEP.toml]")
@_axis("--block-size", "L,...", "Slots in a draft block with the anchor; left out, the trained size.")
@_axis("--num-candidates", "C,...", "Candidates at each position; left out, the trained number.")
@_axis("--selector", "on,off", "With the selector, without, or both.")
@_axis("--conv", "on,off", "With the convolutions, without, or both.")
@_axis("--layers", "all,...", "Tapped layers: all, shift+1, shift-1, or drop and a layer's number.")
@_axis("--window", "W,...", "Positions that each draft layer sees; 0 is as trained.")
@_axis("--temperature", "T,...", "Above 0 only with --mode decode.")
@_axis("--drafter", "NAME|PATH,...", "Drafters of the target.")
@_axis("--dataset", "NAME|FILE,...", "Prompt sets.")
@click.option("--num-prompts", type=int, default=8, show_default=True, metavar="N", help="Prompts of each set.")
@click.option(
    "--mode",
    type=click.Choice(["replay", "decode"]),
    default="replay",
    show_default=True,
    help="replay walks along the target's greedy texts, exact and fast; decode runs every cell.",
)
@click.option("--target", default="bundled", show_default=True, metavar="NAME|PATH", help="Target model.")
@click.option("--max-new-tokens", type=int, default=256, show_default=True, metavar="N", help="Most new tokens.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="Of draws above temperature 0.")
@placement_options
@click.option(
    "--executor",
    type=click.Choice(["here", "ray"]),
    default="here",
    show_default=True,
    help="ray spreads cells over the cluster that RAY_ADDRESS names, or over this machine.",
)
@click.option("--out", "folder", type=click.Path(path_type=Path), required=True, metavar="DIR", help="For the results.")
@story
def run(out: Output, sweep_file: Path | None, folder: Path, executor: str, **options: Any) -> Result:
    """Compute the cells of a sweep that DIR has no row for.

    Axes take values with commas; every combination is a cell, and a row in DIR/results.jsonl once it is done. A file
    names axes and settings as the options do, with underscores; options win.
    """
    from dflash_lab.core.ablate.runner import run_sweep
    from dflash_lab.core.ablate.sweep import parse_sweep, read_sweep

    asked = read_sweep(sweep_file) if sweep_file else {}
    given = {name: value for name, value in options.items() if _given(name)}
    made = parse_sweep({**asked, **given}, str(sweep_file) if sweep_file else "sweep run")
    watch = partial(out.progress, "cells")
    outcome = run_sweep(made, folder, executor=_executor(executor), notify=out.note, watch=watch)
    for row in outcome.failed:
        out.warn(f"block {row['block_size']}, {row['num_candidates']} candidates, {row['dataset']}: {row['error']}")
    return _result(outcome)


def _given(name: str) -> bool:
    """Whether an option stands on the command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _executor(name: str) -> Executor:
    if name == "ray":
        from dflash_lab.core.ablate.cluster import OnRay

        return OnRay()
    from dflash_lab.core.ablate.runner import Here

    return Here()


def _result(outcome: Outcome) -> Result:
    """What was done, and the acceptance lengths of the whole folder."""
    from dflash_lab.core.ablate.report import report
    from dflash_lab.core.ablate.results import load_results
    from dflash_lab.core.ablate.tables import BRIEF, markdown

    found = report(load_results(outcome.folder))
    brief = outcome.brief()
    done = (
        f"{brief['num_computed']} cells computed, {brief['num_skipped']} were there, {brief['num_failed']} failed: "
        f"{outcome.wall_s:.1f} s, {outcome.folder}"
    )
    document = {"folder": str(outcome.folder), "mode": outcome.sweep.mode, **brief, "rows": found["rows"]}
    code = INTERRUPTED if outcome.interrupted else 1 if outcome.failed else 0
    return Result(document, f"{markdown(found, BRIEF)}\n{done}", code)


@sweep.command(name="report")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--html", "html_file", type=click.Path(path_type=Path), metavar="FILE", help="One page, works offline.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), metavar="FILE", help="The tables.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), metavar="FILE", help="A line for each cell.")
@story
def report_command(
    out: Output, folder: Path, html_file: Path | None, markdown_file: Path | None, csv_file: Path | None
) -> Result:
    """Tables and pictures of a sweep's folder, with intervals over prompts.

    Where cells were both replayed and decoded, it checks that the two agree; exit code 1 if they do not.
    """
    from dflash_lab.core.ablate.report import report
    from dflash_lab.core.ablate.results import load_results
    from dflash_lab.core.ablate.tables import markdown, to_csv

    files = {"--html": html_file, "--markdown": markdown_file, "--csv": csv_file}
    for option, file in files.items():
        check_writable(file, option)
    found = report(load_results(folder))
    for warning in found["warnings"]:
        out.warn(warning)
    if html_file:
        from dflash_lab.ui.view.sweep_page import sweep_html

        write_file(html_file, sweep_html(found))
    if markdown_file:
        write_file(markdown_file, markdown(found))
    if csv_file:
        write_file(csv_file, to_csv(found))
    for file in files.values():
        if file:
            out.note(f"wrote {file}")
    return Result(found, markdown(found), _verdict(found))


def _verdict(found: Mapping[str, Any]) -> int:
    """1 if replaying and decoding disagree."""
    return int(found["agreement"] is not None and not found["agreement"]["holds"])
