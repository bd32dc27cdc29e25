"""A project with a teacher and a loss over the whole batch, and what two processes do with it for the tests.

`python together_toy.py FOLDER NUMBER` is one of the two; all it does goes into FOLDER, in which `handed-on` is a run of
one process to go on with. `python together_toy.py FOLDER NUMBER COUNT RUN…` is one of COUNT (`divided`).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
from io import StringIO
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parent.parent / "engine_toy"))
import engine_toy as toy
import numpy as np
import torch
from runner_core.base.errors import Stopped
from runner_core.contract import Step
from runner_core.contract.team import Place
from runner_core.engines.torch import ranks
from runner_core.engines.torch.checkpoint import SafetensorsFormat
from runner_core.engines.torch.metrics import TorchFunctionMetric
from runner_core.engines.torch.team import TorchTeam
from runner_core.output import display
from runner_core.training import loop
from torch import nn
from torch.nn import functional as F

WIDTH, FEATURES = 2 * toy.SIDE**2, 7  # an odd number: the processes' parts differ in size


class Network(nn.Module):
    """In float64, so that what differs is not rounding."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(WIDTH, FEATURES), nn.Tanh(), nn.Dropout(dropout))
        self.teacher = nn.Sequential(nn.Linear(WIDTH, FEATURES), nn.Tanh()).requires_grad_(False)
        self.head = nn.Linear(FEATURES, 3)
        self.mask = nn.Parameter(torch.full((FEATURES,), 0.1))
        self.register_buffer("centre", torch.zeros(FEATURES))
        self.double()

    def forward(self, image: torch.Tensor, masked: bool) -> torch.Tensor:
        features = self.student(image)
        return features + self.mask if masked else features

    @torch.no_grad()
    def teach(self, image: torch.Tensor) -> torch.Tensor:
        return self.teacher(image)


class Together(toy.Toy):
    """Its loss needs all features of the batch; its step uses attributes and methods of the network, and leaves a
    weight out every other time."""

    name = "enginetoy"
    validated: ClassVar[list[int]] = []
    """Sizes of the validation batches of this process."""
    splittable = False
    monitor = ("loss", "min")

    def augment(self, sample, rng):
        sample["image"][...] = np.roll(sample["image"], rng.integers(0, 3))

    def on_device(self, batch, statistics, rng):
        return {**batch, "image": (batch["image"].double().flatten(1) - 127.5) / 64}

    def model(self, precision):
        return Network(self.config.net.dropout)

    def parameter_groups(self, model):
        return [{"params": [*model.student.parameters(), *model.head.parameters()]}, {"params": [model.mask]}]

    def adjust(self, groups, progress):
        for group in groups:
            group["weight_decay"] = 0.1 * (1 + progress.fraction)
        if progress.step < 3:
            groups[1]["lr"] = 0.0

    def shard_units(self, model):
        return [model.student, model.teacher]

    def step(self, model, batch, progress):
        image = batch["image"]
        taught = model.teach(image) - model.centre
        features = model(image, masked=progress.step % 2 == 1)
        whole = ranks.gathered(F.normalize(features, dim=1))
        nearest = (torch.cdist(whole, whole + 1e-3) + 9.0 * torch.eye(len(whole))).amin(1).log().mean()
        match = F.mse_loss(features, taught)
        prediction = model.head(features)
        if model.training:
            model.centre.lerp_(ranks.summed(taught.sum(0)) / (len(image) * ranks.count()), 0.1)
        loss = match - 0.1 * nearest + prediction.square().mean()
        return Step(loss, {"match": match, "nearest": nearest, "constant": 2.0}, prediction)

    def after_step(self, model, progress):
        with torch.no_grad():
            for slow, fast in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
                slow.lerp_(fast, 0.05)

    def infer(self, model, batch):
        return {"prediction": model.head(model(batch["image"], masked=False))}

    def watch(self, model):
        return {"bias": model.student[0].bias.detach().numpy(), "mask": model.mask.detach().numpy()}

    def metrics(self):
        return [TorchFunctionMetric("size", self._size)]

    def _size(self, prediction, batch):
        Together.validated.append(len(prediction))
        return prediction.abs().mean()


class Interrupted(Together):
    """In one process of several a signal comes in the middle of the training."""

    number = 1

    def after_step(self, model, progress):
        super().after_step(model, progress)
        if progress.step == 7 and ranks.number() == self.number:
            os.kill(os.getpid(), signal.SIGTERM)


def settings(count: int, **more):
    """Settings under which the batch has 8 samples in all, however many processes there are."""
    base = {"train__batch_size": 8 // count, "train__devices": count, "train__clip": 0.05, "train__ema": 0.9,
            "net__dropout": 0.0, "train__epochs": 4, "train__learning_rate": 1e-2,
            "validate__batch_size": 3, "log__every": 2, "checkpoint__keep": 9, "health__mode": "off"}  # fmt: skip
    return toy.small(**{**base, **more})


