"""The project's parts joined: what is stored, what the network reads, predictions in the core's own grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runner_core import Arrays, BadInput, Infer, Precision, Progress, Record
from runner_core.testing import cropped, prepared
from runner_ssmunet import statistics
from runner_ssmunet.classes import numbers
from runner_ssmunet.config import SSMConfig, default, demo, ssmunet_3
from runner_ssmunet.outputs import SpectraPredictOptions
from runner_ssmunet.project import SSMUNet
from runner_ssmunet.steps.operations import applied
from runner_ssmunet.steps.pipeline import operations_of

WriteCore = Callable[..., Path]


def project_with(**data: Any) -> SSMUNet:
    config = demo()
    config.data.classes = ("red", "green", "blue")
    config.data.patch = 16
    for name, value in data.items():
        setattr(config.data, name, value)
    return SSMUNet(config)


@pytest.fixture
def project() -> SSMUNet:
    return project_with()


class Stored:
    """The store of prepared records."""

    def __init__(self, project: SSMUNet, records: list[Record]) -> None:
        stored = [prepared(project, record) for record in records]
        self.keys = [record.key for record in records]
        self.meta = [one.meta for one in stored]
        self.device = False
        self.identity = ""
        self.arrays = {name: Column([one.arrays[name] for one in stored]) for name in stored[0].arrays}


class Column:
    def __init__(self, arrays: list[np.ndarray]) -> None:
        self._arrays = arrays
        self.dtype, self.shapes = arrays[0].dtype, [array.shape for array in arrays]

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> np.ndarray:
        return self._arrays[record] if region is None else self._arrays[record][region]


def ready(project: SSMUNet, write_core: WriteCore, count: int = 3) -> tuple[list[Record], Any]:
    """Records, and their store; the project has its statistics."""
    for number in range(count):
        write_core(f"core_{number}", seed=number, meta={"patient_id": f"P{number}"})
    root = write_core("core_0", meta={"patient_id": "P0"}).parent
    records = list(project.records(root))
    store: Any = Stored(project, records)
    project.statistics = project.fit(store, list(range(count)))
    return records, store


def batch_of(project: SSMUNet, store: Any, split: str) -> Arrays:
    samples = project.samples(store, list(range(len(store.keys))), split)
    out = {name: np.zeros((len(samples), *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    numbers = np.arange(len(samples))
    samples.fill(numbers, numbers, 0, 0, out)
    return out


def inferred(project: SSMUNet, network: Any) -> Infer:
    def infer(arrays: Arrays) -> Arrays:
        with torch.no_grad():
            batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
            out = project.infer(network.eval(), project.on_device(batch, project.statistics, None))
        return {name: tensor.numpy() for name, tensor in out.items()}

    return infer


def test_what_is_stored_is_cut_to_the_tissue(project: SSMUNet, write_core: WriteCore) -> None:
    large = np.zeros((60, 70), bool)
    large[20:30, 40:55] = True
    rng = np.random.default_rng(0)
    path = write_core(
        X=rng.random((60, 70, 101)).astype(np.float32) * large[..., None],
        y=np.where(large, rng.integers(0, 4, large.shape), 0),
        tissue_mask=large,
    )
    (record,) = project.records(path.parent)
    stored = prepared(project, record)
    margin = project.config.crop.margin
    assert stored.arrays["tissue"].shape == (10 + 2 * margin, 15 + 2 * margin)
    assert stored.arrays["tissue"].sum() == 150
    assert stored.arrays["spectra"].dtype == np.float16
    assert stored.arrays["spectra"].shape[2] == len(stored.meta["wavenumbers"])
    assert not stored.arrays["spectra"][stored.arrays["tissue"] == 0].any()


def test_batches_are_z_scored_on_tissue_and_zero_elsewhere(project: SSMUNet, write_core: WriteCore) -> None:
    _, store = ready(project, write_core)
    arrays = batch_of(project, store, "train")
    batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    out = project.on_device(dict(batch), project.statistics, None)
    assert out["spectra"].dtype == torch.float32
    inside = out["spectra"][out["tissue"]]
    assert not out["spectra"][~out["tissue"]].any()
    assert torch.allclose(inside.mean(0), torch.zeros(inside.shape[1]), atol=0.02)
    assert torch.allclose(inside.std(0), torch.ones(inside.shape[1]), atol=0.02)
    assert torch.equal(out["target"], batch["label"].long() - 1)
    assert torch.equal(batch["spectra"], torch.from_numpy(arrays["spectra"])), "the loader's memory was changed"


def test_augmented_batches_hold_the_same_pixels_elsewhere(project: SSMUNet, write_core: WriteCore) -> None:
    _, store = ready(project, write_core)
    for name in ("scale", "tilt", "noise"):
        setattr(project.config.augment, name, 0.0)
    batch = {name: torch.from_numpy(array) for name, array in batch_of(project, store, "train").items()}
    plain = project.on_device(dict(batch), project.statistics, None)
    moved = project.on_device(dict(batch), project.statistics, torch.Generator().manual_seed(0))
    assert not torch.equal(plain["target"], moved["target"])
    for one, other in zip(plain["spectra"].flatten(1, 2), moved["spectra"].flatten(1, 2), strict=True):
        assert torch.equal(one.sum(1).sort().values, other.sum(1).sort().values)
    known = moved["target"] >= 0
    assert moved["tissue"][known].all()


def test_patches_without_annotation_are_left_out_unless_asked_for(write_core: WriteCore) -> None:
    """One annotated corner of a core of many patches."""
    label = np.zeros((40, 40), np.uint8)
    label[2:4, 2:5] = 1
    label[3, 3] = 2
    arrays = {"X": np.ones((40, 40, 101), np.float32), "y": label, "tissue_mask": np.ones((40, 40), bool)}
    counts = {}
    for unlabelled in (False, True):
        project = project_with(unlabelled=unlabelled)
        path = write_core(**arrays)
        store: Any = Stored(project, list(project.records(path.parent)))
        counts[unlabelled] = [len(project.samples(store, [0], split)) for split in ("train", "validation")]
    assert counts == {False: [1, 1], True: [9, 1]}


def test_overlap_is_of_training_patches_alone(write_core: WriteCore) -> None:
    project = project_with(overlap=0.5)
    _, store = ready(project, write_core, 1)
    store.arrays = {n: Column([np.ones((48, 48, *a.shapes[0][2:]), a.dtype)]) for n, a in store.arrays.items()}
    assert len(project.samples(store, [0], "train")) == 25
    assert len(project.samples(store, [0], "validation")) == 9


def test_loss_and_metrics_do_not_see_unannotated_pixels(project: SSMUNet, write_core: WriteCore) -> None:
    """Logits of pixels without a label may be anything."""
    _, store = ready(project, write_core)
    batch = {n: torch.from_numpy(array) for n, array in batch_of(project, store, "validation").items()}
    batch = project.on_device(batch, project.statistics, None)
    logits = torch.randn(len(batch["target"]), 3, 16, 16, generator=torch.Generator().manual_seed(0))
    other = torch.where((batch["target"] >= 0)[:, None], logits, 99 * torch.rand_like(logits))
    found = []
    for one in (logits, other):
        step = project.step(lambda spectra, tissue, one=one: one, batch, Progress(1, 1, 0))
        (metric,) = project.metrics()
        metric.update(step.prediction, batch)
        found.append({"loss": float(step.loss), **metric.compute()})
    assert found[0] == pytest.approx(found[1])


def test_annotation_off_the_tissue_means_the_same_everywhere(project: SSMUNet, write_core: WriteCore) -> None:
    """Half of the annotated pixels lie off the mask, some far from it: they have no loss and no weight, and every score
    counts them as missed."""
    tissue = np.zeros((40, 60), bool)
    tissue[12:28, 4:20] = True
    label = np.zeros(tissue.shape, np.uint8)
    label[14:18, 6:16], label[20:24, 6:16] = 1, 2
    label[14:18, 40:50], label[20:24, 40:50] = 1, 2
    rng = np.random.default_rng(0)
    path = write_core(X=rng.random((40, 60, 101)).astype(np.float32), y=label, tissue_mask=tissue)
    records = list(project.records(path.parent))
    store: Any = Stored(project, records)
    project.statistics = project.fit(store, [0])
    assert project.statistics["class_counts"].tolist() == [40, 40, 0]
    assert project.statistics["off_tissue"] == 80
    batch = project.on_device(tensors(batch_of(project, store, "validation")), project.statistics, None)
    assert torch.equal(batch["target"] >= 0, (batch["truth"] >= 0) & batch["tissue"])
    assert int((batch["target"] >= 0).sum()) == 80
    own = np.zeros((len(batch["truth"]), 3, 16, 16), np.float32)
    for output in range(3):  # every annotated pixel is answered rightly, whatever the mask says of it
        own[:, output][batch["truth"].numpy() == output] = 9
    logits = torch.from_numpy(own).requires_grad_()
    step = project.step(lambda spectra, tissue: logits, batch, Progress(1, 1, 0))
    (gradient,) = torch.autograd.grad(step.loss, step.prediction)
    assert not gradient.abs().sum(1)[batch["target"] < 0].any()
    (metric,) = project.metrics()
    metric.update(step.prediction, batch)
    validated = metric.compute()
    perfect = np.zeros((3, *label.shape), np.float32)
    for output in range(3):
        perfect[output][label == output + 1] = 1
    found = project._segmented(perfect.transpose(0, 1, 2), tissue, np.empty(0), _Whole())
    scored = project.score(records[0], found)
    assert validated["miou"] == pytest.approx(0.5)
    for name in ("miou", "macro_f1", "accuracy", "iou_red", "iou_green"):
        assert validated[name] == pytest.approx(scored[name]), name
    checks = project.checks()
    *_, remark = checks.prediction(records[0], found)
    assert "80 annotated pixels off the tissue count as missed" in remark.message
    found_in_record = " ".join(f.message for f in checks.record(records[0]))
    assert "80 annotated pixels (50.0%) off the tissue mask" in found_in_record
    annotation = checks.annotation(project.decode(records[0]))
    assert annotation is not None
    assert annotation.counts == {"red": 40, "green": 40, "blue": 0}


class _Whole:
    """A crop that cut nothing off."""

    def restore(self, array: np.ndarray) -> np.ndarray:
        return array


def test_a_patch_annotated_off_the_tissue_alone_is_not_trained_on(project: SSMUNet, write_core: WriteCore) -> None:
    tissue, label = np.zeros((16, 48), bool), np.zeros((16, 48), np.uint8)
    tissue[:, :16] = True
    label[4:6, 4:6], label[4:6, 40:42], label[8, 8] = 1, 1, 2
    path = write_core(X=np.ones((16, 48, 101), np.float32), y=label, tissue_mask=tissue)
    store: Any = Stored(project, list(project.records(path.parent)))
    assert [len(project.samples(store, [0], split)) for split in ("train", "validation")] == [1, 2]


def test_a_core_without_labels_is_left_out_with_a_warning(project: SSMUNet, write_core: WriteCore) -> None:
    write_core("core_1", meta={"patient_id": "P1"})
    path = write_core("core_2", meta={"patient_id": "P2"}, y=None)
    records = project.records(path.parent)
    assert [record.key for record in records] == ["core_1"]
    warned = [f.message for f in project.checks().records(records) if f.rule == "labels"]
    assert warned == ["1 core without labels, left out of training and scores: core_2.npz."]
    assert [record.key for record in project.inputs(path.parent)] == ["core_1", "core_2"]
    np.savez(path, **{**np.load(path), "X": np.full((12, 14, 101), np.nan, np.float32)})
    (fault,) = [f.message for f in project.checks().records(project.records(path.parent)) if f.rule == "decode"]
    assert fault.startswith(f"a core without labels cannot be read: {path}: ")
    path.unlink()
    assert not [f for f in project.checks().records(project.records(path.parent)) if f.rule == "labels"]


def test_a_prediction_has_the_grid_of_the_file(project: SSMUNet, write_core: WriteCore, tmp_path: Path) -> None:
    records, _ = ready(project, write_core)
    network = project.model(Precision("float32"))
    (record,) = project.inputs(records[0].files["core"])
    assert "labels" not in record.files
    found = project.predict(cropped(project, record), inferred(project, network))
    mask = np.load(record.files["core"])["tissue_mask"]
    assert np.array_equal(found.classes > 0, mask)
    assert np.allclose(found.probabilities.sum(0)[mask], 1, atol=2e-3)
    assert found.attention.sum() == pytest.approx(1, abs=1e-3)
    for path in project.write(record, found, tmp_path / "out"):
        assert project.checks().grid(path) == project.checks().grid(record.files["core"]) == list(mask.shape)
    project.predict_options = SpectraPredictOptions(ome_tiff=True, geojson=True)
    written = project.write(record, found, tmp_path / "more")
    assert [path.name.partition("_classes")[2] for path in written] == [".png", ".npz", ".ome.tif", ".geojson"]
    assert project.score(record, found) == {}
    assert project.score(records[0], found)["pixels"] == (np.load(records[0].files["core"])["y"] > 0).sum()


def test_the_whole_core_at_once_is_what_the_network_itself_says(project: SSMUNet, write_core: WriteCore) -> None:
    """A core of one patch: predict equals the network on the batch that validation sees."""
    records, store = ready(project, write_core, 1)
    network = project.model(Precision("float32")).eval()
    batch = {n: torch.from_numpy(array) for n, array in batch_of(project, store, "validation").items()}
    batch = project.on_device(batch, project.statistics, None)
    with torch.no_grad():
        expected = project.step(network, batch, Progress(1, 1, 0)).prediction.softmax(1)[0].numpy()
    found = project.predict(cropped(project, records[0]), inferred(project, network))
    box = store.meta[0]["box"]
    rows, columns = (slice(a, b) for a, b in zip(box["start"], box["stop"], strict=True))
    own = found.probabilities[:, rows, columns].astype(np.float32)
    inside = store.arrays["tissue"].read(0) > 0
    cut = expected[:, : inside.shape[0], : inside.shape[1]]
    assert np.allclose(own[:, inside], cut[:, inside], atol=2e-3)


def test_a_core_of_another_axis_is_refused_by_name(project: SSMUNet, write_core: WriteCore) -> None:
    ready(project, write_core)
    other = np.linspace(905.0, 1795.0, 101)
    path = write_core("core_9", wn=other, delta_cm1=np.float64(8.9))
    (record,) = project.inputs(path)
    said = r"core_9.*other wavenumbers .*: it has 101 wavenumbers from 905 to 1795 .*or train anew with data.step"
    with pytest.raises(BadInput, match=said):
        project.predict(cropped(project, record), inferred(project, None))


def test_the_baseline_is_the_logistic_regression_of_fit(project: SSMUNet, write_core: WriteCore) -> None:
    records, _ = ready(project, write_core)
    found = project.baseline(cropped(project, records[0]))
    assert found is not None
    assert np.array_equal(found.classes > 0, np.load(records[0].files["core"])["tissue_mask"])
    inside = found.classes > 0
    decoded = prepared(project, records[0])
    scores = decoded.arrays["spectra"][decoded.arrays["tissue"] > 0] - project.statistics["mean"]
    logits = (
        scores / project.statistics["std"] @ project.statistics["baseline"][:-1] + project.statistics["baseline"][-1]
    )
    assert np.array_equal(found.classes[inside], logits.argmax(1) + 1)
    assert not found.attention.size


def test_learning_with_nothing_ignored_has_one_more_output(write_core: WriteCore) -> None:
    project = project_with(ignore=None)
    _, store = ready(project, write_core)
    assert project.outputs == ("unannotated", "red", "green", "blue")
    assert len(project.statistics["class_weights"]) == 4
    assert project.model(Precision("float32")).settings["classes"] == 4
    assert project.statistics["label_shares"][0].min() > 0.5
    batch = {n: torch.from_numpy(array) for n, array in batch_of(project, store, "train").items()}
    out = project.on_device(batch, project.statistics, None)
    assert torch.equal(out["target"] >= 0, out["tissue"])
    assert torch.equal(out["target"] == 0, out["tissue"] & (batch["label"] == 0))


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("data", "patch", 40), ("data", "patch", 0), ("data", "overlap", 1.0), ("predict", "overlap", -0.1),
     ("data", "ignore", -1), ("data", "classes", ("one",)), ("data", "bin", 0), ("data", "classes", ("a", "no_tissue")),
     ("model", "filters", 0), ("model", "layers", -1), ("model", "states", 0), ("model", "embed", 0),
     ("model", "base", -1), ("model", "chunk", -3), ("model", "width", 0.0), ("model", "dropout", 1.0),
     ("loss", "dice", -1.0), ("augment", "noise", float("nan"))],
)  # fmt: skip
def test_settings_without_sense_are_refused(section: str, name: str, value: Any) -> None:
    config = demo()
    setattr(getattr(config, section), name, value)
    with pytest.raises(BadInput, match=f"{section}.{name}"):
        SSMUNet(config)


def test_settings_that_make_no_sense_together_are_refused() -> None:
    for change, said in (
        ({"data.patch": 16, "train.batch_size": 1}, "data.patch 16 with train.batch_size 1"),
        ({"loss.cross_entropy": 0.0, "loss.dice": 0.0}, "loss.cross_entropy and loss.dice are both 0"),
        ({"data.ignore": None, "data.classes": ("a", "unannotated")}, "data.classes: a class is called unannotated"),
    ):
        config = demo()
        for name, value in change.items():
            section, _, own = name.partition(".")
            setattr(getattr(config, section), own, value)
        with pytest.raises(BadInput, match=said):
            SSMUNet(config)


def test_presets_are_what_they_say() -> None:
    axis = np.linspace(900, 1800, 425)
    for make, filters in ((default, 24), (ssmunet_3, 3)):
        project = SSMUNet(make())
        project.statistics = {"wavenumbers": axis, "classes": {"names": numbers(8), "colours": []}}
        network = project.model(Precision("float32"))
        centres = network.stack.filters.bands().mean(-1).tolist()
        assert len(centres) == filters
        assert centres[:3] == pytest.approx([1655, 1545, 1740], abs=1)
        parameters = sum(p.numel() for name, p in network.named_parameters() if ".edges." not in name)
        assert (parameters == 4_388_576) == (filters == 24)


def test_weight_decay_leaves_the_dynamics_of_mamba_alone(project: SSMUNet, write_core: WriteCore) -> None:
    ready(project, write_core, 1)
    network = project.model(Precision("float32"))
    groups = project.learning().parameter_groups(network)
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.5)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    for p in network.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    same = {name for name, p in network.named_parameters() if torch.equal(p, before[name]) and before[name].any()}
    assert same == {f"stack.layers.0.mamba.{name}" for name in ("A_log", "D")}
    assert sum(len(group["params"]) for group in groups) == len(before)


def test_with_frozen_features_only_the_u_net_learns(write_core: WriteCore, tmp_path: Path) -> None:
    """Logits and predictions are those of the network itself, from one pass through its spectral layers."""
    whole = project_with()
    records, _ = ready(whole, write_core)
    torch.manual_seed(0)
    network = whole.model(Precision("float32"))
    whole.export(network, tmp_path / "export")
    frozen = project_with()
    frozen.config.model.features = tmp_path / "export"
    store: Any = Stored(frozen, records)
    assert store.arrays["features"].shapes[0][-1] == frozen.config.model.filters
    frozen.statistics = frozen.fit(store, [0, 1, 2])
    tuned = frozen.model(Precision("float32")).eval()
    assert not any(p.requires_grad for p in tuned.stack.parameters())
    assert all(p.requires_grad for p in tuned.head.parameters())
    spectra = whole.on_device(tensors(batch_of(whole, Stored(whole, records), "validation")), whole.statistics, None)
    features = frozen.on_device(tensors(batch_of(frozen, store, "validation")), frozen.statistics, None)
    progress = Progress(1, 1, 0)
    with torch.no_grad():
        one = whole.step(network.eval(), spectra, progress)
        other = frozen.step(tuned, features, progress)
    assert torch.allclose(one.prediction, other.prediction, atol=0.02)
    assert float(other.loss) == pytest.approx(float(one.loss), rel=0.01)
    direct = whole.predict(cropped(whole, records[0]), inferred(whole, network))
    cached = frozen.predict(cropped(frozen, records[0]), inferred(frozen, tuned))
    assert np.array_equal(direct.classes, cached.classes)
    assert frozen.prepare_settings() != whole.prepare_settings()
    assert statistics.axes_differ(frozen.statistics["wavenumbers"], whole.statistics["wavenumbers"]) == ""


def tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def test_settings_of_the_cache_name_whatever_decides_labels(project: SSMUNet) -> None:
    other = SSMConfig()
    other.data.classes = ("a", "b")
    assert project.prepare_settings() != SSMUNet(other).prepare_settings()


@pytest.mark.parametrize(
    ("wavenumbers", "data", "said"),
    [
        (np.linspace(2000.0, 3000.0, 101), {}, "nothing is left of its axis"),
        (np.linspace(900.0, 1590.0, 101), {"normalise": "amide1"}, "data.normalise amide1 needs three points"),
        (np.linspace(900.0, 1590.0, 101), {}, r"no amide-I band .* Add a tissue mask\.$"),
        (np.linspace(900.0, 1590.0, 101), {"tissue": "amide1"}, "Add a tissue mask and set data.tissue to file"),
    ],
)
def test_a_mask_is_advised_only_where_it_helps(
    write_core: WriteCore, wavenumbers: np.ndarray, data: dict[str, Any], said: str
) -> None:
    project = project_with(**data)
    path = write_core(wn=wavenumbers, tissue_mask=None)
    (record,) = project.records(path.parent)
    for look in (project.decode, project.checks().record):
        with pytest.raises(BadInput, match=said):
            look(record)


# ---------------------------------------------------------------- steps of preprocess.steps

STEPS = ("spikes", "emsc", "pca", "savgol", "snv")


def project_with_steps(steps: tuple[Any, ...] = STEPS, **chosen: Any) -> SSMUNet:
    project = project_with(gap=None, bin=1)
    project.config.preprocess = replace(
        project.config.preprocess, steps=steps, pca_components=4, mnf_components=4, **chosen
    )
    return SSMUNet(project.config)


@pytest.mark.parametrize("steps", [STEPS, ("rubberband", "mnf", "vector")])
def test_fitted_steps_see_training_records_alone(write_core: WriteCore, steps: tuple[str, ...]) -> None:
    project = project_with_steps(steps)
    _, store = ready(project, write_core, 4)
    one = project.fit(store, [0, 1, 2])
    spectra = store.arrays["spectra"]
    spectra._arrays[3] = spectra._arrays[3] * 7 + 1
    other = project.fit(store, [0, 1, 2])
    for own, same in zip(operations_of(one), operations_of(other), strict=True):
        assert own[0] == same[0]
        for name, constant in own[1].items():
            np.testing.assert_array_equal(constant, same[1][name])
    changed = project.fit(store, [0, 1, 3])
    assert any((a[1][n] != b[1][n]).any() for a, b in zip(operations_of(one), operations_of(changed), strict=True)
               for n in a[1])  # fmt: skip


def test_the_device_the_z_scores_and_the_baseline_get_the_same_spectra(write_core: WriteCore) -> None:
    project = project_with_steps()
    records, store = ready(project, write_core)
    found = project.on_device(tensors(batch_of(project, store, "train")), project.statistics, None)
    pixels = np.concatenate([store.arrays["spectra"].read(n)[store.arrays["tissue"].read(n) > 0] for n in range(3)])
    own = applied(pixels, operations_of(project.statistics))
    np.testing.assert_allclose(project.statistics["mean"], own.mean(0), atol=1e-3)
    np.testing.assert_allclose(own.mean(1), 0, atol=1e-3)  # the last step is snv
    seen = found["spectra"][found["tissue"]].numpy() * project.statistics["std"] + project.statistics["mean"]
    np.testing.assert_allclose(seen.mean(1), 0, atol=1e-3)
    assert not found["spectra"][~found["tissue"]].any()
    segmented = project.baseline(cropped(project, records[0]))
    assert segmented is not None
    assert np.isfinite(segmented.probabilities).all()


def test_pca_keeps_what_the_singular_vectors_span(write_core: WriteCore) -> None:
    project = project_with_steps(("pca",))
    _, store = ready(project, write_core)
    pixels = np.concatenate([store.arrays["spectra"].read(n)[store.arrays["tissue"].read(n) > 0] for n in range(3)])
    pixels = pixels.astype(np.float64)
    centred = pixels - pixels.mean(0)
    vectors = np.linalg.svd(centred, full_matrices=False)[2][:4]
    found = applied(pixels, operations_of(project.statistics))
    np.testing.assert_allclose(found, pixels.mean(0) + centred @ vectors.T @ vectors, atol=1e-4)
    project.config.preprocess.pca_components = 101
    with pytest.raises(BadInput, match=r"preprocess.pca_components is 101; .* of 101 wavenumbers have no more"):
        project.fit(store, [0])


def test_a_network_keeps_the_files_of_its_steps(write_core: WriteCore, tmp_path: Path) -> None:
    """Predictions, and frozen features, need the file of the reference no more."""
    reference = tmp_path / "reference.csv"
    reference.write_text("\n".join(f"{at},{1 + at / 2000}" for at in range(890, 1811, 5)))
    chosen = {"steps": ("rmies", "emsc", "pca", "snv"), "reference": reference}
    whole = project_with_steps(**chosen)
    records, _ = ready(whole, write_core)
    torch.manual_seed(0)
    network = whole.model(Precision("float32")).eval()
    whole.export(network, tmp_path / "export")
    expected = whole.predict(cropped(whole, records[0]), inferred(whole, network))
    key = whole.prepare_settings()
    reference.unlink()
    later = project_with_steps(**chosen)
    later.statistics = whole.statistics
    assert later.prepare_settings() == key
    found = later.predict(cropped(later, records[0]), inferred(later, network))
    assert np.array_equal(found.classes, expected.classes)
    frozen = project_with_steps(**chosen)
    frozen.config.model.features = tmp_path / "export"
    features: Any = Stored(frozen, records)
    frozen.statistics = frozen.fit(features, [0, 1, 2])
    direct = frozen.predict(cropped(frozen, records[0]), inferred(frozen, network))
    assert (direct.classes == expected.classes).mean() > 0.99
    frozen.config.preprocess.steps = ("snv",)
    with pytest.raises(BadInput, match=r"trained with preprocess.steps \['rmies'.*this run has \['snv'\]"):
        Stored(frozen, records)


def test_a_frozen_network_takes_files_by_their_content(write_core: WriteCore, tmp_path: Path) -> None:
    file, text = tmp_path / "reference.csv", "\n".join(f"{at},{1 + at / 2000}" for at in range(890, 1811, 5))
    file.write_text(text)
    chosen = {"steps": ("rmies", "snv"), "reference": file}
    whole = project_with_steps(**chosen)
    records, _ = ready(whole, write_core)
    torch.manual_seed(0)
    whole.export(whole.model(Precision("float32")), tmp_path / "export")

    def frozen(**other: Any) -> SSMUNet:
        project = project_with_steps(**{**chosen, **other})
        project.config.model.features = tmp_path / "export"
        project.records(tmp_path / "data")
        return project

    (tmp_path / "copy.csv").write_text(text)
    copied = frozen(reference=tmp_path / "copy.csv")
    assert copied.prepare_settings()["preprocess"] == whole.prepare_settings()["preprocess"]
    features = prepared(copied, records[0]).arrays["features"]
    file.write_text(text.replace("890,", "890,9"))
    with pytest.raises(BadInput, match=r"trained with other spectra than preprocess.reference .*csv holds now"):
        frozen()
    file.unlink()
    np.testing.assert_array_equal(prepared(frozen(), records[0]).arrays["features"], features)
    with pytest.raises(BadInput, match=r"trained with preprocess.reference .*csv, this run has None"):
        prepared(frozen(reference=None), records[0])


def test_a_file_that_no_core_can_use_is_refused_once(write_core: WriteCore, tmp_path: Path) -> None:
    """The message begins with the setting: it is no fault of the cores."""
    write_core("core_0", X=np.zeros((12, 14, 3), np.float32))  # a faulty core is left to the list of faulty cores
    root, file = write_core().parent, tmp_path / "vapour.csv"
    for text, said in (
        ("800,1\n1900,1", "its spectra have no lines on the kept axis"),
        ("950,1\n1000,3\n1700,1", "it runs from 950 to 1700 cm⁻¹, the cores' axis from 900 to 1800"),
    ):
        file.write_text(text)
        with pytest.raises(BadInput, match=rf"^preprocess\.vapour: \S*vapour\.csv: {said}"):
            project_with_steps(("atmosphere", "snv"), vapour=file).records(root)


def test_a_missing_file_is_refused_before_any_core_is_read(write_core: WriteCore, tmp_path: Path) -> None:
    project = project_with_steps(("emsc", "snv"), reference=tmp_path / "none.csv")
    with pytest.raises(BadInput, match=r"^preprocess\.reference: .*none\.csv: No such file .*, and to resume"):
        project.records(write_core().parent)


def test_the_cache_is_keyed_by_the_steps_in_it() -> None:
    keys = [project_with_steps(steps, **chosen).prepare_settings() for steps, chosen in (
        (("asls", "snv"), {}), (("snv", "asls"), {}), (("asls", "snv"), {"asls_smoothness": 1e3}),
    )]  # fmt: skip
    assert len({str(key) for key in keys}) == 3
    assert keys[0] == project_with_steps(("asls", "snv"), mie_components=3).prepare_settings()  # it is not read
    assert "preprocess" not in project_with().prepare_settings()


@pytest.mark.parametrize("steps", [(), STEPS, ("rubberband", "mnf", "vector")])
def test_check_draws_spectra_before_and_after(
    write_core: WriteCore, make_core: Callable[..., Arrays], steps: tuple[str, ...]
) -> None:
    project = project_with_steps(steps)
    path = write_core(**make_core(24, 24))
    (record,) = project.records(path.parent)
    decode, draw = project.decode(record), project.checks().pictures
    assert draw is not None
    ((title, drawn),) = draw(decode).items()
    assert drawn.dtype == np.uint8
    assert (drawn.min(2) < 128).mean() > 0.005  # curves, not an empty sheet
    assert ("fitted to this core alone" in title) == (steps != ())
    config = replace(project.config, data=replace(project.config.data, normalise="none"))
    if not steps:
        ((_, other),) = SSMUNet(config).checks().pictures(decode).items()  # type: ignore[misc]
        half = len(drawn) // 2
        assert (other[:half] == drawn[:half]).all()  # as measured
        assert (other[half:] != drawn[half:]).any()  # as prepared


def test_replicates_and_interferents_are_subtracted(
    write_core: WriteCore, make_core: Callable[..., Arrays], tmp_path: Path
) -> None:
    file = tmp_path / "paraffin.csv"
    file.write_text("\n".join(f"{at},{np.exp(-(((at - 1300) / 15) ** 2)):.6f}" for at in range(890, 1811)))
    project = project_with_steps(("emsc",), interferents=file, replicates=2)
    for n in range(4):
        path = write_core(f"core_{n}", meta={"patient_id": f"P{n}"}, **make_core(30, 30, seed=n))
    store: Any = Stored(project, list(project.records(path.parent)))
    ((name, constants),) = operations_of(project.fit(store, [0, 1, 2]))
    assert name == "emsc"
    assert constants["shapes"].shape == (3 + 1 + 2, 101)  # polynomial, interferent, replicates
    pixels = store.arrays["spectra"].read(0)[store.arrays["tissue"].read(0) > 0].astype(np.float32)
    paraffin = constants["shapes"][3].astype(np.float32)
    found = applied(pixels + 0.3 * paraffin + 0.1, [(name, constants)])
    np.testing.assert_allclose(found, applied(pixels, [(name, constants)]), atol=1e-3)
    project.config.preprocess.replicates = 50
    with pytest.raises(BadInput, match=r"preprocess.replicates 50: the training records have \d+ pairs of cores"):
        project.fit(store, [0, 1, 2])
