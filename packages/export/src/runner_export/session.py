"""Run an exported network: arrays by name in, arrays by name out; `Script` is the command line of a predict.py.

Needs NumPy, and for model.onnx onnxruntime, for model.xml openvino, for model.pt2 torch, for model.keras keras with a
backend of its own (it alone chooses how many threads). `runner PROJECT export` writes
this file beside the network, with export.json, which says what goes in and what comes out.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
Infer = Callable[[Arrays], Arrays]
Found = TypeVar("Found")
Runtime = Callable[[Path, Sequence[str], Sequence[str], int], Infer]
"""Opens a file with a network, given the names of its inputs and outputs and the number of threads."""


def load(folder: Path | None = None, threads: int = 0) -> Infer:
    """Return the network in `folder` (default: this file's), on `threads` cores (0: all)."""
    folder = folder or Path(__file__).parent
    about = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    return load_networks(folder, about["networks"], threads)


def load_networks(
    folder: Path, networks: Sequence[Mapping[str, Any]], threads: int = 0, runtime: Runtime | None = None
) -> Infer:
    """Return a function that runs the network whose inputs have the names of the given arrays.

    `runtime` opens each file; by default its ending decides.
    """
    by_inputs: dict[frozenset[str], Infer] = {}
    described: dict[frozenset[str], Sequence[Mapping[str, Any]]] = {}
    for network in networks:
        names = [one["name"] for one in network["inputs"]], [one["name"] for one in network["outputs"]]
        opened = runtime or _OPEN[Path(network["file"]).suffix]
        described[frozenset(names[0])] = network["inputs"]
        by_inputs[frozenset(names[0])] = opened(folder / network["file"], *names, threads)

    def infer(arrays: Arrays) -> Arrays:
        if frozenset(arrays) not in by_inputs:
            known = " or ".join(", ".join(sorted(names)) for names in by_inputs)
            raise ValueError(f"no network takes the arrays {', '.join(arrays)}: give {known}")
        for about in described[frozenset(arrays)]:
            _refuse_shape(arrays[about["name"]], about)
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return by_inputs[frozenset(arrays)](contiguous)

    return infer


def _refuse_shape(array: np.ndarray[Any, np.dtype[Any]], about: Mapping[str, Any]) -> None:
    """Raise ValueError for an array of a shape that the network does not take, by export.json."""
    shape, steps = about["shape"], about.get("multiple") or [None] * len(about["shape"])
    fits = array.ndim == len(shape) and all(
        length % (step or 1) == 0 and length > 0 if isinstance(asked, str) else length == asked
        for length, asked, step in zip(array.shape, shape, steps, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{about['name']} has the shape {' × '.join(map(str, array.shape))}, and the network takes "
            f"{' × '.join(map(str, shape))}: a name is any length, with (8n) a multiple of 8"
        )


def _onnx(file: Path, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> Infer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda arrays: dict(zip(outputs, session.run(list(outputs), arrays), strict=True))


def open_openvino(file: Path, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> Infer:
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}  # new CPUs would compute in 16 bits
    compiled = silent_openvino().Core().compile_model(str(file), "CPU", hints)

    def infer(arrays: Arrays) -> Arrays:
        found = compiled([arrays[name] for name in inputs])
        return {name: np.array(found[place]) for place, name in enumerate(outputs)}

    return infer


def silent_openvino() -> Any:
    """Return the package openvino, imported so that it does not report that to its maker's server.

    Its import does so by the package openvino_telemetry, and does without where that cannot be imported.
    """
    if "openvino" not in sys.modules:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    import openvino

    return openvino


def _torch(file: Path, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> Infer:
    import torch

    _refuse_pickle(file)
    with warnings.catch_warnings():  # of weights in memory that cannot be written to: nothing writes to them
        warnings.simplefilter("ignore")
        module = torch.export.load(file).module()

    @torch.no_grad()
    def infer(arrays: Arrays) -> Arrays:
        found = module(*(torch.from_numpy(arrays[name]) for name in inputs))
        return {name: tensor.numpy() for name, tensor in zip(outputs, found, strict=True)}

    return infer


def _refuse_pickle(file: Path) -> None:
    """Raise ValueError for a .pt2 with pickled parts, which PyTorch would run; `export` writes none."""
    with zipfile.ZipFile(file) as archive:
        for part in archive.infolist():
            pickled = part.filename.endswith(".pt") and part.file_size > 0  # examples, and weights of older releases
            if part.filename.endswith("_config.json"):
                tensors = json.loads(archive.read(part))["config"].values()
                pickled = any(one["use_pickle"] is not False for one in tensors)
            if pickled:
                raise ValueError(f"{file}: {part.filename} is pickled, or names what is; export it again")


def _keras(file: Path, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> Infer:
    import keras

    model = keras.models.load_model(file, compile=False)  # in safe mode: a file with code in it is refused

    def infer(arrays: Arrays) -> Arrays:
        given = [arrays[name] for name in inputs]
        found = keras.tree.flatten(model(given if len(given) > 1 else given[0], training=False))
        return {name: keras.ops.convert_to_numpy(one) for name, one in zip(outputs, found, strict=True)}

    return infer


_OPEN: dict[str, Runtime] = {
    ".keras": _keras,
    ".onnx": _onnx,
    ".xml": open_openvino,
    ".pt2": _torch,
}


class Script:
    """The command line of a project's predict.py: files in, a file for each in the folder `--out`.

    `item` is the word for one of the files ("scan"), `results` the word for what is written ("masks"), `files` says in
    `--help` which files are read, and `done` is the verb of a failure ("not predicted"). `parser` takes more arguments.
    """

    def __init__(self, about: str | None, item: str, results: str, *, files: str, done: str = "predicted") -> None:
        self.item, self.results, self.done = item, results, done
        self.parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.parser.add_argument("files", nargs="+", type=Path, metavar=item.upper(), help=files)
        self.parser.add_argument("--out", type=Path, required=True, help=f"folder for the {results}")
        self.parser.add_argument("--threads", type=int, default=0, help="processor cores; 0: all")

    def run(
        self,
        options: argparse.Namespace,
        name: Callable[[Path], str],
        predict: Callable[[Path, Infer, dict[str, Any]], Found],
        write: Callable[[Path, Found], str],
    ) -> int:
        """Predict each file, write what was found, and return the exit code: 2 if a file could not be predicted.

        `name` names the result of a file; `predict` gets a file, the network beside this module, and predict.json;
        `write` gets the result's path and what was found, and returns what the screen says of it. A file that `predict`
        refuses with ValueError, or that cannot be read, is named on the standard error, and the others are predicted. A
        result that cannot be written ends the work, and nothing of it stays.
        """
        targets = [options.out / name(path) for path in options.files]
        if len({*targets}) < len(targets):
            self.parser.error(
                f"two {self.item}s have the same name, and so would their {self.results}: "
                "predict them into folders of their own"
            )
        if options.threads < 0:
            self.parser.error(f"--threads {options.threads}: give 0 (all) or more")
        try:
            options.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.parser.error(f"--out {options.out}: no folder can be made there ({error.strerror}); name another")
        settings = json.loads(Path(__file__).with_name("predict.json").read_text(encoding="utf-8"))
        infer = load(threads=options.threads)
        failed, read = 0, {path.resolve() for path in options.files}
        for path, target in zip(options.files, targets, strict=True):
            try:
                if target.resolve() in read:
                    raise ValueError(
                        f"{target} is to be read, and would be overwritten; name another folder with --out"
                    )
                found = predict(path, infer, settings)
            except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
                failed += 1
                reason = f"{path}: {error}"
                if isinstance(error, OSError) and error.filename:
                    reason = f"{error.filename}: {error.strerror}; check the path, and that it can be read"
                print(f"not {self.done}: {reason}", file=sys.stderr)
                continue
            try:
                said = write(target, found)
            except OSError as error:  # the next file would meet the same full disk
                target.unlink(missing_ok=True)
                print(
                    f"{target}: not written ({error.strerror or error}); make room, or name another --out",
                    file=sys.stderr,
                )
                return 2
            print(f"{target}: {said}")
        return 2 if failed else 0
