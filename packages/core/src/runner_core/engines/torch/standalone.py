"""Export a trained network for use without runner: weights, description, and the class they belong to.

The description says how to build, feed and read the network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from safetensors.torch import save_file
from torch import nn

from runner_core.contract import Json


def export_standalone(
    network: nn.Module, folder: Path, description: Mapping[str, Json], source: ModuleType
) -> list[Path]:
    """Write model.safetensors, model.json (`description`) and network.py, a copy of `source`; return the files.

    `source` is the module of the network's class, and imports nothing but PyTorch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights, settings, code = folder / "model.safetensors", folder / "model.json", folder / "network.py"
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}, weights)
    settings.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    code.write_text(Path(str(source.__file__)).read_text(encoding="utf-8"), encoding="utf-8")
    return [weights, settings, code]
