"""model.source dinov2: its package's modules, through a stand-in with that package's signatures, names and shapes.

The package itself comes from its repository; the stand-in is written from the paper and the interface.
"""

from __future__ import annotations

import json
import math
import sys
from types import ModuleType
from typing import Any

import pytest
import timm
import torch
from runner_core import BadInput
from runner_dinocell import weights
from runner_dinocell.attention import attention_maps
from runner_dinocell.config import CellConfig
from runner_dinocell.export import export
from runner_dinocell.network import DinoNet, backbone, shard_units
from runner_dinocell.vit import SIZES
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, attn_bias: Any = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Scale(nn.Module):
    def __init__(self, dim: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), initial))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, initial: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(dim, eps=1e-6) for _ in range(2))
        self.attn, self.mlp = Attention(dim, heads), nn.Module()
        self.mlp.fc1, self.mlp.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.ls1, self.ls2 = Scale(dim, initial), Scale(dim, initial)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp.fc2(functional.gelu(self.mlp.fc1(self.norm2(x)))))


class DinoVisionTransformer(nn.Module):
    def __init__(
        self, img_size: int = 224, patch_size: int = 16, in_chans: int = 3, embed_dim: int = 768, depth: int = 12,
        num_heads: int = 12, mlp_ratio: float = 4.0, qkv_bias: bool = True, ffn_bias: bool = True,
        proj_bias: bool = True, drop_path_rate: float = 0.0, drop_path_uniform: bool = False,
        init_values: float | None = None, ffn_layer: str = "mlp", block_chunks: int = 1, num_register_tokens: int = 0,
        interpolate_antialias: bool = False, interpolate_offset: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        assert init_values is not None
        assert block_chunks == 0  # else blocks are chunks, and the last block's attention elsewhere
        self.given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.embed_dim, self.patch_size, self.num_register_tokens = embed_dim, patch_size, num_register_tokens
        self.how = (interpolate_antialias, interpolate_offset)
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.randn(1, (img_size // patch_size) ** 2 + 1, embed_dim) * 0.02)
        self.register_tokens = (
            nn.Parameter(torch.zeros(1, num_register_tokens, embed_dim)) if num_register_tokens else None
        )
        self.blocks = nn.ModuleList(Block(embed_dim, num_heads, init_values) for _ in range(depth))
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.mask_token = nn.Parameter(torch.zeros(1, embed_dim))

    def forward_features(self, x: Tensor, masks: Tensor | None = None) -> dict[str, Any]:
        grid = x.shape[2] // self.patch_size, x.shape[3] // self.patch_size
        x = self.patch_embed.proj(x).flatten(2).mT
        if masks is not None:
            x = torch.where(masks[..., None], self.mask_token, x)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.positions(*grid)
        if self.register_tokens is not None:
            x = torch.cat((x[:, :1], self.register_tokens.expand(len(x), -1, -1), x[:, 1:]), 1)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        first = 1 + self.num_register_tokens
        return {"x_norm_clstoken": x[:, 0], "x_norm_regtokens": x[:, 1:first], "x_norm_patchtokens": x[:, first:],
                "x_prenorm": None, "masks": masks}  # fmt: skip

    def positions(self, rows: int, columns: int) -> Tensor:
        side = math.isqrt(self.pos_embed.shape[1] - 1)
        if rows == columns == side:
            return self.pos_embed
        antialias, offset = self.how
        size = (
            {"scale_factor": ((rows + offset) / side, (columns + offset) / side)}
            if offset
            else {"size": (rows, columns)}
        )
        picture = self.pos_embed[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
        patches = functional.interpolate(picture, mode="bicubic", antialias=antialias, **size)
        return torch.cat((self.pos_embed[:, :1], patches.flatten(2).mT), 1)


LESS = (96, 2, 3)
"""Width, blocks and heads of the size small here: 384, 12 and 6 take their time."""


def vit_small(patch_size: int = 16, num_register_tokens: int = 0, **kwargs: Any) -> DinoVisionTransformer:
    width, depth, heads = LESS
    return DinoVisionTransformer(
        patch_size=patch_size, embed_dim=width, depth=depth, num_heads=heads, mlp_ratio=4,
        num_register_tokens=num_register_tokens, **kwargs,
    )  # fmt: skip


@pytest.fixture
def installed(monkeypatch) -> None:
    monkeypatch.setitem(SIZES, "small", LESS)
    modules = {name: ModuleType(name) for name in ("dinov2", "dinov2.models", "dinov2.models.vision_transformer")}
    modules["dinov2.models.vision_transformer"].vit_small = vit_small
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def config(source: str = "dinov2", registers: int = 0, **model: Any) -> CellConfig:
    made = CellConfig()
    made.model.source, made.model.registers = source, registers  # type: ignore[assignment]
    made.model.prototypes, made.model.hidden, made.model.bottleneck = 32, 16, 8
    made.augment.global_size, made.augment.local_size = 48, 24
    for name, value in model.items():
        setattr(made.model, name, value)
    return made


def test_without_the_package(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "dinov2", None)
    with pytest.raises(BadInput, match=r"needs the package dinov2 .*/dinocell\[dinov2\].* or leave model.source"):
        backbone(config(), 3)


@pytest.mark.parametrize(("registers", "how"), [(0, (False, 0.1)), (4, (True, 0.0))])
def test_how_it_is_built(installed, registers, how) -> None:
    given = backbone(config(registers=registers, drop_path=0.1), 5).vit.given
    assert (given["interpolate_antialias"], given["interpolate_offset"]) == how
    wanted = {"img_size": 48, "patch_size": 8, "in_chans": 5, "init_values": 1e-5, "drop_path_rate": 0.1,
              "block_chunks": 0, "num_register_tokens": registers}  # fmt: skip
    assert {name: given[name] for name in wanted} == wanted


@pytest.mark.parametrize("registers", [0, 4])
def test_it_is_the_same_network_as_timms(installed, registers, tmp_path) -> None:
    """From one file of official weights (patches of 14, another grid, three channels) both sources give the same
    tokens, maps and exports."""
    torch.manual_seed(0)
    released = vit_small(14, registers, img_size=70, init_values=1.0, block_chunks=0)
    for name, parameter in released.named_parameters():
        if "token" in name or name == "pos_embed" or "gamma" in name:
            nn.init.normal_(parameter, std=0.5)
    theirs, ours = (DinoNet(config(source, registers), 5).eval() for source in ("dinov2", "timm"))
    for network in (theirs, ours):
        network.load_state_dict({**network.state_dict(), **(weights.adapt(network, released.state_dict()) or {})})
    globals_, locals_, mask = torch.randn(2, 2, 5, 48, 48), torch.randn(2, 2, 5, 24, 24), torch.rand(2, 2, 36) < 0.3
    with torch.no_grad():
        for branch in ("student", "teacher"):
            for images, hidden in ((globals_[:, 0], mask[:, 0]), (locals_[:, 0], None)):
                pair = [getattr(network, branch).tokens(images, hidden) for network in (theirs, ours)]
                for one, other in zip(*pair, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    image = globals_[:, 0]
    torch.testing.assert_close(attention_maps(theirs, image), attention_maps(ours, image), rtol=1e-3, atol=1e-5)
    assert len(shard_units(theirs)) == len(shard_units(ours)) == 2 * 2 + 2
    export(theirs, tmp_path / "out", config(registers=registers), list("abcde"))
    exported = timm.create_model(**json.loads((tmp_path / "out" / "model.json").read_text(encoding="utf-8"))["timm"])
    exported.eval().load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    with torch.no_grad():
        torch.testing.assert_close(exported(image), theirs.embed(image), rtol=1e-3, atol=1e-4)


def test_a_step_reaches_every_weight(installed) -> None:
    network = DinoNet(config(), 3)
    mask = torch.rand(1, 2, 36) < 0.3
    student = network(torch.randn(1, 2, 3, 48, 48), torch.randn(1, 1, 3, 24, 24), mask)
    (student.global_logits.sum() + student.local_logits.sum() + student.masked_logits.sum()).backward()
    assert all(p.grad is not None for p in network.student.parameters())
    assert network.teach(torch.randn(1, 2, 3, 48, 48), student.masked_index).features.shape == (2, 96)
