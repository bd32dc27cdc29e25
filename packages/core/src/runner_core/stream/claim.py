"""One of several processes fetches a record, the others wait for it."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def claimed(file: Path, name: str) -> Iterator[None]:
    """In the with-block nobody else, in any process, has claimed `name` (hexadecimal digits).

    A byte of `file`, which stays empty, is locked: nothing is left behind, however a process ends. The lock belongs to
    the open file (F_OFD_SETLKW), not to the process, so that threads wait for each other too.
    """
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        lock = struct.pack("@hhqqi", fcntl.F_WRLCK, os.SEEK_SET, int(name[:15], 16), 1, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, lock)
        yield
    finally:
        os.close(descriptor)
