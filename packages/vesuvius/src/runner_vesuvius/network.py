"""The two networks: SurfaceUNet and nnU-Net's residual-encoder U-Net, ResEncUNet.

Both are 3-D residual U-Nets (Çiçek et al. 2016, 10.1007/978-3-319-46723-8_49; residual blocks: He et al. 2016). With
the default settings SurfaceUNet has 33,670,284 parameters: levels of 40, 80, 80, 160 and 160 channels, a bottleneck of
320, and three blocks everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def norm(channels: int) -> nn.Module:
    """Return a group norm with 8 channels per group (Wu & He 2018).

    Unlike batch norm it keeps a batch's samples independent, and unlike instance norm it needs no minimum of voxels.
    """
    return GroupNorm(channels // math.gcd(8, channels), channels)


def halved(x: Tensor, axes: Collection[int] = (2, 3, 4)) -> Tensor:
    """Average pairs of voxels of (B, C, D, H, W) along each axis; the last voxel of an odd side stands alone.

    On a CPU this is `avg_pool3d`, whose order of additions nnU-Net's weights know: another one changes the answers of
    its deepest levels. On a GPU it is not used, because `train.deterministic` refuses its gradient there.
    """
    if x.device.type == "cpu" and axes:
        sides = [2 if axis in axes else 1 for axis in (2, 3, 4)]
        return functional.avg_pool3d(x, sides, sides, ceil_mode=True, count_include_pad=False)
    return halved_by_pairs(x, axes)


def halved_by_pairs(x: Tensor, axes: Iterable[int] = (2, 3, 4)) -> Tensor:
    """Compute `halved` in operations whose gradients repeat on a GPU."""
    for axis in axes:
        pairs = x.shape[axis] // 2
        even = x.narrow(axis, 0, 2 * pairs).unflatten(axis, (pairs, 2))
        means = (even.select(axis + 1, 0) + even.select(axis + 1, 1)) * 0.5
        x = means if 2 * pairs == x.shape[axis] else torch.cat((means, x.narrow(axis, 2 * pairs, 1)), axis)
    return x


def channels_last_on_cpu(x: Tensor, weight: Tensor) -> bool:
    """Return whether `x` (B, C, D, H, W) is channels-last on a CPU and of the weights' type, in eager PyTorch."""
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype
        and x.is_contiguous(memory_format=torch.channels_last_3d)
        and not x.is_contiguous()
        and not torch.compiler.is_compiling()
    )


def on_gpu(x: Tensor) -> bool:
    """Return whether `x` is on an accelerator, in eager PyTorch; a compiler makes one kernel of PyTorch's own norm."""
    return x.device.type not in ("cpu", "meta") and not torch.compiler.is_compiling()


class GroupNorm(nn.GroupNorm):
    """Group norm. (B, C, D, H, W) → the same; on a GPU in the input's type and memory layout."""

    def forward(self, x: Tensor) -> Tensor:
        if not on_gpu(x):
            return super().forward(x)
        found: Tensor = _GroupNorm.apply(x, self.weight, self.bias, self.num_groups, self.eps)
        return found


