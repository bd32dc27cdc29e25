"""Train the weights in brainunet's package: measure with one person left out, train with all, write the folder.

    python train.py DATA OUT        # a folder of T1 scans with brain masks, three people or more; a new folder

1. `held-out`: half as many steps without LEFT_OUT, whose scans show how good that is.
2. `all`: trained with everybody, from the start.
3. `weights`: the folder for packages/brainunet/src/runner_brainunet, with the card and the notice beside this file.

Both trainings have fixed seeds; log.md has what they gave.
"""

from __future__ import annotations

import sys
from pathlib import Path

import runner_core

LEFT_OUT = "sub-openms12"
SETTINGS = {
    "model.features": (16, 32, 64, 128),
    "augment.synthetic": 0.3,
    "precision.mode": "bfloat16",  # 1.8 times as fast as float32 on a processor with AVX512-BF16
    "train.ema": 0.998,
    "train.steps_per_epoch": 100,
    "train.threads": 1,
    "validate.every": 12,
    "checkpoint.every": 5,
}
STATEMENT = (
    "Trained on 5 T1 scans of 3 people with multiple sclerosis (Lesjak et al. 2016, CC BY) and on synthetic contrasts. "
    "For research only: look at the masks."
)
HERE = Path(__file__).parent


THRESHOLD = 0.65
"""Between the best ones: 0.5 on the left-out person's scans (Dice 0.966; 0.960 with 0.65), 0.75 or more on Colin27."""


def main(data: Path, out: Path) -> None:
    runner_core.train(
        "brainunet", data=data, preset="small", run_dir=out / "held-out",
        **SETTINGS, **{"data.split": f"group:{LEFT_OUT}", "train.epochs": 25},
    )  # fmt: skip
    everybody = runner_core.train(
        "brainunet", data=data, preset="small", run_dir=out / "all",
        **SETTINGS, **{"data.split": "none", "train.epochs": 50},
    )  # fmt: skip
    write(everybody.path, out / "weights")


def write(run: Path, folder: Path) -> None:
    """Write the weights of a run as the folder of the package."""
    runner_core.write_builtin(
        run, folder, statement=STATEMENT, files=[HERE / "MODEL_CARD.md", HERE / "NOTICE"],
        # the mirrored head too: Dice + 0.001
        settings={"predict.threshold": THRESHOLD, "predict.views": (), "precision.mode": "auto"},
    )  # fmt: skip


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
