"""The files beside an exported network: export.json, README.md, and predict.py with what it reads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from runner_core import ExportJob, Json, Standalone, replace_json, replace_text

from runner_export import session

ABOUT, SCRIPT, SETTINGS = "export.json", "predict.py", "predict.json"
_NEEDS = {"onnx": "onnxruntime", "onnx-int8": "onnxruntime", "openvino": "openvino", "torch-export": "torch"}


def write_beside(job: ExportJob, name: str, about: Mapping[str, Any]) -> list[Path]:
    """Write all files but the network's own, and return them. `about` is the content of export.json.

    A format whose network does not begin with stored arrays, keras, has no predict.py.
    """
    standalone = job.project.standalone()
    if name not in _NEEDS:
        standalone = Standalone(missing="`model.json` describes the work around the network")
    written = [job.folder / ABOUT, job.folder / Path(session.__file__).name, job.folder / "README.md"]
    script: dict[str, Json] = {"file": None, "why": standalone.missing}
    if standalone.files:
        script = {"file": SCRIPT, "settings": SETTINGS, "needs": ["numpy", _NEEDS[name]]}
        targets = [job.folder / (file.name if place else SCRIPT) for place, file in enumerate(standalone.files)]
        for file, target in zip(standalone.files, targets, strict=True):
            shutil.copyfile(file, target)
        replace_json(job.folder / SETTINGS, standalone.settings)
        written += [*targets, job.folder / SETTINGS]
    content: dict[str, Any] = {"format": name, "project": job.project.name, "checkpoint": job.checkpoint}
    content |= {"made_by": f"runner-export {version('runner-export')}"}
    content |= {**about, "script": script}
    replace_json(job.folder / ABOUT, content)
    shutil.copyfile(session.__file__, written[1])
    replace_text(written[2], _readme(content))
    return written


def _readme(about: Mapping[str, Any]) -> str:
    """Return the page that says what lies here, how to use it, and the measured figures."""
    script, parity = about["script"], about["parity"]
    lines = [
        f"# {about['project']} as {about['format']}",
        "",
        f"Written by {about['made_by']} from the checkpoint {about['checkpoint']}. `export.json` has every figure.",
        "",
    ]
    if script["file"]:
        lines += [
            f"`python {script['file']} --help` says how to predict: it needs {' and '.join(script['needs'])} alone,",
            f"and does before and after the network what `{script['settings']}` says.",
        ]
    else:
        lines += [f"There is no `{SCRIPT}`: {script['why']}. `session.load()` runs the network alone."]
    lines += ["", "| network | input | type | shape |", "|---|---|---|---|"]
    for network in about["networks"]:
        for one in network["inputs"]:
            lines.append(f"| {network['file']} | {one['name']} | {one['dtype']} | {_shape(one)} |")
        for one in network["outputs"]:
            lines.append(f"| {network['file']} | → {one['name']} | {one['dtype']} | {_shape(one)} |")
    lines += [
        "",
        "A name in place of a length means any length, or with (8n) any multiple of 8.",
        "",
        f"{'Before it had 8 bits, it was compared' if 'int8' in about else 'Compared'} with the checkpoint in "
        f"{parity['windows']} windows, of {parity['records']} {parity['of']}:",
        f"the largest difference is {parity['largest_difference']:.3g}, and outputs reach "
        f"{parity['largest_output']:.3g}.",
    ]
    if "int8" in about:
        scores, scored = about["int8"]["scores"], f"{about['int8']['scored']} {about['int8']['of']}"
        lines += ["", f"| score, mean of {scored} | float32 | 8 bits |", "|---|---|---|"]
        lines += [f"| {name} | {both['float32']:.4f} | {both['int8']:.4f} |" for name, both in scores.items()]
    speed = about["latency"]
    lines += ["", "| runtime | ms | MB |", "|---|---|---|"]
    for runtime, milliseconds in speed["milliseconds"].items():
        size = about["bytes"].get(runtime)
        lines.append(f"| {runtime} | {milliseconds:.3g} | {'' if size is None else f'{size / 1e6:.3g}'} |")
    lines += [
        "",
        f"Median milliseconds of one call with {speed['input']}, in turns, {speed['threads']} threads, on "
        f"{speed['processor']}.",
        "",
    ]
    return "\n".join(lines)


def _shape(one: Mapping[str, Any]) -> str:
    return " × ".join(map(str, one["shape"]))
