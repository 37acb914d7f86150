"""`dflash-lab`: registration of the commands, and what becomes of errors."""

from __future__ import annotations

import os
import sys

import click

from dflash_lab import __version__
from dflash_lab.core.errors import DFlashLabError
from dflash_lab.ui.cli.bench import bench
from dflash_lab.ui.cli.compare import compare
from dflash_lab.ui.cli.export import export
from dflash_lab.ui.cli.generate import generate
from dflash_lab.ui.cli.inspect import inspect
from dflash_lab.ui.cli.kernels import kernels
from dflash_lab.ui.cli.live import live
from dflash_lab.ui.cli.models import models
from dflash_lab.ui.cli.output import INTERRUPTED, one_line
from dflash_lab.ui.cli.sweep import sweep
from dflash_lab.ui.cli.train import train
from dflash_lab.ui.cli.ui import ui

COMMANDS = (ui, generate, inspect, compare, export, bench, sweep, live, train, kernels, models)


class _InOrder(click.Group):
    """Lists the commands as registered: the order in which they are met."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_InOrder,
    commands=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="dflash-lab")
@click.pass_context
def cli(context: click.Context) -> None:
    """Decode with DFlash 2, keep every step, look at it."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(argv: list[str] | None = None) -> None:
    """Run a command line and exit: 0 done, 1 what was checked does not hold, 2 a mistake in the call, 130 stopped."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars of the libraries below
    try:
        code = cli.main(args=argv, prog_name="dflash-lab", standalone_mode=False)
    except DFlashLabError as error:
        code = _fail(error)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "dflash-lab"
        code = _fail(f"{error.format_message().rstrip('.')}; see {path} --help")
    except click.ClickException as error:
        code = _fail(error.format_message())
    except click.Abort:
        code = INTERRUPTED
    sys.exit(code)


def _fail(message: object) -> int:
    click.echo(f"error: {one_line(message)}", err=True)
    return 2
