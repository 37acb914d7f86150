"""Sampling follows the target's distribution, and the test would notice if it did not (P14, P23)."""

import pytest
import torch

from dflash_lab.core.decode.loop import Decoding
from dflash_lab.core.decode.sampling import draw, probabilities
from dflash_lab.core.decode.verify import verify_sampled
from dflash_lab.core.kernels.edge_walk.reference import inverse_cdf
from dflash_lab.core.kernels.greedy_accept.reference import Verdict, greedy_accept
from dflash_lab.core.types import SamplingParams

V, N = 5, 200_000
CRITICAL = 45.0
"""Chi-square of at most 24 degrees of freedom above this has a probability under 0.006."""


def params(**values):
    return SamplingParams(**{"temperature": 1.0, **values})


def brute_force(logits, p):
    """Temperature, top-k, top-p by sorting a plain list."""
    scaled = (logits.double() / p.temperature).tolist()
    order = sorted(range(len(scaled)), key=lambda i: -scaled[i])[: p.top_k or None]
    weights = torch.softmax(torch.tensor([scaled[i] for i in order], dtype=torch.float64), 0).tolist()
    kept, mass = [], 0.0
    for i, w in zip(order, weights, strict=True):
        if mass >= p.top_p:
            break
        kept.append((i, w))
        mass += w
    out = torch.zeros(len(scaled), dtype=torch.float64)
    for i, w in kept:
        out[i] = w / mass
    return out.float()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.7, 0), (1.0, 3), (0.8, 3), (0.01, 0), (1.0, 99)])
def test_filters_are_their_definition(temperature, top_p, top_k):
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    p = params(temperature=temperature, top_p=top_p, top_k=top_k)
    expected = torch.stack([brute_force(row, p) for row in logits])
    torch.testing.assert_close(probabilities(logits, p), expected)


def chi_square(counts, expected):
    """Pearson's statistic; cells of probability zero must be empty."""
    counts, expected = counts.double().flatten(), expected.double().flatten() * counts.sum()
    assert counts[expected == 0].sum() == 0
    keep = expected > 0
    return float(((counts - expected)[keep] ** 2 / expected[keep]).sum())


