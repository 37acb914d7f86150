"""What is kept of a live server: who it is, what it counted, what became of each request. None means not reported.

    ServerInfo      who answers at a URL, with which drafter, on what; from the probe
    ServerStats     verification statistics of one request or of an interval, in one schema whatever the server's names
    Snapshot        the server's own counters and gauges at one moment
    LoadPlan        what to send, how many at a time
    RequestRecord   one request of ours: raw time stamps, tokens, statistics, or the kind of its failure
    RunHeader       all that is the same for a run: server, plan, prompts, provenance
    RunEnd          how a run, or a part of it, ended

Times are seconds. `*_at_s` is Unix time, taken from a monotonic clock within one process; other times are durations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FAILURES = {
    "connection": "no connection, or none that lived to an answer",
    "timeout": "no complete answer within the time limit",
    "status": "an HTTP status other than 200",
    "error": "an error reported inside an answer that began well",
    "cut": "the connection ended in the middle of the answer",
    "malformed": "an answer that is not the protocol's",
    "aborted": "the server gave the request up",
    "empty": "finished without a token",
    "cancelled": "given up by us, interrupted",
}
"""Kinds of failure of a request."""

CONVENTIONS = {
    "accepted_per_step": "1 + accepted / verification steps, not cut at stop or length (vLLM's mean_acceptance_length)",
    "tokens_per_step": "completion tokens / verification steps, first token included (SGLang's spec_accept_length)",
    "committed_per_step": "(accepted + bonus) / verification steps over the last interval (SGLang's gauge)",
}
"""How a server defines the acceptance length that it reports."""


@dataclass(frozen=True)
class ServerInfo:
    """Who answers at a URL."""

    url: str
    """Base address, without `/v1`."""
    backend: str
    """`sglang`, `vllm`, `dflash-lab`, or `other`."""
    model: str
    """The served name, as requests give it."""
    version: str | None = None
    """Version of the server."""
    target: str | None = None
    """The target's hub id or folder."""
    max_model_len: int | None = None
    """Longest prompt and output together, tokens."""
    speculation: bool | None = None
    """Whether the server drafts at all; None if nothing tells."""
    algorithm: str | None = None
    """The server's own word for how it drafts: `DFLASH`, `dflash`, `ngram`, ..."""
    method: str = "unknown"
    """The same as the published tables call it: `Autoregressive`, `MTP`, `DFlash 2`, `DFlash`, else `algorithm`."""
    drafter: str | None = None
    """The drafter's hub id or folder."""
    drafter_revision: str | None = None
    """Its revision on the hub."""
    drafts_per_step: int | None = None
    """Tokens proposed per verification step, K; SGLang and DFlash count the anchor too and say K + 1."""
    max_running_requests: int | None = None
    """Requests that run at a time; more are queued."""
    hardware: str | None = None
    """Name of the accelerator, or of the processor."""
    hardware_from: str | None = None
    """Whose word that is: `server`, `nvml` (the driver of this machine) or `this machine`."""
    num_devices: int | None = None
    """Accelerators that serve one copy of the model."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else was told: data types, attention backends, parallel sizes, thresholds, by the server's names."""
    statistics: tuple[str, ...] = ()
    """Where acceptance statistics were found: keys of `stats.SOURCES`."""
    fingerprint: str | None = None
    """vLLM's `system_fingerprint`: the same text, the same configuration."""
    warnings: tuple[str, ...] = ()
    """What a measurement should not be made without knowing."""

    @property
    def hardware_text(self) -> str:
        """Number and name of the accelerators, or `not told`."""
        return f"{self.num_devices or 1}x {self.hardware}" if self.hardware else "not told"


