"""Train the weights in openkbp's package on the challenge's training patients, and write the folder.

    python train.py DATA OUT                # the challenge's training patients and no others; a new folder
    python train.py DATA OUT --rehearse     # six steps instead of 7,500: whether all parts work, in a minute
    python train.py DATA OUT --write        # after an interruption and `runner openkbp train --resume OUT/run`

DATA may be `provided-data/train-pats` of github.com/ababier/open-kbp. All its patients train; those that judge the
weights must lie elsewhere. The weights in the package saw the 100 patients that their split.yaml names.

1. `OUT/run`: preset `small`, none held out for validation.
2. `OUT/weights`: the folder for packages/openkbp/src/runner_openkbp, with the card and the notice beside this file. The
   card's figures are those of the weights in the package: write your own from what `evaluate` finds.

The seed is fixed; log.md has what the training gave.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import runner_core

SETTINGS = {"data.split": "none", "train.threads": 2}
STATEMENT = (
    "Trained on 100 patients of the OpenKBP challenge (head and neck, 70/63/56 Gy in 35 fractions, planned by one "
    "method). For research only: no prediction may be used to treat a patient."
)
SHORT = {"train.epochs": 2, "train.steps_per_epoch": 3, "log.every": 1, "health.mode": "warn"}
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("out", type=Path, metavar="OUT")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--rehearse", action="store_true")
    part.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if not asked.write:
        train(asked.data, asked.out, SHORT if asked.rehearse else {})
    write(asked.out)


def train(data: Path, out: Path, changes: Mapping[str, Any]) -> None:
    """Train on all patients of `data`."""
    runner_core.train("openkbp", data=data, preset="small", run_dir=out / "run", **{**SETTINGS, **changes})


def write(out: Path) -> None:
    """Write the weights of OUT/run in 16 bits; with 32 they would be larger than a package may bring."""
    runner_core.write_builtin(
        out / "run", out / "weights", statement=STATEMENT, files=[HERE / "MODEL_CARD.md", HERE / "NOTICE"],
        settings={}, half=True,
    )  # fmt: skip


if __name__ == "__main__":
    main()
