"""What a trace says about its drafter: why each step ended, and acceptance under every name it has in the field.

Pure functions of recorded values. The three lengths of a step compare the block's columns with the target's own
continuation, which the committed text gives without another forward pass:

    argmax_length   1 + leading positions whose best candidate is the wanted token   (no selector)
    selected_length 1 + leading positions of the chosen path, i.e. 1 + accepted      (what happened)
    best_length     1 + leading positions whose column holds the wanted token        (a perfect selector)

When sampling, the wanted tokens are those that were drawn.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dflash_lab.core.acceptance import Acceptance, check_identities, from_counts
from dflash_lab.core.errors import TraceError
from dflash_lab.core.trace.schema import Trace
from dflash_lab.core.types import StepRecord

CAUSES: dict[str, str] = {
    "selector": "the target's token was among the candidates, but another was chosen",
    "drafter": "the target's token was not among the candidates, or there is no selector to choose it",
    "full": "every proposal was accepted",
    "stop": "the text was cut inside the block, by a stop token or its length",
    "sampled": "rejected by the draw, although the target's most likely token was proposed",
    "unknown": "the candidates or the target's tokens were not recorded",
}
"""Why a step accepted no more than it did."""


@dataclass(frozen=True)
class StepAnalysis:
    """One verification step, explained. Positions count from 0 here, as in the trace's tensors."""

    num_drafted: int
    """Proposed tokens, K; 0 when autoregressive."""
    num_accepted: int
    """Leading proposals kept; also the position of the first mismatch where it is below K."""
    cause: str
    """A key of `CAUSES`."""
    wanted_id: int | None
    """What the target wanted at the first mismatch: its arg-max; None after full acceptance or if not recorded."""
    target_rank: int | None
    """Rank of `wanted_id` among the candidates, 1 is best; None if it is not in the list or not recorded."""
    argmax_length: int | None
    """Acceptance length of the best candidates; None if candidates were not recorded."""
    selected_length: int
    """Acceptance length of the chosen path, 1 + num_accepted."""
    best_length: int | None
    """Acceptance length of the best path in the grid; None if candidates were not recorded."""
    known: int
    """Leading positions whose continuation is known, 0..K: the text ends somewhere. Lengths stop there."""
    wanted_ids: tuple[int, ...]
    """The continuation at the `known` positions."""
    wanted_ranks: tuple[int | None, ...] | None
    """Rank of each of them in its column, None if not in it; None as a whole if candidates were not recorded."""


@dataclass(frozen=True)
class TraceMetrics(Acceptance):
    """A whole trace in numbers: its acceptance, the same under other conventions, recall, causes, lengths, speed."""

    num_output_tokens: int
    """Tokens of the output, n, the one from prefill included."""
    num_clipped: int
    """Accepted or bonus tokens cut off at stop or length."""
    produced_per_step: tuple[int, ...]
    """Tokens each step appended, bonus included, after clipping."""
    zlab_list_mean: float | None
    """Mean of `produced_per_step`: acceptance length - clipped / steps, as z-lab's code prints it."""
    zlab_acceptance_length: float | None
    """n / steps, completion tokens per verification step; published tables average it over requests."""
    sglang_accept_length: float | None
    """n / steps, SGLang's `spec_accept_length`; of several requests it is total tokens over total steps."""
    recall_at_1: tuple[float | None, ...]
    """By position: how often the best candidate is the wanted token, accepted prefix or not."""
    recall_at_c: tuple[float | None, ...]
    """By position: how often the wanted token is among the candidates."""
    recall_n: tuple[int, ...]
    """Steps behind each recall: candidates recorded and continuation known."""
    causes: Mapping[str, int]
    """Steps with a proposal by cause, every key of `CAUSES`."""
    argmax_acceptance_length: float | None
    """Mean `argmax_length` of the steps with recorded candidates."""
    selected_acceptance_length: float | None
    """Mean `selected_length` of the same steps; equal to `mean_acceptance_length` if all were recorded."""
    best_path_acceptance_length: float | None
    """Mean `best_length` of the same steps."""
    decode_tok_s: float | None
    """Tokens after the first per second of decoding."""
    steps_per_s: float | None
    """Verification steps per second of decoding."""

    def describe(self) -> str:
        """The acceptance in words, a line each: every ratio with its denominator, every convention by name."""
        if not self.num_steps:
            return "no verification steps"
        lengths = [length for length in self.histogram_by_draft_length if length]
        if not lengths:
            return f"autoregressive: {self.num_steps} steps of one token, nothing proposed"
        shortest, longest = lengths[0], lengths[-1]
        drafts = longest if shortest == longest else f"{shortest} to {longest}"
        return "\n".join(
            (
                f"acceptance length {self.mean_acceptance_length:.2f} tokens per step: "
                f"1 + {self.num_accepted} accepted / {self.num_steps} steps (vLLM)",
                f"acceptance rate {self.acceptance_rate:.3f}: {self.num_accepted} of {self.num_proposed} proposed; "
                "falls as blocks grow even where the acceptance length rises",
                f"drafts per step {drafts}: block of {longest + 1} with the anchor (SGLang), {longest} drafts (vLLM)",
                f"z-lab list mean {self.zlab_list_mean:.2f}: {self.num_clipped} tokens cut off at stop or length",
                f"SGLang accept length {self.sglang_accept_length:.2f}, z-lab acceptance length "
                f"{self.zlab_acceptance_length:.2f}: {self.num_output_tokens} output tokens / {self.num_steps} steps",
            )
        )


