"""Built-in phantoms: generated once for each project and version, kept in the cache folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_full_folder
from runner_core.base.writing import locked, whole_folder
from runner_core.contract.project import Project

SEED = 0
"""Seed of the phantom on which trainings without data train."""


def write_phantom(project: Project, folder: Path, seed: int = SEED) -> Path:
    """Write the project's phantom of a seed, whole or not at all, into `folder`, which must be empty or not exist."""
    if seed < 0:
        raise BadInput(f"the phantom's seed is {seed}: give 0 or more")
    refuse_full_folder(folder, "name another for the phantom")
    try:
        with whole_folder(folder) as temporary:
            project.phantom(temporary, np.random.default_rng(seed))
    except OSError as error:
        raise BadInput(f"{folder}: the phantom cannot be written: {error.strerror or error}") from error
    return folder


def phantom_folder(project: Project, say: Callable[[str], None]) -> Path:
    """Return the project's phantom in the cache folder, made on first use by one process while others wait."""
    from runner_core.data.cache.folder import cache_root

    parent = cache_root(project.config.cache.dir) / "phantoms" / project.name
    folder = parent / f"version-{project.dataset.phantom_version}"
    if folder.is_dir():
        return folder
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with locked(parent / f".{folder.name}.lock"):
            if not folder.is_dir():
                for leftover in parent.glob(f".{folder.name}.[0-9]*"):  # of a killed process
                    shutil.rmtree(leftover, ignore_errors=True)
                say(f"making the {project.name} phantom in {folder}")
                write_phantom(project, folder)
    except OSError as error:
        raise BadInput(
            f"{parent}: the phantom cannot be kept here: {error.strerror or error}; choose a folder with --cache.dir"
        ) from error
    return folder
