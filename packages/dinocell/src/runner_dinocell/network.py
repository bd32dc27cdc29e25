"""Student and teacher: what they compute of a batch's crops."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from runner_dinocell.config import CellConfig
from runner_dinocell.heads import DINOHead
from runner_dinocell.targets import Centring
from runner_dinocell.views import StudentOutputs, TeacherOutputs
from runner_dinocell.vit import Tokens, backbone

Task = Literal["study", "teach", "embed"]


class Branch(nn.Module):
    """A backbone with its projection heads: the student, or the teacher."""

    def __init__(self, config: CellConfig, channels: int) -> None:
        super().__init__()
        model = config.model
        self.bag, self.patch = model.channels == "bag", model.patch
        self.backbone = backbone(config, 1 if self.bag else channels)
        width = self.backbone.embed_dim

        def head() -> DINOHead:
            return DINOHead(width, model.hidden, model.bottleneck, model.prototypes)

        self.head = head()
        """Of CLS tokens; of patches too where `model.ibot_head` is shared."""
        self.ibot_head = head() if model.ibot_head == "own" else None

    def tokens(self, images: Tensor, mask: Tensor | None = None) -> Tokens:
        """(M, C, H, W) → `Tokens`. Of a bag, means over the channels, each of which went through by itself."""
        if not self.bag:
            return self.backbone(images, mask)
        count, channels = images.shape[:2]
        each = self.backbone(
            images.flatten(0, 1)[:, None], None if mask is None else mask.repeat_interleave(channels, 0)
        )
        return Tokens(*(tokens.unflatten(0, (count, channels)).mean(1) for tokens in each))

    def logits(self, images: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of CLS tokens (M, D) and of patches (N, D); one pass where they share their head."""
        if self.ibot_head is not None:
            return self.head(images), self.ibot_head(patches)
        both = self.head(torch.cat((images, patches)))
        return both[: len(images)], both[len(images) :]


class DinoNet(nn.Module):
    """Student and teacher, which begins as the student's copy, learns nothing by gradients and drops no paths.

    Calling it is the student's pass; `teach` and `embed` are the teacher's. Whatever is computed goes through
    `forward`, where compiling and sharding take hold.
    """

    def __init__(self, config: CellConfig, channels: int) -> None:
        super().__init__()
        self.student = Branch(config, channels)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False).eval()
        self.image_centring = Centring(config.loss, config.model.prototypes)
        self.patch_centring = Centring(config.loss, config.model.prototypes)

    def train(self, mode: bool = True) -> DinoNet:
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, *tensors: Tensor, task: Task = "study") -> Any:
        """globals (B, 2, C, G, G), locals (B, L, C, S, S), mask (B, 2, T) bool → `StudentOutputs`."""
        if task == "study":
            return self._study(*tensors)
        with torch.no_grad():
            return self._teach(*tensors) if task == "teach" else self.teacher.tokens(*tensors).image

    def teach(self, globals_: Tensor, masked_index: Tensor) -> TeacherOutputs:
        """The teacher's pass over the same global crops (B, 2, C, G, G); `masked_index` is the student's."""
        return self(globals_, masked_index, task="teach")

    def embed(self, image: Tensor) -> Tensor:
        """(B, C, G, G) → (B, D): the teacher's CLS token."""
        return self(image, task="embed")

    def _study(self, globals_: Tensor, locals_: Tensor, mask: Tensor) -> StudentOutputs:
        mask = _crop_by_crop(mask)
        index = mask.flatten().nonzero().squeeze(1)  # waits for the GPU: first, while nothing else is under way
        large = self.student.tokens(_crop_by_crop(globals_), mask)
        small = self.student.tokens(_crop_by_crop(locals_)) if locals_.shape[1] else None
        images = large.image if small is None else torch.cat((large.image, small.image))
        logits, masked = self.student.logits(images, large.patches.flatten(0, 1)[index])
        count = len(large.image)
        return StudentOutputs(logits[:count], logits[count:], masked, index, large.image)

    def _teach(self, globals_: Tensor, masked_index: Tensor) -> TeacherOutputs:
        tokens = self.teacher.tokens(_crop_by_crop(globals_))
        logits, masked = self.teacher.logits(tokens.image, tokens.patches.flatten(0, 1)[masked_index])
        return TeacherOutputs(logits, masked, tokens.image)


def shard_units(network: DinoNet) -> Sequence[nn.Module]:
    """What sharded training gathers one at a time: blocks and heads of student and teacher."""
    branches = (network.student, network.teacher)
    heads = [head for branch in branches for head in (branch.head, branch.ibot_head) if head is not None]
    return [block for branch in branches for block in branch.backbone.blocks] + heads


def _crop_by_crop(crops: Tensor) -> Tensor:
    """(B, K, …) → (K · B, …)."""
    return crops.transpose(0, 1).flatten(0, 1)
