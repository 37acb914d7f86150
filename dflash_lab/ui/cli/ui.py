"""`dflash-lab ui`: the page."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from dflash_lab.core.errors import BackendError


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[TRACE|RUN|SWEEP ...]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve at.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Port; if not given, a free one from 7860 on.")
@click.option("--auth", metavar="USER:PASSWORD", help="Login; needed for a --host that other machines reach.")
def ui(paths: tuple[Path, ...], host: str, port: int | None, auth: str | None) -> None:
    """Open the page: inspect traces, decode a prompt and watch, measure servers, compare settings of a drafter.

    Exactly two traces open side by side. A RUN is a file that `live bench` writes or has written, or a folder of them;
    a SWEEP is a folder that `sweep run` writes or has written.
    """
    try:
        from dflash_lab.ui.app.build import launch
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise BackendError("the page needs gradio, which is not installed; pip install 'dflash-lab[ui]'") from None
    # A browser opens for a person at a terminal, not for a script.
    launch(list(paths), host=host, port=port, auth=auth, open_browser=sys.stdout.isatty())
