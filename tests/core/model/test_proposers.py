"""Candidates, edge scores and walks against brute force (P38, P41), with hooks that observe and edit."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.core.errors import HookError, RequestError
from dflash_lab.core.hooks import HOOK_POINTS, Hooks
from dflash_lab.core.kernels.edge_walk.reference import edge_scores, inverse_cdf, walk_edges
from dflash_lab.core.model.config import SelectorConfig
from dflash_lab.core.model.head import DraftHead
from dflash_lab.core.model.selector import CandidateSelector

V, K, C, R, D = 32, 4, 5, 3, 6


@pytest.fixture
def lattice():
    generator = torch.Generator().manual_seed(0)
    selector = CandidateSelector(SelectorConfig(R, C), D, V)
    with torch.no_grad():
        for parameter in selector.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    hidden = torch.randn(1, K, D, generator=generator)
    unary, ids = torch.randn(1, K, V, generator=generator).topk(C)
    return selector.requires_grad_(False), hidden, torch.tensor([7]), ids, unary


def test_edge_scores_are_their_formula(lattice):
    selector, hidden, anchor, ids, unary = lattice
    edges = selector.edges(hidden, anchor, ids, unary)
    projected = selector.hidden_projection(hidden)
    for e, p, c in itertools.product(range(K), range(C), range(C)):
        predecessor = anchor[0] if e == 0 else ids[0, e - 1, p]
        code = selector.predecessor_codebook[predecessor] * projected[0, e]
        expected = unary[0, e, c] + code @ selector.successor_codebook[ids[0, e, c]]
        torch.testing.assert_close(edges[0, e, p, c], expected)


def test_greedy_walk_is_the_step_wise_arg_max(lattice):
    selector, hidden, anchor, ids, unary = lattice
    edges = selector.edges(hidden, anchor, ids, unary)
    walk = walk_edges(edges, 0.0, None)
    at = 0
    for e in range(K):
        at = int(edges[0, e, at].argmax())
        assert int(walk.path[0, e]) == at
    assert walk.q is None
    assert torch.equal(selector.walk_rows(hidden, anchor, ids, unary, 0.0, None).path, walk.path)


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_sampled_walk_draws_each_row_by_inverse_cdf(lattice, temperature):
    selector, hidden, anchor, ids, unary = lattice
    uniforms = torch.tensor([[0.1, 0.6, 0.95, 0.5]])
    edges = selector.edges(hidden, anchor, ids, unary)
    walk = walk_edges(edges, temperature, uniforms)
    at = 0
    for e in range(K):
        row = torch.softmax(edges[0, e, at] / temperature, 0)
        torch.testing.assert_close(walk.q[0, e], row)
        at = int((row.cumsum(0) <= uniforms[0, e]).sum())
        assert int(walk.path[0, e]) == at
    rows = selector.walk_rows(hidden, anchor, ids, unary, temperature, uniforms)
    assert torch.equal(rows.path, walk.path)
    torch.testing.assert_close(rows.q, walk.q)


@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 3), st.integers(0, 2**31))
def test_both_walks_agree_on_any_lattice(positions, width, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    selector = CandidateSelector(SelectorConfig(2, width), 3, 16)
    with torch.no_grad():
        for parameter in selector.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        hidden = torch.randn(batch, positions, 3, generator=generator)
        anchor = torch.randint(16, (batch,), generator=generator)
        unary, ids = torch.randn(batch, positions, 16, generator=generator).topk(width)
        uniforms = torch.rand(batch, positions, generator=generator)
        for temperature in (0.0, 0.7):
            dense = walk_edges(selector.edges(hidden, anchor, ids, unary), temperature, uniforms)
            rows = selector.walk_rows(hidden, anchor, ids, unary, temperature, uniforms)
            assert torch.equal(dense.path, rows.path)


def test_inverse_cdf_never_lands_on_probability_zero():
    probs = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0])
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.5, 1 - 2**-24])
    assert inverse_cdf(probs.expand(5, 5), uniforms).tolist() == [1, 1, 3, 3, 3]


def test_edges_of_the_anchor_are_equal_rows():
    unary, codes = torch.zeros(1, 2, 3), torch.randn(1, 2, 3, 2)
    edges = edge_scores(unary, torch.randn(1, 2), codes, torch.randn(1, 2, 2), codes)
    assert (edges[0, 0] == edges[0, 0, :1]).all()


@pytest.mark.parametrize(("multiplier", "softcap"), [(1.0, None), (0.5, None), (1.0, 3.0), (2.0, 5.0)])
def test_multiplier_and_soft_cap(multiplier, softcap):
    config = type("Config", (), {"output_multiplier": multiplier, "final_logit_softcapping": softcap,
                                 "vocab_size": 9, "draft_vocab_size": None})  # fmt: skip
    weight, hidden = torch.randn(9, 4), torch.randn(1, 2, 4)
    expected = hidden @ weight.T * multiplier
    if softcap:
        expected = softcap * torch.tanh(expected / softcap)
    torch.testing.assert_close(DraftHead(config, lambda h: h @ weight.T).logits(hidden), expected)


FEATURES = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(5))
ANCHOR = torch.tensor([3])


def draft(drafter, num_candidates=4, **options):
    drafter.reset()
    return drafter.draft(FEATURES, ANCHOR, block_size=5, num_candidates=num_candidates, **options)


@pytest.mark.parametrize("version", ["dflash", "dflash2"])
@pytest.mark.parametrize("num_candidates", [1, 3, 4, 32])
def test_candidates_are_the_largest_logits(make_drafter, target, version, num_candidates):
    drafter, seen = make_drafter(target, version), []
    hooks = Hooks()
    hooks.add("draft_logits", lambda logits: seen.append(logits))
    block = draft(drafter, num_candidates, hooks=hooks)
    top = seen[0].topk(num_candidates)
    assert torch.equal(block.candidate_ids, top.indices)
    torch.testing.assert_close(block.unary, top.values)
    assert block.block_ids[0, 0] == 3
    assert torch.equal(block.block_ids[:, 1:], block.candidate_ids.gather(2, block.path[..., None])[..., 0])


def test_dflash_1_chooses_the_arg_max(make_drafter, target):
    block = draft(make_drafter(target, "dflash"))
    assert block.path.eq(0).all()
    assert block.edges is None


def test_path_score_is_the_best_of_each_row(make_drafter, target):
    block = draft(make_drafter(target))
    at = 0
    for position, chosen in enumerate(block.path[0].tolist()):
        row = block.edges[0, position, at]
        assert row[chosen] == row.max()
        at = chosen


def test_every_point_is_seen_once_with_its_shape(make_drafter, target):
    hooks, seen = Hooks(), {}
    for point in HOOK_POINTS:
        hooks.add(point, lambda tensor, point=point: seen.setdefault(point, []).append(tuple(tensor.shape)))
    draft(make_drafter(target), hooks=hooks)
    assert seen == {
        "target_features": [(1, 6, 16)], "context": [(1, 6, 8)], "draft_hidden": [(1, 4, 8)],
        "draft_logits": [(1, 4, 32)], "unary": [(1, 4, 4)], "edges": [(1, 4, 4, 4)], "path": [(1, 4)],
    }  # fmt: skip


def test_edges_are_made_for_a_hook_however_many_candidates(make_drafter, target, monkeypatch):
    monkeypatch.setattr("dflash_lab.core.model.proposers.MATERIALISE_UP_TO", 3)
    drafter = make_drafter(target)
    lean = draft(drafter)
    assert lean.edges is None
    hooks = Hooks()
    hooks.add("edges", lambda edges: None)
    full = draft(drafter, hooks=hooks)
    assert full.edges.shape == (1, 4, 4, 4)
    assert torch.equal(full.path, lean.path)


def test_an_edit_of_the_edges_moves_the_walk(make_drafter, target):
    hooks = Hooks()

    def favour_last(edges):
        edited = torch.zeros_like(edges)
        edited[..., -1] = 1
        return edited

    hooks.add("edges", favour_last)
    assert draft(make_drafter(target), hooks=hooks).path.tolist() == [[3, 3, 3, 3]]


def test_an_edited_path_is_certain_when_sampling(make_drafter, target):
    hooks = Hooks()
    hooks.add("path", lambda path: torch.full_like(path, 2))
    block = draft(make_drafter(target), hooks=hooks, temperature=1.0, rng=torch.Generator().manual_seed(0))
    assert block.q.tolist() == [[[0.0, 0.0, 1.0, 0.0]] * 4]


def test_hooks_refuse_what_cannot_be():
    hooks = Hooks()
    with pytest.raises(HookError, match="no hook point 'edge'; known: target_features"):
        hooks.add("edge", print)
    hooks.add("target_logits", lambda logits: logits)
    with pytest.raises(HookError, match="may be observed, not edited"):
        hooks("target_logits", torch.zeros(1))
    remove = hooks.add("unary", lambda unary: unary[..., :1])
    with pytest.raises(HookError, match=r"returned \[1\], expected \[2\]"):
        hooks("unary", torch.zeros(2))
    remove()
    assert not hooks.wants("unary")


@pytest.mark.parametrize(
    ("block_size", "num_candidates", "message"),
    [
        (1, 4, "block_size must be at least 2 with a drafter, got 1; use --drafter none"),
        (0, 4, "got 0"),
        (5, 0, r"num_candidates must be 1 to 32 \(the vocabulary\), got 0"),
        (5, 33, "got 33"),
    ],
)
def test_impossible_blocks_and_grids_are_refused(make_drafter, target, block_size, num_candidates, message):
    with pytest.raises(RequestError, match=message):
        make_drafter(target).check(block_size, num_candidates)


def test_a_block_above_the_trained_one_warns(make_drafter, target):
    drafter = make_drafter(target)
    assert drafter.check(5, 4) == []
    assert "block_size 9 is above the 5" in drafter.check(9, 4)[0]
    assert drafter.draft(FEATURES, ANCHOR, block_size=9, num_candidates=4).path.shape == (1, 8)
