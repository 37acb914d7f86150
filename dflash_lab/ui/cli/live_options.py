"""Arguments that the commands of `live` share."""

from __future__ import annotations

import click

DEFAULT_URL = "http://127.0.0.1:30000"
"""Where SGLang and `live serve` listen unless told otherwise, and where z-lab's client looks."""

url_argument = click.argument("url", default=DEFAULT_URL)
model_option = click.option("--model", metavar="NAME", help="Served model, if there are several.")
