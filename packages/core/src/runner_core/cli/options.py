"""Flags of the commands, as dataclasses for tyro; the project's settings are flags of the same command line.

The docstring under each field is its help text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro
from tyro.conf import FlagCreatePairsOff, Positional, UseAppendAction

Place = Annotated[str | None, tyro.conf.arg(metavar="FOLDER|URL")]
"""A folder, or a URL if the project supports URLs."""


@dataclass(kw_only=True)
class Options:
    """Flags that every command of a project takes."""

    config: Path | None = None
    """Settings file (YAML). It overrides the preset; flags override it."""
    extension: UseAppendAction[tuple[str, ...]] = ()
    """Use this extension if several provide the same capability."""
    no_extension: UseAppendAction[tuple[str, ...]] = ()
    """Switch off an installed extension."""
    debug: FlagCreatePairsOff[bool] = False
    """Show tracebacks of errors."""


@dataclass(kw_only=True)
class JsonOptions:
    json: FlagCreatePairsOff[bool] = False
    """Print the result on stdout as JSON, and everything else on stderr."""


@dataclass(kw_only=True)
class PresetOptions(Options):
    preset: str | None = None
    """Named defaults to start from. Default: demo for the phantom, else default."""
    data: Place = None
    """Your data: a folder, or a URL such as s3://BUCKET/FOLDER if the project supports URLs. Default: a generated
    phantom."""


@dataclass(kw_only=True)
class StartOptions(PresetOptions):
    from_: Annotated[str | None, tyro.conf.arg(name="from", metavar="RUN|FILE|hf:")] = None
    """Start a new run from trained weights: those of a run (its best checkpoint; RUN/checkpoints/STEP for another), of
    a file (.safetensors), those in the project's package (the word builtin), or those on the Hugging Face Hub
    (hf:OWNER/NAME or hf:OWNER/NAME@REVISION), which are fetched. A run also gives its data and its settings, those of
    extensions excepted, unless --data and --preset name others. Its training records never validate or test."""


@dataclass(kw_only=True)
class TrainOptions(StartOptions):
    """Train a model. Settings: preset < --config FILE < flags; `config` prints the result."""

    run_dir: Path | None = None
    """Folder of the run; it must be empty or new. Default: runs/PROJECT/TIME."""
    resume: str | None = None
    """Continue a stopped or killed run: --resume RUN, or --resume alone for the latest. `--resume auto --run-dir DIR`
    starts or continues, whichever is needed: the line for every scheduler that may start a job again."""


@dataclass(kw_only=True)
class FolderOptions(StartOptions, JsonOptions):
    out: Path | None = None
    """Folder for all runs; it must be empty or new. Default: runs/PROJECT/COMMAND-TIME."""
    resume: str | None = None
    """Go on: --resume DIR, or --resume alone for the latest. Runs that are done are kept. `--resume auto --out DIR`
    starts or goes on, whichever is needed."""
    at_once: int | None = None
    """Number of runs that train at the same time, each in a process of its own. Default: one on each GPU, one in turn
    on a CPU."""


@dataclass(kw_only=True)
class ExperimentOptions(FolderOptions):
    part: str = ""
    """Train only some of the runs: 2/5 takes the second of five shares. Several machines with one disk can share the
    work; whichever ends last pools the scores."""


@dataclass(kw_only=True)
class CrossvalOptions(ExperimentOptions):
    """Cross-validate: train once for each fold of the data, and score every record by a run that never saw its group.

    Ends with the scores of all records, the mean with its 95 % interval, and a report. Statistics, such as means for
    scaling, are those of each fold's training records. The data set's own test records are left alone.
    """

    folds: str | None = None
    """A number of folds (default: 5); `groups` for one fold per group; `column:NAME` for a column of your table; or a
    YAML file with a list of groups or records for each fold."""
    seeds: int | None = None
    """Number of runs of each fold, with successive seeds. Default: 1."""
    group_by: str = ""
    """Column of your table whose values stay together in a fold (a plate, a hospital), beyond the groups."""
    balance: Literal["records", "voxels"] | None = None
    """What a number of folds makes equal: the folds' numbers of records (the default), or of voxels (pixels, spectra).
    """


@dataclass(kw_only=True)
class RepeatOptions(ExperimentOptions):
    """Train several times with different seeds on one split, to see how much the result depends on chance.

    `runner compare` takes two such folders and says which settings are better, as far as seeds and records can tell.
    """

    seeds: int | None = None
    """Number of runs, with successive seeds. Default: 5."""


@dataclass(kw_only=True)
class SweepOptions(FolderOptions):
    """Search settings: train trial after trial, each with settings that earlier ones suggest (Optuna).

    Trials are compared by the metric that chooses the best checkpoint. Those that lag behind are given up early. At the
    end the best and the settings without the search are scored on records that the search never looked at: the data
    set's own test records, or groups that are held out. best.yaml has the settings, for `train --config`.
    """

    vary: tuple[str, ...] = ()
    """Settings to search: NAME=LOW..HIGH, NAME=LOW..HIGH:log, or NAME=A,B,C; several after one --vary."""
    trials: int | None = None
    """Number of trials in all, those of earlier starts included. Default: 20."""
    minutes: float | None = None
    """Begin no trial that would end later than this. Default: no limit."""
    holdout: float | None = None
    """Share of the records that are held out, as whole groups, if the data set has no test records of its own. Default:
    0.2."""


@dataclass(kw_only=True)
class ConfigOptions(PresetOptions):
    """Print the settings that `train` would use, as YAML that --config accepts."""


@dataclass(kw_only=True)
class CacheOptions(PresetOptions, JsonOptions):
    """Prepare the records that `train` would with the same flags, before it: on a machine without GPU, for example.

    Does nothing if the cache is there. After a kill, the same line goes on.
    """

    action: Annotated[Positional[Literal["build"]], tyro.conf.arg(metavar="build")]
    """The word build."""
    part: str = ""
    """Prepare only a share of the records: 2/5 takes the second of five shares. Several machines that share the folder
    of the cache can each do one. Whichever ends last builds the cache of all."""


@dataclass(kw_only=True)
class CheckOptions(PresetOptions, JsonOptions):
    """Audit the data, on screen and as report.html and check.json.

    Shows faulty records, duplicates, the split, grey values, classes, and the size of the cache. Exit code 2 if
    training would refuse the data, or if two groups hold copies of one scan. With streamed data two files, or 1 % if
    that is more, may be unreadable.

    With trained runs (--with), it also ranks the labels that are probably wrong. It never changes a label.
    """

    out: Path | None = None
    """A new or empty folder for the report. Default: runs/PROJECT/check-TIME."""
    fit: FlagCreatePairsOff[bool] = False
    """Also build the network, try a few samples, and report how much RAM, device memory and disk training needs."""
    different: tuple[str, ...] = ()
    """Keys of two records or more that look like copies of one scan, but are known to be different scans."""
    with_: Annotated[UseAppendAction[tuple[Path, ...]], tyro.conf.arg(name="with", metavar="RUN")] = ()
    """Judge each label by those of these runs that were not trained on its record: the folder of a cross-validation, or
    runs (may be given several times). Their settings and data are the default. Also writes wrong-labels.csv."""


@dataclass(kw_only=True)
class VerifyResumeOptions(PresetOptions, JsonOptions):
    """Kill trainings at random moments, resume them, and compare each with an uninterrupted training, bit for bit.

    Kills (kill -9) hit steps, validations and saves. Compared are weights, optimizer, random generators, metrics and
    log. Exit code 3 if any training differs.
    """

    times: int = 3
    """Number of trainings that are killed."""
    kills: int = 2
    """Largest number of times that each training is killed; a short one may end before."""
    seed: int = 0
    """Seed of the random moments; the training's own seed is --train.seed."""
    out: Path | None = None
    """A new or empty folder for the result. Default: runs/PROJECT/verify-resume-TIME."""


