"""The PyTorch engine."""

import os

# Set before PyTorch loads its OpenMP: threads that wait for each other spin for about ten microseconds, then sleep. By
# default they spin on, and if something else runs on the cores too, they keep each other from working: half the speed
# beside two busy processes, a tenth or less beside another training. Without other load it makes no difference.
if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = "10000"

from runner_core.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine"]
