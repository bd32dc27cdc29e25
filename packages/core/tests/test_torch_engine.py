"""The torch engine: devices, backends, trained networks out of checkpoints."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
from runner_core.base.errors import BadInput
from runner_core.engines import device
from runner_core.training.checkpoints import Checkpoints

torch = pytest.importorskip("torch")
from runner_core.engines.torch import TorchEngine  # noqa: E402
from runner_core.engines.torch.checkpoint import SafetensorsFormat  # noqa: E402

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def made(**settings):
    return toy.ToySetup(toy.Toy(toy.small(**settings)))


def test_cpu():
    device = made().device
    assert (device.kind, device.index) == ("cpu", 0)
    assert device.memory_bytes > 1e8
    assert device.name


@pytest.mark.parametrize("asked", ["gpu", "cpu:1", "cuda:x", "cuda:", ""])
def test_device_names(asked):
    with pytest.raises(BadInput, match="it must be auto, cpu, cuda or cuda:NUMBER"):
        made(train__device=asked).device  # noqa: B018


@without_gpu
@pytest.mark.parametrize("asked", ["cuda", "cuda:3"])
def test_no_gpu(asked, monkeypatch):
    with pytest.raises(BadInput, match=f"train.device {asked}: PyTorch sees no GPU here"):
        made(train__device=asked).device  # noqa: B018


@without_gpu
def test_a_gpu_that_torch_cannot_see_is_said(monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert "PyTorch" in made(train__device="auto").device.note
    assert "cannot use it" in made(train__device="auto").device.note
    monkeypatch.setattr(device.shutil, "which", lambda name: None)
    assert Path("/dev/nvidia0").exists() or not made(train__device="auto").device.note


def test_deterministic_mode_and_threads():
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        for deterministic in (True, False):
            setup = made(train__deterministic=deterministic, train__threads=1)
            setup.engine.trainer(setup, toy.make_data(setup.project), 3)
            assert torch.are_deterministic_algorithms_enabled() == deterministic
            assert torch.backends.cudnn.deterministic == deterministic
            assert torch.get_num_threads() == 1
            assert setup.engine.versions()["torch threads"] == "1"
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


def test_buffers_have_the_asked_shape():
    array = TorchEngine(toy.Toy(toy.small()), toy.small(train__device="cpu")).allocate((3, 0, 2), np.dtype(np.int16))
    assert (array.shape, array.dtype) == ((3, 0, 2), np.int16)


@pytest.fixture(scope="module", params=[None, 0.9])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    config = toy.small(train__ema=request.param)
    toy.run(config, folder)
    checkpoints = Checkpoints(folder / "checkpoints", SafetensorsFormat(), project="enginetoy")
    return folder, config, checkpoints.load(checkpoints.latest()[0])


class Predicts(toy.Toy):
    def infer(self, model, batch):
        return {"logits": model(batch["image"])}


def test_a_loaded_network_scores_as_the_trained_one_did(trained):
    """The validation's accuracy again, from the checkpoint alone: weights (averaged, where kept) and statistics."""
    folder, config, state = trained
    setup = toy.ToySetup(Predicts(config))
    network, infer, _ = setup.engine.load(setup, state)
    assert not network.training
    store = toy.MemoryStore()
    samples = setup.project.samples(store, [4, 5], "validation")
    out = {name: np.empty((len(samples), *s.shape), s.dtype) for name, s in samples.spec.items()}
    samples.fill(np.arange(len(samples)), np.arange(len(samples)), 0, 0, out)
    logits = infer({"image": out["image"]})["logits"]
    last = [line for line in toy.log_lines(folder) if line["event"] == "validation"][-1]
    assert ((logits > 0) == (out["mask"] > 0)).mean() == pytest.approx(last["accuracy"], abs=1e-6)


