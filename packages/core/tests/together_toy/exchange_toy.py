"""What processes do for the tests of exchanges: `python exchange_toy.py FOLDER NUMBER COUNT` is one of COUNT.

With a fourth argument, `more`, it does what the slow tests look at; with runs and their settings as JSON, it trains
them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parent))
import together_toy as together
import torch
from runner_core.base.errors import BadInput
from runner_core.contract import Precision, Step
from runner_core.contract.team import Place
from runner_core.engines.torch import fsdp, parallel, ranks
from runner_core.engines.torch.shards import gathered
from runner_core.engines.torch.team import TorchTeam
from runner_core.engines.torch.traffic import Traffic
from runner_core.training.assembly import assemble
from together_toy import toy
from torch import nn
from torch.nn import functional as F

STEPS, WEIGHTS = 12, 8 * (together.WIDTH * together.FEATURES + together.FEATURES + 8 * 3 + together.FEATURES)
"""Steps of a run, and bytes of the weights that it learns."""
RUNS = {
    "ddp-micro_batch": {"exchange__gradients": "micro_batch"},
    "ddp-find": {"exchange__unused": "find"},
    "fsdp-micro_batch": {"train__strategy": "fsdp"},
    "fsdp-step": {"train__strategy": "fsdp", "exchange__gradients": "step"},
}
"""The settings of each further run of two processes."""


class Steady(together.Together):
    """Its batches may be cut, and every step uses all weights, except step `forgets`."""

    splittable = True
    forgets: ClassVar[int | None] = None

    def step(self, model, batch, progress):
        taught = model.teach(batch["image"]) - model.centre
        features = model(batch["image"], masked=progress.step != self.forgets)
        match = F.mse_loss(features, taught)
        prediction = model.head(features)
        return Step(match + prediction.square().mean(), {"match": match}, prediction)


class Forgetful(Steady):
    forgets = 7


class Partly(Steady):
    """Step 7 leaves out a weight for the second half of the batch: the second process, or one's second micro-batch."""

    calls = 0

    def step(self, model, batch, progress):
        now = progress.step == 7 and torch.is_grad_enabled()
        self.calls += now
        self.forgets = 7 if now and (ranks.number() == 1 or (ranks.count(), self.calls) == (1, 2)) else None
        return super().step(model, batch, progress)


class Layers(toy.Toy):
    """Linear layers alone, in float32, which compute in bfloat16."""

    splittable = True
    monitor = ("loss", "min")
    parts: ClassVar = (lambda: nn.Linear(together.WIDTH, 9), nn.Tanh, lambda: nn.Linear(9, 3))

    def on_device(self, batch, statistics, rng):
        return {**batch, "image": (batch["image"].float().flatten(1) - 127.5) / 64}

    def model(self, precision):
        return nn.Sequential(*(part() for part in self.parts))

    def shard_units(self, model):
        return [layer for layer in model if isinstance(layer, nn.Linear)]

    def step(self, model, batch, progress):
        prediction = model(batch["image"])
        return Step((prediction.float() - 1).square().mean(), {}, prediction)

    def watch(self, model):
        return {}

    def metrics(self):
        return []


class Wide(nn.Module):
    def forward(self, features):
        return features.float()


class Norms(Layers):
    """The same with a layer whose weights autocast leaves in float32, and which refuses others."""

    parts = (*Layers.parts[:2], Wide, lambda: nn.LayerNorm(9), Layers.parts[2])


class Direct(Layers):
    """It uses the weights of a layer that it does not call."""

    def step(self, model, batch, progress):
        found = super().step(model, batch, progress)
        return found._replace(loss=found.loss + F.linear(batch["image"], model[0].weight).square().mean())


HALF = {"train__strategy": "fsdp", "precision__mode": "bfloat16", "net__dropout": 0.0, "train__batch_size": 4,
        "train__learning_rate": 1e-3}  # fmt: skip


def kept_gradients(folder: Path, team) -> dict[str, int]:
    """The bytes of gradients that the memory plan counts for a process of fsdp, by when they are exchanged."""
    found = {}
    for when in ("step", "micro_batch"):
        more = {"train__strategy": "fsdp", "exchange__gradients": when}
        setup = toy.ToySetup(Steady(settings(team.count, **more)), team=team)
        parts = assemble(setup, toy.make_data(setup.project), folder, lambda text: None)
        found[when] = parts.trainer.footprint({}).gradients
        parts.loaders.close()
    return found


def said(folder: Path, team) -> list[str]:
    """What is said at the start of a run whose strategy `auto` becomes ddp."""
    found: list[str] = []
    setup = toy.ToySetup(Steady(settings(team.count, exchange__gather="bfloat16")), team=team)
    assemble(setup, toy.make_data(setup.project), folder, found.append).loaders.close()
    return found


