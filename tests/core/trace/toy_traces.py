"""Random traces of a made-up greedy run, with everything a recorder would keep at level `scores`."""

import dataclasses

import numpy as np
from hypothesis import strategies as st

from dflash_lab.core.trace.schema import TokenInfo, Trace, TraceHeader
from dflash_lab.core.types import StepRecord, StepTimings

VOCABULARY = 6


def make_trace(text, draft_lengths, *, prompt=(1, 2), num_candidates=3, max_new=None, selector=True, seed=0):
    """A trace of the greedy run whose target would say `text`, cut to `max_new` tokens.

    Step j proposes `draft_lengths[j % len]` tokens, by a random path through random columns.
    """
    rng = np.random.default_rng(seed)
    text, records, arrays = tuple(text), [], {}
    limit = min(max_new or len(text), len(text))
    committed = text[:1]
    while len(committed) < limit:
        index, num_drafted = len(records), draft_lengths[len(records) % len(draft_lengths)]
        # What the target would say goes on beyond what is committed; past `text` it repeats its last token.
        wanted = [text[min(len(committed) + i, len(text) - 1)] for i in range(num_drafted + 1)]
        scores = _scores(rng, wanted, num_candidates, selector)
        draft_ids = tuple(int(scores["candidate_ids"][i, c]) for i, c in enumerate(scores["path"]))
        accepted = next((i for i in range(num_drafted) if draft_ids[i] != wanted[i]), num_drafted)
        whole = (*draft_ids[:accepted], wanted[accepted])
        kept = whole[: limit - len(committed)]
        records.append(
            StepRecord(
                index=index,
                start=len(prompt) + len(committed) - 1,
                anchor_id=committed[-1],
                draft_ids=draft_ids,
                num_accepted=accepted,
                bonus_id=wanted[accepted],
                committed_ids=kept,
                truncated=len(whole) - len(kept),
                timings=StepTimings(1.0, 0.25, 4.0, 0.5),
            )
        )
        arrays |= {(name, index): array for name, array in scores.items()}
        committed += kept
    header = TraceHeader(
        level="scores",
        request={"sampling": {"temperature": 0.0, "top_p": 1.0, "top_k": 0}},
        prompt_ids=tuple(prompt),
        output_ids=committed,
        stop_reason="length",
        decode_s=2.0,
        target={"name": "toy"},
        drafter={"name": "toy", "version": "dflash2" if selector else "dflash"},
        block_size=max(draft_lengths) + 1,
        num_candidates=num_candidates,
        tokens={i: TokenInfo(f"t{i}") for i in range(VOCABULARY)},
    )
    return Trace.from_arrays(header, tuple(records), arrays)


def _scores(rng, wanted, num_candidates, selector):
    num_drafted, slots = len(wanted) - 1, len(wanted)
    columns = [rng.permutation(VOCABULARY)[:num_candidates] for _ in range(num_drafted)]
    scores = {
        "candidate_ids": np.array(columns, np.int32).reshape(num_drafted, num_candidates),
        "unary": -np.sort(-rng.normal(size=(num_drafted, num_candidates))).astype(np.float32),
        "log_norm": rng.normal(size=num_drafted).astype(np.float32),
        "path": rng.integers(num_candidates, size=num_drafted).astype(np.int32),
        "target_ids": np.array(wanted, np.int32),
        "target_top2": np.tile(np.array([2.0, 1.0], np.float32), (slots, 1)),
        "target_log_norm": np.ones(slots, np.float32),
        "target_logit": rng.normal(size=(num_drafted, num_candidates)).astype(np.float32),
    }
    if selector:
        scores["edges"] = rng.normal(size=(num_drafted, num_candidates, num_candidates)).astype(np.float32)
    return scores


def sampled(trace):
    """The same trace as if its request had asked for temperature 1."""
    return with_header(trace, request={"sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0}})


def with_header(trace, **changes):
    return Trace(dataclasses.replace(trace.header, **changes), trace.steps, trace.tensor, trace.name)


def with_steps(trace, steps):
    return Trace(trace.header, tuple(steps), trace.tensor, trace.name)


def without(trace, *names):
    """The same trace without some tensors."""
    return Trace(
        trace.header, trace.steps, lambda name, step: None if name in names else trace.tensor(name, step), trace.name
    )


@st.composite
def traces(draw):
    """Greedy traces with blocks of mixed lengths, some without a proposal, ending in the middle of a block or not."""
    text = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=24))
    return make_trace(
        text,
        draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)),
        prompt=draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)),
        num_candidates=draw(st.integers(1, 4)),
        max_new=draw(st.integers(1, 24)),
        selector=draw(st.booleans()),
        seed=draw(st.integers(0, 999)),
    )
