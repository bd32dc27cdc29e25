"""Rules flag runs that collapse within a hundred steps, and are silent where something is learned."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from runner_core import Finding, HealthEvent, Progress
from runner_dinocell import runner_health, schedules
from runner_dinocell.config import CellConfig, LossConfig, default, demo
from runner_dinocell.heads import DINOHead
from runner_dinocell.health import Lasting, Sharper, Untaught, symptoms
from runner_dinocell.objective import objective
from runner_dinocell.targets import Centring
from runner_dinocell.teacher import follow
from runner_dinocell.views import StudentOutputs, TeacherOutputs
from torch import Tensor, nn

SIDE, KINDS, LINE = 4, 12, 10

# ------------------------------------------------------------ small trainings


class Branch(nn.Module):
    """A network of patches without positions: as quick to collapse as a large one, in milliseconds."""

    def __init__(self, config: CellConfig) -> None:
        super().__init__()
        self.patch = nn.Sequential(nn.Linear(SIDE, 48), nn.GELU(), nn.Linear(48, 48))
        self.hidden = nn.Parameter(torch.zeros(48))
        self.head = DINOHead(48, 64, 32, config.model.prototypes)

    def forward(self, crops: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(M, T, SIDE) → embeddings (M, D) and patches (M, T, D)."""
        tokens = self.patch(crops)
        if mask is not None:
            tokens = torch.where(mask[..., None], self.hidden, tokens)
        image = tokens.mean(1)
        return nn.functional.layer_norm(image, image.shape[1:]), tokens + image[:, None]


class Small(nn.Module):
    def __init__(self, config: CellConfig) -> None:
        super().__init__()
        self.student = Branch(config)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.image_centring = Centring(config.loss, config.model.prototypes)
        self.patch_centring = Centring(config.loss, config.model.prototypes)

    def forward(self, globals_: Tensor, locals_: Tensor, mask: Tensor) -> StudentOutputs:
        mask = mask.transpose(0, 1).flatten(0, 1)
        index = mask.flatten().nonzero()[:, 0]
        image, patches = self.student(globals_.transpose(0, 1).flatten(0, 1), mask)
        small, _ = self.student(locals_.transpose(0, 1).flatten(0, 1))
        head = self.student.head
        return StudentOutputs(head(image), head(small), head(patches.flatten(0, 1)[index]), index, image, patches)

    def teach(self, globals_: Tensor, index: Tensor) -> TeacherOutputs:
        with torch.no_grad():
            image, patches = self.teacher(globals_.transpose(0, 1).flatten(0, 1))
            head = self.teacher.head
            return TeacherOutputs(head(image), head(patches.flatten(0, 1)[index]), image)


def batches(config: CellConfig) -> Iterable[dict[str, Tensor]]:
    """Crops of images of so many kinds, each with patches of its own and noise."""
    made = torch.Generator().manual_seed(0)
    kinds = torch.randn(KINDS, SIDE, generator=made)
    while True:
        images = kinds[torch.randint(KINDS, (config.train.batch_size,), generator=made), None, None]

        def crops(many: int, patches: int, images: Tensor = images) -> Tensor:
            return images + 0.3 * torch.randn(len(images), many, patches, SIDE, generator=made)

        mask = torch.rand(len(images), 2, 9, generator=made) < 0.3
        mask[:, 1], mask[:, 0, 0] = False, True
        grey = torch.full((len(images), 2), 900)
        yield {"globals": crops(2, 9), "locals": crops(2, 4), "mask": mask, "grey": grey}


def trained(config: CellConfig, steps: int, network: nn.Module | None = None) -> list[tuple[int, Finding]]:
    """Return the findings of the rules in so many steps, a line every ten, and the step of each."""
    torch.manual_seed(0)
    net = network or Small(config)
    optimizer = torch.optim.AdamW(net.student.parameters(), lr=config.train.learning_rate)
    rules, found = runner_health(config), []
    sums: dict[str, float] = {}
    for step, batch in zip(range(steps), batches(config), strict=False):
        progress = Progress(step, steps, 0)
        rate = config.train.learning_rate * schedules.learning_rate(config, progress)
        for group in optimizer.param_groups:
            group["lr"] = rate
        made = objective(net, batch, config, progress)
        made.loss.backward()
        norm = nn.utils.clip_grad_norm_(net.student.parameters(), config.train.clip)
        optimizer.step()
        optimizer.zero_grad()
        follow(net.teacher, net.student, schedules.momentum(config, progress))
        for name, value in {**made.terms, "gradient_norm": norm}.items():
            sums[name] = sums.get(name, 0.0) + float(value.detach()) / LINE
        if (step + 1) % LINE == 0:
            event = HealthEvent("log", step + 1, 0, {**sums, "learning_rate": rate})
            found += [(step + 1, said) for rule in rules if (said := rule.observe(event)) is not None]
            sums = {}
    return found


