"""Seeded synthetic traces: everything a page can be given, without a model."""

from __future__ import annotations

import numpy as np

from dflash_lab.core.trace.schema import TokenInfo, Trace, TraceHeader
from dflash_lab.core.types import StepRecord, StepTimings

PROSE = (
    " So| Natalia| sold|4|8| /| 2| =| |2|4| clips| in| May|.|\n| Then| she| sold| a| total| of| 7|2| clips|,"
    " because| half| as| many| were| bought| by| her| friends| and| the| rest|\n\n|Let|'s| compute|:| first| April|"
    " however| therefore| but| which| is| that| number| we| need| to| find|ing| answer| boxed|{|}| twice| remain|ing"
).split("|")
HOSTILE = (
    "${1}|`|\\|</script>|<!--|<img src=x onerror=window.__pwned=1>|{{x}}|]]>|&amp;|\"|'|\u2028|\0|\n|\r\n|\t|\u200b|"
    "👨‍👩‍👧|🇩🇪|\u202eabc|\u2066x|مرحبا|שלום|\u0301|" + "x" * 200 + "||�|<0xE2>|<|eot|>|${window.__pwned=1}|=1+1"
).split("|")
HOSTILE[HOSTILE.index("<") : HOSTILE.index("<") + 3] = ["<|eot|>"]


def vocabulary(hostile: bool) -> dict[int, TokenInfo]:
    """Token texts by id; the hostile one also has a run of byte pieces and a special token."""
    texts = HOSTILE if hostile else PROSE
    tokens = {i: TokenInfo(text) for i, text in enumerate(texts)}
    tokens |= {900 + i: TokenInfo("�", raw=byte) for i, byte in enumerate(("e2", "80", "99"))}
    tokens[999] = TokenInfo("<|im_end|>", special=True)
    return tokens


def make_trace(
    num_steps: int = 20,
    block_size: int = 16,
    num_candidates: int = 16,
    *,
    kind: str = "dflash2",
    seed: int = 0,
    skill: float = 0.86,
    hostile: bool = False,
    leave_out: tuple[str, ...] = (),
    status: str = "complete",
) -> Trace:
    """A greedy run of `kind` dflash2, dflash (no edges) or ar (no drafter); `skill` is how often rank 1 is right."""
    rng = np.random.default_rng(seed)
    tokens = vocabulary(hostile)
    ids = np.array([i for i in tokens if i < 900])
    num_drafted = 0 if kind == "ar" else block_size - 1
    text = _continuation(rng, ids, 1 + num_steps * (num_drafted + 1) + num_drafted)
    records, arrays, position = [], {}, 0
    for step in range(num_steps):
        wanted = text[position + 1 : position + 2 + num_drafted]
        made = _draft(rng, ids, wanted[:-1], num_candidates, skill) if num_drafted else {}
        draft = made["candidate_ids"][np.arange(num_drafted), made["path"]] if made else np.empty(0, int)
        accepted = int(np.cumprod(draft == wanted[:-1]).sum())
        made |= _judge(rng, ids, wanted, accepted, made.get("unary"))
        made = {name: value for name, value in made.items() if name not in leave_out}
        if kind == "dflash":
            made.pop("edges", None)
        arrays |= {(name, step): value for name, value in made.items()}
        records.append(_record(rng, step, 40 + position, text[position], draft, accepted, wanted))
        position += accepted + 1
    output = tuple(int(i) for i in text[: position + 1])
    header = TraceHeader(
        created="2026-01-02T03:04:05Z", status=status, level="scores", prompt="How many clips?", prompt_ids=(0,) * 40,
        request={"sampling": {"temperature": 0.0}, "seed": 0}, output_ids=output,
        text="".join(tokens[i].text for i in output), stop_reason="length", decode_s=0.02 * num_steps,
        target={"name": "toy-target"}, drafter=None if kind == "ar" else {"name": "toy-drafter", "version": kind},
        block_size=num_drafted + 1, num_candidates=num_candidates if num_drafted else 0,
        backends={"device": "cpu", "dtype": "float32", "kernels": "reference"}, tokens=tokens,
    )  # fmt: skip
    return Trace.from_arrays(header, tuple(records), arrays, name=f"toy-{kind}")


