"""The selective scan: every way against the definition in float64, forward and backward; memory; who is chosen."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import BadInput
from runner_ssmunet import scan
from runner_ssmunet.config import ModelConfig
from runner_ssmunet.scan import choice, eager, gradients, mamba_ssm, reference, selective_scan
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMES = ("x", "delta", "A", "B", "C", "D", "z", "delta_bias")
OPTIONAL = ("D", "z", "delta_bias")
EVERY_OPTION = {**dict.fromkeys(OPTIONAL, True), "delta_softplus": True}
WAYS = ("reference", "eager", "cpu")
"""Scans that run here; test_triton.py has Triton's, test_mamba_ssm.py has mamba-ssm's."""
SHAPES = [
    (1, 1, 1, 1), (5, 2, 3, 4), (1, 63, 16, 16), (1, 64, 17, 1), (2, 65, 48, 16), (5, 9, 33, 17), (1, 425, 5, 16),
    (3, 20, 40, 33), (0, 7, 4, 4),
]  # fmt: skip
"""P, L, E, N."""
ROUNDING = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@pytest.fixture(params=WAYS)
def how(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu":
        cpu = pytest.importorskip("runner_ssmunet.scan.cpu")
        if (reason := cpu.unavailable()) is not None:
            pytest.skip(reason)
    return request.param


def inputs(pixels, length, channels, states, dtype=torch.float32, seed=0, **options):
    """Arguments by name; weights stay float32 where the tensors are shorter, as under autocast."""
    made = torch.Generator().manual_seed(seed)
    weights = dtype if dtype in (torch.float32, torch.float64) else torch.float32

    def normal(*shape, dtype=dtype):
        return torch.randn(shape, generator=made, dtype=torch.float64).to(dtype).requires_grad_()

    rates = -torch.exp(torch.randn((channels, states), generator=made, dtype=torch.float64))
    of = {
        "x": normal(pixels, length, channels),
        "delta": normal(pixels, length, channels),
        "A": rates.to(weights).requires_grad_(),
        "B": normal(pixels, length, states),
        "C": normal(pixels, length, states),
        "D": normal(channels, dtype=weights),
        "z": normal(pixels, length, channels),
        "delta_bias": normal(channels, dtype=weights),
    }
    kept = {name: value for name, value in of.items() if name not in OPTIONAL or options.get(name)}
    return {**kept, "delta_softplus": bool(options.get("delta_softplus"))}


def results(arguments, how):
    """The output and the gradients of a sum with weights of all sizes, by name."""
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    y = selective_scan(**arguments, how=how)
    weights = torch.cos(torch.arange(y.numel())).bfloat16().view_as(y).to(y)  # the same in every dtype
    gradients = torch.autograd.grad(y, list(tensors.values()), weights)
    return {"y": y.detach(), **dict(zip(tensors, gradients, strict=True))}


def exact(arguments):
    wide = {
        name: value.detach().double().requires_grad_() if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    return results(wide, "reference")


def errors(found, wanted):
    """Largest difference of each by name, as a share of the largest value; where the parts of a sum cancel it is small,
    and its rounding is not."""
    return {
        name: float((found[name].double() - of).abs().max() / of.abs().max().clamp(min=0.1)) if of.numel() else 0.0
        for name, of in wanted.items()
    }


def check(arguments, how):
    found = results(arguments, how)
    for name, value in found.items():
        like = arguments["x" if name == "y" else name]
        assert (value.dtype, value.shape) == (like.dtype, like.shape), name
        assert torch.isfinite(value).all(), name
    worst = errors(found, exact(arguments))
    assert max(worst.values()) <= ROUNDING[arguments["x"].dtype], worst


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_way_is_the_definition(how: str, shape) -> None:
    check(inputs(*shape, **EVERY_OPTION), how)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_are_exact(shape) -> None:
    check(inputs(*shape, torch.float64, **EVERY_OPTION), "eager")


@pytest.mark.parametrize("options", list(product([False, True], repeat=4)), ids=str)
def test_skip_gate_bias_and_softplus_with_and_without(how: str, options) -> None:
    arguments = inputs(2, 18, 20, 4, **dict(zip((*OPTIONAL, "delta_softplus"), options, strict=True)))
    if not arguments["delta_softplus"]:  # a negative Δ grows without bound
        arguments["delta"] = arguments["delta"].detach().abs().requires_grad_()
        if "delta_bias" in arguments:
            arguments["delta_bias"] = arguments["delta_bias"].detach().abs().requires_grad_()
    check(arguments, how)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(2, 65, 20, 16), (0, 3, 4, 4), (3, 1, 17, 17)], ids=str)
def test_short_tensors(how: str, dtype, shape) -> None:
    check(inputs(*shape, dtype, **EVERY_OPTION), how)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_state_is_float32_whatever_comes_in(how: str, dtype) -> None:
    """4,000 steps of 2^-10 make 3.9; a bfloat16 state would stay at 0.25, a float16 one at 2."""
    ones = torch.ones(1, 4000, 1, dtype=dtype)
    y = selective_scan(ones, ones * 2**-10, torch.zeros(1, 1), ones, ones, how=how)
    assert y[0, -1, 0].item() == pytest.approx(4000 / 1024, rel=2**-8)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 4), st.integers(1, 40), st.integers(1, 36), st.integers(1, 20), st.sampled_from(WAYS[1:]),
    st.integers(0, 999),
)  # fmt: skip
def test_any_shape(pixels, length, channels, states, how, seed) -> None:
    if how == "cpu" and not choice.compiled_for(torch.zeros(())):
        how = "eager"
    check(inputs(pixels, length, channels, states, seed=seed, **EVERY_OPTION), how)


def test_blocks_of_pixels_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven pixels in one block, and in blocks of three with one left over."""
    arguments = inputs(7, 40, 6, 5, torch.float64, **EVERY_OPTION)
    whole = results(arguments, "eager")
    monkeypatch.setitem(eager.BLOCK, "cpu", 3 * eager.CHUNK * 6 * 5)
    assert max(errors(results(arguments, "eager"), whole).values()) < 1e-14


