"""Exports of the real projects: their script writes what `predict` writes, where runner cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nibabel
import numpy as np
import pytest
import runner_core
import tifffile
from runner_core import BadInput, Unhealthy

pytest.importorskip("runner_export")

_BLOCKED = (
    "runner_core",
    "runner_export",
    "runner_brainunet",
    "runner_dinocell",
    "runner_openkbp",
    "keras",
    "tensorflow",
    "runner_ssmunet",
    "runner_vesuvius",
    "torch",
    "scipy",
    "nibabel",
    "skimage",
)
FLOAT32 = {"precision.mode": "float32"}
"""Exports compute in it, and projects that gain do not on a CPU with AMX."""


def alone(folder: Path, *words: str | Path) -> str:
    """Run an export's predict.py where nothing but NumPy and the network's runtime can be imported."""
    block = folder.parent / "block"
    block.mkdir(exist_ok=True)
    lines = "".join(f"sys.modules[{name!r}] = None\n" for name in _BLOCKED)
    (block / "sitecustomize.py").write_text(f"import sys\n{lines}")
    environment = {**os.environ, "PYTHONPATH": str(block), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(folder / "predict.py"), *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def about(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "export.json").read_text())
    return found


def small_head(folder: Path, dtype: type, axes: str) -> Path:
    """A bright head with a dark rim around its brain, 2 mm, in the given axes, and its mask; the folder of both."""
    folder.mkdir()
    x, y, z = np.meshgrid(*(np.arange(n) - n / 2 for n in (44, 52, 40)), indexing="ij")
    radius = np.sqrt((x / 17) ** 2 + (y / 21) ** 2 + (z / 15) ** 2)
    rng = np.random.default_rng(3)
    voxels = np.select([radius < 0.75, radius < 0.9, radius < 1.1], [700, 150, 900], 20) + rng.normal(0, 25, x.shape)
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    affine[:3, 3] = (-44, -52, -40)
    turn = nibabel.orientations.axcodes2ornt(axes)
    for name, values in (
        ("s1_T1w", voxels.clip(0).astype(dtype)),
        ("s1_T1w_brainmask", (radius < 0.8).astype(np.uint8)),
    ):
        image = nibabel.as_closest_canonical(nibabel.Nifti1Image(values, affine)).as_reoriented(
            nibabel.orientations.ornt_transform(nibabel.orientations.axcodes2ornt("RAS"), turn)
        )
        nibabel.save(image, folder / f"{name}.nii.gz")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {},
    {"views": ("none",), "margin": 3.0, "fill_holes": False},
])  # fmt: skip
def test_brainunets_script_finds_the_same_voxels(settings: dict[str, Any], tmp_path: Path) -> None:
    data, run = small_head(tmp_path / "data", np.int16, "PIL"), runner_core.open("builtin", "brainunet")
    given = {f"predict.{name}": value for name, value in settings.items()}
    folder = tmp_path / "away"
    run.export(folder, to="onnx", data=data, **given)
    (scan,) = data.glob("*_T1w.nii.gz")
    alone(folder, scan, "--out", tmp_path / "masks")
    mask: Any = nibabel.load(tmp_path / "masks" / "s1_T1w_brainmask.nii.gz")
    expected = run.predict(scan, **given, **FLOAT32)
    assert expected.array.sum() > 1000
    np.testing.assert_array_equal(np.asarray(mask.dataobj), expected.array)
    np.testing.assert_array_equal(mask.affine, nibabel.load(scan).affine)
    written = about(folder)
    assert written["parity"]["records"] == 1
    (image,) = written["networks"][0]["inputs"]
    assert image["multiple"] == [1, None, 8, 8]


def sheets(folder: Path) -> Path:
    """Two volumes of each of two scrolls, in the challenge's layout: two bright sheets each; the folder of all."""
    rng = np.random.default_rng(0)
    z = np.indices((20, 22, 24))[0]
    label = ((abs(z - 5) <= 1) | (abs(z - 13) <= 1)).astype(np.uint8)
    for key in ("1", "2", "3", "4"):
        image = (60 + 120 * label + rng.normal(0, 8, label.shape)).clip(0, 255).astype(np.uint8)
        for place, array in (("train_images", image), ("train_labels", label)):
            (folder / place).mkdir(parents=True, exist_ok=True)
            tifffile.imwrite(folder / place / f"{key}.tif", array)
    (folder / "train.csv").write_text("id,scroll_id\n1,A\n2,A\n3,B\n4,B\n")
    return folder


