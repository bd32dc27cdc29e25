"""`runner PROJECT evaluate RUN`; with `--part i/n` a share of the records, whose scores the last part joins to all."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.parts import Part
from runner_core.base.progress import record_bar
from runner_core.base.text import counted
from runner_core.base.writing import replace_json
from runner_core.cli.ensembles import start_from_runs, weights_text
from runner_core.cli.evaluate import Evaluation, conclude, evaluate_with, prepare, show_and_write, show_written
from runner_core.cli.json_output import show_json
from runner_core.cli.options import EvaluateOptions
from runner_core.cli.start import Started
from runner_core.config.values import flat
from runner_core.data.cache.identity import digest_json
from runner_core.data.pipeline import RecordPipeline
from runner_core.output.evaluations import FACTS_FILE, FREE_SECTIONS, new_folder
from runner_core.output.parts import HIDDEN, PartsFolder
from runner_core.output.pictures import file_name
from runner_core.plugins.builtin import is_builtin
from runner_core.training.ensembles import counting
from runner_core.training.evaluation import over_records, score_each
from runner_core.training.scoring import Scored, Scorer


def evaluate(name: str, arguments: Sequence[str]) -> int:
    members = start_from_runs(name, "evaluate", EvaluateOptions, arguments)
    in_parts = members[0].options.part or members[0].options.merge
    errors = evaluate_part(members)[0] if in_parts else evaluate_with(members)[0].errors
    return BadInput.exit_code if errors else 0


def evaluate_part(members: Sequence[Started[EvaluateOptions]]) -> tuple[list[str], Path]:
    """Score this process's share, and join all shares if it was the last.

    Return why records could not be scored, and the folder of the result, or that of the parts if some are missing.
    """
    options = members[0].options
    part = Part.of(options.part) if options.part else None
    if part is not None and options.merge:
        raise BadInput("--merge joins what all parts have done; leave --part out")
    work = prepare(members)
    folder = PartsFolder(_place(work))
    if part is None and not folder.parts:
        raise BadInput(f"no part has been done: {folder.path} is missing; begin with `--part 1/2`, for example")
    folder.join(len(folder.parts) if part is None else part.count, _common(work))
    errors, new = ([], False) if part is None else _score(work, folder, part)
    with folder.alone():
        missing = _missing(work, folder)
        if missing and part is None:
            raise BadInput(f"{folder.path}: {_parts(missing)} missing: {', '.join(missing)}")
        if missing:
            print(f"part {part} is done; {_parts(missing)} missing: {', '.join(missing)}. The last one joins all")
            if options.json:
                show_json({"folder": folder.path, "part": options.part, "missing": missing})
            return errors, folder.path
        if not new and (joined := (folder.joined or {}).get("folder")) and (Path(joined) / FACTS_FILE).is_file():
            print(f"all parts are done and joined: {joined}")
            show_written(work, Path(joined))
            return errors, Path(joined)
        return _join(work, folder)


def _place(work: Evaluation) -> Path:
    """Return the folder of the parts: in the user's, or else in that of the run or experiment."""
    out = work.options.out
    if out is None and is_builtin(work.place):
        raise BadInput("--part needs a folder where the parts meet: name it with --out")
    if out is None:
        data = file_name(work.facts["data"].rstrip("/").rpartition("/")[2])[:40]
        return work.place / f"{HIDDEN}-evaluation-{work.facts['split']}-{data}"
    if out.exists() and not (out / HIDDEN).is_dir() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out}: the folder is not empty; name another one with --out")
    return out / HIDDEN


def _common(work: Evaluation) -> dict[str, Any]:
    """Return what all parts must have in common."""
    settings = flat(work.setup.config).items()
    return {
        "weights": weights_text(work.members, work.checkpoints),
        "data": work.facts["data"],
        "split": work.facts["split"],
        "settings": {name: value for name, value in settings if name.partition(".")[0] not in FREE_SECTIONS},
        "records": f"{len(work.records)} ({digest_json([record.key for record in work.records])[:8]})",
        "contents": dict(work.contents),
    }


def _score(work: Evaluation, folder: PartsFolder, part: Part) -> tuple[list[str], bool]:
    """Score the records of a part that are not scored yet; return why some could not be, and whether any is new."""
    own = part.share(work.records)
    with folder.claimed(part):
        done = {key for key, line in folder.lines([r.key for r in own]).items() if "error" not in line}
        left = [record for record in own if record.key not in done]
        so_far = f", {len(done)} done already" if done else ""
        print(f"{work.text()}\npart {part}: {counted(len(own), 'record')}{so_far}")
        errors = []
        with record_bar("scoring", len(left), sys.stdout, partial(print, flush=True)) as bar:
            network, untrained = counting(bar, work.network), work.untrained and bar.counting(work.untrained)
            scorer = Scorer(RecordPipeline.of(work.setup), network, untrained, work.trained_on)
            for scored in score_each(scorer, left, lambda text: None, bar):
                folder.add(part, scored.line(work.setup.project))
                if scored.error:
                    errors.append(scored.error)
                    print(f"warning: not scored: {scored.error}", file=sys.stderr)
    return errors, bool(left)


def _missing(work: Evaluation, folder: PartsFolder) -> list[str]:
    keys = [record.key for record in work.records]
    return folder.missing(keys, folder.lines(keys))


def _parts(missing: Sequence[str]) -> str:
    return "this part is" if len(missing) == 1 else "these parts are"


def _join(work: Evaluation, folder: PartsFolder) -> tuple[list[str], Path]:
    """Write what one process would have written."""
    lines = folder.lines([record.key for record in work.records])
    try:
        found = [Scored.of_line(work.setup.project, record, lines[record.key]) for record in work.records]
    except (KeyError, TypeError, ValueError) as error:
        raise folder.damaged(error) from error
    scores, done = over_records(work.setup.project, found), list[Path]()
    with _folder(work, done) as out:
        written = show_and_write(work, scores, out)
    conclude(work, scores, written, done[0])
    folder.set_joined({"folder": str(done[0].absolute())})
    return scores.errors, done[0]


@contextmanager
def _folder(work: Evaluation, done: list[Path]) -> Iterator[Path]:
    """Yield the folder of the result: the user's, which holds the parts already, or a new one in that of the run."""
    if (out := work.options.out) is None:
        with new_folder(work.place, work.facts, done) as folder:
            yield folder
        return
    yield out
    replace_json(out / FACTS_FILE, work.facts)
    done.append(out)