@dataclass(frozen=True)
class ServerStats:
    """Verification statistics in one schema. Counts are never cut at stop or length, and never hold bonus tokens."""

    source: str
    """Where it stood: a key of `stats.SOURCES`."""
    names: str
    """Whose names they were: `sglang <= 0.5.10`, `sglang 0.5.11`, `sglang >= 0.5.12`, `vllm`, ..."""
    num_steps: int | None = None
    """Verification steps."""
    num_accepted: int | None = None
    """Proposals accepted."""
    num_proposed: int | None = None
    """Proposals made."""
    histogram: tuple[int, ...] | None = None
    """Steps that accepted 0, 1, .. proposals; trailing zeros may be missing."""
    drafts_per_step: int | None = None
    """Most proposals in a step, K."""
    reported_length: float | None = None
    """The server's own acceptance length."""
    reported_rate: float | None = None
    """The server's own accepted / proposed."""
    convention: str | None = None
    """How `reported_length` is defined: a key of `CONVENTIONS`."""
    warnings: tuple[str, ...] = ()
    """What is odd without being wrong."""
    broken: tuple[str, ...] = ()
    """Identities that these numbers break; such statistics are kept and never averaged."""

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / steps, whatever the server reports."""
        if not self.num_steps or self.num_accepted is None:
            return None
        return 1 + self.num_accepted / self.num_steps


@dataclass(frozen=True)
class Snapshot:
    """A server's own counters and gauges at one moment. Counters start at the server's start."""

    at_s: float
    """When it was read, Unix seconds."""
    source: str
    """`metrics` (Prometheus), or `loads` (SGLang without metrics: gauges only)."""
    running: int | None = None
    """Requests that are being decoded."""
    waiting: int | None = None
    """Requests in the server's queue."""
    in_flight: int | None = None
    """Requests of our own load that are under way."""
    output_tokens: int | None = None
    """Counter of tokens written. SGLang adds them when a request ends."""
    decoded_tokens: int | None = None
    """Counter of tokens written that goes on while requests run; vLLM's `output_tokens` does so itself."""
    prompt_tokens: int | None = None
    """Counter of prompt tokens."""
    cached_prompt_tokens: int | None = None
    """Counter of prompt tokens found in the prefix cache."""
    num_steps: int | None = None
    """Counter of verification steps. SGLang adds them when a request ends."""
    num_accepted: int | None = None
    """Counter of accepted proposals."""
    num_proposed: int | None = None
    """Counter of proposals."""
    accepted_by_position: tuple[int, ...] | None = None
    """Counters of steps that accepted position 1, 2, .. and all before it."""
    finished: int | None = None
    """Counter of requests that ended well."""
    aborted: int | None = None
    """Counter of requests that the server gave up."""
    kv_cache_usage: float | None = None
    """Share of the key-value cache in use."""
    gauge_tok_s: float | None = None
    """The server's throughput over its last interval; stale when idle."""
    gauge_length: float | None = None
    """The server's acceptance length over its last interval (`committed_per_step`); stale when idle."""


@dataclass(frozen=True)
class LoadPlan:
    """What is sent, and how many at a time. The defaults are those of z-lab's benchmark."""

    dataset: str
    """Name of the prompt set."""
    num_prompts: int
    """Requests to measure."""
    concurrency: int | None = 1
    """Requests kept under way, each replaced as it ends; None with `rate`."""
    rate: float | None = None
    """Requests per second that arrive whatever happens, at exponentially distributed intervals."""
    max_new_tokens: int = 2048
    """`max_tokens`, reasoning included."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus filter; 1 keeps all."""
    top_k: int = 0
    """Top-k filter; 0 keeps all."""
    reasoning: str | None = None
    """None leaves it to the chat template; `on`, `off`, or a level such as `xhigh`."""
    stream: bool = False
    """Whether answers are streamed: only then this side sees the first token."""
    salt: bool = False
    """Whether each request gets a `cache_salt` of its own, so that none finds another's prefix."""
    num_warmup: int = 8
    """Requests sent before the measured ones and not counted."""
    repeat: bool = False
    """Whether prompts are used again when the set holds fewer than `num_prompts`, as z-lab's client does."""
    seed: int = 42
    """Seed of the selection of prompts and of arrival times."""
    timeout_s: float = 3600.0
    """Longest wait for one answer."""

    @property
    def name(self) -> str:
        """Short name of the cell: data set and concurrency or rate."""
        return f"{self.dataset}-c{self.concurrency}" if self.rate is None else f"{self.dataset}-r{self.rate:g}"


