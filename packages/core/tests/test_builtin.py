"""Weights in a project's package: written from a run, read-only, used wherever a run is."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import runner_core
from runner_core import BadInput
from runner_core.api.builtin import _half
from runner_core.cli import main
from runner_core.plugins.builtin import weights_of
from runner_core.plugins.discovery import find_project

pytestmark = pytest.mark.torch
TOY = Path(__file__).parent / "toy" / "project"
STATEMENT = "Trained on discs; research only."


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def package(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The toy as a package that can hold weights, installed in this process; the module is forgotten afterwards."""
    site = here / "site"
    shutil.copytree(TOY / "toy-0.1.dist-info", site / "toy-0.1.dist-info")
    (site / "toy_project").mkdir()
    shutil.copyfile(TOY / "toy_project.py", site / "toy_project" / "__init__.py")
    (site / "MODEL_CARD.md").write_text("# Discs\n", encoding="utf-8")
    before = sys.modules.pop("toy_project", None)
    monkeypatch.syspath_prepend(str(site))
    yield site / "toy_project"
    sys.modules.pop("toy_project", None)
    if before is not None:
        sys.modules["toy_project"] = before


def test_weights_in_a_package_predict_score_and_start_trainings(
    package: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weights_of(find_project("toy")) is None
    scan = next(runner_core.phantom("toy", here / "data").rglob("*_mask.npy"))
    image = scan.with_name(scan.name.replace("_mask", ""))
    assert main(["toy", "predict", "--weights", "builtin", str(image), "--out", "none"]) == 2
    assert "toy has no built-in weights" in capsys.readouterr().err

    settings = {"train.ema": 0.9, "cache.dir": here / "cache"}
    run = runner_core.train("toy", data=here / "data", run_dir=here / "run", epochs=1, **settings)
    card = package.parent / "MODEL_CARD.md"
    with pytest.raises(BadInput, match=r"MODEL_CARD\.md"):
        runner_core.write_builtin(run.path, here / "no-card", statement=STATEMENT, files=[], settings={})
    threshold = {"predict.threshold": 0.4}
    folder = package / "weights"
    runner_core.write_builtin(run.path, folder, statement=STATEMENT, files=[card], settings=threshold)
    assert str(here) not in "".join(text.decode(errors="replace") for text in contents(folder).values()), "no places"
    assert "repeats this run" not in (folder / "config.yaml").read_text(encoding="utf-8"), "there are no data"
    before = contents(package)

    assert main(["toy", "predict", "--weights", "builtni", str(image), "--out", "none"]) == 2
    assert "builtni: there is no such run folder; did you mean 'builtin'?" in capsys.readouterr().err
    assert main(["toy", "predict", "--weights", "builtin", str(image), "--out", "a"]) == 0
    assert STATEMENT in capsys.readouterr().out
    assert main(["toy", "predict", "run", str(image), "--out", "b", "--predict.threshold", "0.4"]) == 0
    assert contents(here / "a") == contents(here / "b"), "the averaged weights and the threshold of the run"
    assert runner_core.open("builtin", "toy").settings["predict.threshold"] == 0.4

    assert main(["toy", "evaluate", "--weights", "builtin"]) == 2
    assert "name yours with --data" in capsys.readouterr().err
    shutil.copytree(here / "data", here / "renamed")
    assert main(["toy", "evaluate", "--weights=builtin", "--data", "renamed", "--out", "scores"]) == 0
    assert "trained on" in capsys.readouterr().out, "training records are recognised by their contents"
    assert main(["toy", "evaluate", "builtin", "--data", "renamed"]) == 0
    assert [*Path("runs", "toy").glob("evaluate-*")], "not in the package"
    assert main(["toy", "select", "builtin", "--data", "renamed"]) == 2
    assert "must not write" in capsys.readouterr().err

    further = runner_core.train("toy", data=here / "data", run_dir=here / "further", from_="builtin", epochs=1)
    assert {*run.split["train"]} <= further.trained_on
    assert main(["toy", "train", "--resume", str(folder)]) == 2
    assert "no training to continue" in capsys.readouterr().err
    after = {name: data for name, data in contents(package).items() if "__pycache__" not in name}
    assert after == {name: data for name, data in before.items() if "__pycache__" not in name}, "it was written to"

    assert main(["list"]) == 0
    assert main(["toy"]) == 0
    assert capsys.readouterr().out.count("builtin") >= 3
    (folder / "checkpoints" / f"step-{run.summary['best_step']:08d}" / "model.safetensors").write_bytes(b"changed")
    assert main(["toy", "predict", "--weights", "builtin", str(image), "--out", "c"]) == 2
    assert "damaged" in capsys.readouterr().err


def test_what_16_bits_cannot_hold_is_refused() -> None:
    small = _half(np.array([1.0, 1 / 3], np.float32), "w")
    assert small.dtype == np.float16
    np.testing.assert_allclose(small, [1, 1 / 3], rtol=1e-3)
    counts = np.array([70000], np.int64)
    assert _half(counts, "n") is counts
    with pytest.raises(BadInput, match="w holds numbers that 16 bits cannot hold"):
        _half(np.array([70000.0], np.float32), "w")