@pytest.mark.slow
def test_vesuviuss_script_finds_the_same_voxels(tmp_path: Path) -> None:
    """The whole script: the same mask, but for voxels that lie within a step of 1/255 of the threshold."""
    from runner_vesuvius.postprocess import lowest

    data = sheets(tmp_path / "data")
    settings: dict[str, Any] = {"data.patch": (16, 16, 16), "data.patches": 2, "model.base": 2, "train.epochs": 1}
    settings |= {"model.multipliers": (1, 2), "loss.topology_crop": 12, "health.mode": "off", "train.workers": 0}
    run = runner_core.train("vesuvius", data=data, run_dir=tmp_path / "run", preset="demo", **settings)
    scan, volume = data / "train_images" / "3.tif", tmp_path / "3.npy"
    np.save(volume, tifffile.imread(scan))
    given: dict[str, Any] = {"predict.min_size": 0, "predict.fill_holes": 0, "predict.views": ("mirror-y", "turn-90")}
    soft = run.predict(scan, **given, **FLOAT32).prediction.probability
    threshold = float(np.median(soft)) / 255
    given |= {"predict.threshold": threshold, "predict.seed_threshold": threshold}
    expected = run.predict(scan, **given, **FLOAT32).prediction.mask
    run.export(tmp_path / "away", to="onnx", data=data, **given)
    alone(tmp_path / "away", volume, "--out", tmp_path / "masks")
    found = np.load(tmp_path / "masks" / "3.npy")
    near = abs(soft.astype(int) - lowest(threshold)) <= 1
    assert 0.1 < expected.mean() < 0.9
    assert near.mean() < 0.9
    np.testing.assert_array_equal(found[~near], expected[~near])


def cores(folder: Path) -> Path:
    """Two cores of each of two patients, of two tissues that amide I and II tell apart; the folder of all."""
    rng, axis = np.random.default_rng(0), np.linspace(880, 1820, 95)
    folder.mkdir()
    row, column = np.indices((30, 26))
    inside = np.hypot(row - 14, column - 12) < 11
    for number in range(4):
        labels = np.where(inside, 1 + (column > 9 + number), 0)
        heights = np.stack([np.where(labels == 1, 0.9, 0.5), np.where(labels == 1, 0.3, 0.6)], -1) * inside[..., None]
        shapes = np.stack([np.exp(-(((axis - place) / 30) ** 2)) for place in (1655, 1545)])
        spectra = heights @ shapes + rng.normal(0, 0.03, (30, 26, 95))
        meta = json.dumps({"core_id": f"c{number}", "patient_id": f"p{number // 2}"})
        np.savez(folder / f"core_{number}.npz", X=spectra.astype(np.float32), wn=axis, y=labels, meta=meta)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {},
    {"data.step": 12.0, "data.normalise": "amide1", "predict.views": ("all",)},
])  # fmt: skip
def test_ssmunets_script_finds_the_same_pixels(settings: dict[str, Any], tmp_path: Path) -> None:
    """The whole script: the same classes, but for pixels whose two best probabilities are within rounding."""
    data = cores(tmp_path / "data")
    given: dict[str, Any] = {"model.filters": 3, "model.states": 2, "model.embed": 4, "model.base": 4, "data.patch": 16}
    given |= {"train.epochs": 2, "train.workers": 0, "health.mode": "off", "data.bin": 2, **settings}
    run = runner_core.train("ssmunet", data=data, run_dir=tmp_path / "run", preset="demo", **given)
    run.export(tmp_path / "away", to="onnx")
    alone(tmp_path / "away", data / "core_3.npz", "--out", tmp_path / "classes")
    expected = run.predict(data / "core_3.npz").prediction
    with np.load(tmp_path / "classes" / "core_3_classes.npz", allow_pickle=False) as found:
        soft, classes = found["probabilities"], found["classes"]
        assert found["class_names"].tolist() == ["class 1", "class 2"]
    assert 0.1 < expected.tissue.mean() < 0.9
    np.testing.assert_allclose(soft, expected.probabilities, atol=2e-3)
    first, second = np.sort(expected.probabilities.astype(np.float32), 0)[[-1, -2]]
    clear = (first - second > 2e-3) | ~expected.tissue
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(classes[clear], expected.classes[clear])


