"""The Keras engine: devices, backends, trained networks out of checkpoints."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
import keras_toy
from runner_core.base.errors import BadInput
from runner_core.contract.run import Damaged
from runner_core.engines import device
from runner_core.training.checkpoints import Checkpoints

keras = pytest.importorskip("keras", reason="the keras engine is not installed (extra keras)")
tf = pytest.importorskip("tensorflow")
from runner_core.engines.keras import tensorflow as ours  # noqa: E402
from runner_core.engines.keras.checkpoint import ArraysFormat  # noqa: E402

without_gpu = pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU")


def made(**settings):
    return toy.ToySetup(keras_toy.KerasToy(toy.small(**settings)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    keras_toy.run(toy.small(train__ema=0.9), folder)
    return folder


@pytest.fixture
def state(trained):
    checkpoints = Checkpoints(trained / "checkpoints", ArraysFormat(), project="enginetoy")
    return checkpoints.load(checkpoints.latest()[0])


def test_cpu():
    device = made().device
    assert (device.kind, device.index, device.note) == ("cpu", 0, "")
    assert device.memory_bytes > 1e8
    assert device.name


@pytest.mark.parametrize("asked", ["gpu", "cpu:1", "cuda:x", "cuda:", ""])
def test_device_names(asked):
    with pytest.raises(BadInput, match="it must be auto, cpu, cuda or cuda:NUMBER"):
        made(train__device=asked).device  # noqa: B018


@without_gpu
@pytest.mark.parametrize("asked", ["cuda", "cuda:3"])
def test_no_gpu(asked):
    with pytest.raises(BadInput, match=f"train.device {asked}: TensorFlow sees no GPU here"):
        made(train__device=asked).device  # noqa: B018


@without_gpu
def test_a_gpu_that_tensorflow_cannot_see_is_said(monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    note = made(train__device="auto").device.note
    assert "TensorFlow" in note
    assert "cannot use it" in note
    assert "tensorflow[and-cuda]" in note
    monkeypatch.setattr(device.shutil, "which", lambda name: None)
    assert Path("/dev/nvidia0").exists() or not made(train__device="auto").device.note


def test_the_memory_of_a_gpu(monkeypatch):
    """The driver tells it for TensorFlow's number of the GPU."""

    def total(size, device):
        size._obj.value = 80 << 30 if device.value == 1 else 1
        return 0

    def get(device, index):
        device._obj.value = index
        return 0

    driver = SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGet=get, cuDeviceTotalMem_v2=total)
    monkeypatch.setattr(ours.ctypes, "CDLL", lambda name: driver)
    assert ours._gpu_memory(1) == 80 << 30
    driver.cuInit = lambda flags: 100  # CUDA_ERROR_NO_DEVICE
    assert ours._gpu_memory(1) == 0


def test_xla_is_for_gpus():
    """On a CPU it takes minutes to compile and computes slower: only who asks for it gets it."""
    from runner_core.contract import Device

    def xla(kind, compile):
        return made(train__compile=compile).engine._xla(Device(kind))

    assert [xla("cpu", c) for c in ("auto", "on", "off")] == [False, True, False]
    assert [xla("cuda", c) for c in ("auto", "on", "off")] == [True, True, False]