@dataclass(kw_only=True)
class AblateOptions(PresetOptions, JsonOptions):
    """Switch off each optimisation in turn, then all, and measure the effect.

    Measures the time of a step (data, network and loss separately) and of an epoch, the memory, and whether the network
    still learns the same. Writes the result to the screen and into report.html, ablate.csv and ablate.json.
    """

    only: UseAppendAction[tuple[str, ...]] = ()
    """Only this optimisation; may be given several times. Default: all that the run uses."""
    minutes: float = 10.0
    """Approximate time limit. Optimisations are measured in their order; those left at the end are named."""
    out: Path | None = None
    """A new or empty folder for the result. Default: runs/PROJECT/ablate-TIME."""


@dataclass(kw_only=True)
class ProfileOptions(PresetOptions, JsonOptions):
    """Train some steps and report where their time goes, what limits it, and what might help.

    Writes the result to the screen and into report.html and profile.json.
    """

    steps: int = 100
    """Training steps to measure; half of them are timed part by part."""
    minutes: float = 2.0
    """Measure fewer steps if they would take longer than this. Compiling them, and timing the work around them,
    comes on top."""
    at: float = 0.5
    """Moment of the training: 0 is its beginning, 1 its end. Some losses start late."""
    trace: FlagCreatePairsOff[bool] = False
    """Also write a trace of three steps from the framework's own profiler, for Perfetto, chrome://tracing or
    TensorBoard."""
    out: Path | None = None
    """A new or empty folder for the result. Default: runs/PROJECT/profile-TIME."""


@dataclass(kw_only=True)
class VerifyKernelsOptions(PresetOptions, JsonOptions):
    """Compare the gradients that would be trained with plain float32, on your device, network and first batch.

    Compiled code, 16-bit precision, memory layouts, a GPU's libraries and a project's own kernels are compared, forward
    and backward, weight by weight, within what rounding explains. Names the layer and the option that is wrong. Exit
    code 3 if one is.
    """


