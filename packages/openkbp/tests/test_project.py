"""The project turns settings, batches and predictions into what training needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from runner_core import BadInput, Precision, Progress
from runner_core.testing import cropped
from runner_openkbp.config import PRESETS, OpenKBPConfig, demo
from runner_openkbp.files import find_records, read_patient
from runner_openkbp.metrics import dose_error
from runner_openkbp.project import OpenKBP
from runner_openkbp.rois import POSSIBLE, unpack
from runner_openkbp.whole import mirrored, upsample

FLOAT32 = Precision("float32")
LAST = Progress(1, 1, 0)


def project(**changes: Any) -> OpenKBP:
    """At 32³ with two features; `section__setting=value` changes a setting."""
    config = demo()
    config.data.size, config.model.features = 32, 2
    for name, value in changes.items():
        section, setting = name.split("__")
        setattr(getattr(config, section), setting, value)
    return OpenKBP(config)


@pytest.fixture
def batch(write_boxes: Callable[..., Path]) -> dict[str, np.ndarray]:
    """Two patients as the cache gives them, on 32³."""
    own = project()
    root = write_boxes("pt_1").parent
    write_boxes("pt_2", without=("LeftParotid",), boxes={"PTV63": (60, 80, 50, 60, 50, 70)})
    rows = [own.prepare(own.decode(record)) for record in own.records(root)]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]} | {"record": np.arange(2)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data__ct_window": (100.0, 0.0)}, "data.ct_window"),
        ({"data__size": 100}, "128, 64 or 32"),
        ({"model__features": 0}, "model.features"),
        ({"model__dropout": 1.0}, "model.dropout"),
        ({"model__momentum": 1.0}, "model.momentum"),
        ({"model__start": -1.0}, "model.start"),
        ({"loss__mae": 0.0}, "nothing would be learned"),
        ({"loss__regions": -1.0}, "loss.regions"),
        ({"loss__dvh": -1.0}, "loss.dvh"),
        ({"augment__rotate": 200.0}, "augment.rotate"),
        ({"augment__scale": 1.5}, "augment.scale"),
        ({"augment__shift": -0.1}, "augment.shift"),
        ({"crop__mode": "body"}, "crop.mode"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        project(**changes)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_sound(name: str) -> None:
    config = OpenKBP(PRESETS[name]()).config
    assert isinstance(config, OpenKBPConfig)
    assert config.checkpoint.keep >= 3


def test_default_is_what_its_users_had() -> None:
    config = PRESETS["default"]()
    assert (config.data.size, config.model.features, config.train.batch_size) == (128, 64, 2)
    assert (config.train.epochs, config.checkpoint.every, config.checkpoint.keep) == (100, 10, 5)
    assert config.train.learning_rate == 2e-4
    optimizer = OpenKBP(config).learning().optimizer(None)
    assert (optimizer.beta_1, optimizer.beta_2) == (0.5, 0.999)
    assert optimizer.weight_decay is None


def test_published_is_default_with_a_constant_rate() -> None:
    from runner_core import flat

    default, published = flat(PRESETS["default"]()), flat(PRESETS["published"]())
    assert {name: value for name, value in published.items() if value != default[name]} == {
        "train.schedule": "constant", "train.warmup": 0.0
    }  # fmt: skip


def test_weight_decay_is_what_the_setting_says() -> None:
    weight = keras.Variable(np.full((3,), 2.0, np.float32))
    optimizer = project(train__weight_decay=0.1, train__learning_rate=0.5).learning().optimizer(None)
    optimizer.apply([ops.zeros(3)], [weight])  # without a gradient, decay is all that happens
    np.testing.assert_allclose(ops.convert_to_numpy(weight.value), 2.0 * (1 - 0.5 * 0.1), rtol=1e-6)


def test_dose_outside_the_mask_counts_in_the_plain_metric_too(batch: dict[str, np.ndarray]) -> None:
    own = project()
    decoded = {n: ops.convert_to_numpy(t) for n, t in own.on_device(batch, {}, None).items() if n != "record"}
    assert not decoded["mask"][0, 0, 0, 0]
    decoded["dose"] = decoded["dose"].copy()
    decoded["dose"][0, 0, 0, 0] = 50.0  # which no prediction reaches
    guess = np.full_like(decoded["dose"], 12.0)
    expected = dose_error(ops.convert_to_tensor(guess), decoded)
    assert own.checks().plain_metrics(guess, decoded)["dose_error_gy"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("cascade", [False, True])
def test_a_step(batch: dict[str, np.ndarray], cascade: bool) -> None:
    """Loss and terms are finite numbers in Gy, the prediction float32 Gy on the network's grid."""
    own = project(model__cascade=cascade, loss__dvh=0.1)
    model = own.model(FLOAT32)
    decoded = own.on_device(batch, {}, keras.random.SeedGenerator(0))
    step = own.step(model, decoded, LAST)
    assert list(step.terms) == ["mae", *(["mae_coarse"] if cascade else []), "dvh"]
    assert all(np.isfinite(float(value)) for value in (step.loss, *step.terms.values()))
    assert step.prediction.shape == (2, 32, 32, 32, 1)
    np.testing.assert_array_equal(own.infer(model, decoded)["prediction"], step.prediction)
    assert float(own.metrics()[0]._function(step.prediction, decoded)) > 0


