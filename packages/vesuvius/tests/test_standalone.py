"""The script that predicts without runner: its parts against the project's own."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import runner_vesuvius
from runner_vesuvius import postprocess, whole
from runner_vesuvius.config import ScrollConfig
from runner_vesuvius.project import Vesuvius
from runner_vesuvius.standalone import standalone
from scipy import ndimage

SCRIPT = Path(runner_vesuvius.__file__).parent / "standalone" / "predict.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with the modules that lie beside it in an export."""
    for name, module in (("whole", whole), ("session", ModuleType("session"))):
        monkeypatch.setitem(sys.modules, name, module)
    spec = spec_from_file_location("standalone_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(20))
def test_surfaces_are_the_projects(script: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    noise = ndimage.gaussian_filter(rng.random(tuple(rng.integers(2, 24, 3))), rng.choice([0.4, 0.8, 1.5]))
    probability = np.clip((noise - 0.5) * 700 + 128, 0, 255).astype(np.uint8)
    config = ScrollConfig()
    config.predict.threshold, config.predict.seed_threshold = 0.5, float(rng.choice([0.5, 0.9]))
    config.predict.min_size, config.predict.fill_holes = int(rng.integers(0, 40)), int(rng.integers(0, 40))
    settings = standalone(config, ()).settings
    np.testing.assert_array_equal(
        script.surface(probability, settings), postprocess.surface(probability, config.predict)
    )


def test_views_are_the_projects(script: Any) -> None:
    project = Vesuvius(ScrollConfig())
    image = np.random.default_rng(0).integers(0, 256, (4, 5, 6)).astype(np.uint8)
    views = project.combining().views
    assert len(views) == 11

    seen: Any = SimpleNamespace(prepared={"image": image})
    for view in views:
        there = view.apply(seen)["image"]
        np.testing.assert_array_equal(script.turned(image, view.name), there)
        np.testing.assert_array_equal(script.turned(there, view.name, back=True), image)


def test_averages_are_rounded_as_the_projects(script: Any) -> None:
    project = Vesuvius(ScrollConfig())
    project.config.data.patch, project.config.predict.views = (8, 8, 8), ("all",)
    project.config.predict.min_size = project.config.predict.fill_holes = 0
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (9, 12, 10)).astype(np.uint8)

    def infer(arrays: dict[str, Any]) -> dict[str, Any]:
        windows = arrays["image"].astype(np.float32)
        return {"prediction": ((windows + np.roll(windows, 1, 3)) / 510)[:, None]}

    seen: Any = SimpleNamespace(prepared={"image": image}, decoded=None, record=None, box=None)
    combining = project.combining()
    from runner_core.contract.views import averaged

    soft = averaged(combining.soft, seen, infer, combining.views)["surface"][0]
    expected = postprocess.surface(soft, project.config.predict)
    found = script.predict(image, infer, project.standalone().settings)
    assert 0 < expected.mean() < 1
    np.testing.assert_array_equal(found, expected)


def test_what_the_script_does_not_know_is_said() -> None:
    config = ScrollConfig()
    assert [path.name for path in standalone(config, ()).files] == ["predict.py", "whole.py"]
    config.predict.thickness, config.data.normalise = 3.0, "volume"
    found = standalone(config, ())
    assert not found.files
    assert found.missing == (
        "the script does not know predict.along_sheets and predict.thickness, data.normalise volume"
    )
