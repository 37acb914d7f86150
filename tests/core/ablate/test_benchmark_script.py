"""The script whose numbers are quoted runs from end to end, on the pair from disk."""

import json
import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "sweep_bundled.py"


def test_the_bundled_sweep_writes_what_is_quoted(disk_pair, tmp_path, monkeypatch):
    script = runpy.run_path(str(SCRIPT))
    small = {"block_size": (2, 4), "num_candidates": (1, 4)}
    main = script["main"]
    monkeypatch.setitem(main.__globals__, "GRID", small)
    monkeypatch.setitem(main.__globals__, "PICKED", small)
    monkeypatch.setitem(main.__globals__, "EAGER", {"block_size": (4,), "num_candidates": (4,)})
    arguments = ["--target", disk_pair.target, "--drafter", disk_pair.drafter, "--datasets", disk_pair.prompts]
    arguments += ["--num-prompts", 2, "--max-new-tokens", 12, "--decode-prompts", 1, "--out", tmp_path]
    main(list(map(str, arguments)))
    found = json.loads((tmp_path / "sweep-bundled.json").read_text())
    assert (found["num_rows"], found["num_failed"]) == (8, 0)
    assert found["exact"]["num_equal"] == found["exact"]["num_cells"] == 4
    assert [found["speed"][loop]["decoded_cells"] for loop in ("auto", "eager")] == [4, 1]
    assert all(found["speed"][loop]["ratio"] > 0 for loop in ("auto", "eager"))
    assert found["grids"][0]["status"] == [["done", "done"], ["done", "done"]]
    names = {file.name for file in tmp_path.iterdir()}
    assert {"sweep-bundled.md", "sweep-bundled.html"} < names