class Kept(TorchTeam):
    """For one training after another."""

    def leave(self):
        self._settled()


def main(folder: Path, number: int) -> None:
    torch.set_num_threads(1)
    display._PLAIN_SECONDS, loop.SHOW_EVERY = 0.0, -1  # the screen of the first process changes with every step
    team = Kept(Place(number, 2, number, 2, f"file://{folder / 'meeting'}"), torch.device("cpu"), 120.0)
    for strategy in ("ddp", "fsdp"):
        same = {"train__strategy": strategy}
        screen = display.Display(stream=StringIO(), silent=number > 0)
        Together.validated.clear()
        toy.run(settings(2, **same), folder / strategy, project=Together, team=team, display=screen)
        (folder / f"{strategy}-validated-{number}.json").write_text(json.dumps(Together.validated))
        random = same | {"net__dropout": 0.3}
        toy.run(settings(2, **random), folder / f"{strategy}-random", project=Together, team=team)
        try:
            toy.run(settings(2, **random), folder / f"{strategy}-stopped", project=Interrupted, team=team)
        except Stopped as error:
            (folder / f"{strategy}-stopped-{number}").write_text(str(error))
        toy.run(settings(2, **random), folder / f"{strategy}-stopped", project=Together, team=team, resume=True)
    toy.run(settings(2, train__strategy="fsdp"), folder / "handed-on", project=Together, team=team, resume=True)
    (folder / f"gathered-{number}.json").write_text(json.dumps(gathered(team.number)))
    TorchTeam.leave(team)


def cut_after(run: Path, step: int) -> Path:
    """The run as it stood at `step`."""
    for checkpoint in run.glob("checkpoints/step-*"):
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)
    (run / "checkpoints" / "best.json").unlink()
    return run


def assert_close_runs(one: Path, other: Path) -> None:
    """Equal but for rounding in float64: every number of the log, every tensor of the last checkpoint.

    What only several processes note is left out.
    """
    lines, others = ([x for x in toy.log_lines(run) if x.get("rule") != "exchange"] for run in (one, other))
    assert len(lines) == len(others) > 10
    for line, line2 in zip(lines, others, strict=True):
        values, values2 = flat(line), flat(line2)
        assert values.keys() == values2.keys()
        for name, value in values.items():
            near = math.isclose(value, values2[name], rel_tol=1e-9, abs_tol=1e-12) if type(value) is float else None
            assert values2[name] == value if near is None else near, (name, line)
    (_, tensors), (_, tensors2) = toy.final_state(one), toy.final_state(other)
    learned = [name for name in tensors if name.startswith(("model.", "ema.", "optimizer."))]
    assert len(learned) > 20
    for name in learned:
        np.testing.assert_allclose(np.asarray(tensors[name]), np.asarray(tensors2[name]), 1e-9, 1e-12, err_msg=name)


def flat(value: object, name: str = "") -> dict[str, object]:
    """Nested values by dotted name."""
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, inner in items for k, v in flat(inner, f"{name}.{key}").items()}
    return {name: value}


SIX = {"train__batch_size": 6, "checkpoint__every_steps": 2, "checkpoint__keep": 99}
"""A batch that two processes can divide, and three."""


def divided(folder: Path, number: int, count: int, runs: list[str]) -> None:
    """Train these runs with fsdp, or go on with those that are there; in `full` the second process finds no room at
    step 4."""
    torch.set_num_threads(1)
    place = Place(number, count, number, count, f"file://{folder / f'meeting-{count}'}")
    team = Kept(place, torch.device("cpu"), 120.0)
    write = SafetensorsFormat.write_part

    def full(form, path, state, *more):
        if number == 1 and "step-00000004" in path.name:
            raise OSError(28, "No space left on device")
        return write(form, path, state, *more)

    for run in runs:
        SafetensorsFormat.write_part = full if run == "full" else write
        mine = SIX | {"train__batch_size": 6 // count, "train__strategy": "fsdp"}
        resume = (folder / run).exists()
        team.every(None)
        toy.run(settings(count, **mine), folder / run, project=Together, team=team, resume=resume)
    TorchTeam.leave(team)


def gathered(number: int) -> list:
    """Gradient of a loss over gathered features, as averaged over the processes afterwards."""
    torch.manual_seed(0)
    weight = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    batch = torch.randn(6, 3, dtype=torch.float64)
    mine = batch.chunk(ranks.count())[number] if ranks.count() > 1 else batch
    whole = ranks.gathered((mine @ weight).tanh())
    assert ranks.summed(torch.ones(2)).tolist() == [ranks.count()] * 2
    (whole @ whole.T).logsumexp(1).mean().backward()
    return (ranks.summed(weight.grad) / ranks.count()).tolist()


if __name__ == "__main__":
    if sys.argv[3:]:
        divided(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]))
