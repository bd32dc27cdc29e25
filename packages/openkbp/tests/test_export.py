"""The export is enough to predict with: nothing of runner is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core import Precision
from runner_core.testing import cropped
from runner_openkbp.config import demo
from runner_openkbp.files import find_records
from runner_openkbp.phantom import write_patient
from runner_openkbp.project import OpenKBP

WITHOUT_RUNNER = """
import json, sys
for name in ("runner_core", "runner_openkbp"):
    sys.modules[name] = None  # importing it fails
import keras
import numpy as np
from pathlib import Path
from scipy import ndimage

model, told = keras.models.load_model("export/model.keras"), json.loads(Path("export/model.json").read_text("utf-8"))
grid, given, folder = told["patient"]["grid"], told["input"], Path("pt_1")
factor, size = given["pooling"]["factor"], given["shape"][1]

def volume(file, values):
    out = np.zeros(np.prod(grid))
    if (folder / file).exists():
        lines = np.genfromtxt(folder / file, delimiter=",", skip_header=1)
        out[lines[:, 0].astype(int)] = lines[:, 1] if values else 1
    return out.reshape(grid)

def block_means(array):
    return array.reshape(size, factor, size, factor, size, factor).mean((1, 3, 5))

ct, *regions = given["channels"]
image = np.empty((1, *given["shape"][1:]), given["dtype"])
low, high = given["ct_window"]
stored = np.rint(block_means(volume(f"{ct}.csv", True)))
image[0, ..., 0] = np.clip(stored - given["ct_offset"], low, high) / given["ct_scale"]
for place, region in enumerate(regions, 1):
    least = 1e-9 if region == "possible_dose_mask" else 0.5
    image[0, ..., place] = block_means(volume(f"{region}.csv", False)) >= least

def box(mask):
    unit = given["box"]["multiple"]
    for places, size in zip(np.nonzero(mask), mask.shape):
        first, extent = places.min(), np.ptp(places) + 1
        side = -(-extent // unit) * unit
        start = min(max(0, first - (side - extent) // 2), size - side)
        yield slice(start, start + side)

def dose_of(image):
    if "box" in given:
        inner = (slice(None), *box(image[0, ..., given["channels"].index("possible_dose_mask")]))
        out = np.zeros((*image.shape[:4], 1))
        out[inner] = model(image[inner])
        return out
    doses = model(image)
    return np.asarray(doses[-1] if told["output"]["count"] > 1 else doses)

mirrored = told["mirrored_average"]
turned = np.flip(image, mirrored["axis"]).copy()
first, second = mirrored["exchange_channels"]
turned[..., [first, second]] = turned[..., [second, first]]
straight = dose_of(image)
both = (straight + np.flip(dose_of(turned), mirrored["axis"])) / 2
possible = volume("possible_dose_mask.csv", False)
for name, dose in (("straight", straight), ("both", both)):
    fine = ndimage.zoom(dose[0, ..., 0], told["upsampling"]["factor"], order=1, mode="nearest", grid_mode=True)
    np.save(f"{name}.npy", np.where(possible, fine, 0))
np.save("network.npy", straight)
"""


@pytest.mark.parametrize(
    "model",
    [{}, {"cascade": True}, {"network": "residual", "widths": (3, 4), "refine": 2}],
    ids=["challenge", "cascade", "residual"],
)
def test_the_description_suffices(tmp_path: Path, model: dict[str, Any]) -> None:
    write_patient(tmp_path / "pt_1", np.random.default_rng(3))
    (record,) = find_records(tmp_path / "pt_1")
    config = demo()
    config.data.size, config.model.features = 32, 2
    for name, value in model.items():
        setattr(config.model, name, value)
    project = OpenKBP(config)
    network = project.model(Precision("float32"))
    outputs = []

    def infer(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        decoded = project.on_device(arrays, {}, None)
        outputs.append(np.asarray(project.infer(network, decoded)["prediction"]))
        return {"prediction": outputs[-1]}

    (tmp_path / "export").mkdir()
    written = project.export(network, tmp_path / "export")
    assert [path.name for path in written] == ["model.keras", "model.json"]
    assert written[1].stat().st_size < 20_000
    assert json.loads(written[1].read_text("utf-8"))["mirrored_average"]["used"]
    doses = {}
    for name, views in (("both", ("left-right",)), ("straight", ())):
        config.predict.views = views
        doses[name] = project.predict(cropped(project, record), infer)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RUNNER], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if project.config.model.network == "challenge":  # else runner has the box alone
        np.testing.assert_allclose(np.load(tmp_path / "network.npy"), outputs[-1], rtol=1e-4, atol=1e-4)
    for name, dose in doses.items():
        assert dose.max() > 0
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), dose, rtol=1e-3, atol=1e-3)
