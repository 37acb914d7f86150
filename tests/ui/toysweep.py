"""Results of made-up sweeps on the disk, and a program that writes some instead of computing them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.core.ablate.toy_rows import failed, make_row, make_run

HOSTILE = '<img src=x onerror="window.__pwned = 1">${1}'

PROGRAM = """
import json, signal, sys, time
from pathlib import Path
given = sys.argv[1:]
folder, script = Path(given[given.index("--out") + 1]), json.loads(Path({script!r}).read_text())
print("loading the toy", file=sys.stderr, flush=True)
if script["error"]:
    print(f"error: {{script['error']}}", file=sys.stderr)
    sys.exit(2)
folder.mkdir(parents=True, exist_ok=True)
(folder / "sweep.json").write_text(json.dumps({{"schema_version": 1, "runs": [script["run"]]}}))
if script["deaf"]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
with open(folder / "results.jsonl", "a") as rows:
    there = len((folder / "results.jsonl").read_text().splitlines())
    for row in script["rows"][there:]:
        time.sleep(script["row_s"])
        rows.write(json.dumps(row) + "\\n")
        rows.flush()
sys.exit(script["code"])
"""


def write_results(folder: Path, rows: Iterable[dict], runs: Iterable[dict] = ()) -> Path:
    """A folder as `sweep run` leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "sweep.json").write_text(json.dumps({"schema_version": 1, "runs": list(runs)}), encoding="utf-8")
    return folder


def toy_rows(**changes) -> list[dict]:
    """Three block sizes by two candidate counts, with and without the selector; one failed, two did not run."""
    rows = [make_row(size, count, categories=("math", "code"), **changes) for size in (2, 4, 8) for count in (1, 4)]
    rows += [make_row(size, 4, selector=False, right=0.7, **changes) for size in (4, 8)]
    return [*rows, failed(16, 4, **changes)]


def toy_run(**changes) -> dict:
    """The call that `toy_rows` come from."""
    return make_run(seed=0, **changes) | {"command": "dflash-lab sweep run --num-prompts 6"}


def fake_program(folder: Path, rows: Iterable[dict] = (), row_s: float = 0.0, code: int = 0, error: str = "",
                 deaf: bool = False) -> tuple[str, ...]:  # fmt: skip
    """What stands in for `python -m dflash_lab`: writes `rows`, `row_s` apart, and ends with `code`."""
    script, program = folder / "script.json", folder / "program.py"
    told = {"rows": list(rows), "row_s": row_s, "code": code, "error": error, "deaf": deaf, "run": toy_run()}
    script.write_text(json.dumps(told))
    program.write_text(PROGRAM.format(script=str(script)))
    return sys.executable, str(program)
