"""The command line of a BIDS App: `runner brainunet predict BIDS OUT participant`, then `… group`.

A scan whose files are all there is left out, unless it changed or `--overwrite` is given. A scan that cannot be
predicted is named, the others are predicted, and the exit code is 2.
"""

from __future__ import annotations

import hashlib
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import runner_core
from runner_core import BadInput, Record, Run, counted, did_you_mean, first_few, glance, walk

from runner_brainunet import derivatives, qc
from runner_brainunet.bids import entities
from runner_brainunet.nifti import is_nifti, stem

LEVELS = ("participant", "group")


def bids_app(parser: ArgumentParser, words: Sequence[str]) -> int:
    """Strip the skulls of a BIDS dataset, as a BIDS App: BIDS OUT participant, then BIDS OUT group."""
    _declare(parser)
    options = parser.parse_args(words)
    wanted = _participants(options)
    if options.level == "group":
        return _group(options.out)
    scans = _scans(options.bids, wanted, options.session_label)
    run = runner_core.open(options.run, "brainunet")
    settings: dict[str, Any] = {} if options.margin is None else {"predict.margin": options.margin}
    if options.device:
        settings["train.device"] = options.device
    if options.run == "builtin":
        print(run.summary["statement"])
    how = {"Description": f"network {_network(options.run, run)}, margin {options.margin or 0:g} mm"}
    derivatives.write_dataset(_made(options.out), options.bids, how)
    return _strip(run, scans, options, settings)


def _network(named: str, run: Run) -> str:
    """Return the name of the network, with its step and the first digits of its checkpoint's checksums."""
    step = run.summary.get("best_step") or 0
    manifest = run.path / "checkpoints" / f"step-{step:08d}" / "manifest.json"
    content = manifest.read_bytes() if manifest.is_file() else b""  # `predict` then says what is missing
    name = named if named == "builtin" else run.path.name
    return f"{name}, step {step} ({hashlib.sha256(content).hexdigest()[:12]})"


def _declare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("bids", type=Path, metavar="BIDS", help="root of the BIDS dataset")
    add("out", type=Path, metavar="OUT", help="folder for the derivatives, such as BIDS/derivatives/runner-brainunet")
    add(
        "level",
        choices=LEVELS,
        help="participant: strip each scan; group: table and page of all that are there",
    )
    add("--participant-label", "--participant_label", nargs="+", default=[], metavar="LABEL",
        help="only these persons, with or without sub-")  # fmt: skip
    add("--session-label", "--session_label", nargs="+", default=[], metavar="LABEL",
        help="only these sessions, with or without ses-")  # fmt: skip
    add("--run", "--weights", default="builtin", metavar="RUN",
        help="the trained run, or the folder of several; default: the weights in the package")  # fmt: skip
    add("--brain", action="store_true", help="also write the scans without skulls (…_desc-brain_T1w.nii.gz)")
    add("--margin", type=float, metavar="MM", help="margin around the brain, negative to shrink; default: the run's")
    add("--device", help="auto, cpu or cuda; default: the run's")
    add("--overwrite", action="store_true", help="predict scans anew whose derivatives are there")
    add("--skip-bids-validator", "--skip_bids_validator", action="store_true",
        help="accept a dataset without dataset_description.json (runner itself calls no validator)")  # fmt: skip


def _participants(options: Namespace) -> list[str]:
    """Return the persons to strip (sub-X). Raises BadInput for what is no BIDS dataset, or for an unknown label."""
    root: Path = options.bids
    if not root.is_dir():
        raise BadInput(f"{root}: there is no such folder; BIDS is the root of a BIDS dataset")
    if not (root / derivatives.DESCRIPTION).is_file() and not options.skip_bids_validator:
        raise BadInput(
            f"{root}: has no {derivatives.DESCRIPTION}: is it the root of a BIDS dataset? "
            "--skip-bids-validator goes on without"
        )
    there = sorted(path.name for path in root.glob("sub-*") if path.is_dir())
    if not there:
        raise BadInput(f"{root}: has no folders sub-X: it is not the root of a BIDS dataset")
    wanted = [f"sub-{label.removeprefix('sub-')}" for label in options.participant_label]
    for label in wanted:
        if label not in there:
            hint = did_you_mean(label, there)
            raise BadInput(f"--participant-label {label}: not in {root}{hint} (there are {first_few(there)})")
    return wanted or there


def _scans(root: Path, persons: Sequence[str], sessions: Sequence[str]) -> list[Path]:
    """Return the T1 scans of these persons and sessions. Raises BadInput if there is none."""
    wanted = {label.removeprefix("ses-") for label in sessions}
    found = []
    for person in persons:
        for folder, _, names in walk(root / person):
            paths = [folder / name for name in names] if folder.name == "anat" else []
            found += [path for path in paths if is_nifti(path) and stem(path).endswith("_T1w")]
    kept = [path for path in found if not wanted or entities(path).get("ses") in wanted]
    if not kept:
        which = f" of session {', '.join(sorted(wanted))}" if wanted and found else ""
        raise BadInput(f"{root}: no T1 scan (sub-X/[ses-Y/]anat/…_T1w.nii.gz){which} of {first_few(persons)}")
    if without := sorted(set(persons) - {entity for path in found if (entity := f"sub-{entities(path).get('sub')}")}):
        print(f"note: {counted(len(without), 'person')} without a T1 scan: {first_few(without)}")
    return sorted(kept)


def _strip(run: Run, scans: Sequence[Path], options: Namespace, settings: dict[str, Any]) -> int:
    """Predict all scans that are not done, and return the exit code."""
    failed = done = 0
    for number, scan in enumerate(scans, 1):
        try:
            places = derivatives.places(Record(stem(scan), "", {"image": scan}), options.bids)
            if not options.overwrite and _is_done(scan, places, options.out, options.brain):
                done += 1
                continue
            found = run.predict(scan, brain=options.brain, qc=True, bids=str(options.bids), **settings)
            found.save(options.out)
        except BadInput as error:
            failed += 1
            print(f"warning: not predicted: {error}", file=sys.stderr, flush=True)
            continue
        print(f"{number}/{len(scans)} {places.mask}", flush=True)
        for finding in found.remarks:
            print(f"{finding.level}: {stem(scan)}: {finding.message}", flush=True)
    if done:
        print(f"{counted(done, 'scan')} left out: done before (--overwrite predicts them anew)")
    if failed:
        print(f"runner: {counted(failed, 'scan')} could not be predicted (see above)", file=sys.stderr)
    return BadInput.exit_code if failed else 0


def _is_done(scan: Path, places: derivatives.Places, out: Path, brain: bool) -> bool:
    """Return whether all files of a scan are there, made of the scan as it is now."""
    wanted = [places.mask, places.picture, *([places.brain, derivatives.sidecar(places.brain)] if brain else [])]
    about = out / derivatives.sidecar(places.mask)
    if not about.is_file() or not all((out / place).is_file() for place in wanted):
        return False
    return derivatives.read_json(about).get("SourceContent") == glance(scan)


def _group(out: Path) -> int:
    """Write the table and the page of all masks in `out`."""
    if not out.is_dir() or not (written := qc.summarise(out)):
        raise BadInput(f"{out}: holds no brain masks yet: predict them first (BIDS OUT participant)")
    print(f"written: {', '.join(map(str, written))}")
    return 0


def _made(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{out} cannot be written: {error.strerror}; name another folder") from error
    return out
