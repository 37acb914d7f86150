"""One sink: one JSON document and nothing else on stdout, everything else on stderr, a reader may go away."""

import json
import os
import subprocess
import sys

import click
import pytest

from dflash_lab.core.errors import RequestError
from dflash_lab.ui.cli import main as main_module
from dflash_lab.ui.cli.output import Output, Result, json_text, story, write_file


@click.command()
@click.option("--mood", default="fine")
@story
def act(out: Output, mood: str) -> Result:
    """Do what the mood says."""
    out.write("streamed ")
    out.note("a hint")
    out.warn("two\nlines")
    print("a library speaks")
    if mood == "bad":
        raise RequestError("expected a good mood,\n  got a bad one")
    if mood == "stopped":
        raise KeyboardInterrupt
    if mood == "broken":
        raise ZeroDivisionError
    return Result({"x": float("nan"), "y": [1.5, float("inf")], "ü": (1, 2)}, "for people", 1 if mood == "no" else 0)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(main_module.cli.commands, "act", act)


def test_json_is_the_only_thing_on_stdout(command):
    done = command("act", "--json")
    assert done.code == 0
    assert done.out.count("\n") == 1
    assert json.loads(done.out) == {"x": None, "y": [1.5, None], "ü": [1, 2]}
    assert done.err.splitlines() == ["a hint", "warning: two lines", "a library speaks"]


def test_people_get_text_on_stdout_and_hints_on_stderr(command):
    done = command("act")
    assert done.out == "streamed a library speaks\nfor people\n"
    assert done.err == "a hint\nwarning: two lines\n"


def test_what_does_not_hold_exits_with_1(command):
    assert command("act", "--mood", "no", "--json").code == 1


def test_a_mistake_is_one_line_and_2(command):
    done = command("act", "--mood", "bad", "--json")
    assert done.code == 2
    assert done.out == ""
    assert done.err.splitlines()[-1] == "error: expected a good mood, got a bad one"


def test_an_interrupt_exits_with_130(command):
    assert command("act", "--mood", "stopped").code == 130


def test_a_fault_of_ours_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        main_module.main(["act", "--mood", "broken"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["act", "--moot", "x"], "error: No such option '--moot'"),
        (["act", "too", "many"], "error: Got unexpected extra arguments (too many); see dflash-lab act --help"),
        (["acto"], "error: No such command 'acto'"),
        (["generate", "x", "--block-size", "many"], "error: Invalid value for '--block-size'"),
        (["inspect"], "error: Missing argument 'TRACE'"),
    ],
)
def test_a_wrong_call_is_one_line_that_names_the_help(command, arguments, complaint):
    done = command(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith(complaint)
    assert done.err.endswith("--help\n")
    assert done.err.count("\n") == 1


def test_help_lists_the_commands_in_the_order_of_use(command):
    bare, asked = command(), command("--help")
    assert bare.code == asked.code == 0
    assert bare.out == asked.out
    places = [asked.out.index(f"\n  {name} ") for name in ("ui", "generate", "inspect", "compare", "export", "bench")]
    assert places == sorted(places)


def test_a_reader_that_went_away_ends_it_quietly():
    program = (
        "import sys; from dflash_lab.ui.cli.output import Output, Result\n"
        "out = Output(as_json=False)\n"
        "while not out.closed: out.write('x' * 4096)\n"
        "out.write('ignored'); sys.exit(out.show(Result({}, 'ignored')))"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.read(10)
    child.stdout.close()
    error = child.stderr.read()
    child.stderr.close()
    assert child.wait(timeout=30) == 130
    assert error == b""


def test_progress_draws_nothing_in_a_pipe(capsys):
    with Output(as_json=False).progress("decoding", 3) as advance:
        advance()
    assert capsys.readouterr() == ("", "")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "out.json"
    write_file(path, json_text({"a": 1}, indent=2))
    assert json.loads(path.read_text()) == {"a": 1}
    (tmp_path / "folder").mkdir()
    with pytest.raises(RequestError, match=r"cannot write .*folder: Is a directory; nothing was written"):
        write_file(tmp_path / "folder", "x")
    assert sorted(os.listdir(tmp_path)) == ["folder", "out.json"]