def quick() -> CellConfig:
    config = demo()
    config.loss, config.model.prototypes = LossConfig(), 256
    config.train.batch_size, config.train.learning_rate, config.teacher.momentum = 32, 1e-2, 0.95
    return config


def no_centring(config: CellConfig) -> None:
    config.loss.centring, config.loss.centre_momentum, config.teacher.momentum = "centre", 1.0, 0.0
    config.loss.koleo = 0.0


def no_sharpening(config: CellConfig) -> None:
    no_centring(config)
    config.loss.teacher_temperature = config.loss.warmup_teacher_temperature = 0.1


def hot(config: CellConfig) -> None:
    config.loss.teacher_temperature = config.loss.warmup_teacher_temperature = 10.0


def hot_centre(config: CellConfig) -> None:
    hot(config)
    config.loss.centring = "centre"


BROKEN = {
    no_centring: "few prototypes",
    no_sharpening: "embeddings alike",
    hot: "teacher says nothing",
    hot_centre: "teacher says nothing",
}


@pytest.mark.parametrize(("broken", "rule"), BROKEN.items())
def test_a_broken_teacher_is_flagged_within_100_steps(broken: Callable[[CellConfig], None], rule: str) -> None:
    config = quick()
    broken(config)
    found = trained(config, 100)
    assert rule in {finding.rule for _, finding in found}


@pytest.mark.parametrize("part", ["patch", "head"])
def test_a_network_that_sees_nothing_is_flagged_within_100_steps(part: str) -> None:
    config = quick()
    config.loss.koleo = 0.0
    net = Small(config)
    for branch in (net.student, net.teacher):
        getattr(branch, part).requires_grad_(False)
        with torch.no_grad():
            for p in getattr(branch, part).parameters():
                p.zero_()
        if part == "head":
            branch.head.mlp[-1].bias.data.fill_(1.0)
    said = {finding.rule for _, finding in trained(config, 100, net)}
    assert "teacher says nothing" in said
    assert ("embeddings alike" in said) == (part == "patch")


@pytest.mark.parametrize("centring", ["sinkhorn", "centre"])
def test_a_run_that_learns_is_left_alone(centring) -> None:
    config = quick()
    config.loss.centring = centring
    assert trained(config, 200) == []


# ------------------------------------------------------------ lines of a log

HEALTHY = {
    "learning_rate": 1e-3, "dino": 5.0, "ibot": 2.0, "koleo": 1.0, "teacher_entropy": 4.0, "teacher_information": 1.5,
    "dino_margin": 2.0, "ibot_margin": 2.0, "feature_rank": 8.0, "feature_spread": 0.8, "neighbour_distance": 0.5,
    "gradient_norm": 1.0, "grey_levels": 700.0,
}  # fmt: skip


def lines(rule: Any, facts: Iterable[dict[str, float]], every: int = 10, first: int = 1) -> list[Finding | None]:
    events = (HealthEvent("log", every * i, 0, {**HEALTHY, **line}) for i, line in enumerate(facts, first))
    return [rule.observe(event) for event in events]


def rule(name: str, config: CellConfig | None = None) -> Lasting:
    return next(Lasting(s) for s in symptoms(config or demo()) if s.name == name)


SAME = {"teacher_information": 1e-4}
FALLING = [{"learning_rate": 1e-3 * 0.9**i} for i in range(200)]


def test_every_run_has_its_rules_anew_each_with_a_name_of_its_own() -> None:
    rules = runner_health(default())
    names = [one.name for one in rules]
    assert len(names) == len(set(names)) == 8
    assert not any(one is other for one, other in zip(rules, runner_health(default()), strict=True))


def test_a_teacher_that_told_crops_apart_and_no_longer_does_stops_the_run() -> None:
    found = lines(rule("collapse"), [{}] * 5 + [SAME] * 20)
    assert [i for i, finding in enumerate(found) if finding] == [9]  # 50 steps, said once
    assert found[9].level == "error"
    assert "same to every crop" in found[9].message
    assert "for 50 steps" in found[9].message
    assert lines(rule("collapse"), [SAME] * 20) == [None] * 20  # it never did


def test_a_short_dip_is_no_collapse_and_one_that_comes_back_is_said_again() -> None:
    assert lines(rule("collapse"), [{}] * 3 + [SAME] * 4 + [{}] + [SAME] * 4) == [None] * 12
    found = lines(rule("collapse"), [{}] + [SAME] * 6 + [{}] + [SAME] * 6)
    assert [i for i, finding in enumerate(found) if finding] == [5, 12]


def test_lines_far_apart_are_steps_as_well() -> None:
    found = lines(rule("collapse"), [{}, SAME, SAME], every=50)
    assert [finding is None for finding in found] == [True, False, True]


