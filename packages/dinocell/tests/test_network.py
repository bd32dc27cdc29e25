"""Student and teacher: what they give of which crops, and that the teacher learns nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runner_dinocell.config import CellConfig, demo
from runner_dinocell.network import DinoNet, shard_units
from torch import Tensor

GRID = 36
Crops = tuple[Tensor, Tensor, Tensor]


def settings(**model: Any) -> CellConfig:
    config = demo()
    config.model.prototypes, config.model.hidden, config.model.bottleneck = 64, 32, 16
    for name, value in model.items():
        setattr(config.model, name, value)
    return config


def network(**model: Any) -> DinoNet:
    torch.manual_seed(0)
    made = DinoNet(settings(**model), 3)
    with torch.no_grad():
        for branch in (made.student, made.teacher):
            for name, parameter in branch.named_parameters():
                if "gamma" in name:
                    parameter.fill_(0.5)
    return made


def crops(count: int = 2, locals_: int = 3) -> Crops:
    made = torch.Generator().manual_seed(1)
    mask = torch.rand(count, 2, GRID, generator=made) < 0.3
    mask[0, 1] = False
    return (
        torch.randn(count, 2, 3, 48, 48, generator=made),
        torch.randn(count, locals_, 3, 24, 24, generator=made),
        mask,
    )


@pytest.mark.parametrize("ibot_head", ["shared", "own"])
@pytest.mark.parametrize("channels", ["stack", "bag"])
def test_every_output_is_of_its_crop(channels, ibot_head) -> None:
    """One image and one crop at a time through backbone and head give what the batch gives, crop by crop."""
    net = network(channels=channels, ibot_head=ibot_head).eval()
    globals_, locals_, mask = crops()
    student = net(globals_, locals_, mask)
    teacher = net.teach(globals_, student.masked_index)
    patch_heads = [branch.ibot_head or branch.head for branch in (net.student, net.teacher)]
    row, places = 0, []
    for crop in range(2):
        for image in range(2):
            hidden = mask[image, crop]
            own, other = (
                branch.tokens(globals_[image, crop][None], of)
                for branch, of in ((net.student, hidden[None]), (net.teacher, None))
            )
            place = 2 * crop + image
            close(student.features[place], own.image[0])
            close(student.global_logits[place], net.student.head(own.image)[0])
            close(teacher.features[place], other.image[0])
            close(teacher.global_logits[place], net.teacher.head(other.image)[0])
            count = int(hidden.sum())
            close(student.masked_logits[row : row + count], patch_heads[0](own.patches[0, hidden]))
            close(teacher.masked_logits[row : row + count], patch_heads[1](other.patches[0, hidden]))
            places += [place * GRID + int(at) for at in hidden.nonzero()]
            row += count
    assert student.masked_index.tolist() == places
    assert len(student.masked_logits) == row == int(mask.sum())
    for crop in range(3):
        for image in range(2):
            alone = net.student.tokens(locals_[image, crop][None])
            close(student.local_logits[2 * crop + image], net.student.head(alone.image)[0])


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_channels_that_are_missing_do_not_count_in_a_bag() -> None:
    net, image = network(channels="bag"), torch.randn(2, 3, 48, 48)
    padded = torch.cat([image[:, :1], torch.zeros_like(image[:, :1]), image[:, 1:]], 1)
    torch.testing.assert_close(net.embed(padded), net.embed(image))


def test_a_bag_is_the_mean_over_its_channels() -> None:
    net, image = network(channels="bag"), torch.randn(2, 3, 48, 48)
    assert net.teacher.backbone.patch_embed.proj.in_channels == 1
    close(net.embed(image), torch.stack([net.embed(image[:, [one]]) for one in range(3)]).mean(0))
    close(net.embed(image), net.embed(image[:, [2, 0, 1]]))
    close(net.embed(image[:, :1].expand(-1, 4, -1, -1)), net.embed(image[:, :1]))


def test_the_teacher_begins_as_the_student_and_learns_nothing() -> None:
    net = network(drop_path=0.5, ibot_head="own")
    for one, other in zip(net.student.parameters(), net.teacher.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()
        assert one.requires_grad
        assert not other.requires_grad
    net.train()
    assert net.student.training
    assert not any(module.training for module in net.teacher.modules())
    globals_, locals_, mask = crops()
    student = net(globals_, locals_, mask)
    first, second = (net.teach(globals_, student.masked_index) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not any(output.requires_grad for output in first)
    assert not torch.equal(student.features, net(globals_, locals_, mask).features)  # the student drops paths
    (student.global_logits.sum() + student.local_logits.sum() + student.masked_logits.sum()).backward()
    assert all(p.grad is not None for p in net.student.parameters())


def test_embeddings_are_the_teachers() -> None:
    net, image = network(), torch.randn(4, 3, 48, 48)
    with torch.no_grad():
        for parameter in net.student.parameters():
            parameter.zero_()
    found = net.embed(image)
    assert found.shape == (4, 96)
    assert not found.requires_grad
    close(found, net.teacher.backbone(image).image)


def test_without_locals_or_masked_patches() -> None:
    net = network()
    globals_, locals_, mask = crops(locals_=0)
    student = net(globals_, locals_, torch.zeros_like(mask))
    assert student.local_logits.shape == student.masked_logits.shape == (0, 64)
    assert net.teach(globals_, student.masked_index).masked_logits.shape == (0, 64)


def test_compiled_it_gives_the_same() -> None:
    net, inputs = network().eval(), crops()
    wanted = net(*inputs)
    taught, embedded = net.teach(inputs[0], wanted.masked_index), net.embed(inputs[0][:, 0])
    net.compile(backend="eager")
    found = net(*inputs)
    for one, other in zip((*found, *net.teach(inputs[0], found.masked_index)), (*wanted, *taught), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(net.embed(inputs[0][:, 0]), embedded)


@pytest.mark.parametrize(("ibot_head", "heads"), [("shared", 2), ("own", 4)])
def test_what_is_sharded_one_at_a_time(ibot_head, heads) -> None:
    net = network(ibot_head=ibot_head)
    units = shard_units(net)
    assert len(units) == len(set(units)) == 2 * 4 + heads
    inside = sum(p.numel() for unit in units for p in unit.parameters())
    assert inside > 0.9 * sum(p.numel() for p in net.parameters())
