"""Do one thing in a thread while training goes on: write a checkpoint, compute the next order of samples."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs one job at a time in a thread; the thread does not keep a process alive that ends."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, job: Callable[[], object]) -> None:
        """Begin a job; the one before must have ended (`wait`)."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._run, args=(job,), name=self._name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the job has ended; `wait` still raises its error."""
        if self._thread is not None:
            self._thread.join()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the job has ended, if there is one, and raise its error; stop waiting after `seconds`."""
        if self._thread is not None:
            self._thread.join(seconds)
            if not self._thread.is_alive():
                self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:  # whoever waits gets it
            self._error = error
