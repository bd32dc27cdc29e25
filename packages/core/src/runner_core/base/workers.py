"""Worker processes that always end with their parent and never block it, and memory shared with them.

They are spawned, never forked (a fork inherits locks held by other threads). A worker ends when its pipe closes or its
parent dies, however it dies; a killed worker is noticed at once. Nothing here imports a framework.
"""

from __future__ import annotations

import io
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, reduction, util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

import numpy as np

from runner_core.base.errors import ENDING, BadInput, RunnerError
from runner_core.base.resources import count_peak

Work = Callable[[Any], Any]


class Workers:
    """`count` processes that apply `work` (picklable, sent once) to tasks.

    `submit` returns a ticket, `receive` waits for the next finished task, whichever it is. `tell` passes a value to
    `work.expect`, ahead of waiting tasks. An exception in a worker is raised here: BadInput with its own message,
    others as RunnerError with the worker's traceback.
    """

    def __init__(self, work: Work, count: int, purpose: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._purpose = purpose
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._waiting: list[int] = [0] * count
        self._tickets = 0
        self._failure: RunnerError | None = None
        packed = Packed(work)
        # Registered before the first start, and run before multiprocessing joins its children at exit.
        self._stop = util.Finalize(self, _stop, args=(self._pipes, self._processes), exitpriority=100)
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(packed, theirs), name=f"runner: {purpose}", daemon=True)
            _start(process)
            theirs.close()  # so that a worker's death closes the pipe
            self._pipes.append(ours)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        return [p.pid for p in self._processes if p.pid is not None]

    def submit(self, task: Any) -> int:
        """Queue `task` with the least busy worker, and return the ticket with which its result comes back."""
        self._refuse_after_failure()
        worker = min(range(len(self._pipes)), key=self._waiting.__getitem__)
        self._tickets += 1
        try:
            self._pipes[worker].send((self._tickets, task))
        except OSError as error:
            raise self._failed(self._end_of(worker)) from error
        self._waiting[worker] += 1
        return self._tickets

    def tell(self, number: int, what: Any) -> None:
        """Call `work.expect(what)` in worker `number` (modulo their count) before its next task."""
        self._refuse_after_failure()
        worker = number % len(self._pipes)
        try:
            self._pipes[worker].send((None, what))
        except OSError as error:
            raise self._failed(self._end_of(worker)) from error

    def receive(self) -> tuple[int, Any]:
        """Wait for a finished task, and return (ticket, result)."""
        self._refuse_after_failure()
        pipe = connection.wait(self._pipes)[0]
        worker = self._pipes.index(pipe)  # type: ignore[arg-type]
        try:
            ticket, result, failure = self._pipes[worker].recv()
        except (EOFError, OSError) as error:
            raise self._failed(self._end_of(worker)) from error
        self._waiting[worker] -= 1
        if failure is None:
            return ticket, result
        is_bad_input, message, trace = failure
        raise self._failed(
            BadInput(message) if is_bad_input else RunnerError(f"a process to {self._purpose} failed:\n{trace}")
        )

    def close(self) -> None:
        """End the workers; unfinished tasks are dropped."""
        self._stop()

    def _refuse_after_failure(self) -> None:
        """Raise the first failure again, however often the others are asked afterwards."""
        if self._failure is not None:
            raise self._failure
        if not self._stop.still_active():
            raise RuntimeError(f"the processes to {self._purpose} were closed")

    def _failed(self, failure: RunnerError) -> RunnerError:
        self._failure = failure
        self.close()
        return failure

    def _end_of(self, worker: int) -> RunnerError:
        """Return an error that explains why a worker is gone."""
        process = self._processes[worker]
        process.join(timeout=5)
        code = process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = " (the system often does this when memory runs out: see `dmesg`)" if name == "SIGKILL" else ""
            return RunnerError(f"a process to {self._purpose} was killed by {name}{hint}; use fewer workers")
        return RunnerError(f"a process to {self._purpose} ended with exit code {code}; its message is above")


