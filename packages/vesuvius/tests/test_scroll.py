"""Whole scrolls: predictions chunk by chunk equal those of whole volumes, whatever parts and kills there were."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from runner_core import Arrays, BadInput, BlockWork, Record, Url
from runner_vesuvius import blockwise, chunked, postprocess, scroll, sweep
from runner_vesuvius.blockwise import Blocks, Pieces
from runner_vesuvius.config import ScrollConfig, ScrollPredictOptions
from runner_vesuvius.project import Vesuvius
from runner_vesuvius.scroll import Scroll
from runner_vesuvius.whole import predict

SHAPE = (40, 37, 50)


def answer(arrays: Arrays) -> Arrays:
    """Stands in for a network that looks at the whole window, and at the place in it."""
    windows = arrays["image"].astype(np.float32) / 255
    around = windows.mean(axis=(1, 2, 3), keepdims=True)
    ramp = np.linspace(0, 1, windows.shape[1], dtype=np.float32)[:, None, None]
    return {"prediction": (0.6 * windows + 0.3 * around + 0.1 * ramp)[:, None]}


def noise(shape: tuple[int, int, int] = SHAPE, seed: int = 0) -> np.ndarray:
    """A scan of blobs, pinholes and specks, nowhere 0."""
    from scipy.ndimage import gaussian_filter

    smooth = gaussian_filter(np.random.default_rng(seed).normal(size=shape), 1.2)
    return np.clip(128 + 300 * smooth, 1, 255).astype(np.uint8)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 16³: a volume of 40 voxels has several columns, layers and blocks."""
    for module in (chunked, scroll, sweep):
        monkeypatch.setattr(module, "CHUNK", 16)
    monkeypatch.setattr(scroll, "_COARSEST", 12)
    monkeypatch.setattr(scroll, "_LEAST", 16)
    monkeypatch.setattr(scroll, "side_for", lambda *given: (16, 32))


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    array = zarr.create_array(tmp_path / "in" / "s1.zarr", shape=SHAPE, chunks=(9, 16, 16), dtype="uint8")
    array[...] = noise()
    return tmp_path / "in" / "s1.zarr"


@pytest.fixture
def begin(config: ScrollConfig, volume: Path, tmp_path: Path) -> Callable[..., Scroll]:
    config.predict.min_size, config.predict.fill_holes = 60, 20
    config.predict.threshold = config.predict.seed_threshold = 0.55

    def begin(
        part: tuple[int, int] = (1, 1),
        out: str = "out",
        networks: Any = (answer,),
        views: Any = (),
        place: Any = None,
        named: str = "run/step-1 (a1)",
        **options: Any,
    ) -> Scroll:
        record = Record("s1", "s1", {"image": place or volume})
        work = BlockWork(record, networks, named, views, part, tmp_path / out)
        return Scroll(work, config, ScrollPredictOptions(chunked=True, **options), 3)

    return begin


def stored(place: Path) -> dict[str, bytes]:
    """Every file of an image; the description of parts and runs is the same too."""
    return {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("along", "thickness", "threshold", "seed", "min_size", "fill_holes"),
    [
        (0.0, 0.0, 0.55, 0.55, 0, 0),
        (0.0, 3.0, 0.55, 0.62, 60, 20),
        (2.5, 0.0, 0.5, 0.5, 30, 5),
        (1.5, 2.2, 0.5, 0.5, 30, 5),
    ],
)
def test_chunk_by_chunk_is_what_the_whole_volume_gives(
    begin, config, along, thickness, threshold, seed, min_size, fill_holes, tmp_path
) -> None:
    settings = config.predict
    begun = begin(probability=True)
    settings.along_sheets, settings.threshold, settings.seed_threshold = along, threshold, seed
    settings.thickness, settings.min_size, settings.fill_holes = thickness, min_size, fill_holes
    begun.predict()
    expected = predict(noise(), answer, config.data.patch, settings.overlap, 3)
    found = zarr.open_group(tmp_path / "out" / "s1_probability.zarr", mode="r")
    assert np.array_equal(found["0"][...], expected)
    mask = zarr.open_group(tmp_path / "out" / "s1.zarr", mode="r")["0"][...]
    whole = postprocess.surface(expected, settings)
    assert np.array_equal(mask, whole)
    assert 0 < mask.mean() < 1
    assert not (tmp_path / "out" / "s1.work.zarr").exists()


