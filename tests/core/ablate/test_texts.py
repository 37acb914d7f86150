"""Greedy texts: known ones are checked in one pass, wrong or missing parts are written, near ties are listed."""

import dataclasses
from collections import Counter

import pytest
import torch

from dflash_lab.core.ablate.texts import NEAR_TIE, Reader, TextPlan, read_text, tolerance_of
from dflash_lab.core.decode.loop import Decoding
from dflash_lab.core.errors import NumericsError, RequestError
from dflash_lab.core.target.toy import ToyTarget
from dflash_lab.core.trace.compare import ROUNDING_MARGIN
from dflash_lab.core.train.corpus import HELD_OUT, HELD_OUT_FLOAT32, load_corpus
from dflash_lab.core.types import SamplingParams

PROMPT = (3, 1, 4, 1, 5)


def greedy(target, length, stop_ids=()):
    """What the target writes on its own."""
    decoding = Decoding(target, None, PROMPT, SamplingParams(max_new_tokens=length, stop_ids=stop_ids))
    list(decoding)
    return tuple(decoding.output_ids)


class Counting(ToyTarget):
    """Counts its passes."""

    passes = 0

    def verify(self, block_ids):
        self.passes += 1
        return super().verify(block_ids)


@pytest.fixture
def pair(make_drafter):
    target = Counting(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)) * 3)
    return target, make_drafter(target)


def test_an_unknown_text_is_written(pair):
    target, drafter = pair
    reading = read_text(target, drafter, PROMPT, (), TextPlan(20, 4, ()))
    assert reading.text.output_ids == greedy(target, 20)
    assert reading.text.beyond_ids == ()
    assert reading.features.shape == (len(PROMPT) + 19, drafter.config.feature_size)


@pytest.mark.parametrize("length", [1, 2, 20])
def test_a_known_text_takes_one_pass(pair, length):
    target, drafter = pair
    whole = greedy(target, 40)
    target.passes = 0
    reading = read_text(target, drafter, PROMPT, whole, TextPlan(length, 4, ()))
    assert reading.text.output_ids == whole[:length]
    assert target.passes == 1 + (length > 1), "the prompt, and the text"


def test_features_do_not_depend_on_how_a_text_was_read(pair):
    target, drafter = pair
    written = read_text(target, drafter, PROMPT, (), TextPlan(20, 4, ()))
    known = read_text(target, drafter, PROMPT, written.text.output_ids, TextPlan(20, 4, ()))
    torch.testing.assert_close(known.features, written.features)
    target.capture(drafter.config.target_layer_ids)
    ids = torch.tensor([written.text.ids[:-1]])
    torch.testing.assert_close(target.prefill(ids).features[0], written.features)


@pytest.mark.parametrize("wrong", [0, 1, 7])
def test_a_wrong_text_is_written_from_there_on(pair, wrong):
    target, drafter = pair
    right = greedy(target, 20)
    known = [*right[:wrong], (right[wrong] + 1) % 32, *right[wrong + 1 :]]
    assert read_text(target, drafter, PROMPT, known, TextPlan(20, 4, ())).text.output_ids == right


@pytest.mark.parametrize("room", [0, 3, 30])
def test_a_text_goes_on_beyond_its_stop_token(pair, room):
    target, drafter = pair
    whole = greedy(target, 60)
    stop = next(i for i in range(4, 60) if whole[i] not in whole[:i])
    plan = TextPlan(stop + 1 + room, 7, (whole[stop],))
    for known in ((), whole[: stop + 1], whole):
        text = read_text(target, drafter, PROMPT, known, plan).text
        assert text.output_ids == whole[: stop + 1]
        assert text.beyond_ids == whole[stop + 1 : stop + 1 + min(room, 7)]


def test_near_ties_are_listed_and_a_known_text_may_break_them(make_drafter):
    table = torch.randn(32, 32, generator=torch.Generator().manual_seed(0)) * 3
    target = ToyTarget(table.clone())
    text = greedy(target, 10)
    best, other = text[4], int(table[text[3]].topk(2).indices[1])
    table[text[3], other] = table[text[3], best] - NEAR_TIE / 2
    target = ToyTarget(table)
    drafter = make_drafter(target)
    own = read_text(target, drafter, PROMPT, (), TextPlan(10, 4, ())).text
    assert own.output_ids[:5] == text[:5]
    assert {tie.index for tie in own.near_ties} == {
        i + 1 for i, token in enumerate(own.output_ids[:-1]) if token == text[3]
    }
    assert all(0 <= tie.margin < NEAR_TIE for tie in own.near_ties)
    known = read_text(target, drafter, PROMPT, (*text[:4], other), TextPlan(5, 4, ())).text
    assert known.output_ids == (*text[:4], other)
    assert [tie.index for tie in known.near_ties if tie.turned] == [4]
    assert not any(tie.turned for tie in own.near_ties)
    table[text[3], other] -= NEAR_TIE
    known = read_text(ToyTarget(table), drafter, PROMPT, (*text[:4], other), TextPlan(5, 4, ())).text
    assert known.output_ids == text[:5]
    assert known.near_ties == ()


