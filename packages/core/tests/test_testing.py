"""The contract test itself: the toy passes, and each broken promise is caught by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest
from runner_core.testing import CHECKS, check_project
from runner_core.testing.case import Case, Watcher

PROJECT = Path(__file__).parent / "toy" / "project"

pytestmark = [pytest.mark.usefixtures("toy"), pytest.mark.torch]


def toy_class() -> Any:
    import toy_project  # type: ignore[import-not-found]

    return toy_project.Toy


def pytest_of(folder: Path, *words: str, installed: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    """pytest in an empty folder, where only its plugin knows runner."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    env = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, check=False)


def test_the_toy_keeps_the_contract_and_pytest_says_so_without_a_file(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, "--check-project", "toy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CHECKS) - 6} passed, 6 skipped" in done.stdout, done.stdout


def test_a_test_file_names_its_project(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from runner_core.testing import ProjectContract\n\n\n"
        'class TestContract(ProjectContract):\n    project = "toy"\n'
    )
    done = pytest_of(tmp_path, "-k", "settings or split", "-rA")
    assert done.returncode == 0, done.stdout + done.stderr
    for check in ("settings_survive_yaml", "split_is_by_group"):
        assert f"PASSED test_mine.py::TestContract::test_contract[{check}]" in done.stdout


def test_a_project_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, "--check-project", "tof")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.strip().startswith("ERROR: --check-project tof: there is no project or command 'tof'; did you")
    assert "Traceback" not in done.stdout + done.stderr


REMEMBERS = """
def step(self, model, batch, progress, own=Toy.step, seen=[]):
    seen.append(1)
    done = own(self, model, batch, progress)
    return done._replace(loss=done.loss * len(seen))


Toy.step = step
"""
LAZY = """
from runner_core import hookimpl


@hookimpl
def runner_project():
    from toy_class import Toy

    return Toy
"""
DRAWS = """
def _augment(self, sample, rng):
    sample["image"] += np.random.default_rng().integers(0, 9, sample["image"].shape, np.uint8)


Toy._augment = _augment
"""


@pytest.mark.parametrize(
    "source, check, message",
    [
        (REMEMBERS, "killed", "a run that was killed and resumed differs from one that was not, first in the log"),
        (DRAWS, "workers", "training batches from 1 worker"),
    ],
    ids=["a step that remembers what no checkpoint holds", "augmentation that is not seeded"],
)
def test_what_only_other_processes_show_is_found(source: str, check: str, message: str, tmp_path: Path) -> None:
    shutil.copytree(PROJECT, tmp_path / "installed")
    module = tmp_path / "installed" / "toy_project.py"
    module.write_text(module.read_text() + source)
    done = pytest_of(tmp_path, "--check-project", "toy", "-k", check, installed=tmp_path / "installed")
    assert done.returncode == 1, done.stdout
    assert message in done.stdout, done.stdout


def test_a_script_may_check_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [check for check in CHECKS if check.__name__ in ("settings_survive_yaml", "metrics_equal_numpy")]
    monkeypatch.setattr("runner_core.testing.contract.CHECKS", quick)
    assert check_project("toy", tmp_path) == ["metrics_equal_numpy: toy has no metrics besides its loss"]


def breaking(monkeypatch: pytest.MonkeyPatch, name: str, make: Any) -> None:
    """Put what `make` makes of the old one in place of a member of the toy, or of a facet's field ("checks.grid")."""
    facet, _, field = name.partition(".")
    if field:
        declared(monkeypatch, facet, **{field: make(None)})
    else:
        monkeypatch.setattr(toy_class(), name, make(getattr(toy_class(), name)))


def declared(monkeypatch: pytest.MonkeyPatch, facet: str, **fields: Any) -> None:
    from toy_project import declare  # type: ignore[import-not-found]

    monkeypatch.setattr(toy_class(), facet, declare(toy_class(), facet, **fields))


def impure_prepare(own: Any) -> Any:
    calls: list[int] = []

    def prepare(self: Any, decoded: Any) -> Any:
        calls.append(1)
        return {name: array + len(calls) for name, array in own(self, decoded).items()}

    return prepare


def unseeded_phantom(own: Any) -> Any:
    return lambda self, folder, rng: own(self, folder, np.random.default_rng())


def crashing_decode(own: Any) -> Any:
    def decode(self: Any, record: Any) -> Any:
        arrays = {role: np.load(file) for role, file in record.files.items()}  # ValueError where BadInput is due
        from runner_core import Decoded

        return Decoded(arrays, (1.0, 1.0, 1.0), "image")

    return decode


def one_group(own: Any) -> Any:
    def record(self: Any, *words: Any) -> Any:
        from runner_core import Record

        found = own(self, *words)
        return Record(found.key, "all", found.files)

    return record