@pytest.mark.parametrize("way", ["reference", "eager"])
def test_gradients_are_those_of_finite_differences(way: str) -> None:
    arguments = inputs(2, 19, 3, 2, torch.float64, **EVERY_OPTION)
    tensors = [arguments[name] for name in NAMES]
    assert torch.autograd.gradcheck(lambda *of: selective_scan(*of, True, how=way), tensors, fast_mode=True)


def test_views_as_a_block_makes_them(how: str) -> None:
    """x and z halves of one projection, Δ, B and C slices of another, and a gradient that is one number expanded."""
    made = inputs(3, 21, 18, 5, **EVERY_OPTION)
    projected = torch.cat([made["x"], made["z"]], -1).detach().requires_grad_()
    small = torch.cat([made["delta"], made["B"], made["C"]], -1).detach().requires_grad_()

    def run(part, way):
        x, z = part(projected).chunk(2, -1)
        delta, B, C = part(small).split([18, 5, 5], -1)
        y = selective_scan(x, delta, made["A"], B, C, made["D"], z, made["delta_bias"], True, how=way)
        return dict(zip("yps", (y.detach(), *torch.autograd.grad(y.sum(), (projected, small))), strict=True))

    wanted = run(torch.Tensor.double, "reference")
    assert max(errors(run(lambda of: of, how), wanted).values()) < ROUNDING[torch.float32]
    # and with the steps outermost in memory
    turned = [of.detach().transpose(0, 1).contiguous().transpose(0, 1) for of in (made["x"], made["B"])]
    found = selective_scan(turned[0], made["delta"], made["A"], turned[1], made["C"], how=how, delta_softplus=True)
    straight = selective_scan(made["x"], made["delta"], made["A"], made["B"], made["C"], how=how, delta_softplus=True)
    assert torch.equal(found, straight)


