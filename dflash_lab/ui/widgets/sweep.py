"""A sweep's results in a notebook: the grid, what is known of a cell, and the cell's trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import traitlets

from dflash_lab.core.ablate.report import report
from dflash_lab.core.ablate.results import Results, Row, load_results
from dflash_lab.core.errors import DataError, RequestError
from dflash_lab.core.generate import Pair
from dflash_lab.core.trace.schema import Trace
from dflash_lab.ui.view.assets import module_text, style_text
from dflash_lab.ui.view.sweep import METRIC_WORDS
from dflash_lab.ui.view.sweep_grid import cell_wire, grid_html, sweep_wire
from dflash_lab.ui.widgets.base import STATIC_DIR, anywidget, enter_cell


class SweepGrid(anywidget.AnyWidget):
    """Block size by candidates: the value in each cell, the best one ringed, what did not run hatched, n and interval.

    `slice`, `metric` and `selected` go both ways. `with` closes it at the end; running its cell again closes the one
    before. A saved notebook keeps the grid as a table.
    """

    # Text, not paths: anywidget watches paths, and whatever it watches is never freed.
    _esm = module_text("sweep") + (STATIC_DIR / "sweep.js").read_text(encoding="utf-8")
    _css = style_text("sweep") + (STATIC_DIR / "widget.css").read_text(encoding="utf-8")

    slice = traitlets.Int(help="Which of `slices` is shown, from 0.").tag(sync=True)
    metric = traitlets.Enum(tuple(METRIC_WORDS), "mean_acceptance_length", help="What the cells show.").tag(sync=True)
    selected = traitlets.Dict(help="Cell that one stands on: block_size, num_candidates, key (None: not run).").tag(
        sync=True
    )
    view = traitlets.Dict(help="What is drawn, as ui.view.sweep_grid makes it.").tag(sync=True)

    def __init__(self, results: Results | Path | str, slice: int = 0, metric: str = "mean_acceptance_length") -> None:
        """`results`: a sweep's folder, or what load_sweep made of it. Raises DataError for none."""
        if not isinstance(results, Results):
            results = load_results(Path(results))
        self.results, self.report = results, report(results)
        if not self.report["grids"]:
            raise DataError(f"{results.folder} has no finished cell: run the sweep first")
        self._pair: tuple[tuple[Any, ...], Pair] | None = None
        super().__init__(slice=slice, metric=metric)
        self._draw()
        self.observe(lambda change: self._draw(), "slice")
        self.on_msg(self._answer)
        enter_cell(self)

    @property
    def slices(self) -> list[str]:
        """Names of the grids."""
        return self.view["slices"]

    @property
    def row(self) -> Row | None:
        """The row of the cell that one stands on, all its numbers; None if it did not run."""
        return self._row(self.selected["key"])

    def select(self, block_size: int, num_candidates: int) -> None:
        """Stand on another cell. Raises RequestError if the grid has none such."""
        cells = [cell for line in self.view["grid"]["cells"] for cell in line]
        place = (block_size, num_candidates)
        found = next((cell for cell in cells if (cell["block_size"], cell["num_candidates"]) == place), None)
        if found is None:
            raise RequestError(f"the grid has no block of {block_size} with {num_candidates} candidates")
        self.selected = _place(found)

    def trace(self, prompt: str | None = None, notify: Callable[[str], None] = lambda text: None) -> Trace:
        """Decode one prompt as the cell that one stands on does, with everything recorded.

        `prompt`: its id in the row's `per_prompt`; None takes the one nearest to the cell's mean. The pair is loaded at
        the first call, which `notify` hears of. Raises RequestError if there is no such prompt, DataError if the prompt
        set is not here, and what loading raises.
        """
        from dflash_lab.core.ablate.again import cell_request, find_prompt, load_cell
        from dflash_lab.core.generate import generate

        row = self.row
        prompt = prompt or (row and cell_wire(row)["typical"])
        if row is None or all(each["prompt"] != prompt for each in row["per_prompt"]):
            raise RequestError(
                f"this cell has no prompt {prompt!r}" if row else "this cell did not run: select another"
            )
        request = cell_request(row, find_prompt(row, prompt, self.results.folder), self.results.runs)
        name = tuple(row[key] for key in ("target", "drafter", "selector", "conv", "layers", "window"))
        if self._pair is None or self._pair[0] != name:
            self._pair = name, load_cell(row, notify)
        generation = generate(self._pair[1], request)
        for _ in generation:
            pass
        return generation.trace()

    def close(self) -> None:
        """Take it off the page and let go of its models."""
        super().close()
        self.layout.close()  # made with the widget, and kept alive by ipywidgets as the widget was
        self.on_msg(self._answer, remove=True)
        self.unobserve_all()
        self._pair = None

    def __enter__(self) -> SweepGrid:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def still(self) -> str:
        """The grid as HTML that needs no script."""
        return grid_html(self.report["grids"][self.slice], self.metric)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return {**data, "text/html": self.still()}, metadata

    @traitlets.validate("slice")
    def _slice_of_the_report(self, proposal: dict[str, Any]) -> int:
        return max(0, min(proposal["value"], len(self.report["grids"]) - 1))

    def _row(self, key: Any) -> Row | None:
        return next((row for row in self.results.rows if row["key"] == key and "error" not in row), None)

    def _draw(self) -> None:
        drawn = sweep_wire(self.report, self.slice)
        cells = [cell for line in drawn["grid"]["cells"] for cell in line]
        here = (self.selected.get("block_size"), self.selected.get("num_candidates"))
        same = (cell for cell in cells if (cell["block_size"], cell["num_candidates"]) == here)
        best = (cell for cell in cells if (cell["looks"].get(self.metric) or {}).get("best"))
        with self.hold_sync():
            # Figures and tables are for the page.
            self.view = {name: drawn[name] for name in ("slices", "slice", "grid")} | {"id": str(self.results.folder)}
            self.selected = _place(next(same, None) or next(best, cells[0]))

    def _answer(self, widget: SweepGrid, content: Any, buffers: list[memoryview]) -> None:
        """A message of the page: it wants to know a cell."""
        match content:
            case {"get": str(key)}:
                row = self._row(key)
                self.send({"key": key, "cell": cell_wire(row) if row else None})


def _place(cell: dict[str, Any]) -> dict[str, Any]:
    return {name: cell[name] for name in ("block_size", "num_candidates", "key")}