def frozen_preset(own: Any) -> Any:
    config = own["demo"]()
    return {**own, "demo": lambda: config}


def writes_elsewhere(own: Any) -> Any:
    return lambda self, record, prediction, out: own(self, record, prediction, out.parent)


def moody_predict(own: Any) -> Any:
    calls: list[int] = []

    def predict(self: Any, cropped: Any, infer: Any) -> Any:
        calls.append(1)
        return {"mask": own(self, cropped, infer), "threshold": 0.1 * len(calls)}

    return predict


def untidy_predict(own: Any) -> Any:
    def predict(self: Any, cropped: Any, infer: Any) -> Any:
        found = own(self, cropped, infer)
        cropped.prepared["image"][...] = 0
        return found

    return predict


def forgetful_samples(own: Any) -> Any:
    def samples(self: Any, store: Any, records: Any, split: str) -> Any:
        found = own(self, store, records, split)
        fill = found.fill

        def fill_most(indices: Any, positions: Any, seed: int, epoch: int, out: Any) -> None:
            fill(indices, positions, seed, epoch, out | {"record": out["record"].copy()})

        found.fill = fill_most
        return found

    return samples


def precise(own: Any) -> Any:
    return lambda self, decoded: {name: array / 2 for name, array in own(self, decoded).items()}


def widened(own: Any) -> Any:
    def prepare(self: Any, decoded: Any) -> Any:
        return own(self, decoded) | {"wide": np.full(self.config.model.width, 1, np.uint8)}

    return prepare


def fitted_to(every: bool) -> Any:
    """Means of the training records, or of all."""

    def fit(self: Any, store: Any, training: Any) -> Any:
        numbers = range(len(store.keys)) if every else training
        return {"mean": float(np.mean([store.arrays["image"].read(number).mean() for number in numbers]))}

    return lambda own: fit


def watching(found: Any) -> Any:
    return lambda own: lambda self, model: found(model)


def judging(found: Any) -> Any:
    from runner_core.contract.records import Judgement

    return lambda own: lambda self, predicted: None if found is None else Judgement(**found)


def switching(*settings: str) -> Any:
    from runner_core.contract import Remedy

    return lambda own: tuple(Remedy("fast", off={name: 1}, part="data", why="It is.") for name in settings)


def moody_judge(own: Any) -> Any:
    from runner_core.contract.records import Judgement

    calls: list[int] = []
    return lambda self, predicted: calls.append(1) or Judgement({"a": 0.1 * len(calls)})


def faulty_phantom(own: Any) -> Any:
    from runner_core import Finding

    return lambda self, records: [Finding("blank", "error", "nothing to be seen")]


def annotating(count: Any) -> Any:
    from runner_core import Annotation

    return lambda own: lambda self, decoded: Annotation(count(decoded.arrays["mask"]))


class Opaque:
    __slots__ = ()


class BatchMean:
    """The mean length of a batch: it depends on the batch size, and has no value before data."""

    def reset(self) -> None:
        self.means: list[Any] = []

    def update(self, prediction: Any, batch: Any) -> None:
        self.means.append(float(len(prediction)))

    def compute(self) -> dict[str, Any]:
        return {"batch_mean": sum(self.means) / len(self.means)}


def with_pixel_error(monkeypatch: pytest.MonkeyPatch, plain: Any) -> None:
    """The toy with a metric, and what its NumPy witness says of it."""
    from runner_core.engines.torch.metrics import TorchFunctionMetric

    def error(logits: Any, batch: Any) -> Any:
        return ((logits > 0) != (batch["mask"] > 0)).float().mean()

    monkeypatch.setattr(toy_class(), "metrics", lambda self: [TorchFunctionMetric("error", error)])
    declared(monkeypatch, "checks", plain_metrics=plain)


def true_error(self: Any, prediction: Any, batch: Any) -> dict[str, float]:
    return {"error": float(np.mean((prediction > 0) != (batch["mask"] > 0)))}


