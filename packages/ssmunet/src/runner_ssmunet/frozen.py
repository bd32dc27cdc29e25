"""Features of an exported network's frozen spectral layers, computed once and cached in place of the spectra.

Only the U-Net trains then, and reads 24 numbers per pixel instead of 425. No framework is imported at the top: worker
processes that build the cache load it when they compute.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Statistics, hash_file, plain

from runner_ssmunet.config import FILES, PreprocessConfig, SpectraConfig
from runner_ssmunet.export import DESCRIPTION, WEIGHTS, read_description
from runner_ssmunet.preprocess import OPTIONAL, SETTINGS
from runner_ssmunet.statistics import axes_differ
from runner_ssmunet.steps.operations import applied
from runner_ssmunet.steps.pipeline import opened, operations_of, read

Array = np.ndarray[Any, np.dtype[Any]]

_PIXELS = 4096
"""Pixels that are converted to float32 at once."""


class FrozenFeatures:
    """The spectral layers of the network that `runner ssmunet export` wrote into `folder`.

    Picklable: only the folder's name is pickled. Raises BadInput if the folder does not hold such a network.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.description = read_description(folder)
        if not (folder / WEIGHTS).is_file():
            raise BadInput(f"{folder / WEIGHTS}: no such file; give the folder that `runner ssmunet export` wrote")

    def __reduce__(self) -> tuple[type[FrozenFeatures], tuple[Path]]:
        return FrozenFeatures, (self.folder,)

    @functools.cached_property
    def digest(self) -> str:
        """Checksum of weights and description: part of the key of a cache that holds the features."""
        return hash_file(self.folder / WEIGHTS) + hash_file(self.folder / DESCRIPTION)

    @property
    def count(self) -> int:
        """Number of features F."""
        return int(self.description["network"]["filters"])

    @property
    def statistics(self) -> Statistics:
        """The exported network's wavenumbers, mean and std (L,) float64 of its training, and its fitted steps."""
        inputs = self.description["input"]
        found = {name: np.asarray(inputs[name], np.float64) for name in ("wavenumbers", "mean", "std")}
        return found if "preprocess" not in inputs else found | {"preprocess": _with_arrays(inputs["preprocess"])}

    def require(self, wavenumbers: Array, data: SpectraConfig, steps: PreprocessConfig | None = None) -> None:
        """Raise BadInput unless the network was trained on spectra of this axis, prepared with these settings."""
        had = self.description["input"].get("preprocess", {"settings": plain(PreprocessConfig())})["settings"]
        wanted = plain(steps or PreprocessConfig())
        for name, value in wanted.items() if wanted["steps"] or had["steps"] else ():
            # of files the content counts (`refuse_other_files`), and whether there is one
            same = (value is None) == (had.get(name) is None) if name in FILES else value == had.get(name, value)
            if not same:
                raise BadInput(
                    f"model.features: the network in {self.folder} was trained with preprocess.{name} {had[name]}, "
                    f"this run has {value}; set it as it was there"
                )
        usual = plain(SpectraConfig())
        trained: Mapping[str, Any] = {n: usual[n] for n in OPTIONAL} | self.description["input"]["prepare"]
        for name in (*SETTINGS, *OPTIONAL):
            if plain(getattr(data, name)) != trained[name]:
                raise BadInput(
                    f"model.features: the network in {self.folder} was trained with data.{name} {trained[name]}, this "
                    f"run has {plain(getattr(data, name))}; set it as it was there"
                )
        if difference := axes_differ(self.statistics["wavenumbers"], np.asarray(wavenumbers, np.float64)):
            raise BadInput(
                f"model.features: the network in {self.folder} was trained on other wavenumbers: {difference}; use "
                "cores of the same axis, or train without model.features"
            )

    def refuse_other_files(self, steps: PreprocessConfig) -> None:
        """Raise BadInput if a file of spectra that this run names has other content than in the network's training.

        A file that is gone is not missed: the export holds its spectra.
        """
        for name, own in opened(steps, self.statistics.get("preprocess")).files.items():
            path = getattr(steps, name)
            if path is not None and path.exists() and read(name, path).digest != own.digest:
                raise BadInput(
                    f"model.features: the network in {self.folder} was trained with other spectra than "
                    f"preprocess.{name} {path} holds now (its file was {own.name}); give the file as it was, or leave "
                    "model.features out"
                )

    def __call__(self, spectra: Array, tissue: Array) -> Array:
        """Return features (H, W, F) float16, 0 off the tissue, of prepared spectra (H, W, L), not z-scored.

        Runs on one thread: there are as many cache workers as cores.
        """
        import torch

        trained = self.statistics
        operations = operations_of(trained)
        mean, std = (trained[name].astype(np.float32) for name in ("mean", "std"))
        places = np.flatnonzero(tissue)
        flat = spectra.reshape(-1, spectra.shape[-1])
        out = np.zeros((flat.shape[0], self.count), np.float16)
        stack = _stack(self.folder, self.digest)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                for first in range(0, len(places), _PIXELS):
                    part = places[first : first + _PIXELS]
                    scaled = (applied(flat[part], operations) - mean) / std
                    out[part] = stack(torch.from_numpy(scaled)).numpy()
        finally:
            torch.set_num_threads(threads)
        return out.reshape(*tissue.shape, self.count)


def _with_arrays(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steps of an export as a checkpoint keeps them, with arrays."""
    files = {
        name: {"name": own["name"], **{key: np.asarray(own[key]) for key in ("wavenumbers", "spectra")}}
        for name, own in kept["files"].items()
    }
    operations = [
        {"name": own["name"], "constants": {key: np.asarray(value) for key, value in own["constants"].items()}}
        for own in kept["operations"]
    ]
    return {"files": files, "operations": operations}


@functools.lru_cache(maxsize=1)
def _stack(folder: Path, digest: str) -> Any:
    """Return the spectral stack, loaded once in each process."""
    from runner_ssmunet.export import load_network

    return load_network(folder)[0].stack