def extreme(pixels=1, length=40, channels=17, states=4):
    """Steps and gates from nothing to 10^4, decays from 1 to 0 within a step."""
    arguments = inputs(pixels, length, channels, states, **EVERY_OPTION)
    sizes = torch.logspace(-6, 4, length)[:, None] * torch.tensor([1.0, -1.0]).repeat(channels)[:channels]
    arguments["delta"] = sizes[None].repeat(pixels, 1, 1).requires_grad_()
    arguments["z"] = (-sizes.flip(0))[None].repeat(pixels, 1, 1).requires_grad_()
    arguments["A"] = (-torch.logspace(-4, 4, channels * states)).view(channels, states).requires_grad_()
    return arguments


def test_extreme_steps_gates_and_decays(how: str) -> None:
    check(extreme(), how)


@pytest.mark.parametrize("size", [-5.0, -10.0, -16.0])
def test_gradients_of_small_steps(how: str, size: float) -> None:
    """Δ of 7e-3 to 1e-7, where trained blocks have it: 1 - e^-Δ, softplus' slope, has few digits there or none."""
    arguments = inputs(2, 20, 17, 4, delta_softplus=True)
    arguments["delta"] = (arguments["delta"].detach() / 4 + size).requires_grad_()
    found, wanted = results(arguments, how)["delta"].double(), exact(arguments)["delta"]
    assert (found - wanted).abs().max() <= ROUNDING[torch.float32] * wanted.abs().max()


def test_sums_over_many_pixels(how: str) -> None:
    """Sum half a million equal terms, each less than the last bit of the sum so far if it is one float32."""
    pixels, length = (4096, 128) if how == "cpu" else (512, 64)
    one = {name: torch.ones(1, length, 1) for name in ("x", "delta", "B", "C")}
    weights = {"A": -torch.ones(1, 1), "D": torch.ones(1), "delta_bias": torch.zeros(1)}

    def gradients(tensors, learned, way):
        y = selective_scan(**tensors, **learned, delta_softplus=True, how=way)
        return torch.stack([g.flatten() for g in torch.autograd.grad(y.sum(), list(learned.values()))]).double()

    def required(tensors, dtype=torch.float32):
        return {name: each.to(dtype).requires_grad_() for name, each in tensors.items()}

    wide = {name: each.double() for name, each in one.items()}
    wanted = pixels * gradients(wide, required(weights, torch.float64), "reference")
    many = {name: each.expand(pixels, -1, -1) for name, each in one.items()}
    torch.testing.assert_close(gradients(many, required(weights), how), wanted, rtol=1e-5, atol=0)


def test_gradients_of_gradients_are_refused(how: str) -> None:
    """Rather than taken for zero; the definition has them."""
    arguments = inputs(1, 3, 2, 2, **EVERY_OPTION)
    (slope,) = torch.autograd.grad(
        selective_scan(**arguments, how=how).square().sum(), arguments["x"], create_graph=True
    )
    if how == "reference":
        slope.sum().backward()
    else:
        with pytest.raises(RuntimeError, match="once_differentiable"):
            slope.sum().backward()


def test_pytorch_s_default_dtype_is_of_no_matter(how: str) -> None:
    arguments = inputs(2, 9, 5, 3, **EVERY_OPTION)
    wanted = results(arguments, how)
    torch.set_default_dtype(torch.float64)
    try:
        found = results(arguments, how)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(found[name], of) for name, of in wanted.items())


def test_a_kernel_is_compiled_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An install and a home that are read-only: Numba finds no place for its cache."""
    kernels = pytest.importorskip("runner_ssmunet.scan.kernels")
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    def twice(x):
        return 2 * x

    assert kernels._kernel(twice)(21) == 42


class Largest(TorchDispatchMode):
    """The most numbers that any one allocation of the operations within holds."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.numbers = max(self.numbers, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