def test_validation_draws_nothing(batch: dict[str, np.ndarray]) -> None:
    own = project(augment__rotate=30.0)
    first, again = (own.on_device(batch, {}, None) for _ in range(2))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])


def test_prediction_is_the_patients(write_boxes: Callable[..., Path]) -> None:
    """On the patient's grid, 0 where no dose can be, and the file with the dose is not read."""
    folder = write_boxes("pt_1")
    record = find_records(folder.parent)[0]
    masks = read_patient(record).masks
    (folder / "dose.csv").unlink()
    own = project()
    constant = {"prediction": np.full((1, 32, 32, 32, 1), 35.0, np.float32)}
    dose = own.predict(cropped(own, record), lambda arrays: constant)
    assert dose.dtype == np.float32
    np.testing.assert_array_equal(dose, np.where(unpack(masks, POSSIBLE), np.float32(35), 0))


def test_mirrored_patients_are_mirrored_back(write_boxes: Callable[..., Path]) -> None:
    """A network that gives the right parotid 40 Gy and all else its CT number: seen both ways, each parotid gets half
    of that, where it is, and the rest stays."""
    record = find_records(write_boxes("pt_1").parent)[0]
    shapes = []

    def infer(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        shapes.append({name: array.shape for name, array in arrays.items()})
        right = unpack(arrays["masks"][:, 0], "RightParotid")
        return {"prediction": (40.0 * right + arrays["ct"][:, 0] / 100).astype(np.float32)[..., None]}

    projects = [project(predict__views=views) for views in ((), ("left-right",))]
    doses = [own.predict(cropped(own, record), infer) for own in projects]
    assert shapes == [dict.fromkeys(("ct", "masks"), (1, 1, 32, 32, 32))] * 3
    stored = project().prepare(project().decode(record))
    possible = unpack(read_patient(record).masks, POSSIBLE)
    right, left = (unpack(stored["masks"][0], f"{side}Parotid") for side in ("Right", "Left"))
    for dose, parotids in zip(doses, (40 * right, 20 * right + 20 * left), strict=True):
        np.testing.assert_allclose(dose, upsample(parotids + stored["ct"][0] / 100, 128) * possible, rtol=1e-5)


def test_mirroring_before_decoding_is_mirroring_after(batch: dict[str, np.ndarray]) -> None:
    """Channel by channel, with the parotids' exchanged."""
    own = project()
    stored = {name: batch[name] for name in ("ct", "masks")}
    straight, turned = own.on_device(stored, {}, None), own.on_device(mirrored(stored), {}, None)
    swapped = [0, 1, 2, 4, 3, *range(5, 11)]
    np.testing.assert_array_equal(
        ops.convert_to_numpy(turned["image"]), ops.convert_to_numpy(straight["image"])[:, :, ::-1][..., swapped]
    )
    np.testing.assert_array_equal(turned["mask"], ops.convert_to_numpy(straight["mask"])[:, :, ::-1])