@pytest.mark.parametrize(
    "check, name, make, message",
    [
        ("prepare_is_pure", "prepare", impure_prepare, "prepare, called twice"),
        ("annotation", "checks.annotation", annotating(lambda mask: {"disc": mask.size + 1}), "of 2,304 voxels"),
        ("annotation", "checks.annotation", annotating(lambda mask: {"disc": mask.sum()}), "not an int"),
        (
            "annotation",
            "checks.annotation",
            annotating(lambda mask: {str(mask.sum()): 0}),
            "other classes in other records",
        ),
        (
            "annotation",
            "checks.annotation",
            annotating(lambda mask: {"disc": int(mask.fill(1) or 1)}),
            "'mask' differs",
        ),
        ("prepare_is_pure", "checks.record", faulty_phantom, "`checks.record` finds errors in the phantom"),
        ("prepare_is_pure", "checks.records", faulty_phantom, "`checks.records` finds errors in the phantom"),
        ("prepare_is_pure", "prepare", precise, "'image' is float64, twice"),
        (
            "prepare_settings_name",
            "prepare",
            widened,
            r"`prepare` reads model\.width, which `prepare_settings` does not",
        ),
        ("fit_reads", "fit", fitted_to(every=True), "`fit` reads records that are not of `training`"),
        ("samples_are_pure", "samples", forgetful_samples, "into memory that differs: 'record'"),
        ("phantom_is_written_and_read", "phantom", unseeded_phantom, "phantom written twice"),
        ("bad_input", "decode", crashing_decode, "must be refused as BadInput, not ValueError"),
        ("phantom_is_written_and_read", "_record", one_group, "two groups"),
        ("settings_survive_yaml", "presets", frozen_preset, "must make a new one"),
        ("own_grid", "write", writes_elsewhere, "outside of"),
        ("own_grid", "write", lambda own: lambda self, record, prediction, out: [], "write wrote nothing"),
        ("own_grid", "checks.grid", lambda own: lambda self, file: {"name": file.name}, "has the grid"),
        (
            "is_drawn",
            "pictures.watch",
            watching(lambda model: {"bias": np.array([np.nan])}),
            "watch: 'bias' is not finite",
        ),
        ("is_drawn", "pictures.watch", watching(lambda model: {}), "watch, called twice: dict holds nothing"),
        ("is_drawn", "pictures.watch", watching(lambda model: [model]), "must return small NumPy arrays"),
        (
            "is_drawn",
            "pictures.watch",
            watching(lambda model: {"moody": np.random.default_rng().random(2)}),
            "watch, called twice: 'moody'",
        ),
        ("is_drawn", "pictures.draw_watched", lambda own: lambda self, watched: {}, "there is no `watch`"),
        ("snapshots_leave", "pictures.snapshots", lambda own: lambda self, model, batch: {}, "`snapshot_samples` is 0"),
        ("judgement_fits", "judging.untrained", lambda own: True, "there is no `judge`"),
        ("judgement_fits", "judging.judge", judging(None), "has nothing to say"),
        (
            "judgement_fits",
            "judging.judge",
            judging({"scores": {"a": 1.0}, "further": {"x": {"b": 1.0}}}),
            "x has scores that",
        ),
        (
            "judgement_fits",
            "judging.judge",
            judging({"scores": {"a": 1.0}, "baseline": {"b": 1.0}}),
            "the baseline has scores",
        ),
        ("judgement_fits", "judging.judge", moody_judge, "judge, called twice: 'scores': 'a' differs"),
        ("repeatable", "predict", moody_predict, "predict, called twice: 'threshold' differs"),
        ("repeatable", "predict", lambda own: lambda self, cropped, infer: Opaque(), "Opaque holds nothing"),
        ("repeatable", "predict", untidy_predict, "called again with what the first call was given,.* differs"),
        ("repeatable", "dataset", lambda own: replace(own, labels=("masks",)), "labels names no file .* 'mask'"),
        ("batch_size", "metrics", lambda own: lambda self: [BatchMean()], "'batch_mean' depends on the batch size"),
        ("two_steps_train", "monitor", lambda own: ("dice", "max"), "dice"),
        (
            "switched_off",
            "learning.optimisations",
            switching("model.widht"),
            r"without .* fast: .*'model\.widht'.*width",
        ),
        ("switched_off", "learning.optimisations", switching("train.seed", "train.epochs"), "share a name: fast, fast"),
    ],
)
def test_a_broken_promise_is_named(
    check: str, name: str, make: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking(monkeypatch, name, make)
    (found,) = [c for c in CHECKS if check in c.__name__]
    with pytest.raises(Exception, match=message):
        found(Case("toy", tmp_path))


def test_what_a_project_names_and_is_given_it_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, "prepare", widened)
    breaking(monkeypatch, "prepare_settings", lambda own: lambda self: {"width": self.config.model.width})
    breaking(monkeypatch, "fit", fitted_to(every=False))
    case = Case("toy", tmp_path)
    for check in CHECKS:
        if "prepare_settings_name" in check.__name__ or "fit_reads" in check.__name__:
            check(case)


