"""Checkpoint folders: there whole or not at all, verified before use, and no more of them than are wanted.

What a checkpoint holds is a `CheckpointFormat`'s business; everything around it is here:

    checkpoints/
      step-00000120/      the format's files, and manifest.json with their sizes and checksums
      best.json           the step of the best checkpoint

A checkpoint is written into a temporary folder, flushed to the disk, and renamed. A kill at any moment leaves
either the whole checkpoint or none, so the newest one that verifies is always a true state of the run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import xxhash

from runner_core._errors import BadInput, OutOfSpace
from runner_core._files import NO_SPACE, flush, hash_file
from runner_core.protocols import CheckpointFormat, State

MANIFEST = "manifest.json"
BEST = "best.json"
REPLACED, DAMAGED = ".replaced-", ".damaged-"
FORMAT_VERSION = 1


class Damaged(BadInput):
    """A checkpoint folder is torn or altered; the message says which file."""


class OtherFormat(BadInput):
    """A whole checkpoint that another version of the runner wrote."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself. `files` maps names to {bytes, xxh3_128}."""

    project: str
    step: int
    epoch: int
    metric: float | None
    files: dict[str, dict[str, Any]]
    plugins: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def dumps(self) -> str:
        """JSON that carries its own checksum, so that an altered manifest is noticed too."""
        content = asdict(self)
        return json.dumps({"checksum": _checksum_of(content), **content}, indent=1) + "\n"

    @staticmethod
    def loads(text: str) -> Manifest:
        """Raises ValueError when the text is not a manifest or was altered, OtherFormat when it is not of this
        format version."""
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
        return Manifest(**content)


