"""What a training takes of memory, known before its first step: on host, device and disk, part by part.

`plan` is of data that are open, or of a `sketch` of them, for which no cache is built. It imports no framework but
where it looks at the network, which the engine of the project does (`Trainer.footprint`).
"""

from runner_core.memory.plan import MemoryPlan, plan
from runner_core.memory.sketch import sketch

__all__ = ["MemoryPlan", "plan", "sketch"]
