"""Model cards of exported networks, and `runner reproduce`, which trains again what a card describes."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core.tools.card.same import compare
from runner_core.tools.card.text import text

Runner = Callable[..., subprocess.CompletedProcess[str]]
QUICK = ("--epochs", "1", "--train.steps-per-epoch", "3", "--train.threads", "1")

pytestmark = pytest.mark.torch


@pytest.fixture
def exported(trained: Path, runner: Runner, tmp_path: Path) -> Path:
    done = runner("toy", "export", trained, "--out", "net", "--license", "CC-BY-4.0")
    assert done.returncode == 0, done.stderr
    return tmp_path / "net"


def facts_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "card.json").read_text())


def change(folder: Path, **values: Any) -> None:
    (folder / "card.json").write_text(json.dumps(facts_of(folder) | values))


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert all(part in done.stderr for part in parts), done.stderr
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------- what is written


def test_a_card_says_how_good_the_network_is_and_what_it_learned_from(exported: Path, trained: Path) -> None:
    card = (exported / "MODEL_CARD.md").read_text()
    summary = json.loads((trained / "summary.json").read_text())
    name, value = next(iter(summary["scores"].items()))
    assert f"| {name} | {value:.4f} |" in card
    assert "License of the weights: CC-BY-4.0." in card
    assert "the generated phantom, no real data" in card
    assert "kWh" in card
    assert "estimated (processor time × 10 W)" in card or "measured (RAPL" in card
    assert (exported / "figures" / "001-p0_a.png").is_file()
    assert "![p0_a](figures/001-p0_a.png)" in card


def test_the_digest_is_that_of_the_weights(exported: Path, trained: Path) -> None:
    from safetensors.numpy import load_file

    weights = facts_of(exported)["weights"]
    tensors = load_file(trained / "checkpoints" / weights["checkpoint"] / "model.safetensors")
    found, count = hashlib.sha256(), 0
    for name in sorted(tensors):
        array = tensors[name]
        found.update(f"model.{name.removeprefix('model.')} {array.dtype} {array.shape}".encode() + array.tobytes())
        count += array.size
    assert weights == {"checkpoint": weights["checkpoint"], "sha256": found.hexdigest(), "values": count}


def test_anonymous_cards_name_no_record(trained: Path, runner: Runner, tmp_path: Path) -> None:
    assert runner("toy", "export", trained, "--out", "net", "--anonymous").returncode == 0
    files = [path for path in (tmp_path / "net").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"MODEL_CARD.md", "card.json", "ro-crate-metadata.json"}
    keys = [record["record"] for record in json.loads((trained / "scores.json").read_text())["records"]]
    assert keys
    for path in files:
        content = path.read_bytes()
        assert not any(key.encode() in content or key in path.name for key in keys), path


def test_the_crate_lists_every_file_with_its_checksum(exported: Path) -> None:
    content = json.loads((exported / "ro-crate-metadata.json").read_text())
    entities = {entity["@id"]: entity for entity in content["@graph"]}
    files = {p.relative_to(exported).as_posix() for p in exported.rglob("*") if p.is_file()} - {
        "ro-crate-metadata.json"
    }
    assert {part["@id"] for part in entities["./"]["hasPart"]} == files
    for name in files:
        assert entities[name]["sha256"] == hashlib.sha256((exported / name).read_bytes()).hexdigest()
    links = [v["@id"] for e in content["@graph"] for v in e.values() if isinstance(v, dict)]
    assert set(links) - {"https://w3id.org/ro/crate/1.1"} <= set(entities)


# ---------------------------------------------------------------- training again


def test_a_strangers_card_sends_nothing_anywhere(exported: Path, runner: Runner, tmp_path: Path) -> None:
    card = facts_of(exported)
    assert not {"cache", "remote", "log"} & {*card["settings"]}
    log, cache = {"mlflow": str(tmp_path / "sent")}, {"dir": str(tmp_path / "elsewhere")}
    change(exported, settings={**card["settings"], "log": log, "cache": cache, "project": "other"})
    assert runner("reproduce", exported, "--run-dir", "again").returncode == 0
    assert not (tmp_path / "sent").exists()
    assert not (tmp_path / "elsewhere").exists()


def test_no_path_of_this_machine_is_in_a_card(trained: Path, runner: Runner, tmp_path: Path) -> None:
    summary = json.loads((trained / "summary.json").read_text())
    text = f"no space left in {tmp_path}/runs/a b/checkpoints (No space); see https://example.org/a/b, 3/4"
    found = {"rule": "checkpoint not saved", "level": "warning", "message": text, "timed": True}
    shutil.copytree(trained, tmp_path / "copy")
    (tmp_path / "copy" / "summary.json").write_text(json.dumps({**summary, "health": [found]}))
    assert runner("toy", "export", "copy", "--out", "net").returncode == 0
    assert (
        "no space left in a b/checkpoints (No space); see https://example.org/a/b, 3/4"
        in (facts_of(tmp_path / "net")["health"][0]["message"])
    )
    assert not any(str(tmp_path).encode() in p.read_bytes() for p in (tmp_path / "net").rglob("*.*"))


def test_the_same_machine_gives_the_same_bits(exported: Path, runner: Runner, tmp_path: Path) -> None:
    done = runner("reproduce", exported / "MODEL_CARD.md", "--run-dir", "again", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["verdict"] == "same bits"
    assert "the trained weights equal the card's, bit for bit" in done.stderr


def test_other_scores_are_not_reproduced(exported: Path, runner: Runner) -> None:
    card = facts_of(exported)
    change(
        exported,
        weights=card["weights"] | {"sha256": "0"},
        versions=card["versions"] | {"torch": "2.6.0"},
        scores=[score | {"value": score["value"] * 1.2, "low": None} for score in card["scores"]],
    )
    done = runner("reproduce", exported, "--run-dir", "again")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "torch: 2.6.0 in the card, " in done.stdout
    assert "not reproduced" in done.stdout


def test_own_data_are_known_by_content_not_by_place(runner: Runner, tmp_path: Path) -> None:
    runner("toy", "phantom", "data")
    assert runner("toy", "train", "--data", "data", "--run-dir", "run", *QUICK).returncode == 0
    assert runner("toy", "export", "run", "--out", "net").returncode == 0
    assert str(tmp_path) not in (tmp_path / "net" / "card.json").read_text()
    refused(runner("reproduce", "net"), "trained on data", "--data")
    shutil.move(tmp_path / "data", tmp_path / "elsewhere")
    done = runner("reproduce", "net", "--data", "elsewhere", "--run-dir", "again")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same bits" in done.stdout

    trained = set(
        (tmp_path / "run" / "split.yaml").read_text().partition("train:")[2].partition("validation:")[0].split()
    )
    image = next(path for path in sorted((tmp_path / "elsewhere").glob("*.npy")) if path.stem in trained)
    np.save(image, np.load(image) * 0.9, allow_pickle=False)
    done = runner("reproduce", "net", "--data", "elsewhere", "--run-dir", "changed", "--tolerance", "10")
    assert "differs: data: 1 training record of the same name with another content" in done.stdout

    for path in (tmp_path / "elsewhere").glob(f"{image.stem}*"):
        path.rename(path.with_name(path.name.replace(image.stem, "stranger_x")))
    refused(runner("reproduce", "net", "--data", "elsewhere", "--run-dir", "other"), "belong to no record here")
    assert not (tmp_path / "other").exists()


def test_bad_cards_are_refused(exported: Path, runner: Runner, tmp_path: Path) -> None:
    refused(runner("reproduce", tmp_path), "there is no card.json in it")
    refused(
        runner("reproduce", tmp_path / "nowhere" / "MODEL_CARD.md"), "MODEL_CARD.md: there is no such file or folder"
    )
    refused(runner("reproduce", exported, "--data", "x"), "trained on the phantom: leave --data out")
    refused(runner("reproduce", exported, "--from", "x"), "started from no weights: leave --from out")
    whole = facts_of(exported)
    change(exported, format=99)
    refused(runner("reproduce", exported), "card.json", "its format is 99, and this runner reads 1")
    (exported / "card.json").write_text(json.dumps({**whole, "settings": []}))
    refused(runner("reproduce", exported), "card.json")
    (exported / "card.json").write_text("{")
    refused(runner("reproduce", exported), "card.json")
    (exported / "card.json").write_text(json.dumps({**whole, "project": "toi"}))
    refused(runner("reproduce", exported), "toi")


# ---------------------------------------------------------------- comparisons


def facts(**values: Any) -> dict[str, Any]:
    score = {"name": "dice", "value": 0.9, "low": 0.88, "high": 0.92, "baseline": 0.5}
    data = {"identity": "a", "contents": {"r": "1", "s": "2"}}
    known = {"weights": {"sha256": "w"}, "scores": [score], "metrics": {"loss": 1.0}, "data": data}
    return known | {"versions": {"torch": "2.10", "plugins": {"core": "0.1"}}, "device": "CPU"} | values


@pytest.mark.parametrize(
    "value,tolerance,verdict",
    [
        (0.885, 0.001, "same scores"),
        (0.86, 0.05, "same scores"),
        (0.86, 0.01, "not reproduced"),
        (None, 1, "not reproduced"),
    ],
)
def test_scores_agree_within_interval_or_tolerance(value: float | None, tolerance: float, verdict: str) -> None:
    now = facts(weights={"sha256": "v"}, scores=[{"name": "dice", "value": value}])
    assert compare(facts(), now, tolerance).verdict == verdict


def test_metrics_are_compared_where_nothing_was_scored() -> None:
    now = facts(weights={"sha256": "v"}, scores=[], metrics={"loss": 1.04})
    assert compare(facts(scores=[]), now, 0.05).verdict == "same scores"
    assert compare(facts(scores=[]), now, 0.01).verdict == "not reproduced"


def test_what_differs_is_named() -> None:
    data = {"identity": "b", "contents": {"r": "1", "s": "3"}}
    now = facts(data=data, versions={"torch": "2.11", "plugins": {"core": "0.1"}}, device="GPU")
    assert compare(facts(), now, 0.05).different == [
        "data: 1 training record of the same name with another content",
        "torch: 2.10 in the card, 2.11 now",
        "device: CPU in the card, GPU now",
    ]


def test_a_bar_in_a_name_stays_in_its_cell(exported: Path) -> None:
    known = facts_of(exported)
    known["versions"] = {"a|b": "1"}
    assert "| a\\|b | 1 |" in text(known, ["model.safetensors"])


def test_counts_that_a_project_does_not_show_are_in_card_json_alone(exported: Path) -> None:
    known = facts_of(exported)
    count = {"name": "pixels_a_as_b", "value": 7.0, "low": None, "high": None, "baseline": None, "shown": False}
    known["scores"].append(count)
    for case in known["worst"]:
        case["scores"]["pixels_a_as_b"] = 7.0
    assert known["worst"]
    assert all(score["shown"] for score in known["scores"][:-1])
    assert "pixels_a_as_b" not in text(known, ["model.safetensors"])
    other = {**known, "weights": {"sha256": "v"}, "scores": [*known["scores"][:-1], {**count, "value": 9.0}]}
    assert compare(known, other, 0.05).verdict == "same scores"
