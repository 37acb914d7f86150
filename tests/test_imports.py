"""Who may import whom, and how light the package is to import."""

import ast
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dflash_lab"

CORE = {"errors", "types", "acceptance", "hooks", "provenance", "kernels", "target", "model", "decode", "trace", "data"}
STORIES = {"generate", "bench", "ablate", "doctor", "train"}
ALLOWED = {
    "errors": set(),
    "types": {"errors"},
    "acceptance": {"errors"},
    "hooks": {"errors"},
    "provenance": set(),
    "kernels": {"errors"},
    "target": {"types", "errors", "hooks", "kernels"},
    "model": {"types", "errors", "hooks", "kernels"},
    "decode": {"types", "errors", "hooks", "kernels", "model", "target"},
    "trace": {"types", "errors", "acceptance", "hooks", "provenance"},
    "serve": {"types", "errors", "acceptance", "provenance"},
    "data": {"errors"},
    **dict.fromkeys(STORIES, CORE | STORIES),
    "ui.view": {"types", "errors", "acceptance", "trace", "serve"},
    "ui.widgets": {"ui.view", "serve"} | CORE | STORIES,
    "ui.server": {"ui.view", "serve"} | CORE | STORIES,
    "ui.cli": {"ui.view", "ui.app", "ui.server", "serve"} | CORE | STORIES,
    "ui.app": {"ui.view", "ui.widgets", "ui.server", "serve"} | CORE | STORIES,
}
"""Group of modules -> groups it may import. `ui.cli` reaches `ui.app` and `ui.server` for one command each."""

NOT_THERE = {
    "serve": {"torch"},
    "ui.view": {"torch", "gradio", "anywidget"},
    "ui.cli": {"gradio", "anywidget", "plotly"},
    **{group: {"gradio", "anywidget", "plotly", "click", "rich"} for group in CORE | STORIES},
}
"""Group of modules -> libraries that it never imports."""

HEAVY = {"torch", "triton", "transformers", "gradio", "anywidget", "plotly", "pandas", "numpy", "rich"}

MODULES = sorted(path for path in PACKAGE.rglob("*.py"))


def group_of(dotted: str) -> str | None:
    """`dflash_lab.core.trace.store` -> `trace`, `dflash_lab.ui.cli.main` -> `ui.cli`, a bare package -> None."""
    match dotted.split("."):
        case ["dflash_lab", "core", group, *_]:
            return group
        case ["dflash_lab", "ui", group, *_]:
            return f"ui.{group}"
    return None


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that `path` imports, lazy imports included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: imports are absolute here"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_group_may(path: Path):
    dotted = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    group = group_of(dotted.removesuffix(".__init__"))
    if group is None:
        return
    assert group in ALLOWED, f"{dotted}: a new group; say in this table what it may import"
    wrong = [
        f"line {line}: {name}"
        for line, name in imports_of(path)
        if (group_of(name) not in {None, group} | ALLOWED[group]) or name.split(".")[0] in NOT_THERE.get(group, ())
    ]
    assert not wrong


def test_the_rule_catches_a_wrong_import(tmp_path: Path):
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from dflash_lab.ui.view import wire\n    import dflash_lab.core.decode.loop\n")
    assert [(line, group_of(name)) for line, name in imports_of(bad)] == [(2, "ui.view"), (3, "decode")]


@pytest.mark.parametrize("statement", ["import dflash_lab", "import dflash_lab.ui.cli.main"])
def test_importing_loads_no_heavy_library(statement: str):
    program = f"{statement}; import sys, json; print(json.dumps(sorted(sys.modules)))"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    print(f"{statement}: {time.perf_counter() - start:.2f} s, interpreter start included")
    assert not HEAVY & set(json.loads(done.stdout))


def test_every_public_name_exists():
    import dflash_lab

    assert set(dir(dflash_lab)) == set(dflash_lab.__all__)
    for name in dflash_lab.__all__:
        assert getattr(dflash_lab, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dflash_lab.nothing  # noqa: B018
