"""The spectral stack: chunks and tissue-only change memory and time, nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from runner_ssmunet.filters import BandFilters, SincFilters, default_centres
from runner_ssmunet.spectral import ELEMENTS, AttentionPooling, SpectralStack
from torch import Tensor

LENGTH, FILTERS = 21, 4


def stack(
    filters: int = FILTERS, length: int = LENGTH, dropout: float = 0.0, chunk: int | None = 0, layers: int = 2,
    kind: type[BandFilters] | type[SincFilters] = BandFilters,
) -> SpectralStack:  # fmt: skip
    """Return a network with the same weights each time."""
    torch.manual_seed(3)
    axis = np.linspace(900, 1800, length).tolist()
    return SpectralStack(kind(axis, default_centres(filters, 900, 1800)), layers, 4, dropout, chunk)


def outcome(model: SpectralStack, x: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Features and every gradient, of a loss that all features enter unequally."""
    x = x.detach().requires_grad_()
    torch.manual_seed(seed)
    features = model(x)
    weights = torch.linspace(-1, 2, features.numel(), dtype=features.dtype).reshape(features.shape)
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad((features.sin() * weights).sum(), [x, *parameters.values()])
    return dict(zip(("features", "input", *parameters), (features.detach(), *gradients), strict=True))


def spectra(pixels: int, dtype: torch.dtype = torch.float32, length: int = LENGTH) -> Tensor:
    return torch.randn(pixels, length, generator=torch.Generator().manual_seed(1), dtype=dtype)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float, least: float = 0.0) -> None:
    """Within `tolerance` times the largest number of each, or times `least` where that is larger."""
    for name, value in expected.items():
        scale = max(value.abs().max().item(), least)
        assert (found[name] - value).abs().max().item() <= tolerance * scale, name


@pytest.mark.parametrize("kind", [BandFilters, SincFilters])
@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
def test_chunks_change_nothing_to_ten_digits(chunk: int, kind: type[BandFilters] | type[SincFilters]) -> None:
    whole, parts = stack(kind=kind).double(), stack(kind=kind, chunk=chunk).double()
    x = spectra(11, torch.float64)
    assert_same(outcome(parts, x), outcome(whole, x), 1e-10)


def test_chunks_change_nothing_in_float32() -> None:
    """The CPU's compiled kernels are used if they are there."""
    x = spectra(37)
    assert_same(outcome(stack(chunk=8), x), outcome(stack(), x), 1e-5)


