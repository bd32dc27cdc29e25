"""`runner PROJECT submit`: parse a command, keep its settings, and give it to the scheduler."""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
import yaml
from runner_core import BadInput, ParsedCommand, claimed, counted, flag_words, parse_command, shell_word
from tyro.conf import FlagCreatePairsOff

from runner_slurm import Config, scheduler
from runner_slurm.submission import Member, Submission

_LARGEST = 1000
"""Most members of one submission; SLURM's own limit is 1001 unless the cluster sets another."""


@dataclass(kw_only=True)
class Flags:
    """Submit a command to SLURM, or to this machine where there is none: train unless the first word is another one.

    The settings are kept as they are now. A job saves before its time limit and when it is preempted, goes back into
    the queue, and continues. `jobs` shows how they are.
    """

    array: tuple[str, ...] = ()
    """Settings to try, one job for each combination: NAME=A,B,C, several after one --array. At the end the runs are
    compared."""
    parts: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Divide the work among N jobs (--part 1/N to N/N of predict, evaluate, cache build, crossval or repeat)."""
    submission: Path | None = None
    """A new or empty folder for settings, logs and runs. Default: runs/PROJECT/submit-TIME."""
    wait: FlagCreatePairsOff[bool] = False
    """Wait until all jobs have ended, and print their table. Ctrl-C leaves the jobs alone."""


def submit(project: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Submit a training, an array of them, or another command to SLURM, and continue it after interruptions."""
    command, rest = (words[0], words[1:]) if words and not words[0].startswith("-") else ("train", words)
    prog = f"{parser.prog} {command}".removesuffix(" train")
    parsed = _parse(project, command, rest, prog)
    flags: Flags = parsed.options
    config: Config = getattr(parsed.settings, "slurm")  # noqa: B009 - unknown to the type
    executor = scheduler.executor_for(config)
    tasks = tasks_for(parsed, config, executor)
    variants = list(_variants(flags.array)) if flags.array else [{}]
    _refuse_wrong(parsed, len(variants))
    named: dict[str, Mapping[str, Any]] = {}
    for values in variants:  # the name is also the folder's
        if (other := named.setdefault(_name(values), values)) is not values:
            raise BadInput(f"--array: {dict(values)} and {dict(other)} would share one folder ({_name(values)})")
    # the variants' settings are refused before anything is written
    several = [(values, _varied(project, command, rest, prog, values) if values else parsed) for values in variants]
    with claimed(project, "submit", flags.submission) as folder:
        path = folder.absolute()
        # the only process that is started here takes all GPUs
        alone = executor == scheduler.LOCAL or (parsed.framework == "keras" and tasks * config.nodes == 1)
        devices = config.gpus if command == "train" and alone else 1
        members = [m for values, one in several for m in _members(path, one, values, flags.parts, devices)]
        submission = Submission(path, project, command, executor, config.restarts, members)
        submission.save()
        try:
            submission = submission.with_jobs(scheduler.submit(submission, config, tasks))
        except BadInput:
            for written in (path / "submission.json", path / "settings", path / "jobs"):
                shutil.rmtree(written, ignore_errors=True) if written.is_dir() else written.unlink(missing_ok=True)
            raise
        submission.save()
    return _tell(submission, folder, flags.wait)


def _parse(project: str, command: str, words: Sequence[str], prog: str) -> ParsedCommand:
    return parse_command(project, command, words, flags=Flags, extension="slurm", prog=prog)


def _tell(submission: Submission, folder: Path, wait: bool) -> int:
    from runner_slurm.jobs import print_table, wait_for

    where = "SLURM" if submission.executor == scheduler.SLURM else "this machine (no SLURM, or not wanted)"
    print(f"{counted(len(submission.members), 'job')} on {where}: {', '.join(_numbers(submission))}")
    print(f"how they are: runner {submission.project} jobs {shell_word(folder)}")
    if not wait:
        return 0
    wait_for(submission)
    return print_table(submission)


def _numbers(submission: Submission) -> list[str]:
    return list(dict.fromkeys(member.job.partition("_")[0] for member in submission.members))


# ---------------------------------------------------------------- members