class _GroupNorm(torch.autograd.Function):
    """Group norm of few groups with many voxels, computed in float32, read and written in the input's type and layout.

    PyTorch has one block of threads for each sample and group, so that two samples of five groups leave most of a GPU
    idle: on an H200 this took 122 of 316 ms of a training step. Autocast makes float32 of the input, which is kept for
    the gradient. Here moments are sums over each channel, which use the whole GPU, and what is kept has the input's
    type. Only some samples at a time are float32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        y, centres, rates = torch.empty_like(x), [], []
        with torch.autocast(x.device.type, enabled=False):
            for own, out in zip(*(part.split(_at_once(x)) for part in (x, y)), strict=True):
                wide = own.to(torch.promote_types(x.dtype, weight.dtype))
                moments = torch.var_mean(wide, _voxels(x), correction=0)
                variances, means = (part.unflatten(1, (groups, -1)) for part in moments)
                centre = means.mean(2, keepdim=True)
                spread = variances.mean(2, keepdim=True) + (means - centre).square().mean(2, keepdim=True)
                rate = (spread + eps).rsqrt()
                scale = rate * weight.view(groups, -1)
                shift = bias.view(groups, -1) - centre * scale
                out.copy_(torch.addcmul(_of_channels(shift, own), wide, _of_channels(scale, own)))
                centres.append(centre)
                rates.append(rate)
        ctx.save_for_backward(x, weight, torch.cat(centres), torch.cat(rates))
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, centres, rates = ctx.saved_tensors
        groups, count = centres.shape[1], x[0].numel() // centres.shape[1]
        found, gain = torch.empty_like(x), weight.view(groups, -1)
        to_weight, to_bias = torch.zeros_like(gain), torch.zeros_like(gain)
        parts = (part.split(_at_once(x)) for part in (x, gradient, found, centres, rates))
        for own, above, out, centre, rate in zip(*parts, strict=True):
            wide, above = own.to(rate.dtype), above.to(rate.dtype)
            shifts = above.sum(_voxels(x)).unflatten(1, (groups, -1))
            scales = (above * wide).sum(_voxels(x)).unflatten(1, (groups, -1))
            scales = (scales - centre * shifts) * rate  # the gradient times the normalised input
            along = -rate.square() * (scales * gain).sum(2, keepdim=True) / count
            constant = -along * centre - rate * (shifts * gain).sum(2, keepdim=True) / count
            factors = (part.expand_as(shifts) for part in (constant, along, rate * gain))
            constant, along, slope = (_of_channels(part, own) for part in factors)
            out.copy_(torch.addcmul(constant, wide, along).addcmul_(above, slope))
            to_weight += scales.sum(0)
            to_bias += shifts.sum(0)
        return found, to_weight.flatten(), to_bias.flatten(), None, None


_WIDE = 1 << 25
"""Numbers of an input that are float32 at once, if there are several samples."""


def _at_once(x: Tensor) -> int:
    """Return the number of samples that are float32 at once."""
    return max(1, _WIDE // max(1, x[0].numel()))


def _voxels(x: Tensor) -> list[int]:
    return list(range(2, x.ndim))


def _of_channels(values: Tensor, x: Tensor) -> Tensor:
    """Return values (B, groups, C / groups) in a shape that broadcasts to `x` (B, C, …)."""
    return values.flatten(1).view(*x.shape[:2], *[1] * (x.ndim - 2))


class Head(nn.Conv3d):
    """The logit of each voxel, of its own channels: a convolution of 1³.

    PyTorch has a matrix product for channels-last volumes on a CPU that is many times as fast as its convolution to
    one channel.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        if channels_last_on_cpu(x, self.weight):
            return functional.linear(x.movedim(1, -1), self.weight.flatten(1), self.bias).movedim(-1, 1)
        return super().forward(x)


class Block(nn.Module):
    """Convolution, norm, activation, convolution, norm; then add the input; activation.

    (B, in, D, H, W) → (B, out, D, H, W). With `halve` the sides are halved (rounded up): the convolution has stride 2,
    and means are added (He et al. 2019, 10.1109/CVPR.2019.00065).
    """

    def __init__(self, inputs: int, outputs: int, halve: bool = False) -> None:
        super().__init__()
        self.halve = halve
        self.first = nn.Conv3d(inputs, outputs, 3, 2 if halve else 1, padding=1, bias=False)
        self.first_norm = norm(outputs)
        self.second = nn.Conv3d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = norm(outputs)
        self.widen = nn.Identity() if inputs == outputs else nn.Conv3d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.leaky_relu(self.first_norm(self.first(x)), inplace=True)
        y = self.second_norm(self.second(y)) + self.widen(halved(x) if self.halve else x)
        return functional.leaky_relu(y, inplace=True)


