"""From any volume to its surfaces: files, post-processing, scores; with a network that knows the answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
from runner_core import Arrays, BadInput, Record
from runner_core.testing import cropped
from runner_vesuvius import outputs, postprocess
from runner_vesuvius.config import ScrollPredictConfig
from runner_vesuvius.outputs import Detected
from runner_vesuvius.project import ScrollPredictOptions, Vesuvius
from runner_vesuvius.volumes import write_tif


def bright_is_surface(arrays: Arrays) -> Arrays:
    """Stands in for a trained network."""
    windows = arrays["image"]
    assert windows.dtype == np.uint8
    return {"prediction": 1 / (1 + np.exp(-(windows[:, None].astype(np.float32) - 120) / 8))}


@pytest.fixture
def record(project, write_volumes) -> Record:
    return project.records(write_volumes({"1": "A", "2": "B"}))[0]


def test_the_surface_is_found_where_it_is(project, record) -> None:
    found = project.predict(cropped(project, record), bright_is_surface)
    truth = tifffile.imread(record.files["label"])
    image = tifffile.imread(record.files["image"])
    assert found.mask.dtype == found.probability.dtype == np.uint8
    assert (found.mask[truth != 2] == truth[truth != 2]).mean() > 0.99
    assert np.abs(found.probability / 255 - bright_is_surface({"image": image[None]})["prediction"][0, 0]).max() < 0.003
    scores = project.score(record, found)
    assert scores["score"] > 0.9
    assert scores["dice"] > 0.98
    assert set(project.judging().shown) <= set(scores)


def test_a_crop_comes_back_into_the_volume(config, write_volumes) -> None:
    config.crop.mode, config.crop.size = "centre", (16, 16, 16)
    project = Vesuvius(config)
    record = project.records(write_volumes({"1": "A", "2": "B"}))[0]
    found = project.predict(cropped(project, record), bright_is_surface)
    assert found.mask.shape == (24, 28, 32)
    assert not found.mask[:4].any()
    assert found.mask[4:20, 6:22, 8:24].any()


def test_every_view_leads_back_and_makes_the_calls_that_were_announced(config, write_volumes) -> None:
    config.predict.views, config.data.patch = ("all",), (16, 16, 24)
    project = Vesuvius(config)
    record = project.records(write_volumes({"1": "A", "2": "B"}))[0]
    calls = []

    def infer(arrays: Arrays) -> Arrays:
        calls.append(1)
        return bright_is_surface(arrays)

    combining = project.combining()
    found = combining.predict(cropped(project, record), infer, combining.views)
    turned = len(calls)  # turned volumes have other sides, and so another number of windows
    alone = combining.predict(cropped(project, record), infer)
    assert np.abs(found.probability.astype(int) - alone.probability).max() <= 1  # it looks at single voxels
    assert {view.name for view in combining.views} >= {"mirror-zyx", "turn-90", "turn-270", "transpose"}
    assert len(calls) - turned == combining.calls(record)


@pytest.mark.parametrize("probability", [False, True])
def test_files_are_what_the_challenge_asks_for(project, record, tmp_path, probability) -> None:
    project.predict_options = ScrollPredictOptions(probability=probability)
    found = project.predict(cropped(project, record), bright_is_surface)
    written = project.write(record, found, tmp_path / "out")
    names = [f"{record.key}.tif"] + [f"{record.key}_probability.tif"] * probability
    assert [path.name for path in written] == names
    with tifffile.TiffFile(written[0]) as file:
        assert file.pages[0].compression == tifffile.COMPRESSION.LZW
        volume = file.asarray()
    assert volume.dtype == np.uint8
    assert np.array_equal(volume, found.mask)
    assert set(np.unique(volume)) == {0, 1}
    for path in written:
        assert project.checks().grid(path) == project.checks().grid(record.files["image"]) == [24, 28, 32]
    if probability:
        assert np.array_equal(tifffile.imread(written[1]), found.probability)


def test_a_folder_that_cannot_be_written_to_is_bad_input(project, record, tmp_path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(BadInput, match="cannot be written"):
        project.write(record, project.predict(cropped(project, record), bright_is_surface), tmp_path / "out")


def test_volumes_without_labels_are_predicted_and_not_scored(project, tmp_path) -> None:
    path = tmp_path / "scan.npy"
    np.save(path, np.full((20, 20, 20), 200, np.uint8))
    (record,) = project.inputs(path)
    found = project.predict(cropped(project, record), bright_is_surface)
    assert found.mask.all()
    assert project.score(record, found) == {}
    assert project.pictures().figure(record, found).ndim == 3


def test_a_volume_smaller_than_the_patch_is_predicted_all_the_same(project, tmp_path) -> None:
    path = tmp_path / "scan.tif"
    write_tif(path, np.full((5, 40, 9), 200, np.uint8))
    (record,) = project.inputs(path)
    assert project.predict(cropped(project, record), bright_is_surface).mask.shape == (5, 40, 9)


@pytest.mark.parametrize(("kind", "scroll"), [("volume", "A"), ("scroll", "A"), ("scroll", "new")])
def test_a_volume_is_scaled_by_its_scroll_if_that_was_trained_on(project, record, kind, scroll) -> None:
    project.config.data.normalise = kind
    if kind == "scroll":
        project.statistics = {"scrolls": ["A", "B"], "scroll_scales": np.array([[90.0, 7.0], [0.0, 1.0]])}
    seen = []

    def infer(arrays: Arrays) -> Arrays:
        seen.append(arrays["scale"])
        return bright_is_surface(arrays)

    volume = tifffile.imread(record.files["image"]).astype(float)
    found = project.predict(cropped(project, replace(record, group=scroll)), infer)
    known = (kind, scroll) == ("scroll", "A")
    wanted = (90, 7) if known else (volume[volume > 0].mean(), volume[volume > 0].std())
    assert np.concatenate(seen) == pytest.approx(np.tile(wanted, (sum(map(len, seen)), 1)), rel=1e-5)
    remarks = [finding.rule for finding in project.checks().prediction(replace(record, group=scroll), found)]
    assert ("scale" in remarks) == (scroll == "new")


# ------------------------------------------------------------ post-processing


def probability() -> np.ndarray:
    """A certain block with a cavity, a faint block, and a crumb."""
    volume = np.zeros((20, 20, 20), np.uint8)
    volume[2:8, 2:8, 2:8] = 250
    volume[4:6, 4:6, 4:6] = 10
    volume[12:16, 12:16, 12:16] = 140
    volume[18, 2, 2] = 255
    return volume


def test_without_any_post_processing_the_threshold_decides() -> None:
    settings = ScrollPredictConfig(threshold=0.5, seed_threshold=0.5, min_size=0, fill_holes=0)
    found = postprocess.surface(probability(), settings)
    assert found.dtype == np.uint8
    assert np.array_equal(found, probability() >= 128)


def test_a_probability_at_the_threshold_is_surface() -> None:
    volume = np.full((3, 3, 3), 102, np.uint8)  # 0.4 exactly
    assert postprocess.surface(volume, ScrollPredictConfig(threshold=0.4, seed_threshold=0.4, min_size=0)).all()
    assert not postprocess.surface(volume, ScrollPredictConfig(threshold=0.41, seed_threshold=0, min_size=0)).any()


def test_components_without_a_seed_go_and_the_others_stay() -> None:
    settings = ScrollPredictConfig(threshold=0.5, seed_threshold=0.9, min_size=0, fill_holes=0)
    found = postprocess.surface(probability(), settings)
    assert not found[12:16, 12:16, 12:16].any()
    assert found[2, 2, 2]
    assert found[18, 2, 2]


def test_crumbs_go_and_cavities_are_filled() -> None:
    found = postprocess.surface(probability(), ScrollPredictConfig(min_size=20, fill_holes=8))
    assert not found[18, 2, 2]
    assert found[2:8, 2:8, 2:8].all()
    left = postprocess.surface(probability(), ScrollPredictConfig(min_size=20, fill_holes=7))
    assert not left[4:6, 4:6, 4:6].any()


# ------------------------------------------------------------ remarks, baseline


def remarks(mask: np.ndarray, probability: np.ndarray | None = None) -> list[str]:
    return [
        finding.rule for finding in outputs.remarks(Detected(mask.astype(np.uint8), probability), ScrollPredictConfig())
    ]


def test_probabilities_never_take_the_name_of_another_mask(project: Vesuvius, tmp_path: Path) -> None:
    """If the folder held an earlier prediction, one of the two files would be lost."""
    for name in ("a", "a_probability"):
        write_tif(tmp_path / f"{name}.tif", np.zeros((20, 20, 20), np.uint8))
    assert len(project.inputs(tmp_path)) == 2
    project.predict_options = ScrollPredictOptions(probability=True)
    with pytest.raises(BadInput, match="a_probability is a volume here, and the probabilities of a would have its na"):
        project.inputs(tmp_path)


def test_remarks_on_predictions_that_cannot_be_right() -> None:
    shape = (20, 20, 20)
    assert remarks(np.zeros(shape)) == ["empty"]
    assert remarks(np.ones(shape)) == ["everywhere"]
    comb = np.zeros(shape)
    comb[::4] = 1
    assert remarks(comb) == []
    comb[:, :4] = 1
    assert remarks(comb) == ["merged"]
    prediction, settings = Detected(comb.astype(np.uint8), None), ScrollPredictConfig()
    (merged,) = outputs.remarks(prediction, settings)
    assert merged.level == "note"
    assert "100% of the surface, which fills 40% of the volume, is one piece" in merged.message
    assert "does not raise the score" in merged.message  # measured: the README's tables
    assert "predict.along_sheets" in merged.message
    settings.along_sheets, settings.thickness = 2.5, 3.4
    (merged,) = outputs.remarks(prediction, settings)
    assert "predict.along_sheets" not in merged.message, "it is on already"
    empty = Detected(np.zeros(shape, np.uint8), np.full(shape, 51, np.uint8))
    assert "the highest probability is 0.20" in next(outputs.remarks(empty, settings)).message


def test_the_baseline_is_the_threshold_with_the_same_post_processing(project, record) -> None:
    image = tifffile.imread(record.files["image"])
    project.statistics = {"threshold": 120}
    found = project.baseline(cropped(project, record))
    assert np.array_equal(found.mask, image >= 120)
    assert found.probability is None
    project.config.predict.min_size = 10**6
    assert not project.baseline(cropped(project, record)).mask.any()
