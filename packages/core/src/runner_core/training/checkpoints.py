"""Checkpoint folders: written whole or not at all, verified before use, pruned to the wanted number.

A `CheckpointFormat` decides what a checkpoint holds. This module does everything around it:

    checkpoints/
      step-00000120/      the format's files, and manifest.json with their sizes and checksums
      best.json           the step of the best checkpoint

A checkpoint is written into a temporary folder, flushed to the disk, and renamed. A kill at any moment leaves either
the whole checkpoint or none, so the newest checkpoint that verifies is always a true state of the run. If several
processes write their parts of it, each flushes its own, and the first one renames the folder when all are there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from runner_core.base.errors import BadInput, NotSaved, OutOfSpace, RunnerError
from runner_core.base.files import hash_file
from runner_core.base.resources import is_out_of_memory
from runner_core.base.writing import NO_SPACE, flush, flush_all, move, replace_text
from runner_core.contract import CheckpointFormat, State
from runner_core.contract.run import Damaged, DividedFormat, OtherWeights, remedy, why
from runner_core.contract.team import ALONE, Exchange

MANIFEST = "manifest.json"
BEST = "best.json"
REPLACED, DAMAGED = ".replaced-", ".damaged-"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """Content of a checkpoint's manifest.json; `files` maps names to {bytes, xxh3_128}."""

    project: str
    step: int
    epoch: int
    metric: float | None
    files: dict[str, dict[str, Any]]
    plugins: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def dumps(self) -> str:
        """Return JSON with its own checksum, so that a changed manifest is noticed too."""
        return json.dumps({"checksum": self.checksum, **asdict(self)}, indent=1) + "\n"

    @property
    def checksum(self) -> str:
        return _checksum_of(asdict(self))

    @staticmethod
    def loads(text: str) -> Manifest:
        """Read a manifest from JSON.

        Raises ValueError if the text is not a manifest or was changed, and OtherFormat if it has another format
        version.
        """
        content = json.loads(text)
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum_of(content):
            raise ValueError("its checksum does not match its content")
        unknown = content.keys() - {f.name for f in fields(Manifest)}
        if content["format_version"] != FORMAT_VERSION or unknown:
            writer = "an older" if content["format_version"] < FORMAT_VERSION else "a newer"
            raise OtherFormat(
                f"was written by {writer} runner: its format version is {content['format_version']}, "
                f"this runner reads {FORMAT_VERSION}; use the runner that wrote it"
            )
        found = Manifest(**content)
        found.refuse_nonsense()
        return found

    def refuse_nonsense(self) -> None:
        """Raise ValueError for values that no checkpoint can have, even if the checksum matches."""
        counts = (self.step, self.epoch)
        if not isinstance(self.project, str) or not all(type(n) is int and 0 <= n < 1 << 63 for n in counts):
            raise ValueError("project, step or epoch has an impossible value")
        if self.epoch > self.step:
            raise ValueError(f"it claims {self.epoch} epochs after {self.step} steps")
        if not isinstance(self.metric, (int, float, type(None))):
            raise ValueError("its metric is not a number")
        if not isinstance(self.files, dict) or not self.files:
            raise ValueError("it names no files")
        for name, written in self.files.items():
            if "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts or name in ("", ".", MANIFEST):
                raise ValueError(f"{name!r} is not a file of a checkpoint")
            if not isinstance(written, dict) or type(written.get("bytes")) is not int or "xxh3_128" not in written:
                raise ValueError(f"size or checksum of {name!r} is missing")
        for names in (self.plugins, self.versions):
            if not isinstance(names, dict) or not all(isinstance(value, str) for value in names.values()):
                raise ValueError("plugins or versions are not names with versions")


