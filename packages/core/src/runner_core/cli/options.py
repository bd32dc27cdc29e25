"""Flags of the commands, as dataclasses for tyro; the project's settings are flags of the same command line.

The docstring under each field is its help text.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.conf import FlagCreatePairsOff, Positional, UseAppendAction

from runner_core._errors import BadInput
from runner_core.config import RunConfig
from runner_core.location import Location, location

LATEST = "latest"

Place = Annotated[str, tyro.conf.arg(metavar="PATH|URL")]
"""A path, or, where the project can, a URL (s3://BUCKET/FOLDER)."""


@dataclass(kw_only=True)
class Options:
    """What every command of a project takes."""

    config: Path | None = None
    """Settings file (YAML) over the preset; flags win over it."""
    extension: UseAppendAction[tuple[str, ...]] = ()
    """This extension provides what several could."""
    no_extension: UseAppendAction[tuple[str, ...]] = ()
    """Switch an installed extension off."""
    debug: FlagCreatePairsOff[bool] = False
    """Show tracebacks of errors."""


@dataclass(kw_only=True)
class PresetOptions(Options):
    preset: str | None = None
    """Named defaults to start from. Default: demo for the phantom, else default."""
    data: Place | None = None
    """Your data. Default: a generated phantom."""


@dataclass(kw_only=True)
class TrainOptions(PresetOptions):
    """Train a model. Settings: preset < --config FILE < flags; `config` prints what they come to."""

    run_dir: Path | None = None
    """Folder of the run: must be empty or new. Default: runs/PROJECT/TIME."""
    resume: str | None = None
    """Continue a stopped or killed run: --resume RUN, or --resume alone for the latest."""


@dataclass(kw_only=True)
class ConfigOptions(PresetOptions):
    """Print the settings that `train` would use, as YAML that --config accepts."""


@dataclass(kw_only=True)
class CheckOptions(PresetOptions):
    """Audit the data: faulty records, copies, the split, grey values, classes, what the cache will cost; on screen and
    as report.html and check.json. Exit code 2 where training would refuse the data: of streamed ones two files, or
    1 % where that is more, may be unreadable."""

    out: Path | None = None
    """A new or empty folder for the report. Default: runs/PROJECT/check-TIME."""
    fit: FlagCreatePairsOff[bool] = False
    """Also build the network, try a few samples, and say what a training takes of RAM, device and disk."""


@dataclass(kw_only=True)
class VerifyResumeOptions(PresetOptions):
    """Kill trainings at random moments (kill -9), in steps, validations and while they save, resume them, and compare
    each bit for bit with one that nobody disturbed: weights, optimizer, generators, metrics, log. Exit code 3 where
    one differs."""

    times: int = 3
    """Trainings that are killed."""
    kills: int = 2
    """Times that each of them is killed at most: a short one may end before."""
    seed: int = 0
    """Of the moments; the training's own is --train.seed."""
    out: Path | None = None
    """A new or empty folder for the result. Default: runs/PROJECT/verify-resume-TIME."""


@dataclass(kw_only=True)
class AblateOptions(PresetOptions):
    """Switch each optimisation off in turn, then all, and measure what that costs: a step, data, network and loss
    apart, an epoch, memory; and whether the network still learns the same. On screen, and as report.html, ablate.csv
    and ablate.json."""

    only: UseAppendAction[tuple[str, ...]] = ()
    """Only this optimisation; may be given several times. Default: all that the run has."""
    minutes: float = 10.0
    """Time that it may take, about. They are measured in their order; those for which it does not suffice are named."""
    out: Path | None = None
    """A new or empty folder for the result. Default: runs/PROJECT/ablate-TIME."""


@dataclass(kw_only=True)
class ProfileOptions(PresetOptions):
    """Train some steps and say where their time goes, what limits it, and what might help: on screen, and as
    report.html and profile.json."""

    steps: int = 100
    """Training steps that are measured, half of them taken apart."""
    minutes: float = 2.0
    """Fewer steps are measured where they would take longer. To compile them, and to time what surrounds them, comes on
    top."""
    at: float = 0.5
    """Moment of the training, 0 its beginning and 1 its end: some losses come in late."""
    trace: FlagCreatePairsOff[bool] = False
    """Also write a trace of three steps, as the framework's own profiler sees them: for Perfetto, chrome://tracing or
    TensorBoard."""
    out: Path | None = None
    """A new or empty folder for the result. Default: runs/PROJECT/profile-TIME."""


@dataclass(kw_only=True)
class TuneOptions(PresetOptions):
    """Try what would make training faster, measure each against the settings as they are, and write those that are
    faster beyond the noise and learn the same into settings.yaml, which `train --config` takes."""

    minutes: float = 10.0
    """Time for all of it, besides building the cache."""
    memory_gb: float | None = None
    """Memory that a training may take, of the GPU, or of the machine where it computes on the CPU (GB = 1e9 bytes).
    Default: what is free."""
    out: Path | None = None
    """Folder for settings, table and report: new or empty. Default: runs/PROJECT/tune-TIME."""


@dataclass(kw_only=True)
class PhantomOptions(Options):
    """Write the phantom into a folder, in the project's own file formats."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="DIR")]
    """A new or empty folder."""


@dataclass(kw_only=True)
class RunOptions(Options):
    run: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """A run folder, or one of its checkpoints. Comes first."""


@dataclass(kw_only=True)
class EvaluateOptions(RunOptions):
    """Score whole records with the best checkpoint, worst cases first; writes a table and figures."""

    data: Place | None = None
    """Data to score. Default: the run's own."""
    split: str | None = None
    """validation, train or test, as they were in training, or all. Default: validation; all, where --data is given."""
    out: Path | None = None
    """Folder for scores and figures. Default: evaluation-SPLIT in the run folder."""


@dataclass(kw_only=True)
class PredictOptions(RunOptions):
    """Predict files or folders with the best checkpoint, in their own grid and format."""

    inputs: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="INPUT…")]
    """Files or folders; URLs too, where the project can."""
    out: Path
    """Folder for the predictions."""


