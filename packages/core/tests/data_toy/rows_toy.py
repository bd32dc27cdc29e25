"""A project small enough to build caches of in tests; spawned processes import it by name."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.contract.project import Project
from runner_core.contract.records import Decoded, Record


class RowsToy(Project):
    """Records are .npy volumes (uint8, rows first); `log` notes every decode.

    After `free` of them, of all processes together, decoding stands still as long as a file `hold` is beside the log.
    """

    name = "rowstoy"
    framework = "torch"
    Config = RunConfig
    presets = {}  # noqa: RUF012

    def __init__(self, config: RunConfig, log: Path | None = None, dtype: str = "uint8", free: int = 10**6) -> None:
        super().__init__(config)
        self.log, self.dtype, self.free = log, dtype, free

    def prepare_settings(self):
        return {"dtype": self.dtype}

    def records(self, root: Path):
        return [Record(p.stem, p.stem[:1], {"image": p}) for p in sorted(root.glob("*.npy"))]

    def decode(self, record):
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(json.dumps([record.key, os.getpid()]) + "\n")
            while len(self.decoded_keys()) > self.free and self.log.with_name("hold").exists():
                time.sleep(0.01)
        try:
            volume = np.load(record.files["image"], allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise BadInput(f"{record.files['image']}: not a volume ({error})") from error
        return Decoded({"image": volume}, (1.0,) * volume.ndim, "image", {"key": record.key})

    def prepare(self, decoded):
        image = decoded.arrays["image"].astype(self.dtype)
        return {"image": image, "mask": (image > 100).astype(np.uint8)}

    def decoded_keys(self):
        return [json.loads(line)[0] for line in self.log.read_text().splitlines()] if self.log.exists() else []


def write_volumes(folder: Path, lengths, side: int = 16, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for i, length in enumerate(lengths):
        np.save(folder / f"{chr(97 + i % 26)}{i}.npy", rng.integers(0, 255, (length, side, side), dtype=np.uint8))


def add_noise(sample, rng) -> None:
    """An augmentation that shows which generator it was given."""
    sample["image"][...] = rng.integers(0, 255, sample["image"].shape)


class Failing:
    """Samples whose filling fails, or kills its process."""

    def __init__(self, how: str) -> None:
        from runner_core.contract import SampleSpec

        self.how = how
        self.spec = {"image": SampleSpec((2,), np.dtype(np.uint8)), "record": SampleSpec((), np.dtype(np.int64))}

    def __len__(self) -> int:
        return 100

    def fill(self, indices, positions, seed, epoch, out) -> None:
        if self.how == "sleep":
            time.sleep(60)
        if self.how == "bad":
            raise BadInput("scan.nii: broken")
        raise ZeroDivisionError("a bug in the samples")


class RemoteNumbers:
    """Samples that are their own numbers."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def fill(self, indices, positions, seed, epoch, out) -> None:
        out["image"][...] = indices[:, None]
        out["record"][...] = indices


class Frameworks(RemoteNumbers):
    """A sample is the number of frameworks that its process has imported."""

    def __init__(self) -> None:
        from runner_core.contract import SampleSpec

        super().__init__(3)
        self.spec = {"image": SampleSpec((1,), np.dtype(np.uint8))}

    def fill(self, indices, positions, seed, epoch, out) -> None:
        out["image"][...] = len({"torch", "tensorflow", "keras"} & set(sys.modules))


class Doubles:
    """Work with a large array; `write` changes it in one worker alone."""

    def __init__(self, table):
        self.table, self.small = table, np.arange(3)

    def __call__(self, task):
        number, write = task
        if write:
            self.table[number] = -1
        return os.getpid(), int(self.table[number]), self.small.tolist(), self.table.flags.writeable