class Checkpoints:
    """Checkpoints of one run; `say` receives warnings as plain text."""

    def __init__(
        self,
        folder: Path,
        format: CheckpointFormat,
        *,
        project: str,
        keep: int = 3,
        plugins: Mapping[str, str] | None = None,
        versions: Mapping[str, str] | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.folder = folder
        self.format = format
        self.project = project
        self.keep = max(1, keep)
        self.plugins = dict(plugins or {})
        self.versions = dict(versions or {})
        self.say = say
        self._verified: Path | None = None
        self.kept_before: int | None = None
        """A step: the newest checkpoint that is not after it is kept too."""

    def of(self, step: int) -> Path:
        """Return the folder of a step's checkpoint, whether or not it exists."""
        return self.folder / f"step-{step:08d}"

    # ------------------------------------------------------------ writing

    def save(
        self, state: State, step: int, epoch: int, metric: float | None, is_best: bool, team: Exchange = ALONE
    ) -> Path:
        """Write the checkpoint of `step`, then drop old ones.

        Raises OutOfSpace on a full disk and NotSaved if writing fails otherwise. The other checkpoints are untouched
        then. With a `team`, every process must call this with its own part of the state, which a `DividedFormat`
        writes; only the first raises errors of others.
        """
        final = self.of(step)
        temporary = self.folder / f".writing-{final.name}"
        self._verified = None
        try:
            _by_all(team, lambda: _make_anew(temporary) if team.first else None)
            parts = _by_all(team, lambda: self._write(temporary, state, team))
            if not team.first:
                return final
            self._seal(temporary, {name: about for part in parts for name, about in part.items()}, step, epoch, metric)
            replaced = self.folder / f"{REPLACED}{final.name}"
            if final.exists():  # saved again at the same step, its validation done now
                _remove(replaced)
                os.rename(final, replaced)
            move(temporary, final)
            _remove(replaced)
            if is_best:
                self.set_best(step)
        except OSError as error:
            if team.first:
                shutil.rmtree(temporary, ignore_errors=True)
            if error.errno in NO_SPACE:
                raise OutOfSpace(
                    f"no space left to save the checkpoint of step {step} in {self.folder} ({error.strerror}); "
                    f"free some space there{', or lower checkpoint.keep' if len(self._steps()) > 1 else ''}"
                ) from error
            raise NotSaved(
                f"the checkpoint of step {step} cannot be written into {self.folder} ({error.strerror or error}); "
                "look at that disk"
            ) from error
        try:
            self._prune()
        except OSError as error:
            self.say(f"WARNING: old checkpoints in {self.folder} cannot be removed: {error.strerror or error}")
        return final

    def _write(self, folder: Path, state: State, team: Exchange) -> dict[str, dict[str, Any]]:
        """Write this process's files of a checkpoint; return what the manifest says about them."""
        if team.count == 1:
            self.format.write(folder, state)
            written = sorted(path for path in folder.rglob("*") if path.is_file())
        else:
            assert isinstance(self.format, DividedFormat)
            count = state.parts or team.count
            holds = team.number < count
            written = sorted(self.format.write_part(folder, state, team.number, count)) if holds else []
            for path in written:
                flush(path)
        return {
            path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "xxh3_128": hash_file(path)}
            for path in written
        }

    def _seal(
        self, folder: Path, files: dict[str, dict[str, Any]], step: int, epoch: int, metric: float | None
    ) -> None:
        """Write the manifest of all files, and flush everything to the disk."""
        manifest = Manifest(self.project, step, epoch, metric, files, self.plugins, self.versions)
        (folder / MANIFEST).write_text(manifest.dumps(), encoding="utf-8")
        flush_all(folder)

    def set_best(self, step: int) -> None:
        """Record which checkpoint is the best, atomically."""
        replace_text(self.folder / BEST, json.dumps({"step": step}) + "\n")

    def start(self, step: int, best: int | None) -> bool:
        """Make the folder agree with a run that stands at `step` (0: a new run) and has its best at step `best`.

        This removes files that a kill left half-written. It sets aside checkpoints after `step`: they must be damaged,
        otherwise the run would have resumed from them.

        Returns False if the best checkpoint is missing or damaged; then no checkpoint is recorded as the best.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self._steps().values():  # a kill came while this one was being replaced
            if path.name.startswith(REPLACED):
                os.rename(path, path.with_name(path.name.removeprefix(REPLACED)))
        for leftover in self.folder.glob(".*-step-*"):
            if not leftover.name.startswith(DAMAGED):
                _remove(leftover)
        for half in self.folder.glob(f".*.{BEST}"):
            half.unlink()
        for later, path in self._steps().items():
            if later > step:
                self._set_aside(path)
        whole = best is None or self._is_whole(best)
        if best is not None and whole:
            self.set_best(best)
        else:
            (self.folder / BEST).unlink(missing_ok=True)
        self._prune()  # a kill came after the newest one was saved
        return whole

    def after(self, step: int) -> dict[str, Path]:
        """Return the checkpoints after `step` by their names, damaged ones included."""
        return {self.of(later).name: path for later, path in sorted(self._steps().items()) if later > step}

    def remove(self, path: Path) -> None:
        """Remove a checkpoint; a kill in between leaves none under its name."""
        _remove(path)

    def _is_whole(self, step: int) -> bool:
        """Return True if the checkpoint of `step` exists and verifies; set a damaged one aside."""
        path = self._steps().get(step)
        if path is None:
            return False
        try:
            if path != self._verified:
                self.verify(path)
        except Damaged as error:
            self.say(str(error))
            self._set_aside(path)
            return False
        return True

    def _set_aside(self, path: Path) -> None:
        """Rename a damaged checkpoint, so that it is not in the way but can still be inspected."""
        name, number = f"{DAMAGED}{path.name}", 1
        while (aside := path.with_name(name if number == 1 else f"{name}-{number}")).exists():
            number += 1
        os.rename(path, aside)
        self.say(f"{path.name} is set aside as {aside.name}")

    def _prune(self) -> None:
        steps = self._steps()
        kept = {*sorted(steps)[-self.keep :], self._best_step()}
        if self.kept_before is not None:
            kept.add(max((step for step in steps if step <= self.kept_before), default=None))
        for step, path in steps.items():
            if step not in kept:
                _remove(path)

    # ------------------------------------------------------------ reading

    def any(self) -> bool:
        """Return True if there is any checkpoint, whole or damaged."""
        return bool(self._steps())

    def kept(self) -> str:
        """Return a sentence that lists the existing checkpoints.

        Example: "kept: the checkpoints of steps 20 and 40, the best is that of step 20".
        """
        steps, best = sorted(self._steps()), self._best_step()
        if not steps:
            return "no checkpoint is kept"
        listed = " and ".join(filter(None, [", ".join(map(str, steps[:-1])), str(steps[-1])]))
        which = f"checkpoint of step {listed}" if len(steps) == 1 else f"checkpoints of steps {listed}"
        return f"kept: the {which}" + (f", the best is that of step {best}" if best in steps and len(steps) > 1 else "")

    def latest(self, until: int | None = None) -> tuple[Path, Manifest] | None:
        """Return the newest checkpoint that verifies, none after step `until`, or None if there are no checkpoints.

        Damaged checkpoints are reported and skipped. Raises Damaged if all are damaged. Raises BadInput if the newest
        whole checkpoint belongs to another project or another runner version, because its content must not be lost.
        """
        steps = {step: path for step, path in self._steps().items() if until is None or step <= until}
        for step, path in sorted(steps.items(), reverse=True):
            try:
                return path, self.verify(path)
            except Damaged as error:
                if step == min(steps):
                    raise Damaged(f"{error}. {remedy(path)}") from error
                self.say(f"{error}; using the one before it")
        return None

    def best(self) -> tuple[Path, Manifest] | None:
        """Return the best checkpoint, or the newest if the best is unknown or damaged."""
        steps = self._steps()
        path = steps.get(self._best_step() or 0)
        if path is not None and path != steps[max(steps)]:
            try:
                return path, self.verify(path)
            except Damaged as error:
                self.say(f"the best checkpoint cannot be used: {error}; using the newest")
        return self.latest()

    def verify(self, path: Path) -> Manifest:
        """Verify a checkpoint and return its manifest.

        Raises Damaged with the name of the incomplete or changed file, and BadInput if the checkpoint belongs to
        another project or another runner version.
        """
        manifest = read_manifest(path)
        if path.name.removeprefix(REPLACED) != self.of(manifest.step).name:
            raise Damaged(f"{path / MANIFEST} belongs to step {manifest.step}: the checkpoint is damaged")
        there = {file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()} - {MANIFEST}
        if strange := sorted(name for name in there - manifest.files.keys() if not Path(name).name.startswith(".")):
            raise Damaged(
                f"{path / strange[0]} is not a file of this checkpoint ({MANIFEST} does not name it): remove it"
            )
        for name, written in manifest.files.items():
            file = path / name
            if not _inside(path, file) or not file.is_file():
                raise Damaged(f"{file} is missing: the checkpoint is damaged")
            if file.stat().st_size != written["bytes"] or hash_file(file) != written["xxh3_128"]:
                raise Damaged(f"{file} was changed after it was written: the checkpoint is damaged")
        if manifest.project != self.project:
            raise BadInput(f"{path} is a checkpoint of project {manifest.project}, not of {self.project}")
        self._verified = path
        return manifest

    def load(self, path: Path, *, rows: bool = False, verified: bool = False) -> State:
        """Return the state in a checkpoint; verify it first unless `latest` or `best` just did.

        With `rows`, only what this process needs of divided tensors is read, later (`DividedFormat.read_rows`).
        `verified` says that another process has verified it.
        """
        try:
            if path != self._verified and not verified:
                self.verify(path)
        except Damaged as error:
            raise Damaged(f"{error}. {remedy(path)}") from error
        lazy = rows and isinstance(self.format, DividedFormat)
        state = self.format.read_rows(path) if lazy else self.format.read(path)  # type: ignore[attr-defined]
        loop = state.values.get("loop", {})
        step = loop.get("step") if isinstance(loop, dict) else None
        if loop and step != _step_of(path):
            raise Damaged(f"{path} is damaged or was changed: its state belongs to step {step!r}. {remedy(path)}")
        return state

    def _steps(self) -> dict[int, Path]:
        steps = {}
        for prefix in (f"{REPLACED}step-", "step-"):
            for path in self.folder.glob(f"{prefix}*"):
                if path.name.removeprefix(prefix).isdigit():
                    steps[int(path.name.removeprefix(prefix))] = path
        return steps

    def _best_step(self) -> int | None:
        return self.best_step_in(self.folder)

    @staticmethod
    def best_step_in(folder: Path) -> int | None:
        """Return the step of the best checkpoint in `folder`, or None if it is unknown."""
        try:
            return int(json.loads((folder / BEST).read_text(encoding="utf-8"))["step"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None


def refuse_unshared(folder: Path, team: Exchange) -> None:
    """Raise BadInput in all processes if one does not see what the first writes into the folder."""
    token = team.every(os.urandom(8).hex())[0]
    mark = folder / f".seen-step-{token}"  # `Checkpoints.start` removes one that a kill leaves
    if team.first:
        folder.mkdir(parents=True, exist_ok=True)
        mark.mkdir()
    team.every(None)
    blind = [number for number, sees in enumerate(team.every(mark.exists())) if not sees]
    if team.first:
        mark.rmdir()
    if blind:
        raise BadInput(
            f"with train.strategy fsdp or hsdp each process writes its part of a checkpoint into {folder}, and process "
            f"{blind[0]} of {team.count} sees another folder of that name: name one that all machines share (--run-dir)"
        )


def _by_all(team: Exchange, job: Callable[[], Any]) -> list[Any]:
    """Return what `job` returns in each process of the team, or raise the first OSError of any in all of them."""
    done: dict[str, Any] = {}
    try:
        done["returned"] = job()
    except OSError as error:
        if team.count == 1:
            raise
        done["error"] = [error.errno, error.strerror or str(error)]
    every = team.every(done)
    for number, other in enumerate(every):
        if "error" in other:
            code, text = other["error"]
            raise OSError(code, f"{text}, says process {number} of {team.count}")
    return [other["returned"] for other in every]


def _make_anew(folder: Path) -> None:
    _remove(folder)
    folder.mkdir(parents=True)


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a checkpoint folder without verifying its files; raise Damaged or OtherFormat."""
    file = path / MANIFEST
    try:
        return Manifest.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Damaged(f"{path} has no {MANIFEST}: not a whole checkpoint") from None
    except OtherFormat as error:
        raise OtherFormat(f"{path} {error}") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{file} is damaged: {why(error)}") from error


