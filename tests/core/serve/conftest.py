"""What the tests of live servers share."""

import socket

import pytest


@pytest.fixture
def unused_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]
