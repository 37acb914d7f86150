"""Prompt sets: published format and order, never repeated, named errors."""

import json
import random
import sys
from types import SimpleNamespace

import pytest

from dflash_lab.core.data.prompts import DATASET_NAMES, load_prompts
from dflash_lab.core.errors import DataError

ROWS = {
    "gsm8k": [{"question": f"What is {i} + {i}?", "answer": ""} for i in range(7)],
    "math500": [{"problem": "Solve $x^{2}=4$.", "answer": "2", "subject": "Algebra"}],
    "humaneval": [{"task_id": "HumanEval/0", "prompt": "def f():\n    return {}\n"}],
    "mbpp": [{"task_id": 11, "prompt": "Write a function."}],
    "mt_bench": [{"question_id": 81, "category": "writing", "turns": ["Compose.", "Rewrite."]}],
}


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    for name, rows in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.setenv("DFLASH_LAB_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("data_folder")
def test_formats_are_the_published_ones():
    texts = {name: load_prompts(name, 1).prompts[0] for name in DATASET_NAMES}
    reasoning = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    assert texts["gsm8k"].text.startswith("What is ")
    assert texts["gsm8k"].text.endswith("?" + reasoning)
    assert texts["math500"].text == "Solve $x^{2}=4$." + reasoning
    assert texts["humaneval"].text == (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        "```python\ndef f():\n    return {}\n\n```"
    )
    assert texts["mbpp"].text == "Write a function."
    assert texts["mt-bench"].text == "Compose."
    assert [texts[name].category for name in DATASET_NAMES] == ["math", "Algebra", "code", "code", "writing"]


@pytest.mark.usefixtures("data_folder")
def test_order_is_the_seeded_shuffle_and_a_prefix_of_it():
    order = list(range(7))
    random.Random(42).shuffle(order)
    everything = load_prompts("gsm8k")
    assert [prompt.id for prompt in everything.prompts] == [f"gsm8k/{i}" for i in order]
    assert load_prompts("gsm8k", 3).prompts == everything.prompts[:3]
    assert load_prompts("gsm8k", seed=1).prompts != everything.prompts
    assert everything.available == 7


@pytest.mark.usefixtures("data_folder")
@pytest.mark.parametrize("count", [8, 0, -1])
def test_more_than_the_set_holds_is_an_error_not_a_repeat(count):
    with pytest.raises(DataError, match=f"gsm8k holds 7 prompts, asked for {count}"):
        load_prompts("gsm8k", count)


def test_own_files_and_duplicates(tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("one\n\nzwei\u2028halves\none\n", encoding="utf-8")
    selection = load_prompts(str(text))
    assert sorted(prompt.text for prompt in selection.prompts) == ["one", "one", "zwei\u2028halves"]
    assert len(selection.duplicates) == 1
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "category": "x"}\n{"turns": ["b", "c"]}\n', encoding="utf-8")
    assert {(prompt.text, prompt.category) for prompt in load_prompts(str(rows)).prompts} == {("a", "x"), ("b", "")}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"prompt": "a"}\n{"pro', "row 2: expected one JSON object a line"),
        ("[1]\n", "row 1: expected a JSON object, got list"),
        ('{"question": "a"}\n', "row 1: no prompt in the keys question"),
        ('{"prompt": " "}\n', "row 1: expected a text that is not empty"),
        ('{"prompt": 3}\n', "row 1: expected a text that is not empty, got 3"),
        ("", "holds 0 prompts"),
    ],
)
def test_a_broken_file_is_named_with_its_row(tmp_path, content, complaint):
    path = tmp_path / "broken.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=complaint):
        load_prompts(str(path))


def test_unknown_names_and_missing_files_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="no prompt set 'gsm9k': expected one of gsm8k, math500"):
        load_prompts("gsm9k")
    monkeypatch.setenv("DFLASH_LAB_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"holds no gsm8k\.jsonl"):
        load_prompts("gsm8k")


def test_the_hub_is_the_second_source(monkeypatch):
    monkeypatch.delenv("DFLASH_LAB_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"set DFLASH_LAB_DATA to a folder that holds mt_bench\.jsonl, or pip install"):
        load_prompts("mt-bench")

    def load_dataset(*names, split):
        assert (names, split) == (("HuggingFaceH4/mt_bench_prompts",), "train")
        return [{"prompt": ["First.", "Second."], "category": "stem"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert load_prompts("mt-bench").prompts[0].text == "First."

    def offline(*names, split):
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=offline))
    with pytest.raises(DataError, match=r"could not be had from the hub \(no route\); set DFLASH_LAB_DATA"):
        load_prompts("mt-bench")