@dataclass(kw_only=True)
class TuneOptions(PresetOptions, JsonOptions):
    """Try settings that might make training faster, and measure each against the current settings.

    Settings that are faster beyond the noise and learn the same are written into settings.yaml, which `train --config`
    takes.
    """

    minutes: float = 10.0
    """Time limit for everything except building the cache."""
    memory_gb: float | None = None
    """Memory that a training may use (GB = 1e9 bytes): of the GPU, or of the machine if it computes on the CPU.
    Default: all that is free."""
    out: Path | None = None
    """A new or empty folder for settings, table and report. Default: runs/PROJECT/tune-TIME."""


@dataclass(kw_only=True)
class PhantomOptions(Options):
    """Write the phantom into a folder, in the project's own file formats."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="DIR")]
    """A new or empty folder."""
    seed: int = 0
    """Another seed writes another phantom of the same kind. With 0 it is the one on which `train` trains without
    --data."""


@dataclass(kw_only=True)
class InitDataOptions(Options):
    """Write a table of the images and labels below a folder by guessing from their names, for you to correct.

    Shows what was guessed, and which files are left out and why. `check` and `train` take the table as --data.
    """

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="DIR")]
    """The folder that holds your data."""
    out: Path | None = None
    """The table (.csv), which must be new. Default: manifest.csv in the folder."""


@dataclass(kw_only=True)
class RunOptions(Options):
    run: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """A run folder, or one of its checkpoints, or the folder of a cross-validation or repetition, whose runs then
    predict together. Comes first, or is named by --weights."""
    weights: Annotated[str | None, tyro.conf.arg(metavar="builtin|RUN")] = None
    """In place of RUN: `builtin`, the weights in the project's package, or a run."""
    with_: Annotated[UseAppendAction[tuple[Path, ...]], tyro.conf.arg(name="with", metavar="RUN")] = ()
    """Another run that predicts together with the first: their outputs are averaged. May be given several times."""


@dataclass(kw_only=True)
class EvaluateOptions(RunOptions, JsonOptions):
    """Score whole records with the best checkpoint, worst cases first; write a table and figures."""

    data: Place = None
    """Data to score: a folder or a URL. Default: the run's own."""
    split: str | None = None
    """validation, train or test, as they were in training, or all. Default: validation; all if --data is given."""
    out: Path | None = None
    """New or empty folder for scores and figures. Default: evaluation-SPLIT-DATA-TIME in the run folder, which the
    report shows. An older evaluation of the same data, split, checkpoint and settings is replaced."""
    part: str = ""
    """Score only a share of the records: 2/5 scores the second of five shares, on another machine perhaps. What was
    scored already is skipped. Whichever part ends last joins all, as if one process had scored everything."""
    merge: FlagCreatePairsOff[bool] = False
    """Join what the parts have scored, or name those that are missing. The last part does it by itself."""


@dataclass(kw_only=True)
class SelectOptions(RunOptions, JsonOptions):
    """Choose what can be chosen without training: settings of the decision, views, and which networks predict.

    Searches by the score of whole records that the networks did not train on, and reports a nested figure: each record
    is scored under what was chosen on other groups. Settings that are better beyond the noise are written into
    settings.yaml, which `predict --config` and `evaluate --config` take.
    """

    data: Place = None
    """Data to choose on: a folder or a URL. Default: the run's own validation records."""
    out: Path | None = None
    """A new or empty folder for the result. Default: select-TIME in the folder of the run or of the experiment."""


@dataclass(kw_only=True)
class PredictOptions(RunOptions):
    """Predict files or folders with the best checkpoint, in their own grid and format."""

    inputs: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="INPUT…")]
    """Files or folders; also URLs if the project supports them."""
    out: Path
    """Folder for the predictions."""
    part: str = ""
    """Predict only a share of the inputs: 2/5 takes the second of five shares, on another machine perhaps. What it has
    written whole is skipped when the same line is typed again. Where predictions are combined into one file, whichever
    part ends last does so. A volume that is predicted in blocks is itself divided into shares."""
    disagreement: FlagCreatePairsOff[bool] = False
    """Also write how much the runs of an ensemble disagree: KEY_disagreement, the standard deviation of their outputs
    in each voxel."""
    label_tables: FlagCreatePairsOff[bool] = False
    """Also write names and colours of the predicted labels for viewers: labels_itksnap.txt and labels_slicer.ctbl."""


@dataclass(kw_only=True)
class ExportOptions(RunOptions):
    """Write the network of the best checkpoint for use without runner, with a model card."""

    out: Path
    """A new or empty folder."""
    to: str = ""
    """The format. Default: the framework's own, safetensors (PyTorch) or keras. hub-folder: also the layout of the
    Hugging Face Hub (safetensors, config.json, README.md with metadata); nothing is uploaded. The package runner-export
    adds others, each compared with the checkpoint: onnx, onnx-int8, openvino, torch-export; and compares keras."""
    data: Place = None
    """Records to compare on, with --to: a folder. Default: the run's own validation records."""
    license: str = ""
    """License of the weights, for the card, as SPDX writes it: CC-BY-4.0, Apache-2.0."""
    anonymous: bool = False
    """Leave names and pictures of records out of the card; it shows the three worst ones otherwise."""


Parsed = TypeVar("Parsed", bound=Options)
