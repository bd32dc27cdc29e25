"""Train the weights in openkbp's package on the challenge's training patients, and write the folder.

    python train.py DATA OUT        # patients in the challenge's files, all of them to train on; a new folder

1. `run`: preset `small`, all patients, none held out for validation: the patients that judge it lie in another folder.
2. `weights`: the folder for packages/openkbp/src/runner_openkbp, with the card and the notice beside this file.

The seed is fixed; log.md has what the training gave. `runner openkbp train --resume OUT/run` goes on after an
interruption, and `python train.py --write OUT` then does the second part alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import runner_core

SETTINGS = {"data.split": "none", "train.threads": 2}
STATEMENT = (
    "Trained on 100 patients of the OpenKBP challenge (head and neck, 70/63/56 Gy in 35 fractions, planned by one "
    "method). For research only: no prediction may be used to treat a patient."
)
HERE = Path(__file__).parent


def main(data: Path, out: Path) -> None:
    runner_core.train("openkbp", data=data, preset="small", run_dir=out / "run", **SETTINGS)
    write(out)


def write(out: Path) -> None:
    """Write the weights of OUT/run in 16 bits; with 32 they would be larger than a package may bring."""
    runner_core.write_builtin(
        out / "run", out / "weights", statement=STATEMENT, files=[HERE / "MODEL_CARD.md", HERE / "NOTICE"],
        settings={}, half=True,
    )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write(Path(sys.argv[2]))
    else:
        main(*map(Path, sys.argv[1:]))
