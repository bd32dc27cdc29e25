"""What the commands that measure a training have in common: `profile`, `tune`, `ablate`."""

from __future__ import annotations

from typing import Any

from runner_core._errors import BadInput
from runner_core._text import counted
from runner_core.cli.start import Started
from runner_core.config.values import plain
from runner_core.measure.trial import Base


def base_of(started: Started[Any]) -> Base:
    """What the trials of a parsed command begin with."""
    setup, options = started.setup, started.options
    source = None if setup.source is None else str(setup.source)
    return Base(setup.name, setup.preset, source, plain(setup.config), started.chosen, options.no_extension)


def refuse(command: str, started: Started[Any]) -> None:
    """BadInput where there is no time, or more devices than are measured."""
    minutes, devices = started.options.minutes, started.setup.config.train.devices
    if not minutes > 0:
        raise BadInput(f"--minutes must be more than 0, not {minutes:g}")
    if devices > 1:
        raise BadInput(f"{command} measures one device: leave out --devices ({counted(devices, 'device')})")


def exit_code(stop: KeyboardInterrupt | SystemExit) -> int:
    """Of a command that somebody ended: 130 by Ctrl-C, else what SIGTERM's handler said."""
    return stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 130
