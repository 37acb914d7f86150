"""Links, the form and the address to serve at: what the page makes of what people give it."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toytraces import make_trace

from dflash_lab.core.errors import RequestError
from dflash_lab.ui.app import build
from dflash_lab.ui.app.place import Place, parse_place
from dflash_lab.ui.app.session import TraceStore
from dflash_lab.ui.app.tabs import generate, inspect
from dflash_lab.ui.cli.generate import generate as generate_command

TRACE = make_trace(9)
FORM = ("a prompt", True, 8, 16, 0.0, 1.0, 0, 64, 3)


def test_a_link_names_a_place():
    query = {"trace": "abc", "step": "12", "pos": "5", "tab": "inspect", "v": "1"}
    assert parse_place(query) == Place("abc", 12, 5, "inspect")
    assert parse_place({}) == Place()


@given(st.dictionaries(st.sampled_from(["trace", "step", "pos", "tab", "v"]), st.text(max_size=30)))
def test_any_link_is_answered(query):
    store = TraceStore(TRACE)
    value = inspect.arrive(store, parse_place(query))
    assert value["trace"] == store.example.id
    assert 0 <= value["step"] < len(TRACE)


@pytest.mark.parametrize(("step", "shown"), [(0, 0), (8, 8), (9, 8), (10**8, 8)])
def test_a_step_beyond_the_end_is_the_last(step, shown):
    store = TraceStore(TRACE)
    assert inspect.arrive(store, Place(store.example.id, step, 3))["step"] == shown


def test_an_unknown_trace_is_said_and_the_opening_one_shown():
    store = TraceStore(TRACE)
    value = inspect.arrive(store, Place("gone", 5, 2))
    assert (value["trace"], value["step"]) == (store.example.id, store.example.opening_step)
    assert "no trace 'gone'" in value["notice"]
    assert "'2'" in parse_place({"v": "2"}).problem


@pytest.mark.parametrize("ask", [None, 3, "x", [], {}, {"trace": 1}, {"trace": "gone"}, {"step": 1}])
def test_look_ups_answer_nonsense_with_one_line(ask):
    for look_up in inspect.look_ups(TraceStore(TRACE)):
        answer = look_up(ask)
        assert list(answer) == ["error"]
        assert "\n" not in answer["error"]


@pytest.mark.parametrize("step", [-1, 9, 10**30, True, "1", 1.0, None, [], "x" * 1000])
def test_a_step_that_is_not_there_is_refused_in_one_line(step):
    store = TraceStore(TRACE)
    answer = inspect.look_ups(store)[1]({"trace": store.example.id, "step": step})
    assert answer["error"].startswith("Expected a step from 0 to 8, got ")
    assert len(answer["error"]) < 60


def test_look_ups_give_what_the_inspector_asks_for():
    store = TraceStore(TRACE)
    summary, step = inspect.look_ups(store)
    assert summary({"trace": store.example.id})["n"] == 9
    assert step({"trace": store.example.id, "step": 4})["i"] == 4


def test_neighbours_are_answered_together_while_they_are_small():
    small, large = make_trace(19, 8, 8), make_trace(19, 16, 40)
    store = TraceStore(small)
    look_up = inspect.look_ups(store)[1]

    def asked(trace, step):
        return [wire["i"] for wire in look_up({"trace": trace, "step": step, "block": True})["steps"]]

    assert asked(store.example.id, 12) == list(range(8, 16))
    assert asked(store.example.id, 18) == [16, 17, 18]
    assert asked(store.add(large, "run").id, 12) == [12]


def shell_words(command: str) -> list[str]:
    script = f"set -- {command}\nprintf '%s\\0' \"$@\""
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


def test_the_command_of_the_form_means_its_request_to_the_command_line():
    request = generate.make_request("- what's $HOME,\n \\ and `x`?", True, 8, 16, 0.5, 0.9, 20, 64, 3)
    words = shell_words(generate.command_line(request))
    assert words[:2] == ["dflash-lab", "generate"]
    given = generate_command.make_context("generate", words[2:]).params
    assert given["prompt"] == request.prompt
    for name in ("block_size", "num_candidates", "seed"):
        assert given[name] == getattr(request, name)
    for name in ("temperature", "top_p", "top_k", "max_new_tokens"):
        assert given[name] == getattr(request.sampling, name)
    # A trace on the command line keeps the scores, as the page does.
    assert given["trace"] is not None
    assert request.record == "scores"


def test_without_a_drafter_block_and_candidates_do_not_count():
    request = generate.make_request("x", False, 0, 0, 0.7, 0.9, 20, 8, 0)
    assert (request.drafter, request.block_size, request.num_candidates) == (None, None, None)
    command = generate.command_line(request)
    assert "--drafter none" in command
    assert "--block-size" not in command
    assert "--temperature 0.7 --top-p 0.9 --top-k 20" in command


@given(st.text(min_size=1, max_size=60).filter(str.strip))
def test_any_prompt_survives_the_shell(prompt):
    if "\0" not in prompt:
        assert shlex.split(generate.same_command(prompt, *FORM[1:]))[-1] == prompt


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [(0, " ", "prompt"), (2, 1, "block size"), (2, None, "block size"), (3, 0, "candidates"), (4, -1, "temperature"),
     (5, 0, "top_p"), (6, -2, "top_k"), (7, 0, "max_new_tokens"), (8, None, "seed")],
)  # fmt: skip
def test_a_bad_field_is_named(place, value, said):
    fields = [*FORM[:place], value, *FORM[place + 1 :]]
    with pytest.raises(RequestError, match=said):
        generate.make_request(*fields)
    assert generate.same_command(*fields).startswith("# ")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_no_password(host):
    assert build._login(host, None) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_any_other_address_does(host):
    with pytest.raises(RequestError, match="--auth USER:PASSWORD"):
        build._login(host, None)
    assert build._login(host, "ada:se:cret") == ("ada", "se:cret")


@pytest.mark.parametrize("auth", ["", "ada", ":x", "ada:"])
def test_half_a_login_is_refused(auth):
    with pytest.raises(RequestError, match="USER:PASSWORD"):
        build._login("127.0.0.1", auth)