def test_a_drafted_token_is_not_tolerated(make_drafter, scripted):
    table = torch.randn(32, 32, generator=torch.Generator().manual_seed(0)) * 3
    text = greedy(ToyTarget(table.clone()), 10)
    other = int(table[text[3]].topk(2).indices[1])
    table[text[3], other] = table[text[3], text[4]] - NEAR_TIE / 2
    target = ToyTarget(table)
    drafter = scripted(target, lambda start, anchor, count: [other] * count)
    assert read_text(target, drafter, PROMPT, (), TextPlan(10, 4, ())).text.output_ids == greedy(target, 10)


def test_half_precision_tolerates_more():
    assert tolerance_of(torch.float32) == NEAR_TIE
    assert tolerance_of(torch.bfloat16) == tolerance_of(torch.float16) == ROUNDING_MARGIN


def test_a_full_context_is_refused_and_a_nearly_full_one_ends_the_text(make_drafter):
    target = ToyTarget.random(32, sharpness=3.0, max_context=8)
    drafter = make_drafter(target)
    text = read_text(target, drafter, PROMPT, (), TextPlan(20, 4, ())).text
    assert (text.limit, len(text.output_ids)) == (4, 4)
    with pytest.raises(RequestError, match="the prompt has 8 tokens, the target's context holds 8"):
        read_text(target, drafter, (*PROMPT, 1, 2, 3), (), TextPlan(20, 4, ()))


def test_logits_that_are_not_finite_are_refused(make_drafter):
    target = ToyTarget(torch.full((32, 32), float("nan")))
    with pytest.raises(NumericsError, match="the target's logits are not finite"):
        read_text(target, make_drafter(target), PROMPT, (), TextPlan(5, 4, ()))


def test_what_memory_does_not_hold_is_read_again(pair):
    target, drafter = pair
    prompts = [PROMPT, (7, 8), (9,)]
    one = (len(PROMPT) + 19) * drafter.config.feature_size * 4
    plan = TextPlan(20, 4, ())
    kept, again = (Reader(target, drafter, prompts, {}, plan, size) for size in (10**9, one))
    texts, features = kept.group([0, 1, 2])
    for _ in range(2):
        same, others = again.group([0, 1, 2])
        assert torch.equal(same.ids, texts.ids)
        torch.testing.assert_close(others, features)
    assert len(kept._kept) == 3
    assert len(again._kept) == 1
    target.passes = 0
    again.read(0)
    assert target.passes == 0
    again.read(1)
    assert target.passes == 2, "known by now: no drafting"


def test_batches_write_the_same_texts(tmp_path, make_drafter):
    from transformers import LlamaConfig, LlamaForCausalLM

    from dflash_lab.core.ablate.texts import write_batch
    from dflash_lab.core.decode.graph import Engine
    from dflash_lab.core.target.lean import LeanTarget

    torch.manual_seed(1)
    sizes = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 3, "head_dim": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.6, "eos_token_id": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained(tmp_path)
    target = LeanTarget(tmp_path, "toy", dtype=torch.float32, device=torch.device("cpu"))
    drafter = make_drafter(target)
    prompts = [PROMPT, (9, 8), (7, 7, 7)]
    stop = read_text(target, drafter, PROMPT, (), TextPlan(15, 4, ())).text.output_ids[5]
    plan = TextPlan(15, 4, (stop,))
    answers = write_batch(Engine(target, drafter, "reference"), prompts, plan)
    assert stop in answers[0][:-4], "it goes on beyond its end"
    for prompt, answer in zip(prompts, answers, strict=True):
        text = read_text(target, drafter, prompt, answer, plan).text
        assert text == dataclasses.replace(read_text(target, drafter, prompt, (), plan).text, near_ties=text.near_ties)
        assert (*text.output_ids, *text.beyond_ids) == tuple(answer)[: plan.wanted(answer, text.limit)]
        assert len(answer) >= plan.wanted(answer, text.limit), "the reader would have to go on"


def test_the_texts_that_come_along_go_on_beyond_their_end():
    corpus = load_corpus(HELD_OUT_FLOAT32)
    sets = ("gsm8k", "math500", "humaneval", "mbpp", "mt-bench")
    assert Counter(corpus.sources.tolist()) == dict.fromkeys(sets, 16)
    shipped = {tuple(prompt.tolist()) for prompt in load_corpus(HELD_OUT).prompts()}
    assert sum(tuple(prompt.tolist()) in shipped for prompt in corpus.prompts()) >= 60, "another selection"
    stop = 2
    for index, start in enumerate(corpus.prompt_lengths):
        answer = corpus.conversation(index)[start:].tolist()
        end = answer.index(stop) + 1 if stop in answer else 512
        assert len(answer) == min(512, end + 31)
