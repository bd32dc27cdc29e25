"""`runner PROJECT verify-kernels`: compare the kernels that would train with plain operations, on the user's device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from runner_core.base.errors import BadInput, Unhealthy
from runner_core.base.text import counted
from runner_core.cli.json_output import show_json
from runner_core.cli.options import VerifyKernelsOptions
from runner_core.cli.start import start_new
from runner_core.training.data import open_data
from runner_core.training.kernels.check import verify
from runner_core.training.kernels.options import options


def verify_kernels(name: str, arguments: Sequence[str]) -> int:
    """Print what was found, and return 0 if the kernels are right, 3 if one is wrong, 2 if they cannot be compared."""
    started = start_new(name, "verify-kernels", VerifyKernelsOptions, arguments)
    setup = started.setup
    if setup.config.train.devices > 1:
        raise BadInput(f"verify-kernels compares on one device: leave out --devices ({setup.config.train.devices})")
    data = open_data(setup, print)
    used = options(setup)
    print(f"device: {setup.device.name or setup.device.kind}; precision: {setup.precision.compute}")
    listed = ", ".join(option.name for option in used) or "the framework's own kernels in float32"
    print(f"comparing with plain float32: {listed}")
    found = verify(setup, data, used)
    if found.status == "unchecked":
        raise BadInput(found.text)
    print(found.text)
    if found.status == "right":
        largest = f"{found.margin:.2g} of what rounding explains"
        print(f"{counted(found.compared, 'tensor')} compared; the largest difference is {largest}")
    if started.options.json:
        show_json({**asdict(found), "text": found.text})
    return Unhealthy.exit_code if found.status == "wrong" else 0