def test_parts_and_kills_leave_the_bytes_of_one_prediction(begin, tmp_path, capsys) -> None:
    begin().predict()
    expected = stored(tmp_path / "out" / "s1.zarr")
    for part in (1, 3, 2):
        pid = os.fork()
        if pid == 0:  # the first try of each part dies in the middle of its work

            def dying(arrays: Arrays, left: list[int] = [4]) -> Arrays:  # noqa: B006
                left[0] -= 1
                if not left[0]:
                    os._exit(9)
                return answer(arrays)

            begin((part, 3), "parts", [dying]).predict()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        capsys.readouterr()
        written = begin((part, 3), "parts").predict()
        said = capsys.readouterr().out
        assert "goes on with" in said
        assert ("layers are missing" in said) == (part != 2)
        assert bool(written) == (part == 2)
    assert stored(tmp_path / "parts" / "s1.zarr") == expected
    calls = []
    again = begin((1, 3), "parts", [lambda arrays: calls.append(1)]).predict()
    assert again
    assert not calls
    assert "is there already" in capsys.readouterr().out


def test_kill_9_in_every_later_stage_leaves_the_bytes_of_one_prediction(begin, tmp_path, monkeypatch) -> None:
    """Each try is killed after a few units of work: before one is marked as done, or after."""
    begin(probability=True).predict()
    expected = {name: stored(tmp_path / "out" / name) for name in ("s1.zarr", "s1_probability.zarr")}
    run, kills = Scroll._run, 0

    def dying(self: Scroll, stage: Any) -> None:
        def work(number: int) -> None:
            units.append(number)
            if len(units) == 3 and kills % 2:
                os.kill(os.getpid(), signal.SIGKILL)  # nothing of this unit is done
            stage.work(number)
            if len(units) == 3:
                os.kill(os.getpid(), signal.SIGKILL)  # done, but not marked

        run(self, replace(stage, work=work))

    while kills < 100:
        units: list[int] = []
        pid = os.fork()
        if pid == 0:
            monkeypatch.setattr(Scroll, "_run", dying)
            begin(out="killed", probability=True).predict()
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGKILL:
            break
        kills += 1
    assert kills > 8
    assert {name: stored(tmp_path / "killed" / name) for name in expected} == expected
    assert not (tmp_path / "killed" / "s1.work.zarr").exists()


def test_a_part_that_ends_after_another_has_done_the_rest_ends_well(begin, tmp_path, monkeypatch, capsys) -> None:
    begin((1, 2)).predict()
    late, run, stages = begin((2, 2)), Scroll._run, []

    def overtaken(self: Scroll, stage: Any) -> None:
        stages.append(stage.name)
        if len(stages) == 3:
            monkeypatch.setattr(Scroll, "_run", run)
            assert begin((1, 2)).predict()
        run(self, stage)

    monkeypatch.setattr(Scroll, "_run", overtaken)
    assert late.predict()
    assert "another part has done the rest" in capsys.readouterr().out
    assert not (tmp_path / "out" / "s1.work.zarr").exists()


