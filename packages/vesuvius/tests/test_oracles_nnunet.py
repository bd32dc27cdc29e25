"""Our residual-encoder U-Net with weights of nnU-Net answers as nnU-Net's own network does, at every level."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from runner_vesuvius import nifti, nnunet_model, volumes
from runner_vesuvius.network import ResEncUNet
from torch import nn

PLANS = json.loads(Path(__file__).with_name("nnunet_model.json").read_text(encoding="utf-8"))["plans"]
BUILT = PLANS["configurations"]["3d_fullres"]["architecture"]["arch_kwargs"]
LARGE = {
    "n_stages": 6, "features_per_stage": [32, 64, 128, 256, 320, 320], "kernel_sizes": [[3, 3, 3]] * 6,
    "strides": [[1, 1, 1], *[[2, 2, 2]] * 5], "n_blocks_per_stage": [1, 3, 4, 6, 6, 6],
    "n_conv_per_stage_decoder": [1] * 5,
}  # fmt: skip


def theirs(plan: dict[str, object]) -> nn.Module:
    unet = pytest.importorskip("dynamic_network_architectures.architectures.unet").ResidualEncoderUNet
    kinds = {"conv_op": nn.Conv3d, "norm_op": nn.InstanceNorm3d, "nonlin": nn.LeakyReLU}
    return unet(1, num_classes=2, deep_supervision=True, **{**BUILT, **plan, **kinds})


def loaded(network: nn.Module, plan: dict[str, object]) -> ResEncUNet:
    features, blocks, strides = (
        {**BUILT, **plan}[name] for name in ("features_per_stage", "n_blocks_per_stage", "strides")
    )
    halvings = tuple(sum(level[axis] == 2 for level in strides) for axis in range(3))
    own = ResEncUNet(features, blocks, halvings)
    settings = {"model.resenc.features": features, "model.resenc.blocks": blocks}
    trained = nnunet_model.Trained(Path("checkpoint_final.pth"), network.state_dict(), settings, 2, [1.0])
    own.load_state_dict(nnunet_model.translated(trained), assign=True)
    return own


@pytest.mark.parametrize("plan", [{}, {"strides": [[1, 1, 1], [2, 2, 2], [1, 2, 2]]}, LARGE], ids=["a", "b", "L"])
def test_forward_and_backward(plan: dict[str, object]) -> None:
    torch.manual_seed(0)
    network = theirs(plan)
    for module in network.modules():
        if isinstance(module, nn.InstanceNorm3d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    large = plan is LARGE  # float32 may be wrong by 0.1 at its deepest level, but both networks are wrong alike
    own = loaded(network, plan)
    image = torch.randn(1, 1, *([64, 32, 32] if large else [16, 24, 32]), requires_grad=True)
    outputs = [[level[:, 1:] - level[:, :1] for level in network(image)], own(image)]
    for expected, found in zip(*outputs, strict=True):
        assert (found - expected).abs().max() <= 1e-5
    if not large:
        grads = [torch.autograd.grad(sum(x.square().mean() for x in levels), image)[0] for levels in outputs]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def test_initial_weights_are_drawn_alike() -> None:
    """Equal deviations of every weight, and residual blocks that begin as their input."""
    network = theirs({})
    network.apply(pytest.importorskip("dynamic_network_architectures.initialization.weight_init").InitWeights_He(1e-2))
    init = pytest.importorskip("dynamic_network_architectures.architectures.unet").ResidualEncoderUNet.initialize
    network.apply(init)
    own, expected = ResEncUNet((4, 6, 8), (1, 2, 1), (2, 2, 1)).state_dict(), loaded(network, {}).state_dict()
    for name, tensor in own.items():
        assert tensor.shape == expected[name].shape
        if tensor.numel() > 300 and not name.startswith("heads"):
            assert float(tensor.std()) == pytest.approx(float(expected[name].std()), rel=0.2), name
        if tensor.ndim == 1 and not name.startswith("heads"):
            assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("shape", [(5, 16, 19), (7, 3, 4)])
@pytest.mark.parametrize("turned", [False, True])
def test_nifti_volumes_are_those_of_simpleitk_and_nibabel(tmp_path: Path, shape: tuple[int, ...], turned: bool) -> None:
    """nnU-Net's SimpleITKIO takes GetArrayFromImage, its NibabelIO the transposed array: both as the file stores it."""
    itk = pytest.importorskip("SimpleITK")
    volume = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    path = tmp_path / "v.nii.gz"
    nifti.write(path, volume)
    image = itk.ReadImage(str(path))
    assert (image.GetSpacing(), image.GetDirection()) == ((1, 1, 1), (1, 0, 0, 0, 1, 0, 0, 0, 1))
    if turned:  # axes that point elsewhere, and other sizes of voxels, leave the array as it is
        image.SetDirection((0, -1, 0, 1, 0, 0, 0, 0, -1))
        image.SetSpacing((0.5, 2.0, 3.0))
        itk.WriteImage(image, str(path))
    assert np.array_equal(itk.GetArrayFromImage(itk.ReadImage(str(path))), volume)
    assert np.array_equal(nibabel.load(path).get_fdata().transpose(2, 1, 0), volume)
    assert np.array_equal(volumes.read_image(path), volume)
