"""Measure other libraries on the same GPU at the same work, beside ours: equal networks, losses of equal values.

A library that cannot be imported is left out, with that as the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.gpucase import Case, waiter

STAGES = {"features_per_stage": (32, 64, 128, 256, 320, 320), "n_blocks_per_stage": (1, 3, 4, 6, 6, 6)}
"""nnU-Net's ResEnc-L."""
TINY = {"features_per_stage": (4, 8), "n_blocks_per_stage": (1, 1)}


def beside(works: Mapping[str, Callable[[], object]], device: str, quick: bool) -> dict[str, float]:
    """Return the median milliseconds of each work, in turns, and how many times as fast as ours the others are."""
    import statistics
    import time

    wait, times = waiter(device), {name: list[float]() for name in works}
    for work in works.values():
        work()
    wait()
    for _ in range(2 if quick else 20):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            wait()
            times[name].append(1e3 * (time.perf_counter() - begun))
    found = {f"{name}, ms": statistics.median(taken) for name, taken in times.items()}
    ours, *others = found.values()
    ratios = (f"{name.removesuffix(', ms')}: time beside ours" for name in list(found)[1:])
    return found | dict(zip(ratios, (other / ours for other in others), strict=True))


def trained(
    network: Any, given: Any, device: str, call: Callable[[Any], Sequence[Any]] | None = None
) -> Callable[[], object]:
    """Return a step in bfloat16: forward and backward pass of the sum of what comes out, and AdamW.

    `call` computes what comes out, if that is not the network itself.
    """
    import torch

    optimizer = torch.optim.AdamW(network.parameters(), 1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            found = (call or network)(given)
        parts = found if isinstance(found, list | tuple) else [found]
        sum(part.float().square().mean() for part in parts).backward()
        optimizer.step()

    return step


def resenc(device: str, quick: bool) -> Mapping[str, float]:
    """Return the times of nnU-Net's ResEnc-L and ours on two patches of 128³, channels last in memory for ours."""
    import torch
    from dynamic_network_architectures.architectures.unet import ResidualEncoderUNet
    from runner_vesuvius.network import ResEncUNet
    from torch import nn

    sizes, side = (TINY, 16) if quick else (STAGES, 128)
    count = len(sizes["features_per_stage"])
    theirs = ResidualEncoderUNet(
        1, count, conv_op=nn.Conv3d, kernel_sizes=3, strides=[1] + [2] * (count - 1), num_classes=2,
        n_conv_per_stage_decoder=1, conv_bias=True, norm_op=nn.InstanceNorm3d,
        norm_op_kwargs={"eps": 1e-5, "affine": True}, nonlin=nn.LeakyReLU, nonlin_kwargs={"inplace": True},
        deep_supervision=True, **sizes,
    ).to(device)  # fmt: skip
    ours = ResEncUNet(sizes["features_per_stage"], sizes["n_blocks_per_stage"], (count - 1,) * 3).to(device)
    ours = ours.to(memory_format=torch.channels_last_3d)
    patches = torch.randn(2, 1, side, side, side).to(device)
    works = {
        "runner": trained(ours, patches.to(memory_format=torch.channels_last_3d), device),
        "nnU-Net": trained(theirs, patches, device),
    }
    return beside(works, device, quick)


def losses(device: str, quick: bool) -> Mapping[str, float]:
    """Return the times of Dice and clDice, forward and backward, beside MONAI's."""
    import torch

    from benchmarks.losses import PATCH, QUICK, batch_of, learned, logits_of
    from benchmarks.losses import ours as own
    from benchmarks.losses import theirs as other

    host = batch_of(QUICK if quick else PATCH, known=True)
    batch = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in host.items()}
    (logits,) = (level.to(device) for level in logits_of(host))
    found: dict[str, float] = {}
    for name in ("dice", "cldice"):
        ways = {f"runner, {name}": own(name, batch), f"MONAI, {name}": other(name, batch)}
        steps = {who: learned(loss, logits) for who, loss in ways.items()}
        found |= beside({who: lambda way=way: way(0) for who, way in steps.items()}, device, quick)
    return found


def vit(device: str, quick: bool) -> Mapping[str, float]:
    """Return the times of DINOv2's own ViT-S/14 and ours on crops of 224²; its attention is slower without xFormers."""
    import torch
    from dinov2.layers.attention import XFORMERS_AVAILABLE
    from dinov2.models.vision_transformer import vit_small
    from runner_dinocell.config import CellConfig
    from runner_dinocell.network import backbone

    config = CellConfig()
    config.model.patch, config.model.size, config.data.window = 14, "small", 224
    crops = torch.randn(2 if quick else 64, 3, 224, 224).to(device)
    theirs = vit_small(patch_size=14, img_size=224, init_values=1e-5, block_chunks=0).to(device)

    def tokens(images: Any) -> list[Any]:
        found = theirs.forward_features(images)
        return [found["x_norm_clstoken"], found["x_norm_patchtokens"]]  # as ours

    works = {
        "runner": trained(backbone(config, 3).to(device), crops, device),
        "dinov2" if XFORMERS_AVAILABLE else "dinov2 without xFormers": trained(theirs, crops, device, tokens),
    }
    return beside(works, device, quick)


def case(project: str, name: str, measure: Callable[[str, bool], Mapping[str, float]]) -> Case:
    return Case(project, name, measure=measure)


VESUVIUS = [case("vesuvius", "ResEnc-L beside nnU-Net", resenc), case("vesuvius", "losses beside MONAI", losses)]
DINOCELL = [case("dinocell", "ViT-S/14 beside dinov2", vit)]
