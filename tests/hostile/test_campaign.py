"""The campaign: RUNNER_HOSTILE_CASES times each format's share, from RUNNER_HOSTILE_SEED, on the real command line."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from runner_core.testing.forked import COMMANDS, TORCH, Forked

from hostile import PROPERTY
from hostile.case import ALLOWED, TESTS, Format, Outcome, change, judge, run, stated
from hostile.formats import FORMATS
from hostile.kept import KEPT

CASES = int(os.environ.get("RUNNER_HOSTILE_CASES", "0"))
"""Times each format's share; 0: two of each, to see that the campaign itself works."""
SEED = int(os.environ.get("RUNNER_HOSTILE_SEED", "0"))
KEEP = os.environ.get("RUNNER_HOSTILE_KEEP")
"""A folder for the data of cases that went wrong."""


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    """Has imported what the readers need."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with Forked(environment, [*COMMANDS, *TORCH, "hostile.preload"]) as forked:
        yield forked


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's cache folder."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory, forked: Forked, home: Path) -> Callable[[Format], Path]:
    """The valid data set of a format, made once."""
    made: dict[str, Path] = {}

    def make(format: Format) -> Path:
        if format.name not in made:
            folder = tmp_path_factory.mktemp(re.sub(r"\W+", "-", format.name))
            made[format.name] = folder / "data"
            for name in ("home", "tmp", "data"):
                (folder / name).mkdir()
            format.make(made[format.name])
            for words in format.prepare:
                code, out, err, _ = run(forked, shlex.split(words.format(data=made[format.name])), folder, home)
                assert code == 0, (words, out, err)
        return made[format.name]

    return make


def figures(format: Format, outcomes: Sequence[Outcome]) -> list[object]:
    """A row of the table: cases, refused, wrong, most CPU time and memory of one."""
    refused, wrong = sum(o.code == 2 for o in outcomes), sum(bool(o.faults) for o in outcomes)
    most = max((o.seconds for o in outcomes), default=0.0), max((o.growth for o in outcomes), default=0)
    return [format.name, len(outcomes), refused, wrong, round(most[0], 1), most[1] >> 20]


def attempt(
    forked: Forked, home: Path, format: Format, data: Path, folder: Path, draw: Callable[..., object] | None
) -> Outcome:
    """One case, in an empty folder. `draw` None: nothing is wrong."""
    for name in ("home", "tmp", "outside", "out"):
        (folder / name).mkdir(parents=True)
    (folder / "outside" / "canary").write_text("canary")
    place = folder / "deep" / "in" / "data"
    shutil.copytree(data, place, symlinks=True)
    name, what, refuse = sorted(format.files)[0], "nothing", False
    if draw is not None:
        name, what, refuse = change(format, place, draw)
    words = draw(st.sampled_from(list(format.words))) if draw is not None else format.words[0]
    flags = " ".join(map(shlex.quote, json.loads((place / name).read_text()))) if "{flags}" in str(words) else ""
    said = str(words).format(data=place, file=place / name, flags=flags)
    writes = (*ALLOWED, *(f"deep/in/data/{inside}" for inside in format.writes))
    before = stated(folder, writes)
    code, out, err, usage = run(forked, shlex.split(said), folder, home)
    outcome = Outcome(
        f"{name}: {what}", said.replace(str(folder), ""), code, f"{out[-600:]}{err[-1500:]}".replace(str(folder), "")
    )
    judge(format, outcome, out, err, usage, refuse)
    after = stated(folder, writes)
    if changed := sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)):
        outcome.faults.append(f"changes {', '.join(changed[:5])}")
    return outcome


@pytest.mark.parametrize("format", [*FORMATS, *KEPT], ids=lambda format: format.name)
def test_bad_input_is_refused_in_one_message(
    format: Format,
    forked: Forked,
    home: Path,
    valid: Callable[[Format], Path],
    tmp_path: Path,
    record_property: Callable[..., None],
) -> None:
    data = valid(format)
    if format.whole:
        right = attempt(forked, home, format, data, tmp_path / "right", None)
        assert right.code == 0, right.output
        assert not right.faults, right.faults
    outcomes: list[Outcome] = []

    @seed(SEED)
    @settings(
        max_examples=CASES * format.share or 2,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def campaign(draws: st.DataObject) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as name:  # gone too where Hypothesis gives a case up
            outcome = attempt(forked, home, format, data, Path(name), draws.draw)
            outcomes.append(outcome)
            if outcome.faults and KEEP:
                kept = Path(KEEP) / f"{format.name}-{SEED}-{len(outcomes)}".replace(" ", "-")
                shutil.copytree(name, kept, symlinks=True, copy_function=_copy)
                with open(Path(KEEP) / "faults.txt", "a") as file:
                    file.write(f"{kept.name}: {outcome}\n")

    campaign()
    wrong = [outcome for outcome in outcomes if outcome.faults]
    record_property(PROPERTY, figures(format, outcomes))
    shown = "\n\n".join(
        f"{o.what}\n  runner {o.words}\n  {'; '.join(o.faults)}\n  {o.output[-700:]}" for o in wrong[:40]
    )
    assert not wrong, f"{len(wrong)} of {len(outcomes)} cases:\n\n{shown}"


def _copy(source: str, target: str) -> None:
    if os.path.isfile(source):
        shutil.copyfile(source, target)