def test_states_are_never_all_there(how: str) -> None:
    """Neither kept for the backward pass nor made at once: O(P·L·E), not O(P·L·E·N); the definition does both."""
    pixels, length, channels, states = 8, 256, 32, 32
    arguments = inputs(pixels, length, channels, states, **EVERY_OPTION)
    kept: dict[int, int] = {}

    def count(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    with Largest() as largest, torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        selective_scan(**arguments, how=how).sum().backward()
    tokens = pixels * length * channels
    if how == "reference":
        assert sum(kept.values()) > tokens * states
        assert largest.numbers >= tokens * states
    else:
        assert sum(kept.values()) <= 12 * tokens
        assert largest.numbers <= 2 * tokens
        assert sum(kept.values()) >= 4 * tokens  # x, Δ, z and some states: the count counts


def test_a_pass_without_gradients_keeps_nothing() -> None:
    x = torch.ones(2, requires_grad=True)
    assert gradients.keeps(None, x)
    assert not gradients.keeps(None, x.detach())
    with torch.no_grad():
        assert not gradients.keeps(None, x)
        y = selective_scan(**inputs(2, 9, 3, 2, **EVERY_OPTION), how="eager")
    assert y.grad_fn is None


def test_autocast_leaves_the_sums_alone(how: str) -> None:
    arguments = inputs(2, 33, 6, 4, **EVERY_OPTION)
    wanted = results(arguments, how)
    with torch.autocast("cpu", torch.bfloat16):
        found = results(arguments, how)
    assert all(torch.equal(found[name], of) for name, of in wanted.items())


# ---------------------------------------------------------------- who is chosen


def test_float64_is_computed_in_float64() -> None:
    assert choice.automatic(torch.zeros(1, dtype=torch.float64)) == "eager"
    arguments = inputs(1, 5, 3, 2, torch.float64, **EVERY_OPTION)
    check(arguments, "auto")
    with pytest.raises(ValueError, match="x is float64 and triton computes in float32: eager and reference take it"):
        selective_scan(**arguments, how="triton")


def test_the_kernels_of_a_cpu_want_its_tensors() -> None:
    arguments = {name: of.to("meta") for name, of in inputs(1, 2, 3, 4).items() if name != "delta_softplus"}
    with pytest.raises(ValueError, match="x is on meta: Numba's kernels run on a CPU"):
        selective_scan(**arguments, how="cpu")


@pytest.fixture
def undecided():
    """Choices are made once a process: made again within, and after."""
    choice._compiles.cache_clear()
    choice._is_fused.cache_clear()
    yield
    choice._compiles.cache_clear()
    choice._is_fused.cache_clear()


@pytest.mark.usefixtures("undecided")
def test_without_a_compiler_one_warning_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = pytest.importorskip("runner_ssmunet.scan.cpu")
    monkeypatch.setattr(cpu, "unavailable", lambda: "ImportError: no module named numba")
    arguments = inputs(1, 4, 3, 2)
    with pytest.warns(RuntimeWarning, match="plain PyTorch, many times slower .*: ImportError: no module named numba"):
        first = selective_scan(**arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = selective_scan(**arguments)
    assert torch.equal(first, second)
    assert torch.equal(first, selective_scan(**arguments, how="eager"))


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize(("missing", "chosen"), [(None, "mamba_ssm"), ("not installed", "triton")])
def test_on_cuda_the_fused_kernel_where_it_is_installed(missing, chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mamba_ssm, "unavailable", lambda: missing)
    on_cuda = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, device=torch.device("cuda"))
    before = torch.are_deterministic_algorithms_enabled()  # runs of other tests in this process may have left it on
    try:
        torch.use_deterministic_algorithms(False)
        assert choice.automatic(on_cuda) == chosen  # type: ignore[arg-type]
        torch.use_deterministic_algorithms(True)  # its backward pass adds with atomics
        assert choice.automatic(on_cuda) == "triton"  # type: ignore[arg-type]
    finally:
        torch.use_deterministic_algorithms(before)


def test_the_fused_kernel_gets_its_own_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter alone, around a stand-in that takes and checks what mamba-ssm's kernel does: (P, E, L), one dtype."""

    def selective_scan_fn(u, delta, A, B, C, D, z, delta_bias, delta_softplus):
        assert {of.dtype for of in (u, delta, B, C, z)} == {u.dtype}
        assert {of.dtype for of in (A, D, delta_bias)} == {torch.float32}
        sequences = [of.transpose(1, 2) for of in (u, delta, B, C, z)]
        x, delta, B, C, z = sequences
        return reference.selective_scan(x, delta, A, B, C, D, z, delta_bias, delta_softplus).transpose(1, 2)

    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.selective_scan_interface"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(
        sys.modules["mamba_ssm.ops.selective_scan_interface"], "selective_scan_fn", selective_scan_fn, raising=False
    )
    for shape in [(2, 9, 5, 3), (0, 4, 3, 2)]:
        check(inputs(*shape, **EVERY_OPTION), "mamba_ssm")
        check(inputs(*shape, torch.bfloat16, **EVERY_OPTION), "mamba_ssm")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 3)}, r"x is \(P, L, E\) with L ≥ 1 and A \(E, N\), not \(2, 3\) and \(4, 5\)"),
        ({"x": torch.zeros(2, 0, 4)}, r"L ≥ 1"),
        ({"B": torch.zeros(2, 5, 3)}, r"B is \(2, 5, 3\); beside x \(2, 3, 4\) and A \(4, 5\): \(2, 3, 5\)"),
        ({"D": torch.zeros(5)}, r"D is \(5,\)"),
        ({"A": torch.zeros(4, 5, dtype=torch.complex64)}, "A is complex; the states are real"),
        ({"how": "cuda"}, "how='cuda': one of auto, reference, eager, cpu, triton, mamba_ssm"),
    ],
)
def test_what_does_not_fit_is_named(change, message) -> None:
    arguments = {**inputs(2, 3, 4, 5), **change}
    with pytest.raises(ValueError, match=message):
        selective_scan(**arguments)