class Level(nn.Module):
    """Blocks of one width.

    With `recompute` only the input is kept for the gradient; the rest is computed again.
    """

    def __init__(self, blocks: Iterable[nn.Module], recompute: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.recompute = recompute

    def forward(self, *parts: Tensor) -> Tensor:
        """Apply the blocks to `parts`, the input cut along the channels."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(self._compute, *parts, use_reentrant=False, preserve_rng_state=False)
        return self._compute(*parts)

    def _compute(self, *parts: Tensor) -> Tensor:
        return self.blocks(parts[0] if len(parts) == 1 else torch.cat(parts, 1))


class SurfaceUNet(nn.Module):
    """Image (B, `channels`, D, H, W) → logits, finest first.

    The logits are (B, 1, D, H, W), then (B, 1, D/2, H/2, W/2) and so on, one for each level but the deepest; without
    `deep_supervision` only the finest.

    Level l has `base` × `multipliers[l]` channels on half the sides (rounded up) of the level above it. The bottleneck,
    twice as wide, follows the deepest level on the same grid. Sides may have any length as long as the deepest level
    has more than one voxel: with 5 levels, at least 17 along one axis. `checkpointing`: see `Level`.
    """

    def __init__(
        self,
        base: int = 40,
        multipliers: Sequence[int] = (1, 2, 2, 4, 4),
        blocks: int = 3,
        deep_supervision: bool = True,
        checkpointing: bool = False,
        channels: int = 1,
    ) -> None:
        super().__init__()
        widths = [base * multiplier for multiplier in multipliers]
        deepest = 2 * widths[-1]

        def level(inputs: int, outputs: int, halve: bool = False) -> Level:
            others = (Block(outputs, outputs) for _ in range(blocks - 1))
            return Level((Block(inputs, outputs, halve), *others), checkpointing)

        ends = pairwise([channels, *widths])
        self.down = nn.ModuleList(level(a, b, number > 0) for number, (a, b) in enumerate(ends))
        self.bottleneck = level(widths[-1], deepest)
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(below, own, 2, 2, bias=False) for own, below in pairwise([*widths[:-1], deepest])
        )
        self.merge = nn.ModuleList(level(2 * own, own) for own in widths[:-1])
        self.heads = nn.ModuleList(Head(own) for own in (widths[:-1] if deep_supervision else widths[:1]))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        skips, x = [], image
        for level in self.down:
            x = level(x)
            skips.append(x)
        return decoded(self, skips, self.bottleneck(skips.pop()))


def decoded(network: nn.Module, skips: Sequence[Tensor], x: Tensor) -> tuple[Tensor, ...]:
    """Go up from the deepest level's answer `x` with a network's up, merge and heads; return logits, finest first."""
    logits = []
    for number in range(len(skips) - 1, -1, -1):
        depth, height, width = skips[number].shape[2:]
        # where the finer grid has an odd side, the last voxel of the doubled one lies beyond it
        x = network.merge[number](network.up[number](x)[:, :, :depth, :height, :width], skips[number])
        if number < len(network.heads):
            logits.append(network.heads[number](x))
    return tuple(reversed(logits))


SLOPE = 0.01
"""Slope of ResEncUNet's activation below 0."""


class InstanceNorm(nn.InstanceNorm3d):
    """Instance norm, and with `activate` the leaky ReLU of `SLOPE` after it.

    PyTorch's own norm copies channels-last volumes to channels-first, and the next convolution copies them back. This
    one stays channels-last.
    """

    def __init__(self, channels: int, activate: bool) -> None:
        super().__init__(channels, affine=True)
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        if channels_last_on_cpu(x, self.weight):
            found: Tensor = _ChannelsLastNorm.apply(x, self.weight, self.bias, self.eps, self.activate)
            return found
        if on_gpu(x):
            y: Tensor = _GroupNorm.apply(x, self.weight, self.bias, self.num_features, self.eps)
        else:
            y = super().forward(x)
        return functional.leaky_relu(y, SLOPE, inplace=True) if self.activate else y


class _ChannelsLastNorm(torch.autograd.Function):
    """Batch norm of each sample by itself, whose kernels read and write channels-last volumes in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, activate: bool) -> Tensor:
        y, moments = torch.empty_like(x), x.new_empty(2, *x.shape[:2])
        for own, out, mean, scale in zip(x.split(1), y.split(1), *moments, strict=True):
            torch.ops.aten.native_batch_norm.out(
                own, weight, bias, None, None, True, 0.0, eps, out=out, save_mean=mean, save_invstd=scale
            )
        if activate:
            functional.leaky_relu_(y, SLOPE)
        ctx.save_for_backward(x, y if activate else None, weight, moments)
        ctx.eps = eps
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, moments = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last_3d)
        if y is not None:
            gradient = torch.ops.aten.leaky_relu_backward(gradient, y, SLOPE, True)
        found, sums = torch.empty_like(x), x.new_empty(2, *x.shape[:2])
        each = zip(gradient.split(1), x.split(1), *moments, found.split(1), *sums, strict=True)
        for above, own, mean, scale, out, to_weight, to_bias in each:
            torch.ops.aten.native_batch_norm_backward.out(
                above, own, weight, None, None, mean, scale, True, ctx.eps, [True] * 3,
                out0=out, out1=to_weight, out2=to_bias,
            )  # fmt: skip
        return found, *sums.sum(1), None, None


def normed(
    inputs: int, outputs: int, kernel: int, stride: tuple[int, ...] = (1, 1, 1), *, activate: bool, bias: bool = True
) -> nn.Module:
    """Return a convolution and an instance norm, with `activate` also the activation."""
    conv = nn.Conv3d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)
    return nn.Sequential(conv, InstanceNorm(outputs, activate))


class NormedConv(nn.Module):
    """Convolution, instance norm, activation: nnU-Net's plain block."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.normed = normed(inputs, outputs, 3, activate=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.normed(x)
        return found


class ResEncBlock(nn.Module):
    """nnU-Net's residual block (ResNet-D): as `Block`, with instance norms, and one more of them where it widens."""

    def __init__(self, inputs: int, outputs: int, stride: tuple[int, ...] = (1, 1, 1)) -> None:
        super().__init__()
        self.axes = [axis for axis, step in enumerate(stride, 2) if step == 2]
        self.first = normed(inputs, outputs, 3, stride, activate=True)
        self.second = normed(outputs, outputs, 3, activate=False)
        same = inputs == outputs
        self.widen = nn.Identity() if same else normed(inputs, outputs, 1, activate=False, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x)) + self.widen(halved(x, self.axes))
        return functional.leaky_relu(y, SLOPE, inplace=True)


