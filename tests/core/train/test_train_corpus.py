"""Corpora: files, checks against target and evaluation, batches."""

import dataclasses
import lzma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_train import VOCAB, make_bench, make_corpus, make_tokenizer

from dflash_lab.core.data.prompts import DATA_FOLDER_VARIABLE
from dflash_lab.core.errors import DataError, TargetError
from dflash_lab.core.target.text import Text
from dflash_lab.core.train.corpus import (
    HELD_OUT,
    SLICE,
    Overlap,
    check_target,
    epoch_batches,
    evaluation_texts,
    join,
    load_corpus,
    refuse_evaluation,
    template_ends,
    user_turns,
)

QUESTION = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
FORMAT = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def test_a_corpus_survives_its_file(tmp_path):
    corpus = make_corpus(10, target="toy")
    corpus.save(tmp_path / "corpus0.npz")
    (tmp_path / "corpus1.npz.xz").write_bytes(lzma.compress((tmp_path / "corpus0.npz").read_bytes()))
    loaded = load_corpus(tmp_path)
    assert len(loaded) == 20
    assert loaded.target == "toy"
    assert loaded.conversation(13).tolist() == corpus.conversation(3).tolist()
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_selecting_keeps_conversations_whole():
    corpus = make_corpus(10)
    chosen = corpus.select(np.array([1, 7]))
    assert [chosen.conversation(i).tolist() for i in range(2)] == [corpus.conversation(i).tolist() for i in (1, 7)]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b"PK nothing"), "not a readable .npz file"),
        (lambda path: np.savez(path, tokens=np.arange(3)), "has no lens, plen"),
        (lambda path: np.savez(path, tokens=np.arange(3), lens=[2], plen=[1]), "do not add up"),
        (lambda path: np.savez(path, tokens=np.arange(3), lens=[3], plen=[4]), "do not add up"),
        (lambda path: np.savez(path, tokens=np.array([None]), lens=[1], plen=[1]), "not a readable .npz file"),
    ],
)
def test_damaged_files_are_named(tmp_path, damage, message):
    damage(tmp_path / "corpus0.npz")
    with pytest.raises(DataError, match=message):
        load_corpus(tmp_path)


def test_a_folder_without_a_corpus(tmp_path):
    with pytest.raises(DataError, match=r"expected a folder with corpus\*.npz files"):
        load_corpus(tmp_path)


def test_corpora_of_two_targets_do_not_mix():
    with pytest.raises(DataError, match="different targets"):
        join([make_corpus(2, target="one"), make_corpus(2, target="two")])


def test_the_template_around_a_turn():
    head, tail = template_ends(Text(make_tokenizer(), "toy"))
    assert (head, tail) == ([4], [2, 5])


def test_a_target_without_a_template():
    with pytest.raises(TargetError, match="no chat template"):
        template_ends(Text(make_tokenizer(template=None), "toy"))


def test_the_corpus_of_another_target_is_refused():
    text = Text(make_tokenizer(), "toy")
    corpus = make_corpus(6)
    check_target(corpus, text, VOCAB, "toy")
    with pytest.raises(DataError, match="written by other, the target is toy"):
        check_target(dataclasses.replace(corpus, target="other"), text, VOCAB, "toy")
    with pytest.raises(DataError, match="holds token"):
        check_target(corpus, text, int(corpus.tokens.max()), "toy")
    moved = dataclasses.replace(corpus, tokens=np.where(corpus.tokens == 5, 6, corpus.tokens))
    with pytest.raises(DataError, match="prompt 0 of the corpus does not follow the chat template"):
        check_target(moved, text, VOCAB, "toy")


def test_evaluation_prompts_are_recognised_by_text_and_by_words_in_a_row():
    evaluation = Overlap([QUESTION + FORMAT, "Another question, quite short" + FORMAT])
    assert QUESTION in evaluation
    assert QUESTION.upper().replace(",", " ;") in evaluation
    assert f"Once more: {QUESTION} How many in all?" in evaluation
    assert "another question quite SHORT" in evaluation
    assert "Natalia sold clips to 12 people, and May came" not in evaluation
    assert f"Tom has 3 apples and eats one, so how many apples does he have left?{FORMAT}" not in evaluation


def test_a_corpus_with_evaluation_prompts_is_refused():
    bench = make_bench()
    corpus = make_corpus(6)
    turn = bench.text.decode(list(user_turns(corpus, bench.text))[3].tolist())
    with pytest.raises(DataError, match=r"1 prompts of the corpus are evaluation prompts \(the first is number 3\)"):
        refuse_evaluation(corpus, bench.text, Overlap([turn]))


def test_whole_sets_count_where_they_are(tmp_path, monkeypatch):
    (tmp_path / "mbpp.jsonl").write_text('{"prompt": "w9 w10"}\n')
    monkeypatch.setenv(DATA_FOLDER_VARIABLE, str(tmp_path))
    texts, whole = evaluation_texts(make_bench().text, make_corpus(2))
    assert whole == ("mbpp",)
    assert len(texts) == 3


@given(st.lists(st.integers(5, 90), min_size=4, max_size=300), st.integers(1, 4), st.integers(0, 3))
def test_an_epoch_has_no_text_twice_and_batches_of_like_length(lengths, size, epoch):
    lengths = np.array(lengths)
    batches = epoch_batches(lengths, size, 7, epoch)
    assert batches.shape == (len(lengths) // size, size)
    assert len(set(batches.ravel().tolist())) == batches.size
    assert np.array_equal(batches, epoch_batches(lengths, size, 7, epoch))


def test_what_ships_is_clean_and_small():
    held_out, small = load_corpus(HELD_OUT), load_corpus(SLICE)
    assert set(held_out.sources.tolist()) == {"gsm8k", "math500", "humaneval", "mbpp", "mt-bench"}
    assert small.target == "SmolLM2-135M-Instruct"
    assert len(small) > 300
    assert SLICE.stat().st_size < 100_000
    shared = {tuple(prompt) for prompt in held_out.prompts()} & {tuple(prompt) for prompt in small.prompts()}
    assert not shared
