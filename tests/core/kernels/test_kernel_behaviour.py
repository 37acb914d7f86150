"""What random inputs seldom show: ties, edges of blocks and windows, ragged lengths, refusals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels.launch import LAUNCHES, load_kernel, new_arrivals
from dflash_lab.core.kernels.opspec import load_spec

pytest.importorskip("triton", reason="no triton on this platform: pip install 'dflash-lab[triton]' on Linux")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def prepare(name, seed=0, dtype=torch.float32, **sizes):
    """Kernel, reference and arguments of one call."""
    spec = load_spec(name)
    case = type(spec.cases[0])(**sizes)
    arguments = spec.arguments(case, DEVICE, dtype, torch.Generator(DEVICE).manual_seed(seed))
    return load_kernel(name, DEVICE), spec.reference, arguments


WALK = {"batch": 2, "positions": 4, "candidates": 5, "rank": 16, "vocab": 40}
BLOCK = {"batch": 2, "slots": 4, "heads": 2, "kv_heads": 1, "head_dim": 16, "places": 64, "context": 40}
HEAD = {"batch": 1, "positions": 2, "candidates": 4, "hidden": 16, "vocab": 300}
REJECT = {"batch": 3, "positions": 3, "candidates": 4, "vocab": 50}


# edge_walk


@settings(max_examples=15)
@given(seed=st.integers(0, 1 << 30), candidates=st.integers(1, 20), positions=st.integers(1, 6))
def test_of_equal_edges_the_walk_takes_the_first_as_torch_does(seed, candidates, positions):
    kernel, reference, arguments = prepare(
        "edge_walk", seed, **{**WALK, "candidates": candidates, "positions": positions, "want_edges": True}
    )
    for name in ("unary", "hidden", "predecessor_codebook", "successor_codebook"):
        arguments[name] = arguments[name].sign()
    found, wanted = kernel(**arguments), reference(**arguments)
    assert torch.equal(found.edges, wanted.edges)
    assert torch.equal(found.path, wanted.path)


@settings(max_examples=15)
@given(seed=st.integers(0, 1 << 30), candidates=st.integers(1, 20))
def test_a_sampled_walk_is_the_references_with_the_same_uniforms(seed, candidates):
    kernel, reference, arguments = prepare("edge_walk", seed, **{**WALK, "candidates": candidates, "temperature": 0.8})
    found, wanted = kernel(**arguments), reference(**arguments)
    assert torch.equal(found.path, wanted.path)
    torch.testing.assert_close(found.q, wanted.q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_the_walk_never_draws_a_candidate_without_probability(uniform):
    kernel, _, arguments = prepare("edge_walk", **WALK, temperature=0.5)
    arguments["unary"][:, :, [0, 4]] = -1e4
    arguments["uniforms"].fill_(uniform)
    found = kernel(**arguments)
    assert (found.q.gather(2, found.path[:, :, None]) > 0).all()


def test_edges_and_q_exist_only_when_asked_for():
    kernel, _, arguments = prepare("edge_walk", **WALK)
    found = kernel(**arguments)
    assert found.q is None
    assert found.edges is None


def test_one_request_does_not_see_another():
    kernel, _, arguments = prepare("edge_walk", **WALK, temperature=1.0)
    both = kernel(**arguments)
    alone = {
        name: value[1:] if name in ("unary", "anchor_ids", "candidate_ids", "hidden", "uniforms") else value
        for name, value in arguments.items()
    }
    one = kernel(**{name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in alone.items()})
    assert torch.equal(one.path[0], both.path[1])
    assert torch.equal(one.q[0], both.q[1])


# grouped_conv


def test_a_block_starts_with_nothing_before_it():
    kernel, _, arguments = prepare("grouped_conv", batch=2, slots=3, channels=16, group_size=4)
    before = kernel(**arguments).out.clone()
    arguments["x"][0] = 1e6
    assert torch.equal(kernel(**arguments).out[1], before[1])
    first = arguments["base"][0] + arguments["delta"][1, 0, 0].repeat_interleave(4)
    torch.testing.assert_close(before[1, 0], first * arguments["x"][1, 0])


# greedy_accept


@settings(max_examples=15)
@given(st.data())
def test_greedy_acceptance_breaks_ties_as_torch_does(data):
    batch, positions, vocab = data.draw(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(1, 9)))
    values = data.draw(st.lists(st.integers(0, 2), min_size=batch * (positions + 1) * vocab, max_size=1000))
    logits = torch.tensor(values[: batch * (positions + 1) * vocab], dtype=torch.float32, device=DEVICE)
    logits = logits.view(batch, positions + 1, vocab)
    kernel, reference = load_kernel("greedy_accept", DEVICE), load_spec("greedy_accept").reference
    proposal = logits[:, :-1].argmax(-1)
    found, wanted = kernel(logits, proposal), reference(logits, proposal)
    assert torch.equal(found.num_accepted, wanted.num_accepted)
    assert torch.equal(found.bonus_id, wanted.bonus_id)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_logits_that_are_not_finite_still_give_a_token(value):
    kernel = load_kernel("greedy_accept", DEVICE)
    logits = torch.full((1, 2, 9), value, device=DEVICE)
    found = kernel(logits, torch.zeros(1, 1, dtype=torch.int64, device=DEVICE))
    assert 0 <= int(found.bonus_id) < 9


@pytest.mark.parametrize("place", [0, 6, 8999])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_first_logit_that_is_not_finite_is_the_largest(value, place):
    logits = torch.zeros(1, 2, 9000, device=DEVICE)
    logits[:, :, place:] = value
    proposal = torch.full((1, 1), place, dtype=torch.int64, device=DEVICE)
    found = load_kernel("greedy_accept", DEVICE)(logits, proposal)
    assert (int(found.num_accepted), int(found.bonus_id)) == (1, place)
    stats = load_kernel("token_stats", DEVICE)(logits)
    assert (stats.best_id == place).all()
    assert (stats.log_norm == float("inf")).all()


# token_stats


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # numpy's, in the interpreter
def test_rows_of_the_least_values_have_a_norm():
    """A filter writes minus infinity, or the least finite number."""
    least = torch.finfo(torch.float32).min
    logits = torch.full((1, 3, 9000), float("-inf"), device=DEVICE)
    logits[0, 1:] = least
    logits[0, 2, 8195] = 2.5
    kernel, reference = load_kernel("token_stats", DEVICE), load_spec("token_stats").reference
    torch.testing.assert_close(kernel(logits), reference(logits), rtol=1e-6, atol=0.0)


# rejection_accept


@settings(max_examples=15)
@given(seed=st.integers(0, 1 << 30), candidates=st.integers(1, 9), kept=st.sampled_from([1.0, 0.3]))
def test_rejection_is_the_references_with_the_same_uniforms(seed, candidates, kept):
    kernel, reference, arguments = prepare("rejection_accept", seed, **{**REJECT, "candidates": candidates}, kept=kept)
    found, wanted = kernel(**arguments), reference(**arguments)
    assert torch.equal(found.num_accepted, wanted.num_accepted)
    assert torch.equal(found.bonus_id, wanted.bonus_id)


def test_a_draft_from_the_targets_own_distribution_is_kept_whole():
    kernel, _, arguments = prepare("rejection_accept", **REJECT)
    ids = arguments["candidate_ids"]
    logits = torch.full_like(arguments["logits"], float("-inf"))
    logits[:, -1, 7] = 0.0
    logits[:, :-1].scatter_(2, ids, arguments["q"].log())
    arguments |= {"logits": logits, "uniforms": torch.full_like(arguments["uniforms"], 0.99)}
    found = kernel(**arguments)
    assert (found.num_accepted == REJECT["positions"]).all()
    assert (found.bonus_id == 7).all()


def test_a_certain_wrong_proposal_is_never_drawn_again():
    kernel, _, arguments = prepare("rejection_accept", **{**REJECT, "candidates": 1, "batch": 64})
    arguments["logits"].zero_()
    found = kernel(**arguments)
    rejected = found.num_accepted < REJECT["positions"]
    assert rejected.any()
    proposed = arguments["proposal"].gather(1, found.num_accepted.clamp(max=2)[:, None])[:, 0]
    assert (found.bonus_id != proposed)[rejected].all()


def test_what_lies_behind_a_rejection_counts_for_nothing():
    kernel, _, arguments = prepare("rejection_accept", **{**REJECT, "positions": 5})
    arguments["logits"][:, 1].scatter_(1, arguments["proposal"][:, 1:2], float("-inf"))
    known = kernel(**arguments)
    assert (known.num_accepted <= 1).all()
    arguments["logits"][:, 2:] = float("nan")
    found = kernel(**arguments)
    assert torch.equal(found.num_accepted, known.num_accepted)
    assert torch.equal(found.bonus_id, known.bonus_id)


# head_topk


def test_of_equal_logits_the_lower_row_is_first():
    kernel, _, arguments = prepare("head_topk", **HEAD)
    arguments["hidden"].zero_()
    found = kernel(**arguments)
    assert found.rows.tolist() == [[[0, 1, 2, 3]] * 2]
    assert (found.unary == 0).all()


@pytest.mark.parametrize("parts", [2, 1024])
@pytest.mark.parametrize("positions", [2, 70])
def test_the_best_of_all_tiles_are_found(monkeypatch, parts, positions):
    """Of one block of positions and of several, with tiles compared one by one and folded."""
    sizes = {**HEAD, "positions": positions, "vocab": 900, "padding": 60, "want_logsumexp": True}
    kernel, reference, arguments = prepare("head_topk", **sizes)
    monkeypatch.setitem(kernel.__globals__, "MAX_PARTS", parts)
    found, wanted = kernel(**arguments), reference(**arguments)
    assert torch.equal(found.rows, wanted.rows)
    torch.testing.assert_close(found.unary, wanted.unary)
    torch.testing.assert_close(found.logsumexp, wanted.logsumexp)


def test_a_logit_that_is_not_a_number_comes_out():
    kernel, _, arguments = prepare("head_topk", **HEAD)
    arguments["weight"][200] = float("nan")
    assert kernel(**arguments).unary.isnan().any(-1).all()


def test_fewer_tokens_than_a_tile_of_candidates():
    kernel, reference, arguments = prepare("head_topk", **{**HEAD, "vocab": 5, "candidates": 5})
    assert torch.equal(kernel(**arguments).rows, reference(**arguments).rows)


# block_attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 4])
def test_each_slot_sees_its_own_window(window, causal):
    kernel, _, arguments = prepare("block_attention", **{**BLOCK, "batch": 1}, window=window, causal=causal)
    context, slots, places = BLOCK["context"], BLOCK["slots"], BLOCK["places"]
    # Equal scores everywhere and a value of its own for each key: the output tells which keys were seen.
    arguments["queries"] = torch.zeros_like(arguments["queries"])
    arguments["values"].zero_()
    for place in range(context + slots):
        arguments["values"][0, 0, place, 0] = 2.0 ** (place - context)
    out = kernel(**arguments).out[0, :, 0, 0]
    for slot in range(slots):
        at = context + slot
        seen = [k for k in range(places) if k < context + slots and (k <= at or not causal)]
        seen = [k for k in seen if window is None or abs(at - k) < window]
        assert float(out[slot]) == pytest.approx(sum(2.0 ** (k - context) for k in seen) / len(seen), rel=1e-5)


def test_lengths_are_read_on_the_device_and_places_past_them_are_not_read():
    kernel, reference, arguments = prepare("block_attention", **{**BLOCK, "places": 300, "context": 250})
    arrivals = new_arrivals(2, DEVICE)
    for lengths in ([250, 3], [0, 296], [100, 100]):
        arguments["lengths"].copy_(torch.tensor(lengths))
        clean = arguments["keys"].clone(), arguments["values"].clone()
        for request, length in enumerate(lengths):
            arguments["keys"][request, :, length + BLOCK["slots"] :] = float("nan")
            arguments["values"][request, :, length + BLOCK["slots"] :] = float("nan")
        before = LAUNCHES["_block_attention"]
        found = kernel(**arguments, arrivals=arrivals).out
        assert LAUNCHES["_block_attention"] == before + 1
        arguments["keys"], arguments["values"] = clean
        torch.testing.assert_close(found, reference(**arguments).out, rtol=1e-5, atol=1e-5)
        assert not arrivals.any()


# refusals


def half_strided(tensor):
    """The same values, every second element of a wider tensor."""
    return torch.stack((tensor, tensor), dim=-1)[..., 0]


REFUSALS = [
    (
        "edge_walk",
        {**WALK, "candidates": 65, "vocab": 400},
        {},
        "number of candidates: the kernel takes 1 to 64, got 65",
    ),
    ("edge_walk", WALK, {"unary": torch.Tensor.double}, "unary: the kernel takes float32, got float64"),
    ("edge_walk", WALK, {"candidate_ids": torch.Tensor.int}, "candidate_ids: the kernel takes int64, got int32"),
    (
        "edge_walk",
        WALK,
        {"hidden": lambda hidden: hidden[:1]},
        r"shape \[2, 4, 16\], got \[1, 4, 16\]",
    ),
    ("edge_walk", WALK, {"unary": half_strided}, "unary: the kernel needs contiguous data"),
    (
        "grouped_conv",
        {"batch": 1, "slots": 2, "channels": 12, "group_size": 4},
        {"delta": lambda delta: delta[..., :1].expand(-1, -1, -1, 5).contiguous()},
        "12 channels do not divide into 5 groups",
    ),
    ("greedy_accept", {"batch": 1, "positions": 64, "vocab": 4}, {}, "slots in a block: the kernel takes 1 to 64"),
    ("greedy_accept", {"batch": 1, "positions": 2, "vocab": 4}, {"logits": half_strided}, "logits: the kernel needs"),
    ("rejection_accept", REJECT, {"temperature": lambda _: 0.0}, "expected a temperature above 0, got 0.0"),
    ("rejection_accept", REJECT, {"q": torch.Tensor.double}, "q: the kernel takes float32, got float64"),
    ("head_topk", HEAD, {"num_candidates": lambda _: 65}, "number of candidates: the kernel takes 1 to 64, got 65"),
    ("head_topk", HEAD, {"vocab_size": lambda _: 301}, "vocabulary: the kernel takes 1 to 300, got 301"),
    ("head_topk", HEAD, {"softcap": lambda _: 0.0}, "expected a soft-cap above 0, got 0.0"),
    ("head_topk", HEAD, {"weight": torch.Tensor.bfloat16}, "weight: the kernel takes float32, got bfloat16"),
    ("block_attention", {**BLOCK, "heads": 3, "kv_heads": 2}, {}, "3 query heads do not divide into 2 key heads"),
    ("block_attention", {**BLOCK, "slots": 40, "heads": 4, "context": 20}, {}, "takes 1 to 128, got 160"),
    ("block_attention", BLOCK, {"lengths": torch.Tensor.long}, "lengths: the kernel takes int32, got int64"),
    ("block_attention", BLOCK, {"window": lambda _: 0}, "window: the kernel takes 1 to"),
]


@pytest.mark.parametrize(
    ("name", "sizes", "changes", "said"), REFUSALS, ids=[f"{row[0]}: {row[3]}" for row in REFUSALS]
)
def test_what_a_kernel_cannot_do_is_named_and_nothing_runs(name, sizes, changes, said):
    kernel, _, arguments = prepare(name, **sizes)
    for key, change in changes.items():
        arguments[key] = change(arguments[key])
    before = LAUNCHES.total()
    with pytest.raises(BackendError, match=said) as error:
        kernel(**arguments)
    assert LAUNCHES.total() == before
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_other_arrangement_walks_the_same_path(monkeypatch, temperature):
    from dflash_lab.core.kernels.edge_walk import baseline

    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    _, reference, arguments = prepare("edge_walk", **WALK, temperature=temperature, want_edges=True)
    found, wanted = baseline.compiled_edges_then_walk()(**arguments), reference(**arguments)
    assert torch.equal(found.path, wanted.path)
    if temperature:
        torch.testing.assert_close(found.q, wanted.q)
