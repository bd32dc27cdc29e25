"""The vision transformer of the package dinov2 (facebookresearch/dinov2): the extra runner-dinocell[dinov2]."""

from __future__ import annotations

from importlib import import_module

from runner_core import BadInput
from torch import Tensor, nn

from runner_dinocell.config import CellConfig
from runner_dinocell.vit import OFFSET, Tokens

MODULE = "dinov2.models.vision_transformer"


class OfficialTransformer(nn.Module):
    """`CellTransformer` with dinov2's own modules: the same calls, and its names of weights below `vit`.

    It has the sizes small, base and large. Raises BadInput if the package is not installed.
    """

    def __init__(self, config: CellConfig, channels: int) -> None:
        super().__init__()
        model = config.model
        registers = model.registers > 0
        self.vit = getattr(_module(), f"vit_{model.size}")(
            patch_size=model.patch,
            num_register_tokens=model.registers,
            img_size=config.augment.global_size,
            in_chans=channels,
            init_values=model.layer_scale,
            drop_path_rate=model.drop_path,
            drop_path_uniform=config.train.exact,
            block_chunks=0,
            interpolate_antialias=registers,  # as its released models have it
            interpolate_offset=0.0 if registers else OFFSET,
        )
        self.embed_dim: int = self.vit.embed_dim
        self.num_prefix_tokens = 1 + model.registers

    @property
    def blocks(self) -> nn.ModuleList:
        return self.vit.blocks

    @property
    def last_attention(self) -> nn.Module:
        return self.vit.blocks[-1].attn

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tokens:
        found = self.vit.forward_features(images, mask)
        return Tokens(found["x_norm_clstoken"], found["x_norm_patchtokens"])


def _module() -> object:
    try:
        return import_module(MODULE)
    except ImportError as error:
        raise BadInput(
            f"model.source dinov2 needs the package dinov2 ({error}): `uv pip install -e "
            "'packages/dinocell[dinov2]'` in runner's folder adds it (without CUDA: with --torch-backend cpu), or "
            "leave model.source timm"
        ) from error
