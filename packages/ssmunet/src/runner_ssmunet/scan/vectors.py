"""Vectors of 16 float32 for Numba kernels, one lane per channel.

Numba compiles plain loops over states and channels to code that mixes scalars and vectors; with these types the inner
loops are vectors by construction. LLVM splits a vector to fit the processor: one AVX-512 register, two of AVX2, four of
SSE. The user's machine needs no compiler but the one that Numba brings.

Constants of `exp2`: 2^f = 1 + f q(f) on [-1/2, 1/2] with q of degree 5, interpolated at Chebyshev's points. The
relative error stays below 1.2e-7, and 2^0 is exactly 1: a state that decays slowly does not drift.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

LANES = 16
_FLOAT, _INT, _BIT = ir.FloatType(), ir.IntType(32), ir.IntType(1)
_VECTOR, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)


class Vector(types.Type):
    """Numba's type for a vector."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


vector = Vector()


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_VECTOR, [float(np.float32(value))] * LANES)


# ---------------------------------------------------------------- memory


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Return a pointer to the vector that begins at `index` of a flat float32 array."""
    data = cgutils.create_struct_proxy(kind)(context, builder, value=array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


def _first(builder: Any, count: Any) -> Any:
    """Return a mask of the first `count` lanes."""
    lanes = ir.Constant(_INTS, list(range(LANES)))
    return builder.icmp_signed("<", lanes, _broadcast(builder, builder.trunc(count, _INT), _INTS))


def _broadcast(builder: Any, scalar: Any, kind: ir.VectorType) -> Any:
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


def _declared(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """Load elements index … index + 15 of a flat float32 array."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(_address(context, builder, array, *values), align=4)

    return vector(array, types.intp), generate


