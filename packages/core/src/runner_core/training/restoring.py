"""Refuse, with one message, a checkpoint that was changed and given a new checksum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from runner_core.base.errors import BadInput, RunnerError
from runner_core.base.resources import is_out_of_memory
from runner_core.contract import State
from runner_core.contract.run import OtherWeights, remedy, why

_WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@contextmanager
def restoring(checkpoint: Path) -> Iterator[None]:
    """Turn errors into BadInput while the state of `checkpoint` is put into a network or a run.

    Errors in the code of a project or an extension stay what they are, and so does a lack of memory.
    """
    from runner_core.plugins.discovery import place_of

    try:
        yield
    except OtherWeights as error:
        raise _unfit(checkpoint, str(error)) from error
    except RunnerError:
        raise
    except _WRONG as error:
        if place_of(error) is not None or is_out_of_memory(error):
            raise
        raise _unfit(checkpoint, f"what it holds does not fit this runner and project: {why(error)}") from error


def _unfit(checkpoint: Path, what: str) -> BadInput:
    return BadInput(
        f"{checkpoint}: {' '.join(what.split())[:300]}. If another version wrote it, use that one; else it is "
        f"damaged or changed. {remedy(checkpoint)}"
    )


def refuse_nan(state: State, checkpoint: Path) -> None:
    """Raise BadInput if a weight is NaN, because no training saves such weights."""
    for name, tensor in state.tensors.items():
        if name.startswith(("model.", "ema.")):
            try:
                array = np.asarray(tensor)
            except TypeError:  # a dtype that NumPy does not have
                continue
            if array.dtype.kind in "fc" and np.isnan(array).any():
                raise BadInput(
                    f"{checkpoint}: {name} holds NaN, which no training saves: damaged or changed. {remedy(checkpoint)}"
                )
