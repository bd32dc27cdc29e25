"""`runner reproduce CARD`: train again what a model card describes, and say whether the result is the same."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from runner_core.base.errors import BadInput, Unhealthy
from runner_core.base.files import read_json
from runner_core.base.text import counted
from runner_core.base.writing import replace_json
from runner_core.cli.arguments import Parser
from runner_core.cli.json_output import show_json, written_result
from runner_core.cli.load import load_state
from runner_core.cli.options import TrainOptions
from runner_core.cli.start import start_new
from runner_core.cli.train import train_with
from runner_core.contract.records import AnyRecord
from runner_core.data.splits import SPLITS
from runner_core.engines.usage import usable_cores
from runner_core.output.report.page import lines
from runner_core.output.runfolder import RUNS, RunFolder, free_path
from runner_core.plugins.discovery import find_project
from runner_core.plugins.settings import PHANTOM
from runner_core.tools.card.facts import FACTS, FORMAT, NOT_TRAINING, collect, digest_of
from runner_core.tools.card.same import compare
from runner_core.training.data import data_folder, read_records

RESULT = "reproduce.json"


def reproduce(arguments: Sequence[str]) -> int:
    """Train again; return 0 if the bits or at least the scores are the card's, 3 if not."""
    parser = Parser(
        prog="runner reproduce",
        description="Train again what a model card describes, with its settings, split and seed, and say whether the "
        "weights are the same bits, or else whether the scores agree and what differs: data, versions, device.",
    )
    parser.add_argument(
        "card", type=Path, metavar="CARD", help="a folder that `export` wrote, or its MODEL_CARD.md or card.json"
    )
    parser.add_argument("--data", metavar="DIR", help="the data that it was trained on; the phantom needs none")
    parser.add_argument("--from", dest="start", metavar="RUN", help="the weights that it started from, if any")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="a new folder for the training (default: as train)")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="relative difference of scores that counts as the same (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the result on stdout as JSON, the rest on stderr")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    options = parser.parse_args(list(arguments))
    card = read_card(options.card)
    name = find_project(str(card["project"])).name
    run_dir = options.run_dir or free_path(RUNS / name / time.strftime("reproduce-%Y-%m-%d-%H%M%S"))
    with TemporaryDirectory(prefix="runner-reproduce-") as temporary:
        words = _words(card, options, run_dir, Path(temporary))
        started = start_new(name, "train", TrainOptions, words)
        if code := train_with(started, lambda: words):
            return code
    started.run = RunFolder.open(run_dir)  # several processes may have trained it
    state, checkpoint = load_state(started, run_dir)
    found = compare(card, collect(started.setup, started.run, checkpoint, state, "", True), options.tolerance)
    print()
    for line in lines(found.blocks(card)):
        print(line)
    replace_json(run_dir / RESULT, asdict(found))
    if options.json:
        show_json({"folder": run_dir, **written_result(run_dir / RESULT)})
    return Unhealthy.exit_code if found.verdict == "not reproduced" else 0


def read_card(named: Path) -> Mapping[str, Any]:
    """Return card.json of an exported folder. Raises BadInput if there is none or it is not whole."""
    if not named.exists():
        raise BadInput(f"{named}: there is no such file or folder: name a folder that `runner PROJECT export` wrote")
    file = (named if named.is_dir() else named.parent) / FACTS

    def read(found: Any) -> dict[str, Any] | None:
        sections = {"settings": dict, "data": dict, "weights": dict, "versions": dict, "metrics": dict, "scores": list}
        if found["format"] != FORMAT:
            raise BadInput(
                f"{file}: its format is {found['format']!r}, and this runner reads {FORMAT}: update runner-core"
            )
        right = all(isinstance(found[name], kind) for name, kind in sections.items())
        return dict(found) if right and isinstance(found["data"]["names"], dict) else None

    card = read_json(file, read, "export the network again")
    if card is None:
        where = "in" if named.is_dir() else "beside"
        raise BadInput(f"{named}: there is no {FACTS} {where} it: name a folder that `runner PROJECT export` wrote")
    return card


def _words(card: Mapping[str, Any], options: Any, run_dir: Path, temporary: Path) -> list[str]:
    """Return the command line of `train` with the card's settings and split, whose files are written to `temporary`.

    Raises BadInput if the data or the weights to start from are not named, or if records of the card are missing.
    """
    name, phantom = str(card["project"]), card["data"]["source"] == PHANTOM
    if phantom and options.data:
        raise BadInput(f"{options.card}: the network was trained on the phantom: leave --data out")
    if not phantom and not options.data:
        raise BadInput(f"{options.card}: it was trained on {card['data']['source']}: name these data with --data")
    if options.start and not card["start"]:
        raise BadInput(f"{options.card}: the training started from no weights: leave --from out")
    if card["start"] and not options.start:
        raise BadInput(f"{options.card}: it started from {card['start']['about']}: name these weights with --from")
    settings, split = temporary / "config.yaml", temporary / "split.yaml"
    # a stranger's card says how to train, and neither where files go nor to which server the log
    own = {section: values for section, values in card["settings"].items() if section not in NOT_TRAINING}
    settings.write_text(yaml.safe_dump({**own, "project": name}), encoding="utf-8")
    words = ["--config", str(settings), "--preset", str(card["preset"]), "--run-dir", str(run_dir)]
    words += ["--data", str(options.data)] if options.data else []
    words += ["--from", str(options.start)] if options.start else []
    threads = [n for what, n in card["versions"].items() if what.endswith(" threads") and str(n).isdigit()]
    words += ["--train.threads", threads[0]] if threads and int(threads[0]) <= usable_cores() else []  # for equal bits
    setup = start_new(name, "train", TrainOptions, words).setup
    lists = _split(read_records(setup, data_folder(setup, print), print), card)
    split.write_text(yaml.safe_dump(lists), encoding="utf-8")
    return [*words, "--data.split", str(split)]


def _split(records: Sequence[AnyRecord], card: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the card's split of these records. Raises BadInput if one of the card's is not there."""
    names = {split: set(card["data"]["names"].get(split, ())) for split in SPLITS}
    known = {digest_of(name) for record in records for name in (record.key, record.group)}
    if missing := len(set().union(*names.values()) - known):
        raise BadInput(
            f"{counted(missing, 'name')} of the card's records and groups, which a card knows by their digests, belong "
            "to no record here: name the data that the network was trained on with --data"
        )
    return {split: [r.key for r in records if digest_of(r.key) in found] for split, found in names.items()}