@intrinsic
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Write 16 elements of a flat float32 array."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        target, place, what = values
        builder.store(what, _address(context, builder, array, target, place), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


@intrinsic
def load_first(typing: Any, array: Any, index: Any, count: Any) -> Any:
    """Load only the first `count` lanes, with 0 in the others."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source, place, lanes = values
        pointer = _address(context, builder, array, source, place)
        mask = ir.VectorType(_BIT, LANES)
        read = _declared(builder, "llvm.masked.load.v16f32.p0", _VECTOR, [pointer.type, _INT, mask, _VECTOR])
        return builder.call(read, [pointer, ir.Constant(_INT, 4), _first(builder, lanes), _constant(0)])

    return vector(array, types.intp, types.intp), generate


@intrinsic
def store_first(typing: Any, array: Any, index: Any, value: Any, count: Any) -> Any:
    """Store only the first `count` lanes."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        target, place, what, lanes = values
        pointer = _address(context, builder, array, target, place)
        mask = ir.VectorType(_BIT, LANES)
        write = _declared(builder, "llvm.masked.store.v16f32.p0", ir.VoidType(), [_VECTOR, pointer.type, _INT, mask])
        builder.call(write, [what, pointer, ir.Constant(_INT, 4), _first(builder, lanes)])
        return context.get_dummy_value()

    return types.void(array, types.intp, vector, types.intp), generate


@intrinsic
def load_splat(typing: Any, array: Any, index: Any) -> Any:
    """Load one element of a flat float32 array into every lane."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = cgutils.create_struct_proxy(array)(context, builder, value=values[0]).data
        return _broadcast(builder, builder.load(builder.gep(data, [values[1]])), _VECTOR)

    return vector(array, types.intp), generate


@intrinsic
def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Start to fetch the cache line of one element. Beyond the array's end nothing happens."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = _address(context, builder, array, *values)
        arguments = [ir.Constant(_INT, n) for n in (0, 3, 1)]  # to read, keep near, data
        fetch = _declared(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer.type, *(a.type for a in arguments)])
        builder.call(fetch, [pointer, *arguments])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def splat(typing: Any, value: Any) -> Any:
    """Return a vector with one float32 in every lane."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _broadcast(builder, values[0], _VECTOR)

    return vector(types.float32), generate


@njit
def scratch(size):  # type: ignore[no-untyped-def]
    """Return a flat float32 array aligned to a cache line: vectors across two lines are read far more slowly."""
    room = np.empty(size + LANES, np.float32)
    skipped = -(room.ctypes.data // 4) % LANES
    return room[skipped : skipped + size]


# ---------------------------------------------------------------- arithmetic


def _binary(name: str) -> Any:
    @intrinsic
    def instruction(typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return getattr(builder, name)(*values)

        return vector(vector, vector), generate

    return instruction


_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE = (_binary(name) for name in ("fadd", "fsub", "fmul", "fdiv"))


def _operator(symbol: Callable[..., Any], instruction: Any) -> None:
    @overload(symbol)
    def of_vectors(a, b):  # type: ignore[no-untyped-def]  # Numba compares the bare signatures
        if isinstance(a, Vector) and isinstance(b, Vector):
            return lambda a, b: instruction(a, b)  # noqa: PLW0108  # Numba inlines no intrinsic by itself
        return None


_operator(operator.add, _ADD)
_operator(operator.sub, _SUBTRACT)
_operator(operator.mul, _MULTIPLY)
_operator(operator.truediv, _DIVIDE)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.call(_declared(builder, "llvm.fmuladd.v16f32", _VECTOR, [_VECTOR] * 3), [a, b, c])


@intrinsic
def fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a b + c."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _fma(builder, *values)

    return vector(vector, vector, vector), generate


def _extreme(kind: str) -> Any:
    @intrinsic
    def instruction(typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            first, second = values
            # written so that a NaN in `a` goes through: a < b is false of it
            return builder.select(builder.fcmp_ordered(kind, second, first), second, first)

        return vector(vector, vector), generate

    return instruction


largest, smallest = _extreme(">"), _extreme("<")


def _chebyshev(degree: int) -> list[float]:
    points = np.cos((2 * np.arange(degree + 1) + 1) * np.pi / (2 * degree + 2)) / 2
    values = np.expm1(points * np.log(2)) / points
    return np.linalg.solve(np.vander(points, increasing=True), values).tolist()


_EXP2 = _chebyshev(5)
_ROUND = 1.5 * 2**23
"""Adding it to a float32 below 2^22 leaves the nearest integer in the low bits."""


@intrinsic
def exp2(typing: Any, x: Any) -> Any:
    """Return 2^x, held between 2^-126 and 2^127; NaN stays NaN."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        value = values[0]
        for bound, kind in ((-126.0, ">"), (127.0, "<")):
            limit = _constant(bound)
            value = builder.select(builder.fcmp_ordered(kind, limit, value), limit, value)
        shifted = builder.fadd(value, _constant(_ROUND))
        rest = builder.fsub(value, builder.fsub(shifted, _constant(_ROUND)))
        power = _constant(_EXP2[-1])
        for coefficient in _EXP2[-2::-1]:
            power = _fma(builder, power, rest, _constant(coefficient))
        power = _fma(builder, power, rest, _constant(1.0))
        exponent = builder.shl(builder.bitcast(shifted, _INTS), ir.Constant(_INTS, [23] * LANES))
        return builder.bitcast(builder.add(builder.bitcast(power, _INTS), exponent), _VECTOR)

    return vector(vector), generate


@intrinsic
def row_sums(typing: Any, array: Any, index: Any) -> Any:
    """Return the sums of 16 rows of 16 elements that begin at `index`: lane i holds the sum of row i."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source, place = values
        rows = []
        for i in range(LANES):
            start = builder.add(place, ir.Constant(place.type, i * LANES))
            rows.append(builder.load(_address(context, builder, array, source, start), align=4))
        width = 1
        while len(rows) > 1:  # neighbours are folded into one row that holds half of each
            low = [i if not i & width else LANES + i - width for i in range(LANES)]
            high = [i + width if not i & width else LANES + i for i in range(LANES)]
            folds = [ir.Constant(_INTS, mask) for mask in (low, high)]
            rows = [
                builder.fadd(*(builder.shuffle_vector(a, b, fold) for fold in folds))
                for a, b in zip(rows[::2], rows[1::2], strict=True)
            ]
            width *= 2
        return rows[0]

    return vector(array, types.intp), generate


# ---------------------------------------------------------------- functions of vectors

_LOG2_E = np.float32(1 / np.log(2))
_ATANH = [np.float32(1 / k) for k in (15, 13, 11, 9, 7, 5, 3, 1)]
_T15, _T13, _T11, _T9, _T7, _T5, _T3, _T1 = _ATANH
_ONE, _TWO, _ZERO = np.float32(1), np.float32(2), np.float32(0)


@njit(inline="always")
def exp(x):  # type: ignore[no-untyped-def]
    """Return e^x."""
    return exp2(x * splat(_LOG2_E))


@njit(inline="always")
def sigmoid(x):  # type: ignore[no-untyped-def]
    """Return 1 / (1 + e^-x)."""
    one = splat(_ONE)
    return one / (one + exp(splat(_ZERO) - x))


@njit(inline="always")
def softplus(x):  # type: ignore[no-untyped-def]
    """Return log(1 + e^x) = max(x, 0) + log1p(t), t = e^-|x|, and log1p(t) = 2 atanh(t / (2 + t))."""
    zero = splat(_ZERO)
    t = exp(smallest(x, zero - x))
    s = t / (t + splat(_TWO))
    q = s * s
    p = splat(_T15)
    p = fma(p, q, splat(_T13))
    p = fma(p, q, splat(_T11))
    p = fma(p, q, splat(_T9))
    p = fma(p, q, splat(_T7))
    p = fma(p, q, splat(_T5))
    p = fma(p, q, splat(_T3))
    p = fma(p, q, splat(_T1))
    return largest(x, zero) + splat(_TWO) * s * p