def test_the_scan_without_data_and_outside_the_mask_is_not_computed(begin, volume, tmp_path) -> None:
    scan = zarr.open_array(volume)
    scan[:, :, 30:] = 0
    where = np.zeros(tuple(-(-n // 2) for n in SHAPE), np.uint8)
    where[3:9, 4:9, 2:8] = 1
    zarr.create_array(tmp_path / "mask.zarr", data=where, chunks=(8, 8, 8))
    calls: list[int] = []

    def counted(arrays: Arrays) -> Arrays:
        calls.append(len(arrays["image"]))
        assert all(image.any() for image in arrays["image"])
        return answer(arrays)

    begin(networks=[counted], out="all", probability=True).predict()
    everywhere = sum(calls)
    calls.clear()
    begin(networks=[counted], probability=True, mask=str(tmp_path / "mask.zarr")).predict()
    assert 0 < sum(calls) < everywhere / 2
    inside = where.repeat(2, 0).repeat(2, 1).repeat(2, 2)[: SHAPE[0], : SHAPE[1], : SHAPE[2]] > 0
    full = zarr.open_group(tmp_path / "all" / "s1_probability.zarr", mode="r")["0"][...]
    found = zarr.open_group(tmp_path / "out" / "s1_probability.zarr", mode="r")["0"][...]
    assert np.array_equal(found, np.where(inside, full, 0))
    assert full[:, :, :30].all()
    assert not full[:, :, 46:].any()


@pytest.mark.parametrize("ngff", ["0.4", "0.5"])
def test_the_image_has_levels_that_halve_it(begin, tmp_path, ngff) -> None:
    begin(ngff=ngff, probability=True).predict()
    for name in ("s1", "s1_probability"):
        group = zarr.open_group(tmp_path / "out" / f"{name}.zarr", mode="r")
        assert group.metadata.zarr_format == {"0.4": 2, "0.5": 3}[ngff]
        about = group.attrs.asdict()
        (scales,) = about["multiscales"] if ngff == "0.4" else about["ome"]["multiscales"]
        assert (scales if ngff == "0.4" else about["ome"])["version"] == ngff
        assert [axis["name"] for axis in scales["axes"]] == ["z", "y", "x"]
        assert [each["path"] for each in scales["datasets"]] == ["0", "1", "2", "3"]
        moves = [each["coordinateTransformations"] for each in scales["datasets"]]
        assert moves[2] == [{"type": "scale", "scale": [4.0] * 3}, {"type": "translation", "translation": [1.5] * 3}]
        for level in range(3):
            fine, coarse = group[str(level)][...], group[str(level + 1)][...]
            even = np.pad(fine, [(0, n % 2) for n in fine.shape], mode="edge").astype(float)
            cubes = even.reshape(*(m for n in even.shape for m in (n // 2, 2)))
            expected = cubes.max((1, 3, 5)) if name == "s1" else np.floor(cubes.mean((1, 3, 5)) + 0.5)
            assert np.array_equal(coarse, expected)


def test_views_and_networks_are_averaged(begin, config, tmp_path) -> None:
    from runner_vesuvius.project import Vesuvius

    views = [view for view in Vesuvius(config).combining().views if view.name in ("mirror-z", "turn-90")]
    point = lambda arrays: {"prediction": arrays["image"][:, None].astype(np.float32) / 255}  # noqa: E731
    half = lambda arrays: {"prediction": point(arrays)["prediction"] / 2}  # noqa: E731
    begin(networks=[point, half], views=views, probability=True).predict()
    found = zarr.open_group(tmp_path / "out" / "s1_probability.zarr", mode="r")["0"][...]
    assert np.abs(found - 0.75 * noise()).max() <= 1


def _table(pieces: list[Pieces], blocks: Blocks, number: int) -> np.ndarray:
    return pieces[number].table(blocks, number)


def test_a_volume_is_scaled_by_all_its_voxels_and_only_once(begin, config, tmp_path) -> None:
    from runner_vesuvius.statistics import intensities, scale

    scales = []

    def seen(arrays: Arrays) -> Arrays:
        scales.extend(arrays["scale"].tolist())
        return answer(arrays)

    for part in ((1, 2), (2, 2)):
        begun = begin(part, networks=[seen])
        begun._scale = scale if part[0] == 1 else lambda counts: pytest.fail("the first part found it")
        begun.predict()
    assert np.array_equal(np.unique(scales, axis=0), [scale(intensities(noise()))])


def test_pieces_of_a_random_volume_are_those_of_the_whole() -> None:
    """Components that run through blocks, touch at corners only, or end at a block's face."""
    from runner_vesuvius.components import label6, label26, sizes

    for seed, full in ((0, True), (1, False), (2, True)):
        mask = np.random.default_rng(seed).random((20, 17, 9)) < (0.12 if full else 0.4)
        marks = mask & (np.random.default_rng(seed + 9).random(mask.shape) < 0.02)
        blocks = Blocks(mask.shape, 8)
        pieces = [
            Pieces.of(mask[blocks.wider(n, 0, 1)], marks[blocks.wider(n, 0, 1)], blocks, n, full)
            for n in range(len(blocks))
        ]
        wholes = blockwise.joined(partial(_table, pieces, blocks), blocks)
        found = np.zeros(mask.shape, bool)
        for n, piece in enumerate(pieces):
            region = blocks.region(n)
            own = tuple(slice(0, part.stop - part.start) for part in region)
            found[region] = piece.keep(*wholes(n), lambda size, marked: (size >= 4) & (size < 30) | marked)[own]
        labels, count = (label26 if full else label6)(mask)
        size, marked = sizes(labels, count), np.zeros(count + 1, bool)
        marked[labels[marks]] = True
        keep = (size >= 4) & (size < 30) | marked
        keep[0] = False
        assert np.array_equal(found, keep[labels])


def test_what_was_begun_otherwise_is_refused_by_name(begin, config, tmp_path) -> None:
    with pytest.raises(BadInput, match="at most 3 parts"):
        begin((4, 4)).predict()
    assert not list(tmp_path.rglob("s1.work.zarr")), "nothing is begun"
    begin((1, 2)).predict()
    config.predict.threshold = 0.6
    with pytest.raises(BadInput, match=r"s1\.work\.zarr was begun otherwise: predict\.threshold was 0\.55, now 0\.6"):
        begin((2, 2)).predict()
    config.predict.threshold = 0.55
    begin((2, 2)).predict()
    config.predict.min_size = 61
    with pytest.raises(BadInput, match=r"s1\.zarr was begun otherwise: predict\.min_size was 60, now 61"):
        begin().predict()


@pytest.mark.parametrize("whole", [False, True])
def test_another_volume_or_network_of_the_same_name_is_other_work(begin, config, volume, tmp_path, whole) -> None:
    """Of two scrolls A/0 and B/0 of one shape, and of fold-1 of two experiments, neither goes on with the other."""
    begin((1, 1) if whole else (1, 2)).predict()
    other = shutil.copytree(volume, tmp_path / "other" / volume.name)
    with pytest.raises(BadInput, match=r"begun otherwise: volume was /.*in/s1\.zarr, now /.*other/s1\.zarr\. Give"):
        begin((2, 2), place=other).predict()
    with pytest.raises(BadInput, match=r"otherwise: networks was run/step-1 \(a1\), now run/step-1 \(b2\)\. Give"):
        begin((2, 2), named="run/step-1 (b2)").predict()
    config.data.normalise, config.data.intensities = "fixed", (0.0, 255.0, 90.0, 30.0)
    with pytest.raises(BadInput, match=r"normalisation was set, now fixed 0\.0 255\.0 90\.0 30\.0\. Give"):
        begin((2, 2)).predict()


def test_bad_input_is_named(begin, config, volume, tmp_path) -> None:
    with pytest.raises(BadInput, match=r"missing\.zarr: there is no zarr array or group"):
        begin(place=tmp_path / "missing.zarr")
    (picture := tmp_path / "s1.tif").write_bytes(b"II*")
    with pytest.raises(BadInput, match=r"s1\.tif: only zarr volumes are predicted chunk by chunk"):
        begin(place=picture)
    zarr.create_array(tmp_path / "mask.zarr", data=np.ones((30, 7, 7), np.uint8), chunks=(30, 7, 7))
    with pytest.raises(BadInput, match=r"mask\.zarr: a mask of 30 × 7 × 7 voxels for a volume of 40 × 37 × 50"):
        begin(mask=str(tmp_path / "mask.zarr"))
    for memory in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(BadInput, match="--memory-gb is"):
            begin(memory_gb=memory)
    zarr.create_array(tmp_path / "float.zarr", data=np.ones((7, 7, 7), np.float32), chunks=(7, 7, 7))
    with pytest.raises(BadInput, match=r"float\.zarr: voxels of type float32"):
        begin(place=tmp_path / "float.zarr")
    with pytest.raises(BadInput, match=r"one chunk takes .* GB, more than an eighth of --memory-gb"):
        begin(memory_gb=1e-6)
    config.crop.mode = "centre"
    with pytest.raises(BadInput, match=r"crop\.mode centre"):
        begin()


@pytest.mark.parametrize("version", [2, 3])
def test_a_damaged_chunk_is_named(begin, tmp_path, version) -> None:
    place = tmp_path / "torn.zarr"
    zarr.create_array(place, data=noise(), chunks=(16, 16, 16), zarr_format=version)
    chunk = place / ("1.1.2" if version == 2 else "c/1/1/2")
    content = chunk.read_bytes()
    chunk.write_bytes(content[: len(content) // 2])
    with pytest.raises(BadInput, match=f"^{re.escape(str(chunk))}: cannot be read"):
        begin(place=place).predict()
    chunk.write_bytes(content)
    begin(place=place).predict()
    assert (tmp_path / "out" / "s1.zarr").is_dir()


def test_too_little_memory_is_refused_and_more_makes_larger_columns(monkeypatch) -> None:
    monkeypatch.undo()
    with pytest.raises(BadInput, match=r"--memory-gb is 0\.01, and windows of 72 × 136 × 136"):
        sweep.side_for((9000, 8000, 8000), (72, 136, 136), (128, 128, 128), False, 0.01e9)
    sides = [sweep.side_for((9000, 8000, 7000), (192, 192, 192), (128,) * 3, True, gb * 1e9) for gb in (2, 4, 8)]
    assert sides == sorted(sides)
    assert sides[-1][0] > sides[0][0]
    assert sweep.side_for((500, 500, 400), (32, 32, 32), (64, 64, 64), False, 4e9) == (512, 512)


@pytest.fixture
def server(serve: Callable[[Path], str], tmp_path: Path) -> str:
    return serve(tmp_path / "in")


def test_a_volume_on_a_web_server_is_read_there(begin, server, volume, tmp_path) -> None:
    pytest.importorskip("obstore")
    begin().predict()
    begin(place=Url(f"{server}/s1.zarr"), out="web").predict()
    web, here = (stored(tmp_path / out / "s1.zarr") for out in ("web", "out"))
    about = json.loads(web.pop("zarr.json"))["attributes"]["runner"]
    assert about["volume"] == f"{server}/s1.zarr"
    assert json.loads(here.pop("zarr.json"))["attributes"]["runner"] == {**about, "volume": str(volume.resolve())}
    assert web == here
    with pytest.raises(BadInput, match=r"none\.zarr: "):
        begin(place=Url(f"{server}/none.zarr"))


def test_faults_are_counted_in_whole_volumes_only(begin, config) -> None:
    config.predict.mend_faults = 0.7
    with pytest.raises(BadInput, match=r"predict\.mend_faults needs the whole volume at once"):
        begin()


@pytest.mark.parametrize(
    "option", [{"mask": "mask.zarr"}, {"store": "s3://mine/there"}, {"ngff": "0.5"}, {"chunked": True}]
)
def test_no_option_of_chunks_is_ignored_for_a_small_volume(
    project: Vesuvius, volume: Path, option: dict[str, Any]
) -> None:
    in_blocks = project.combining().in_blocks
    record = Record("s1", "s1", {"image": volume})
    assert not in_blocks.wanted(record)
    project.predict_options = ScrollPredictOptions(**option)
    assert in_blocks.wanted(record)
