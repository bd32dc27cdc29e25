"""Shared parts of the commands that measure a training: `profile`, `tune`, `ablate`."""

from __future__ import annotations

from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.text import counted
from runner_core.cli.start import Started
from runner_core.config.values import plain
from runner_core.training.child import TrainingSpec


def base_of(started: Started[Any]) -> TrainingSpec:
    """Return the settings with which the trials of a parsed command begin."""
    setup, options = started.setup, started.options
    source = None if setup.source is None else str(setup.source)
    return TrainingSpec(setup.name, setup.preset, source, plain(setup.config), started.chosen, options.no_extension)


def refuse(command: str, started: Started[Any]) -> None:
    """Raise BadInput if there is no time, or if there are more devices than can be measured."""
    minutes, devices = started.options.minutes, started.setup.config.train.devices
    if not minutes > 0:
        raise BadInput(f"--minutes must be more than 0, not {minutes:g}")
    if devices > 1:
        raise BadInput(f"{command} measures one device: leave out --devices ({counted(devices, 'device')})")


def exit_code(stop: KeyboardInterrupt | SystemExit) -> int:
    """Return the exit code of an interrupted command: 130 for Ctrl-C, else the code of SIGTERM's handler."""
    return stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 130
