"""What other recipes add: Gram anchoring, suppression and guidance by metadata, distillation, Muon's groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from runner_core import BadInput, Progress
from runner_core.testing import refusal
from runner_dinocell import gram, metadata
from runner_dinocell.config import CellConfig, demo
from runner_dinocell.distil import Distillation, described
from runner_dinocell.export import export
from runner_dinocell.network import DinoNet
from runner_dinocell.objective import objective
from runner_dinocell.project import DinoCell
from runner_dinocell.recipes import GramConfig, MetadataConfig
from torch import Tensor

IMAGES, CHANNELS, TOKENS = 4, 2, 4
KEYS = [f"s/b/{plate}/{well}/{site}" for plate in ("p1", "p2", "p3") for well in ("A01", "B02") for site in "12"]


def config(**settings: Any) -> CellConfig:
    made = demo()
    made.model.prototypes, made.model.hidden, made.model.bottleneck = 24, 16, 8
    made.augment.global_size, made.augment.local_size, made.augment.locals = 16, 8, 3
    made.metadata.hidden = 8
    for name, value in settings.items():
        section, setting = name.split("__")
        setattr(getattr(made, section), setting, value)
    return made


def network(made: CellConfig, statistics: dict[str, Any] | None = None) -> DinoNet:
    torch.manual_seed(0)
    built = DinoNet(made, CHANNELS, statistics or {})
    with torch.no_grad():
        for p in built.parameters():
            p.add_(0.1 * torch.randn(p.shape))
    return built.train()


def batch() -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(1)
    mask = torch.rand(IMAGES, 2, TOKENS, generator=made) < 0.6
    mask[:, 0, 0] = True
    return {
        "globals": torch.randn(IMAGES, 2, CHANNELS, 16, 16, generator=made),
        "locals": torch.randn(IMAGES, 3, CHANNELS, 8, 8, generator=made),
        "mask": mask,
        "grey": torch.full((IMAGES, CHANNELS), 500),
    }


def at(step: int, steps: int = 100) -> Progress:
    return Progress(step, steps, 0)


# ------------------------------------------------------------ Gram anchoring


def test_gram_is_the_mean_squared_difference_of_cosines() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=(2, 3, 5, 7))

    def cosines(tokens: np.ndarray) -> np.ndarray:
        unit = tokens / np.sqrt((tokens**2).sum(1, keepdims=True))
        return np.array([[a @ b for b in unit] for a in unit])

    expected = np.mean([(cosines(a) - cosines(b)) ** 2 for a, b in zip(ours, theirs, strict=True)])
    found = gram.gram(torch.tensor(ours), torch.tensor(theirs))
    assert float(found) == pytest.approx(expected, rel=1e-12)
    student = torch.tensor(ours, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: gram.gram(x, torch.tensor(theirs)), (student,))
    scaled = 3 * torch.linalg.qr(torch.tensor(rng.normal(size=(7, 7))))[0]  # turning all patches changes nothing
    assert float(gram.gram(torch.tensor(ours) @ scaled, torch.tensor(ours))) == pytest.approx(0, abs=1e-12)


def test_the_anchor_is_the_teacher_of_its_moment() -> None:
    settings = GramConfig(weight=1.0, start=0.5, every=0.2)
    assert [step for step in range(10) if gram.renewed(settings, at(step, 10))] == [4, 6, 8]
    assert [step for step in range(10) if gram.begun(settings, at(step, 10))] == [5, 6, 7, 8, 9]
    assert not any(gram.renewed(GramConfig(), at(step, 10)) for step in range(10))
    made = config(gram__weight=2.0, gram__start=0.5)
    net, project = network(made), DinoCell(made)
    after = project.learning().after_step
    assert after is not None
    first = objective(net, batch(), made, at(4, 10))
    assert "gram" not in first.terms
    after(net, at(4, 10))
    pairs = zip(net.anchor.parameters(), net.teacher.backbone.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    step = objective(net, batch(), made, at(5, 10))
    assert float(step.terms["gram"].detach()) > 0
    weights = {"dino": 1, "ibot": 1, "koleo": made.loss.koleo, "gram": 2}
    torch.testing.assert_close(step.loss, sum(w * step.terms[n] for n, w in weights.items()))
    step.loss.backward()
    assert all(p.grad is None for p in net.anchor.parameters())
    before = [p.clone() for p in net.anchor.parameters()]
    after(net, at(5, 10))
    assert all(torch.equal(a, b) for a, b in zip(before, net.anchor.parameters(), strict=True))


def test_a_runs_teacher_is_the_first_anchor() -> None:
    made = config(gram__weight=1.0, gram__start=0.0)
    given = network(config()).state_dict()
    found = DinoCell(made).learning().adapt_weights(network(made), given)  # type: ignore[misc]
    assert found is not None
    name = "blocks.0.attn.qkv.weight"
    assert torch.equal(found[f"anchor.{name}"], given[f"teacher.backbone.{name}"])


# ------------------------------------------------------------ metadata


def test_classes_are_those_of_training() -> None:
    labels = {key: ("x" if "A01" in key else "y") for key in KEYS} | {KEYS[0]: None}
    settings = MetadataConfig(suppress=("plate", "well"), guide=True)
    found = metadata.classes(KEYS, labels, range(8), settings)  # p3 is held out
    assert [found[f"{name}_classes"] for name in ("plate", "well", "label")] == [2, 2, 2]
    assert found["plate_of_record"].tolist() == [0] * 4 + [1] * 4 + [-1] * 4
    assert found["well_of_record"].tolist() == [0, 0, 1, 1] * 3
    assert found["label_of_record"].tolist() == [-1, 0, 1, 1] + [0, 0, 1, 1] * 2
    records = {"record": torch.tensor([9, 4, 0])}
    drawn = metadata.targets(records, found, settings)
    assert {name: value.tolist() for name, value in drawn.items()} == {
        "plate_class": [-1, 1, 0], "well_class": [0, 0, 0], "label_class": [0, 0, -1],
    }  # fmt: skip


@pytest.mark.parametrize(
    "settings, training, message",
    [
        (MetadataConfig(suppress=("plate",)), range(4), "metadata.suppress plate: .* one plate only, p1"),
        (MetadataConfig(guide=True), range(8), "metadata.guide: .* have no label, and two are needed"),
    ],
)
def test_nothing_to_tell_apart_is_refused(settings: MetadataConfig, training: range, message: str) -> None:
    plates = [key.replace("s/b/p1", "p1") for key in KEYS]
    with pytest.raises(BadInput, match=message):
        metadata.classes(plates, {}, training, settings)


def test_suppression_turns_the_heads_gradient_round_and_guidance_does_not() -> None:
    torch.manual_seed(0)
    settings = MetadataConfig(suppress=("plate",), guide=True, hidden=6)
    heads = metadata.MetadataHeads(5, settings, {"plate": 3, "label": 3}).double()
    features = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    given = torch.tensor([0, 2, -1, 1])
    classes = {"plate_class": given, "label_class": given}
    for name, factor in (("plate", -(2 / (1 + np.exp(-3)) - 1)), ("label", 1.0)):
        loss = heads(features, classes, name, at(30))
        logits = heads.heads[name](features).float()
        rows = [i for i in range(8) if given[i % 4] >= 0]
        expected = -sum(logits.log_softmax(1)[i, given[i % 4]] for i in rows) / len(rows)
        torch.testing.assert_close(loss, expected)
        found = torch.autograd.grad(loss, [features, *heads.heads[name].parameters()])
        plain = torch.autograd.grad(expected, [features, *heads.heads[name].parameters()])
        torch.testing.assert_close(found[0], factor * plain[0])
        for one, other in zip(found[1:], plain[1:], strict=True):
            torch.testing.assert_close(one, other)
    unknown = {"plate_class": torch.full((4,), -1)}
    assert float(heads(features, unknown, "plate", at(1)).detach()) == 0


def test_heads_learn_and_are_counted_in_the_loss() -> None:
    made = config(metadata__suppress=("plate",), metadata__guide=True, metadata__suppress_weight=0.5)
    net = network(made, {"plate_classes": 2, "label_classes": 4})
    given = batch() | {"plate_class": torch.tensor([0, 1, 1, 0]), "label_class": torch.tensor([0, 1, 2, 3])}
    step = objective(net, given, made, at(10))
    weights = {"dino": 1, "ibot": 1, "koleo": made.loss.koleo, "plate": 0.5, "label": 0.1}
    torch.testing.assert_close(step.loss, sum(w * step.terms[n] for n, w in weights.items()))
    step.loss.backward()
    groups = DinoCell(made).learning().parameter_groups(net)  # type: ignore[misc]
    listed = {id(p) for group in groups for p in group["params"]}
    assert all(p.grad is not None and id(p) in listed for p in net.metadata.parameters())


# ------------------------------------------------------------ distillation


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A larger network of other width, with its settings."""
    made = config(model__size="tiny", model__registers=2)
    export(network(made).eval(), tmp_path, made, ["a", "b"])
    return tmp_path


