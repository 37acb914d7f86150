"""The backbone against brute force: convolution, masks, cached context (P41, P46, KVC)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.core.errors import NumericsError
from dflash_lab.core.model.backbone import ContextCache, block_mask
from dflash_lab.core.model.config import ConvConfig, DraftConfig
from dflash_lab.core.model.conv import GroupedDynamicConv


@pytest.mark.parametrize("taps", [1, 2, 3])
@pytest.mark.parametrize("side", [0, 1])
def test_convolution_is_its_formula(taps, side):
    torch.manual_seed(0)
    conv = GroupedDynamicConv(8, ConvConfig(taps, 4))
    torch.nn.init.normal_(conv.base_kernel)
    x, source = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    delta = conv.deltas(source)[side]
    out = conv(x, delta, side)
    raw = conv.kernel_projection(source).view(2, 5, 2, taps, 2)
    for b in range(2):
        for i in range(5):
            for c in range(8):
                expected = sum(
                    (conv.base_kernel[side, t, c] + raw[b, i, side, t, c // 4]) * (x[b, i - t, c] if i >= t else 0.0)
                    for t in range(taps)
                )
                torch.testing.assert_close(out[b, i, c], torch.as_tensor(expected))


def visible(config, kind, causal, start, length):
    """The set of (query, key) pairs by absolute position."""
    first, mask = block_mask(config, kind, causal, start, length, torch.device("cpu"))
    mask = torch.ones(length, start + length - first, dtype=torch.bool) if mask is None else mask
    return {(start + int(q), first + int(k)) for q, k in mask.nonzero()}


@given(st.integers(0, 12), st.integers(1, 6), st.integers(1, 9), st.booleans(), st.booleans())
def test_each_query_sees_the_window_around_its_own_position(start, length, window, sliding, causal):
    config = type("Config", (), {"sliding_window": window})
    kind = "sliding_attention" if sliding else "full_attention"
    expected = {
        (q, k)
        for q in range(start, start + length)
        for k in range(start + length)
        if (not causal or k <= q) and (not sliding or abs(q - k) < window)
    }
    assert visible(config, kind, causal, start, length) == expected


def test_window_of_four_written_out():
    config = type("Config", (), {"sliding_window": 4})
    assert visible(config, "sliding_attention", False, 6, 4) == {
        *((6, k) for k in range(3, 10)), *((7, k) for k in range(4, 10)),
        *((8, k) for k in range(5, 10)), *((9, k) for k in range(6, 10)),
    }  # fmt: skip


@pytest.fixture
def backbone(raw_config, random_model):
    def make(**changes):
        return random_model(DraftConfig.from_dict(raw_config(**changes))).backbone

    return make


def run(backbone, context_parts, block):
    """Draft hidden states of a block behind context given in parts."""
    cache = ContextCache(backbone.config)
    for part in context_parts:
        cache.reserve(1, cache.length + part.shape[1] + block.shape[1], block)
        backbone.extend(cache, part)
    return backbone.block(cache, block), cache


@pytest.mark.parametrize(
    "changes",
    [{}, {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}, {"is_causal": True}],
)
def test_context_in_parts_equals_context_at_once(backbone, changes):
    model = backbone(**changes)
    generator = torch.Generator().manual_seed(3)
    context, block = torch.randn(1, 11, 8, generator=generator), torch.randn(1, 4, 8, generator=generator)
    once, _ = run(model, [context], block)
    parts, cache = run(model, [context[:, :7], context[:, 7:8], context[:, 8:]], block)
    torch.testing.assert_close(once, parts)
    assert cache.length == 11


def test_a_block_leaves_nothing_in_the_cache(backbone):
    model, block = backbone(), torch.randn(1, 5, 8)
    context = torch.randn(1, 300, 8)
    cache = ContextCache(model.config)
    cache.reserve(1, 8, block)
    backbone_out = []
    for end in (3, 4, 300):  # rejected blocks in between, and growth past the first reservation
        cache.reserve(1, end + 5, block)
        model.extend(cache, context[:, cache.length : end])
        model.block(cache, torch.randn(1, 5, 8) * 100)
        assert cache.length == end
        backbone_out.append(model.block(cache, block))
    torch.testing.assert_close(backbone_out[-1], run(model, [context], block)[0])


def test_only_the_window_of_the_context_matters(backbone):
    model = backbone(layer_types=["sliding_attention"] * 2, sliding_window=4)
    context, block = torch.randn(1, 20, 8), torch.randn(1, 3, 8)
    changed = context.clone()
    changed[:, :17] = torch.randn(1, 17, 8)  # the first query, at 20, sees 17 and later
    torch.testing.assert_close(run(model, [context], block)[0], run(model, [changed], block)[0])


@pytest.mark.parametrize("window", [None, 6])
def test_only_distances_matter(backbone, window):
    """Rotary embedding is shift-invariant: context and block moved together give the same hidden states."""
    kinds = ["sliding_attention" if window else "full_attention"] * 2
    model = backbone(layer_types=kinds, sliding_window=window)
    context, block = torch.randn(1, 9, 8), torch.randn(1, 4, 8)
    plain, _ = run(model, [context], block)
    shifted_cache = ContextCache(model.config)
    shifted_cache.reserve(1, 64, block)
    shifted_cache.length = 17
    model.extend(shifted_cache, context)
    if window is None:
        # Full attention would see the 17 unwritten places: hide them by reading from 17 on.
        read = shifted_cache.read
        shifted_cache.read = lambda layer, first, end: read(layer, max(first, 17), end)
    torch.testing.assert_close(model.block(shifted_cache, block), plain, rtol=1e-4, atol=1e-5)


def test_the_first_layer_that_is_not_finite_is_named(make_drafter, target):
    drafter = make_drafter(target)
    with torch.no_grad():
        drafter.backbone.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    features = torch.randn(1, 6, 16)
    drafter.draft(features, torch.tensor([3]), block_size=4, num_candidates=2)
    error = drafter.locate_nonfinite()
    assert isinstance(error, NumericsError)
    assert "draft layer 1 of the drafter is not finite at block slot 0 (position 6)" in str(error)
