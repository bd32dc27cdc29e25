"""A terminal that goes away ends no part of a run: not the cache's building, not training, not scoring."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from runner_core.base import progress
from runner_core.training.signals import HANDLED, Signals, outlive_terminal


@pytest.mark.torch
def test_a_lost_terminal_does_not_end_train(tmp_path: Path, toy: None) -> None:
    """Closed while the cache is not built yet: SIGHUP comes, and every write to the terminal fails from then on."""
    master, terminal = pty.openpty()
    run = tmp_path / "run"
    process = subprocess.Popen(
        ["setsid", "--ctty", Path(sys.executable).with_name("runner"), "toy", "train", "--run-dir", run],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    begun = time.monotonic()
    while not (run / "config.yaml").exists() and time.monotonic() - begun < 60:
        time.sleep(0.01)
    os.close(master)
    assert process.wait(timeout=300) == 0
    assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["status"] == "done"
    assert (run / "report.html").exists()


def test_the_handler_from_before_comes_back() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with outlive_terminal():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == before


def test_an_ignored_ctrl_c_stays_ignored_in_a_training() -> None:
    """As before and after it: a shell without job control ignores SIGINT for `runner … &`; SIGTERM ends the run."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Signals() as signals:
            signal.raise_signal(signal.SIGINT)
            assert not signals.pending
            signal.raise_signal(signal.SIGTERM)
            assert signals.pending == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_ctrl_c_while_handlers_come_back_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in HANDLED}
    original = signal.signal

    def interrupted(number: int, handler: Any) -> Any:
        found = original(number, handler)
        if number == signal.SIGINT and handler == before[signal.SIGINT]:
            raise KeyboardInterrupt
        return found

    try:
        with pytest.raises(KeyboardInterrupt), Signals():  # noqa: PT012
            assert all(signal.getsignal(number) != handler for number, handler in before.items())
            monkeypatch.setattr(signal, "signal", interrupted)
        assert {number: signal.getsignal(number) for number in HANDLED} == before
    finally:
        for number, handler in before.items():
            original(number, handler)


class Terminal(io.StringIO):
    gone = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.gone:
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_the_caches_bar_outlives_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.progress("preparing", 3, print) as advance:
        advance()
        terminal.gone = True
        advance()
    assert "preparing" in terminal.getvalue()
