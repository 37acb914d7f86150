"""What a client may ask for: a chat completion's body, checked, as a conversation and sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dflash_lab.core.errors import RequestError
from dflash_lab.core.types import Conversation, SamplingParams, Turn

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "stop": ("", []),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "regex": ("",),
    "ebnf": ("",),
    "json_schema": ("",),
    "continue_final_message": (False,),
    "return_hidden_states": (False,),
}
"""Options that would change the answer and that this server does not have, with the values that change nothing."""


class _Part(BaseModel):
    """A piece of a message's content."""

    model_config = ConfigDict(strict=True)
    type: Literal["text"]
    text: str


class _Message(BaseModel):
    """One message."""

    model_config = ConfigDict(strict=True)
    role: Literal["system", "user", "assistant"]
    content: list[_Part]

    @field_validator("content", mode="before")
    @classmethod
    def _one_part(cls, value: Any) -> Any:
        return [{"type": "text", "text": value}] if isinstance(value, str) else value

    def turn(self) -> Turn:
        return Turn(self.role, "".join(part.text for part in self.content))


class _StreamOptions(BaseModel):
    """What a stream carries beside text."""

    model_config = ConfigDict(strict=True)
    include_usage: bool = False
    continuous_usage_stats: bool = False


class ChatBody(BaseModel):
    """The body of a chat completion; unknown fields are passed over, as SGLang and vLLM do."""

    model_config = ConfigDict(strict=True)
    messages: list[_Message] = Field(min_length=1)
    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(None, ge=-1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_meta_info: bool | None = None
    return_spec_tokens_details: bool | None = None

    @property
    def conversation(self) -> Conversation:
        """The messages and what the chat template is told."""
        return Conversation(tuple(message.turn() for message in self.messages), self.chat_template_kwargs or {})

    def sampling(self, max_new_tokens: int) -> SamplingParams:
        """OpenAI's defaults where the body says nothing; `max_new_tokens` is the server's."""
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            max_new_tokens=self.max_completion_tokens or self.max_tokens or max_new_tokens,
        )


def parse_chat(raw: Any) -> ChatBody:
    """A decoded body. Raises RequestError, one line that names the field."""
    if not isinstance(raw, Mapping):
        raise RequestError(f"the body is {_kind(raw)}, expected a JSON object with messages")
    for name, values in NEUTRAL.items():
        value = raw.get(name)
        if value is not None and value not in values:
            raise RequestError(f"{name} = {value!r} is not something this bench server does: leave it out")
    try:
        body = ChatBody.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RequestError(f"{place}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
    if body.stream and body.return_meta_info:
        raise RequestError(
            "return_meta_info is not supported with streaming. Use return_spec_tokens_details, or do not stream"
        )
    return body


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number or a truth value")
