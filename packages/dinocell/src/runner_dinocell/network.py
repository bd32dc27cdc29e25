"""Student and teacher, and their passes over a batch's crops."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from runner_dinocell.channels import ChannelTransformer, channel_shares
from runner_dinocell.config import CellConfig
from runner_dinocell.distil import Distillation
from runner_dinocell.heads import DINOHead
from runner_dinocell.metadata import MetadataHeads
from runner_dinocell.official import OfficialTransformer
from runner_dinocell.targets import Centring
from runner_dinocell.views import StudentOutputs, TeacherOutputs
from runner_dinocell.vit import CellTransformer, Tokens, timm_arguments

Task = Literal["study", "teach", "embed", "anchor"]


class Branch(nn.Module):
    """A backbone with its projection heads: the student or the teacher."""

    def __init__(self, config: CellConfig, channels: int) -> None:
        super().__init__()
        model = config.model
        self.one_by_one, self.patch = model.one_by_one, model.patch
        self.backbone = backbone(config, 1 if self.one_by_one else channels)
        width = self.backbone.embed_dim

        def head() -> DINOHead:
            return DINOHead(width, model.hidden, model.bottleneck, model.prototypes, config.train.exact)

        self.head = head()
        """Head of CLS tokens, and of patches too if `model.ibot_head` is shared."""
        self.ibot_head = head() if model.ibot_head == "own" else None

    def tokens(self, images: Tensor, mask: Tensor | None = None) -> Tokens:
        """Return the `Tokens` of images (M, C, H, W).

        With model.channels bag and invariant they are means over the channels, which pass one by one; missing channels,
        0 everywhere, do not count.
        """
        return tokens(self.backbone, images, mask, self.one_by_one)

    def logits(self, images: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of CLS tokens (M, D) and of patches (N, D), in one pass if they share their head."""
        if self.ibot_head is not None:
            return self.head(images), self.ibot_head(patches)
        both = self.head(torch.cat((images, patches)))
        return both[: len(images)], both[len(images) :]