def step_analysis(trace: Trace, i: int) -> StepAnalysis:
    """Explain step number `i`, an index into `trace.steps`."""
    record = trace.steps[i]
    wanted = _continuation(trace, record)
    candidates = trace.tensor("candidate_ids", record.index)
    ranks = (
        None
        if candidates is None
        else tuple(_rank(column, token) for column, token in zip(candidates, wanted, strict=False))
    )
    cause, wanted_id, target_rank = _cause(trace, record, candidates)
    return StepAnalysis(
        num_drafted=len(record.draft_ids),
        num_accepted=record.num_accepted,
        cause=cause,
        wanted_id=wanted_id,
        target_rank=target_rank,
        argmax_length=None if ranks is None else 1 + _leading(rank == 1 for rank in ranks),
        selected_length=1 + record.num_accepted,
        best_length=None if ranks is None else 1 + _leading(rank is not None for rank in ranks),
        known=len(wanted),
        wanted_ids=wanted,
        wanted_ranks=ranks,
    )


def trace_metrics(trace: Trace) -> TraceMetrics:
    """All numbers of `trace`; reads the candidates of every step. Never refuses a trace: see `check_trace`."""
    analyses = [step_analysis(trace, i) for i in range(len(trace))]
    acceptance = from_counts((step.num_drafted, step.num_accepted) for step in analyses)
    produced = tuple(record.commit_length for record in trace.steps)
    num_output_tokens, decode_s = len(trace.header.output_ids), trace.header.decode_s
    per_step = num_output_tokens / len(produced) if produced else None
    recorded = [step for step in analyses if step.wanted_ranks is not None]
    recall_n, at_1, at_c = _recall(recorded, len(acceptance.survival))
    causes = Counter(step.cause for step in analyses if step.num_drafted)
    return TraceMetrics(
        **vars(acceptance),
        num_output_tokens=num_output_tokens,
        num_clipped=sum(record.truncated for record in trace.steps),
        produced_per_step=produced,
        zlab_list_mean=_mean(produced),
        zlab_acceptance_length=per_step,
        sglang_accept_length=per_step,
        recall_at_1=at_1,
        recall_at_c=at_c,
        recall_n=recall_n,
        causes={cause: causes[cause] for cause in CAUSES},
        argmax_acceptance_length=_mean([step.argmax_length for step in recorded]),
        selected_acceptance_length=_mean([step.selected_length for step in recorded]),
        best_path_acceptance_length=_mean([step.best_length for step in recorded]),
        decode_tok_s=sum(produced) / decode_s if decode_s else None,
        steps_per_s=len(produced) / decode_s if decode_s else None,
    )


