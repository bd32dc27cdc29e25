"""Trainings killed with SIGKILL at random moments, resumed until they are done, and compared with one that nobody
disturbed: weights, optimizer, generators, log, scores and files must be the same, bit for bit.

    python packages/core/tests/kills/campaign.py torch --kills 600 --seed 1 --out kills.jsonl
    python packages/core/tests/kills/campaign.py table kills.jsonl

Each training is a whole `runner PROJECT train` in a process forked from this one, which has imported the framework:
a kill costs about a second. Of two processes that train together one is killed, the other, or both. Every line of the
output is one training: its cell, its seed, in which phase each kill came, what differs. Exit code 1: something did.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PLUGINS = (HERE, HERE.parent / "toy" / "project")
FRAMEWORK = {"torch": "toy", "keras": "kerastoy"}
"""The project that trains with each."""
PHASES = ("set-up", "building the cache", "before step 1", "steps and validations", "saving", "scoring and report")
GRACE = 5.0
"""Seconds in which a process notices that another one is gone; while they meet it does not, and whoever started both
ends it."""
PATIENCE = 300.0
"""Seconds after which a process that was not killed hangs."""
MOST = 5
"""Kills of one training."""
_VICTIMS = {"the first": (0,), "the second": (1,), "both": (0, 1)}
_SETTINGS = (
    "--train.device cpu --train.deterministic --train.threads 1 --train.epochs 2 --train.steps-per-epoch 8 "
    "--train.batch-size 4 --train.ema 0.9 --checkpoint.every-steps 3 --checkpoint.keep 3 --log.every 2 "
    "--health.mode warn"
).split()
_ROOM = "0.00016"
"""GB in which 16 of the 24 records find room: streaming has to remove some."""


@dataclass(frozen=True)
class Cell:
    """One way of training: engine, number of processes and workers, place of the data."""

    engine: str
    processes: int
    workers: int
    data: str

    def __str__(self) -> str:
        return f"{self.engine}, {self.processes} process(es), {self.workers} workers, {self.data}"

    @property
    def strategy(self) -> str:
        """With fsdp each of two processes writes a part of every checkpoint: in half of the cells."""
        return "fsdp" if self.workers else "ddp"

    @property
    def share(self) -> int:
        """How often it comes: the more, the cheaper."""
        return {(1, 0): 16, (1, 2): 2, (2, 0): 2, (2, 2): 1}[self.processes, self.workers]

    def words(self, data: Path) -> list[str]:
        """The flags of `runner PROJECT train` for this cell."""
        source = data / ("damaged" if self.data == "stream" else "whole")
        mode = ["--cache.mode", "stream", "--cache.max-gb", _ROOM] if self.data == "stream" else []
        return [
            "--data",
            str(source),
            *_SETTINGS,
            "--train.workers",
            str(self.workers),
            *(["--train.strategy", self.strategy] if self.engine == "torch" else []),
            *mode,
            "--cache.workers",
            str(max(1, self.workers)),
        ]


def cells(engine: str) -> list[Cell]:
    """The cells of an engine: two processes train in torch alone."""
    return [Cell(engine, *rest) for rest in product((1, 2) if engine == "torch" else (1,), (0, 2), ("local", "stream"))]


@dataclass(frozen=True)
class Kill:
    """When the first process had taken `cpu_seconds`, and so many seconds `later`, `who` was killed, in `phase`. CPU
    time, for the machine may be busy."""

    cpu_seconds: float
    later: float
    who: str
    phase: str


@dataclass
class Trial:
    """One training: its kills, and what is wrong with it at the end (nothing: an empty list)."""

    cell: Cell
    seed: str
    kills: list[Kill] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Campaign:
    """Runs trials of one engine in `folder`."""

    def __init__(self, engine: str, folder: Path) -> None:
        self._engine, self._folder = engine, folder
        self._references: dict[Cell, tuple[Path, float]] = {}
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: whom a killed process leaves comes to us
        _write_data(folder / "data")
        _warm(engine, folder)
        faulthandler.enable()
        gc.freeze()

    def run(self, kills: int, seed: int, only: str = "") -> Iterator[Trial]:
        """Yield trials until there were `kills` kills: first one of every cell (whose name contains `only`), then cells
        drawn at random, cheap ones more often."""
        there = [cell for cell in cells(self._engine) if only in str(cell)]
        rng, done, number = random.Random(seed), 0, 0
        while number < len(there) or done < kills:
            cell = there[number] if number < len(there) else rng.choices(there, [cell.share for cell in there])[0]
            trial = self._trial(cell, f"{seed} {number}")
            done += len(trial.kills)
            number += 1
            yield trial

    def _trial(self, cell: Cell, seed: str) -> Trial:
        reference, whole = self._reference(cell)
        trial, rng, begun = Trial(cell, seed), random.Random(seed), time.monotonic()
        place = self._folder / "trial"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        while True:
            who = rng.choice(sorted(_VICTIMS)) if cell.processes == 2 else "the first"
            kill = Kill(rng.uniform(0, whole), rng.choice((0, rng.uniform(0, 0.05))), who, "")
            codes = self._train(cell, place, kill if len(trial.kills) < MOST else None)
            if not any(codes):
                break
            if None in codes or -signal.SIGKILL not in codes:
                trial.wrong.append(f"it ended with {codes}: {(place / 'said').read_text(errors='replace')[-2000:]}")
                break
            trial.kills.append(replace(kill, phase=_phase(place)))
        trial.seconds = time.monotonic() - begun
        trial.wrong += list(_differences(self._engine, reference, place)) if not trial.wrong else []
        if trial.wrong:
            place.rename(self._folder / f"wrong-{time.time_ns()}")
        return trial

    def _reference(self, cell: Cell) -> tuple[Path, float]:
        """Folder of the training that nobody disturbs, and CPU seconds of its first process."""
        if cell not in self._references:
            place = self._folder / f"reference-{len(self._references)}"
            place.mkdir()
            self._used = 0.0
            codes = self._train(cell, place, None)
            assert not any(codes), (place / "said").read_text()
            self._references[cell] = place, self._used
        return self._references[cell]

    def _train(self, cell: Cell, place: Path, kill: Kill | None) -> list[int | None]:
        """Train in `place`, or go on, with one kill. Exit codes of all processes, and None where one hung, or one that
        they had started."""
        there = (place / "run" / "config.yaml").exists()
        begin = ["--run-dir", "run", *cell.words(self._folder / "data")]
        words = [FRAMEWORK[cell.engine], "train", *(["--resume", "run"] if there else begin)]
        meeting = Path(tempfile.mkdtemp(dir=place, prefix="meeting-"))
        pids = [_fork(words, place, _environment(cell, place, number, meeting)) for number in range(cell.processes)]
        codes: list[int | None] = [None] * len(pids)

        def due() -> bool:
            self._used = _cpu_seconds(pids[0]) or self._used
            return kill is not None and _cpu_seconds(pids[0]) >= kill.cpu_seconds

        ended = _wait(pids, codes, PATIENCE, due)
        if kill is not None and not ended:
            time.sleep(kill.later)
            _end(pids, codes, signal.SIGKILL, _VICTIMS[kill.who])
            if not _wait(pids, codes, GRACE):  # as `cli.launch` does: see there
                _end(pids, codes, signal.SIGKILL, (0, 1))
            ended = _wait(pids, codes, PATIENCE)
        if not ended:
            codes.append(None)
            for number in (signal.SIGABRT, signal.SIGKILL):  # at the first each says where it hangs
                for pid in _children():
                    os.kill(pid, number)
                _wait(pids, [*codes], GRACE)
        shutil.rmtree(meeting)
        return codes


def _warm(engine: str, folder: Path) -> None:
    """Import what a training imports, and parse its settings once: processes forked from here need not."""
    from runner_core.cli import main

    importlib.import_module(f"runner_core.engines.{engine}.engine")
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        main([FRAMEWORK[engine], "config", *cells(engine)[0].words(folder / "data")])
    place = folder / "warm"
    place.mkdir()
    listed = "import atexit, sys; atexit.register(lambda: open('modules', 'w').write(chr(10).join(sys.modules)))"
    words = [FRAMEWORK[engine], "train", "--run-dir", "run", *cells(engine)[0].words(folder / "data")]
    code = f"{listed}; from runner_core.cli import main; sys.exit(main({words!r}))"
    environment = _environment(cells(engine)[0], place, 0, place)
    subprocess.run([sys.executable, "-c", code], cwd=place, env=environment, check=True, stdout=subprocess.DEVNULL)
    for name in (place / "modules").read_text().splitlines():
        with suppress(Exception):
            importlib.import_module(name)


def _environment(cell: Cell, place: Path, number: int, meeting: Path) -> dict[str, str]:
    found = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, PLUGINS)),
        "XDG_CACHE_HOME": str(place / "cache"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    if cell.processes > 1:
        own = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": cell.processes, "LOCAL_WORLD_SIZE": cell.processes}
        found |= {name: str(value) for name, value in own.items()}
        found |= {"RUNNER_RENDEZVOUS": str(meeting / "meeting"), "GLOO_SOCKET_IFNAME": "lo"}
    return found


def _fork(words: Sequence[str], place: Path, environment: Mapping[str, str]) -> int:
    from runner_core.testing.forked import become

    pid = os.fork()
    if pid:
        return pid
    said = os.open(place / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    request = {"words": words, "environment": environment, "folder": str(place), "call": "runner_core.cli:main"}
    become(request, [said, os.dup(said)], sys.path)
    raise AssertionError("never comes here")


def _wait(
    pids: Sequence[int], codes: list[int | None], seconds: float, due: Callable[[], bool] = lambda: False
) -> bool:
    """Note exit codes until all have ended, those that they have started too: True; or until `due`, or too late."""
    until = time.monotonic() + seconds
    while True:
        with suppress(ChildProcessError):
            while ended := os.waitpid(-1, os.WNOHANG):
                if not ended[0]:
                    break
                if ended[0] in pids:
                    codes[pids.index(ended[0])] = os.waitstatus_to_exitcode(ended[1])
        if not _children():
            return True
        if due() or time.monotonic() > until:
            return False
        time.sleep(0.005)


def _end(pids: Sequence[int], codes: Sequence[int | None], number: int, which: Sequence[int]) -> None:
    for pid, code in [(pids[n], codes[n]) for n in which if n < len(pids)]:
        if code is None:
            os.kill(pid, number)


def _cpu_seconds(pid: int) -> float:
    """CPU time that a process has taken; 0.0 where it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # CPUCLOCK_SCHED of linux/posix-timers.h
    except OSError:
        return 0.0


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _phase(place: Path) -> str:
    """In which phase a training was killed, by what it left."""
    run = place / "run"
    if not (run / "config.yaml").exists():
        return PHASES[0]
    if not (run / "log.jsonl").exists():
        return PHASES[1] if [*place.glob("cache/runner/**/.building-*")] else PHASES[2]
    summary = run / "summary.json"
    if summary.exists() and json.loads(summary.read_text())["status"] == "done":
        return PHASES[5]
    return PHASES[4] if [*run.glob("checkpoints/.*")] else PHASES[3]


