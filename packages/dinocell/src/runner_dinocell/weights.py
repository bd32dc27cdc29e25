"""Loading of official DINOv2 weights (github.com/facebookresearch/dinov2) into student and teacher.

`train --from FILE` takes the files of its model zoo, and the teacher checkpoints that its training writes: these have
the backbone below `backbone.`, beside heads that are ignored, and number blocks by chunk ("blocks.0.3." is block 3).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch
from runner_core import BadInput
from timm.layers import resample_patch_embed
from torch import Tensor, nn

from runner_dinocell.network import DinoNet
from runner_dinocell.vit import CellTransformer, interpolated

Weights = dict[str, Tensor]
PROJECTION = "patch_embed.proj.weight"
_SQUARES = {side**2 for side in range(1, 1000)}
"""Patches of a grid that can be interpolated."""


def adapt(network: DinoNet, stored: Mapping[str, object]) -> Weights | None:
    """Return official weights for student and teacher, fitted to the network (see `fitted`).

    Returns None for a file that holds no DINOv2 backbone. Raises BadInput for weights of another network, naming them.
    """
    backbone = network.student.backbone
    if (found := official(stored)) is None:
        return None
    weights = fitted(found, backbone)
    names = getattr(backbone, "channel_embed", None)
    if isinstance(backbone, CellTransformer):
        own = as_timm(weights) | {"mask_token": weights["mask_token"]}
        if backbone.cls_pos is not None:
            own |= {"cls_token": weights["cls_token"], "cls_pos": weights["pos_embed"][:, :1]}
        own |= {} if names is None else {"channel_embed": names}  # official networks know no channels
    else:
        own = {f"vit.{name}": tensor for name, tensor in weights.items()}
    branches = ("student", "teacher")
    return {f"{branch}.backbone.{name}": tensor for branch in branches for name, tensor in own.items()}


def official(stored: Mapping[str, object]) -> Weights | None:
    """Return the backbone's weights under the model zoo's names; None if there are none."""
    tensors = {name: tensor for name, tensor in stored.items() if torch.is_tensor(tensor)}
    inside = {name.removeprefix("backbone."): t for name, t in tensors.items() if name.startswith("backbone.")}
    weights = {re.sub(r"^blocks\.\d+\.(?=\d)", "blocks.", name): t for name, t in (inside or tensors).items()}
    if not {"cls_token", "pos_embed", PROJECTION} <= weights.keys():
        return None
    return weights


def fitted(weights: Weights, backbone: nn.Module) -> Weights:
    """Return official weights in the shapes of `backbone`, under official names; float32.

    Three input channels → N: each gets the mean over red, green and blue, times 3 / N, so that a grey image gives the
    same result. Patches of another size are resampled (Beyer 2023, FlexiViT). Position embeddings are interpolated to
    the grid of the global crops. If anything else differs, BadInput names the weights.
    """
    wanted = _shapes(backbone)
    weights = {name: tensor.float() for name, tensor in weights.items()}
    kernel, grid = weights[PROJECTION], weights["pos_embed"]
    if kernel.ndim == 4:
        weights[PROJECTION] = _projection(kernel, *wanted[PROJECTION][1:3])
    if grid.ndim == 3 and grid.shape[1] - 1 in _SQUARES:
        side = math.isqrt(wanted["pos_embed"][1] - 1)
        patches = interpolated(grid[:, 1:], side, side, registers="register_tokens" in weights)
        weights["pos_embed"] = torch.cat((grid[:, :1], patches), 1)
    differ = [
        f"{name} {tuple(weights[name].shape)}, which here is {shape}"
        for name, shape in wanted.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    faults = {
        "it lacks": sorted(wanted.keys() - weights.keys()),
        "this network has no": sorted(weights.keys() - wanted.keys()),
        "of another shape:": differ,
    }
    if any(faults.values()):
        listed = "; ".join(f"{what} {_some(names)}" for what, names in faults.items() if names)
        raise BadInput(f"it is of another network than model.size, registers and layer_scale say: {listed}")
    return weights


def as_timm(weights: Weights) -> Weights:
    """Rename official weights to timm's names.

    They fit models with `no_embed_class` (position embeddings of patches only) and no mask token.
    """
    position = weights["pos_embed"]
    own = {"cls_token": weights["cls_token"] + position[:, :1], "pos_embed": position[:, 1:]}
    if "register_tokens" in weights:
        own["reg_token"] = weights["register_tokens"]
    return own | {
        name: tensor for name, tensor in weights.items() if name not in own.keys() | {"mask_token", "register_tokens"}
    }


def _shapes(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of official weights of such a backbone."""
    if not isinstance(backbone, CellTransformer):
        return {name: tuple(tensor.shape) for name, tensor in backbone.vit.state_dict().items()}
    ours = ("channel_embed", "cls_pos")
    shapes = {name: tuple(tensor.shape) for name, tensor in backbone.state_dict().items() if name not in ours}
    if "reg_token" in shapes:
        shapes["register_tokens"] = shapes.pop("reg_token")
    one, patches, width = shapes["pos_embed"]
    return shapes | {"pos_embed": (one, 1 + patches, width)}


def _projection(kernel: Tensor, channels: int, patch: int) -> Tensor:
    """(D, 3, p, p) → (D, `channels`, `patch`, `patch`)."""
    if kernel.shape[1] != channels:
        kernel = kernel.mean(1, keepdim=True).expand(-1, channels, -1, -1) * (kernel.shape[1] / channels)
    return resample_patch_embed(kernel, [patch, patch])


def _some(names: Sequence[str]) -> str:
    few = names[:4]
    more = f" and {len(names) - len(few)} more" if len(names) > len(few) else ""
    return ", ".join(few) + more if few else "nothing"
