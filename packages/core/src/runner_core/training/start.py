"""Start a training from the weights of a run or of a file (`train --from`), and record in the run which they were."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from runner_core.base.errors import BadInput
from runner_core.base.files import hash_file, refuse_special_file
from runner_core.base.hub import fetched, is_hub
from runner_core.base.writing import replace_json
from runner_core.contract import Tensors
from runner_core.contract.setup import Setup
from runner_core.contract.start import Fit, StartWeights
from runner_core.engines.weights import listed
from runner_core.output.runfolder import RunFolder
from runner_core.training.checkpoints import Checkpoints, read_manifest, refuse_nan
from runner_core.training.not_weights import refuse_not_weights, refuse_part_of_run
from runner_core.training.seen import START_FILE, History, read_start

_WEIGHTS = ("model.safetensors", "ema.safetensors")
_ENDINGS = (".safetensors", ".keras", ".pt", ".pth", ".bin")
"""Of files that may hold weights and lie in a run's folder without being a checkpoint."""
_SHOWN = 8


def open_start(
    setup: Setup, named: Path, history: History | None, source: str | None = None
) -> tuple[StartWeights, History]:
    """Return the weights that the user named, and what they were trained on.

    `named` is a run, one of its checkpoints, a file of weights, or a folder that `export` wrote. `history` is that of
    the run that `named` is in, None for a file from elsewhere; `source` says where such a file came from. The weights
    are read once, so that a file that holds none is refused before the data are prepared.
    """
    run = None if history is None else RunFolder.open(named)
    checkpoint = None if run is None else _checkpoint(setup, run, named)
    if checkpoint is not None:
        start = _of_checkpoint(setup, checkpoint)
    else:
        start = _of_file(setup, _file(setup, named, run), source)
    keep_weights(start)
    return start, history if history is not None else History(unknown=(start.source,))


def keep_weights(start: StartWeights) -> None:
    """Read the weights now: the first call of `read` gives them away, so that they leave memory, later ones read again.

    Raises BadInput if they cannot be used any more.
    """
    kept, again = [start.read()], start.read
    start.read = lambda: kept.pop() if kept else again()


def reopen(setup: Setup, run: RunFolder) -> StartWeights | None:
    """Return the weights that a run started from, or None if it started from none.

    A run with checkpoints has them there: they are not read again. Otherwise they must still be the same.
    """
    saved = read_start(run.path)
    if saved is None:
        return None
    place, foreign = Path(saved["source"]), bool(saved["foreign"])

    def read() -> Tensors:
        file = fetched(saved["source"]).file if is_hub(saved["source"]) else place
        again = _of_file(setup, file) if foreign else _of_checkpoint(setup, place)
        if again.digest != saved["digest"]:
            raise BadInput(f"{place} was changed since {run.path} started from it: start a new run with --from")
        return again.read()

    fit = Fit(**saved["fit"]) if saved.get("fit") else None
    start = StartWeights(saved["source"], saved["digest"], saved["about"], foreign, read, fit=fit)
    start.restored = bool(run.saved_steps())
    return start


def save_start(run: Path, start: StartWeights, history: History) -> None:
    """Write start.json: the weights, how they fit once that is known, and what they were trained on."""
    values = {name: getattr(start, name) for name in ("source", "digest", "about", "foreign")}
    fit = None if start.fit is None else asdict(start.fit)
    try:
        replace_json(run / START_FILE, {**values, "fit": fit, "trained_on": history.json()})
    except OSError as error:
        raise BadInput(f"{run / START_FILE} cannot be written: {error.strerror or error}") from error


def summary_of(start: StartWeights) -> dict[str, Any]:
    """Return the entry of summary.json: the weights, and the names of those that fitted or did not."""
    fit = {} if start.fit is None else {**asdict(start.fit), "fitted": len(start.fit.fitted)}
    return {"from": start.source, "digest": start.digest, "weights": start.about, **fit}


