"""A parsed command line, written out again, means the same."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runner_core import BadInput, ParsedCommand, flat, parse_command
from runner_core.api.keywords import keywords
from runner_core.cli.ensembles import start_from_runs
from runner_core.cli.options import PredictOptions


@dataclass(kw_only=True)
class Flags:
    """Do it later."""

    when: str = "now"
    """The time."""


@pytest.fixture
def late(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An extension without hooks is installed beside the toy."""
    info = here / "late-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[runner.extensions]\nlate = late_ext\n")
    source = "from dataclasses import dataclass\n\n@dataclass\nclass Config:\n    queue: str = 'long'\n"
    (here / "late_ext.py").write_text(source)
    monkeypatch.syspath_prepend(str(here))
    return here


def parsed(command: str, *words: str) -> ParsedCommand:
    prog = f"runner toy later {command}"
    return parse_command("toy", command, words, flags=Flags, extension="late", prog=prog)


@pytest.mark.parametrize(
    "words",
    [
        "train --epochs 3 --train.deterministic --log.no-tensorboard --lr 1e-3 --late.queue short --when never",
        "train --preset default --train.workers 0 --data data",
        "crossval --folds groups --seeds 2 --part 1/2 --at-once 1 --train.seed 5",
        "sweep --vary train.learning_rate=1e-3..1e-2 train.seed=1,2 --trials 3 --minutes 2.5",
        "check --fit --different a b",
        "ablate --only one --only two --minutes 1",
    ],
)
def test_words_mean_the_same_with_the_settings_saved(words: str, late: Path) -> None:
    (late / "data").mkdir()
    command, *rest = words.split()
    first = parsed(command, *rest)
    assert first.starts
    assert first.settings.late.queue == ("short" if "--late.queue" in rest else "long")
    first.save_settings(late / "kept.yaml")
    assert "\nlate:" not in (late / "kept.yaml").read_text()
    again = parsed(command, *first.words(late / "kept.yaml"))
    skipped = ("late.queue",)
    assert _without(flat(again.settings), skipped) == _without(flat(first.settings), skipped)
    own = ("config", "preset", "data", "when")
    assert _without(vars(again.options), (*own, "settings")) == _without(vars(first.options), (*own, "settings"))
    assert again._started.setup.source == first._started.setup.source
    assert again._started.setup.preset == first._started.setup.preset


@pytest.mark.torch
@pytest.mark.parametrize(
    "words",
    [
        "evaluate RUN --split all --train.device cpu",
        "predict RUN a.npy b.npy --out masks --part 1/2 --disagreement --with other --predict.views none",
        "select RUN --out chosen",
        "export RUN --out network",
    ],
)
def test_words_of_commands_that_use_a_run(words: str, late: Path, trained: Path) -> None:
    for name in ("run", "other"):
        shutil.copytree(trained, late / name)
    command, *rest = words.replace("RUN", "run").split()
    first = parsed(command, *rest)
    assert not first.starts
    again = parsed(command, *first.words(late / "kept.yaml"))
    assert flat(again.settings) == flat(first.settings)
    assert _without(vars(again.options), ("settings", "extra")) == _without(vars(first.options), ("settings", "extra"))


@pytest.mark.torch
def test_keywords_of_a_call_mean_the_same_as_the_words(late: Path, trained: Path) -> None:
    for name in ("run", "other"):
        shutil.copytree(trained, late / name)
    words = "run a.npy --out masks --with other --train.threads 3 --late.queue short"
    given = parsed("predict", *words.split()).keywords()
    assert given == {"with_": (Path("other"),), "train.threads": 3}
    again = start_from_runs(
        "toy",
        "predict",
        PredictOptions,
        keywords(PredictOptions, {"run": late / "run", "inputs": (), "out": Path(), **given}),
    )
    assert [member.setup.config.train.threads for member in again] == [3, 3]


@pytest.mark.parametrize("words, text", [
    ("train --epochs 0", "train.epochs must be at least 1"),
    ("train --resume", "what is submitted always goes on"),
    ("trian", "did you mean 'train'"),
    ("config", "cannot be run later"),
    ("train --data nowhere", "nowhere"),
    ("predict nowhere x --out y", "nowhere"),
])  # fmt: skip
def test_what_is_wrong_is_refused(words: str, text: str, late: Path) -> None:
    command, *rest = words.split()
    with pytest.raises(BadInput, match=text):
        parsed(command, *rest)


def test_a_run_that_has_begun_gives_its_own_settings(late: Path, request: pytest.FixtureRequest) -> None:
    trained = request.getfixturevalue("trained")
    shutil.copytree(trained, late / "run")
    assert parsed("train", "--run-dir", "run")._started.run is not None


def _without(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def test_the_project_has_the_settings_of_the_line(late: Path) -> None:
    found = parsed("check", "--train.seed", "7").made_project
    assert (found.name, found.config.train.seed) == ("toy", 7)
