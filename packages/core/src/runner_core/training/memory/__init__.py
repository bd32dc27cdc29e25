"""Plan the memory and disk space of a training before its first step: host, device and disk, part by part.

`plan` works on open data, or on a `sketch` of them that needs no cache. It imports a framework only to inspect the
network, which the project's engine does (`Trainer.footprint`).
"""

from runner_core.training.memory.plan import MemoryPlan, plan
from runner_core.training.memory.survey import sketch

__all__ = ["MemoryPlan", "plan", "sketch"]
