"""Execute the notebooks from top to bottom: `python notebooks/run.py [--save] [NAME ...]`.

The results go to a temporary folder; with --save back into the notebooks, without what only a live kernel can use.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import nbclient
import nbformat

FOLDER = Path(__file__).parent
WIDGET = "application/vnd.jupyter.widget-view+json"
CELL_S = 600
"""Seconds that a cell may take."""


def names() -> list[str]:
    """The notebooks' names, in the order in which they are read."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> nbformat.NotebookNode:
    """The notebook as it is in the repository."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def execute(name: str, *extra: str) -> nbformat.NotebookNode:
    """The notebook with fresh outputs, and with `extra` code cells at its end. Raises CellExecutionError."""
    notebook = read(name)
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in extra]
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook,
            timeout=CELL_S,
            record_timing=False,
            store_widget_state=False,
            resources={"metadata": {"path": folder}},
        )
        path = os.pathsep.join(filter(None, (str(FOLDER.parent), os.environ.get("PYTHONPATH"))))
        return client.execute(env={**os.environ, "PYTHONPATH": path})


def settle(notebook: nbformat.NotebookNode) -> None:
    """Leave only what reads anywhere: no reference to a widget of a kernel that is gone, no version of this machine."""
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "data" in output:
                output.data.pop(WIDGET, None)
                output.data["text/plain"] = output.data["text/plain"].split(" at 0x")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks to run; all of them if none is named")
    parser.add_argument("--save", action="store_true", help="write the outputs into the notebooks")
    options = parser.parse_args()
    folder = FOLDER if options.save else Path(tempfile.mkdtemp(prefix="dflash-lab-notebooks-"))
    for name in options.names or names():
        notebook = execute(name)
        settle(notebook)
        part = folder / f".{name}.part"
        nbformat.write(notebook, part)
        os.replace(part, folder / f"{name}.ipynb")
        print(folder / f"{name}.ipynb")


if __name__ == "__main__":
    main()