def _differences(engine: str, reference: Path, place: Path) -> Iterator[str]:
    """Yield each difference between two finished trainings."""
    from runner_core.data.cache.folder import TEMPORARY, caches, settings_folders, verify
    from runner_core.tools.verify_resume import differences

    form = {"torch": "SafetensorsFormat", "keras": "ArraysFormat"}[engine]
    read = getattr(importlib.import_module(f"runner_core.engines.{engine}.checkpoint"), form)().read
    one, two = reference / "run", place / "run"
    yield from (difference.text() for difference in differences(one, two, read))
    ours, theirs = ({str(p.relative_to(run)) for p in run.rglob("*")} for run in (one, two))
    if ours != theirs:
        yield f"files that only one has: {sorted(ours ^ theirs)}"
    for name in ("scores.csv", "bad_samples.jsonl"):  # workers add to the latter in any order
        found = [(run / name).read_text().splitlines() for run in (one, two) if (run / name).exists()]
        if found and sorted(found[0]) != sorted(found[-1]):
            yield f"{name} differs"
    scores = [json.loads((run / "summary.json").read_text()).get("scores") for run in (one, two)]
    if scores[0] != scores[1]:
        yield f"scores differ: {scores}"
    for folder in settings_folders(place / "cache" / "runner", None):
        for cache in caches(folder):
            verify(cache)
        if left := [*folder.glob(f"{TEMPORARY}*")]:
            yield f"left of a cache: {left}"
    if left := [*(place / "cache" / "runner" / "stream").glob(".writing-*")]:
        yield f"left of the stream: {left}"


