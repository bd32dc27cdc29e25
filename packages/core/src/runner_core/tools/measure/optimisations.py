"""List what `ablate` switches off, without what is not there in this run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.base.location import Url
from runner_core.config.values import flat, plain
from runner_core.contract import Remedy
from runner_core.contract.setup import Setup
from runner_core.tools.measure.outcome import Case
from runner_core.tools.measure.trial import Ready

ALL, SAME = "all off", "all off that learn the same"
"""Names of the two cases that switch off several optimisations."""

CORE = (
    Remedy(
        "look-ahead",
        off={"cache.ahead": False},
        part="data",
        why="Records are fetched before a batch asks for them; without, each batch waits for its own.",
    ),
    Remedy(
        "connections",
        off={"remote.connections": 1},
        part="data",
        why="Files are requested many at a time; without, one after the other.",
    ),
    Remedy(
        "workers",
        off={"train.workers": 0},
        part="data",
        why="Other processes fill batches ahead; without, the training process fills each when it needs it.",
    ),
    Remedy(
        "crop",
        off={"crop.mode": "none"},
        part="data",
        why="Records are cut to what matters before they are kept; without, they are kept whole.",
        same=False,
    ),
    Remedy(
        "device-cache",
        off={"cache.mode": "memmap"},
        part="data",
        why="The whole set lives on the device; without, batches are brought there.",
    ),
    Remedy(
        "precision",
        off={"precision.mode": "float32"},
        part="network",
        why="The network computes in fewer bits; without, in float32.",
    ),
    Remedy(
        "compile",
        off={"train.compile": "off"},
        part="network",
        why="The step is compiled; without, it runs operation by operation.",
    ),
    Remedy(
        "channels-last",
        off={"train.channels_last": "off"},
        part="network",
        why="Convolutions have their channels last in memory; without, first.",
    ),
    Remedy(
        "blocks",
        off={"train.steps_per_execution": 1},
        part="network",
        why="Several steps go to the device at once; without, each by itself.",
    ),
    Remedy(
        "one-exchange",
        off={"exchange.gradients": "micro_batch"},
        part="network",
        why="Gradients are exchanged once a step; without, after each micro-batch.",
    ),
    Remedy(
        "no-search",
        off={"exchange.unused": "find"},
        part="network",
        why="All weights are known to be used; without, each step looks for those that it did not use.",
    ),
    Remedy(
        "reduce-scatter",
        off={"exchange.features": "all"},
        part="network",
        why="Of gathered features a device receives its own gradients; without, those of all.",
    ),
    Remedy(
        "bf16-gather",
        off={"exchange.gather": "float32"},
        part="network",
        why="Weights are gathered in bfloat16; without, in float32.",
    ),
    Remedy(
        "bf16-reduce",
        off={"exchange.reduce": "float32"},
        part="network",
        why="Gradients are summed in bfloat16; without, in float32.",
    ),
    Remedy(
        "two-levels",
        off={"train.strategy": "fsdp"},
        part="network",
        why="Weights are gathered within groups of devices; without, from all devices.",
    ),
    Remedy(
        "cache",
        off={"cache.mode": "off"},
        part="data",
        why="Records are read and prepared once; without, anew for the samples that a batch has of them.",
    ),
)
"""Ordered so that all can be switched off at once: if two change the same setting, the later one wins."""


def refuse_unknown(setup: Setup, only: Sequence[str]) -> None:
    """Raise BadInput for a name that is not an optimisation's."""
    known = [o.name for o in (*setup.project.learning().optimisations, *CORE)]
    for name in only:
        if name not in known:
            raise BadInput(
                f"{setup.name} has no optimisation {name!r}{did_you_mean(name, known)} (there are {', '.join(known)})"
            )


def cases(setup: Setup, ready: Ready, only: Sequence[str] = ()) -> list[Case]:
    """Return what a run with these settings can do without, each by itself, then all together.

    If some do not learn the same, those that do come together first. `ready` comes from a trial with the unchanged
    settings. `only` holds names; an empty one means all.
    """
    own = [o for o in (*setup.project.learning().optimisations, *CORE) if not only or o.name in only]
    now = flat(setup.config) | in_effect(setup, ready)
    there = [o for o in own if _wanted(o, setup, now, ready)]
    found = [Case(o.name, dict(o.off), o.why, o.same, (o.part,)) for o in there]
    if len(there) > 1:
        found += _together(there)
    return [_gathering_what_it_may(case) for case in found] if now.get("exchange.gather") == "bfloat16" else found


def _gathering_what_it_may(case: Case) -> Case:
    """Return the case with weights gathered in float32 if it computes in another type than bfloat16."""
    if case.settings.get("precision.mode", "bfloat16") == "bfloat16":
        return case
    return replace(case, settings={**case.settings, "exchange.gather": "float32"})


def _together(there: Sequence[Remedy]) -> Iterator[Case]:
    alike = [o for o in there if o.same]
    for name, those in ((SAME, alike), (ALL, there)):
        if name == ALL or 1 < len(alike) < len(there):
            off = {setting: value for o in those for setting, value in o.off.items()}
            parts = tuple(dict.fromkeys(o.part for o in those))
            about = f"Without any of {', '.join(o.name for o in those)}."
            yield Case(name, off, about, all(o.same for o in those), parts)


def in_effect(setup: Setup, ready: Ready) -> dict[str, Any]:
    """Return the values that settings with auto resolved to, by dotted name."""
    project, train, crop = setup.project, setup.config.train, setup.config.crop.mode
    on_gpu = ready.kind != "cpu"
    torch = project.framework == "torch"

    def switched(name: str, automatic: bool) -> str:
        value = getattr(train, name)
        return ("on" if on_gpu and automatic else "off") if value == "auto" else value

    return {
        "cache.mode": ready.cache,
        "crop.mode": project.dataset.crop if crop == "auto" else crop,
        "precision.mode": ready.precision,
        "train.compile": switched("compile", not torch),
        "train.channels_last": switched("channels_last", False),
        **ready.exchange,
    }


def _wanted(optimisation: Remedy, setup: Setup, now: Mapping[str, Any], ready: Ready) -> bool:
    """Return True if the run uses this optimisation."""
    if all(now.get(name) == plain(value) for name, value in optimisation.off.items()):
        return False
    if any(name.startswith("exchange.") and name not in ready.exchange for name in optimisation.off):
        return False
    streaming = ready.cache == "stream"
    needed = {
        "look-ahead": streaming,
        "connections": streaming and isinstance(setup.source, Url),
        "device-cache": ready.cache == "device",
        "one-exchange": setup.config.train.accumulate > 1,
        "two-levels": ready.strategy == "hsdp",
        "cache": not streaming,
    }
    return needed.get(optimisation.name, True)
