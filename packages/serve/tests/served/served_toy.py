"""The core's toy project, with inputs as a server gets them, and a network that can be made to hang or to die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Cropped, Decoded, Infer, Project, Record, hookimpl, replace_json
from runner_core.testing.toy import Toy

HANG, DIE, FAIL, HOLD = -1e6, -2e6, -3e6, -4e6
"""What the first pixel says."""


class Served(Toy):
    def inputs(self, path: Any) -> Sequence[Record]:
        if path.is_dir():
            found = sorted(path.rglob("*.npy"))
            if (elsewhere := path / "where.list").is_file():
                found = [Path(elsewhere.read_text())]
        else:
            found = [path]
        if [file for file in found if file.suffix != ".npy"] or not found:
            raise BadInput(f"{path}: no .npy file")
        return [Record(file.stem, file.stem, {"image": file}) for file in found]

    def decode(self, record: Record) -> Decoded:
        try:
            image = np.load(record.files["image"], allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise BadInput(f"{record.files['image']}: damaged") from error
        return Decoded({"image": image}, spacing=(1.0, 1.0), guide="image")

    def predict(self, cropped: Cropped, infer: Infer) -> Any:
        what, folder = cropped.prepared["image"][0, 0], Path(os.environ["SERVED_FOLDER"])
        if what == HANG:
            time.sleep(1e6)
        elif what == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == FAIL:
            raise ZeroDivisionError("a mistake in the project")
        elif what == HOLD:
            (folder / "held").touch()
            while not (folder / "go").exists():
                time.sleep(0.01)
        return super().predict(cropped, infer)

    def write(self, record: Record, prediction: Any, out: Path) -> Sequence[Path]:
        replace_json(out / f"{record.key}.json", {"Area": int(prediction.sum()), "Record": record.key})
        return [*super().write(record, prediction, out), out / f"{record.key}.json"]


@hookimpl
def runner_project() -> type[Project]:
    return Served
