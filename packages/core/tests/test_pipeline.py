"""record → decode → crop → prepare."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
from runner_core import BadInput, Box, DataSet, Decoded, Record, RunConfig
from runner_core.data.crop import CentreCrop, ForegroundCrop, NoCrop
from runner_core.data.pipeline import CroppedRecord, RecordPipeline

sys.path.insert(0, str(Path(__file__).parent / "data_toy"))
from rows_toy import RowsToy, write_volumes


@pytest.fixture
def record(tmp_path):
    write_volumes(tmp_path, [6], side=10)
    return Record("a0", "a", {"image": tmp_path / "a0.npy"})


def test_arrays_are_cropped_prepared_and_the_box_leads_back(record):
    pipeline = RecordPipeline(RowsToy(RunConfig()), CentreCrop((6, 4, 4)))
    volume = np.load(record.files["image"])
    prepared = pipeline(record)
    assert np.array_equal(prepared.arrays["image"], volume[:, 3:7, 3:7])
    assert prepared.arrays["image"].flags.c_contiguous
    assert prepared.meta["key"] == "a0"
    box = Box(**{k: tuple(v) for k, v in prepared.meta["box"].items()})
    restored = box.restore(prepared.arrays["image"], fill=7)
    assert restored.shape == volume.shape
    assert np.array_equal(box.crop(restored), box.crop(volume))
    assert (restored[:, :3] == 7).all()


class Counting(RowsToy):
    """Counts the records that it decodes, and says which files they have."""

    dataset = DataSet(labels=("mask", "mask header"))

    def __init__(self) -> None:
        super().__init__(RunConfig())
        self.decoded = []

    def decode(self, record):
        self.decoded.append([*record.files])
        return super().decode(record)


def test_predictions_share_one_decoded_and_cropped_record(record):
    project = Counting()
    cropped = CroppedRecord(RecordPipeline(project, CentreCrop((6, 4, 4))), record)
    assert (cropped.record.key, project.decoded) == ("a0", [])
    assert cropped.decoded.arrays["image"].shape == (6, 4, 4)
    assert cropped.box.shape == (6, 10, 10)
    assert cropped.prepared["image"].flags.c_contiguous
    assert cropped.prepared is cropped.prepared
    assert project.decoded == [["image"]]


def test_a_prediction_sees_no_label_and_the_record_stays_what_it_is(record):
    @dataclass(frozen=True)
    class Field(Record):
        stains: tuple[str, ...] = ()

    files = {**record.files, "mask": Path("m"), "mask header": Path("h"), "image header": Path("i")}
    field = Field("a0", "a", files, "test", stains=("dna",))
    cropped = CroppedRecord(RecordPipeline(Counting(), NoCrop()), field)
    assert cropped.record == Field("a0", "a", record.files | {"image header": Path("i")}, "test", ("dna",))
    assert [*field.files] == ["image", "mask", "mask header", "image header"]


def test_a_prediction_sees_no_value_that_is_a_label(record):
    values = {"mask": "round", "magnification": 20.0}
    whole = replace(record, values=values)
    cropped = CroppedRecord(RecordPipeline(Counting(), NoCrop()), whole)
    assert cropped.record.values == {"magnification": 20.0}
    assert whole.values == values


def test_pickled_pipeline_does_the_same(record):
    pipeline = RecordPipeline(RowsToy(RunConfig()), NoCrop())
    again = ForkingPickler.loads(ForkingPickler.dumps(pipeline))
    assert again.settings == pipeline.settings
    assert np.array_equal(again(record).arrays["mask"], pipeline(record).arrays["mask"])


def test_settings_change_with_everything_that_changes_the_arrays():
    class Newer(RowsToy):
        dataset = DataSet(prepare_version=2)

    pipelines = [
        RecordPipeline(RowsToy(RunConfig()), NoCrop()),
        RecordPipeline(RowsToy(RunConfig(), dtype="float16"), NoCrop()),
        RecordPipeline(RowsToy(RunConfig()), ForegroundCrop()),
        RecordPipeline(Newer(RunConfig()), NoCrop()),
    ]
    assert len({repr(p.settings) for p in pipelines}) == 4


def test_faults_of_a_project_are_named(record):
    class NoGuide(RowsToy):
        def decode(self, record):
            return Decoded({"image": np.zeros((3, 3))}, (1.0, 1.0), "scan")

    class OtherGrid(RowsToy):
        def decode(self, record):
            return Decoded({"image": np.zeros((3, 3)), "mask": np.zeros((3, 4))}, (1.0, 1.0), "image")

    class Objects(RowsToy):
        def prepare(self, decoded):
            return {"image": np.array([{}])}

    for project, message in [
        (NoGuide, "a0: decode.. names 'scan' as guide"),
        (OtherGrid, r"a0: array 'mask' has shape \(3, 4\)"),
        (Objects, "a0: prepare.. returned 'image' with dtype object"),
    ]:
        with pytest.raises(BadInput, match=message):
            RecordPipeline(project(RunConfig()), NoCrop())(record)