def _checksum_of(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def _remove(path: Path) -> None:
    """Remove a folder.

    A kill or power loss in between never leaves half a checkpoint under a checkpoint's name.
    """
    if not path.exists():
        return
    doomed = path if path.name.startswith(".") else path.with_name(f".removing-{path.name}")
    if doomed != path:
        shutil.rmtree(doomed, ignore_errors=True)
        move(path, doomed)
    shutil.rmtree(doomed)


def _inside(folder: Path, file: Path) -> bool:
    return folder.resolve() in file.resolve().parents


def _step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint's folder."""
    return int(path.name.rpartition("-")[2])


class OtherFormat(BadInput):
    """A whole checkpoint that another version of the runner wrote."""


_WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@contextmanager
def restoring(checkpoint: Path) -> Iterator[None]:
    """Turn errors into BadInput while the state of `checkpoint` is put into a network or a run.

    Errors in the code of a project or an extension stay what they are, and so does a lack of memory.
    """
    from runner_core.plugins.discovery import place_of

    try:
        yield
    except OtherWeights as error:
        raise _unfit(checkpoint, str(error)) from error
    except RunnerError:
        raise
    except _WRONG as error:
        if place_of(error) is not None or is_out_of_memory(error):
            raise
        raise _unfit(checkpoint, f"its contents do not fit this runner and project: {why(error)}") from error


def _unfit(checkpoint: Path, what: str) -> BadInput:
    return BadInput(
        f"{checkpoint}: {' '.join(what.split())[:300]}. If another version wrote it, use that version; otherwise it is "
        f"damaged or changed. {remedy(checkpoint)}"
    )


def refuse_nan(state: State, checkpoint: Path) -> None:
    """Raise BadInput if a weight is NaN, because no training saves such weights."""
    for name, tensor in state.tensors.items():
        if name.startswith(("model.", "ema.")):
            try:
                array = np.asarray(tensor)
            except TypeError:  # a dtype that NumPy does not have
                continue
            if array.dtype.kind in "fc" and np.isnan(array).any():
                raise BadInput(
                    f"{checkpoint} is damaged or was changed: {name} holds NaN, which no training saves. "
                    f"{remedy(checkpoint)}"
                )
