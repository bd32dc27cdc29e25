"""Distillation: the student also predicts the tokens of a larger network of one's own, which stays as it is.

The loss is 1 - cosine between tokens, after a linear layer of the student's, for CLS and patches each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from runner_core import BadInput, hash_file
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from runner_dinocell.channels import channel_shares


def described(folder: str, patch: int, channels: int) -> Mapping[str, Any]:
    """Return timm's arguments of an exported network; raise BadInput if it does not fit patches and channels."""
    place = Path(folder) / "model.json"
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
        settings: dict[str, Any] = found["timm"]
        theirs, size, inputs = found["project"], settings["patch_size"], settings["in_chans"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"distil.network {folder}: {place.name} cannot be read ({error}). Name a folder that `runner dinocell "
            "export RUN --out FOLDER` wrote"
        ) from error
    if theirs != "dinocell":
        raise BadInput(f"distil.network {folder}: a network of {theirs}, not of dinocell")
    if size != patch:
        raise BadInput(f"distil.network {folder}: patches of {size} pixels, and model.patch is {patch}: take {size}")
    if inputs not in (1, channels):
        raise BadInput(f"distil.network {folder}: it reads {inputs} channels, and this network {channels}")
    return settings


class Distillation(nn.Module):
    """Compares the student's tokens with those of the network in `folder`, which is no part of checkpoints.

    Only `open` reads the folder, so that a trained network works without it.
    """

    digest: Tensor

    def __init__(self, width: int, larger: int) -> None:
        super().__init__()
        self.image, self.patches = nn.Linear(width, larger), nn.Linear(width, larger)
        self.register_buffer("digest", torch.zeros(16, dtype=torch.int64))
        self._larger: list[nn.Module] = []  # in a list, so that it is no submodule
        self._opened: list[int] = []
        self._folder, self._compared = "", False

    @property
    def ready(self) -> bool:
        """True if the larger network is there: only a training opens it."""
        return bool(self._larger)

    def open(self, folder: str, settings: Mapping[str, Any]) -> None:
        """Load the larger network; raise BadInput for weights that do not fit it."""
        file = Path(folder) / "model.safetensors"
        try:
            self._opened = list(bytes.fromhex(hash_file(file)))
            network = timm.create_model(**{**settings, "dynamic_img_size": True})
            network.load_state_dict(load_file(file))
        except Exception as error:
            raise BadInput(f"distil.network {file}: it cannot be loaded: {error}. Export the run again") from error
        self._folder, self._larger = folder, [network.requires_grad_(False).eval()]
        self.digest.copy_(torch.tensor(self._opened))

    def forward(self, image: Tensor, patches: Tensor, crops: Tensor) -> Tensor:
        """Return the loss of CLS (M, D) and patch tokens (M, T, D) for crops (M, C, H, W): 0-d."""
        with torch.no_grad():
            first, rest = self._tokens(crops)
        return _apart(self.image(image), first) + _apart(self.patches(patches), rest)

    def _tokens(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        if not self._compared and self.digest.tolist() != self._opened:  # a checkpoint was loaded, with another one
            raise BadInput(
                f"distil.network {self._folder}: its weights are not those that this run began with. Put them back, or "
                "start a new run"
            )
        self._compared = True
        network = self._larger[0].to(crops.device)
        inputs, channels = network.patch_embed.proj.in_channels, crops.shape[1]
        each = crops if inputs == channels else crops.flatten(0, 1)[:, None]
        tokens = network.forward_features(each)
        if inputs != channels:
            shares = channel_shares(crops).to(tokens)
            tokens = torch.einsum("mctd,mc->mtd", tokens.unflatten(0, crops.shape[:2]), shares)
        return tokens[:, 0], tokens[:, network.num_prefix_tokens :]


def _apart(predicted: Tensor, wanted: Tensor) -> Tensor:
    return (1 - functional.cosine_similarity(predicted.float(), wanted.float(), dim=-1)).mean()
