"""torch and TensorFlow share one environment: neither overwrites the other's CUDA libraries, and either may be
imported first."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import Distribution, PackagePath, PathDistribution, distributions
from itertools import permutations
from pathlib import Path

import pytest
from packaging.requirements import Requirement

COMPUTE = {
    "torch": "import torch; assert float(torch.ones(3).square().sum()) == 3",
    "tensorflow": "import tensorflow as tf; assert float(tf.reduce_sum(tf.square(tf.ones(3)))) == 3",
    "jax": "import jax.numpy as jnp; assert float(jnp.square(jnp.ones(3)).sum()) == 3",
}
TWICE_REQUIRED = ("nvidia-cudnn", "nvidia-nccl")
"""Packages that torch and TensorFlow both need, in versions that need not agree."""


@pytest.mark.parametrize("first, then", list(permutations(COMPUTE, 2)))
def test_frameworks_work_in_one_process_in_any_order(first: str, then: str) -> None:
    code = "\n".join([COMPUTE[first], COMPUTE[then], COMPUTE[first]])
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


TORCH_PROJECTS = {
    # MONAI imports tensorboard, which imports TensorFlow where it finds it
    "brainunet": (
        "import pathlib, numpy as np; from runner_brainunet.scores import surface_scores\n"
        "surface_scores(np.ones((4, 4, 4), bool), np.ones((4, 4, 4), bool), (1, 1, 1))\n"
        "from runner_core.output.sinks.tensorboard import TensorBoardSink\n"
        "sink = TensorBoardSink(pathlib.Path('events'))\n"
        "sink.event('train', 1, {'loss': 0.5}); sink.close()\n"
        "assert any(pathlib.Path('events').iterdir())\n"
        "assert 'monai' in sys.modules and 'tensorboard' in sys.modules\n"
    ),
    # so does transformers, which mamba-ssm imports
    "ssmunet": (
        "import torch; from runner_ssmunet.network import SSMUNetwork\n"
        "network = SSMUNetwork([1000.0 + 10 * i for i in range(40)], 3, filters=2, embed=4, base=4)\n"
        "network(torch.rand(2, 16, 16, 40), torch.ones(2, 16, 16, dtype=torch.bool)).sum().backward()\n"
    ),
    # timm has readers of TensorFlow's data sets
    "dinocell": (
        "import torch; from runner_dinocell.config import demo; from runner_dinocell.network import DinoNet\n"
        "import runner_dinocell.export, runner_dinocell.judgement, sklearn.linear_model\n"
        "assert DinoNet(demo(), 2).embed(torch.zeros(1, 2, 48, 48)).shape == (1, 96)\n"
    ),
}


@pytest.mark.parametrize("project", TORCH_PROJECTS)
def test_a_torch_project_never_loads_tensorflow(project: str, tmp_path: Path) -> None:
    code = f"import sys\n{TORCH_PROJECTS[project]}assert not {{'tensorflow', 'keras', 'jax'}} & set(sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def disputed(installed: Iterable[Distribution]) -> dict[str, list[str]]:
    """Files that several packages' records claim, with contents that differ: path → packages."""
    owners: defaultdict[str, dict[str, str | None]] = defaultdict(dict)
    for distribution in installed:
        name = distribution.name
        for file in distribution.files or ():
            owners[os.path.normpath(distribution.locate_file(file))][name] = file.hash and file.hash.value
    return {path: sorted(of) for path, of in owners.items() if len(set(of.values())) > 1}


def changed(installed: Iterable[Distribution], every_byte: bool) -> list[str]:
    """Files that are missing, or differ in size (or, with `every_byte`, in hash) from their packages' records."""
    wrong = []
    for distribution in installed:
        name = distribution.name
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            sized = file.size is None or (path.exists() and path.stat().st_size == file.size)
            if not sized or (every_byte and file.hash is not None and _hash(path, file) != file.hash.value):
                wrong.append(f"{name}: {file}")
    return wrong


def _hash(path: Path, file: PackagePath) -> str:
    assert file.hash is not None
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, file.hash.mode).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def test_no_file_belongs_to_two_packages() -> None:
    assert disputed(distributions()) == {}


def test_installed_files_are_as_large_as_their_wheels_say() -> None:
    assert changed(distributions(), every_byte=False) == []


def test_cudnn_and_nccl_are_what_their_wheels_say() -> None:
    """Every byte: 1.5 GB, a few seconds."""
    libraries = [d for d in distributions() if d.name.startswith(TWICE_REQUIRED)]
    assert len(libraries) == len(TWICE_REQUIRED), [d.name for d in libraries]
    assert changed(libraries, every_byte=True) == []


def test_an_overwritten_library_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"theirs")
    for name, content in (("ours", b"ours!!"), ("theirs", b"theirs")):
        value = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "RECORD").write_text(f"lib.so,sha256={value},6\n")
    installed = [PathDistribution(info) for info in sorted(tmp_path.glob("*.dist-info"))]
    assert disputed(installed) == {str(tmp_path / "lib.so"): ["ours", "theirs"]}
    assert changed(installed, every_byte=True) == ["ours: lib.so"]
    assert changed(installed, every_byte=False) == []


def test_no_package_takes_a_torch_or_blosc2_that_is_to_be_avoided() -> None:
    """torch 2.9 is left out, alone or not; before blosc2 4.14.1 opening a file could run code that is stored in it."""
    root, found = Path(__file__).parent.parent, defaultdict[str, list[Requirement]](list)
    for file in root.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        for lines in (project["dependencies"], *project.get("optional-dependencies", {}).values()):
            for requirement in map(Requirement, lines):
                found[requirement.name].append(requirement)
    assert len(found["torch"]) >= 5
    assert found["blosc2"]
    for requirement in found["torch"]:
        assert not requirement.specifier.contains("2.9.1")
        assert requirement.specifier.contains("2.10.0")
    for requirement in found["blosc2"]:
        assert not requirement.specifier.contains("4.14.0")