def toy(seed):
    """Logits of a target for K = 2 proposals given each first token, and a drafter's q over all V."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(V + 1, V, generator=generator), torch.randn(2, V, generator=generator)


def two_tokens(p, seed, verify, temperature_draft=1.0):
    """Counts `[V, V]` of the first two committed tokens over N independent blocks of K = 2."""
    first, draft_logits = toy(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    q = torch.softmax(draft_logits / temperature_draft, -1).expand(N, 2, V).contiguous()
    proposal = inverse_cdf(q, torch.rand(N, 2, generator=generator))
    ids = torch.arange(V).expand(N, 2, V)
    # Row 0 judges the first proposal; row 1 the second, given the first; row 2 follows both.
    logits = torch.stack((first[0].expand(N, V), first[1 + proposal[:, 0]], first[1 + proposal[:, 1]]), dim=1)
    verdict = verify(logits, proposal, ids, q, p, generator)
    accepted, bonus = verdict.num_accepted, verdict.bonus_id
    token_1 = torch.where(accepted > 0, proposal[:, 0], bonus)
    after = torch.where(accepted > 1, proposal[:, 1], bonus)
    # After a rejected first token the second comes from the next step: draw it from the target.
    fresh = draw(probabilities(first[1 + token_1], p), generator)
    token_2 = torch.where(accepted > 0, after, fresh)
    return torch.bincount(token_1 * V + token_2, minlength=V * V).view(V, V)


def joint(p, seed):
    first, _ = toy(seed)
    return probabilities(first[0], p)[:, None] * probabilities(first[1:], p)


CASES = [
    params(temperature=0.5), params(), params(temperature=2.0), params(top_p=0.8), params(top_k=3),
    params(temperature=1.3, top_p=0.9, top_k=4),
]  # fmt: skip


@pytest.mark.parametrize("p", CASES, ids=str)
def test_two_tokens_follow_the_target(p):
    for seed in (0, 1):
        assert chi_square(two_tokens(p, seed, verify_sampled), joint(p, seed)) < CRITICAL


def ratio_of_maximum(logits, proposal, ids, q, p, rng):
    """Mutant: accepts by p/max(p), as some ports do."""
    return verify_sampled(
        logits, proposal, ids, torch.ones_like(q) * probabilities(logits, p)[:, :2].amax(-1, True), p, rng
    )


def no_residual(logits, proposal, ids, q, p, rng):
    """Mutant: draws from p instead of the residual after a rejection."""
    verdict = verify_sampled(logits, proposal, ids, q, p, rng)
    rows = torch.arange(len(proposal))
    return Verdict(verdict.num_accepted, draw(probabilities(logits, p)[rows, verdict.num_accepted], rng))


def one_uniform(logits, proposal, ids, q, p, rng):
    """Mutant: one random number for all positions of a block."""
    real = torch.rand
    try:
        torch.rand = lambda shape, **options: (
            real((shape[0], 1), **options).expand(shape) if len(shape) == 2 else real(shape, **options)
        )
        return verify_sampled(logits, proposal, ids, q, p, rng)
    finally:
        torch.rand = real


def shared_noise(logits, proposal, ids, q, p, rng):
    """Mutant: the residual is drawn with the uniforms that the proposal was drawn with."""
    replay = torch.Generator().manual_seed(1)
    uniforms = torch.rand(N, 2, generator=replay)
    verdict = verify_sampled(logits, proposal, ids, q, p, rng)
    rows = torch.arange(N)
    place = verdict.num_accepted.clamp(max=1)
    target = probabilities(logits, p)[rows, place]
    residual = (target - q[rows, place]).clamp_min(0)
    redrawn = inverse_cdf(torch.where(residual.sum(-1, True) > 0, residual, target), uniforms[rows, place])
    return Verdict(verdict.num_accepted, torch.where(verdict.num_accepted < 2, redrawn, verdict.bonus_id))


@pytest.mark.parametrize("mutant", [ratio_of_maximum, no_residual, one_uniform, shared_noise])
def test_the_test_catches_mutants(mutant):
    assert max(chi_square(two_tokens(params(), seed, mutant), joint(params(), seed)) for seed in (0,)) > 4 * CRITICAL


def test_greedy_proposals_need_a_one_hot_q():
    """A certain proposal judged as certain is exact; judged by the softmax it was the mode of, it is not."""
    p = params()
    first, draft_logits = toy(3)
    q = torch.softmax(draft_logits, -1).expand(N, 2, V)
    proposal = q.argmax(-1)
    one_hot = torch.nn.functional.one_hot(proposal, V).float()
    logits = torch.stack((first[0].expand(N, V), first[1 + proposal[:, 0]], first[1 + proposal[:, 1]]), dim=1)
    ids = torch.arange(V).expand(N, 2, V)
    for given, exact in ((one_hot, True), (q, False)):
        verdict = verify_sampled(logits, proposal, ids, given, p, torch.Generator().manual_seed(0))
        token = torch.where(verdict.num_accepted > 0, proposal[:, 0], verdict.bonus_id)
        statistic = chi_square(torch.bincount(token, minlength=V), probabilities(first[0], p))
        assert (statistic < CRITICAL) == exact


def test_residual_draws_are_independent_of_the_draft():
    """On rejected blocks the corrected token follows the residual whatever was proposed."""
    p = params()
    first, draft_logits = toy(5)
    q = torch.softmax(draft_logits[:1] * 2, -1).expand(N, 1, V)
    generator = torch.Generator().manual_seed(0)
    proposal = inverse_cdf(q, torch.rand(N, 1, generator=generator))
    logits = first[0].expand(N, 2, V)
    verdict = verify_sampled(logits, proposal, torch.arange(V).expand(N, 1, V), q, p, generator)
    residual = (probabilities(first[0], p) - q[0, 0]).clamp_min(0)
    for token in range(V):
        rejected = (verdict.num_accepted == 0) & (proposal[:, 0] == token)
        if rejected.sum() > 500:
            counts = torch.bincount(verdict.bonus_id[rejected], minlength=V)
            assert chi_square(counts, residual / residual.sum()) < CRITICAL


def test_equal_distributions_accept_everything():
    logits = torch.randn(1, 1, V).expand(1000, 3, V)
    q = torch.softmax(logits[:, :2], -1)
    proposal = inverse_cdf(q, torch.rand(1000, 2, generator=torch.Generator().manual_seed(0)))
    verdict = verify_sampled(logits, proposal, torch.arange(V).expand(1000, 2, V), q, params(),
                             torch.Generator().manual_seed(1))  # fmt: skip
    assert verdict.num_accepted.eq(2).all()


def test_candidates_need_not_be_in_order_nor_cover_the_vocabulary():
    """q over two shuffled candidates: the rest of the vocabulary has q = 0 and is reached through the residual."""
    p = params()
    first, _ = toy(7)
    ids = torch.tensor([3, 1]).expand(N, 1, 2)
    q = torch.tensor([0.25, 0.75]).expand(N, 1, 2)
    generator = torch.Generator().manual_seed(2)
    proposal = ids[:, 0].gather(1, inverse_cdf(q, torch.rand(N, 1, generator=generator)))
    verdict = verify_sampled(first[0].expand(N, 2, V), proposal, ids, q, p, generator)
    token = torch.where(verdict.num_accepted > 0, proposal[:, 0], verdict.bonus_id)
    assert chi_square(torch.bincount(token, minlength=V), probabilities(first[0], p)) < CRITICAL


def test_greedy_verification_counts_the_leading_matches():
    logits = torch.eye(5)[torch.tensor([[1, 2, 3, 4]])]
    for proposal, accepted, bonus in (([1, 2, 3], 3, 4), ([1, 0, 3], 1, 2), ([0, 2, 3], 0, 1)):
        verdict = greedy_accept(logits, torch.tensor([proposal]))
        assert (int(verdict.num_accepted), int(verdict.bonus_id)) == (accepted, bonus)


@pytest.mark.parametrize("version", ["dflash", "dflash2"])
def test_the_whole_loop_samples_the_target(make_drafter, version):
    """Many short runs of the real loop: first two tokens against the chain's own probabilities."""
    from dflash_lab.core.target.toy import ToyTarget

    target = ToyTarget.random(32, sharpness=2.5)
    drafter = make_drafter(target, version)
    p = SamplingParams(temperature=1.0, top_k=3, max_new_tokens=3)
    rng = torch.Generator().manual_seed(0)
    counts = torch.zeros(32, 32)
    for _ in range(2000):
        decoding = Decoding(target, drafter, (5,), p, rng=rng, block_size=3)
        for _ in decoding:
            pass
        counts[decoding.output_ids[1], decoding.output_ids[2]] += 1
    start = probabilities(target.table[5], p)
    chain = probabilities(target.table, p)
    second = start @ chain
    expected = second[:, None] * chain
    assert chi_square(counts, expected) < 95  # under 60 cells: probability under 0.003


def test_the_same_seed_gives_the_same_text(make_drafter, target):
    texts = []
    for seed in (1, 1, 2):
        decoding = Decoding(
            target, make_drafter(target), (5,), params(temperature=2.0), rng=torch.Generator().manual_seed(seed)
        )
        for _ in decoding:
            pass
        texts.append(decoding.output_ids)
    assert texts[0] == texts[1] != texts[2]