def describe(start: StartWeights) -> Iterator[str]:
    """Yield lines that say which weights fitted the network, and which did not."""
    fit = start.fit
    if fit is None:
        raise BadInput("--from: this engine cannot start from weights; choose another (--no-extension)")
    total = len(fit.fitted) + len(fit.kept) + len(fit.differ)
    yield f"started from {start.source} ({start.about}): {len(fit.fitted)} of the network's {total} weights"
    differ = [f"{name} {shapes}" for name, shapes in fit.differ.items()]
    for what, names in (
        ("not in the file, so initial", fit.kept),
        ("of another shape, so initial", differ),
        ("only in the file, so not used", fit.unused),
    ):
        if names:
            yield f"  {what}: {len(names)} ({listed(names, _SHOWN)})"
    yield "  the optimizer, the schedule and the statistics (from these training records) start anew"


def _checkpoint(setup: Setup, run: RunFolder, named: Path) -> Path | None:
    """Return the checkpoint that the user named, the best one of a run; None for another file in the run's folder."""
    checkpoints = Checkpoints(run.checkpoints, setup.checkpoint_format, project=setup.name)
    if (path := run.checkpoint_of(named)) is not None and (path.name.startswith("step-") or not path.exists()):
        return path
    if named.absolute() != run.path.absolute():
        return None
    found = checkpoints.best()
    if found is None:
        raise BadInput(f"--from {named}: the run has no checkpoint yet")
    return found[0]


def _of_checkpoint(setup: Setup, path: Path) -> StartWeights:
    if not path.is_dir():
        raise BadInput(f"--from {path}: there is no such checkpoint")
    checkpoints = Checkpoints(path.parent, setup.checkpoint_format, project=setup.name)
    files = {name: written["xxh3_128"] for name, written in read_manifest(path).files.items()}
    weights = {name: digest for name, digest in files.items() if name in _WEIGHTS} or files
    averaged = "ema.safetensors" in files

    def read() -> Tensors:
        state = checkpoints.load(path)
        refuse_nan(state, path)
        parts = {part: _part(state.tensors, part) for part in ("model.", "ema.")}
        return parts["model."] | parts["ema."]

    about = f"{'averaged ' if averaged else ''}weights of {path.name}"
    return StartWeights(str(path.absolute()), _digest(weights), about, False, read)


def _part(tensors: Mapping[str, Any], prefix: str) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _file(setup: Setup, named: Path, run: RunFolder | None) -> Path:
    """Return the file of weights that the user named, or that `export` wrote into the named folder.

    Raises BadInput, with what it is instead, for what is no such file. `run` is the run that it lies in, or None.
    """
    inside = [named / name for name in ("model.safetensors", "model.keras")] if named.is_dir() else [named]
    found = next((path for path in inside if path.is_file()), None)
    if run is not None and (found is None or found.suffix not in _ENDINGS):
        refuse_part_of_run(named, run)
    if not named.exists():
        raise BadInput(f"--from {named}: there is no such run or file")
    refuse_not_weights(found or named, setup.project.framework)
    assert found is not None
    return refuse_special_file(found)


def _of_file(setup: Setup, file: Path, source: str | None = None) -> StartWeights:
    def read() -> Tensors:
        weights: Tensors = setup.engine.read_weights(file)
        for name, tensor in weights.items():
            _refuse_nan(file, name, tensor)
        return weights

    if not hasattr(setup.engine, "read_weights"):
        raise BadInput(f"--from {file}: the engine {setup.engine.name} cannot start from a file of weights")
    return StartWeights(source or str(file.absolute()), hash_file(file), "a file of weights", True, read)


def _refuse_nan(file: Path, name: str, tensor: Any) -> None:
    try:
        array = np.asarray(tensor)
    except TypeError:  # a dtype that NumPy does not have
        return
    if array.dtype.kind in "fc" and np.isnan(array).any():
        raise BadInput(f"--from {file}: {name} holds NaN")


def _digest(files: Mapping[str, str]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(files, sort_keys=True).encode())
