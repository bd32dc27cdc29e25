"""An S3 server of a benchmark in a process of its own, so that its work is not on the clock of who reads."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from s3server import S3

BUCKET = "fields"
LATENCY = 0.1
"""Seconds until it answers."""


@contextmanager
def served(fill: Callable[[S3], None]) -> Iterator[str]:
    """Its endpoint. `fill`, a function of a module (or a partial of one), puts into `BUCKET` what it has."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, fill), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.join(10)
        process.kill()


def _serve(pipe: Connection, fill: Callable[[S3], None]) -> None:
    """It ends when the pipe does."""
    from s3server import S3

    with S3() as s3:
        fill(s3)
        s3.latency = LATENCY
        pipe.send(s3.endpoint)
        try:
            pipe.recv()
        except EOFError:
            return