def _start(process: BaseProcess) -> None:
    """Start a process, which imports the caller's main module only if the work has something of that module."""
    try:
        with _without_main():
            process.start()
    except pickle.PicklingError:
        process.start()


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep a process that is spawned meanwhile from importing the caller's main module.

    A script that trains outside of `if __name__ == "__main__"` would train again in it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _stop(pipes: Sequence[Connection], processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.pid is not None:
            count_peak(process.pid)
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(timeout=0.5)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(work: Work, pipe: Connection) -> None:
    """Answer tasks; `work` arrives as what `Packed` was given."""
    for number in (signal.SIGINT, signal.SIGHUP, *ENDING):  # sent to the whole process group: the parent decides
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    queue: deque[tuple[int, Any]] = deque()
    while True:
        try:
            while not queue or pipe.poll():
                ticket, task = pipe.recv()
                if ticket is not None:
                    queue.append((ticket, task))
                    continue
                with suppress(Exception):  # a fault is reported when a task needs the value
                    work.expect(task)  # type: ignore[attr-defined]
        except (EOFError, OSError):
            return
        ticket, task = queue.popleft()
        try:
            reply: tuple[int, Any, Any] = (ticket, work(task), None)
        except Exception as error:
            reply = (ticket, None, (isinstance(error, BadInput), str(error), traceback.format_exc()))
        try:
            pipe.send(reply)
        except OSError:
            return


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


_LARGE, _PAGE = 1 << 16, mmap.ALLOCATIONGRANULARITY
"""Bytes from which on an array goes into memory that all workers share."""


class Packed:
    """An object whose large arrays are sent to processes being spawned as memory that all of them share.

    Ten million sample numbers then take 80 MB once, not in each worker, and no time to send. What a process writes into
    such an array it sees alone (copy on write). An array that is a read-only map of a file is mapped there too.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._arrays: SharedMemory | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        buffers: list[pickle.PickleBuffer] = []

        def apart(buffer: pickle.PickleBuffer) -> bool:
            """Return True for what stays in the pickle."""
            small = buffer.raw().nbytes < _LARGE
            if not small:
                buffers.append(buffer)
            return small

        file = io.BytesIO()
        pickler = _ByPath(file, protocol=5, buffer_callback=apart)
        pickler.dispatch_table = reduction.ForkingPickler(file).dispatch_table
        pickler.dump(self._value)
        places = [0]
        for buffer in buffers:
            places.append(places[-1] + buffer.raw().nbytes + -buffer.raw().nbytes % _PAGE)
        if self._arrays is None:  # the same for every process
            self._arrays = SharedMemory(places[-1])
            for begin, buffer in zip(places, buffers, strict=False):
                self._arrays.memory[begin : begin + buffer.raw().nbytes] = buffer.raw()
        sizes = [buffer.raw().nbytes for buffer in buffers]
        return _unpacked, (file.getvalue(), places[:-1], sizes, self._arrays)


class _ByPath(pickle.Pickler):
    """A pickler that sends large maps of files as the files' paths."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.nbytes >= _LARGE and (place := _place_in_file(value)) is not None:
            return _mapped, (*place, value.dtype, value.shape)
        return NotImplemented


def _place_in_file(array: np.ndarray[Any, Any]) -> tuple[str, int] | None:
    """Return the file of which an array is a read-only map, and its first byte there; None for all other arrays."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    if not isinstance(owner, np.memmap) or owner.mode != "r" or not array.flags.c_contiguous:
        return None
    whole: Any = owner._mmap  # type: ignore[attr-defined]
    file = owner.filename
    if file is None or not os.path.isfile(file):
        return None
    begins = owner.offset - owner.offset % _PAGE  # where the map begins in the file
    return str(file), begins + array.ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data


def _mapped(file: str, begin: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.asarray(np.memmap(file, dtype, "r", begin, shape))


def _unpacked(pickled: bytes, places: Sequence[int], sizes: Sequence[int], arrays: SharedMemory) -> Any:
    own = memoryview(arrays.private()) if sizes else memoryview(b"")
    buffers = [own[at : at + size] for at, size in zip(places, sizes, strict=True)]
    # It came through the pipe by which multiprocessing starts this process, and which it unpickles itself.
    return pickle.loads(pickled, buffers=buffers)  # noqa: S301


class SharedMemory:
    """`size` bytes that worker processes see too; it has no file name, so nothing is left behind.

    Picklable to a process being spawned.
    """

    def __init__(self, size: int, _descriptor: int | None = None) -> None:
        self.size = size
        if _descriptor is None:
            _descriptor = os.memfd_create("runner", os.MFD_CLOEXEC)
            os.ftruncate(_descriptor, max(1, size))
        self._descriptor = _descriptor
        self.memory = mmap.mmap(_descriptor, max(1, size))

    def private(self) -> mmap.mmap:
        """Return the bytes as they are now; what is written into them is seen by this process alone."""
        return mmap.mmap(self._descriptor, max(1, self.size), flags=mmap.MAP_PRIVATE)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (self.size, reduction.DupFd(self._descriptor))

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _attach(size: int, duplicate: Any) -> SharedMemory:
    return SharedMemory(size, duplicate.detach())