def test_xla_computes_the_same(tmp_path):
    class Plain(keras_toy.KerasToy):
        def optimizer(self, groups):
            return keras.optimizers.SGD(0.05)  # AdamW makes much of a gradient's last digit

        def on_device(self, batch, statistics, rng):
            return super().on_device(batch, statistics, None)  # XLA has random numbers of its own

    settings = {"train__epochs": 1, "train__ema": 0.9, "train__clip": 1.0, "net__dropout": 0.0}
    folders = tmp_path / "with", tmp_path / "without"
    for folder, compile in zip(folders, ("on", "off"), strict=True):
        keras_toy.run(toy.small(train__compile=compile, **settings), folder, project=Plain)
    one, other = (toy.final_state(folder)[1] for folder in folders)
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_everything_is_traced_once_for_each_shape(tmp_path, monkeypatch):
    """A step, two sizes of validation batch (the last is smaller), one look at the weights; again in blocks."""
    traced, trace = [], ours._trace

    def counted(function, *arguments):
        traced.append(getattr(function, "__name__", type(function).__name__))
        return trace(function, *arguments)

    monkeypatch.setattr(ours, "_trace", counted)
    keras_toy.run(toy.small(train__ema=0.9, validate__batch_size=6), tmp_path / "steps")
    assert sorted(traced) == ["<lambda>", "Learning", "Validating", "Validating"]
    traced.clear()
    keras_toy.run(toy.small(train__steps_per_execution=2), tmp_path / "blocks")
    assert traced.count("block") == 2  # epochs of three steps: blocks of two and of one


def test_load(state):
    """The network that validation saw: the average; and the same numbers as Keras computes with it."""
    network, infer, statistics = made().engine.load(made(), state)
    assert statistics["mean"] == 127.5
    np.testing.assert_array_equal(statistics["weights"], [1.0, 2.0])
    ema = {name.removeprefix("ema."): t for name, t in state.tensors.items() if name.startswith("ema.")}
    kernel = next(v for v in network.variables if v.path.endswith("kernel"))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(kernel.value), ema[kernel.path.replace("/", ".")])
    image = np.random.default_rng(0).integers(0, 255, (3, 2, toy.SIDE, toy.SIDE), dtype=np.uint8)
    found = infer({"image": image})["prediction"]
    wanted = network((np.moveaxis(image, 1, -1).astype(np.float32) - 127.5) / 64, training=False)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    one = infer({"image": image[:1]})["prediction"]
    np.testing.assert_allclose(one, found[:1], rtol=1e-5, atol=1e-5)


def test_the_project_knows_its_statistics_before_its_model(state, tmp_path):
    toy.assert_statistics_known(keras_toy.KerasToy, state, tmp_path / "out")


def test_initialise_is_for_a_training_alone(state, tmp_path):
    toy.assert_initialised_for_a_training_alone(keras_toy.KerasToy, state, tmp_path / "out")


@pytest.mark.parametrize("mode", ["bfloat16", "float16"])
def test_a_checkpoint_is_used_under_another_policy(state, mode):
    """Weights are float32 in every checkpoint: nothing is lost, and the network computes as was asked."""
    setup = made(precision__mode=mode)
    network, infer, _ = setup.engine.load(setup, state)
    assert network.layers[0].compute_dtype == mode
    plain = made()
    image = np.random.default_rng(0).integers(0, 255, (3, 2, toy.SIDE, toy.SIDE), dtype=np.uint8)
    found = infer({"image": image})["prediction"]
    assert found.dtype == np.float32
    wanted = plain.engine.load(plain, state).infer({"image": image})["prediction"]
    np.testing.assert_allclose(found, wanted, atol=0.1)
    assert not np.array_equal(found, wanted)


def test_export(state, tmp_path):
    """The file is loaded by Keras alone, in safe mode, in another process."""
    written = made().engine.export(made(), state, tmp_path)
    assert {path.name for path in written} == {"model.keras", "model.json"}
    assert json.loads((tmp_path / "model.json").read_text())["statistics"]["mean"] == 127.5
    image = np.random.default_rng(0).standard_normal((2, toy.SIDE, toy.SIDE, 2)).astype(np.float32)
    np.save(tmp_path / "image.npy", image)
    script = (
        "import keras, numpy as np, sys; m = keras.models.load_model('model.keras', safe_mode=True, compile=False); "
        "np.save('out.npy', m(np.load('image.npy'), training=False)); assert 'runner_core' not in sys.modules"
    )
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, check=True, capture_output=True)
    wanted = made().engine.load(made(), state).network(image, training=False)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), wanted, rtol=1e-5, atol=1e-5)


