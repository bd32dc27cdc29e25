"""Which precision a device gets."""

from __future__ import annotations

import pytest
from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.contract import Device
from runner_core.engines.device import default_precision

CPU = Device("cpu", name="a CPU", bfloat16=True)
AMPERE = Device("cuda", name="A100", bfloat16=True, tf32=True)
TURING = Device("cuda", name="T4")


def chosen(mode, device):
    config = RunConfig()
    config.precision.mode = mode
    return default_precision(None, config, device)


@pytest.mark.parametrize("device, compute", [(CPU, "float32"), (AMPERE, "bfloat16"), (TURING, "float16")])
def test_auto(device, compute):
    precision = chosen("auto", device)
    assert precision.compute == compute
    assert precision.reason
    assert precision.loss_scaling == (compute == "float16")
    assert precision.mixed == (compute != "float32")


@pytest.mark.parametrize("mode", ["float32", "tf32", "bfloat16", "float16"])
@pytest.mark.parametrize("device", [CPU, AMPERE, TURING])
def test_asked_for(mode, device):
    """A precision that the device lacks is refused, with those that it has."""
    if (mode == "tf32" and device is not AMPERE) or (mode == "bfloat16" and device is TURING):
        with pytest.raises(BadInput, match=rf"precision.mode {mode}: {device.name} .* use (float32|float16) or auto"):
            chosen(mode, device)
    else:
        assert chosen(mode, device).compute == mode
