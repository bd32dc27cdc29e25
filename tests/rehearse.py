"""A torch project's training, validation, prediction and export on an accelerator; prints JSON.

`rehearse.py PROJECT FOLDER` takes the pretended accelerator of the core's tests, which PyTorch keeps for good: so it is
a script. `rehearse.py PROJECT FOLDER cuda` takes a GPU, where waits and early frees are not counted.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "core" / "tests" / "pretend"))
import pretend

STEPS = 3


def rehearse(name: str, folder: Path, device: str = "pretend") -> dict[str, Any]:
    """Return what happened; tensors on two devices raise an error, as on a GPU."""
    native = pretend.start() if device == "pretend" else None
    from runner_core.testing.case import Case
    from runner_core.training.assembly import assemble

    case = Case(name, folder)
    setup, config = case.setup, case.setup.config
    config.train.device, config.train.deterministic = device, False
    config.train.steps_per_epoch = STEPS
    said: list[str] = []
    parts = assemble(setup, case.data, folder, said.append)
    trainer: Any = parts.trainer
    trainer.learning.norms = None  # its first measurements wait for the device
    waits: list[dict[str, int]] = []
    for step, batch in enumerate(parts.loaders.training.batches(0)):
        if native is not None:
            native.forget_waits()
        trainer.train_step(batch, step)
        waits.append({} if native is None else native.waits())
    log = trainer.read_log()
    assert parts.loaders.validation is not None
    validated = trainer.validate(parts.loaders.validation.batches(0))
    state = trainer.state()
    parts.loaders.close()
    network = setup.engine.load(setup, state)
    on_device = {str(parameter.device) for parameter in network.network.parameters()}
    case.project.predict(case.cropped(), network.infer)
    written = setup.engine.export(setup, state, folder / "export")
    return {
        "precision": setup.precision.compute,
        "seen": log["precision_seen"],
        "loss": log["loss"],
        "validated": {key: value for key, value in validated.items() if not math.isfinite(value)},
        "devices": sorted(on_device),
        "waits": waits[-1],
        "written": [file.name for file in written],
        "memory": [line for line in said if "memory" in line],
        "unsafe_frees": 0 if native is None else native.unsafe_frees(),
    }


if __name__ == "__main__":
    pretend.end(json.dumps(rehearse(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])))
