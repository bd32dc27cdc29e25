"""The second stage: what it sees, that it begins as the first, and that no run predicts what it was trained on."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import move
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from runner_core import Arrays, BadInput, Record, Run
from runner_core.testing import cropped, prepared
from runner_vesuvius import augment, first_stage, volumes
from runner_vesuvius.batches import on_device
from runner_vesuvius.config import AugmentConfig
from runner_vesuvius.network import ResEncUNet, SurfaceUNet, widened
from runner_vesuvius.project import Vesuvius

STATISTICS = {"mean": 100.0, "std": 40.0}


def soft(image: Path, value: int) -> np.ndarray:
    return np.full(volumes.outline(image)[0], value, np.uint8)


class FakeRun:
    """A run that predicts one value, and was trained on some scrolls."""

    def __init__(self, path: Path, trained: list[str], value: int) -> None:
        self.path, self.trained_on, self._value = path, frozenset(trained), value

    def predict(self, image: Path) -> Any:
        return SimpleNamespace(prediction=SimpleNamespace(probability=soft(image, self._value)))


@pytest.fixture
def runs(monkeypatch, tmp_path) -> dict[str, FakeRun]:
    for name in "ab":
        (tmp_path / name).mkdir()
    made = {"a": FakeRun(tmp_path / "a", ["A", "1"], 100), "b": FakeRun(tmp_path / "b", ["B", "2"], 201)}
    monkeypatch.setattr(first_stage, "_open", lambda path: made[path.name])
    first_stage._runs.cache_clear()
    return made


def write(*words: object) -> int:
    return first_stage.first_stage(argparse.ArgumentParser(), [str(word) for word in words])


@pytest.fixture
def second(config, runs, write_volumes, tmp_path) -> tuple[Vesuvius, Path]:
    """A project with a first stage of two volumes, and its data."""
    root = write_volumes({"1": "A", "2": "B"})
    write("--run", "a", "b", "--data", root, "--out", tmp_path / "first")
    config.data.first_stage = tmp_path / "first"
    return Vesuvius(config), root


def test_each_volume_is_predicted_by_runs_that_were_not_trained_on_it(second) -> None:
    project, root = second
    one, two = project.records(root)
    assert (volumes.read_image(one.files["first"]) == 201).all()
    assert (volumes.read_image(two.files["first"]) == 100).all()
    arrays = prepared(project, one).arrays
    assert (arrays["first"] == 201).all()
    assert arrays["first"].shape == arrays["image"].shape


def test_volumes_are_known_by_their_content_wherever_they_lie(second, tmp_path) -> None:
    project, root = second
    moved = move(root, tmp_path / "elsewhere")
    assert ["first" in record.files for record in project.records(moved)] == [True, True]
    assert (volumes.read_image(project.records(moved)[0].files["first"]) == 201).all()
    image = next(moved.rglob("train_images/1.tif"))
    volumes.write_tif(image, np.random.default_rng(3).integers(0, 256, (24, 28, 32)).astype(np.uint8))
    assert ["first" in record.files for record in project.records(moved)] == [False, True]


def test_what_was_killed_goes_on_and_no_training_uses_it_before(runs, config, write_volumes, tmp_path, capsys) -> None:
    root, out = write_volumes({"1": "A", "2": "B"}), tmp_path / "first"
    words = ("--data", root, "--out", out)
    calls: list[str] = []

    def dying(image: Path) -> Any:
        raise KeyboardInterrupt

    whole, runs["a"].predict = runs["a"].predict, dying
    with pytest.raises(KeyboardInterrupt):
        write("--run", "a", "b", *words)
    config.data.first_stage = out
    with pytest.raises(BadInput, match=r"first_stage\.json cannot be read"):
        Vesuvius(config).records(root)
    with pytest.raises(BadInput, match="was begun with other runs"):
        write("--run", "b", "a", *words)
    runs["a"].predict = lambda image: [calls.append("a"), whole(image)][1]
    runs["b"].predict = lambda image: pytest.fail("volume 1 is there")
    capsys.readouterr()
    assert write("--run", "a", "b", *words) == 0
    assert calls == ["a"]
    assert "goes on with" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == [
        "1_probability.tif", "2_probability.tif", first_stage.TABLE,
    ]  # fmt: skip
    before = (out / first_stage.TABLE).read_bytes()
    with pytest.raises(BadInput, match="is not an empty folder; name another --out"):
        write("--run", "a", "b", *words)
    with pytest.raises(BadInput, match=r"cannot be written: Not a directory"):
        write("--run", "a", "b", "--data", root, "--out", out / first_stage.TABLE / "inside")
    assert (out / first_stage.TABLE).read_bytes() == before


def test_volumes_that_every_run_was_trained_on_are_refused(runs, write_volumes, tmp_path) -> None:
    root = write_volumes({"1": "A", "2": "B"})
    with pytest.raises(BadInput, match="every run was trained on 2 or their scrolls"):
        write("--run", "b", "--data", root, "--out", tmp_path / "first")
    assert not (tmp_path / "first").exists()


def test_other_volumes_are_predicted_by_the_first_stages_runs(second, tmp_path) -> None:
    project, root = second
    new = tmp_path / "new.npy"
    np.save(new, np.full((20, 20, 20), 9, np.uint8))
    (record,) = project.inputs(new)
    assert "first" not in record.files
    assert (project.decode(record).arrays["first"] == 150).all()  # of both runs: (100 + 201) / 2, halves to even
    (known,) = project.inputs(root / "train_images" / "1.tif")
    assert (project.decode(known).arrays["first"] == 201).all()


def test_folder_and_runs_may_be_moved_together(second, config, tmp_path) -> None:
    new = tmp_path / "new.npy"
    np.save(new, np.full((20, 20, 20), 9, np.uint8))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    config.data.first_stage = Path(move(tmp_path / "first", elsewhere))
    project = Vesuvius(config)
    (record,) = project.inputs(new)
    with pytest.raises(BadInput, match=r"first_stage\.json: its run .*a is gone"):
        project.decode(record)
    for name in "ab":
        move(tmp_path / name, elsewhere)
    assert (project.decode(record).arrays["first"] == 150).all()


def test_what_does_not_fit_is_refused(second, tmp_path) -> None:
    project, root = second
    record = project.records(root)[0]
    volumes.write_tif(record.files["first"], np.zeros((20, 20, 20), np.uint8))
    with pytest.raises(BadInput, match=r"1_probability\.tif: 20 × 20 × 20 voxels, its volume has 24 × 28 × 32"):
        project.decode(record)
    record = replace(record, files={name: path for name, path in record.files.items() if name != "first"})
    with pytest.raises(BadInput, match=r"has no probabilities of .*1\.tif"):
        project.decode(record)
    (tmp_path / "first" / first_stage.TABLE).write_text(json.dumps({"runs": []}))
    with pytest.raises(BadInput, match=r"first_stage\.json is damaged"):
        project.records(root)
    (tmp_path / "first" / first_stage.TABLE).unlink()
    with pytest.raises(BadInput, match=r"data\.first_stage: .* cannot be read .*runner vesuvius first-stage"):
        project.records(root)


def test_windows_hold_image_and_first_stage(second) -> None:
    project, root = second
    record = project.records(root)[0]
    rng = np.random.default_rng(0)
    first = rng.integers(0, 256, (24, 28, 32)).astype(np.uint8)
    volumes.write_tif(record.files["first"], first)

    def infer(arrays: Arrays) -> Arrays:
        assert arrays["image"].dtype == arrays["first"].dtype == np.uint8
        return {"prediction": arrays["first"][:, None].astype(np.float32) / 255}

    unlabelled = Record(record.key, record.group, {n: p for n, p in record.files.items() if n != "label"})
    project.config.predict.views = ("mirror-z", "turn-90")
    assert np.abs(project.predict(cropped(project, unlabelled), infer).probability.astype(int) - first).max() <= 1


@pytest.mark.parametrize("make", [partial(SurfaceUNet, 4, (1, 2), 1), partial(ResEncUNet, (4, 8), (1, 1), (1, 1, 1))])
def test_a_second_stage_begins_as_the_first(make) -> None:
    torch.manual_seed(0)
    first, second = (make(channels=channels) for channels in (1, 2))
    second.load_state_dict(widened(second, first.state_dict()))
    image, mask = torch.randn(1, 1, 16, 16, 16), torch.rand(1, 1, 16, 16, 16)
    for one, other in zip(first(image), second(torch.cat((image, mask), 1)), strict=True):
        torch.testing.assert_close(one, other)
    assert widened(first, first.state_dict()).keys() == first.state_dict().keys()


def test_the_mask_is_the_second_channel_and_moves_with_the_image(config) -> None:
    volume = torch.arange(4096, dtype=torch.int32).view(1, 16, 16, 16)
    batch = {"image": (volume % 251).to(torch.uint8), "first": (volume % 251).to(torch.uint8)}
    out = on_device(batch, STATISTICS, config, None)["image"]
    assert out.shape == (1, 2, 16, 16, 16)
    assert torch.equal(out[:, 1] > 0, out[:, 0] * 40 + 100 > 101.5)  # the middle of 0.1 to 0.7: 0.4 · 255 = 102
    intensities = ("brightness", "contrast", "gamma", "noise", "blur", "low_resolution")
    plain = dict.fromkeys((*intensities, "affine", "elastic"), 0)
    config.augment = AugmentConfig(**plain, rotate90=True, first_threshold=(0.4, 0.4), first_dropout=0)
    turned = [on_device(batch, STATISTICS, config, torch.Generator().manual_seed(seed))["image"] for seed in range(3)]
    assert all(torch.equal(each[:, 1] > 0, each[:, 0] * 40 + 100 > 101.5) for each in turned)
    assert not all(torch.equal(each, out) for each in turned)


def test_masks_have_thresholds_of_their_own_and_holes() -> None:
    first = torch.linspace(0, 1, 32).view(1, 1, 1, 1, 32).expand(50, 1, 32, 32, 32)
    config = AugmentConfig(first_dropout=0.0)
    masks = augment.masked(first, config, torch.Generator().manual_seed(0))
    lowest = 1 - masks[:, 0, 0, 0].mean(1)
    assert 0.05 < lowest.min() < 0.2
    assert 0.6 < lowest.max() < 0.75
    whole = torch.ones(200, 1, 32, 32, 32)
    kept = augment.masked(whole, replace(config, first_dropout=0.5), torch.Generator().manual_seed(0))
    blocks = kept.unfold(2, 16, 16).unfold(3, 16, 16).unfold(4, 16, 16).flatten(5)
    assert torch.equal(blocks.amin(-1), blocks.amax(-1))
    assert 0.2 < 1 - kept.mean() < 0.3  # half of the largest share


def test_what_the_weights_saw_before_counts_as_trained_on(tmp_path) -> None:
    earlier = {"run": "earlier", "source": "elsewhere", "names": ["C", "3"], "contents": {}}
    start = {"source": "earlier", "digest": "", "about": "", "trained_on": {"runs": [earlier], "unknown": []}}
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").write_text("project: vesuvius\n")
    (tmp_path / "split.yaml").write_text("train: [A, '1']\nvalidation: [B, '2']\n")
    assert Run(tmp_path).trained_on == {"A", "1"}
    (tmp_path / "start.json").write_text(json.dumps(start))
    assert Run(tmp_path).trained_on == {"A", "1", "C", "3"}
    (tmp_path / "split.yaml").unlink()
    with pytest.raises(BadInput, match="what it was trained on is not known"):
        Run(tmp_path).trained_on  # noqa: B018