@pytest.mark.slow
def test_the_kernels_need_no_vector_extensions(tmp_path: Path) -> None:
    """Compiled for any x86-64 (SSE2), where a vector is four registers: the same numbers."""
    environment = os.environ | {
        "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path),
    }  # fmt: skip
    words = ["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-k", "cpu and not extensions", __file__]
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize(
    ("how", "device", "deterministic", "said"),
    [
        ("triton", "cpu", False, "model.scan triton: it runs on a GPU"),
        ("mamba_ssm", "cpu", False, "model.scan mamba_ssm: it runs on a GPU"),
        ("mamba_ssm", "cuda", False, r"no mamba; `uv pip install -e 'packages/ssmunet\[cuda\]'`"),
        ("mamba_ssm", "cuda:1", True, "train.deterministic asks for: set model.scan to triton"),
        ("cpu", "cuda", False, "this run computes on a GPU: set model.scan to auto"),
        ("auto", "cpu", True, None),
        ("auto", "cuda", True, None),
        ("eager", "cuda", True, None),
    ],
)
def test_a_way_that_cannot_run_here_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, how: str, device: str, deterministic: bool, said: str | None
) -> None:
    monkeypatch.setattr(mamba_ssm, "unavailable", lambda: "ImportError: no mamba")
    if said is None:
        choice.refuse_unavailable(how, device, deterministic)
        return
    with pytest.raises(BadInput, match=said):
        choice.refuse_unavailable(how, device, deterministic)


def test_every_way_can_be_chosen_by_a_setting() -> None:
    assert {*get_args(get_type_hints(ModelConfig)["scan"])} == {"auto", *scan.WAYS}
