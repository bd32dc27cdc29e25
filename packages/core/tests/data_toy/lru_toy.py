"""A process that hammers a shared LRU until it is killed: python lru_toy.py FOLDER SEED BOUND."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np
from runner_core.data.stream.lru import Lru


def arrays(key: int, count: int) -> dict[str, np.ndarray]:
    """Arrays that show which record they are of."""
    return {"a": np.full(count, key, np.uint32), "b": np.full((2, 3), key, np.int16), "none": np.empty((0, 4))}


def whole(entry, key: int) -> bool:
    return bool((entry.arrays["a"] == key).all() and (entry.arrays["b"] == key).all() and entry.meta == {"key": key})


def put(lru: Lru, key: int, count: int):
    return lru.put(f"{key:032x}", arrays(key, count), {"key": key})


def get(lru: Lru, key: int):
    return lru.get(f"{key:032x}")


def hammer(folder: Path, seed: int, bound: int) -> None:
    """Put and get at random, with a few in use; raises where anything read is not what was put."""
    lru, rng, until = Lru(folder, bound), random.Random(seed), time.monotonic() + 60
    held = []
    while time.monotonic() < until:
        for _ in range(100):
            key = rng.randrange(30)
            entry = get(lru, key)
            if entry is None:
                entry = put(lru, key, 200 + 400 * key)
            if not whole(entry, key):
                raise AssertionError(f"record {key} is torn")
            held = [*held[-2:], entry]
        print("sound", flush=True)


if __name__ == "__main__":
    hammer(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