class DinoNet(nn.Module):
    """Student and teacher; the teacher begins as a copy, learns nothing by gradients and drops no paths.

    `statistics` has what `metadata.classes` and `distil_width` return, if the settings need them.

    Calling it is the student's pass; `teach` and `embed` are the teacher's. All computation goes through `forward`,
    which compiling and sharding wrap.
    """

    def __init__(self, config: CellConfig, channels: int, statistics: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__()
        self.student = Branch(config, channels)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False).eval()
        width = self.student.backbone.embed_dim
        self.anchor = copy.deepcopy(self.teacher.backbone) if config.gram.weight else None
        """Backbone of an earlier teacher, for Gram anchoring."""
        counts = {name: statistics[f"{name}_classes"] for name in config.metadata.told}
        self.metadata = MetadataHeads(width, config.metadata, counts) if counts else None
        larger = statistics.get("distil_width")
        self.distil = None if larger is None else Distillation(width, larger)
        self.image_centring = Centring(config.loss, config.model.prototypes)
        self.patch_centring = Centring(config.loss, config.model.prototypes)

    def train(self, mode: bool = True) -> DinoNet:
        super().train(mode)
        self.teacher.eval()
        if self.anchor is not None:
            self.anchor.eval()
        return self

    def forward(self, *tensors: Tensor, task: Task = "study") -> Any:
        """Run the student on globals (B, 2, C, G, G), locals (B, L, C, S, S) and mask (B, 2, T) bool: `StudentOutputs`.

        With another `task` it is the teacher's pass.
        """
        if task == "study":
            return self._study(*tensors)
        with torch.no_grad():
            if task == "anchor":
                assert self.anchor is not None
                return tokens(self.anchor, _crop_by_crop(tensors[0]), None, self.student.one_by_one).patches
            return self._teach(*tensors) if task == "teach" else self.teacher.tokens(*tensors).image

    def teach(self, globals_: Tensor, masked_index: Tensor) -> TeacherOutputs:
        """Run the teacher on the same global crops (B, 2, C, G, G); `masked_index` is the student's."""
        return self(globals_, masked_index, task="teach")

    def embed(self, image: Tensor) -> Tensor:
        """Return the teacher's CLS token: (B, C, G, G) → (B, D)."""
        return self(image, task="embed")

    def anchored(self, globals_: Tensor) -> Tensor:
        """Return the patch tokens (2B, T, D) of an earlier teacher for global crops (B, 2, C, G, G)."""
        patches: Tensor = self(globals_, task="anchor")
        return patches

    def distilled(self, student: StudentOutputs, globals_: Tensor) -> Tensor:
        """Return how far the student's tokens are from those of the larger network: 0-d."""
        assert self.distil is not None
        loss: Tensor = self.distil(student.features, student.patches, _crop_by_crop(globals_))
        return loss

    def _study(self, globals_: Tensor, locals_: Tensor, mask: Tensor) -> StudentOutputs:
        mask = _crop_by_crop(mask)
        index = mask.flatten().nonzero().squeeze(1)  # waits for the GPU, so it comes first, before other work is queued
        large = self.student.tokens(_crop_by_crop(globals_), mask)
        small = self.student.tokens(_crop_by_crop(locals_)) if locals_.shape[1] else None
        images = large.image if small is None else torch.cat((large.image, small.image))
        logits, masked = self.student.logits(images, large.patches.flatten(0, 1)[index])
        count = len(large.image)
        return StudentOutputs(logits[:count], logits[count:], masked, index, large.image, large.patches)

    def _teach(self, globals_: Tensor, masked_index: Tensor) -> TeacherOutputs:
        tokens = self.teacher.tokens(_crop_by_crop(globals_))
        logits, masked = self.teacher.logits(tokens.image, tokens.patches.flatten(0, 1)[masked_index])
        return TeacherOutputs(logits, masked, tokens.image)


def tokens(backbone: nn.Module, images: Tensor, mask: Tensor | None, one_by_one: bool) -> Tokens:
    """Return the tokens of images (M, C, H, W); `one_by_one` as means over the channels (`Branch.tokens`)."""
    if not one_by_one:
        found: Tokens = backbone(images, mask)
        return found
    count, channels = images.shape[:2]
    each = backbone(images.flatten(0, 1)[:, None], None if mask is None else mask.repeat_interleave(channels, 0))
    shares = channel_shares(images)
    return Tokens(*(torch.einsum("mc...,mc->m...", t.unflatten(0, (count, channels)), shares.to(t)) for t in each))


def backbone(config: CellConfig, channels: int) -> nn.Module:
    """Return the network that `config.model` describes, for images of `channels` channels.

    It is a `CellTransformer`, with `model.channels` tokens a `ChannelTransformer`, with `model.source` dinov2 an
    `OfficialTransformer`.
    """
    if config.model.source == "dinov2":
        return OfficialTransformer(config, channels)
    drop_path, exact = config.model.drop_path, config.train.exact
    if config.model.channels == "tokens":
        return ChannelTransformer(channels, drop_path, exact, **timm_arguments(config, 1))
    return CellTransformer(drop_path, exact, **timm_arguments(config, channels))


def shard_units(network: DinoNet) -> Sequence[nn.Module]:
    """Return what sharded training gathers one at a time: blocks and heads of student and teachers."""
    branches = (network.student, network.teacher)
    heads = [head for branch in branches for head in (branch.head, branch.ibot_head) if head is not None]
    backbones = [branch.backbone for branch in branches] + ([] if network.anchor is None else [network.anchor])
    return [block for backbone in backbones for block in backbone.blocks] + heads


def _crop_by_crop(crops: Tensor) -> Tensor:
    """(B, K, …) → (K · B, …)."""
    return crops.transpose(0, 1).flatten(0, 1)