@pytest.mark.parametrize("trained", [0.9], indirect=True)
def test_infer_says_what_it_takes_and_what_a_project_returned(trained):
    _, config, state = trained

    class Answers(toy.Toy):
        answer = staticmethod(lambda prediction: {"prediction": prediction})

        def infer(self, model, batch):
            return self.answer(model(batch["image"]))

    setup = toy.ToySetup(Answers(config))
    infer = setup.engine.load(setup, state).infer
    image = np.zeros((2, 2, 8, 8), np.uint8)
    assert len(infer({"image": image})["prediction"]) == 2
    assert len(infer({"image": image[:1]})["prediction"]) == 1
    with pytest.raises(BadInput, match=r"image \(2, 2, 8, 8\), known \(3,\)\. Write array\[None\]"):
        infer({"image": image, "known": np.zeros(3)})
    with pytest.raises(BadInput, match=r"it got ndarray"):
        infer(image)
    with pytest.raises((RuntimeError, ValueError, IndexError)) as raised:
        infer({"image": image[0, 0]})
    assert "was given the batch image (8, 8)" in raised.value.__notes__[0]
    Answers.answer = staticmethod(lambda prediction: prediction)
    with pytest.raises(BadInput, match=r"`infer` must return tensors by name.*it returned Tensor"):
        infer({"image": image})
    Answers.answer = staticmethod(lambda prediction: {"mean": prediction.mean()})
    with pytest.raises(BadInput, match="'mean', which `infer` returned, is no tensor with the samples"):
        infer({"image": image})


@pytest.mark.parametrize("trained", [0.9], indirect=True)
def test_the_project_knows_its_statistics_before_its_model(trained, tmp_path):
    state = copy.deepcopy(trained[2])
    toy.assert_statistics_known(toy.Toy, state, tmp_path / "out")


@pytest.mark.parametrize("trained", [0.9], indirect=True)
def test_initialise_is_for_a_training_alone(trained, tmp_path):
    toy.assert_initialised_for_a_training_alone(toy.Toy, trained[2], tmp_path / "out")


def test_weights_of_another_network_are_refused(trained):
    _, config, state = trained
    other = toy.small(train__ema=config.train.ema)
    other.net.batchnorm = False
    setup = toy.ToySetup(Predicts(other))
    with pytest.raises(BadInput, match="do not fit this project's network"):
        setup.engine.load(setup, state)


def test_export(trained, tmp_path):
    from safetensors.torch import load_file

    _, config, state = trained
    setup = toy.ToySetup(Predicts(config))
    written = setup.engine.export(setup, state, tmp_path / "out")
    assert [p.name for p in written] == ["model.safetensors", "model.json"]
    network = setup.project.model(setup.precision)
    network.load_state_dict(load_file(written[0]))
    loaded = setup.engine.load(setup, state).network
    assert all(torch.equal(t, loaded.state_dict()[n]) for n, t in network.state_dict().items())
    description = json.loads(written[1].read_text())
    assert description["project"] == "enginetoy"
    assert description["settings"]["net.dropout"] == 0.3
    assert description["statistics"] == {"mean": 127.5, "weights": [1.0, 2.0]}


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_an_export_has_the_permissions_of_other_files(trained, tmp_path, own, mask, mode):
    from safetensors.torch import save_file

    class Exports(Predicts):
        def export(self, model, folder):
            if not own:
                return []
            save_file(model.state_dict(), folder / "mine.safetensors")
            return [folder / "mine.safetensors"]

    setup = toy.ToySetup(Exports(trained[1]))
    before = os.umask(mask)
    try:
        written = setup.engine.export(setup, trained[2], tmp_path / "out")
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in written} == {mode}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(p.name for p in written)


def test_a_projects_own_export(trained, tmp_path):
    class Exports(Predicts):
        def export(self, model, folder):
            (folder / "mine").write_text(str(self.statistics["mean"]))
            return [folder / "mine"]

    setup = toy.ToySetup(Exports(trained[1]))
    assert setup.engine.export(setup, trained[2], tmp_path / "out") == [tmp_path / "out" / "mine"]