def some_step(trace, wanted):
    """First step that accepted nothing, something or everything."""
    kinds = {0: "zero", len(trace.steps[0].draft_ids): "full"}
    return next(i for i, record in enumerate(trace.steps) if kinds.get(record.num_accepted, "mixed") == wanted)


def _continuation(rng: np.random.Generator, ids: np.ndarray, length: int) -> np.ndarray:
    """The target's text: the vocabulary in order, with jumps."""
    jumps = np.where(rng.random(length) < 0.12, rng.integers(1, len(ids), length), 1)
    return ids[np.cumsum(jumps) % len(ids)]


def _draft(rng: np.random.Generator, ids: np.ndarray, wanted: np.ndarray, width: int, skill: float) -> dict:
    """Candidates around the wanted tokens, worse with depth, and the greedy walk over their edges."""
    depth, width = len(wanted), min(width, len(ids))
    candidates = np.stack([rng.permutation(ids)[:width] for _ in range(depth)])
    for j, token in enumerate(wanted):
        rank = min(int(rng.geometric(max(0.3, skill - 0.03 * j))) - 1, 3 * width)
        others = [i for i in candidates[j] if i != token]
        if rank < width:
            candidates[j] = [*others[:rank], token, *others[rank:], ids[0]][:width]
    gaps = rng.gamma(1.2, 0.9, (depth, width))
    unary = (16 - np.cumsum(gaps, axis=1) - 0.1 * np.arange(depth)[:, None]).astype(np.float32)
    log_norm = (np.log(np.exp(unary).sum(1)) + 0.1).astype(np.float32)
    edges = unary[:, None, :] + rng.normal(0, 0.8, (depth, width, width)).astype(np.float32)
    edges[0] = edges[0, 0]
    for j in range(1, depth):
        right = np.outer(candidates[j - 1] == wanted[j - 1], candidates[j] == wanted[j])
        edges[j] += (2.2 * right).astype(np.float32)
    path = np.zeros(depth, np.int32)
    for j in range(depth):
        path[j] = edges[j, path[j - 1] if j else 0].argmax()
    ids32 = candidates.astype(np.int32)
    return {"candidate_ids": ids32, "unary": unary, "log_norm": log_norm, "edges": edges, "path": path}


def _judge(
    rng: np.random.Generator, ids: np.ndarray, wanted: np.ndarray, accepted: int, unary: np.ndarray | None
) -> dict:
    """What the target says of each slot: the text up to the mismatch, anything after it."""
    target = np.where(np.arange(len(wanted)) <= accepted, wanted, rng.choice(ids, len(wanted)))
    top = rng.uniform(14, 20, len(wanted)).astype(np.float32)
    judged = {
        "target_ids": target.astype(np.int32),
        "target_top2": np.stack([top, top - rng.gamma(1, 1, len(wanted)).astype(np.float32)], 1),
        "target_log_norm": top + np.float32(0.3),
    }
    if unary is not None:
        judged["target_logit"] = unary + rng.normal(0, 1, unary.shape).astype(np.float32) - np.float32(1)
    return judged


def _record(
    rng: np.random.Generator, step: int, start: int, anchor: int, draft: np.ndarray, accepted: int, wanted: np.ndarray
) -> StepRecord:
    times = rng.gamma(9, 0.11, 4) * (1.9, 0.4, 14, 0.4)
    return StepRecord(
        index=step, start=start, anchor_id=int(anchor), draft_ids=tuple(int(i) for i in draft), num_accepted=accepted,
        bonus_id=int(wanted[accepted]), committed_ids=tuple(int(i) for i in wanted[: accepted + 1]), truncated=0,
        timings=StepTimings(*(float(t) for t in times)),
    )  # fmt: skip
