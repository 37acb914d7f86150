"""A pair on disk, made once."""

import pytest

from tests.disk_pair import DiskPair, make_disk_pair


@pytest.fixture(scope="session")
def disk_pair(tmp_path_factory) -> DiskPair:
    """A tiny target with its tokenizer, a drafter, six prompts."""
    return make_disk_pair(tmp_path_factory.mktemp("pair"))
