"""Official DINOv2 weights: names and shapes, outputs against the definition in float64, and what does not fit."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
from runner_core import BadInput
from runner_dinocell import weights
from runner_dinocell.config import CellConfig
from runner_dinocell.network import DinoNet, backbone
from runner_dinocell.vit import SIZES
from torch import Tensor, nn
from torch.nn import functional

State = dict[str, Tensor]


def official(size: str = "mini", registers: int = 0, side: int = 37, device: str = "cpu") -> State:
    """A state dict of dinov2_vit{s,b,l}14, by its names and shapes (mini is ours); random values."""
    width, depth, _ = SIZES[size]
    made = torch.Generator().manual_seed(registers)

    def normal(*shape: int, std: float = 0.05, mean: float = 0.0) -> Tensor:
        if device == "meta":
            return torch.empty(shape, device=device)
        return torch.randn(shape, generator=made) * std + mean

    state = {"cls_token": normal(1, 1, width), "pos_embed": normal(1, 1 + side**2, width, std=0.5)}
    if registers:
        state["register_tokens"] = normal(1, registers, width, std=1)
    state |= {
        "mask_token": normal(1, width, std=1),
        "patch_embed.proj.weight": normal(width, 3, 14, 14),
        "patch_embed.proj.bias": normal(width),
    }
    for block in range(depth):
        name = f"blocks.{block}."
        for norm in ("norm1", "norm2"):
            state[f"{name}{norm}.weight"] = normal(width, mean=1.0)
            state[f"{name}{norm}.bias"] = normal(width)
        for layer, (outputs, inputs) in {
            "attn.qkv": (3 * width, width), "attn.proj": (width, width),
            "mlp.fc1": (4 * width, width), "mlp.fc2": (width, 4 * width),
        }.items():  # fmt: skip
            state[f"{name}{layer}.weight"] = normal(outputs, inputs)
            state[f"{name}{layer}.bias"] = normal(outputs)
        state[f"{name}ls1.gamma"] = normal(width, std=0.3)
        state[f"{name}ls2.gamma"] = normal(width, std=0.3)
    return state | {"norm.weight": normal(width, mean=1.0), "norm.bias": normal(width)}


def defined(state: State, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """DINOv2's vision transformer, from its definition, in float64: CLS tokens (M, D), patches (M, T, D)."""
    w = {name: tensor.double() for name, tensor in state.items()}
    kernel = w["patch_embed.proj.weight"]
    patch, width = kernel.shape[-1], kernel.shape[0]
    heads = {96: 3, 384: 6}[width]
    count, _, high, wide = images.shape
    rows, columns = high // patch, wide // patch
    cut = images.double().unfold(2, patch, patch).unfold(3, patch, patch)  # M, C, rows, columns, p, p
    x = torch.einsum("mcyxij,dcij->myxd", cut, kernel).flatten(1, 2) + w["patch_embed.proj.bias"]
    if mask is not None:
        x = torch.where(mask[..., None], w["mask_token"], x)
    grid = w["pos_embed"][:, 1:]
    side = round(grid.shape[1] ** 0.5)
    if (rows, columns) != (side, side):
        picture = grid.unflatten(1, (side, side)).permute(0, 3, 1, 2)
        if "register_tokens" in w:  # its models with registers: interpolate_antialias, interpolate_offset 0
            how: dict[str, Any] = {"size": (rows, columns), "antialias": True}
        else:
            how = {"scale_factor": ((rows + 0.1) / side, (columns + 0.1) / side)}
        grid = functional.interpolate(picture, mode="bicubic", **how).permute(0, 2, 3, 1).flatten(1, 2)
    cls = (w["cls_token"] + w["pos_embed"][:, :1]).expand(count, -1, -1)
    extra = [w["register_tokens"].expand(count, -1, -1)] if "register_tokens" in w else []
    x = torch.cat([cls, *extra, x + grid], 1)

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    for block in range(1 + max(int(found[1]) for name in w if (found := re.match(r"blocks\.(\d+)", name)))):
        at = f"blocks.{block}."
        qkv = linear(norm(x, f"{at}norm1"), f"{at}attn.qkv").unflatten(-1, (3, heads, width // heads))
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        attended = ((q @ k.mT) / (width // heads) ** 0.5).softmax(-1) @ v
        x = x + w[f"{at}ls1.gamma"] * linear(attended.transpose(1, 2).flatten(2), f"{at}attn.proj")
        hidden = linear(norm(x, f"{at}norm2"), f"{at}mlp.fc1")
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
        x = x + w[f"{at}ls2.gamma"] * linear(hidden, f"{at}mlp.fc2")
    x = norm(x, "norm")
    return x[:, 0], x[:, 1 + len(extra) * w.get("register_tokens", x).shape[1] :]


def begin_from(network: DinoNet, state: State) -> None:
    """What `train --from` does with a file of these weights; all of the backbones' weights are set."""
    adapted = weights.adapt(network, state)
    assert adapted is not None
    own = {name for name in network.state_dict() if ".backbone." in name}
    assert own == adapted.keys()
    network.load_state_dict({**network.state_dict(), **adapted})


def config(size: str = "mini", patch: int = 14, registers: int = 0, images: int = 518) -> CellConfig:
    made = CellConfig()
    made.model.size, made.model.patch, made.model.registers = size, patch, registers  # type: ignore[assignment]
    made.model.prototypes, made.model.hidden, made.model.bottleneck = 32, 16, 8
    made.augment.global_size, made.augment.local_size = images, 7 * patch
    return made


@pytest.mark.parametrize(("size", "registers"), [("mini", 0), ("mini", 4), ("small", 4)])
def test_outputs_are_those_of_dinov2(size, registers) -> None:
    """They are equal with the whole grid of 37 x 37, at other sides, masked, and not square."""
    state = official(size, registers)
    net = DinoNet(config(size, registers=registers), 3)
    begin_from(net, state)
    for branch, shape, masked in ((net.student, (56, 98), 0.3), (net.teacher, (70, 70), 0.0)):
        images = torch.randn(1, 3, *shape, generator=torch.Generator().manual_seed(1))
        mask = torch.rand(1, shape[0] // 14 * shape[1] // 14) < masked
        with torch.no_grad():
            found = branch.backbone.eval().double()(images.double(), mask)
        image, patches = defined(state, images, mask)
        torch.testing.assert_close(found.image, image, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.patches, patches, rtol=1e-5, atol=1e-5)


def test_in_float32_at_the_size_of_the_files() -> None:
    """518 x 518: the grid as it is stored."""
    state = official()
    network = begun(state, config(), 3)
    images = torch.randn(1, 3, 518, 518, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(network(images).image.double(), defined(state, images)[0], rtol=1e-4, atol=1e-4)


def begun(state: State, made: CellConfig, channels: int) -> nn.Module:
    network = backbone(made, channels).eval()
    fitted = weights.fitted(state, network)
    network.load_state_dict(weights.as_timm(fitted) | {"mask_token": fitted["mask_token"]})
    return network


@pytest.mark.parametrize("registers", [0, 4])
def test_the_grid_is_interpolated_once_to_that_of_the_global_crops(registers) -> None:
    """At their size, the official network's own interpolation and ours at the beginning are the same."""
    state, made = official(registers=registers), config(registers=registers, images=112)
    network = begun(state, made, 3)
    assert network.pos_embed.shape == (1, 64, 96)
    images = torch.randn(2, 3, 112, 112, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = network.double()(images.double())
    torch.testing.assert_close(found.image, defined(state, images)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("size", ["small", "base", "large"])
def test_every_weight_of_the_model_zoo_has_its_place(size, registers, monkeypatch) -> None:
    """dinov2_vits14, vitb14, vitl14 and their _reg4, by names and shapes alone."""
    monkeypatch.setattr(torch, "linspace", partial(torch.linspace, device="cpu"))  # numbers that older timm reads
    state = official(size, registers, device="meta")
    assert len(state) == 14 * SIZES[size][1] + (8 if registers else 7)
    assert state["pos_embed"].shape == (1, 1370, SIZES[size][0])
    with torch.device("meta"):
        network = backbone(config(size, registers=registers), 3)
        found = weights.official(state)
        assert found is not None
        ours = weights.as_timm(weights.fitted(found, network))
    assert {name: t.shape for name, t in (ours | {"mask_token": state["mask_token"]}).items()} == {
        name: t.shape for name, t in network.state_dict().items()
    }


def chunked(state: State) -> State:
    """A teacher checkpoint of its training: below backbone., blocks in chunks of three, beside heads."""

    def name(of: str) -> str:
        return "backbone." + re.sub(r"^blocks\.(\d+)\.", lambda found: f"blocks.{int(found[1]) // 3}.{found[1]}.", of)

    heads = {"dino_head.mlp.0.weight": torch.zeros(2, 2), "dino_head.last_layer.weight_g": torch.ones(2, 1)}
    return {name(of): tensor for of, tensor in state.items()} | heads


def test_files_in_every_form_give_the_same() -> None:
    state = official(side=4)
    assert "backbone.blocks.1.3.ls2.gamma" in chunked(state)
    for stored in (state, chunked(state)):
        found = weights.official(stored)
        assert found is not None
        assert found.keys() == state.keys()
        assert all(torch.equal(tensor, state[key]) for key, tensor in found.items())


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_a_grey_image_gives_what_it_gave(channels) -> None:
    state = official(side=4)
    grey = torch.randn(2, 1, 56, 56, generator=torch.Generator().manual_seed(1))
    network = begun(state, config(images=56), channels)
    with torch.no_grad():
        found = network(grey.expand(-1, channels, -1, -1)).image
    torch.testing.assert_close(found.double(), defined(state, grey.expand(-1, 3, -1, -1))[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("patch", [8, 16])
def test_patches_of_another_size_see_the_same(patch) -> None:
    """Smooth images, enlarged with the patches, give nearly the tokens that they gave."""
    state = official(side=4)
    low = torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    state["patch_embed.proj.weight"] = functional.interpolate(
        state["patch_embed.proj.weight"][:, :, :3, :3], (14, 14), mode="bicubic"
    )
    network = backbone(config(patch=patch, images=4 * patch), 3).eval()
    kernel = weights.fitted(state, network)["patch_embed.proj.weight"]
    assert kernel.shape == (96, 3, patch, patch)

    def tokens(kernel: Tensor) -> Tensor:
        side = kernel.shape[-1]
        return functional.conv2d(functional.interpolate(low, (4 * side, 4 * side), mode="bicubic"), kernel, stride=side)

    before, after = tokens(state["patch_embed.proj.weight"]), tokens(kernel)
    assert (after - before).norm() < 0.1 * before.norm()


def refused(state: State, **settings: Any) -> str:
    net = DinoNet(config(**{"images": 56} | settings), 3)
    with pytest.raises(BadInput) as error:
        weights.adapt(net, state)
    return str(error.value)


def test_what_does_not_fit_is_named() -> None:
    state = official(side=4)
    assert "this network has no register_tokens" in refused(official(side=4, registers=4))
    assert "it lacks register_tokens" in refused(state, registers=4)
    less = {name: tensor for name, tensor in state.items() if name != "blocks.2.attn.proj.bias"}
    assert "it lacks blocks.2.attn.proj.bias" in refused(less)
    assert "no blocks.0.mlp.w12.weight" in refused(state | {"blocks.0.mlp.w12.weight": torch.zeros(3)})
    said = refused(state, size="tiny")
    assert "of another shape" in said
    assert "cls_token (1, 1, 96), which here is (1, 1, 192)" in said
    assert "more" in said
    assert "which here is (1, 17, 96)" in refused(state | {"pos_embed": torch.zeros(1, 7, 96)})
    assert "pos_embed (0,)" in refused(state | {"pos_embed": torch.zeros(0)})
    assert "pos_embed (1, 0, 96)" in refused(state | {"pos_embed": torch.zeros(1, 0, 96)})
    assert weights.adapt(DinoNet(config(images=56), 3), {"other": torch.zeros(3)}) is None
