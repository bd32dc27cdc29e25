"""Writes of the core that must survive an interruption.

Each scenario works in a folder and says what it has promised by then (`mark`). To check a folder in which it was
interrupted, it goes on there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
from runner_core import RunConfig
from runner_core.base.errors import BadInput
from runner_core.base.writing import replace_text
from runner_core.config import CacheConfig
from runner_core.contract import State
from runner_core.contract.records import Record
from runner_core.contract.run import Damaged
from runner_core.data.cache import default_cache
from runner_core.data.cache.folder import TEMPORARY
from runner_core.data.crop import NoCrop
from runner_core.data.pipeline import RecordPipeline
from runner_core.data.stream import cache
from runner_core.data.stream.bad import BadRecord, BadSamples
from runner_core.engines.checkpoint import SafetensorsFiles
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import JsonlSink
from runner_core.training.checkpoints import Checkpoints
from runner_core.training.timing import kept_block
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "data_toy"))
from rows_toy import RowsToy, write_volumes
from several import Threads, together
from stream_toy import fields, image, open_fields, write_fields

Mark = Callable[[Any], None]
CONFIG, BLOCK, LAST, KEEP = "project: toy\n", 7, 6, 2
WRITERS, DIVIDED = 2, (3, 5)
"""Threads, in place of processes, that write the checkpoints of some steps together."""
BETTER = (1, 3, 4)
"""Steps at which the metric improved."""


class Scenario(Protocol):
    def prepare(self, place: Path) -> None:
        """Write what is there already, outside of the folder."""
        ...

    def work(self, folder: Path, mark: Mark) -> None: ...

    def check(self, folder: Path, promised: Sequence[Any]) -> None:
        """AssertionError where something that was promised is not there, or something torn is taken for whole."""
        ...


class Format(SafetensorsFiles):
    """Checkpoints of NumPy arrays, written by Python."""

    def save(self, tensors: Any, file: Path) -> None:
        try:
            file.write_bytes(save(tensors))
        except OSError as error:  # as the Rust code says it
            raise SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})") from error

    def write_part(self, folder: Path, state: State, number: int, count: int) -> Sequence[Path]:
        rows = self.write_tensors(folder, {name: state.tensors[name] for name in state.divided}, f"-{number}")
        return rows if number else [*rows, *self.write_files(folder, State(state.values, {}))]

    def read_rows(self, folder: Path) -> State:
        return self.read(folder)

    def read(self, folder: Path, device: str = "cpu") -> State:
        found = super().read(folder)
        parts = [self.read_tensors(folder, device, f"-{number}") for number in range(WRITERS)]
        names = {name for part in parts for name in part}
        joined = {name: np.concatenate([part[name] for part in parts]) for name in names}
        return State(found.values, found.tensors | joined)

    def load(self, file: Path, device: str) -> Any:
        return load_file(file)


def state(step: int) -> State:
    """Return the content of the checkpoint of a step."""
    tensors = {"model.w": np.full(700, step, np.float32), "optimizer.m": np.arange(300) * step}
    return State({"step": step}, tensors)


def save_checkpoint(checkpoints: Checkpoints, step: int, best: bool) -> None:
    """Save one alone; those of `DIVIDED` by threads that each write some rows."""
    if step not in DIVIDED:
        checkpoints.save(state(step), step, 0, None, best)
        return
    whole = state(step)
    shapes = {name: tensor.shape for name, tensor in whole.tensors.items()}

    def part(team: Threads) -> None:
        rows = {name: np.array_split(tensor, WRITERS)[team.number] for name, tensor in whole.tensors.items()}
        checkpoints.save(State(whole.values, rows, shapes), step, 0, None, best, team)

    for error in together(WRITERS, part):
        if error is not None:
            raise error


class Run:
    """A run folder: settings, log, checkpoints with retention and the best, what streaming keeps, the summary."""

    def prepare(self, place: Path) -> None: ...

    def work(self, folder: Path, mark: Mark) -> None:
        path = folder / "runs" / "one"
        run = RunFolder.create(None, "toy", path)
        with run.lock():
            replace_text(run.config_file, CONFIG)
            checkpoints, log = self._checkpoints(run), JsonlSink(run.jsonl)
            checkpoints.start(0, None)
            assert kept_block(path / "streaming.json", BLOCK) == BLOCK
            mark(("block", BLOCK))
            for step in range(1, LAST + 1):
                self._step(step, run, checkpoints, log, mark)
            log.close()
            run.write_summary({"status": "done"})
            mark(("status", "done"))

    def _step(self, step: int, run: RunFolder, checkpoints: Checkpoints, log: JsonlSink, mark: Mark) -> None:
        log.event("train", step, {"loss": 1 / step})
        if step == 3:
            self._replace(run, mark)
        for validated in (0, step) if step == 4 else (step,):  # a signal came before the validation of step 4
            best = step in BETTER and validated > 0
            log.event("checkpoint", step, {"validated": validated})
            save_checkpoint(checkpoints, step, best)
            mark(("saved", step))
            if best:
                mark(("best", step))

    def _checkpoints(self, run: RunFolder) -> Checkpoints:
        return Checkpoints(run.checkpoints, Format(), project="toy", keep=KEEP, say=lambda text: None)

    def _replace(self, run: RunFolder, mark: Mark) -> None:
        bad = BadRecord(Record("r1", "g", {"image": Path("r1.npy")}), BadInput("r1.npy: no image"))
        BadSamples(100, run.path / "bad_samples.jsonl").replaced(bad, 5, 0, "r2")
        mark(("stand-in", "r2"))

    def check(self, folder: Path, promised: Sequence[Any]) -> None:
        last = dict(promised)
        path = folder / "runs" / "one"
        if not last and not (path / "config.yaml").exists():  # it begins anew, in the same folder
            self.work(folder, lambda label: None)
            return
        run = RunFolder.open(path)
        assert run.config_file.read_text() == CONFIG
        with run.lock():
            self._check_open(run, last)

    def _check_open(self, run: RunFolder, last: dict[str, Any]) -> None:
        checkpoints = self._checkpoints(run)
        for step in run.saved_steps():
            try:
                checkpoints.verify(checkpoints.of(step))
            except Damaged:
                assert step not in last.values(), f"checkpoint {step} was promised, and is damaged"
                continue
            self._assert_is(checkpoints.load(checkpoints.of(step)), step)
        found, best = checkpoints.latest(), checkpoints.best()
        newest = 0 if found is None else found[1].step
        assert newest >= last.get("saved", 0), f"checkpoint {last['saved']} was promised, the newest is {newest}"
        if found is not None:
            self._assert_is(checkpoints.load(found[0]), newest)
        if "best" in last:
            assert best is not None
            assert best[1].step >= last["best"]
        assert json.dumps(last.get("status", "done")) == '"done"'
        if "status" in last:
            assert run.read_summary() == {"status": "done"}
        if (run.path / "streaming.json").exists() or "block" in last:
            assert kept_block(run.path / "streaming.json", 99) == BLOCK
        if "stand-in" in last:
            assert BadSamples(100, run.path / "bad_samples.jsonl").recorded("r1", 5, 0) == "r2"
        self._go_on(run, checkpoints, newest, None if best is None or not newest else best[1].step)

    def _go_on(self, run: RunFolder, checkpoints: Checkpoints, newest: int, best: int | None) -> None:
        """Do what a resume does."""
        checkpoints.start(newest, best)
        run.truncate_log(newest, newest)
        steps = [event["step"] for event in run.events() if event["event"] == "train"]
        assert steps == [*range(1, newest + 1)], f"the log has the steps {steps} of {newest}"
        log = JsonlSink(run.jsonl)
        for step in range(newest + 1, LAST + 2):
            self._step(step, run, checkpoints, log, lambda label: None)
        log.close()
        run.write_summary({"status": "done"})
        names = sorted(entry.name for entry in run.checkpoints.iterdir() if ".damaged" not in entry.name)
        wanted = {LAST, LAST + 1, *([json.loads((run.checkpoints / "best.json").read_text())["step"]])}
        assert names == ["best.json", *(f"step-{step:08d}" for step in sorted(wanted))]
        assert not [entry.name for entry in run.path.glob(".*") if entry.name != ".lock"]
        assert run.read_summary() == {"status": "done"}

    def _assert_is(self, found: State, step: int) -> None:
        wanted = state(step)
        assert found.values == wanted.values
        for name, tensor in wanted.tensors.items():
            assert np.array_equal(found.tensors[name], tensor), f"{name} of checkpoint {step} is not what was saved"


class Cache:
    """The cache of prepared arrays, built, and built again with more records."""

    def prepare(self, place: Path) -> None:
        write_volumes(place / "data", (5, 7, 1, 9))
        self._data, self._place = place / "data", place

    def work(self, folder: Path, mark: Mark) -> None:
        for count in (2, 4):
            self._open(folder, count)

    def _open(self, folder: Path, count: int) -> None:
        config = RunConfig(cache=CacheConfig(mode="memmap", dir=folder / "cache", workers=1))
        project = RowsToy(config)
        pipeline, records = RecordPipeline(project, NoCrop()), project.records(self._data)[:count]
        store = default_cache(project, config).open(pipeline, records, lambda text: None)
        try:
            for number, record in enumerate(records):
                for name, array in pipeline(record).arrays.items():
                    assert np.array_equal(store.arrays[name].read(number), array), f"{name} of {record.key} is wrong"
        finally:
            store.close()

    def check(self, folder: Path, promised: Sequence[Any]) -> None:
        for count in (2, 3, 4):
            self._open(folder, count)
        assert not [*folder.rglob(f"{TEMPORARY}*")]


class Stream:
    """Entries of streamed records, more than find room."""

    COUNT, ROOM, LEAST = 8, 0.00003, 4
    """Records; room for what is kept of them (GB); how many must find room, so that removing some takes few operations.
    """

    def prepare(self, place: Path) -> None:
        (place / "fields").mkdir()
        write_fields(lambda name, data: (place / "fields" / name).write_bytes(data), self.COUNT)
        self._data = place / "fields"

    def work(self, folder: Path, mark: Mark) -> None:
        with patch.object(cache, "_LEAST", self.LEAST):
            store = open_fields(fields(self._data, self.COUNT), folder / "cache", self.ROOM, ahead=False)
        try:
            for number in (*range(self.COUNT), 0, 3, 1):
                wanted = np.stack([image(number, 0), image(number, 1)])
                assert np.array_equal(store.arrays["image"].read(number), wanted), f"record {number} is wrong"
        finally:
            store.close()

    def check(self, folder: Path, promised: Sequence[Any]) -> None:
        self.work(folder, lambda label: None)
        kept = self.kept(folder)
        assert len(kept) < self.COUNT
        self.check_kept(kept)

    def kept(self, folder: Path) -> list[Path]:
        return [file for file in (folder / "cache" / "stream").iterdir() if file.name not in ("total", "claims")]

    def check_kept(self, kept: Sequence[Path]) -> None:
        assert sum(file.stat().st_size for file in kept) <= self.ROOM * 1e9
        assert not [file.name for file in kept if file.name.startswith(".writing-")]


class RoomyStream(Stream):
    """Entries of streamed records that all find room, with the real least number."""

    COUNT, ROOM, LEAST = 24, 0.00012, cache._LEAST

    def check(self, folder: Path, promised: Sequence[Any]) -> None:
        self.work(folder, lambda label: None)
        kept = self.kept(folder)
        assert len(kept) == self.COUNT
        self.check_kept(kept)


SCENARIOS: dict[str, type[Scenario]] = {"run": Run, "cache": Cache, "stream": Stream, "roomy stream": RoomyStream}
WEEKLY = {"roomy stream"}
"""Those in which no kind of operation fails that does not fail in another one."""