@pytest.mark.parametrize(
    "channels", ["stack", *(pytest.param(c, marks=pytest.mark.slow) for c in ("bag", "invariant", "tokens"))]
)
def test_dinocells_network_takes_any_number_of_windows(channels: Any, tmp_path: Path) -> None:
    """PyTorch wrote it for two windows alone, and ONNX not at all: a bound was a whole number, the other was not."""
    from runner_dinocell.config import demo
    from runner_dinocell.project import DinoCell
    from runner_export import session, write
    from runner_export.axes import multiples
    from runner_export.window import Graph, Window

    config = demo()
    config.model.prototypes = config.model.hidden = config.model.bottleneck = 16
    config.augment.global_size, config.model.channels = 32, channels
    rng = np.random.default_rng(0)
    example: dict[str, Any] = {
        "image": rng.integers(0, 4000, (5, 2, 49, 49)).astype(np.uint16),
        "levels": np.tile(np.array([100, 3000], np.float32), (5, 2, 1)),
        "grey": np.ones((5, 2), np.int32),
    }
    project: Any = DinoCell(config)
    project.statistics = {"channels": ("a", "b")}
    job: Any = SimpleNamespace(
        project=project, trained=SimpleNamespace(network=project.model(None).eval(), statistics={})
    )
    graph = Graph(job, tuple(example))
    window = Window(graph, example)
    graph.infer(window.small)
    described = write.write_onnx(window, multiples(graph, window.small), tmp_path / "model.onnx")
    infer = session.load_networks(tmp_path, [described], 1)
    assert described["inputs"][0]["shape"] == ["batch", 2, 49, 49]
    for count in (1, 2, 5):
        some = {name: array[:count] for name, array in example.items()}
        np.testing.assert_allclose(infer(some)["embedding"], graph.infer(some)["embedding"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"data.scale": "set", "model.channels": "bag", "predict.stride": 0.5}])
