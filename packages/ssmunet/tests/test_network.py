"""U-Net and the whole network: parameters, sizes, precision, and training on frozen features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runner_ssmunet.config import ssmunet_3
from runner_ssmunet.network import SSMUNetwork, UNet
from torch import Tensor, nn

AXIS = np.linspace(900, 1800, 30).tolist()


def network(**settings: object) -> SSMUNetwork:
    torch.manual_seed(2)
    small = {"filters": 4, "states": 4, "embed": 4, "base": 2, "dropout": 0.0}
    return SSMUNetwork(AXIS, 3, **(small | settings))


def batch(size: int = 16, count: int = 2) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    tissue = torch.rand(count, size, size, generator=drawn) < 0.5
    return torch.randn(count, size, size, len(AXIS), generator=drawn) * tissue[..., None], tissue


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("length", [10, 425])
def test_parameters_of_the_default_network(length: int) -> None:
    """4,388,576 behind the filters, whose 48 edges come on top; the number of wavenumbers does not matter."""
    whole = SSMUNetwork(np.linspace(900, 1800, length), 8)
    edges = parameters(whole.stack.filters)
    assert edges == 2 * 24
    assert parameters(whole) - edges == 4_388_576
    assert parameters(whole.stack.layers) == 2 * (6_288 + 48)
    assert parameters(whole.stack.pooling) == 24 * 12 + 12 + 12
    assert parameters(whole.head.embed) == 24 * 24 + 24
    assert parameters(whole.head.unet) == 4_374_992


def test_parameters_of_ssmunet_3() -> None:
    """The size that its source calls 0.5 M."""
    model = ssmunet_3().model
    whole = SSMUNetwork(np.linspace(900, 1800, 425), 8, filters=model.filters, embed=model.embed, base=model.base)
    assert parameters(whole) - 2 * 3 == 488_553
    assert whole.stack.filters.bands().mean(1).tolist() == pytest.approx([1655, 1545, 1740], abs=0.1)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (16, 16), (17, 33), (40, 7)])
def test_images_of_any_size(height: int, width: int) -> None:
    """Padding with zeros below and to the right, and nothing else."""
    torch.manual_seed(0)
    unet = UNet(3, 2, 5).eval()
    x = torch.randn(2, 3, height, width)
    padded = torch.zeros(2, 3, -(-height // 16) * 16, -(-width // 16) * 16)
    padded[..., :height, :width] = x
    with torch.no_grad():
        y = unet(x)
        assert y.shape == (2, 5, height, width)
        torch.testing.assert_close(y, unet(padded)[..., :height, :width])


def test_widths_and_levels_of_the_unet() -> None:
    unet = UNet(3, 4, 2).eval()
    sizes: list[tuple[int, ...]] = []
    for block in (*unet.down, *unet.merge):
        block.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
    unet(torch.zeros(1, 3, 32, 32))
    assert sizes == [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4), (64, 2, 2),
                     (32, 4, 4), (16, 8, 8), (8, 16, 16), (4, 32, 32)]  # fmt: skip


@pytest.mark.parametrize("mode", ["band", "legacy"])
def test_every_pixel_sees_its_own_spectrum_and_its_surroundings(mode: str) -> None:
    model = network(mode=mode, base=8).eval()
    spectra, tissue = batch()
    logits = model(spectra, tissue)
    assert logits.shape == (2, 3, 16, 16)
    torch.testing.assert_close(logits, model.classify(model.features(spectra, tissue)))
    changed, place = spectra.clone(), tuple(tissue.nonzero()[5].tolist())
    changed[place] += 1
    difference = (model.features(changed, tissue) - model.features(spectra, tissue)).abs().amax(-1) > 0
    assert difference.nonzero().tolist() == [list(place)]
    assert (model(changed, tissue) != logits).any(1)[place[0]].float().mean() > 0.5


def test_tissue_only_and_all_pixels_agree() -> None:
    spectra, tissue = batch()
    with torch.no_grad():
        only, every = (network(tissue_only=only).eval()(spectra, tissue) for only in (True, False))
    torch.testing.assert_close(only, every, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_every_parameter_has_a_gradient(share: float) -> None:
    model = network(dropout=0.1)
    spectra, _ = batch(32)
    tissue = torch.rand(2, 32, 32) < share
    model(spectra * tissue[..., None], tissue).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_distributed_training_waits_for_no_parameter() -> None:
    """DistributedDataParallel fails in the step after one in which a parameter had no gradient."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = network(chunk=8, dropout=0.1)
        parallel = nn.parallel.DistributedDataParallel(model)
        for share in (0.0, 1.0, 0.3, 0.3):
            spectra, tissue = batch(32)
            tissue = torch.rand(2, 32, 32) < share
            parallel(spectra, tissue).square().mean().backward()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(dtype: torch.dtype) -> None:
    model = network(chunk=64)
    spectra, tissue = batch(32)
    exact = model(spectra, tissue)
    with torch.autocast("cpu", dtype):
        logits = model(spectra, tissue)
    assert logits.dtype == dtype
    assert (logits.float() - exact).abs().mean() < 0.1 * exact.abs().mean()
    logits.float().square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all(), name


def test_settings_build_the_same_network() -> None:
    model = network(mode="legacy", chunk=7, tissue_only=False, layers=1, width=60.0)
    again = SSMUNetwork(**model.settings)
    again.load_state_dict(model.state_dict())
    spectra, tissue = batch()
    torch.testing.assert_close(again.eval()(spectra, tissue), model.eval()(spectra, tissue))
    assert again.settings == model.settings


def test_a_frozen_stack_gives_features_and_learns_nothing() -> None:
    model = network(dropout=0.5)
    spectra, tissue = batch()
    with torch.no_grad():
        expected = model.eval()(spectra, tissue)
        features = model.features(spectra, tissue)
    model.freeze()
    assert model.train().head.training
    assert not any(module.training for module in model.stack.modules())
    cached = features * tissue[..., None]  # what is no tissue is not in the cache, padding neither
    model.head.eval()
    torch.testing.assert_close(model.from_features(cached, tissue), expected)
    model.train().from_features(cached, tissue).sum().backward()
    assert all(parameter.grad is None for parameter in model.stack.parameters())
    assert all(parameter.grad is not None for parameter in model.head.parameters())