@dataclass(kw_only=True)
class ExportOptions(RunOptions):
    """Write the network of the best checkpoint for use without runner."""

    out: Path
    """A new or empty folder."""


@dataclass(frozen=True)
class Peek:
    """What must be known of a command line before its settings can be parsed."""

    preset: str | None
    config: Path | None
    data: Location | None
    resume: str | None
    run_dir: Path | None
    extension: tuple[str, ...]
    no_extension: tuple[str, ...]
    help: bool
    run: Path | None
    """First word, where it is no flag: the run, for commands that take one."""
    arguments: tuple[str, ...]
    """The command line, with a bare `--resume`, and `--devices`, spelled out."""


def peek(arguments: Sequence[str]) -> Peek:
    """Look for the flags that decide which defaults the others have."""
    arguments = _spell_out(arguments)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--preset", "--resume"):
        parser.add_argument(name)
    for name in ("--config", "--run-dir"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--data", type=location)
    for name in ("--extension", "--no-extension"):
        parser.add_argument(name, action="append", default=[])
    parser.add_argument("-h", "--help", action="store_true")
    try:
        known, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise BadInput(str(error)) from None
    run = Path(arguments[0]) if arguments and not arguments[0].startswith("-") else None
    return Peek(
        preset=known.preset,
        config=known.config,
        data=known.data,
        resume=known.resume,
        run_dir=known.run_dir,
        extension=tuple(known.extension),
        no_extension=tuple(known.no_extension),
        help=known.help,
        run=run,
        arguments=tuple(arguments),
    )


Parsed = TypeVar("Parsed", bound=Options)


def parse(
    kind: type[Parsed], settings: RunConfig, arguments: Sequence[str], *, prog: str, defaults: str, extra: Any = None
) -> tuple[Parsed, RunConfig, Any]:
    """Parse a whole command line: the command's own flags, the project's settings, and, for predict, the project's
    own options. tyro prints help and errors itself and exits (code 2). `defaults`: where those of the settings come
    from.

    Raises BadInput where a setting that is on or off is given a value, of which tyro says only that it is an unknown
    word."""
    nested = {"settings": settings} if extra is None else {"extra": extra, "settings": settings}
    for value in nested.values():
        _refuse_values(value, arguments)
    fields = [(name, _inline(type(value)), _default(value)) for name, value in nested.items()]
    command = dataclasses.make_dataclass("Command", fields, bases=(kind,), kw_only=True)
    about = f"{kind.__doc__}\n\nThe defaults of the settings below are those of {defaults}."
    parsed: Any = tyro.cli(command, args=arguments, prog=prog, description=about)
    return parsed, parsed.settings, getattr(parsed, "extra", None)


def _refuse_values(settings: Any, arguments: Sequence[str]) -> None:
    switches = dict(_switches(settings))
    for word, after in pairwise([*arguments, ""]):
        flag, joined, value = word.replace("_", "-").partition("=")
        if flag in switches and (value if joined else after).lower() in ("true", "false"):
            on, off = switches[flag]
            raise BadInput(f"{flag} takes no value: {on} alone switches it on, {off} off")


def _switches(settings: Any, prefix: str = "--") -> Iterator[tuple[str, tuple[str, str]]]:
    """Of each setting that is on or off its two flags, by either."""
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            yield from _switches(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            pair = f"{prefix}{name}", f"{prefix}no-{name}"
            yield from ((flag, pair) for flag in pair)


def _default(value: Any) -> Any:
    return dataclasses.field(default_factory=lambda: value)


def _inline(kind: type) -> Any:
    """A nested dataclass whose fields are flags without a common prefix."""
    return Annotated[kind, tyro.conf.arg(name="")]


def _spell_out(arguments: Sequence[str]) -> list[str]:
    """With a bare `--resume`, and `--devices`, in full."""
    spelled: list[str] = []
    for i, word in enumerate(arguments):
        spelled.append(f"--train.{word[2:]}" if word.partition("=")[0] == "--devices" else word)
        if word == "--resume" and (i + 1 == len(arguments) or arguments[i + 1].startswith("-")):
            spelled.append(LATEST)
    return spelled
