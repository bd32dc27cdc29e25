"""What would make a training fit: settings, with the values that do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from runner_core._text import counted
from runner_core.memory.asked import Asked, Facts
from runner_core.memory.parts import Place, parts, total

_ROOM = 0.95
"""Share of what the machine has that a remedy may come to."""


def fits(asked: Asked, facts: Facts, place: Place) -> bool:
    return total(parts(asked, facts), place) <= _ROOM * facts.has[place]


def remedies(asked: Asked, facts: Facts, place: Place, *, splittable: bool, recompute: str) -> list[str]:
    """Each of them alone would do, the one that costs least first. `recompute`: the setting of the project that keeps
    fewer activations, where it is off; nobody knows beforehand what it saves. Empty: nothing is known that would."""
    single = [text for change, text in _changes(asked, facts, place, splittable) if fits(change, facts, place)]
    network = place == "device" or (place == "host" and not facts.on_gpu)
    if recompute and network:
        single.append(f"try {recompute}, which keeps fewer activations and computes them again")
    return single


def accumulate_that_fits(asked: Asked, facts: Facts, place: Place) -> int | None:
    """The fewest micro-batches with which the same batch fits; None: not even one sample at a time does."""

    def enough(micro: int) -> bool:
        return fits(asked.but(accumulate=-(-asked.batch_size // micro)), facts, place)

    micro = _largest(enough, asked.micro - 1)
    return None if micro is None else -(-asked.batch_size // micro)


def _changes(asked: Asked, facts: Facts, place: Place, splittable: bool) -> Iterator[tuple[Asked, str]]:
    if place == "cache":
        return
    if place == "disk":
        if keep := _largest(lambda n: fits(asked.but(keep=n), facts, place), asked.keep - 1):
            yield asked.but(keep=keep), f"set checkpoint.keep to {keep}"
        return
    if asked.cache == ("memory" if place == "host" else "device"):
        yield asked.but(cache="memmap"), "set cache.mode to memmap, which leaves the data on the disk"
    if splittable and (parted := accumulate_that_fits(asked, facts, place)):
        yield asked.but(accumulate=parted), f"set train.accumulate to {parted}: micro-batches learn the same"
    if batch := _largest(lambda n: fits(_smaller(asked, n), facts, place), asked.batch_size - 1):
        rest = " (and validate.batch_size)" if (asked.validation_batch or 0) > batch else ""
        yield _smaller(asked, batch), f"set train.batch_size to {batch} or less{rest}"
    if place == "host" and asked.workers:
        yield asked.but(workers=0), "set train.workers to 0"
    if place == "host" and asked.prefetch:
        yield (
            asked.but(prefetch=0),
            f"set train.prefetch to 0, instead of {counted(asked.prefetch, 'batch', 'batches')}",
        )


def _smaller(asked: Asked, batch: int) -> Asked:
    """With smaller batches, of validation too; `accumulate` 1 where that is enough of it."""
    validation = asked.validation_batch
    changed = asked.but(batch_size=batch, accumulate=min(asked.accumulate, batch))
    return changed if validation is None else changed.but(validation_batch=min(validation, batch))


def _largest(enough: Callable[[int], bool], most: int) -> int | None:
    """The largest number from 1 to `most` for which `enough` holds, as it does for all smaller ones; None: for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if enough(middle) else (low, middle - 1)
    return low or None
