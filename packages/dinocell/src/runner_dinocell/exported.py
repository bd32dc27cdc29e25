"""An exported backbone: `load(folder)` is a timm model, `embed(model, images)` what it makes of images."""

import json
from pathlib import Path

import timm
import torch


def load(folder: str | Path = Path(__file__).parent) -> torch.nn.Module:
    """The trained vision transformer, built as model.json says, with the weights of model.safetensors."""
    settings = json.loads((Path(folder) / "model.json").read_text(encoding="utf-8"))
    return timm.create_model(**settings["timm"], checkpoint_path=str(Path(folder) / "model.safetensors")).eval()


@torch.no_grad()
def embed(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W), scaled as model.json says → (B, D). A model of one channel takes each by itself: their mean."""
    if model.patch_embed.proj.in_channels == images.shape[1]:
        return model(images)
    return model(images.flatten(0, 1)[:, None]).unflatten(0, images.shape[:2]).mean(1)
