"""Every kernel against its reference, at every odd size: on a GPU compiled, elsewhere in Triton's interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels import OPS, check, choose_backend
from dflash_lab.core.kernels.launch import LAUNCHES, load_kernel, new_arrivals
from dflash_lab.core.kernels.opspec import describe, load_spec, uniform_misses

pytest.importorskip("triton", reason="no triton on this platform: pip install 'dflash-lab[triton]' on Linux")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROOT = Path(__file__).parents[3]
CASES = [
    pytest.param(name, index, dtype, id=f"{name}-{describe(case)}-{dtype}".replace("torch.", ""))
    for name in OPS
    for dtype in check.dtypes_on(load_spec(name), DEVICE)
    for index, case in enumerate(load_spec(name).cases)
]


@pytest.mark.parametrize(("name", "index", "dtype"), CASES)
def test_a_kernel_gives_what_its_reference_gives(name, index, dtype):
    spec = load_spec(name)
    before = LAUNCHES.total()
    found = check.check_case(spec, spec.cases[index], DEVICE, dtype, seed=index)
    assert LAUNCHES.total() > before
    assert found.passed, (found.errors, found.faults)
    assert found.errors


@pytest.mark.parametrize("name", OPS)
def test_an_operation_is_complete_data(name):
    spec = load_spec(name)
    assert spec.name == name
    assert torch.float32 in spec.tolerance
    assert torch.bfloat16 in spec.tolerance
    assert len({describe(case) for case in (*spec.cases, *spec.published)}) == len(spec.cases) + len(spec.published)
    assert {case.batch for case in spec.cases} >= {1, 8, 33}
    assert {case.batch for case in spec.published} == {1, 8, 32}
    for case in spec.published:
        assert spec.bytes(case, torch.float32) >= spec.bytes(case, torch.bfloat16) > 0
        assert spec.flops(case) >= 0


@pytest.mark.parametrize("name", OPS)
def test_inputs_come_from_the_generator_alone(name):
    spec = load_spec(name)
    first, again = (
        spec.arguments(spec.cases[1], DEVICE, torch.float32, torch.Generator(DEVICE).manual_seed(3)) for _ in range(2)
    )
    assert first.keys() == again.keys()
    for key, value in first.items():
        assert torch.equal(value, again[key]) if isinstance(value, torch.Tensor) else value == again[key]


def broken(spec, how):
    """The kernel of `spec` with one thing wrong."""
    kernel = load_kernel(spec.name, DEVICE)

    def run(**arguments):
        if how == "reference instead":
            return spec.reference(**arguments)
        found = kernel(**arguments)
        first = found[0]
        if how == "one element left out":
            first.view(-1)[-1] = float("nan") if first.is_floating_point() else torch.iinfo(first.dtype).max
        elif how == "one element wrong":
            first.view(-1)[-1] += 1
        elif how == "another result each time":
            run.calls += 1
            first.view(-1)[0] += run.calls * 1e-6 * first.abs().max()
        return found

    run.calls = 0
    return run


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("reference instead", "no Triton kernel was launched"),
        ("one element left out", "1 elements were not written"),
        ("one element wrong", None),
        ("another result each time", "the second run gave another result"),
    ],
)
@pytest.mark.parametrize("name", ["grouped_conv", "block_attention"])
def test_the_check_catches_a_broken_kernel(monkeypatch, name, how, said):
    spec = load_spec(name)
    kernel = broken(spec, how)
    monkeypatch.setattr(check, "load_kernel", lambda *_: kernel)
    found = check.check_case(spec, spec.cases[0], DEVICE, torch.float32)
    assert not found.passed
    assert said is None or said in " ".join(found.faults)


@pytest.mark.parametrize("name", ["edge_walk", "greedy_accept", "rejection_accept"])
def test_the_check_catches_a_wrong_whole_number(monkeypatch, name):
    spec = load_spec(name)
    kernel = load_kernel(name, DEVICE)

    def wrong(**arguments):
        found = kernel(**arguments)
        found[0].view(-1)[0] = (found[0].view(-1)[0] + 1) % 3
        return found

    monkeypatch.setattr(check, "load_kernel", lambda *_: wrong)
    assert not check.check_case(spec, spec.cases[1], DEVICE, torch.float32).passed


def test_a_kernel_that_raises_fails_its_case_and_no_other(monkeypatch):
    def fails(**_):
        raise RuntimeError("out of\nshared memory")

    monkeypatch.setattr(check, "load_kernel", lambda *_: fails)
    found = list(check.check_ops(["grouped_conv"], torch.device("cpu")))
    assert [item.faults for item in found] == [("RuntimeError: out of shared memory",)] * len(found)
    assert len(found) == check.num_checks(["grouped_conv"], torch.device("cpu"))
    assert not any(item.passed for item in found)


def test_counters_left_behind_are_a_fault(monkeypatch):
    spec = load_spec("greedy_accept")
    kernel = load_kernel("greedy_accept", DEVICE)

    def careless(logits, proposal, arrivals):
        found = kernel(logits, proposal)
        arrivals[0] += 1
        LAUNCHES["careless"] += 1
        return found

    monkeypatch.setattr(check, "load_kernel", lambda *_: careless)
    found = check.check_case(spec, spec.cases[0], DEVICE, torch.float32)
    assert found.faults == ("arrivals were not left at zero",)


def test_memory_is_poisoned_only_while_it_should_be():
    with check.poisoned_memory():
        assert torch.empty(5).isnan().all()
        assert (torch.empty(5, dtype=torch.int64) == torch.iinfo(torch.int64).max).all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_draw_is_right_only_between_its_sums():
    weights = torch.tensor([[0.5, 0.0, 0.25, 0.25]]).expand(4, 4)
    uniforms = torch.tensor([0.2, 0.5, 0.74, 0.9])
    assert uniform_misses(weights, uniforms, torch.tensor([0, 2, 2, 3]), slack=1e-6) == 0
    assert uniform_misses(weights, uniforms, torch.tensor([2, 1, 3, 4]), slack=1e-6) == 4
    # On a boundary either side is right, but never a token without weight.
    assert uniform_misses(weights[:2], torch.full((2,), 0.5), torch.tensor([0, 2]), slack=1e-6) == 0


def test_too_few_counters_are_refused():
    spec = load_spec("greedy_accept")
    arguments = spec.arguments(spec.cases[1], DEVICE, torch.float32, torch.Generator(DEVICE))
    with pytest.raises(BackendError, match="expected at least 8 int32 zeros, got 3"):
        load_kernel("greedy_accept", DEVICE)(**arguments, arrivals=new_arrivals(3, DEVICE))


def test_a_name_that_does_not_exist():
    with pytest.raises(BackendError, match="no operation 'walk'; expected one of edge_walk"):
        load_spec("walk")


def test_triton_kernels_run_in_the_captured_loop():
    assert choose_backend("auto", "eager") == choose_backend("reference", "graph") == "reference"
    assert choose_backend("auto", "graph") == choose_backend("triton", "graph") == "triton"
    with pytest.raises(BackendError, match="Triton kernels run in the captured loop.*use --kernels reference"):
        choose_backend("triton", "eager")


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import dflash_lab, dflash_lab.core.generate
from dflash_lab.core.errors import BackendError
from dflash_lab.core.kernels import choose_backend
from dflash_lab.ui.cli.main import main
assert choose_backend("auto", "eager") == choose_backend("auto", "graph") == "reference"
try:
    choose_backend("triton", "graph")
except BackendError as error:
    print(error)
main(["kernels", sys.argv[1]])
"""


@pytest.mark.parametrize(("action", "code"), [("list", 0), ("check", 2)])
def test_without_triton_all_else_works(action, code):
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON, action], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == code, done.stderr
    line = "Triton kernels were asked for and triton is not installed: pip install 'dflash-lab[triton]'"
    assert done.stdout.startswith(line)
    if code:
        assert done.stderr.startswith(f"error: {line}")
        assert done.stderr.count("\n") == 1


def test_a_compiled_triton_cannot_be_interpreted_later():
    program = (
        "import os, torch, triton.language\n"
        "from dflash_lab.core.errors import BackendError\n"
        "from dflash_lab.core.kernels.launch import load_kernel\n"
        "try:\n    load_kernel('edge_walk', torch.device('cpu'))\n"
        "except BackendError as error:\n    print(error)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert "set TRITON_INTERPRET=1 before starting" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_the_compiler_takes_every_kernel_for_an_h200(name, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    program = Path(__file__).with_name("compile_sm90.py")
    done = subprocess.run([sys.executable, program, name], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    launches = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(launches) >= len(load_spec(name).cases) * 3 // 2
    for found in launches:
        assert found["bytes"] > 0
        assert found["shared"] <= 227 << 10, found
        assert found["waits_first"], found
