"""Text written side by side is what each conversation would be alone."""

import numpy as np
import pytest
import torch
from toy_train import ASSISTANT, END, USER, make_bench, make_corpus, make_model, make_tokenizer

from dflash_lab.core.errors import DataError
from dflash_lab.core.train.compose import Plan, write_corpus
from dflash_lab.core.train.corpus import load_corpus
from dflash_lab.core.train.write import Draft, HfRows, LeanRows, Writer, new_prompts, row_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The toy target on disk."""
    path = tmp_path_factory.mktemp("target")
    model = make_model()
    # Ends of turns must come up now and then.
    with torch.no_grad():
        model.model.embed_tokens.weight[END] *= 3
    model.save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(params=["lean", "transformers"])
def target(request, folder):
    """Both forward passes."""
    lean = row_target(folder, "toy", dtype=torch.float32, device=torch.device("cpu"))
    assert isinstance(lean, LeanRows)
    if request.param == "lean":
        return lean
    from dflash_lab.core.target.hf import load_model

    return HfRows(load_model(folder, dtype=torch.float32, device=torch.device("cpu")), "toy")


def drafts(count: int) -> list[Draft]:
    """Half with a prompt to finish, half with a whole one; half greedy."""
    return [
        Draft((USER, 10 + i), (END, ASSISTANT), float(i % 2), "open")
        if i < count // 2
        else Draft((USER, 10 + i, 11 + i, END, ASSISTANT), (), float(i % 2), "whole")
        for i in range(count)
    ]


def test_each_conversation_is_a_prompt_and_the_targets_own_answer(target, folder):
    model = make_bench().target.model
    model.load_state_dict(row_model(folder))
    corpus = Writer(target).write(drafts(24), max_prompt=40, max_answer=60)
    assert set(corpus.sources.tolist()) == {"open", "whole"}
    assert corpus.target == "toy"
    for index in range(len(corpus)):
        text, prompt = corpus.conversation(index).astype(np.int64), int(corpus.prompt_lengths[index])
        assert text[:prompt][-2:].tolist() == [END, ASSISTANT]
        assert END not in text[prompt:-1]
        assert text[-1] == END or len(text) - prompt == 60
        if corpus.temperatures[index] == 0:
            with torch.no_grad():
                best = model(torch.from_numpy(text)[None]).logits[0].argmax(-1).numpy()
            assert best[prompt - 1 : -1].tolist() == text[prompt:].tolist()


def row_model(folder):
    from dflash_lab.core.target.hf import load_model

    return load_model(folder, dtype=torch.float32, device=torch.device("cpu")).state_dict()


def test_a_writer_can_be_used_again_and_its_seed_decides(target):
    writer = Writer(target)
    first, second, other = (writer.write(drafts(24), seed=s, max_prompt=40, max_answer=20) for s in (1, 1, 2))
    assert first.tokens.tolist() == second.tokens.tolist()
    assert first.tokens.tolist() != other.tokens.tolist()


def test_new_prompts_begin_like_those_of_the_corpus_and_keep_a_shared_last_line():
    corpus = make_corpus(40)
    made = new_prompts(corpus, 1, 2, 50, np.random.default_rng(0), greedy_share=0.5)
    begins = {tuple(prompt[:2].tolist()) for prompt in corpus.prompts()} | {(USER,)}
    assert all(draft.given[:2] in begins for draft in made)
    assert all(draft.closing[-2:] == (END, ASSISTANT) for draft in made)
    assert {draft.temperature for draft in made} == {0.0, 1.0}


def test_a_corpus_is_written_in_parts_and_goes_on(folder, tmp_path):
    bench, seeds, held_out = make_bench(folder), make_corpus(12), make_corpus(4, seed=9)
    plan = Plan(self_written=10, again=True, rows=4)
    report = write_corpus(bench, seeds, held_out, tmp_path / "a", plan, lambda text: None)
    assert report.texts == len(load_corpus(tmp_path / "a"))
    parts = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert parts == ["corpus-00000.npz", "corpus-00001.npz", "corpus-00002.npz", "corpus-seed.npz"]
    whole = load_corpus(tmp_path / "a").tokens.tolist()
    (tmp_path / "a" / "corpus-00001.npz").unlink()
    said = []
    write_corpus(bench, seeds, held_out, tmp_path / "a", plan, said.append)
    assert load_corpus(tmp_path / "a").tokens.tolist() == whole
    assert next(line for line in said if "corpus-0000" in line).startswith("corpus-00001.npz")
    assert len(said) == 2


def test_evaluation_prompts_are_left_out(folder, tmp_path):
    bench, seeds = make_bench(folder), make_corpus(12)
    held_out = seeds.select(np.array([2, 5]))
    report = write_corpus(bench, seeds, held_out, tmp_path, Plan(), lambda text: None)
    assert report.refused >= 2
    assert report.texts == 12 - report.refused


def test_evaluation_sets_are_no_prompts(folder, tmp_path):
    bench, seeds = make_bench(folder), make_corpus(4)
    with pytest.raises(DataError, match="gsm8k is an evaluation set and is never trained on"):
        write_corpus(bench, seeds, seeds.select([0]), tmp_path, Plan(prompts="gsm8k"), lambda text: None)
    (tmp_path / "own.txt").write_text("w20 w21\nw22\n")
    report = write_corpus(
        bench, seeds, seeds.select([0]), tmp_path / "b", Plan(prompts=str(tmp_path / "own.txt")), lambda text: None
    )
    assert report.texts >= 3
