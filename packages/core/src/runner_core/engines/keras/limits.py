"""Measure what Keras reaches on a device through its backend."""

from __future__ import annotations

from typing import Any

import keras

from runner_core.contract.phases import Limits
from runner_core.engines.keras.backend import Backend
from runner_core.engines.limits import chunks

_CHAIN = 200


def limits(backend: Backend, precision: str, seconds: float = 0.3) -> Limits:
    """Measure the limits, with `seconds` for each number."""
    ops = keras.ops
    gpu = backend.on_gpu()
    size, copied = (4096, 2**28) if gpu else (1024, 2**26)

    def shortest(function: Any, *given: Any) -> float:
        run = backend.compiled(function, [], False)
        run(*given)
        backend.settle()
        return min(chunks(lambda: run(*given), backend.settle, 1, seconds))

    def product(dtype: str) -> float:
        matrix = ops.cast(keras.random.normal((size, size), seed=1), dtype)
        return 2 * size**3 / shortest(lambda a: ops.matmul(a, a), matrix)

    def chain(value: Any) -> Any:
        for _ in range(_CHAIN):
            value = ops.sin(value)
        return value

    dtype = precision if precision in ("bfloat16", "float16") else "float32"
    large = ops.zeros(copied // 4, "float32")
    found = {precision: product(dtype)}
    if gpu and precision != "bfloat16":
        found["bfloat16"] = product("bfloat16")
    return Limits(found, 2 * copied / shortest(ops.negative, large), shortest(chain, ops.ones(1)) / _CHAIN)