def errors(number: int) -> dict[str, float]:
    """The largest error of a gradient summed in bfloat16, over what rounding explains, by strategy: 3 u Σ|g| / n.

    Each of the n gradients, its share and each sum are rounded once, to 8 bits (u = 2⁻⁸).
    """
    torch.manual_seed(number)
    features, found = torch.randn(5, 12), {}
    for name in ("ddp", "fsdp"):
        torch.manual_seed(7)
        network = nn.Linear(12, 6)
        loss = lambda net=network: Step(net(features).tanh().sum(), {}, None)  # noqa: E731
        loss().loss.backward()
        own = network.weight.grad.double()
        network.zero_grad()
        exact, size = ranks.summed(own) / ranks.count(), ranks.summed(own.abs()) / ranks.count()
        project = toy.Toy(toy.small(train__strategy=name, exchange__reduce="bfloat16", exchange__unused="none"))
        cpu = torch.device("cpu")
        made = parallel.parallel(project, network, cpu, Precision("float32"), 1, ranks.count())
        made.train(loss).loss.backward()
        made.check()
        error = (gathered(network.weight.grad).double() - exact).abs()
        assert error.max() > 0
        found[name] = float((error / (3 * 2**-8 * size)).max())
    return found


def settings(count: int, **more):
    return together.settings(count, **{"train__accumulate": 2, "checkpoint__every_steps": 2, **more})


def begin(folder: Path, number: int, count: int) -> together.Kept:
    torch.set_num_threads(1)
    fsdp.LEAST_APART = 1
    place = Place(number, count, number, count, f"file://{folder / 'meeting'}")
    return together.Kept(place, torch.device("cpu"), 120.0)


def main(folder: Path, number: int, count: int) -> None:
    """Do what the tests of every day look at."""
    team = begin(folder, number, count)
    with Traffic() as traffic:
        toy.run(settings(count), folder / "ddp-step", project=Steady, team=team)
    (folder / f"traffic-{number}.json").write_text(json.dumps({"ddp-step": traffic.whole}))
    for kind in (Forgetful, Partly):
        toy.run(settings(count), folder / kind.__name__, project=kind, team=team)
    try:
        toy.run(settings(count, exchange__unused="none"), folder / "none", project=Partly, team=team)
    except BadInput as error:
        (folder / f"none-{number}").write_text(str(error))
    (folder / f"errors-{number}.json").write_text(json.dumps(errors(number)))
    (folder / f"said-{number}").write_text("\n".join(said(folder, team)))
    TorchTeam.leave(team)


def more(folder: Path, number: int, count: int) -> None:
    """Do what the slow tests look at."""
    team = begin(folder, number, count)
    traffic = {}
    for name, changed in RUNS.items():
        with Traffic() as traffic[name]:
            toy.run(settings(count, **changed), folder / name, project=Steady, team=team)
    for how in ("scatter", "all"):
        with Traffic() as traffic[f"features-{how}"]:
            features = together.settings(count, exchange__features=how)
            toy.run(features, folder / f"features-{how}", project=together.Together, team=team)
    for kind in (Layers, Norms):
        for gather in ("float32", "bfloat16"):
            name = f"{kind.__name__}-{gather}"
            with Traffic() as traffic[name]:
                half = toy.small(**HALF, train__devices=count, exchange__gather=gather)
                toy.run(half, folder / name, project=kind, team=team)
    try:
        half = toy.small(**HALF, train__devices=count, exchange__gather="bfloat16")
        toy.run(half, folder / "direct", project=Direct, team=team)
    except BadInput as error:
        (folder / f"direct-{number}").write_text(str(error))
    (folder / f"kept-{number}.json").write_text(json.dumps(kept_gradients(folder, team)))
    (folder / f"traffic-{number}.json").write_text(json.dumps({name: t.whole for name, t in traffic.items()}))
    TorchTeam.leave(team)


LEVELS = {
    "hsdp": {"train__strategy": "hsdp", "exchange__shard_devices": 2},
    "hsdp-step": {"train__strategy": "hsdp", "exchange__shard_devices": 2, "exchange__gradients": "step"},
    "hsdp-micro_batch": {"train__strategy": "hsdp", "exchange__shard_devices": 2, "exchange__gradients": "micro_batch"},
    "fsdp": {"train__strategy": "fsdp"},
}
"""The settings of each run of four processes, which make two groups of two."""


def train(folder: Path, number: int, count: int, runs: dict[str, dict]) -> None:
    """Train with these settings, or go on with the runs that are there; write the traffic of all."""
    torch.set_num_threads(1)
    place = Place(number, count, number, count, f"file://{folder / f'meeting-{count}-{len(runs)}'}")
    team = together.Kept(place, torch.device("cpu"), 120.0)
    traffic = {}
    for name, more in runs.items():
        resume = (folder / name).exists()
        team.every(None)
        with Traffic() as counted:
            toy.run(settings(count, **more), folder / name, project=Steady, team=team, resume=resume)
        traffic[name] = {"whole": counted.whole, "sent": counted.sent}
    (folder / f"traffic-{count}-{number}.json").write_text(json.dumps(traffic))
    TorchTeam.leave(team)


if __name__ == "__main__":
    if sys.argv[4:] == ["more"]:
        more(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[4:]:
        train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
