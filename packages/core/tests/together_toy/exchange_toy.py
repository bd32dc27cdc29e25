"""What processes do for the tests of exchanges: `python exchange_toy.py FOLDER NUMBER COUNT` is one of COUNT."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parent))
import together_toy as together
import torch
from runner_core.base.errors import BadInput
from runner_core.contract import Step
from runner_core.contract.team import Place
from runner_core.engines.torch.team import TorchTeam
from runner_core.engines.torch.traffic import Traffic
from together_toy import toy
from torch.nn import functional as F

STEPS, WEIGHTS = 12, 8 * (together.WIDTH * together.FEATURES + together.FEATURES + 8 * 3 + together.FEATURES)
"""Steps of a run, and bytes of the weights that it learns."""
RUNS = {
    "ddp-step": {},
    "ddp-micro_batch": {"exchange__gradients": "micro_batch"},
    "ddp-find": {"exchange__unused": "find"},
    "fsdp-micro_batch": {"train__strategy": "fsdp"},
    "fsdp-step": {"train__strategy": "fsdp", "exchange__gradients": "step"},
}
"""The settings of each run of two processes."""


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


def settings(count: int, **more):
    return together.settings(count, **{"train__accumulate": 2, "checkpoint__every_steps": 2, **more})


def main(folder: Path, number: int, count: int) -> None:
    torch.set_num_threads(1)
    place = Place(number, count, number, count, f"file://{folder / 'meeting'}")
    team = together.Kept(place, torch.device("cpu"), 120.0)
    traffic = {}
    for name, more in RUNS.items():
        with Traffic() as traffic[name]:
            toy.run(settings(count, **more), folder / name, project=Steady, team=team)
    try:
        toy.run(settings(count), folder / "forgetful", project=Forgetful, team=team)
    except BadInput as error:
        (folder / f"forgetful-{number}").write_text(str(error))
    found = settings(count, exchange__unused="find")
    toy.run(found, folder / "forgetful", project=Forgetful, team=team, resume=True)
    (folder / f"traffic-{number}.json").write_text(json.dumps({name: t.whole for name, t in traffic.items()}))
    TorchTeam.leave(team)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
