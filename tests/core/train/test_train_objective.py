"""The objective against plain autograd and brute force."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.core.model.config import SelectorConfig
from dflash_lab.core.model.selector import CandidateSelector
from dflash_lab.core.train import objective as module
from dflash_lab.core.train.objective import GROUP, Objective, top_candidates
from dflash_lab.core.train.recipe import Training

N, K, D, V, C = 6, 5, 8, 40, 4


@pytest.fixture
def batch(monkeypatch):
    """Hidden states, the target's, a head, and labels of which some blocks run out; two blocks a chunk."""
    monkeypatch.setattr(module, "CHUNK_ROWS", 2 * K)
    generator = torch.Generator().manual_seed(0)
    hidden, taught = (torch.randn(N, K, D, generator=generator) for _ in range(2))
    head = torch.randn(V, D, generator=generator)
    labels = torch.randint(0, V, (N, K), generator=generator)
    labels[1, 2:] = -1
    labels[4, 1:] = -1
    return hidden.requires_grad_(), taught, head, labels


def plain_loss(objective, training, hidden, taught, head, labels):
    """The formula of the module's docstring."""
    logs = torch.log_softmax(hidden @ head.T, dim=-1)
    gold = logs.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    soft = -(torch.softmax(taught @ head.T, dim=-1) * logs).sum(-1)
    weights = objective.weights(gold.exp().detach(), labels >= 0)
    losses = -(1 - training.distill) * gold + training.distill * soft
    return (losses * weights).sum() / weights.sum()


@pytest.mark.parametrize("weighting", ["dpace", "decay"])
@pytest.mark.parametrize("distill", [0.0, 0.3, 1.0])
def test_the_fused_loss_is_the_formula_and_its_gradient(batch, weighting, distill):
    hidden, taught, head, labels = batch
    training = Training(weighting=weighting, distill=distill)
    objective = Objective(training, C)
    result = objective.base(hidden, taught, head, labels)
    (fused,) = torch.autograd.grad(2 * result.loss, hidden)
    plain = plain_loss(objective, training, hidden, taught, head, labels)
    (expected,) = torch.autograd.grad(2 * plain, hidden)
    torch.testing.assert_close(result.loss, plain)
    torch.testing.assert_close(fused, expected)


@pytest.mark.parametrize("missing_gold", ["exclude", "insert"])
def test_the_selector_moves_hidden_states_through_both_terms(batch, missing_gold):
    hidden, taught, head, labels = batch
    objective = Objective(Training(missing_gold=missing_gold), C)
    selector = CandidateSelector(SelectorConfig(3, C), D, V)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in selector.parameters():
            parameter.normal_(generator=generator)
    anchors = torch.arange(N)
    result = objective.base(hidden, taught, head, labels)
    (fused,) = torch.autograd.grad(objective.selector(selector, hidden, anchors, labels, result), hidden)
    unary, ids = (hidden @ head.T).topk(C)
    gold_unary = (hidden @ head.T).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1).detach()
    plain = result._replace(unary=unary, candidate_ids=ids, gold_unary=gold_unary)
    (expected,) = torch.autograd.grad(objective.selector(selector, hidden, anchors, labels, plain), hidden)
    torch.testing.assert_close(fused, expected)


@torch.no_grad()
def test_the_selector_loss_by_hand(batch):
    hidden, taught, head, labels = batch
    objective = Objective(Training(weighting="decay", decay=2.0), C)
    selector = CandidateSelector(SelectorConfig(3, C), D, V)
    with torch.no_grad():
        for parameter in selector.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(2))
    anchors = torch.arange(N)
    result = objective.base(hidden, taught, head, labels)
    total, weights = 0.0, 0.0
    logits = hidden @ head.T
    for block in range(N):
        for k in range(K):
            gold = int(labels[block, k])
            if gold < 0:
                continue
            weight = float(torch.exp(torch.tensor(-k / 2.0)))
            weights += weight
            ids = logits[block, k].topk(C).indices.tolist()
            if gold not in ids:
                continue
            before = int(anchors[block]) if k == 0 else int(labels[block, k - 1])
            code = selector.predecessor_codebook[before] * selector.hidden_projection(hidden[block, k])
            scores = torch.stack([logits[block, k, c] + code @ selector.successor_codebook[c] for c in ids])
            total += weight * -float(torch.log_softmax(scores, 0)[ids.index(gold)])
    loss = objective.selector(selector, hidden, anchors, labels, result)
    assert float(loss) == pytest.approx(total / weights, rel=1e-5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(0, 8), st.floats(0.1, 0.9))
def test_dpace_weights_by_brute_force(probabilities, labelled, alpha):
    labelled = min(labelled, len(probabilities))
    mask = torch.arange(len(probabilities)) < labelled
    lifted = [(1 - alpha) * p + alpha for p in probabilities]
    expected = []
    for k in range(len(probabilities)):
        reached, value = 1.0, 0.0
        for j in range(labelled):
            reached *= lifted[j]
            value += reached if j >= k else 0.0
        expected.append(value)
    objective = Objective(Training(dpace_alpha=alpha), C)
    weights = objective.weights(torch.tensor([probabilities]), mask.unsqueeze(0))[0]
    torch.testing.assert_close(weights, torch.tensor(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [4 * GROUP, 16 * GROUP, 5 * GROUP + 3])
def test_candidates_in_two_searches_are_those_of_one(width):
    logits = torch.randn(7, 3, width, generator=torch.Generator().manual_seed(0))
    values, indices = top_candidates(logits, 4)
    expected = torch.topk(logits, 4)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices, expected.indices)