class ResEncUNet(nn.Module):
    """Image (B, `channels`, D, H, W) → logits, finest first, as SurfaceUNet returns them.

    The residual-encoder U-Net of nnU-Net's plans (Isensee et al. 2024, 10.1007/978-3-031-72114-4_47): level l has
    `features[l]` channels and `blocks[l]` residual blocks on the way down, and one convolution on the way up. From the
    second level on, each axis is halved as often as `halvings` says. `checkpointing`: see `Level`.
    """

    def __init__(
        self,
        features: Sequence[int] = (32, 64, 128, 256, 320, 320),
        blocks: Sequence[int] = (1, 3, 4, 6, 6, 6),
        halvings: Sequence[int] = (5, 5, 5),
        deep_supervision: bool = True,
        checkpointing: bool = False,
        channels: int = 1,
    ) -> None:
        super().__init__()
        strides = [tuple(2 if 0 < level <= most else 1 for most in halvings) for level in range(len(features))]

        def level(inputs: int, outputs: int, count: int, stride: tuple[int, ...]) -> Level:
            others = (ResEncBlock(outputs, outputs) for _ in range(count - 1))
            return Level((ResEncBlock(inputs, outputs, stride), *others), checkpointing)

        widths = list(pairwise([features[0], *features]))
        self.stem = Level([NormedConv(channels, features[0])], checkpointing)
        self.down = nn.ModuleList(
            level(*ends, count, stride) for ends, count, stride in zip(widths, blocks, strides, strict=True)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(below, own, stride, stride)
            for (own, below), stride in zip(pairwise(features), strides[1:], strict=True)
        )
        finer = features[:-1]
        self.merge = nn.ModuleList(Level([NormedConv(2 * own, own)], checkpointing) for own in finer)
        self.heads = nn.ModuleList(Head(own) for own in (finer if deep_supervision else finer[:1]))
        self.apply(_initialise)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        skips, x = [], self.stem(image)
        for level in self.down:
            x = level(x)
            skips.append(x)
        return decoded(self, skips[:-1], x)


def _initialise(module: nn.Module) -> None:
    """Set a module's weights as nnU-Net does: He et al. 2015, and residual blocks that begin as their input."""
    if isinstance(module, (nn.Conv3d, nn.ConvTranspose3d)):
        nn.init.kaiming_normal_(module.weight, a=SLOPE)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    if isinstance(module, ResEncBlock):
        nn.init.zeros_(module.second[1].weight)


def widened(network: nn.Module, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights with zeros for the inputs that only `network` has: it answers as if they were not there."""
    found = dict(weights)
    for name, own in network.state_dict().items():
        given = found.get(name)
        if given is None or own.ndim != 5 or tuple(given.shape) == tuple(own.shape):
            continue
        more = own.shape[1] - given.shape[1]
        if more > 0 and (given.shape[0], *given.shape[2:]) == (own.shape[0], *own.shape[2:]):
            given = torch.as_tensor(given)
            found[name] = torch.cat((given, given.new_zeros(given.shape[0], more, *given.shape[2:])), 1)
    return found
