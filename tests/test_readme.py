"""README tells the truth: its tree, its commands, its snippets."""

import re
import shlex
from pathlib import Path

import click
import pytest

from dflash_lab.ui.cli.main import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def tree_paths() -> set[Path]:
    """Every path of the file tree, folders named with a slash."""
    (tree,) = blocks("tree")
    parents: list[str] = []
    paths = set()
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        parents[depth:] = [name]
        path = ROOT / "".join(parents)
        assert path.is_dir() if name.endswith("/") else path.is_file(), f"README names {path.relative_to(ROOT)}"
        paths.add(path)
    return paths


def options_of(command: click.Command) -> set[str]:
    """Options of a command, or of all its subcommands."""
    if isinstance(command, click.Group):
        return set().union(*map(options_of, command.commands.values()))
    return {option for parameter in command.params if isinstance(parameter, click.Option) for option in parameter.opts}


def test_the_tree_names_what_is_there_and_misses_no_folder():
    paths = tree_paths()
    code = [path for path in (ROOT / "dflash_lab").rglob("*") if path.suffix in {".py", ".js", ".css"}]
    folders = {path.parent for path in code}
    modules = {path for path in (ROOT / "dflash_lab/core").glob("*.py") if path.name != "__init__.py"}
    missing = sorted(str(path.relative_to(ROOT)) for path in (folders | modules) - paths)
    assert not missing, f"add to README's tree: {', '.join(missing)}"


def test_the_command_reference_is_complete_and_true():
    (reference,) = blocks("text")
    told: dict[str, set[str]] = {}  # a group may have a line for each of its commands
    for line in reference.replace("\n  ", " ").splitlines():
        program, name, *_ = line.split()
        assert program == "dflash-lab"
        told.setdefault(name, set()).update(re.findall(r"--[a-z-]+", line))
    assert told == {name: options_of(command) for name, command in cli.commands.items()}


def test_every_shell_line_is_a_call_that_exists():
    calls = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
    ours = [words[1:] for words in calls if Path(words[0]).name == "dflash-lab"]
    assert len(ours) >= 9
    for name, *arguments in ours:
        command = cli.commands[name]
        if isinstance(command, click.Group):
            command, arguments = command.commands[arguments[0]], arguments[1:]
        context = command.make_context(name, arguments, resilient_parsing=False)
        assert context.params
    targets = {words[1] for words in calls if words[0] == "make"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets | {"test", "test-all", "lint"})


def test_every_file_it_links_is_there():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


@pytest.mark.network
def test_the_python_snippet_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (snippet,) = blocks("python")
    exec(compile(snippet, "README.md", "exec"), {})
    assert "acceptance length" in capsys.readouterr().out
    assert (tmp_path / "seven.safetensors").exists()