def test_the_larger_networks_tokens_are_the_target(exported: Path) -> None:
    settings = described(str(exported), 8, CHANNELS)
    torch.manual_seed(0)
    part = Distillation(96, settings["embed_dim"])
    assert not part.ready
    part.open(str(exported), settings)
    image, patches, crops = torch.randn(3, 96), torch.randn(3, TOKENS, 96), torch.randn(3, CHANNELS, 16, 16)
    larger = timm.create_model(**settings, checkpoint_path=str(exported / "model.safetensors")).eval()
    tokens = larger.forward_features(crops).detach().double().numpy()
    rows = [(part.image(image), tokens[:, 0]), (part.patches(patches), tokens[:, 3:])]
    expected = 0.0
    for ours, theirs in ((a.detach().double().numpy(), b) for a, b in rows):
        cosine = (ours * theirs).sum(-1) / np.linalg.norm(ours, axis=-1) / np.linalg.norm(theirs, axis=-1)
        expected += float(np.mean(1 - cosine))
    assert float(part(image, patches, crops)) == pytest.approx(expected, rel=1e-5)
    assert {name.split(".")[0] for name in part.state_dict()} == {"image", "patches", "digest"}


def test_another_network_than_at_the_beginning_is_refused(exported: Path) -> None:
    settings = described(str(exported), 8, CHANNELS)
    part = Distillation(96, settings["embed_dim"])
    part.open(str(exported), settings)
    part.load_state_dict(part.state_dict() | {"digest": torch.arange(16)})
    with pytest.raises(BadInput, match="its weights are not those that this run began with"):
        part(torch.randn(1, 96), torch.randn(1, TOKENS, 96), torch.randn(1, CHANNELS, 16, 16))


