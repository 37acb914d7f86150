"""Toy pairs as fixtures."""

import pytest

from dflash_lab.core.target.toy import ToyTarget
from tests import toys


@pytest.fixture
def raw_config():
    """A function: a tiny valid config.json."""
    return toys.tiny_config


@pytest.fixture
def random_model():
    """A function: a model with weights from a seed."""
    return toys.random_model


@pytest.fixture
def make_drafter():
    """A function: a random drafter bound to a toy target."""
    return toys.make_drafter


@pytest.fixture
def target():
    """A sharp chain over 32 tokens."""
    return ToyTarget.random(32, sharpness=3.0)


@pytest.fixture
def scripted():
    """A function: a drafter that proposes what a script says."""
    return lambda target, script: toys.ScriptedDrafter(toys.make_drafter(target), script)
