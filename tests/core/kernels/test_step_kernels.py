"""The operations of the captured step: what random inputs seldom show."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_lab.core.decode.loop import Decoding
from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels.launch import LAUNCHES, load_kernel
from dflash_lab.core.kernels.opspec import load_spec
from dflash_lab.core.trace.recorder import _judgement
from dflash_lab.core.types import StopReason

pytest.importorskip("triton", reason="no triton on this platform: pip install 'dflash-lab[triton]' on Linux")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LINEAR = {"batch": 2, "slots": 4, "channels": 48, "columns": 16, "normed": True}
QKV = {"batch": 2, "slots": 3, "channels": 32, "heads": 2, "kv_heads": 1, "head_dim": 8, "places": 20}
"""Small sizes."""


def prepare(name, seed=0, dtype=torch.float32, **sizes):
    """Kernel, reference and arguments of one call."""
    spec = load_spec(name)
    case = type(spec.cases[0])(**sizes)
    arguments = spec.arguments(case, DEVICE, dtype, torch.Generator(DEVICE).manual_seed(seed))
    return load_kernel(name, DEVICE), spec.reference, arguments


def take(monkeypatch, path):
    """Have `block_linear` and `block_qkv` multiply themselves, or let the library do it, at any size."""
    load_kernel("block_linear", DEVICE)  # chooses the interpreter before triton is imported
    from dflash_lab.core.kernels import row_product

    monkeypatch.setattr(row_product, "ONE_LAUNCH_ROWS", 1 << 40 if path == "one launch" else 0)
    monkeypatch.setattr(row_product, "ONE_LAUNCH_PRODUCTS", 1 << 60)


def launched(kernel, arguments):
    """What the kernel gives, and the launches it makes."""
    before = LAUNCHES.copy()
    return kernel(**arguments), dict(LAUNCHES - before)


# block_linear


@settings(max_examples=16)
@given(st.data())
def test_a_layer_is_its_references_at_any_size(data):
    draw = data.draw
    kind = draw(st.sampled_from(["plain", "before", "after", "gated"]))
    channels, columns = draw(st.integers(1, 6)) * 8, draw(st.integers(1, 5)) * 4
    kernel, reference, arguments = prepare(
        "block_linear",
        draw(st.integers(0, 1 << 30)),
        batch=draw(st.integers(1, 3)),
        slots=draw(st.integers(1, 9)),
        channels=channels,
        columns=columns,
        normed=draw(st.booleans()),
        before=draw(st.sampled_from([2, 4, 8])) if kind == "before" else 0,
        after=draw(st.sampled_from([1, 2, 4])) if kind == "after" else 0,
        taps=draw(st.integers(1, 4)),
        biased=draw(st.booleans()),
        residual=draw(st.booleans()),
        gated=kind == "gated",
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        take(monkeypatch, draw(st.sampled_from(["one launch", "library"])))
        found = kernel(**arguments).out
    torch.testing.assert_close(found, reference(**arguments).out, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path", ["one launch", "library"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_neither_convolution_reaches_across_a_blocks_left_edge(monkeypatch, side, path):
    take(monkeypatch, path)
    kernel, _, arguments = prepare("block_linear", **{**LINEAR, "normed": False, side: 8})
    before = kernel(**arguments).out.clone()
    arguments["x"][0] = 1e6
    found = kernel(**arguments).out
    assert torch.equal(found[1], before[1])
    assert not torch.equal(found[0], before[0])


@pytest.mark.parametrize("path", ["one launch", "library"])
def test_a_row_of_zeros_stays_finite(monkeypatch, path):
    take(monkeypatch, path)
    kernel, reference, arguments = prepare("block_linear", **LINEAR)
    arguments["x"][0, 1] = 0
    found = kernel(**arguments).out
    torch.testing.assert_close(found, reference(**arguments).out)
    assert (found[0, 1] == 0).all()


@pytest.mark.parametrize("batch", [1, 6, 40])
def test_every_tile_height_gives_the_same(monkeypatch, batch):
    """From one tile of 16 rows to several of 64."""
    take(monkeypatch, "one launch")
    kernel, reference, arguments = prepare("block_linear", **{**LINEAR, "batch": batch, "before": 16, "gated": True})
    torch.testing.assert_close(kernel(**arguments).out, reference(**arguments).out, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "taps", "channels", "pieces", "one"),
    [
        (8, 2, 576, 3072, True),
        (64, 1, 576, 3072, True),
        (64, 2, 576, 576, True),
        (64, 2, 576, 3072, False),
        (256, 1, 576, 144, True),
        (257, 1, 16, 16, False),
        (65, 3, 16, 16, False),
        (256, 1, 1536, 576, True),
        (16, 2, 2048, 2048, True),
        (64, 2, 2048, 2048, False),
        (8, 2, 6144, 2048, False),
        (16, 2, 2048, 12288, False),
        (256, 2, 2048, 2048, False),
    ],
)
def test_one_launch_is_for_few_rows_and_few_weights(rows, taps, channels, pieces, one):
    load_kernel("block_linear", DEVICE)
    from dflash_lab.core.kernels.row_product import fuses

    assert fuses(rows, taps, channels, pieces) is one


@pytest.mark.parametrize(
    ("more", "around"),
    [
        ({}, ["_prepare_rows"]),
        ({"biased": True}, ["_prepare_rows"]),
        ({"normed": False, "before": 8}, ["_prepare_rows"]),
        ({"gated": True}, ["_prepare_rows", "_finish_linear"]),
        ({"normed": False, "after": 4}, ["_finish_linear"]),
        ({"normed": False, "residual": True}, ["_finish_linear"]),
        ({"normed": False}, []),
    ],
)
def test_a_layer_makes_the_launches_it_needs(monkeypatch, more, around):
    kernel, reference, arguments = prepare("block_linear", **LINEAR | more)
    found, launches = launched(kernel, arguments)
    assert launches == {"_block_linear": 1}
    take(monkeypatch, "library")
    other, launches = launched(kernel, arguments)
    assert launches == dict.fromkeys(around, 1)
    for out in (found.out, other.out):
        torch.testing.assert_close(out, reference(**arguments).out, rtol=1e-4, atol=1e-4)


def test_many_rows_are_the_librarys():
    kernel, _, arguments = prepare("block_linear", **{**LINEAR, "batch": 65, "residual": True})
    assert launched(kernel, arguments)[1] == {"_prepare_rows": 1, "_finish_linear": 1}
    kernel, _, arguments = prepare("block_qkv", **{**QKV, "batch": 86})
    assert launched(kernel, arguments)[1] == {"_prepare_rows": 1, "_finish_qkv": 1}


# block_qkv


@pytest.mark.parametrize(
    ("more", "around"),
    [({}, ["_prepare_rows", "_finish_qkv"]), ({"normed": False, "head_normed": True}, ["_finish_qkv"])],
)
def test_heads_are_made_by_the_launches_it_takes(monkeypatch, more, around):
    kernel, reference, arguments = prepare("block_qkv", **QKV | more)
    cache = arguments.pop("cache")
    wanted = reference(**arguments, cache=cache.clone())
    for path, names in (("one launch", ["_block_qkv"]), ("library", around)):
        take(monkeypatch, path)
        found, launches = launched(kernel, arguments | {"cache": cache.clone()})
        assert launches == dict.fromkeys(names, 1)
        torch.testing.assert_close(found.queries, wanted.queries)
        torch.testing.assert_close(found.cache, wanted.cache)


def test_queries_and_keys_are_rotated_by_their_own_positions():
    kernel, _, arguments = prepare("block_qkv", **QKV)
    first = kernel(**arguments).queries.clone()
    arguments["starts"] += 1
    moved = kernel(**arguments).queries
    assert not torch.allclose(moved, first)
    torch.testing.assert_close(moved.norm(dim=-1), first.norm(dim=-1))


def test_values_are_laid_down_as_they_are():
    kernel, _, arguments = prepare("block_qkv", **{**QKV, "batch": 1, "normed": False, "head_normed": True})
    found = kernel(**arguments).cache
    start = int(arguments["starts"][0])
    rows = arguments["weight"][3 * QKV["head_dim"] :]
    torch.testing.assert_close(found[1, 0, 0, start : start + QKV["slots"]], arguments["x"][0] @ rows.T)


@pytest.mark.parametrize("path", ["one launch", "library"])
def test_starts_are_read_on_the_device_and_nothing_else_is_written(monkeypatch, path):
    take(monkeypatch, path)
    names = ["_block_qkv"] if path == "one launch" else ["_prepare_rows", "_finish_qkv"]
    kernel, reference, arguments = prepare("block_qkv", **QKV)
    clean = arguments["cache"].clone()
    for starts in ([0, 17], [18, 5], [20, 30]):
        arguments["starts"].copy_(torch.tensor(starts))
        arguments["cache"] = clean.clone()
        found, launches = launched(kernel, arguments)
        assert launches == dict.fromkeys(names, 1)
        assert found.cache is arguments["cache"]
        arguments["cache"] = clean.clone()
        wanted = reference(**arguments)
        torch.testing.assert_close(found.cache, wanted.cache)
        torch.testing.assert_close(found.queries, wanted.queries)
        for request, start in enumerate(starts):
            untouched = [place for place in range(QKV["places"]) if not start <= place < start + QKV["slots"]]
            assert torch.equal(found.cache[:, request, :, untouched], clean[:, request, :, untouched])


def test_keys_and_values_of_several_layers_are_what_each_layer_makes():
    sizes = {**QKV, "heads": 0, "planes": 4, "head_normed": True}
    kernel, _, arguments = prepare("block_qkv", **sizes)
    together = kernel(**arguments).cache.clone()
    rows = 2 * QKV["kv_heads"] * QKV["head_dim"]
    for layer in range(2):
        alone = arguments | {
            "weight": arguments["weight"][layer * rows : (layer + 1) * rows],
            "k_norm": arguments["k_norm"][layer : layer + 1],
            "cache": arguments["cache"][2 * layer : 2 * layer + 2].clone(),
        }
        torch.testing.assert_close(kernel(**alone).cache, together[2 * layer : 2 * layer + 2])


# commit


def commit_on_host(tokens, left, stop_ids):
    """What the eager loop keeps of `tokens`, and 0, 1 (stopped) or 2 (full)."""
    loop = object.__new__(Decoding)
    loop.output_ids, loop.stop_reason, loop._stop_ids, loop._limit = [], None, frozenset(stop_ids), left
    loop.params = type("Params", (), {"max_new_tokens": left})
    kept = loop._commit(tokens)
    return kept, {None: 0, StopReason.STOP: 1, StopReason.LENGTH: 2}[loop.stop_reason]


@settings(max_examples=40)
@given(st.data())
def test_tokens_are_committed_as_the_eager_loop_does(data):
    kernel, reference = load_kernel("commit", DEVICE), load_spec("commit").reference
    positions, left = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 8))
    tokens = st.integers(0, 5)
    block = data.draw(st.lists(tokens, min_size=positions + 1, max_size=positions + 1))
    accepted, bonus = data.draw(st.integers(0, positions)), data.draw(tokens)
    stop_ids, done = data.draw(st.lists(tokens, max_size=3, unique=True)), data.draw(st.sampled_from([0, 0, 0, 1, 2]))
    kept, over = ([], done) if done else commit_on_host([*block[1 : accepted + 1], bonus], left, stop_ids)

    def words(*values):
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    for function in (kernel, reference):
        ids = torch.tensor([block], device=DEVICE)
        lengths, room, state = words(100), words(left), words(done)
        stops = torch.tensor(stop_ids, dtype=torch.int64, device=DEVICE)
        verdict = torch.tensor([accepted], device=DEVICE), torch.tensor([bonus], device=DEVICE)
        found = function(ids, *verdict, lengths, room, state, stops)
        assert found.record.tolist() == [[accepted, bonus, len(kept), over, *block[1:]]]
        assert ids.tolist() == [[kept[-1] if kept else block[0], *block[1:]]]
        assert (int(lengths), int(room), int(state)) == (100 + len(kept), left - len(kept), over)


# token_stats


def test_the_judgement_is_the_recorders():
    kernel, _, arguments = prepare("token_stats", batch=1, slots=4, vocab=5000)
    found, wanted = kernel(**arguments), _judgement(arguments["logits"][0], None)
    assert torch.equal(found.best_id[0], wanted["target_ids"])
    assert torch.equal(found.top2[0], wanted["target_top2"])
    torch.testing.assert_close(found.log_norm[0], wanted["target_log_norm"])


@settings(max_examples=15)
@given(st.data())
def test_of_equal_logits_the_first_is_best_and_the_next_second(data):
    kernel, reference = load_kernel("token_stats", DEVICE), load_spec("token_stats").reference
    values = data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, float("-inf")]), min_size=1, max_size=9))
    logits = torch.tensor([[values]], device=DEVICE)
    found, wanted = kernel(logits), reference(logits)
    assert torch.equal(found.best_id, wanted.best_id)
    assert torch.equal(found.top2, wanted.top2)
    torch.testing.assert_close(found.log_norm, wanted.log_norm)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_still_give_a_token(value):
    found = load_kernel("token_stats", DEVICE)(torch.full((1, 2, 9), value, device=DEVICE))
    assert ((found.best_id >= 0) & (found.best_id < 9)).all()


# block_attention


def test_a_shortened_block_is_a_block_of_fewer_slots():
    sizes = {"batch": 2, "slots": 6, "heads": 2, "kv_heads": 1, "head_dim": 16, "places": 64, "context": 40}
    kernel, _, arguments = prepare("block_attention", **sizes)
    whole = kernel(**arguments | {"slots": torch.tensor([6, 6], dtype=torch.int32, device=DEVICE)}).out
    assert torch.equal(whole, kernel(**arguments).out)
    short = kernel(**arguments | {"slots": torch.tensor([4, 1], dtype=torch.int32, device=DEVICE)}).out
    for request, kept in enumerate((4, 1)):
        alone = {
            name: value[request : request + 1].contiguous() if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        alone["queries"] = alone["queries"][:, :kept].contiguous()
        torch.testing.assert_close(short[request, :kept], kernel(**alone).out[0], rtol=1e-5, atol=1e-6)


# refusals


REFUSALS = [
    (
        "block_linear",
        {**LINEAR, "before": 8},
        {"gated": lambda _: True, "after": lambda _: torch.zeros(2, 4, 2, 2)},
        "one",
    ),
    ("block_linear", LINEAR, {"weight": torch.Tensor.double}, "weight: the kernel takes float32, got float64"),
    ("block_linear", LINEAR, {"x": lambda x: x.transpose(0, 1)}, "x: the kernel needs contiguous data"),
    ("block_linear", LINEAR, {"norm": lambda norm: norm[1:]}, r"norm: expected shape \[48\], got \[47\]"),
    ("block_linear", {**LINEAR, "taps": 9, "before": 8}, {}, "before: taps: the kernel takes 1 to 8, got 9"),
    (
        "block_linear",
        {**LINEAR, "before": 8},
        {"before": lambda delta: delta[..., :5].contiguous()},
        "before: 48 channels do not divide into 5 groups",
    ),
    ("block_qkv", {**QKV, "head_dim": 7}, {}, "heads of even size, got 2 planes of heads of 7"),
    ("block_qkv", QKV, {"starts": torch.Tensor.long}, "starts: the kernel takes int32, got int64"),
    ("block_qkv", QKV, {"heads": lambda _: 3}, r"weight: expected shape \[40, 32\], got \[32, 32\]"),
    ("block_qkv", QKV, {"sin": lambda sin: sin[:-1]}, r"sin: expected shape \[19, 8\], got \[18, 8\]"),
    ("commit", {"batch": 1, "positions": 64, "vocab": 9}, {}, "slots in a block: the kernel takes 1 to 64, got 65"),
    ("commit", {"batch": 1, "positions": 2, "vocab": 9}, {"left": torch.Tensor.long}, "left: the kernel takes int32"),
    ("token_stats", {"batch": 1, "slots": 2, "vocab": 9}, {"logits": torch.Tensor.double}, "logits: the kernel takes"),
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