def test_dinocells_script_finds_the_same_embeddings(settings: dict[str, Any], tmp_path: Path) -> None:
    """The whole script: stacks and single channels, and with bag a field that lacks one."""
    from runner_dinocell import phantom

    data = tmp_path / "data"
    phantom.write_phantom(data, np.random.default_rng(0), phantom.PLATES[:2], (2, 4), 64)
    given: dict[str, Any] = {"augment.global_size": 32, "augment.local_size": 16, "data.window": 40, "train.epochs": 1}
    given |= {"model.prototypes": 64, "train.batch_size": 8, "train.workers": 0, "health.mode": "off", **settings}
    given |= {"train.steps_per_epoch": 2}
    run = runner_core.train("dinocell", data=data, run_dir=tmp_path / "run", preset="demo", **given)
    run.export(tmp_path / "away", to="onnx")
    _, cropped = next(run.network().each())
    image, names = cropped.decoded.arrays["image"], cropped.decoded.meta["channels"]
    np.save(tmp_path / "stack.npy", image)
    np.savez(tmp_path / "single.npz", **dict(zip(names, image, strict=True)))
    np.savez(tmp_path / "fewer.npz", **dict(zip(names[1:], image[1:], strict=True)))
    expected = run.network().project.predict(cropped, run.network().infer)
    out = tmp_path / "out"
    alone(tmp_path / "away", tmp_path / "stack.npy", tmp_path / "single.npz", "--out", out)
    for name in ("stack", "single"):
        with np.load(out / f"{name}_embeddings.npz", allow_pickle=False) as found:
            np.testing.assert_allclose(found["windows"], expected.windows, atol=1e-4)
            np.testing.assert_allclose(found["field"], expected.field, atol=1e-4)
            np.testing.assert_array_equal(found["corners"], expected.corners)
            assert found["channels"].tolist() == list(names)
    assert np.std(expected.windows, 0).max() > 1e-3
    words = [sys.executable, str(tmp_path / "away" / "predict.py"), str(tmp_path / "fewer.npz"), "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500, check=False)
    if "model.channels" not in settings:
        assert (done.returncode, f"no channel {names[0]!r}" in done.stderr) == (2, True)
        return
    assert done.returncode == 0
    lacking = run.predict(dict(zip(names[1:], image[1:], strict=True))).prediction
    with np.load(out / "fewer_embeddings.npz", allow_pickle=False) as found:
        np.testing.assert_allclose(found["windows"], lacking.windows, atol=1e-4)


def openkbps(kind: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    """What an export of a small network of openkbp gets, and the stored arrays of its one record."""
    from runner_openkbp.config import demo
    from runner_openkbp.project import OpenKBP

    config, rng = demo(), np.random.default_rng(0)
    config.data.size, config.model.features = 32, 2
    config.model.network, config.model.widths, config.model.refine = kind, (3, 4), 2
    project: Any = OpenKBP(config)
    network = project.model(None)
    for variable in network.variables:  # biases too, which begin at 0
        variable.assign(np.asarray(variable) + rng.normal(0, 0.05, variable.shape))
    arrays = {
        "ct": rng.integers(0, 2000, (1, 1, 32, 32, 32)).astype(np.int16),
        "masks": rng.integers(0, 2**11, (1, 1, 32, 32, 32)).astype(np.uint16),
    }

    def infer(given: Any) -> Any:
        found = project.infer(lambda x: network(x, training=False), project.on_device(given, {}, None))
        return {name: np.asarray(tensor) for name, tensor in found.items()}

    job = SimpleNamespace(
        project=SimpleNamespace(
            **{name: getattr(project, name) for name in ("name", "on_device", "infer", "standalone")},
            predict=lambda cropped, run: run(cropped),
        ),
        trained=SimpleNamespace(network=network, infer=infer, statistics={}),
        records=lambda: iter([(SimpleNamespace(key="a"), arrays)]),
        own=lambda: project.export(network, folder),
        checkpoint="step-1",
        source="validation records",
        folder=folder,
    )
    return job, arrays


@pytest.mark.parametrize("kind, steps", [("challenge", (1, None)), ("residual", (1, 4))])
def test_openkbps_network_leaves_as_openvino_and_is_compared_with_keras(
    kind: Any, steps: tuple[int, int | None], tmp_path: Path
) -> None:
    """OpenVINO computes what Keras does, and a weight that Keras changes afterwards shows up."""
    keras = pytest.importorskip("keras")
    pytest.importorskip("openvino")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another backend")
    from runner_export.keras_network import small_example, write_keras_openvino
    from runner_export.parity import compare
    from runner_export.session import load_networks

    job, arrays = openkbps(kind, tmp_path)
    network, infer = job.trained.network, job.trained.infer
    described, example = write_keras_openvino(job, tmp_path / "model.xml")
    axes = {name: ["batch", 1, *(f"{name}_{n} (4n)" if steps[1] else 32 for n in (2, 3, 4))] for name in arrays}
    for one in described["inputs"]:
        assert one["shape"] == axes[one["name"]]
        assert one["multiple"] == [1, None, *[steps[1]] * 3]
    found = load_networks(tmp_path, [described], 1)
    small = small_example(example, described)
    assert small["ct"].shape == (3, 1, *[12 if steps[1] else 32] * 3)
    parity = compare(job, infer, found, "openvino", [small])
    assert parity.largest < 1e-5 * parity.scale
    for wrong in (30, 31):
        with pytest.raises(
            ValueError, match=rf"the shape 1 × 1 × {wrong} × 32 × 32, and the network takes batch × 1 × "
        ):
            found({name: array[:, :, :wrong] for name, array in arrays.items()})
    several = {name: np.concatenate([array, array[..., ::-1], array]) for name, array in arrays.items()}
    np.testing.assert_allclose(found(several)["prediction"], infer(several)["prediction"], atol=1e-4)
    kernel = next(variable for variable in network.trainable_variables if len(variable.shape) == 5)
    kernel.assign(np.asarray(kernel) * 1.02)
    with pytest.raises(Unhealthy, match="computes something else"):
        compare(job, infer, found, "openvino")


def test_openkbp_refuses_formats_of_pytorch_before_it_imports_tensorflow(tmp_path: Path) -> None:
    pytest.importorskip("runner_openkbp")
    code = (
        "import sys; from runner_core.cli import main\n"
        "words = ['openkbp', 'export', 'builtin', '--out', 'out', '--to']\n"
        "codes = [main([*words, name]) for name in ('onnx', 'torch-export', 'safetensors')]\n"
        "print(codes, {'keras', 'tensorflow', 'torch'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[2, 2, 2] set()", done.stderr
    for name in ("onnx", "torch-export"):
        assert (
            f"--to {name}: project openkbp uses keras, and this format is written from torch's networks" in done.stderr
        )
    assert "alone: take one of keras, hub-folder, openvino" in done.stderr
    assert "--to safetensors: project openkbp has keras's own, keras" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_openkbps_keras_file_is_opened_by_plain_keras_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without runner opens the file; one with other weights is refused, and one that is no file too."""
    keras = pytest.importorskip("keras")
    from runner_export import formats

    job, _ = openkbps("residual", tmp_path)
    written = {file.name for file in formats.keras(job)}
    assert written == {"model.keras", "model.json", "export.json", "session.py", "README.md"}
    found = about(tmp_path)
    assert found["parity"]["largest_difference"] < 1e-5 * found["parity"]["largest_output"]
    assert "runner cannot be imported" in found["parity"]["opened_by"]
    (image,) = found["networks"][0]["inputs"]
    assert image["shape"] == ["batch", "image_1 (4n)", "image_2 (4n)", "image_3 (4n)", 12]
    assert "the largest difference is" in (tmp_path / "README.md").read_text()
    own = job.own

    def changed() -> Any:
        files = own()
        network = keras.models.load_model(files[0])
        kernel = next(variable for variable in network.trainable_variables if len(variable.shape) == 5)
        kernel.assign(np.asarray(kernel) * 1.02)
        network.save(files[0])
        return files

    def torn() -> Any:
        files = own()
        files[0].write_bytes(files[0].read_bytes()[:2000])
        return files

    monkeypatch.setattr(job, "own", changed)
    with pytest.raises(Unhealthy, match="--to keras: not exported: what was written computes something else"):
        formats.keras(job)
    monkeypatch.setattr(job, "own", torn)
    with pytest.raises(BadInput, match=r"plain Keras cannot open model\.keras: "):
        formats.keras(job)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["challenge", "residual"])
def test_openkbps_script_finds_the_same_dose(network: str, tmp_path: Path) -> None:
    """The whole script: the challenge's CSV folders in and out, the same dose in every voxel."""
    pytest.importorskip("openvino")
    from runner_openkbp.csvfiles import read_values
    from runner_openkbp.phantom import write_patient

    for number in (1, 2, 3):
        write_patient(tmp_path / "data" / f"pt_{number}", np.random.default_rng(number))
    given: dict[str, Any] = {"data.size": 32, "train.epochs": 1, "train.steps_per_epoch": 4, "train.workers": 0}
    given |= {"model.network": network, "model.widths": (3, 4), "model.features": 2, "health.mode": "off"}
    run = runner_core.train("openkbp", data=tmp_path / "data", run_dir=tmp_path / "run", preset="demo", **given)
    run.export(tmp_path / "away", to="openvino")
    patient = tmp_path / "data" / "pt_2"
    alone(tmp_path / "away", patient, "--out", tmp_path / "doses")
    expected = run.predict(patient).prediction
    index, values = read_values(tmp_path / "doses" / "pt_2.csv")
    found = np.zeros(expected.size, np.float32)
    found[index] = values
    assert expected.max() > 1
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-3)
