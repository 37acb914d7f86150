"""A JupyterLab server in a temporary root, and notebooks opened in it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUN_ALL = "notebook:run-all-cells"
READY = f"""() => {{
  const app = window.jupyterapp, context = app?.shell.currentWidget?.sessionContext, kernel = context?.session?.kernel;
  return context?.isReady && kernel?.connectionStatus === "connected" && kernel.status === "idle"
    && app.commands.isEnabled("{RUN_ALL}");
}}"""
"""The notebook is open and its kernel listens: before that, running its cells does nothing."""


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab."""

    url: str
    """Its address, without a slash at the end."""
    root: Path
    """The folder whose notebooks it opens."""

    def open(self, page, name: str, *cells: str) -> None:
        """A notebook of code `cells`, opened in `page` and run from top to bottom."""
        import nbformat

        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        )
        nbformat.write(notebook, self.root / name)
        page.goto(f"{self.url}/lab/tree/{name}?reset")
        page.wait_for_function(READY, timeout=60_000)
        self.run_all(page)

    def run_all(self, page) -> None:
        """Run the open notebook from top to bottom, without waiting for its end."""
        page.evaluate(f"void window.jupyterapp.commands.execute('{RUN_ALL}')")


@pytest.fixture(scope="session")
def lab(tmp_path_factory) -> Iterator[Lab]:
    """JupyterLab on a free port, with settings, kernels and notebooks in folders of its own."""
    pytest.importorskip("jupyterlab")
    home, root = tmp_path_factory.mktemp("lab-home"), tmp_path_factory.mktemp("lab-root")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "JUPYTERLAB_SETTINGS_DIR",
              "JUPYTERLAB_WORKSPACES_DIR")  # fmt: skip
    environment = os.environ | {place: str(home / place.lower()) for place in places} | {"PYTHONPATH": str(ROOT)}
    settings = home / "jupyterlab_settings_dir/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
        "--expose-app-in-browser", "--IdentityProvider.token=", f"--ServerApp.root_dir={root}",
    ]  # fmt: skip
    with open(home / "log", "wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=root)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, server, home / "log")
        yield Lab(url, root)
    finally:
        server.terminate()
        server.wait(20)


def _wait(url: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(300):
        assert server.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            urllib.request.urlopen(f"{url}/api", timeout=5).close()
            return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.2)
    raise AssertionError(log.read_text(errors="replace")[-2000:])


@pytest.fixture
def toy_pair(monkeypatch):
    """A pair that decodes in milliseconds, and knows no words."""
    monkeypatch.syspath_prepend(ROOT / "tests/ui/cli")
    from toy_pair import make_pair

    return make_pair()
