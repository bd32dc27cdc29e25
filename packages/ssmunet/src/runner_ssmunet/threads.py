"""Share work on independent pixels among threads; in each of them PyTorch uses one thread.

Operations on a few hundred pixels are too short for PyTorch to divide each among all cores: two threads then take as
long as one. Giving whole chunks to each thread takes half as long, with the same memory per thread.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Made = TypeVar("Made")


def shared(items: Sequence[Item], work: Callable[[Sequence[Item]], Made]) -> list[Made]:
    """Run `work` on contiguous shares of `items`, one for each of PyTorch's threads, and return results in order.

    A single share runs in the caller's thread. Gradient mode and autocast belong to each thread: `work` sets them.
    """
    count = min(torch.get_num_threads(), len(items))
    if count <= 1 or getattr(_own, "shares", False):
        return [work(items)]
    bounds = [len(items) * i // count for i in range(count + 1)]
    return list(_pool(torch.get_num_threads()).map(work, (items[a:b] for a, b in itertools.pairwise(bounds))))


_own = threading.local()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(threads, "runner-pixels", initializer=_begin)
    started = threading.Barrier(threads)
    for _ in pool.map(lambda _: started.wait(), range(threads)):
        pass
    torch.set_num_threads(threads)  # what a thread sets for itself is also what later threads begin with
    return pool


def _begin() -> None:
    _own.shares = True
    torch.set_num_threads(1)
    torch.get_num_threads()  # the first question in a thread takes over the latest setting of any thread: this one


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not follow into a forked process