def test_before_the_learning_rate_has_warmed_up_nothing_is_known() -> None:
    rising = [{**SAME, "learning_rate": 1e-5 * (i + 1)} for i in range(40)]
    falling = [{**SAME, "learning_rate": 4e-4 - 1e-6 * (i + 1)} for i in range(10)]
    found = lines(rule("teacher says nothing"), rising + falling)
    assert [i for i, finding in enumerate(found) if finding] == [44]


BEGINNING = {
    "teacher_information": -1e-6, "teacher_entropy": 11.09, "feature_rank": 2.8, "feature_spread": 1.7e-4,
    "neighbour_distance": 2e-4, "dino": 11.9, "dino_margin": -0.8, "ibot_margin": -0.8, "gradient_norm": 180.0,
}  # fmt: skip
"""Facts of ViT-S/8 with LayerScale 1e-5 and 65536 prototypes at its beginning: blocks do nothing yet."""


def test_a_network_of_full_size_may_begin_as_it_does() -> None:
    rising = [{**BEGINNING, "learning_rate": 1.25e-7 * 50 * (i + 1)} for i in range(180)]
    for one in runner_health(default()):
        assert lines(one, rising, every=50) == [None] * 180


@pytest.mark.parametrize(
    ("name", "line", "steps"),
    [
        ("teacher says nothing", {"teacher_information": 0.03}, 50),
        ("few prototypes", {"teacher_information": 0.5, "teacher_entropy": 0.3}, 50),
        ("embeddings alike", {"feature_rank": 1.2}, 50),
        ("embeddings alike", {"feature_spread": 1e-3}, 50),
        ("embeddings alike", {"neighbour_distance": 1e-3}, 50),
        ("losses at ln K", {"dino_margin": 0.01}, 1000),
        ("losses at ln K", {"ibot_margin": -0.2}, 1000),
        ("grey levels", {"grey_levels": 12.0}, 0),
    ],
)
def test_each_symptom_is_warned_of_once_it_lasts(name, line, steps) -> None:
    found = lines(rule(name), [{**line, **rate} for rate in FALLING])
    at = [10 * (i + 1) for i, finding in enumerate(found) if finding]
    assert len(at) == 1
    assert steps <= at[0] <= steps + 20
    finding = next(finding for finding in found if finding)
    assert (finding.rule, finding.level) == (name, "warning")
    assert lines(rule(name), [{**HEALTHY, **rate} for rate in FALLING]) == [None] * 200


def test_terms_that_are_switched_off_are_not_missed() -> None:
    few = {"learning_rate": 1e-3, "loss": 1.0}
    for one in runner_health(default()):
        for step in range(0, 3000, 50):
            assert one.observe(HealthEvent("log", step, 0, {**few, "learning_rate": 1e-3 / (1 + step)})) is None
        assert one.observe(HealthEvent("validation", 3000, 1, {"loss": 1.0})) is None


def test_sixteen_bits_in_eight_are_told_apart() -> None:
    assert rule("grey levels").observe(HealthEvent("log", 50, 0, {**HEALTHY, "grey_levels": 183.0})) is None
    finding = rule("grey levels").observe(HealthEvent("log", 50, 0, {**HEALTHY, "grey_levels": 1.0}))
    assert finding is not None
    assert "1 grey values" in finding.message


def test_what_rules_remember_is_json_and_all_they_need() -> None:
    facts = [{}] * 5 + [SAME] * 20
    whole = lines(rule("collapse"), facts)
    first = rule("collapse")
    begun = lines(first, facts[:7])
    second = rule("collapse")
    second.memory = json.loads(json.dumps(first.memory))
    assert begun + lines(second, facts[7:], first=8) == whole


def test_a_teacher_that_is_no_sharper_than_its_student_is_warned_of_at_once() -> None:
    config = demo()
    begins = HealthEvent("first_step", 1, 0, {})
    assert Sharper(config).observe(begins) is None
    config.loss.teacher_temperature = 0.1
    finding = Sharper(config).observe(begins)
    assert finding is not None
    assert "0.1" in finding.message


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ({"dino_margin": 0.01}, "DINO taught nothing, what was learned comes from iBOT"),
        ({"dino_margin": -0.1, "ibot_margin": 0.0}, "DINO taught nothing, and nothing else did"),
        ({}, None),
    ],
)
def test_a_training_that_ends_at_ln_k_says_so(ends, said) -> None:
    """In a note at the end, by the last lines, after a resumption too."""
    first, second = Untaught(demo()), Untaught(demo())
    assert lines(first, [{}] * 3 + [ends] * 4) == [None] * 7
    second.memory = json.loads(json.dumps(first.memory))
    assert lines(second, [ends], first=8) == [None]
    finding = second.observe(HealthEvent("end", 80, 1, {}))
    assert (finding and (finding.level, finding.message)) == (
        said and ("note", f"the image-level loss ended at ln K: {said}")
    )
