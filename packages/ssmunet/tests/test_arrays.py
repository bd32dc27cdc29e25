"""A core from Python, with its axis or on the network's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runner_core import BadInput
from runner_ssmunet.config import SSMConfig
from runner_ssmunet.outputs import Segmented
from runner_ssmunet.project import SSMUNet

AXIS = np.linspace(900, 1800, 300)
CORE = np.random.default_rng(0).random((12, 14, 300)).astype(np.float32)
TISSUE = np.ones((12, 14), bool)


def project() -> SSMUNet:
    found = SSMUNet(SSMConfig())
    found.statistics = {"wavenumbers": AXIS[::2]}
    return found


def test_an_array_is_decoded_like_its_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "core_1.npz", X=CORE, wn=AXIS, tissue_mask=TISSUE)
    (tmp_path / "array").mkdir()
    own = project()
    path = own.write_input({"image": CORE, "wavenumbers": AXIS, "tissue": TISSUE}, None, tmp_path / "array")
    one, other = (own.decode(own.inputs(file)[0]) for file in (path, tmp_path / "core_1.npz"))
    np.testing.assert_array_equal(one.arrays["spectra"], other.arrays["spectra"])
    np.testing.assert_array_equal(one.arrays["tissue"], other.arrays["tissue"])
    assert one.meta["wavenumbers"] == other.meta["wavenumbers"]


def test_without_an_axis_it_is_the_networks(tmp_path: Path) -> None:
    with np.load(project().write_input({"image": CORE[..., ::2]}, None, tmp_path)) as written:
        np.testing.assert_array_equal(written["wn"], AXIS[::2])


def test_what_is_needed_is_said(tmp_path: Path) -> None:
    for arrays, message in (
        ({"image": CORE}, "300 bands, the network reads 150"),
        ({"image": CORE > 0}, "true and false"),
        ({"image": CORE[0]}, "rows, columns, bands"),
        ({"wavenumbers": AXIS}, "called image"),
        ({"image": CORE, "mask": TISSUE}, "mask: a core is given as"),
    ):
        with pytest.raises(BadInput, match=message):
            project().write_input(arrays, None, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_prediction_is_its_classes() -> None:
    classes = np.arange(6, dtype=np.uint8).reshape(2, 3)
    found = Segmented(classes, np.zeros((6, 2, 3), np.float16), classes > 0, np.empty(0))
    np.testing.assert_array_equal(np.asarray(found), classes)
