"""Write the files that come with an exported network, for any engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.config.values import flat
from runner_core.contract import Json
from runner_core.contract.setup import Setup


def describe(setup: Setup, statistics: Mapping[str, Any], folder: Path, **more: Json) -> Path:
    """Write model.json: the project, its settings, the statistics of its training data, and `more`."""
    description = {
        "project": setup.name,
        "settings": flat(setup.config),
        "statistics": {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in statistics.items()},
        **more,
    }
    file = folder / "model.json"
    file.write_text(json.dumps(description, indent=1, default=str) + "\n", encoding="utf-8")
    return file


def let_others_read(files: Sequence[Path]) -> None:
    """Give safetensors files, which only their owner can read, the permissions of other new files."""
    for file in files:
        if file.suffix == ".safetensors":
            usual = file.with_name(f".{file.name}.permissions")
            usual.touch()
            mode = usual.stat().st_mode
            usual.unlink()
            file.chmod(mode)
