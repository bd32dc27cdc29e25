"""Frozen features: those of the network, from any process, and only for the spectra that it was trained on."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from runner_core import BadInput
from runner_ssmunet.classes import Classes, numbers
from runner_ssmunet.config import SpectraConfig, SSMConfig
from runner_ssmunet.export import export, load_network
from runner_ssmunet.frozen import FrozenFeatures
from runner_ssmunet.network import SSMUNetwork

AXIS = np.linspace(910.0, 1790.0, 40)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "export", seed=0)
    return tmp_path / "export"


def write(folder: Path, seed: int, width: float = 80.0) -> None:
    rng = np.random.default_rng(0)
    torch.manual_seed(seed)
    network = SSMUNetwork(AXIS.tolist(), 8, filters=4, states=4, embed=4, base=2, dropout=0.5, width=width)
    statistics = {"wavenumbers": AXIS, "mean": rng.normal(1, 0.1, 40), "std": rng.uniform(0.5, 1, 40)}
    export(network, folder, SSMConfig(), Classes(numbers(8)), statistics)


def core() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(1, 1, (9, 7, 40)).astype(np.float16), rng.random((9, 7)) < 0.5


def test_features_are_the_networks(folder: Path) -> None:
    spectra, tissue = core()
    frozen = FrozenFeatures(folder)
    features = frozen(spectra, tissue)
    assert features.dtype == np.float16
    assert features.shape == (9, 7, frozen.count)
    network, told = load_network(folder)
    scaled = (spectra.astype(np.float64) - told["input"]["mean"]) / told["input"]["std"]
    x = torch.from_numpy(np.where(tissue[..., None], scaled, 0).astype(np.float32))[None]
    with torch.no_grad():
        expected = network.features(x, torch.from_numpy(tissue)[None])[0].numpy()
    np.testing.assert_allclose(features[tissue], expected[tissue], rtol=1e-3, atol=1e-3)
    assert not features[~tissue].any()
    # and with them the network says what it says of the spectra
    with torch.no_grad():
        where = torch.from_numpy(tissue)[None]
        again = network.from_features(torch.from_numpy(features).float()[None], where)
        torch.testing.assert_close(again, network(x, where), rtol=1e-2, atol=1e-2)


def test_no_tissue(folder: Path) -> None:
    spectra, tissue = core()
    assert not FrozenFeatures(folder)(spectra, np.zeros_like(tissue)).any()


IN_A_WORKER = """
import pickle, sys
import numpy as np
frozen = pickle.loads(bytes.fromhex(sys.argv[1]))
frozen.digest, frozen.count, frozen.statistics
assert "torch" not in sys.modules
core = np.load("core.npz")
np.save("features.npy", frozen(core["spectra"], core["tissue"]))
"""


def test_worker_processes_compute_the_same(folder: Path, tmp_path: Path) -> None:
    """They load no framework before they compute."""
    frozen, (spectra, tissue) = FrozenFeatures(folder), core()
    np.savez(tmp_path / "core.npz", spectra=spectra, tissue=tissue)
    sent = pickle.dumps(frozen)
    assert len(sent) < 500
    command = [sys.executable, "-c", IN_A_WORKER, sent.hex()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "features.npy"), frozen(spectra, tissue))


def test_threads_are_given_back(folder: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        FrozenFeatures(folder)(*core())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_statistics_are_those_of_the_export(folder: Path) -> None:
    found = FrozenFeatures(folder).statistics
    assert found["wavenumbers"].tolist() == AXIS.tolist()
    assert found["mean"].dtype == found["std"].dtype == np.float64
    assert found["std"].shape == (40,)


def test_the_digest_is_of_weights_and_settings(folder: Path, tmp_path: Path) -> None:
    """Other features have another digest: a cache that holds the old ones is not taken for them."""
    first = FrozenFeatures(folder).digest
    write(tmp_path / "again", seed=0)
    assert FrozenFeatures(tmp_path / "again").digest == first
    write(tmp_path / "trained on", seed=1)
    write(tmp_path / "wider", seed=0, width=90.0)
    assert len({first, *(FrozenFeatures(tmp_path / name).digest for name in ("trained on", "wider"))}) == 3


def test_an_export_written_anew_is_read_anew(folder: Path) -> None:
    """In one process, to the same folder."""
    before = FrozenFeatures(folder)(*core())
    write(folder, seed=1)
    assert not np.array_equal(FrozenFeatures(folder)(*core()), before)


def test_only_the_spectra_it_was_trained_on(folder: Path) -> None:
    frozen = FrozenFeatures(folder)
    frozen.require(AXIS, SpectraConfig())
    frozen.require(AXIS + 0.1, SpectraConfig())  # an instrument's axis differs that much from day to day
    with pytest.raises(BadInput, match=r"data\.normalise vector, this run has amide1"):
        frozen.require(AXIS, SpectraConfig(normalise="amide1"))
    with pytest.raises(BadInput, match=r"data\.gap \[1350\.0, 1490\.0\], this run has None"):
        frozen.require(AXIS, SpectraConfig(gap=None))
    with pytest.raises(BadInput, match="other wavenumbers"):
        frozen.require(AXIS[1:], SpectraConfig())
    with pytest.raises(BadInput, match="other wavenumbers"):
        frozen.require(AXIS + 20, SpectraConfig())
    frozen.require(AXIS, SpectraConfig(patch=64, classes=("other", "names")))


def test_what_is_no_export_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(BadInput, match=r"model\.json: No such file"):
        FrozenFeatures(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"model\.safetensors: no such file"):
        FrozenFeatures(folder)
