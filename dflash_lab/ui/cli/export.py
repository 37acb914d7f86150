"""`dflash-lab export`: a trace as one file that opens offline."""

from __future__ import annotations

from pathlib import Path

import click

from dflash_lab.ui.cli.options import check_step, check_writable, step_option
from dflash_lab.ui.cli.output import Output, Result, story, write_file


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.argument("out_html", type=click.Path(path_type=Path), metavar="OUT.html")
@step_option
@story
def export(out: Output, trace: Path, out_html: Path, step: int) -> Result:
    """Write TRACE as one offline HTML file, opened at a step."""
    check_writable(out_html, "OUT.html")

    from dflash_lab.core.trace import store
    from dflash_lab.ui.view.export import LARGE, export_html, page_bytes

    opened = store.load(trace)
    check_step(step, len(opened.steps), str(trace))
    expected = page_bytes(opened)
    if expected > LARGE:
        out.warn(f"about {expected / 1e6:.0f} MB with {len(opened)} steps: a browser may take long to open it")
    write_file(out_html, export_html(opened, step))
    size = out_html.stat().st_size
    return Result({"file": str(out_html), "step": step, "size_bytes": size}, f"{out_html} ({size / 1e6:.1f} MB)")
