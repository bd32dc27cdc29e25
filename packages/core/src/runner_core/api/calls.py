"""The functions that Python calls first: `train`, `check`, `phantom` and `open`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runner_core.api.experiment import opened
from runner_core.api.keywords import keywords
from runner_core.api.results import DataCheck
from runner_core.api.run import Run
from runner_core.base.errors import BadInput, RunnerError, Stopped, Unhealthy
from runner_core.engines.process import undisturbed
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.builtin import named_run

if TYPE_CHECKING:
    from runner_core.cli.start import Started
    from runner_core.contract.team import Place

AnyPath = str | os.PathLike[str]


def open(run: AnyPath, project: str | None = None) -> Run:
    """Return a run, given its folder (or one of its checkpoints, which it then uses in place of the best).

    `open("builtin", PROJECT)` gives the weights in the project's package.

    The folder of a cross-validation or a repetition gives an `Experiment`, whose networks predict together. Raises
    BadInput if there is no run, or if it is not of `project`.
    """
    place = Path(run).expanduser()
    found = opened(place if project is None else named_run(project, place))
    if project is not None and found.project != project:
        raise BadInput(f"{run} is a run of project {found.project!r}, not of {project!r}")
    return found


def train(
    project: str,
    *,
    data: AnyPath | None = None,
    preset: str | None = None,
    run_dir: AnyPath | None = None,
    resume: AnyPath | Literal[True] | None = None,
    from_: AnyPath | None = None,
    config: AnyPath | None = None,
    **settings: Any,
) -> Run:
    """Train as `runner PROJECT train` does, and return the run.

    Settings have dotted names (`**{"train.epochs": 5}`) or the command line's short ones (`epochs=5`, `lr=1e-3`,
    `batch_size=8`, `workers=2`, `device="cpu"`). Further options of the command are keywords too (`extension`).

    An interruption (Ctrl-C, a notebook's stop button) saves a checkpoint and returns the run; then `resume=run.path`
    continues it.

    Args:
        project: Its name, such as "brainunet".
        data: A folder or a URL. Default: a generated phantom.
        preset: Named defaults. Default: demo for the phantom, else default.
        run_dir: A new or empty folder. Default: runs/PROJECT/TIME.
        resume: A stopped run to continue; True for the latest; "auto" to start or continue in `run_dir`.
        from_: A run or a file of weights to start a new run from.
        config: A settings file.
        settings: Settings, which override those of the preset and of the file.

    Raises:
        BadInput: Data or settings cannot be used.
        Unhealthy: A health rule stopped the run.
    """
    from runner_core.cli.launch import place_of
    from runner_core.cli.options import TrainOptions
    from runner_core.cli.start import start_new
    from runner_core.cli.train import train_with

    given = {"data": data, "preset": preset, "run_dir": run_dir, "resume": resume, "from_": from_}
    given |= {"config": config, **settings}
    with undisturbed() as framework:
        started = start_new(project, "train", TrainOptions, keywords(TrainOptions, given))
        framework(started.setup.project.framework)
        try:
            place = place_of(started.setup)
            if started.setup.config.train.devices > 1 and (place is None or place.devices > 1):
                return _train_together(started, place)
            train_with(started, list)
        except Stopped as stopped:
            if stopped.exit_code != INTERRUPTED:  # SIGTERM: the program is to end
                raise
            print(stopped)
        except KeyboardInterrupt:
            if started.run is None or RunFolder(started.run.path).read_summary().get("status") != "done":
                raise
            print(f"interrupted after the training: the network is in {started.run.path}")
    assert started.run is not None
    return Run(started.run.path)


INTERRUPTED = 130


def _train_together(started: Started[Any], place: Place | None) -> Run:
    """Train in a process for each device, or in one for all (`place`), with the settings in a file."""
    from runner_core.cli.launch import launch
    from runner_core.plugins.settings import save

    options, setup = started.options, started.setup
    run = started.run or RunFolder.create(None, setup.name, options.run_dir)
    with tempfile.TemporaryDirectory(prefix="runner-") as folder:
        file = Path(folder) / "settings.yaml"
        save(file, setup.config, {name: started.head[name] for name in ("project", "preset", "source")})
        words = ["--config", str(file), "--preset", setup.preset]
        words += ["--resume" if started.run else "--run-dir", str(run.path)]
        words += [] if setup.source is None else ["--data", str(setup.source)]
        if started.run is None and setup.start is not None:  # a settings file may have named it
            words += ["--from", setup.start.source]
        for name in ("extension", "no_extension"):
            words += [word for value in getattr(options, name) for word in (f"--{name.replace('_', '-')}", value)]
        train = setup.config.train
        code = launch([setup.name, "train", *words], train.devices if place is None else 1, train.patience_seconds)
    if code not in (0, INTERRUPTED):
        kinds = {BadInput.exit_code: BadInput, Unhealthy.exit_code: Unhealthy}
        raise kinds.get(code, RunnerError)(
            f"the training of {setup.name} ended with code {code}; see its message above"
        )
    return Run(run.path)


def check(
    project: str, *, data: AnyPath | None = None, preset: str | None = None, fit: bool = False,
    out: AnyPath | None = None, with_: AnyPath | list[AnyPath] | None = None, different: tuple[str, ...] = (),
    **settings: Any,
) -> DataCheck:  # fmt: skip
    """Audit data as `runner PROJECT check` does, and return what was found. Settings: as for `train`.

    Args:
        project: Its name.
        data: A folder or a URL. Default: a generated phantom.
        preset: Named defaults.
        fit: Also find how much memory and disk a training takes.
        out: A new or empty folder for the report. Default: runs/PROJECT/check-TIME.
        with_: Runs, or the folder of a cross-validation, that judge the labels of records they never saw.
        different: Keys of records that look like copies of one scan, but are known to be different scans.
        settings: Settings, by dotted or short name.

    Raises:
        BadInput: There are no such data. Faulty records are findings; then `ready` is False.
    """
    from runner_core.cli.check import check_with, start_check
    from runner_core.cli.options import CheckOptions

    given = {"data": data, "preset": preset, "fit": fit, "out": out, "with_": with_, "different": different, **settings}
    with undisturbed() as framework:
        members = start_check(project, keywords(CheckOptions, given))
        if fit or members[0].options.with_:
            framework(members[0].setup.project.framework)
        return DataCheck(*check_with(members))


def phantom(project: str, folder: AnyPath | None = None, seed: int = 0) -> Path:
    """Return a folder with a project's generated data set, in its real file formats.

    Without `folder`, it is the one in the cache folder on which `train` trains without data: read it only. A `folder`
    must be new or empty. Another `seed` (0 or more) writes another data set of the same kind; it needs a `folder`.
    """
    from runner_core.cli.options import ConfigOptions, PhantomOptions
    from runner_core.cli.small import phantom_with
    from runner_core.cli.start import start_new
    from runner_core.data.phantoms import phantom_folder

    with undisturbed():
        if folder is not None:
            options = keywords(PhantomOptions, {"folder": folder, "seed": seed})
            return phantom_with(start_new(project, "phantom", PhantomOptions, options))
        if seed != 0:
            raise BadInput("the phantom that is kept has seed 0: name a folder for another")
        return phantom_folder(
            start_new(project, "config", ConfigOptions, keywords(ConfigOptions, {})).setup.project, print
        )