def test_dropout_is_the_same_when_a_chunk_is_computed_again() -> None:
    """One chunk of all pixels draws what the unchecked stack draws, forward, and again for the gradient."""
    x = spectra(9, torch.float64)
    whole, once = stack(dropout=0.4).double(), stack(dropout=0.4, chunk=9).double()
    expected, found = outcome(whole, x), outcome(once, x)
    assert torch.equal(found["features"], expected["features"])
    assert_same(found, expected, 1e-12)
    assert not torch.equal(found["features"], outcome(once, x, seed=1)["features"])


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_small_batch_is_not_computed_again_and_has_the_same_bits(
    dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    x = spectra(3 * ELEMENTS["cpu"] // (LENGTH * FILTERS))
    outcomes = []
    for most in (0, 2**30):
        monkeypatch.setattr("runner_ssmunet.spectral.KEPT", most)
        model = stack(chunk=None, dropout=dropout)
        model.pooling.register_forward_hook(lambda _, args, __: passes.append(len(args[0])))
        outcomes.append(outcome(model, x))
        assert sum(passes) == (2 if most == 0 else 1) * len(x)
        passes.clear()
    for name, value in outcomes[0].items():
        assert torch.equal(value, outcomes[1][name]), name


def test_gradients_can_be_asked_for_twice() -> None:
    """Rules that compare the terms of a loss do."""
    model = stack(chunk=None)
    total = model(spectra(9)).square().sum()
    once, again = (torch.autograd.grad(total, list(model.parameters()), retain_graph=True) for _ in "ab")
    for one, other in zip(once, again, strict=True):
        assert torch.equal(one, other)


def test_the_estimate_of_what_is_kept_is_about_right() -> None:
    for filters, length, layers in ((16, 120, 1), (3, 360, 2), (24, 360, 2)):
        model, x = stack(filters, length, layers=layers), spectra(32, length=length)
        assert 0.7 < held(lambda m=model, own=x: m.attend(own)[0]) / model.kept_bytes(x) < 1.2  # type: ignore[misc]


def test_computing_again_leaves_the_generator_alone() -> None:
    features = stack(dropout=0.4, chunk=2)(spectra(5))
    before = torch.get_rng_state()
    features.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_gradients_with_chunks_and_dropout() -> None:
    model = stack(filters=2, length=5, dropout=0.4, chunk=2).double()

    def drawn_alike(x: Tensor) -> Tensor:
        torch.manual_seed(5)
        return model(x)

    assert torch.autograd.gradcheck(drawn_alike, (spectra(3, torch.float64, 5).requires_grad_(),))


def test_without_gradient_chunks_change_nothing() -> None:
    x = spectra(11)
    whole, parts = stack(dropout=0.5).eval(), stack(dropout=0.5, chunk=4).eval()
    with torch.no_grad():
        torch.testing.assert_close(parts(x), whole(x))


def test_no_chunk_holds_more_than_the_device_is_given() -> None:
    seen: list[int] = []
    model = stack(chunk=None).eval()
    model.pooling.register_forward_hook(lambda _, args, __: seen.append(args[0].numel()))
    pixels = 2 * ELEMENTS["cpu"] // (LENGTH * FILTERS)
    with torch.no_grad():
        assert model(spectra(pixels)).shape == (pixels, FILTERS)
    assert len(seen) >= 2
    assert max(seen) <= ELEMENTS["cpu"]


def held(forward: Callable[[], Tensor]) -> int:
    """Bytes that a forward pass keeps for its gradient, each memory once."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()
    assert result.requires_grad
    return sum(kept.values())


def test_24_filters_in_chunks_hold_less_than_3_filters_without() -> None:
    pixels, length = 64, 100
    x = spectra(pixels, length=length)
    three, many = stack(3, length, 0.1), stack(24, length, 0.1, chunk=16)
    without = held(lambda: three(x))
    assert held(lambda: many(x)) == x.numel() * x.element_size() < without / 10
    assert held(lambda: stack(24, length, 0.1)(x)) > 5 * without


def test_pooling_is_the_attention_of_the_definition() -> None:
    pooling = AttentionPooling(5).double()
    z = torch.randn(3, 7, 5, dtype=torch.float64)
    with torch.no_grad():
        features, attention = (t.numpy() for t in pooling(z))
    first, bias, second = (
        p.detach().numpy() for p in (pooling.hidden.weight, pooling.hidden.bias, pooling.score.weight)
    )
    assert first.shape == (2, 5)
    for pixel in range(3):
        scores = np.tanh(z[pixel].numpy() @ first.T + bias) @ second[0]
        a = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(attention[pixel], a, rtol=1e-12)
        np.testing.assert_allclose(features[pixel], a @ z[pixel].numpy(), rtol=1e-10, atol=1e-14)


def test_a_layer_is_the_norm_of_mamba_and_what_it_was_given() -> None:
    layer = stack(dropout=0.5).double().eval().layers[0]
    z = torch.randn(2, 6, FILTERS, dtype=torch.float64)
    with torch.no_grad():
        total = layer.mamba(z) + z
        expected = (total - total.mean(-1, keepdim=True)) / (total.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        torch.testing.assert_close(layer(z), expected)


def test_no_layers_leaves_the_filters_alone() -> None:
    model = stack(layers=0)
    x = spectra(3)
    torch.testing.assert_close(model(x), model.pooling(model.filters(x))[0])


def image(tissue: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Spectra (B, H, W, L), 0 where there is no tissue."""
    x = torch.randn(*tissue.shape, LENGTH, generator=torch.Generator().manual_seed(4), dtype=dtype)
    return x * tissue[..., None]


SHAPE = (2, 5, 3)
TISSUES = {
    "some": torch.arange(30).reshape(SHAPE) % 3 == 0,
    "one": torch.arange(30).reshape(SHAPE) == 17,
    "none": torch.zeros(SHAPE, dtype=torch.bool),
    "all": torch.ones(SHAPE, dtype=torch.bool),
}


@pytest.mark.parametrize("tissue", TISSUES.values(), ids=TISSUES)
@pytest.mark.parametrize("chunk", [0, 4])
def test_tissue_only_is_exact_in_evaluation(tissue: Tensor, chunk: int) -> None:
    model = stack(dropout=0.5, chunk=chunk).double().eval()
    x = image(tissue)
    with torch.no_grad():
        full = model(x.flatten(0, 2)).unflatten(0, SHAPE)
        torch.testing.assert_close(model.over(x, tissue), full, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tissue", TISSUES.values(), ids=TISSUES)
def test_tissue_only_has_the_gradients_of_the_whole(tissue: Tensor) -> None:
    """Every parameter has a gradient, also without tissue, and if all is tissue."""
    model = stack(chunk=4).double()
    full = copy.deepcopy(model)
    x = image(tissue)
    weights = torch.linspace(-1, 1, 30 * FILTERS, dtype=torch.float64).reshape(*SHAPE, FILTERS)
    (model.over(x, tissue).sin() * weights).sum().backward()
    (full(x.flatten(0, 2)).unflatten(0, SHAPE).sin() * weights).sum().backward()
    for (name, parameter), other in zip(model.named_parameters(), full.parameters(), strict=True):
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-9, atol=1e-11)


def test_tissue_only_computes_tissue_only() -> None:
    seen: list[int] = []
    model = stack()
    model.pooling.register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    for tissue in TISSUES.values():
        model.over(image(tissue, torch.float32), tissue)
    assert seen == [11, 2, 1, 31]


def test_what_is_frozen_gets_no_gradient() -> None:
    model, whole = stack(chunk=4).double(), stack().double()
    x = spectra(11, torch.float64)
    for part in (model, whole):
        part.filters.requires_grad_(False)
        part(x).sin().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == [
        "filters.edges.shift",
        "filters.edges.stretch",
    ]
    torch.testing.assert_close(model.pooling.hidden.weight.grad, whole.pooling.hidden.weight.grad)
    assert not model.requires_grad_(False)(x).requires_grad


def test_no_pixels() -> None:
    for chunk in (0, 4, None):
        assert stack(chunk=chunk)(spectra(0)).shape == (0, FILTERS)
    nothing = torch.zeros(0, 4, 4, LENGTH)
    assert stack().over(nothing, torch.zeros(0, 4, 4, dtype=torch.bool)).shape == (0, 4, 4, FILTERS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [BandFilters, SincFilters])
def test_mixed_precision(dtype: torch.dtype, kind: type[BandFilters] | type[SincFilters]) -> None:
    """Matrix products in half precision; what enters and leaves the layers, attention and features in float32."""
    model = stack(chunk=4, kind=kind)
    x = spectra(11)
    inside: list[Tensor] = []
    model.pooling.register_forward_hook(lambda _, args, out: inside.extend((args[0], *out)))
    products: list[torch.dtype] = []
    model.layers[0].mamba.out_proj.register_forward_hook(lambda _, __, out: products.append(out.dtype))
    exact = outcome(model, x)
    del inside[:], products[:]
    with torch.autocast("cpu", dtype):
        mixed = outcome(model, x)
    assert {tensor.dtype for tensor in inside} == {torch.float32}
    assert set(products) == {dtype}
    assert {value.dtype for value in mixed.values()} == {torch.float32}
    assert_same(mixed, exact, 0.1, least=1e-4)  # float16 without loss scaling has no digits below
