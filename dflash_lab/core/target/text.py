"""Text at the edge: prompts to ids, ids to text, and how each single token reads."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence

from dflash_lab.core.errors import RequestError, TargetError
from dflash_lab.core.types import Conversation, Turn


class Text:
    """A tokenizer as the lab needs it."""

    def __init__(self, tokenizer, name: str) -> None:
        self.tokenizer, self._name = tokenizer, name
        # Asked for each time, the tokenizer would make the table anew.
        added = tokenizer.added_tokens_decoder
        self._added = frozenset(added)
        self._special = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
        self._bytes = _byte_decoder()
        self._byte_level = _is_byte_level(tokenizer)

    def encode(self, prompt: str | Conversation, chat: bool = True) -> tuple[list[int], str]:
        """Token ids of a prompt and the text they were made from, put through the chat template if `chat`.

        A conversation goes through it always. Raises RequestError for a prompt without text and for turns or
        arguments that the template refuses.
        """
        conversation = Conversation((Turn("user", prompt),)) if isinstance(prompt, str) else prompt
        if not any(turn.content.strip() for turn in conversation.turns):
            raise RequestError("the prompt is empty: give some text")
        if prompt is not conversation and not chat:
            return self.tokenizer(prompt)["input_ids"], prompt
        rendered = self._render(conversation)
        return self.tokenizer(rendered, add_special_tokens=False)["input_ids"], rendered

    def _render(self, conversation: Conversation) -> str:
        if not self.tokenizer.chat_template:
            raise TargetError(f"target {self._name!r} has no chat template: use --no-chat")
        apply = self.tokenizer.apply_chat_template
        reserved = sorted(conversation.template_arguments.keys() & inspect.signature(apply).parameters.keys())
        if reserved:
            raise RequestError(f"{reserved[0]} is no argument of a chat template: leave it out")
        turns = [{"role": turn.role, "content": turn.content} for turn in conversation.turns]
        from jinja2 import TemplateError

        try:
            return apply(turns, tokenize=False, add_generation_prompt=True, **conversation.template_arguments)
        except TemplateError as error:
            raise RequestError(f"the chat template of target {self._name!r} refuses these turns: {error}") from None

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a whole sequence, special tokens left out."""
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for."""
        piece = self.tokenizer.convert_ids_to_tokens(token_id)
        if piece is None:
            return f"<{token_id}>".encode()
        if token_id in self._special or token_id in self._added:
            return piece.encode()
        if self._byte_level:
            return bytes(self._bytes[ch] for ch in piece) if all(ch in self._bytes for ch in piece) else piece.encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("▁", " ").encode()

    def tokens(self, ids: Iterable[int]) -> dict[int, tuple[str, str | None, bool]]:
        """For each id: its text, its bytes in hex where the text does not round-trip, and whether it is special."""
        table = {}
        for token_id in ids:
            raw = self.token_bytes(token_id)
            text = raw.decode("utf-8", errors="replace")
            table[token_id] = (text, None if text.encode() == raw else raw.hex(), token_id in self._special)
        return table


def _is_byte_level(tokenizer) -> bool:
    """True for byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM), false for SentencePiece pieces."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return "ByteLevel" in repr(decoder) if decoder is not None else False


def _byte_decoder() -> dict[str, int]:
    """Byte-level BPE's printable stand-ins to bytes (the table of GPT-2's tokenizer)."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(b): b for b in kept}
    table.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in kept)})
    return table
