"""Sweeps: what they say, what they refuse, which cells come of them."""

import pytest

from dflash_lab.core.ablate.sweep import Cell, Sweep, expand, parse_sweep, read_sweep, variants
from dflash_lab.core.errors import RequestError
from dflash_lab.core.model.config import DraftConfig
from tests import toys

CONFIG = DraftConfig.from_dict(toys.tiny_config())
PLAIN = DraftConfig.from_dict(toys.tiny_config("dflash"))


def test_a_file_and_words_say_the_same(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(
        'block_size = [2, 4]\nnum_candidates = 4\nselector = [true, false]\nlayers = ["all", "shift+1"]\n'
        'temperature = [0, 0.7]\nmode = "decode"\nnum_prompts = 3\ndataset = "gsm8k"\n'
    )
    words = {
        "block_size": "2, 4", "num_candidates": "4", "selector": "on,off", "layers": "all,shift+1",
        "temperature": "0,0.7", "mode": "decode", "num_prompts": 3,
    }  # fmt: skip
    assert parse_sweep(read_sweep(file)) == parse_sweep(words)
    assert parse_sweep(words).command() == (
        "dflash-lab sweep run --block-size 2,4 --num-candidates 4 --selector on,off --layers all,shift+1 "
        "--temperature 0,0.7 --mode decode --num-prompts 3"
    )


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"blocksize": 4}, "unknown key 'blocksize'; axes: dataset, drafter, conv"),
        ({"block_size": "4,x"}, "block_size must be whole numbers with commas, got '4,x'"),
        ({"block_size": []}, "block_size must be whole numbers"),
        ({"block_size": "4,4"}, "block_size names a value twice: 4, 4"),
        ({"block_size": 4.5}, "block_size must be whole numbers"),
        ({"selector": "maybe"}, "selector must be on or off with commas, got 'maybe'"),
        ({"dataset": "a,,b"}, "dataset must be names with commas"),
        ({"num_prompts": 0}, "num_prompts must be at least 1, got 0"),
        ({"num_prompts": "4"}, "num_prompts must be like 8, got '4'"),
        ({"drafter": "none"}, "drafter none leaves nothing to compare"),
        ({"mode": "guess"}, "mode must be replay or decode, got 'guess'"),
        ({"temperature": "0,0.7"}, "temperature 0.7 changes the text: use --mode decode"),
        ({"max_new_tokens": [64, 128]}, "max_new_tokens is no axis: another value may change the output text"),
        ({"target": ["bundled", "other"]}, "target is no axis"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(raw, said):
    with pytest.raises(RequestError) as error:
        parse_sweep(raw)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(RequestError, match="cannot read"):
        read_sweep(tmp_path / "no.toml")
    (tmp_path / "s.toml").write_text("block_size = [")
    with pytest.raises(RequestError, match="not valid TOML"):
        read_sweep(tmp_path / "s.toml")


def test_every_combination_is_a_cell():
    sweep = Sweep(block_size=(2, 4, 9), num_candidates=(1, 4), selector=(True, False), dataset=("a", "b"))
    cells = expand(sweep, {"bundled": CONFIG})
    assert len(cells) == len(set(cells)) == 2 * 3 * 2 * 2
    assert [len(group) for group in variants(cells)] == [12, 12]
    sweep = Sweep(conv=(True, False), layers=("all", "drop2"), window=(0, 4))
    assert [len(group) for group in variants(expand(sweep, {"bundled": CONFIG}))] == [1] * 8


def test_an_empty_axis_is_as_trained():
    trained = Cell("gsm8k", "bundled", 5, 4, True, True, "all", 0, 0.0)
    assert expand(Sweep(), {"bundled": CONFIG}) == (trained,)
    (plain,) = expand(Sweep(), {"bundled": PLAIN})
    assert (plain.selector, plain.conv, plain.num_candidates) == (False, False, 16)
    both = expand(Sweep(drafter=("one", "two")), {"one": CONFIG, "two": PLAIN})
    assert [cell.num_candidates for cell in both] == [4, 16]


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"num_candidates": (33,)}, "num_candidates must be 1 to 32 (the vocabulary), got 33"),
        ({"block_size": (1,)}, "block_size must be at least 2"),
        ({"layers": ("drop1",)}, "layers drop1: the drafter taps 0, 2, not 1"),
        ({"layers": ("shift-1",)}, "layers shift-1 would tap [-1, 1], which are not all layers"),
        ({"layers": ("first",)}, "layers must be all, shift+1, shift-1 or drop with a layer's number, got 'first'"),
        ({"window": (-3,)}, "window must be a number of positions"),
    ],
)
def test_impossible_cells_are_refused_before_anything_runs(axes, said):
    with pytest.raises(RequestError) as error:
        expand(Sweep(**axes), {"bundled": CONFIG})
    assert said in str(error.value)


def test_dflash_has_no_selector_to_ask_for():
    with pytest.raises(RequestError, match="selector on: bundled is a dflash drafter, which has none; ask for off"):
        expand(Sweep(selector=(True, False)), {"bundled": PLAIN})