@dataclass(frozen=True)
class RequestRecord:
    """One request of ours."""

    index: int
    """Number in the plan, from 0; warm-up requests have numbers of their own."""
    prompt_id: str
    """Which prompt: `<data set>/<row>`."""
    category: str
    """The prompt's category."""
    prompt_hash: str
    """First 16 digits of the SHA-256 of messages and template arguments as sent."""
    sent_at_s: float
    """When it was sent."""
    duration_s: float
    """From then to its last byte, or to its failure."""
    segment: int = 0
    """Part of the run it belongs to: 0, and one more for each time the run was resumed."""
    due_at_s: float | None = None
    """When it should have been sent, with `rate`."""
    failure: str | None = None
    """Kind of its failure, a key of `FAILURES`; None if it went well."""
    message: str | None = None
    """The failure in one line."""
    chunk_s: tuple[float, ...] = ()
    """After `sent_at_s`, when each chunk with text came; empty if not streamed. A chunk is not a token."""
    prompt_tokens: int | None = None
    """The server's count."""
    completion_tokens: int | None = None
    """Tokens written, reasoning included."""
    tokens_from: str | None = None
    """`usage`, or `estimated` where the server gave no usage and its tokenizer counted the text."""
    reasoning_tokens: int | None = None
    """Those of them that were reasoning."""
    cached_tokens: int | None = None
    """Prompt tokens that the server found in its prefix cache."""
    finish_reason: str | None = None
    """`stop`, `length`, ..."""
    output_hash: str | None = None
    """First 16 digits of the SHA-256 of reasoning and text."""
    server_first_token_s: float | None = None
    """Time to the first token by the server's own clock."""
    stats: ServerStats | None = None
    """Verification statistics of this request."""

    @property
    def ok(self) -> bool:
        """Whether it went well."""
        return self.failure is None

    @property
    def end_at_s(self) -> float:
        """When it ended."""
        return self.sent_at_s + self.duration_s

    @property
    def undrafted_tokens(self) -> int:
        """Tokens, at least, from steps without a draft, as n-gram methods have: vLLM does not count such steps."""
        if self.stats is None or self.stats.names != "vllm" or None in (self.stats.num_steps, self.stats.num_accepted):
            return 0
        return max(0, (self.completion_tokens or 0) - 1 - self.stats.num_accepted - self.stats.num_steps)

    @property
    def first_token_s(self) -> float | None:
        """From sending to the first chunk with text, as this side saw it."""
        return self.chunk_s[0] if self.chunk_s else None

    @property
    def per_token_s(self) -> float | None:
        """Seconds per token after the first (TPOT); None unless streamed and longer than a token."""
        if not self.chunk_s or not self.completion_tokens or self.completion_tokens < 2:
            return None
        return (self.chunk_s[-1] - self.chunk_s[0]) / (self.completion_tokens - 1)


@dataclass(frozen=True)
class RunHeader:
    """All that is the same for a run."""

    label: str
    """What the tables call it: the method, or a name given to the run."""
    server: ServerInfo
    """What was measured."""
    plan: LoadPlan
    """With which load."""
    body: Mapping[str, Any]
    """What every request says beside its messages: the effective sampling, as sent."""
    source: str
    """File or hub id of the prompts."""
    available: int
    """Prompts in the whole set."""
    prompt_ids: tuple[str, ...]
    """The prompts in order."""
    repeated: int = 0
    """Requests whose prompt an earlier one of the run has already."""
    prompt_repetition: float = 0.0
    """Share of word 4-grams that a prompt holds already, averaged over prompts: filler text shows here."""
    warnings: tuple[str, ...] = ()
    """What was known to be odd before the first request."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """This side: revision, versions, machine, command line."""


@dataclass(frozen=True)
class RunEnd:
    """How a run, or a part of it, ended."""

    status: str
    """`complete`, `interrupted`, or `server lost`."""
    at_s: float
    """When."""
    message: str | None = None
    """Why, in one line."""
