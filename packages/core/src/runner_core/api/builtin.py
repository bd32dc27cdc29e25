"""Weights for a project's package, written from a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from runner_core.api.imported import state_with
from runner_core.api.keywords import keywords
from runner_core.api.run import Run
from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_full_folder
from runner_core.base.writing import replace_json, replace_text, whole_folder
from runner_core.engines.process import undisturbed
from runner_core.output.runfolder import IMPORTED, RunFolder
from runner_core.plugins.builtin import CARD
from runner_core.training.seen import CONTENTS_FILE, SPLIT_FILE, History

LARGEST = 8_000_000
"""Bytes that weights in a package may have: every installation downloads them."""


def write_builtin(
    run: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    statement: str,
    files: Sequence[Path],
    settings: Mapping[str, Any],
    half: bool = False,
) -> Run:
    """Write the best weights of a run as the folder `weights` of a project's package, and return it as a run.

    The averaged weights are taken if there are some. Neither data nor their place, neither optimizer nor log go along,
    only names and digests of the training records, by which `evaluate` recognises them.

    Args:
        run: The run.
        folder: A new or empty folder.
        statement: One or two sentences: what the weights were trained on, and what they are not for.
        files: Files to copy into the folder, MODEL_CARD.md among them.
        settings: Settings that leave the model alone, such as the chosen threshold, by dotted name.
        half: Store weights in 16 bits (float16), which halves the folder. The network still computes with the run's
            precision, with rounded weights: measure what that costs before you publish them.

    Raises:
        BadInput: The folder is not empty, the card is missing, or the weights are larger than 8 MB.
    """
    from runner_core.cli.load import load_network
    from runner_core.cli.options import ExportOptions
    from runner_core.cli.start import start_from_run
    from runner_core.plugins.settings import save
    from runner_core.training.checkpoints import Checkpoints
    from runner_core.training.start import open_start

    named, out = Path(run), Path(folder)
    refuse_full_folder(out, "name another one")
    if CARD not in {file.name for file in files}:
        raise BadInput(f"{out}: weights in a package need a {CARD}: name it in `files`")
    with undisturbed() as framework:
        given = {"run": named, "out": out, **settings}
        started = start_from_run(Run(named).project, "export", ExportOptions, keywords(ExportOptions, given))
        setup = started.setup
        framework(setup.project.framework)
        trained = RunFolder.open(named)
        history = History.of(trained.path, str(started.head["source"]))
        if history.unknown:
            raise BadInput(f"{named}: it is not known what {history.unknown[0]} was trained on, which a card must say")
        _, checkpoint = load_network(started, named)  # the project learns its statistics
        weights = open_start(setup, named, history)[0].read()
        if half:
            weights = {name: _half(tensor, f"{named}: {name}") for name, tensor in weights.items()}
        state = state_with(setup, weights, setup.project.statistics, named)
        if (size := sum(tensor.nbytes for tensor in weights.values())) > LARGEST:
            raise BadInput(f"{named}: its weights have {size / 1e6:.1f} MB; a package may bring {LARGEST / 1e6:g} MB")
        step = int(checkpoint.rpartition("-")[2])
        with whole_folder(out) as temporary:
            new = RunFolder(temporary)
            plugins = setup.plugins.versions
            Checkpoints(new.checkpoints, setup.checkpoint_format, project=setup.name, plugins=plugins).save(
                state, step, 0, None, True
            )
            names = sorted({name for one in history.runs for name in one.names})
            replace_text(temporary / SPLIT_FILE, yaml.safe_dump({"train": names}))
            contents = {key: digest for one in history.runs for key, digest in one.contents.items()}
            replace_json(temporary / CONTENTS_FILE, {"train": contents})
            about = {"project": setup.name, "status": IMPORTED, "steps": step, "epochs": 0, "best_step": step}
            new.write_summary({**about, "statement": statement})
            head = {name: value for name, value in started.head.items() if name not in ("source", "from")}
            config = setup.config  # without what is of that machine and of those data
            config.train.threads, config.cache.dir, config.data.split = None, None, "auto"
            save(new.config_file, setup.config, head)
            for file in files:
                shutil.copyfile(file, temporary / file.name)
    return Run(out)


def _half(tensor: Any, name: str) -> Any:
    """Return floating-point numbers (NumPy's or PyTorch's) in 16 bits, and others as they are.

    Raises BadInput for a number that float16 cannot hold (above 65504).
    """
    if "float" not in str(tensor.dtype):
        return tensor
    with np.errstate(over="ignore"):
        small = tensor.astype(np.float16) if isinstance(tensor, np.ndarray) else tensor.half()
    if not np.isfinite(np.asarray(small)).all():
        raise BadInput(f"{name} holds numbers that 16 bits cannot hold: leave `half` out")
    return small
