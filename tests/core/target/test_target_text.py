"""Token bytes and prompts of byte-level and SentencePiece tokenizers built here."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dflash_lab.core.errors import RequestError, TargetError
from dflash_lab.core.target.text import Text
from dflash_lab.core.types import Conversation, Turn

TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"


def byte_level(template=TEMPLATE):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate(["<|im_end|>", *alphabet, "Ġthe"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=template)


def sentence_piece():
    pieces = ["<unk>", "▁the", "a", "<0xE2>", "<0x0A>", "▁"]
    tokenizer = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_byte_level_pieces_are_bytes():
    tokenizer = byte_level()
    text = Text(tokenizer, "t")
    for sample in ("é", " x\n", "👨‍👩‍👧", "\u202e‏א"):
        ids = tokenizer(sample)["input_ids"]
        assert b"".join(text.token_bytes(i) for i in ids) == sample.encode()
    the = tokenizer.convert_tokens_to_ids("Ġthe")
    assert text.tokens([the]) == {the: (" the", None, False)}


def test_half_a_character_keeps_its_bytes():
    tokenizer = byte_level()
    first = tokenizer("é")["input_ids"][0]
    assert Text(tokenizer, "t").tokens([first]) == {first: ("�", "c3", False)}


def test_special_tokens_are_marked_and_left_out_of_the_text():
    tokenizer = byte_level()
    text = Text(tokenizer, "t")
    assert text.tokens([0]) == {0: ("<|im_end|>", None, True)}
    assert text.decode([*tokenizer("hi")["input_ids"], 0]) == "hi"


def test_sentence_piece_spaces_and_byte_fallback():
    text = Text(sentence_piece(), "t")
    assert text.tokens(range(1, 6)) == {
        1: (" the", None, False), 2: ("a", None, False), 3: ("�", "e2", False), 4: ("\n", None, False),
        5: (" ", None, False),
    }  # fmt: skip


def test_an_id_past_the_vocabulary_still_reads():
    assert Text(byte_level(), "t").tokens([9999]) == {9999: ("<9999>", None, False)}


def test_prompts_go_through_the_chat_template_unless_told_not_to():
    tokenizer = byte_level()
    text = Text(tokenizer, "t")
    ids, rendered = text.encode("hi")
    assert rendered == "<|user|>hi<|assistant|>"
    assert tokenizer.decode(ids) == rendered
    ids, rendered = text.encode("hi", chat=False)
    assert (rendered, tokenizer.decode(ids)) == ("hi", "hi")


def test_a_conversation_goes_through_the_template_with_its_arguments():
    template = TEMPLATE.replace("<|assistant|>", "<|assistant|>{% if enable_thinking %}<think>{% endif %}")
    text = Text(byte_level(template), "t")
    turns = (Turn("system", "be brief"), Turn("user", "hi"), Turn("assistant", "ho"), Turn("user", "again"))
    plain = "<|system|>be brief<|user|>hi<|assistant|>ho<|user|>again<|assistant|>"
    assert text.encode(Conversation(turns), chat=False)[1] == plain
    assert text.encode(Conversation(turns, {"enable_thinking": True}))[1] == plain + "<think>"
    assert text.encode(Conversation(turns[1:2])) == text.encode("hi")


def test_conversations_that_cannot_be_used():
    turns = (Turn("user", "hi"),)
    with pytest.raises(RequestError, match="the prompt is empty"):
        Text(byte_level(), "t").encode(Conversation(()))
    with pytest.raises(RequestError, match="chat_template is no argument of a chat template"):
        Text(byte_level(), "t").encode(Conversation(turns, {"chat_template": "{{ 1 }}"}))
    refusing = Text(byte_level("{{ raise_exception('no system here') }}"), "t")
    with pytest.raises(RequestError, match="template of target 't' refuses these turns: no system here"):
        refusing.encode(Conversation(turns))


def test_prompts_that_cannot_be_used():
    with pytest.raises(RequestError, match="the prompt is empty"):
        Text(byte_level(), "t").encode("  \n")
    with pytest.raises(TargetError, match="target 't' has no chat template: use --no-chat"):
        Text(byte_level(None), "t").encode("hi")
