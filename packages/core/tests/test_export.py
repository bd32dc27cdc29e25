"""`export --to`: which formats there are, what a format is given, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runner_core import BadInput, Unhealthy
from runner_core.cli import export as command
from runner_core.cli import main as command_line
from runner_core.cli.ensembles import start_from_runs
from runner_core.cli.options import ExportOptions
from runner_core.plugins.settings import PHANTOM
from runner_core.tools.card.facts import FACTS

pytestmark = pytest.mark.torch

_FORMATS = """
import json
from runner_core import Unhealthy

def counted(job):
    found = [(record.key, cropped.prepared["image"].shape) for record, cropped in job.records()]
    about = {"checkpoint": job.checkpoint, "source": job.source, "records": found, "project": job.project.name}
    about["outputs"] = job.trained.network is not None
    (job.folder / "counted.json").write_text(json.dumps(about))
    return [job.folder / "counted.json"]

def wrong(job):
    (job.folder / "half").write_text("half")
    raise Unhealthy("it computes something else")
"""


@pytest.fixture
def formats(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with three formats is installed; one of them lacks what it imports."""
    info = here / "formats-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: formats\nVersion: 1.0\n")
    lines = "counted = own_formats:counted\nwrong = own_formats:wrong\nbare = own_formats_missing:bare\n"
    (info / "entry_points.txt").write_text(f"[runner.exports]\n{lines}")
    (here / "own_formats.py").write_text(_FORMATS)
    (here / "own_formats_missing.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(str(here))


def export(trained: Path, out: Path, *words: str) -> list[Path]:
    started = start_from_runs("toy", "export", ExportOptions, [str(trained), "--out", str(out), *words])
    return list(command.export_with(started))


def test_a_format_gets_the_network_and_the_validation_records(trained: Path, here: Path, formats: None) -> None:
    written = export(trained, here / "out", "--to", "counted")
    about = json.loads((here / "out" / "counted.json").read_text())
    assert about["project"] == "toy"
    assert about["source"] == "validation records of the phantom"
    assert (trained / "checkpoints" / about["checkpoint"]).is_dir()
    assert len(about["records"]) > 0
    assert {"counted.json", "MODEL_CARD.md", "ro-crate-metadata.json"} <= {path.name for path in written}


def test_records_to_compare_on_are_not_called_the_training_data(trained: Path, here: Path, formats: None) -> None:
    assert command_line(["toy", "phantom", "other-heads"]) == 0
    export(trained, here / "out", "--to", "counted", "--data", "other-heads")
    assert json.loads((here / "out" / "counted.json").read_text())["source"] == "records of --data"
    assert json.loads((here / "out" / FACTS).read_text())["data"]["source"] == PHANTOM
    assert "other-heads" not in (here / "out" / "MODEL_CARD.md").read_text()


def test_a_run_whose_data_have_moved_is_exported(trained: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["toy", "phantom", "own"]) == 0
    words = ["--train.epochs", "1", "--train.steps-per-epoch", "1", "--run-dir", "run"]
    assert command_line(["toy", "train", "--data", "own", *words]) == 0
    Path("own").rename("moved")
    capsys.readouterr()
    assert command_line(["toy", "export", "run", "--out", "out"]) == 2
    assert "name its folder with --data" in capsys.readouterr().err
    assert command_line(["toy", "export", "run", "--out", "out", "--data", "moved"]) == 0
    assert "NOTE: nothing is compared on --data" in capsys.readouterr().out


def test_the_runs_own_data_are_no_reason_to_score_what_it_was_trained_on(
    trained: Path, here: Path, formats: None
) -> None:
    assert command_line(["toy", "phantom", "own"]) == 0
    words = ["--train.epochs", "1", "--train.steps-per-epoch", "1", "--run-dir", "run"]
    assert command_line(["toy", "train", "--data", "own", *words]) == 0
    for name, data in (("a", []), ("b", ["--data", "own"])):
        export(Path("run"), here / name, "--to", "counted", *data)
    first, second = (json.loads((here / name / "counted.json").read_text()) for name in "ab")
    assert first["records"] == second["records"]
    assert second["source"].startswith("validation records")


@pytest.mark.parametrize("words, error, text", [
    ("--to wrong", Unhealthy, "it computes something else"),
    ("--to bare", BadInput, "no_such_library.*uv pip install -e packages/export"),
    ("--to conted", BadInput, r"no such format here; did you mean counted\?|no such format here.*counted"),
    ("--to keras", BadInput, "has torch's own, safetensors"),
])  # fmt: skip
def test_what_is_refused_leaves_nothing(
    words: str, error: type[Exception], text: str, trained: Path, here: Path, formats: None
) -> None:
    with pytest.raises(error, match=text):
        export(trained, here / "out", *words.split())
    assert not (here / "out").exists()


def test_without_the_extension_one_message_says_what_to_install(
    trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: dict[str, Any] = {}
    monkeypatch.setattr(command, "export_formats", lambda: nothing)
    text = r"no such format here \(safetensors, hub-folder\); `uv pip install -e packages/export`"
    with pytest.raises(BadInput, match=text):
        export(trained, here / "out", "--to", "onnx")
    assert "model.safetensors" in {path.name for path in export(trained, here / "out", "--to", "safetensors")}
