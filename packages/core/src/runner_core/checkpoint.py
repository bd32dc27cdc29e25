"""Checkpoint folders: there whole or not at all, verified before use, and no more of them than are wanted.

What a checkpoint holds is a `CheckpointFormat`'s business; everything around it is here:

    checkpoints/
      step-00000120/      the format's files, and manifest.json with their sizes and checksums
      best.json           the step of the best checkpoint

A checkpoint is written into a temporary folder, flushed to the disk, and renamed. A kill at any moment leaves
either the whole checkpoint or none, so the newest one that verifies is always a true state of the run.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from runner_core._errors import BadInput, OutOfSpace
from runner_core.protocols import CheckpointFormat, State

MANIFEST = "manifest.json"
BEST = "best.json"
REPLACED = ".replaced-"
FORMAT_VERSION = 1
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Damaged(BadInput):
    """A checkpoint folder is torn or altered; the message says which file."""


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
        """Raises ValueError when the text is not a manifest or was altered."""
        content = json.loads(text)
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum_of(content):
            raise ValueError("its checksum does not match its content")
        if content["format_version"] != FORMAT_VERSION:
            raise ValueError(f"it has format version {content['format_version']}; this runner reads {FORMAT_VERSION}")
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

    # ------------------------------------------------------------ writing

    def save(self, state: State, step: int, epoch: int, metric: float | None, is_best: bool) -> Path:
        """Write the checkpoint of `step`, then drop old ones. Raises OutOfSpace, leaving the others untouched."""
        final = self.folder / f"step-{step:08d}"
        temporary = self.folder / f".writing-{final.name}"
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
            _flush(self.folder)
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
            _flush(path)
            files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "xxh3_128": checksum(path)}
        manifest = Manifest(self.project, step, epoch, metric, files, self.plugins, self.versions)
        (folder / MANIFEST).write_text(manifest.dumps(), encoding="utf-8")
        _flush(folder / MANIFEST)
        _flush(folder)

    def set_best(self, step: int) -> None:
        """Name the best checkpoint, atomically."""
        temporary = self.folder / f".writing-{BEST}"
        temporary.write_text(json.dumps({"step": step}) + "\n", encoding="utf-8")
        _flush(temporary)
        os.replace(temporary, self.folder / BEST)
        _flush(self.folder)

    def start(self, step: int, best: int | None) -> None:
        """Make the folder agree with a run that stands at `step` (0: a fresh one) with its best at step `best`.

        Removes what a kill left half-written and the checkpoints after `step`, which are damaged or they would
        have been resumed from.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self._steps().values():  # a kill came while this one was being replaced
            if path.name.startswith(REPLACED):
                os.rename(path, path.with_name(path.name.removeprefix(REPLACED)))
        for leftover in self.folder.glob(".*-step-*"):
            _remove(leftover)
        for later, path in self._steps().items():
            if later > step:
                _remove(path)
        if best is not None and best in self._steps():
            self.set_best(best)

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
        """The newest checkpoint that verifies; damaged ones are reported and passed over."""
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
        """Its manifest. Raises Damaged naming the file that is torn or altered, BadInput for another project's."""
        manifest = read_manifest(path)
        for name, written in manifest.files.items():
            file = path / name
            if not _inside(path, file) or not file.is_file():
                raise Damaged(f"{file} is missing: the checkpoint is damaged")
            if file.stat().st_size != written["bytes"] or checksum(file) != written["xxh3_128"]:
                raise Damaged(f"{file} was altered after it was written: the checkpoint is damaged")
        if manifest.project != self.project:
            raise BadInput(f"{path} is a checkpoint of project {manifest.project}, not of {self.project}")
        return manifest

    def load(self, path: Path, device: str = "cpu") -> State:
        """The state in a checkpoint that `latest` or `best` gave, or that the user named. Verifies it again."""
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
    """The manifest of a checkpoint folder, its files not verified. Raises Damaged."""
    file = path / MANIFEST
    try:
        return Manifest.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Damaged(f"{path} has no {MANIFEST}: not a whole checkpoint") from None
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise Damaged(f"{file} is damaged: {error}") from error


def checksum(path: Path) -> str:
    """xxh3_128 of a file, in hexadecimal."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _checksum_of(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def _flush(path: Path) -> None:
    """fsync a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
