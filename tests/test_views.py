"""Views of every project: undone they lead back, and a network that is equivariant predicts the same with them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from runner_core import Arrays, Project, View
from runner_core.contract.project import views_of
from runner_core.contract.views import averaged

RNG = np.random.default_rng(0)


def _cropped(prepared: Arrays, **decoded: Any) -> Any:
    record = SimpleNamespace(key="r", files={})
    found = SimpleNamespace(arrays=decoded or prepared, meta={}, spacing=(1.0,))
    return SimpleNamespace(record=record, decoded=found, box=None, prepared=prepared)


def _brainunet() -> tuple[Project, Any, Callable[[Arrays], Arrays]]:
    from runner_brainunet.project import BrainUNet

    project = BrainUNet(BrainUNet.presets["small"]())
    shape = (41, 150, 52)  # higher than the square, and of an odd width
    layout = project._layout(shape)
    head = RNG.integers(1, 255, shape, np.uint8)
    prepared = {"image": layout.slices(head), "view": layout.view_of_row()}
    middle = project.config.data.neighbours // 2
    return (
        project,
        _cropped(prepared, image=head),
        lambda arrays: {"prediction": arrays["image"][:, middle : middle + 1] / np.float32(99) - 1},
    )


def _openkbp() -> tuple[Project, Any, Callable[[Arrays], Arrays]]:
    from runner_openkbp.project import OpenKBP

    project = OpenKBP(OpenKBP.presets["demo"]())
    prepared = {name: RNG.integers(0, 1024, (1, 16, 16, 16), np.uint16) for name in ("ct", "masks")}

    def infer(arrays: Arrays) -> Arrays:
        from runner_openkbp.rois import unpack

        parotids = unpack(arrays["masks"][:, 0], "RightParotid") | unpack(arrays["masks"][:, 0], "LeftParotid")
        return {"prediction": (arrays["ct"][:, 0] + 30.0 * parotids).astype(np.float32)[..., None]}

    return project, _cropped(prepared), infer


def _vesuvius() -> tuple[Project, Any, Callable[[Arrays], Arrays]]:
    from runner_vesuvius.project import Vesuvius

    project = Vesuvius(Vesuvius.presets["demo"]())
    prepared = {"image": RNG.integers(0, 255, (40, 66, 53), np.uint8)}
    return project, _cropped(prepared), lambda arrays: {"prediction": arrays["image"][:, None] / np.float32(255)}


def _ssmunet() -> tuple[Project, Any, Callable[[Arrays], Arrays]]:
    from runner_ssmunet.project import SSMUNet

    config = SSMUNet.presets["demo"]()
    config.data.classes = ("a", "b")
    project = SSMUNet(config)
    project._refuse_other_axis = lambda cropped: None  # type: ignore[method-assign]
    tissue = RNG.random((45, 70)) < 0.7
    prepared = {"spectra": RNG.random((45, 70, 5)).astype(np.float32), "tissue": tissue.astype(np.uint8)}

    def infer(arrays: Arrays) -> Arrays:
        if "spectra" in arrays:
            return {"features": arrays["spectra"][..., :2], "attention": arrays["spectra"].mean((1, 2))}
        share = arrays["features"][..., 0] / 2
        return {"prediction": np.stack([share, 1 - share], 1)}

    return project, _cropped(prepared), infer


def _dinocell() -> tuple[Project, Any, Callable[[Arrays], Arrays]]:
    from runner_dinocell.project import DinoCell
    from runner_dinocell.whole import side

    project = DinoCell(DinoCell.presets["demo"]())
    window = side(project.config)
    # windows whose places are whole numbers also when they are counted from the other end
    prepared = {"image": RNG.random((3, 2 * window, 3 * window)).astype(np.float32), "levels": np.ones((3, 2))}
    return project, _cropped(prepared), lambda arrays: {"embedding": arrays["image"].std((2, 3))}


MADE = {made.__name__[1:]: made for made in (_brainunet, _openkbp, _vesuvius, _ssmunet, _dinocell)}


def _declared(project: Project) -> tuple[View, ...]:
    combining = project.combining()
    assert combining is not None
    return combining.views


@pytest.mark.parametrize("name", MADE)
def test_an_equivariant_network_predicts_the_same_in_every_view(name: str) -> None:
    """Each view's own output, undone, is that of the record; so is the mean of all. A wrong axis would show."""
    project, cropped, infer = MADE[name]()
    combining = project.combining()
    assert combining is not None
    kept = {name: array.copy() for name, array in cropped.prepared.items()}
    own = combining.soft(cropped, infer)
    changed = False
    for view in combining.views:
        shown = view.apply(cropped)
        changed |= any(not np.array_equal(shown[n], array) for n, array in cropped.prepared.items())
        seen = SimpleNamespace(**{**vars(cropped), "prepared": shown})
        found = view.undo(combining.soft(seen, infer))
        for n, array in own.items():
            np.testing.assert_allclose(
                found[n], array, rtol=1e-5, atol=1e-5 + (array.dtype == np.uint8), err_msg=view.name
            )
    assert changed
    together = averaged(combining.soft, cropped, infer, combining.views)
    for n, array in own.items():
        np.testing.assert_allclose(together[n], array, rtol=1e-5, atol=1e-5 + (array.dtype == np.uint8))
    for n, array in kept.items():
        np.testing.assert_array_equal(cropped.prepared[n], array)


def test_all_views_of_a_plane_differ_and_are_undone() -> None:
    """Seven views and the record itself are the eight symmetries of a rectangle's grid."""
    project = MADE["dinocell"]()[0]
    plane = np.arange(6).reshape(1, 2, 3)
    seen = [view.apply(_cropped({"image": plane}))["image"] for view in _declared(project)]
    assert len({str(array.tolist()) for array in [plane, *seen]}) == 8
    for view, array in zip(_declared(project), seen, strict=True):
        np.testing.assert_array_equal(view.undo({"windows": array[0]})["windows"], plane[0], err_msg=view.name)


@pytest.mark.parametrize(
    ("words", "count"), [((), 0), (("none",), 0), (("all",), 11), (("mirror-y", "mirror-zx", "mirror-y"), 2)]
)
def test_views_are_chosen_by_name(words: tuple[str, ...], count: int) -> None:
    project = MADE["vesuvius"]()[0]
    project.config.predict.views = words
    assert len(views_of(project)) == count
