"""Which precision a device gets."""

from __future__ import annotations

import pytest
from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.contract import Device
from runner_core.contract.project import Project
from runner_core.engines.device import default_precision

CPU = Device("cpu", name="a CPU", bfloat16=True)
AMX = Device("cpu", name="a CPU with AMX", bfloat16=True, matrix_bfloat16=True)
AMPERE = Device("cuda", name="A100", bfloat16=True, tf32=True)
TURING = Device("cuda", name="T4")


class Gains(Project):
    """A project whose network is faster in bfloat16 on a CPU that has instructions for it."""

    bfloat16_on_cpu = True


def chosen(mode, device, project=Project):
    config = RunConfig()
    config.precision.mode = mode
    return default_precision(project(config), config, device)


@pytest.mark.parametrize("device, compute", [(CPU, "float32"), (AMPERE, "bfloat16"), (TURING, "float16")])
def test_auto(device, compute):
    precision = chosen("auto", device)
    assert precision.compute == compute
    assert precision.reason
    assert precision.loss_scaling == (compute == "float16")
    assert precision.mixed == (compute != "float32")


@pytest.mark.parametrize("device, project, compute", [
    (CPU, Gains, "float32"), (AMX, Project, "float32"), (AMX, Gains, "bfloat16"), (TURING, Gains, "float16"),
])  # fmt: skip
def test_auto_on_a_cpu(device, project, compute):
    """A CPU computes in bfloat16 by itself only if it has AMX and the project gains by it."""
    assert chosen("auto", device, project).compute == compute
    assert chosen("float32", device, project).compute == "float32"


@pytest.mark.parametrize("mode", ["float32", "tf32", "bfloat16", "float16"])
@pytest.mark.parametrize("device", [CPU, AMPERE, TURING])
def test_asked_for(mode, device):
    """A precision that the device lacks is refused, with those that it has."""
    if (mode == "tf32" and device is not AMPERE) or (mode == "bfloat16" and device is TURING):
        with pytest.raises(BadInput, match=rf"precision.mode {mode}: {device.name} .* use (float32|float16) or auto"):
            chosen(mode, device)
    else:
        assert chosen(mode, device).compute == mode
