"""An exported backbone: `load(folder)` returns a timm model, `embed(model, images)` its embeddings of images."""

import json
from pathlib import Path

import timm
import torch


def load(folder: str | Path = Path(__file__).parent) -> torch.nn.Module:
    """Load the trained vision transformer, built from model.json, with the weights of model.safetensors."""
    settings = json.loads((Path(folder) / "model.json").read_text(encoding="utf-8"))
    return timm.create_model(**settings["timm"], checkpoint_path=str(Path(folder) / "model.safetensors")).eval()


@torch.no_grad()
def embed(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Embed images (B, C, H, W), made as model.json says: (B, D).

    A model of one channel takes each channel by itself. The result is the mean over channels that are not 0 everywhere,
    as missing ones are.
    """
    if model.patch_embed.proj.in_channels == images.shape[1]:
        return model(images)
    there = images.flatten(2).any(2, keepdim=True).float()
    each = model(images.flatten(0, 1)[:, None]).unflatten(0, images.shape[:2])
    return (each * there).sum(1) / there.sum(1).clamp(min=1)
