"""End a training: summary.json, report, and what is left of a run that was refused, interrupted or broken."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import Any

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput, PeerLost, RunnerError
from runner_core.base.location import shell_word
from runner_core.base.text import counted
from runner_core.base.writing import replace_text
from runner_core.cli.crash import save_traceback
from runner_core.cli.start import Started
from runner_core.cli.train_text import Unwritten
from runner_core.data.stream.bad import FILE as BAD_FILE
from runner_core.output.progress import now, read_starts
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.settings import PHANTOM
from runner_core.training.evaluation import versions
from runner_core.training.manifest import FOLDER as MANIFEST
from runner_core.training.seen import CONTENTS_FILE, SPLIT_FILE, START_FILE
from runner_core.training.timing import BLOCK_FILE


class Before:
    """The state of a run before it is continued: the files that this start writes before any step."""

    def __init__(self, folder: RunFolder) -> None:
        self._config, self._log = folder.config_file, folder.log
        self._text = folder.config_file.read_text(encoding="utf-8")
        self._times = {path: path.stat() for path in (folder.config_file, folder.log) if path.exists()}

    def restore(self, log: bool) -> None:
        """Restore config.yaml, and train.log too if `log`.

        Also restores their times: the time of config.yaml decides which run is the latest.
        """
        replace_text(self._config, self._text)
        if log and self._log in self._times:
            os.truncate(self._log, self._times[self._log].st_size)
        elif log:
            self._log.unlink(missing_ok=True)
        for path in [self._config, self._log] if log else [self._config]:
            if path in self._times:
                os.utime(path, ns=(self._times[path].st_atime_ns, self._times[path].st_mtime_ns))


def leave(started: Started[Any], folder: RunFolder, error: BaseException, before: Before | None, trained: bool) -> None:
    """Record how the run ended after an error or an interruption; a refusal leaves everything as it was.

    `before` is the run that was to be continued, None for a new one. A process that the others have lost records
    nothing: they did, and may have started again.
    """
    if isinstance(error, PeerLost) and started.setup.team.number in error.numbers:
        return
    stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
    expected = stopped or isinstance(error, RunnerError)
    with suppress(OSError):  # a full disk must not hide the error itself
        if not expected:
            save_traceback(error, folder.log)
    with suppress(OSError):
        if before is not None and not trained:
            before.restore(log=expected)
        elif expected and not trained:
            _discard(folder)
        elif (so_far := _summary_so_far(folder)).get("status") != "done" or not expected:
            ended = {"status": "stopped" if stopped else "failed", "reason": _reason(error)}
            folder.write_summary(summary_of(started, so_far | ended))


def record_loss(started: Started[Any], folder: RunFolder, error: PeerLost) -> None:
    """Write into summary.json which process is lost; the first one that is left does so."""
    team = started.setup.team
    left = set(range(team.count)).difference(error.numbers)
    if team.number in left and team.number == min(left):
        with suppress(OSError):
            ended = {"status": "failed", "reason": str(error)}
            folder.write_summary(summary_of(started, _summary_so_far(folder) | ended))


def end_without(started: Started[Any], folder: RunFolder, error: PeerLost) -> None:
    """Tell the user and summary.json why this process ends, in a thread: its main thread waits for the lost one."""
    if started.setup.team.answers_for(error.numbers):
        with suppress(OSError):
            os.write(2, f"\nrunner: {error}\n".encode())
    record_loss(started, folder, error)


def _summary_so_far(folder: RunFolder) -> dict[str, Any]:
    """Return summary.json, or an empty dict where it is damaged."""
    with suppress(BadInput):
        return folder.read_summary()
    return {}


def _reason(error: BaseException) -> str:
    """Return the reason that summary.json gives for an error or an interruption."""
    if isinstance(error, RunnerError):
        return str(error)
    return "; ".join(getattr(error, "__notes__", ())) or f"{type(error).__name__}: {error}"


def traces_of(folder: RunFolder) -> tuple[int, list[int]]:
    """Return when log.jsonl was last written to (0: never), and the checkpoints' steps."""
    return (folder.jsonl.stat().st_mtime_ns if folder.jsonl.exists() else 0), folder.saved_steps()


def conclude(folder: RunFolder, summary: dict[str, Any], unwritten: Unwritten, changed: bool) -> None:
    """Write summary.json and, if the run has `changed`, its report: a refused resume leaves the report alone."""
    _keep_summary(folder, summary, unwritten)
    if changed:
        with unwritten(folder.report_file):
            _report(folder)
        if folder.report_file in unwritten.paths:
            _keep_summary(folder, summary, unwritten)


def _keep_summary(folder: RunFolder, summary: dict[str, Any], unwritten: Unwritten) -> None:
    """Write summary.json. On a full disk it replaces the old one, which must not go on saying "done"."""
    if not summary:
        return
    with unwritten(folder.summary_file):
        try:
            folder.write_summary(unwritten.into(summary))
        except OSError:
            folder.summary_file.unlink(missing_ok=True)
            folder.write_summary(unwritten.into(summary))


def with_advice(reason: str, name: str, folder: RunFolder, trained: bool = False) -> str:
    """Return why a run failed, what is kept, and how to go on."""
    run, steps = shell_word(folder.path), folder.saved_steps()
    if not steps:
        return reason
    if not trained:
        return f"{reason}\nfree some space; then `{runner()} {name} train --resume {run}` continues"
    kept = f"kept: the trained network, in {counted(len(steps), 'checkpoint')} up to step {steps[-1]}"
    return f"{reason}\n{kept}\nfree some space; then `{runner()} {name} train --resume {run}` writes the results again"


def summary_of(started: Started[Any], summary: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of summary.json: those found, and what run, versions and starts they belong to."""
    assert started.run is not None
    found = versions() | summary.get("versions", {}) | {"plugins": started.setup.plugins.versions}
    ended = {"ended": now(), "starts": read_starts(started.run)}
    return head_of(started) | summary | ended | {"versions": found}


def head_of(started: Started[Any]) -> dict[str, Any]:
    """Return the project, the preset and the data of a run."""
    setup = started.setup
    source = PHANTOM if setup.source is None else str(setup.source)
    return {"project": setup.name, "preset": setup.preset, "data": source}


def _report(folder: RunFolder) -> None:
    from runner_core.output.report import write_report

    if folder.jsonl.exists():
        write_report(folder)


def _discard(folder: RunFolder) -> None:
    """Remove all that a start wrote before it was refused.

    Wherever this is cut, the folder is still a run, or holds only what `RunFolder.create` takes for a killed start.
    """
    for path in (folder.figures, folder.path / MANIFEST):
        shutil.rmtree(path, ignore_errors=True)
    names = (SPLIT_FILE, CONTENTS_FILE, START_FILE, BLOCK_FILE, BAD_FILE)
    for path in (*(folder.path / name for name in names), folder.starts_file, folder.log, folder.config_file):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder.checkpoints, ignore_errors=True)
    (folder.path / ".lock").unlink(missing_ok=True)
    with suppress(OSError):
        folder.path.rmdir()
