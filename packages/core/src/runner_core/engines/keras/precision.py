"""Apply precision policies to Keras, and observe the precision in which layers compute."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.contract import Precision

layers = keras.layers
OBSERVED = (
    layers.Dense,
    layers.EinsumDense,
    layers.Conv1D,
    layers.Conv2D,
    layers.Conv3D,
    layers.Conv1DTranspose,
    layers.Conv2DTranspose,
    layers.Conv3DTranspose,
    layers.DepthwiseConv1D,
    layers.DepthwiseConv2D,
    layers.SeparableConv1D,
    layers.SeparableConv2D,
    layers.MultiHeadAttention,
)


def policy_name(precision: Precision) -> str:
    """Return Keras's name of the policy; tf32 is a mode of float32 arithmetic.

    >>> policy_name(Precision("bfloat16")), policy_name(Precision("tf32"))
    ('mixed_bfloat16', 'float32')
    """
    return f"mixed_{precision.compute}" if precision.mixed else "float32"


def set_policy(precision: Precision) -> None:
    """Set the policy of every layer made from now on that has none of its own."""
    keras.config.set_dtype_policy(policy_name(precision))


def keep_float32(network: keras.Model, precision: Precision) -> None:
    """Make the layers that the policy names (and all below them) compute in float32.

    Raises BadInput if a name matches no layer.
    """
    if not precision.mixed:
        return
    found = list(_named_layers(network))
    for prefix in precision.keep_float32:
        inside = [layer for name, layer in found if name.startswith(prefix)]
        if not inside:
            names = [name for name, _ in found]
            raise BadInput(
                f"precision: the network has no layer {prefix!r} to keep in float32{did_you_mean(prefix, names)}"
            )
        for layer in inside:
            layer.dtype_policy = "float32"


def _named_layers(layer: keras.Layer, outer: str = "") -> Iterator[tuple[str, keras.Layer]]:
    """Yield the layers inside, with names like block/conv; two may have the same name."""
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        yield outer + inner.name, inner
        yield from _named_layers(inner, f"{outer}{inner.name}/")


@contextmanager
def observed(network: keras.Model, seen: Counter[str], policy: Precision) -> Iterator[None]:
    """Count, in `seen`, the output dtypes of layers with matrix products while the network is traced.

    A layer that was made for another policy than the network's (a float32 head) does not count.
    """
    dtypes: dict[int, str] = {}
    name = policy_name(policy)
    watched = [
        layer
        for layer in network._flatten_layers()
        if isinstance(layer, OBSERVED) and layer.dtype_policy.name == name and "call" not in vars(layer)
    ]
    for layer in watched:
        object.__setattr__(layer, "call", _noting(layer.call, dtypes, id(layer)))
    try:
        yield
    finally:
        for layer in watched:
            object.__delattr__(layer, "call")
        seen.update(dtypes.values())


def _noting(call: Callable[..., Any], dtypes: dict[int, str], key: int) -> Callable[..., Any]:
    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        output = call(*args, **kwargs)
        first = output[0] if isinstance(output, tuple) else output
        dtypes[key] = keras.backend.standardize_dtype(first.dtype)
        return output

    return run