def test_networks_that_do_not_fit_are_refused(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"patches of 8 pixels, and model\.patch is 16"):
        described(str(exported), 16, CHANNELS)
    with pytest.raises(BadInput, match="it reads 2 channels, and this network 5"):
        described(str(exported), 8, 5)
    with pytest.raises(BadInput, match=r"model\.json cannot be read .* export RUN --out FOLDER"):
        described(str(tmp_path / "nothing"), 8, CHANNELS)
    (exported / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(BadInput, match="it cannot be loaded"):
        Distillation(96, 192).open(str(exported), described(str(exported), 8, CHANNELS))
    assert "names one thing twice" in str(refusal(DinoCell, config(metadata__suppress=("plate", "plate"))))


# ------------------------------------------------------------ Muon


def test_muon_is_for_the_matrices_of_blocks() -> None:
    made = config(train__optimizer="muon")
    net = network(made)
    groups = DinoCell(made).learning().parameter_groups(net)  # type: ignore[misc]
    names = {p: name for name, p in net.student.named_parameters()}
    hidden = {names[p] for group in groups if group.get("hidden") for p in group["params"]}
    parts = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert hidden == {f"backbone.blocks.{block}.{part}.weight" for block in range(4) for part in parts}
    plain = DinoCell(config()).learning().parameter_groups(net)  # type: ignore[misc]
    assert not any("hidden" in group for group in plain)  # as checkpoints of older runs have them