def test_weights_in_older_formats_are_not_loaded(state, tmp_path):
    network = made().engine.load(made(), state).network
    network.save(tmp_path / "model.keras")
    assert made().engine.read_weights(tmp_path / "model.keras")
    for name in ("model.h5", "model.hdf5"):
        network.save(tmp_path / name)
        with pytest.raises(BadInput, match=rf"{name} is neither a \.safetensors nor a \.keras file"):
            made().engine.read_weights(tmp_path / name)


@pytest.mark.parametrize("own", ["lambda", "class"])
def test_code_in_a_file_is_not_run(own, tmp_path, monkeypatch):
    class Own(keras.layers.Dense):
        pass

    ran = str(tmp_path / "ran")
    image = keras.Input((3,))
    layer = keras.layers.Lambda(lambda x: (open(ran, "w").close(), x)[1]) if own == "lambda" else Own(2)
    keras.Model(image, keras.layers.Dense(2)(layer(image))).save(tmp_path / "theirs.keras")
    Path(ran).unlink(missing_ok=True)
    with pytest.raises(BadInput, match=r"theirs\.keras needs code of its author \((Python lambda|.*'Own')\)") as said:
        made().engine.read_weights(tmp_path / "theirs.keras")
    assert "\n" not in str(said.value)
    assert not Path(ran).exists()


def test_a_damaged_checkpoint(trained, tmp_path):
    newest = max((trained / "checkpoints").glob("step-*"))
    for name in ("state.json", "model.safetensors"):
        (tmp_path / name).write_bytes((newest / name).read_bytes()[:-9])
    with pytest.raises(Damaged, match=r"state.json is damaged or was changed: .*"):
        ArraysFormat().read(tmp_path)


def test_scalars_survive_a_checkpoint(tmp_path):
    from runner_core.contract import State

    tensors = {"model.a": np.float32(3).reshape(()), "b": np.arange(4, dtype=np.uint32)[::2], "ema.c": np.empty((0, 2))}
    ArraysFormat().write(tmp_path, State({}, tensors))
    read = ArraysFormat().read(tmp_path).tensors
    for name, array in tensors.items():
        np.testing.assert_array_equal(read[name], array)
        assert (read[name].shape, read[name].dtype) == (array.shape, array.dtype)


def test_the_summary_tells_versions(trained):
    assert made().engine.versions()["tensorflow"] == tf.__version__
    start = json.loads((trained / "log.jsonl").read_text().splitlines()[0])
    assert start["timing"]["versions"]["keras"] == keras.__version__


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="TensorFlow has oneDNN on x86 only")
@pytest.mark.parametrize(("chosen", "on"), [(None, "True"), ("0", "False")])
def test_convolutions_use_onednn_on_every_x86_processor(chosen, on):
    """Without AVX-512 TensorFlow leaves it off, and a 3-D network takes fifty times as long."""
    code = "import runner_core.engines.keras\nfrom tensorflow.python.util._pywrap_util_port import IsMklEnabled\n"
    env = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
    env |= {"CUDA_VISIBLE_DEVICES": ""} | ({"TF_ENABLE_ONEDNN_OPTS": chosen} if chosen else {})
    words = [sys.executable, "-c", f"{code}print(IsMklEnabled())"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [on], done.stderr


def test_another_backend_is_refused():
    code = "from runner_core.engines.keras.engine import backend; backend()"
    env = {**os.environ, "KERAS_BACKEND": "torch", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    if "No module named 'torch'" in done.stderr:
        pytest.skip("torch is not installed")
    assert "KERAS_BACKEND is torch: set it to tensorflow" in done.stderr


@pytest.mark.weekly
@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_jax_keeps_the_same_promises():
    """The trainer's own tests, with JAX under Keras."""
    tests = Path(__file__).with_name("test_keras_trainer.py")
    env = {**os.environ, "KERAS_BACKEND": "jax", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, cwd=tests.parent, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