def _write_data(folder: Path) -> None:
    """24 records; in `damaged` one that is trained on cannot be read."""
    import numpy as np

    rng = np.random.default_rng(0)
    whole = folder / "whole"
    whole.mkdir(parents=True)
    rows, columns = np.mgrid[:24, :24]
    for group, scan in product(range(6), "abcd"):
        mask = np.stack([np.hypot(rows - y, columns - x) < 5 for y, x in rng.uniform(8, 16, (4, 2))])
        image = 0.25 + 0.5 * mask + rng.normal(0, 0.2, mask.shape)
        np.save(whole / f"p{group}_{scan}.npy", image.astype(np.float32))
        np.save(whole / f"p{group}_{scan}_mask.npy", mask.astype(np.uint8))
    shutil.copytree(whole, folder / "damaged")
    with open(folder / "damaged" / "p1_b.npy", "r+b") as file:
        file.truncate(100)


def table(files: Sequence[Path]) -> str:
    """Return the kills of these outputs as docs/reliability.md shows them."""
    trials = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    heads = ["engine", "processes", "workers", "data", "trainings", *PHASES, "kills", "different"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * 4 + "---:|" * (len(heads) - 4)]
    groups = {json.dumps(trial["cell"]): list[dict[str, Any]]() for trial in trials}
    for trial in trials:
        groups[json.dumps(trial["cell"])].append(trial)
    rows = [[*json.loads(cell).values(), *_counts(groups[cell])] for cell in sorted(groups, reverse=True)]
    rows.append(["all", "", "", "", *_counts(trials)])
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def _counts(trials: Sequence[Mapping[str, Any]]) -> list[int]:
    kills = Counter(kill["phase"] for trial in trials for kill in trial["kills"])
    return [len(trials), *(kills[phase] for phase in PHASES), kills.total(), sum(bool(t["wrong"]) for t in trials)]


def main() -> int:
    if sys.argv[1:2] == ["table"]:
        print(table([Path(name) for name in sys.argv[2:]]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(FRAMEWORK))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--out", type=Path, default=Path("/dev/stdout"))
    options = parser.parse_args()
    wrong = 0
    folder = Path(
        tempfile.mkdtemp(prefix="runner-kills-")
    )  # no TemporaryDirectory: every forked process would remove it
    with options.out.open("a", encoding="utf-8") as out:
        for trial in Campaign(options.engine, folder).run(options.kills, options.seed, options.only):
            wrong += bool(trial.wrong)
            out.write(json.dumps(asdict(trial)) + "\n")
            out.flush()
    if not wrong:
        shutil.rmtree(folder)
    return int(wrong > 0)


if __name__ == "__main__":
    for plugin in PLUGINS:
        sys.path.insert(0, str(plugin))
    sys.exit(main())