class Checkpoints:
    """The checkpoints of one run. `say` receives warnings in plain words."""

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

    def of(self, step: int) -> Path:
        """The folder of a step's checkpoint, whether or not it is there."""
        return self.folder / f"step-{step:08d}"

    # ------------------------------------------------------------ writing

    def save(self, state: State, step: int, epoch: int, metric: float | None, is_best: bool) -> Path:
        """Write the checkpoint of `step`, then drop old ones. Raises OutOfSpace, leaving the others untouched."""
        final = self.of(step)
        temporary = self.folder / f".writing-{final.name}"
        self._verified = None
        try:
            _remove(temporary)
            temporary.mkdir(parents=True)
            self.format.write(temporary, state)
            self._seal(temporary, step, epoch, metric)
            replaced = self.folder / f"{REPLACED}{final.name}"
            if final.exists():  # saved again at the same step, its validation done now
                _remove(replaced)
                os.rename(final, replaced)
            os.rename(temporary, final)
            flush(self.folder)
            _remove(replaced)
            if is_best:
                self.set_best(step)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if error.errno in NO_SPACE:
                raise OutOfSpace(
                    f"no space left to save the checkpoint of step {step} in {self.folder} ({error.strerror}); "
                    "free some space there, or lower checkpoint.keep"
                ) from error
            raise
        self._prune()
        return final

    def _seal(self, folder: Path, step: int, epoch: int, metric: float | None) -> None:
        """Flush every file, then write the manifest: it is last, so that it vouches for files that are there."""
        files = {}
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            flush(path)
            files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "xxh3_128": hash_file(path)}
        manifest = Manifest(self.project, step, epoch, metric, files, self.plugins, self.versions)
        (folder / MANIFEST).write_text(manifest.dumps(), encoding="utf-8")
        flush(folder / MANIFEST)
        flush(folder)

    def set_best(self, step: int) -> None:
        """Name the best checkpoint, atomically."""
        temporary = self.folder / f".writing-{BEST}"
        temporary.write_text(json.dumps({"step": step}) + "\n", encoding="utf-8")
        flush(temporary)
        os.replace(temporary, self.folder / BEST)
        flush(self.folder)

    def start(self, step: int, best: int | None) -> bool:
        """Make the folder agree with a run that stands at `step` (0: a fresh one) with its best at step `best`.

        Removes what a kill left half-written, and sets aside the checkpoints after `step`, which are damaged or they
        would have been resumed from. False when the best one is gone or damaged: then none is named as the best.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self._steps().values():  # a kill came while this one was being replaced
            if path.name.startswith(REPLACED):
                os.rename(path, path.with_name(path.name.removeprefix(REPLACED)))
        for leftover in self.folder.glob(".*-step-*"):
            if not leftover.name.startswith(DAMAGED):
                _remove(leftover)
        for later, path in self._steps().items():
            if later > step:
                self._set_aside(path)
        whole = best is None or self._is_whole(best)
        if best is not None and whole:
            self.set_best(best)
        else:
            (self.folder / BEST).unlink(missing_ok=True)
        return whole

    def _is_whole(self, step: int) -> bool:
        """Is there a checkpoint of `step` that verifies? A damaged one is set aside."""
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
        """Out of the way of new checkpoints, for whoever wants to know what happened to it."""
        name, number = f"{DAMAGED}{path.name}", 1
        while (aside := path.with_name(name if number == 1 else f"{name}-{number}")).exists():
            number += 1
        os.rename(path, aside)
        self.say(f"{path.name} is set aside as {aside.name}")

    def _prune(self) -> None:
        steps = self._steps()
        kept = {*sorted(steps)[-self.keep :], self._best_step()}
        for step, path in steps.items():
            if step not in kept:
                _remove(path)

    # ------------------------------------------------------------ reading

    def any(self) -> bool:
        """Is there any checkpoint, whole or damaged?"""
        return bool(self._steps())

    def latest(self) -> tuple[Path, Manifest] | None:
        """The newest checkpoint that verifies; damaged ones are reported and passed over. Raises BadInput where
        the newest whole one is not this runner's or not this project's: what it holds must not be lost."""
        for _, path in sorted(self._steps().items(), reverse=True):
            try:
                return path, self.verify(path)
            except Damaged as error:
                self.say(f"{error}; using the one before it")
        return None

    def best(self) -> tuple[Path, Manifest] | None:
        """The best checkpoint; the newest when the best is not known, or damaged."""
        path = self._steps().get(self._best_step() or 0)
        if path is not None:
            try:
                return path, self.verify(path)
            except Damaged as error:
                self.say(f"the best checkpoint cannot be used: {error}; using the newest")
        return self.latest()

    def verify(self, path: Path) -> Manifest:
        """Its manifest. Raises Damaged naming the file that is torn or altered, BadInput for another project's or
        another runner's."""
        manifest = read_manifest(path)
        for name, written in manifest.files.items():
            file = path / name
            if not _inside(path, file) or not file.is_file():
                raise Damaged(f"{file} is missing: the checkpoint is damaged")
            if file.stat().st_size != written["bytes"] or hash_file(file) != written["xxh3_128"]:
                raise Damaged(f"{file} was altered after it was written: the checkpoint is damaged")
        if manifest.project != self.project:
            raise BadInput(f"{path} is a checkpoint of project {manifest.project}, not of {self.project}")
        self._verified = path
        return manifest

    def load(self, path: Path, device: str = "cpu") -> State:
        """The state in a checkpoint that `latest` or `best` gave, or that the user named, which is verified first."""
        if path != self._verified:
            self.verify(path)
        return self.format.read(path, device)

    def _steps(self) -> dict[int, Path]:
        steps = {}
        for prefix in (f"{REPLACED}step-", "step-"):
            for path in self.folder.glob(f"{prefix}*"):
                if path.name.removeprefix(prefix).isdigit():
                    steps[int(path.name.removeprefix(prefix))] = path
        return steps

    def _best_step(self) -> int | None:
        try:
            return int(json.loads((self.folder / BEST).read_text(encoding="utf-8"))["step"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint folder, its files not verified. Raises Damaged, OtherFormat."""
    file = path / MANIFEST
    try:
        return Manifest.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Damaged(f"{path} has no {MANIFEST}: not a whole checkpoint") from None
    except OtherFormat as error:
        raise OtherFormat(f"{path} {error}") from None
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise Damaged(f"{file} is damaged: {error}") from error


def _checksum_of(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def _remove(path: Path) -> None:
    """Remove a folder so that a kill in between never leaves half a checkpoint under a checkpoint's name."""
    if not path.exists():
        return
    doomed = path if path.name.startswith(".") else path.with_name(f".removing-{path.name}")
    if doomed != path:
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(path, doomed)
    shutil.rmtree(doomed)


def _inside(folder: Path, file: Path) -> bool:
    return folder.resolve() in file.resolve().parents
