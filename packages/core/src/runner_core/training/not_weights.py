"""Name what a path that was given as weights is instead, and what to give in its place."""

from __future__ import annotations

from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.files import read_json
from runner_core.base.location import shell_word
from runner_core.output.runfolder import RunFolder

_ANY = "give a run, one of its checkpoints, or a file of weights (.safetensors)"
_ORIGIN = "it runs, but cannot be trained: give the run or the checkpoint that it was exported from"
_EXPORTED = {".onnx": "ONNX", ".xml": "OpenVINO", ".pt2": "torch.export"}
_ARRAYS = {".npy": "NumPy", ".npz": "NumPy", ".nii": "NIfTI", ".gz": "gzip", ".tif": "TIFF", ".tiff": "TIFF"}
_FIRST = 512
_CONTROLS = {*range(32), 127} - {*b"\t\n\r\f\x1b"}
_POINTER = b"version https://git-lfs"
"""What a pointer of Git LFS begins with: the engines say how to fetch the file itself."""


def refuse_part_of_run(named: Path, run: RunFolder) -> None:
    """Raise BadInput for a file or folder of a run that holds no weights; `named` is no checkpoint of it."""
    path = next((place for place in named.parents if place.absolute() == run.path), run.path)  # as the user wrote it
    places = sorted((path / run.checkpoints.name).glob("step-*"))
    one = f", or a checkpoint (--from {shell_word(places[-1])})" if places else ""
    what = "the folder of checkpoints" if named.absolute() == run.checkpoints else "no weights but a part"
    raise BadInput(f"--from {named}: it is {what} of the run {path}; give the run (--from {shell_word(path)}){one}")


def refuse_not_weights(named: Path, framework: str) -> None:
    """Raise BadInput for a file that holds no weights, by its ending or because it is text, and for a folder without.

    Other files pass: whether they hold weights is seen when they are read.
    """
    if found := _folder(named) if named.is_dir() else _file(named, framework):
        what, instead = found
        raise BadInput(f"--from {named} cannot be read as weights: it is {what}; {instead}")


def _folder(folder: Path) -> tuple[str, str]:
    exported = read_json(folder / "export.json", lambda found: str(found["format"]), "export the network again")
    if exported is not None:
        return f"a network exported as {exported[:40]}", _ORIGIN
    if any((inside / "config.yaml").is_file() for inside in folder.iterdir()):
        return "a folder of runs", "give one of them"
    return "neither a run nor a folder with weights", _ANY


def _file(file: Path, framework: str) -> tuple[str, str] | None:
    if not file.is_file():
        return "no ordinary file", _ANY
    kind = file.suffix.lower()
    if kind == ".bin" and file.with_suffix(".xml").is_file():
        kind = ".xml"
    with file.open("rb") as opened:
        first = opened.read(_FIRST)
    text = ("a text file", _ANY)
    if kind in (".yaml", ".yml"):
        text = ("a settings file", f"give settings with --config, and here {_ANY.removeprefix('give ')}")
    cases = (
        (not first, ("an empty file", _ANY)),
        (first.startswith(_POINTER), None),
        (kind in _EXPORTED, (f"a network in the format of {_EXPORTED.get(kind)}", _ORIGIN)),
        (kind in _ARRAYS, (f"a file of {_ARRAYS.get(kind)}", _ANY)),
        (kind == ".keras" != f".{framework}", (f"a network of Keras, and this project's is one of {framework}", _ANY)),
        (_is_text(first), text),
    )
    return next((found for holds, found in cases if holds), None)


def _is_text(first: bytes) -> bool:
    """Return whether a file's first bytes are text: UTF-8, which may be cut, without control characters."""
    try:
        first.decode()
    except UnicodeDecodeError as error:
        if error.start < len(first) - 3:
            return False
    return not _CONTROLS & {*first}
