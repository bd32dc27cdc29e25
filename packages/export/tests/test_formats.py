"""Exports of the toy: what is written computes what the checkpoint computes, or is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from runner_core import BadInput, Run, Unhealthy
from runner_core.testing.toy import Toy
from runner_export import formats, parity, session
from runner_export.axes import multiples, other_lengths
from runner_export.window import Graph

Exported = Callable[[str], Path]
FORMATS = ("onnx", "openvino", "torch-export")


def about(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "export.json").read_text())
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_computes_what_the_checkpoint_computes(run: Run, exported: Exported, name: str) -> None:
    infer = session.load(exported(name), threads=1)
    rng = np.random.default_rng(0)
    network = run.network()
    for shape in ((1, 16, 16), (5, 16, 16), (2, 23, 9)):  # no example was of the last two
        image = rng.normal(size=shape).astype(np.float32)
        expected = network.infer({"image": image})["prediction"]
        np.testing.assert_allclose(infer({"image": image})["prediction"], expected, atol=1e-5)
    written = about(exported(name))
    assert written["parity"]["largest_difference"] <= 1e-5 < written["parity"]["tolerance"] < 0.01
    assert (written["parity"]["records"], written["parity"]["windows"]) == (2, 3)
    (network_,) = written["networks"]
    assert network_["inputs"] == [
        {"name": "image", "dtype": "float32", "shape": ["batch", "image_1", "image_2"], "multiple": [1, 1, 1]}
    ]
    assert network_["outputs"][0]["shape"] == ["batch", 1, "image_1", "image_2"]
    assert {"eager", name} <= set(written["latency"]["milliseconds"])
    assert written["bytes"][name] > 300
    assert {"README.md", "MODEL_CARD.md", "ro-crate-metadata.json", "session.py", "predict.py"} <= {
        file.name for file in exported(name).iterdir()
    }


def test_the_onnx_file_is_valid(exported: Exported) -> None:
    model = onnx.load(exported("onnx") / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [opset.version for opset in model.opset_import if not opset.domain] == [20]
    assert "openvino" in about(exported("onnx"))["latency"]["milliseconds"]


def test_the_script_predicts_the_same_where_runner_cannot_be_imported(
    run: Run, exported: Exported, tmp_path: Path
) -> None:
    folder = shutil.copytree(exported("onnx"), tmp_path / "away")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('runner_core', 'runner_export', 'torch'):\n    sys.modules[name] = None\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code = "import runner_core"
    blocked = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert blocked.returncode == 1, "the test is void: runner can be imported"
    network = run.network()
    for record, cropped in network.each():
        out = tmp_path / "out.npy"
        words = [sys.executable, folder / "predict.py", record.files["image"], out]
        subprocess.run(words, env=environment, check=True, timeout=120)
        np.testing.assert_array_equal(np.load(out), network.project.predict(cropped, network.infer))


def test_8_bits_are_scored_beside_32(run: Run, exported: Exported) -> None:
    folder = exported("onnx-int8")
    written = about(folder)
    assert (written["int8"]["calibrated_on"], written["int8"]["scored"]) == (1, 1)
    assert set(written["int8"]["scores"]["error"]) == {"float32", "int8"}
    kinds = {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    assert {"onnx", "onnx-int8", "eager"} <= set(written["latency"]["milliseconds"])
    assert "| error |" in (folder / "README.md").read_text()
    image = next(cropped.prepared["image"][None] for _, _, cropped in run.records())
    exact, rounded = (session.load(exported(name))({"image": image})["prediction"] for name in ("onnx", "onnx-int8"))
    assert 0 < np.abs(exact - rounded).max() < 0.1 * np.abs(exact).max()


def test_a_network_that_computes_something_else_is_refused_and_nothing_is_left(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*arguments: Any) -> Any:
        infer = session.load_networks(*arguments)
        return lambda arrays: {name: array * 1.001 for name, array in infer(arrays).items()}

    monkeypatch.setattr(formats, "load_networks", wrong)
    with pytest.raises(Unhealthy, match=r"something else than step-00000012: largest difference 0\.0\d+ \(allowed"):
        run.export(tmp_path / "out", to="onnx")
    assert not (tmp_path / "out").exists()


def test_what_the_exporter_cannot_do_is_one_message(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(Graph):
        def forward(self, *tensors: Any) -> Any:
            if float(tensors[0].sum()) > 0:  # depends on the data
                return super().forward(*tensors)
            return super().forward(*(-tensor for tensor in tensors))

    monkeypatch.setattr("runner_export.window.Graph", Odd)
    for name in ("onnx", "torch-export"):
        with pytest.raises(BadInput, match=f"--to {name}: PyTorch .* cannot export this network: "):
            run.export(tmp_path / "out", to=name)
    assert not (tmp_path / "out").exists()


def test_a_format_that_a_project_refuses(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner_core import Standalone

    monkeypatch.setattr(Toy, "standalone", lambda self: Standalone(refused={"onnx": "it is too odd"}), raising=False)
    import export_toy

    monkeypatch.delattr(export_toy.Exported, "standalone")
    with pytest.raises(BadInput, match="--to onnx: project toy cannot be exported so: it is too odd"):
        run.export(tmp_path / "out", to="onnx")


def test_no_pickle_in_a_pt2_and_none_is_read(exported: Exported, tmp_path: Path) -> None:
    folder = shutil.copytree(exported("torch-export"), tmp_path / "out")
    with zipfile.ZipFile(folder / "model.pt2") as archive:
        parts = {part.filename: archive.read(part) for part in archive.infolist()}
    assert not [name for name, content in parts.items() if content[:2] == b"PK" or content[:1] == b"\x80"]
    session.load(folder)
    config = next(name for name in parts if name.endswith("_weights_config.json"))
    root = config.partition("/")[0]
    marked = parts[config].replace(b'"use_pickle": false', b'"use_pickle":true', 1)
    assert marked != parts[config]
    pickled = b"\x80\x02."
    changes = ({next(name for name in parts if "/sample_inputs/" in name): pickled}, {config: marked},
               {f"{root}/data/weights/model.pt": pickled})  # fmt: skip
    for changed in changes:
        with zipfile.ZipFile(folder / "model.pt2", "w") as archive:
            for name, content in {**parts, **changed}.items():
                archive.writestr(name, content)
        with pytest.raises(ValueError, match="is pickled, or names what is"):
            session.load(folder)


class Pooling:
    """A graph that halves its image twice, and reads three channels."""

    def infer(self, arrays: dict[str, Any]) -> dict[str, Any]:
        batch, channels, height, width = arrays["image"].shape
        if channels != 3 or height % 4 or width % 2:
            raise ValueError("shape")
        return {"prediction": np.zeros((batch, 1, height // 4, width // 2))}


def test_axes_that_may_vary_are_found_by_trying() -> None:
    example = {"image": np.zeros((2, 3, 16, 16), np.uint8), "scale": np.zeros((2, 1), np.float32)}
    graph: Any = Pooling()
    found = multiples(graph, example)
    assert found == {"image": [1, None, 4, 2], "scale": [1, None]}
    shapes = {name: array.shape for name, array in other_lengths(example, found).items()}
    assert shapes == {"image": (3, 3, 20, 18), "scale": (3, 1)}


def test_a_network_for_one_number_of_samples_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fixed(*arguments: Any) -> Any:
        infer = session.load_networks(*arguments)

        def only_two(arrays: Any) -> Any:
            if len(arrays["image"]) != 2:
                raise RuntimeError("Expected shape[0] to be equal to 2")
            return infer(arrays)

        return only_two

    monkeypatch.setattr(formats, "load_networks", fixed)
    with pytest.raises(BadInput, match=r"--to onnx: what was written does not run for image \(3, .*: Expected shape"):
        run.export(tmp_path / "out", to="onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("found, difference", [
    ([1.0, 2.0, np.nan, np.inf], 0.0),
    ([1.0, 2.5, np.nan, np.inf], 0.5),
    ([1.0, np.nan, np.nan, np.inf], np.inf),
    ([1.0, 2.0, 3.0, np.inf], np.inf),
    ([1.0, 2.0, np.nan, -np.inf], np.inf),
    ([1.0, 2.0, np.nan], np.inf),
])  # fmt: skip
def test_the_difference_of_outputs(found: list[float], difference: float) -> None:
    measured = parity.Parity()
    measured.add({"a": np.array([1.0, 2.0, np.nan, np.inf])}, {"a": np.array(found)})
    assert measured.largest == difference
    assert measured.tolerance == pytest.approx(2 * 2**-11.5, rel=1e-3)


def test_a_large_output_does_not_excuse_a_small_one() -> None:
    measured = parity.Parity()
    exact = {"logits": np.array([1e4, -1.0]), "probability": np.array([0.25, 0.75])}
    measured.add(exact, {"logits": exact["logits"] + 1, "probability": exact["probability"]})
    assert measured.largest <= measured.tolerance
    measured.add(exact, {"logits": exact["logits"], "probability": exact["probability"] + 0.01})
    assert measured.output == "probability"
    assert measured.largest > measured.tolerance


def test_a_small_output_is_compared_by_its_own_size() -> None:
    measured = parity.Parity()
    measured.add({"rate": np.array([1e-3, 5e-4])}, {"rate": np.array([1e-3, 5.1e-4])})
    assert measured.tolerance == pytest.approx(1e-3 * parity.DIGITS)
    assert measured.largest > measured.tolerance
    nothing = parity.Parity()
    nothing.add({"rate": np.zeros(2)}, {"rate": np.full(2, 1e-8)})
    assert nothing.largest <= nothing.tolerance == parity.DIGITS**2


def test_arrays_that_no_network_takes_are_named(exported: Exported) -> None:
    infer = session.load(exported("onnx"), threads=1)
    with pytest.raises(ValueError, match="no network takes the arrays picture: give image"):
        infer({"picture": np.zeros((1, 16, 16), np.float32)})


def test_a_script_goes_on_after_a_file_that_it_refuses_and_writes_over_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loop of every predict.py: failures are named on the standard error and give exit code 2."""
    (tmp_path / "predict.json").write_text('{"factor": 3}')
    monkeypatch.setattr(session, "__file__", str(tmp_path / "session.py"))
    monkeypatch.setattr(session, "load", lambda threads: lambda arrays: {"prediction": arrays["x"] * threads})
    script = session.Script("About it.", "scan", "masks", files=".txt", done="read")

    def found(path: Path, infer: session.Infer, settings: dict[str, Any]) -> int:
        return int(infer({"x": np.array(int(path.read_text()))})["prediction"]) * int(settings["factor"])

    def written(path: Path, number: int) -> str:
        path.write_text(str(number))
        return f"{number} voxels"

    def run(*words: str | Path) -> int:
        return script.run(script.parser.parse_args(list(map(str, words))), lambda path: path.name, found, written)

    for name, text in (("a/1", "5"), ("a/2", "five"), ("b/1", "6"), ("b/3", "7")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as refused:
        run(tmp_path / "a/1", tmp_path / "b/1", "--out", out)
    assert refused.value.code == 2
    assert "two scans have the same name, and so would their masks" in capsys.readouterr().err
    for words, why in (
        (("--out", tmp_path / "a/1"), "no folder can be made there (File exists)"),
        (("--out", out, "--threads", "-3"), "--threads -3: give 0 (all) or more"),
    ):
        with pytest.raises(SystemExit) as refused:
            run(tmp_path / "a/1", *words)
        assert refused.value.code == 2
        assert why in capsys.readouterr().err
    assert not out.exists()
    assert run(tmp_path / "a/1", "--out", out, "--threads", "2") == 0
    assert run(tmp_path / "a/2", tmp_path / "c", tmp_path / "b/3", "--out", out, "--threads", "1") == 2
    said = capsys.readouterr()
    assert said.out == f"{out / '1'}: 30 voxels\n{out / '3'}: 21 voxels\n"
    assert f"not read: {tmp_path / 'a/2'}: invalid literal" in said.err
    reason = "No such file or directory; check the path, and that it can be read\n"
    assert said.err.endswith(f"not read: {tmp_path / 'c'}: {reason}")
    assert run(tmp_path / "a/1", "--out", tmp_path / "a") == 2
    refused_file = f"{tmp_path / 'a/1'} is to be read, and would be overwritten; name another folder with --out"
    assert refused_file in capsys.readouterr().err
    options = script.parser.parse_args([*map(str, (tmp_path / "b/3", tmp_path / "a/1")), f"--out={tmp_path / 'a'}"])
    assert script.run(options, {tmp_path / "b/3": "1", tmp_path / "a/1": "new"}.__getitem__, found, written) == 2
    assert refused_file in capsys.readouterr().err
    assert (tmp_path / "a/1").read_text() == "5"
    assert (tmp_path / "a/new").exists(), "the other one is predicted"
    (tmp_path / "full").mkdir()

    def full(path: Path, number: int) -> str:
        path.write_text(str(number))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    options = script.parser.parse_args([str(tmp_path / "b/3"), f"--out={tmp_path / 'full'}"])
    assert script.run(options, lambda path: path.name, found, full) == 2
    reason = "not written (No space left on device); make room, or name another --out\n"
    assert capsys.readouterr().err == f"{tmp_path / 'full/3'}: {reason}"
    assert not (tmp_path / "full/3").exists()


def test_openvino_reports_to_nobody(tmp_path: Path) -> None:
    if find_spec("openvino") is None:
        pytest.skip("OpenVINO is not installed")
    (tmp_path / "openvino_telemetry.py").write_text("print('reported')\nraise ImportError\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def said(code: str) -> str:
        return subprocess.check_output([sys.executable, "-c", code], text=True, env=environment, timeout=120)

    if "reported" not in said("import openvino"):
        pytest.skip("this release of OpenVINO does not report its import")
    silent = "from runner_export.session import silent_openvino; print(silent_openvino().Core().available_devices)"
    assert "CPU" in said(silent)
    assert "reported" not in said(silent)
    sources = [file.read_text() for file in Path(session.__file__).parent.glob("*.py")]
    assert sum(text.count("import openvino\n") for text in sources) == 1, "all others go through silent_openvino"