def test_a_framework_beside_the_class_is_found_behind_a_lazy_plugin(tmp_path: Path) -> None:
    shutil.copytree(PROJECT, tmp_path / "installed")
    installed = tmp_path / "installed"
    (installed / "toy_project.py").rename(installed / "toy_class.py")
    (installed / "toy_class.py").write_text(
        "import torch\n" + (installed / "toy_class.py").read_text().replace("from __future__ import annotations\n", "")
    )
    (installed / "toy_project.py").write_text(LAZY)
    done = pytest_of(tmp_path, "--check-project", "toy", "-k", "framework", installed=installed)
    assert done.returncode == 1, done.stdout
    assert "loading the class of toy_project imports torch" in done.stdout


def test_pictures_of_what_is_watched_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def pictures(self: Any, watched: Any) -> Any:
        given.append(watched)
        return {"bias": np.zeros((2, 3 + len(given), 3), np.uint8 if len(given) < 3 else np.int64)}

    (check,) = [c for c in CHECKS if c.__name__ == "what_is_watched_is_drawn"]
    watch = watching(lambda model: {"bias": model[-1].bias.detach().numpy()})(None)
    declared(monkeypatch, "pictures", draw_watched=pictures, watch=watch)
    case = Case("toy", tmp_path)
    check(case)
    assert [[step for step, _ in watched] for watched in given] == [[1], [1, 2]]
    assert given[0][0][1]["bias"].shape == (1,)
    shutil.rmtree(tmp_path / "watched")
    with pytest.raises(ValueError, match="a picture is"):
        check(case)


def test_snapshots_that_change_what_is_learned_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = [c for c in CHECKS if c.__name__ == "snapshots_leave_training_alone"]

    def snapshots(self: Any, model: Any, batch: Any) -> Any:
        assert len(batch["image"]) == 2
        return {"image": np.clip(batch["image"].numpy()[0, 0, :, :, None].repeat(3, -1), 0, 255).astype(np.uint8)}

    def careless(self: Any, model: Any, batch: Any) -> Any:
        model[-1].bias.add_(1.0)
        return snapshots(self, model, batch)

    case = Case("toy", tmp_path)
    with pytest.raises(SkipTest, match="draws no pictures"):
        check(case)
    declared(monkeypatch, "pictures", snapshot_samples=2)
    with pytest.raises(AssertionError, match="drew nothing after 0 steps"):
        check(case)
    declared(monkeypatch, "pictures", snapshots=snapshots)
    check(case)
    assert len(list((tmp_path / "snapshots").iterdir())) == 3
    declared(monkeypatch, "pictures", snapshots=careless)
    with pytest.raises(AssertionError, match="differs where `snapshots` draws"):
        check(case)


def test_a_judgement_is_made_of_the_records_that_are_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner_core.contract.records import Judgement

    (check,) = [c for c in CHECKS if c.__name__ == "judgement_fits_together"]
    given: list[Any] = []

    def judge(self: Any, predicted: Any) -> Any:
        given.append(predicted)
        spread = [float(np.std([getattr(p, name).mean() for p in predicted])) for name in ("prediction", "untrained")]
        return Judgement({"spread": spread[0]}, further={"untrained network": {"spread": spread[1]}})

    case = Case("toy", tmp_path)
    with pytest.raises(SkipTest, match="has no `judge`"):
        check(case)
    declared(monkeypatch, "judging", judge=judge, untrained=True, scored=lambda self, splits: splits["train"])
    check(case)
    assert [p.record.key for p in given[0]] == [case.records[n].key for n in case.data.splits["train"]]
    (together,) = [c for c in CHECKS if c.__name__ == "scores_fit_together"]
    declared(monkeypatch, "judging", untrained=False, judge=lambda self, predicted: None)
    together(case)


def test_metrics_are_held_against_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = [c for c in CHECKS if c.__name__ == "metrics_equal_numpy"]
    case = Case("toy", tmp_path)
    with_pixel_error(monkeypatch, true_error)
    check(case)
    with_pixel_error(monkeypatch, lambda self, prediction, batch: {"error": 0.5})
    with pytest.raises(AssertionError, match=r"recomputed with NumPy it is 0\.5"):
        check(case)
    with_pixel_error(monkeypatch, lambda self, prediction, batch: {})
    with pytest.raises(AssertionError, match="plain_metrics gives"):
        check(case)


def test_what_metrics_get_in_bfloat16_is_kept_for_numpy() -> None:
    import torch

    watcher, values = Watcher(), torch.tensor([0.25, -3.0], dtype=torch.bfloat16)
    watcher.reset()
    watcher.update({"logits": values}, {"label": torch.tensor([1, 0])})
    (seen,), (batch,) = watcher.predictions, watcher.batches
    np.testing.assert_array_equal(seen["logits"], np.array([0.25, -3.0], np.float32))
    np.testing.assert_array_equal(batch["label"], [1, 0])
