"""The memory that a preset's training takes on a GPU, from the memory plan under fake tensors: nothing is computed.

`plan_presets.py PROJECT PRESET FOLDER` prints JSON. The network computes in bfloat16 on the pretended accelerator of
the core's tests, which has CUDA's autocast lists. docs/presets.md has the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "core" / "tests" / "pretend"))
import pretend


def planned(name: str, preset: str, folder: Path, fake: bool = True) -> dict[str, Any]:
    """Return bytes on the device: activations of a step, and the most at once; computed where `fake` is False."""
    pretend.start()
    from runner_core.contract.setup import Setup
    from runner_core.data.pipeline import RecordPipeline
    from runner_core.data.splits import split
    from runner_core.plugins.manager import Plugins
    from runner_core.training.memory.plan import Asked, parts, total
    from runner_core.training.memory.survey import sketch, survey

    plugins = Plugins.load(name)
    kind = plugins.project()
    config = kind.presets[preset]()
    config.cache.dir, config.train.device = folder, "pretend"
    project = kind(config)
    source = _records(name, project, folder)
    setup = Setup(project, config, preset, source, plugins)
    records = project.records(source)
    splits = split(records, config.data, config.train.seed)
    data = sketch(setup, records, splits, setup.cache(records).plan(RecordPipeline.of(setup), records))
    if name == "vesuvius":  # augmentation reads values; what it takes is free again before the network's first layer
        decode = project.on_device
        project.on_device = lambda batch, statistics, rng: decode(batch, statistics, None)
    with _fake(project) if fake else mock.MagicMock():
        facts = survey(setup, data, setup.engine.trainer(setup, data, 1000), folder)
    assert facts.footprint is not None
    return {
        "precision": setup.precision.compute,
        "how": facts.footprint.how,
        "activations": facts.footprint.step(config.train.batch_size),
        "device": total(parts(Asked.of(config, "memmap"), facts), "device"),
    }


def _records(name: str, project: Any, folder: Path) -> Path:
    """Return records as large as the preset needs: the phantom's own, or larger ones made in the same way."""
    from runner_core.data.phantoms import phantom_folder

    rng, made = np.random.default_rng(0), folder / "records"
    if name == "vesuvius" and min(project.config.data.patch) > 64:
        from runner_vesuvius.phantom import write_phantom as volumes

        volumes(made, rng, (1, 1), 0, project.config.data.patch)
    elif name == "dinocell":
        from runner_dinocell.phantom import write_phantom as fields

        fields(made, rng, ("BR0101", "BR0201"), (1, 2), project.config.data.window)
    else:
        return phantom_folder(project, print)
    return made


def _fake(project: Any) -> Any:
    """Return a context in which tensors have no values: the network is made outside of it."""
    from contextlib import ExitStack

    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    make = project.model

    def model(precision: Any) -> Any:
        with unset_fake_temporarily():
            return make(precision)

    project.model = model
    inside = ExitStack()
    inside.enter_context(mock.patch("runner_core.engines.torch.learning.place", _moved))
    inside.enter_context(mock.patch("runner_core.engines.torch.memory.counts_memory", return_value=False))
    inside.enter_context(mock.patch.object(FakeTensor, "__bool__", return_value=True, create=True))
    inside.enter_context(FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()))
    return inside


def _moved(network: Any, project: Any, device: Any) -> Any:
    """Move a network to fake tensors, which `Module.to` cannot."""
    import torch

    with torch.no_grad():
        for module in network.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(parameter.to(device), parameter.requires_grad)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.to(device)
    return network


if __name__ == "__main__":
    project, preset, folder, *computed = sys.argv[1:]
    pretend.end(json.dumps(planned(project, preset, Path(folder), fake=not computed)))
