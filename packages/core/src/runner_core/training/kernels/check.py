"""Compare the kernels of a training before its first step, or by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from runner_core.contract import Json
from runner_core.contract.setup import Data, Setup
from runner_core.training.kernels.known import remember, remembered, versions
from runner_core.training.kernels.options import Option, options
from runner_core.training.kernels.proof import Proof
from runner_core.training.kernels.verdict import Verdict

Say = Callable[[str], None]


def prove(setup: Setup, data: Data, say: Say) -> Verdict:
    """Compare the training's kernels before its first step, as `train.kernels` says; called by every process.

    If something is wrong and can be switched off, `check` changes the settings of `setup` in place. What no setting
    does without is a warning: a comparison that is too strict must not keep anybody from training.
    """
    mode = setup.config.train.kernels
    if mode == "off":
        return Verdict()
    team = setup.team
    found = Verdict(**team.share(asdict(_found(setup, data, say)) if team.first else None))
    if found.status == "wrong" and found.off and mode == "check":
        switch_off(setup, found.off)
        found.switched = True
    if found.status != "unused" and team.first:
        say(f"{found.text} (train.kernels warn: train with it)" if found.switched else found.text)
    return found


def _found(setup: Setup, data: Data, say: Say) -> Verdict:
    used = options(setup)
    if not used:
        return Verdict()
    names = [option.name for option in used]
    if (known := remembered(setup, data)) is not None:
        return known
    if setup.team.count > 1 or setup.team.devices > 1:
        note = f"`runner {setup.name} verify-kernels` compares them on one device; the result is remembered"
        return Verdict("unchecked", names, note=note)
    say(f"comparing kernels with plain float32: {', '.join(names)}")
    return verify(setup, data, used)


def switch_off(setup: Setup, off: Mapping[str, Json]) -> None:
    """Change settings in place: the project, the engine and the run hold this very object."""
    for name, value in off.items():
        *sections, last = name.split(".")
        place: Any = setup.config
        for section in sections:
            place = getattr(place, section)
        setattr(place, last, value)
    setup.__dict__.pop("precision", None)


def verify(setup: Setup, data: Data, used: Sequence[Option] | None = None) -> Verdict:
    """Compare the step that `setup` trains with plain float32, and remember the result."""
    begun, used = time.monotonic(), options(setup) if used is None else used
    found = Verdict("right", [option.name for option in used], versions=versions(setup))
    try:
        proof = Proof(setup, data, used)
        wrong = proof.wrong({})
        found.compared, found.margin = proof.compared, proof.margin
        if wrong:
            found.status = "wrong"
            proof.blame(found, wrong)
    except Exception as error:  # whatever fails here must not stop a training that may be right
        first = (str(error).strip().splitlines() or ["no reason given"])[0]
        found.status, found.note = "unchecked", f"{type(error).__name__}: {first}"
    found.seconds = time.monotonic() - begun
    if found.status != "unchecked":
        remember(setup, data, found)
    return found