def check_trace(trace: Trace) -> TraceMetrics:
    """The metrics of `trace`, after every identity held; raises TraceError naming the step and the identity broken.

    Each step's anchor and committed tokens stand in the text at its start, and it commits its accepted proposals and
    its bonus token, less what was cut off. n = 1 + sum(commit_length), unless step numbers are missing. A greedy target
    does not reject its own token. No path of the grid, the chosen one included, is longer than the best one.
    """
    for i, record in enumerate(trace.steps):
        for identity, holds in _step_identities(trace, record).items():
            if not holds:
                raise TraceError(f"step {record.index}: broken identity: {identity}; the steps do not fit the text")
        analysis = step_analysis(trace, i)
        if analysis.best_length is not None and analysis.best_length < analysis.selected_length:
            raise TraceError(
                f"step {record.index}: broken identity: selected <= best length; the path is not in the grid"
            )
    metrics = trace_metrics(trace)
    check_identities(metrics)
    complete = [record.index for record in trace.steps] == list(range(len(trace)))
    committed = 1 + sum(metrics.produced_per_step)
    if complete and trace.header.status != "failed" and metrics.num_output_tokens != committed:
        got = f"the text has {metrics.num_output_tokens} tokens"
        raise TraceError(f"broken identity: n = 1 + sum(commit_length) gives {committed}, {got}; steps are missing")
    return metrics


def is_greedy(trace: Trace) -> bool:
    """Whether the request's temperature is 0, the default of `SamplingParams`."""
    return trace.header.request.get("sampling", {}).get("temperature", 0) == 0


def _continuation(trace: Trace, record: StepRecord) -> tuple[int, ...]:
    """The target's tokens at the block's positions, as far as known.

    Accepted proposals and the bonus token are known even where the text was cut before them.
    """
    accepted = record.draft_ids[: record.num_accepted]
    anchor = record.start - len(trace.header.prompt_ids)
    after = trace.header.output_ids[anchor + record.num_accepted + 2 : anchor + len(record.draft_ids) + 1]
    return (*accepted, record.bonus_id, *after)[: len(record.draft_ids)]


def _rank(column: np.ndarray, token: int) -> int | None:
    found = np.flatnonzero(column == token)
    return int(found[0]) + 1 if found.size else None


def _leading(holds: Iterable[bool]) -> int:
    return sum(1 for _ in itertools.takewhile(bool, holds))


def _cause(trace: Trace, record: StepRecord, candidates: np.ndarray | None) -> tuple[str, int | None, int | None]:
    """(cause, token wanted at the first mismatch, its rank)."""
    mismatch = record.num_accepted
    if record.truncated:
        return "stop", None, None
    if mismatch == len(record.draft_ids):
        return "full", None, None
    wanted = record.bonus_id
    if not is_greedy(trace):
        # The bonus token was drawn from what is left after the rejection; the arg-max says what a better draft is.
        target_ids = trace.tensor("target_ids", record.index)
        if target_ids is None:
            return "unknown", None, None
        wanted = int(target_ids[mismatch])
    rank = None if candidates is None else _rank(candidates[mismatch], wanted)
    if wanted == record.draft_ids[mismatch]:
        return "sampled", wanted, rank
    if candidates is None:
        return "unknown", wanted, None
    if rank is not None and trace.tensor("edges", record.index) is not None:
        return "selector", wanted, rank
    return "drafter", wanted, rank


def _recall(steps: list[StepAnalysis], positions: int) -> tuple[tuple, tuple, tuple]:
    """(n, recall at 1, recall at C), each by position."""
    columns = [[step.wanted_ranks[i] for step in steps if step.known > i] for i in range(positions)]
    return (
        tuple(len(ranks) for ranks in columns),
        tuple(_mean([rank == 1 for rank in ranks]) for ranks in columns),
        tuple(_mean([rank is not None for rank in ranks]) for ranks in columns),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _step_identities(trace: Trace, record: StepRecord) -> dict[str, bool]:
    """What must hold in one step, by how it reads in an error."""
    output, first = trace.header.output_ids, record.start - len(trace.header.prompt_ids)
    whole = (*record.draft_ids[: record.num_accepted], record.bonus_id)
    rejected = record.draft_ids[record.num_accepted : record.num_accepted + 1]
    return {
        "0 <= accepted <= proposed": 0 <= record.num_accepted <= len(record.draft_ids),
        "anchor = last token before the block": output[first : first + 1] == (record.anchor_id,),
        "committed = accepted + bonus, less truncated": record.committed_ids == whole[: len(whole) - record.truncated]
        and record.truncated >= 0,
        "committed = the text after the anchor": record.committed_ids
        == output[first + 1 : first + 1 + record.commit_length],
        "a greedy target accepts its own token": not is_greedy(trace) or rejected != (record.bonus_id,),
    }
