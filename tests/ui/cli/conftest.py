"""Every command runs for real, on a toy pair, in milliseconds and without a model on disk."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from toy_pair import make_pair

from dflash_lab.core import generate
from dflash_lab.ui.cli.main import main
from tests.disk_pair import DiskPair, make_disk_pair


@dataclasses.dataclass(frozen=True)
class Finished:
    """What a command line left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(capfd) -> Callable[..., Finished]:
    """Run `dflash-lab` with these arguments."""

    def run(*arguments: object) -> Finished:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Finished(ended.value.code or 0, captured.out, captured.err)

    return run


@pytest.fixture
def toy_pair(monkeypatch) -> generate.Pair:
    """The pair that `load_pair` gives, whatever it is asked for but for `none`."""
    pair = make_pair()

    def load_pair(target: str, drafter: str | None, *, notify: Callable[[str], None], **placed: Any) -> generate.Pair:
        notify(f"loading target {target}")
        return pair if drafter else dataclasses.replace(pair, drafter=None)

    monkeypatch.setattr(generate, "load_pair", load_pair)
    return pair


@pytest.fixture(scope="session")
def disk_pair(tmp_path_factory) -> DiskPair:
    """A tiny target with its tokenizer, a drafter, six prompts."""
    return make_disk_pair(tmp_path_factory.mktemp("pair"))