def tasks_for(parsed: ParsedCommand, config: Config, executor: str) -> int:
    """Return the number of processes on each machine. Raises BadInput where only one can work."""
    together = parsed.command == "train"
    if not together and (config.nodes > 1 or (config.tasks or 1) > 1):
        raise BadInput(
            f"slurm.nodes is {config.nodes} and slurm.tasks is {config.tasks or 1}, and `{parsed.command}` runs in one "
            "process: leave both out (--parts divides the work of a command that can)"
        )
    if executor == scheduler.LOCAL:
        if config.tasks not in (None, 1):
            raise BadInput(
                "slurm.tasks is for SLURM: on this machine, --devices or --slurm.gpus says how many processes"
            )
        return 1
    each = together and (parsed.framework == "torch" or config.nodes > 1)  # one Keras process takes all of a machine
    tasks = config.tasks or (max(1, config.gpus) if each else 1)
    if together and tasks * config.nodes > 1 and parsed.settings.train.devices not in (1, tasks * config.nodes):
        raise BadInput(
            f"train.devices is {parsed.settings.train.devices}, and SLURM starts {tasks * config.nodes} processes: "
            "leave train.devices out"
        )
    return tasks


def _refuse_wrong(parsed: ParsedCommand, variants: int) -> None:
    flags: Flags = parsed.options
    if flags.parts < 1:
        raise BadInput(f"--parts is {flags.parts}; it must be at least 1")
    if flags.parts > 1 and not parsed.takes("part"):
        raise BadInput(f"--parts: `{parsed.command}` cannot be divided, it has no --part")
    if flags.parts > 1 and parsed.options.part:
        raise BadInput("--parts and --part exclude each other: --parts N submits all N parts")
    if flags.array and not parsed.starts:
        raise BadInput(f"--array: `{parsed.command}` uses a trained run, whose settings it does not vary")
    for option in ("run_dir", "out"):
        if flags.array and parsed.takes(option) and getattr(parsed.options, option) is not None:
            raise BadInput(f"--array: each job has its own folder, so leave --{option.replace('_', '-')} out")
    if variants * flags.parts > _LARGEST:
        raise BadInput(f"{variants * flags.parts} jobs are too many for one submission: at most {_LARGEST}")


def _variants(words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each combination of the values in `NAME=A,B,C …`, by the settings' names."""
    found: dict[str, list[Any]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.lstrip("-").replace("-", "_")
        try:
            values = yaml.safe_load(f"[{text}]")
        except yaml.YAMLError:
            values = []
        if not equals or not values or "." not in name:
            raise BadInput(f"--array {word}: write NAME=A,B,C, as in train.learning_rate=1e-3,3e-4")
        if name in found:
            raise BadInput(f"--array names {name} twice")
        found[name] = values
    for values in itertools.product(*found.values()):
        yield dict(zip(found, values, strict=True))


def _varied(project: str, command: str, words: Sequence[str], prog: str, values: Mapping[str, Any]) -> ParsedCommand:
    """Return the command with these settings. Raises BadInput if one is wrong."""
    own = [word for name, value in values.items() for word in flag_words(name, value)]
    try:
        return _parse(project, command, [*words, *own], prog)
    except SystemExit:  # tyro has said what is wrong with the flag
        print(f"--array: {' '.join(own)} is refused", file=sys.stderr)
        raise


def _members(
    path: Path, parsed: ParsedCommand, values: Mapping[str, Any], parts: int, devices: int
) -> Iterator[Member]:
    """Yield the members of one combination of settings: one, or one for each part."""
    name = _name(values) or ("run" if parsed.command == "train" else parsed.command)
    settings = path / "settings" / f"{name}.yaml"
    settings.parent.mkdir(exist_ok=True)
    if parsed.starts:
        parsed.save_settings(settings)
    words = [parsed.project, parsed.command, *parsed.words(settings)]
    given = getattr(parsed.options, "run_dir", None) or getattr(parsed.options, "out", None)
    folder = str((given or path / name).absolute())
    if parsed.command == "train":
        words += ["--run-dir", folder, "--resume", "auto"]
    elif given is None and parsed.takes("out"):
        words += ["--out", folder]
    if parsed.takes("at_once"):  # an experiment
        words += ["--resume", "auto"]
    if devices > 1 and parsed.settings.train.devices == 1:
        words += ["--devices", str(devices)]
    shown = {setting: str(value) for setting, value in values.items()}
    for part in range(1, parts + 1):
        label = f"{name}-{part}-of-{parts}" if parts > 1 else name
        share = ["--part", f"{part}/{parts}"] if parts > 1 else []
        yield Member(label, [*words, *share], folder, shown)


def _name(values: Mapping[str, Any]) -> str:
    """Return a name for a combination of settings that can be a folder's.

    >>> _name({"train.learning_rate": "1e-3", "train.batch_size": 4})
    'learning_rate=1e-3,batch_size=4'
    """
    short = {name: name.rpartition(".")[2] for name in values}
    if len({*short.values()}) < len(short):
        short = {name: name for name in values}
    return re.sub(r"[^\w.=,+-]", "_", ",".join(f"{short[name]}={value}" for name, value in values.items()))[:120]
