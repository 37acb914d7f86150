"""`dflash-lab live`: servers that run somewhere, measured beside the published numbers."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import Any

import click

from dflash_lab.core.errors import ConfigError
from dflash_lab.ui.cli.live_bench import bench
from dflash_lab.ui.cli.live_compare import compare
from dflash_lab.ui.cli.live_options import model_option, url_argument
from dflash_lab.ui.cli.live_recipe import recipe
from dflash_lab.ui.cli.live_serve import serve
from dflash_lab.ui.cli.live_watch import watch
from dflash_lab.ui.cli.output import Output, Result, story


@click.group()
def live() -> None:
    """Measure SGLang and vLLM servers beside the published numbers."""


@live.command()
@url_argument
@model_option
@story
def probe(out: Output, url: str, model: str | None) -> Result:
    """Who answers at URL: server, drafter, limits, hardware, and which statistics it gives.

    Asks for eight tokens. DFLASH_LAB_API_KEY is sent as the server's key.
    """
    from dflash_lab.core.serve.endpoint import KEY_VARIABLE, Endpoint
    from dflash_lab.core.serve.probe import probe as ask
    from dflash_lab.core.serve.records import ServerInfo
    from dflash_lab.ui.view.live_text import info_text

    async def run() -> ServerInfo:
        async with Endpoint(url, os.environ.get(KEY_VARIABLE)) as endpoint:
            return await ask(endpoint, model)

    info = asyncio.run(run())
    for warning in info.warnings:
        out.warn(warning)
    return Result(dataclasses.asdict(info), info_text(info))


@live.command()
@click.argument("target", required=False)
@story
def tables(out: Output, target: str | None) -> Result:
    """The published tables, each with hardware, settings and source; of TARGET only, if given."""
    from dflash_lab.core.serve.published import published_tables, tables_of
    from dflash_lab.ui.view.live_text import published_text

    found = published_tables() if target is None else tables_of(target)
    if not found:
        known = ", ".join(table.target for table in published_tables())
        raise ConfigError(f"nothing is published of {target!r} that is known here; there is {known}")
    document: dict[str, Any] = {"tables": [dataclasses.asdict(table) for table in found]}
    return Result(document, "\n\n".join(published_text(table) for table in found))


for _command in (bench, watch, compare, recipe, serve):
    live.add_command(_command)
