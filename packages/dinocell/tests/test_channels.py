"""Crops that show different channels, tokens of each channel, and fields whose channels differ from those trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runner_core import BadInput
from runner_dinocell import files
from runner_dinocell.attention import attention_maps
from runner_dinocell.augment import draw_count
from runner_dinocell.batches import on_device
from runner_dinocell.channels import ChannelTransformer, mean_shown, shown
from runner_dinocell.config import CellConfig, demo
from runner_dinocell.export import export
from runner_dinocell.network import DinoNet
from runner_dinocell.vit import CellTransformer, timm_arguments
from runner_dinocell.weights import adapt
from torch import Tensor, nn


def config(mode: str) -> CellConfig:
    made = demo()
    made.model.channels = mode  # type: ignore[assignment]
    made.model.prototypes, made.model.hidden, made.model.bottleneck = 32, 16, 8
    made.augment = replace(made.augment, global_size=16, local_size=8, locals=3)
    return made


def batch(settings: CellConfig, count: int, channels: int = 3) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    image = torch.randint(0, 2000, (count, channels, 32, 32), generator=drawn).to(torch.uint16)
    levels = torch.tensor([0.0, 2000.0]).expand(count, channels, 2)
    return {
        "image": image,
        "levels": levels,
        "grey": torch.full((count, channels), 500),
        "draws": torch.rand(count, draw_count(settings, channels), generator=drawn),
    }


# ---------------------------------------------------------------- which channels a crop shows


@pytest.mark.parametrize("one", [True, False])
def test_the_first_crop_shows_all_others_a_random_choice_of_those_that_are_there(one: bool) -> None:
    draws = torch.rand(3000, 2, 5, generator=torch.Generator().manual_seed(0))
    there = torch.tensor([1.0, 0, 1, 1]).expand(3000, 4)
    found = shown(draws, there, one)
    assert torch.equal(found[:, 0], there)
    assert not found[:, :, 1].any()
    sizes = found[:, 1:].sum(2).long().flatten().bincount(minlength=4) / 6000
    wanted = [0, 1, 0, 0] if one else [0, 1 / 3, 1 / 3, 1 / 3]
    torch.testing.assert_close(sizes, torch.tensor(wanted, dtype=torch.float32), atol=0.03, rtol=0)
    each = found[:, 1:][found[:, 1:].sum(2) == 1].mean(0)  # the only channel is each of them equally often
    torch.testing.assert_close(each, torch.tensor([1.0, 0, 1, 1]) / 3, atol=0.04, rtol=0)


def test_invariant_crops_are_the_mean_and_single_channels_of_the_stacked_crops() -> None:
    settings, stacked = config("invariant"), config("stack")
    given = batch(settings, 20)
    made = on_device(given, settings, None)
    whole = on_device(given | {"draws": given["draws"][:, : draw_count(stacked, 3)]}, stacked, None)
    assert made["globals"].shape == (20, 2, 1, 16, 16)
    assert made["locals"].shape == (20, 3, 1, 8, 8)
    torch.testing.assert_close(made["globals"][:, 0, 0], whole["globals"][:, 0].mean(1))
    for crops, stack in ((made["globals"][:, 1:], whole["globals"][:, 1:]), (made["locals"], whole["locals"])):
        same = (crops - stack).abs().amax((3, 4)) < 1e-5
        assert torch.equal(same.sum(2), torch.ones_like(same.sum(2)))
        assert same.any((0, 1)).all()


def test_tokens_hide_channels_of_all_crops_but_the_first() -> None:
    settings = config("tokens")
    given = batch(settings, 60)
    given["grey"][:, 1] = 0
    made = on_device(given, settings, torch.Generator().manual_seed(0))
    seen = torch.cat([made[name].flatten(3).any(3) for name in ("globals", "locals")], 1)
    assert not seen[:, :, 1].any()
    assert seen[:, 0, ::2].all()
    assert set(seen[:, 1:].sum(2).flatten().tolist()) == {1, 2}


def test_the_mean_counts_shown_channels_only() -> None:
    crops = torch.zeros(1, 2, 3, 4, 4)
    crops[:, 0], crops[:, 1, 2] = 6, 5
    marks = torch.tensor([[[1.0, 1, 1], [0, 0, 1]]])
    assert mean_shown(crops, marks).flatten(1)[0].unique().tolist() == [5, 6]


# ---------------------------------------------------------------- tokens of each channel


def transformer(channels: int = 3) -> ChannelTransformer:
    torch.manual_seed(0)
    made = ChannelTransformer(channels, 0.0, **timm_arguments(config("tokens"), 1)).eval()
    for parameter in (made.channel_embed, made.cls_token, made.pos_embed):
        nn.init.normal_(parameter)
    return made


@torch.no_grad()
def test_the_order_of_channels_does_not_matter_if_their_marks_follow() -> None:
    net, images, order = transformer(), torch.randn(2, 3, 16, 16), [2, 0, 1]
    found = net(images)
    net.channel_embed.copy_(net.channel_embed[:, order])
    for one, other in zip(found, net(images[:, order]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_missing_channel_is_as_if_it_were_not_in_the_network() -> None:
    net, less, images = transformer(), transformer(2), torch.randn(2, 3, 16, 16)
    less.load_state_dict({**net.state_dict(), "channel_embed": net.channel_embed[:, [0, 2]]})
    images[:, 1] = 0
    mask = torch.rand(2, 4) < 0.5
    for one, other in zip(net(images, mask), less(images[:, [0, 2]], mask), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_an_unknown_channel_has_the_mean_of_the_marks() -> None:
    net, more, images = transformer(), transformer(4), torch.randn(2, 4, 16, 16)
    marks = torch.cat((net.channel_embed, net.channel_embed.mean(1, keepdim=True)), 1)
    more.load_state_dict({**net.state_dict(), "channel_embed": marks})
    torch.testing.assert_close(net(images).image, more(images).image, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(net(images).image, net(images[:, :3]).image, atol=1e-2)


@torch.no_grad()
def test_one_channel_without_marks_is_the_plain_transformer() -> None:
    net = transformer(1)
    plain = CellTransformer(0.0, **timm_arguments(config("tokens"), 1)).eval()
    nn.init.zeros_(net.channel_embed)
    plain.load_state_dict({name: value for name, value in net.state_dict().items() if name != "channel_embed"})
    images, mask = torch.randn(2, 1, 16, 16), torch.rand(2, 4) < 0.5
    for one, other in zip(net(images, mask), plain(images, mask), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_attention_is_the_sum_over_channels_and_none_for_a_missing_one() -> None:
    net, less = (DinoNet(config("tokens"), count).eval() for count in (3, 2))
    weights = {n: v[:, [0, 2]] if n.endswith("channel_embed") else v for n, v in net.state_dict().items()}
    less.load_state_dict(weights)
    images = torch.randn(2, 3, 16, 24)
    assert attention_maps(net, images).shape == (2, 3, 2, 3)
    images[:, 1] = 0
    torch.testing.assert_close(attention_maps(net, images), attention_maps(less, images[:, [0, 2]]))


@pytest.mark.parametrize("mode", ["invariant", "tokens"])
def test_a_step_reaches_every_weight(mode: str) -> None:
    settings = config(mode)
    network = DinoNet(settings, 3)
    made = on_device(batch(settings, 2), settings, torch.Generator().manual_seed(0))
    mask = torch.zeros(2, 2, 4, dtype=torch.bool)
    mask[:, 0, :2] = True
    found = network(made["globals"], made["locals"], mask)
    (found.global_logits.square().sum() + found.local_logits.sum() + found.masked_logits.sum()).backward()
    assert all(parameter.grad is not None for parameter in network.student.parameters())
    assert network.embed(torch.randn(2, 3, 16, 16)).shape == (2, 96)


# ---------------------------------------------------------------- other data, other forms


PLACES: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("tokens", ("1", "3"), ("1", "2", "3")),  # a missing stain keeps its place
    ("tokens", ("1", "3", "9"), ("1", "2", "3", "9")),  # an unknown one follows
    ("tokens", ("3", "2", "1", "9"), ("1", "2", "3")),  # all are there: others are not used
    ("invariant", ("1", "9"), ("1", "9")),
    ("subset", ("1", "3", "9"), ("1", "9", "3")),  # in the place of the missing one
]


@pytest.mark.parametrize(("mode", "there", "wanted"), PLACES)
def test_channels_are_matched_by_name(
    mode: Any, there: tuple[str, ...], wanted: tuple[str, ...], write_image: Any, tmp_path: Path
) -> None:
    for channel in there:
        write_image(tmp_path / f"P_A01_site1_Ch{channel}.tif")
    (field,) = files.find_inputs(tmp_path, config(mode), ("1", "2", "3"))
    assert field.channels == wanted
    assert set(field.files) == set(wanted) & set(there)


def test_tokens_cannot_be_exported_and_take_official_weights(tmp_path: Path) -> None:
    settings = config("tokens")
    network = DinoNet(settings, 3)
    with pytest.raises(BadInput, match=r"model.channels tokens gives each channel tokens of its own"):
        export(network, tmp_path, settings, ["a", "b", "c"])
    backbone = DinoNet(config("bag"), 3).teacher.backbone.state_dict()
    own = {f"backbone.{name}": tensor for name, tensor in backbone.items()}
    own["backbone.pos_embed"] = torch.cat((torch.zeros(1, 1, 96), backbone["pos_embed"]), 1)
    found = adapt(network, own)
    assert found is not None
    assert not network.load_state_dict({**network.state_dict(), **found}).missing_keys
    assert torch.equal(found["teacher.backbone.channel_embed"], network.teacher.backbone.channel_embed)
    assert torch.equal(found["teacher.backbone.pos_embed"], backbone["pos_embed"])
    assert np.isfinite(network.embed(torch.randn(1, 3, 16, 16)).numpy()).all()
