"""Folders of what looks at runs or data without training: check, profile, tune, ablate, verify-resume, compare."""

from __future__ import annotations

import time
from pathlib import Path

from runner_core._errors import BadInput
from runner_core.runfolder import RUNS


def tool_folder(project: str, tool: str, out: Path | None) -> Path:
    """A new folder, made: `out`, which must be empty or not exist yet, else runs/PROJECT/TOOL-TIME. BadInput where
    nothing can be written."""
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            if any(out.iterdir()):
                raise BadInput(f"{out}: the folder is not empty; name another one with --out")
            return out
        stem = RUNS / project / f"{tool}-{time.strftime('%Y-%m-%d-%H%M%S')}"
        path, number = stem, 1
        while True:
            try:
                path.mkdir(parents=True)
                return path
            except FileExistsError:
                number += 1
                path = stem.with_name(f"{stem.name}-{number}")
    except OSError as error:
        raise BadInput(
            f"{out or RUNS}: nothing can be written here ({error.strerror}); name a folder with --out"
        ) from error
