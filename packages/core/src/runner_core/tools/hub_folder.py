"""A folder in the layout of the Hugging Face Hub, of an exported network: `export --to hub-folder`.

    model.safetensors     the weights, for `train --from hf:OWNER/NAME` and for other programs
    config.json           which project and settings they belong to, and the export's own description
    README.md             the model card, below the metadata that the Hub reads

What `export` wrote stays beside them. Nothing is uploaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save_file

from runner_core.base.errors import BadInput
from runner_core.base.hub import ABOUT, OWN, WEIGHTS
from runner_core.base.writing import replace_json, replace_text
from runner_core.contract import Json
from runner_core.contract.project import Project
from runner_core.contract.setup import Setup
from runner_core.engines.export import let_others_read
from runner_core.plugins.builtin import CARD
from runner_core.plugins.settings import PHANTOM
from runner_core.tools.card.facts import FACTS, portable_settings
from runner_core.tools.card.text import shown_scores

HUB_FOLDER = "hub-folder"
"""Its name as a format of `export`."""
README = "README.md"
_KERAS, _DESCRIPTION = "model.keras", "model.json"
_LICENSES = (
    *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0"),
    *("cc-by-nc-sa-4.0", "cc-by-nc-nd-4.0", "gpl-2.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "unlicense"),
)
"""Licenses that the Hub knows by these names, which are SPDX's in small letters; any other is "other" there."""
_FRAMEWORKS = {"torch": "pytorch", "keras": "keras"}


def write_hub_folder(setup: Setup, folder: Path, license_: str) -> list[Path]:
    """Complete an exported folder to one of the Hub, and return the new files.

    Args:
        setup: The run's project and settings.
        folder: The folder of the export.
        license_: License of the weights, "" if it is not stated.

    Raises:
        BadInput: The export has no weights that can be stored as safetensors.
    """
    new = [] if (folder / WEIGHTS).is_file() else [_weights(setup, folder)]
    facts = _json(folder / FACTS)
    card = (folder / CARD).read_text(encoding="utf-8") if (folder / CARD).is_file() else f"# {setup.name}\n"
    head = yaml.safe_dump(metadata(setup.project, facts, license_), sort_keys=False, allow_unicode=True)
    replace_json(folder / ABOUT, _about(setup, facts, folder))
    replace_text(folder / README, f"---\n{head}---\n\n{card}{_use(setup.name)}")
    return [*new, folder / ABOUT, folder / README]


def _weights(setup: Setup, folder: Path) -> Path:
    """Write model.safetensors from the file of Keras, under the names by which a training starts from them."""
    if not (folder / _KERAS).is_file() or not hasattr(setup.engine, "read_weights"):
        raise BadInput(f"project {setup.name} exports neither {WEIGHTS} nor {_KERAS}: there is nothing for the Hub")
    arrays = {name: np.ascontiguousarray(array) for name, array in setup.engine.read_weights(folder / _KERAS).items()}
    save_file(arrays, folder / WEIGHTS)
    let_others_read([folder / WEIGHTS])
    return folder / WEIGHTS


def _about(setup: Setup, facts: Mapping[str, Any], folder: Path) -> dict[str, Json]:
    own: dict[str, Json] = {"project": setup.name, "plugins": dict(setup.plugins.versions), "preset": setup.preset}
    own |= {"settings": portable_settings(setup), "weights": facts.get("weights")}
    return {"library_name": "runner", OWN: own, "model": _json(folder / _DESCRIPTION)}


def _json(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found if isinstance(found, dict) else {}


def metadata(project: Project, facts: Mapping[str, Any], license_: str) -> dict[str, Json]:
    """Return the metadata of the Hub's README: license, library, tags, task, data, metrics and scores.

    `facts` are the card's; empty for weights whose training is not known here. A score is the mean over the validation
    records.
    """
    task, scores = pipeline_tag(project), list(_scores(facts))
    found: dict[str, Json] = {**_license(license_), "library_name": "runner"}
    found["tags"] = ["runner", project.name, _FRAMEWORKS[project.framework]]
    found |= {"pipeline_tag": task} if task else {}
    data = str((facts.get("data") or {}).get("source") or "")
    found |= {"datasets": [data]} if data != PHANTOM and re.fullmatch(r"[\w-][\w.-]{,95}", data) else {}
    if scores:
        result = {
            "task": {"type": task or "other"},
            "dataset": {"name": data or "unknown", "type": data or "unknown", "split": "validation"},
            "metrics": scores,
        }
        found["metrics"] = [score["type"] for score in scores]
        found["model-index"] = [{"name": f"{project.name} {facts['weights']['checkpoint']}", "results": [result]}]
    return found


def _license(license_: str) -> dict[str, Json]:
    if not license_:
        return {"license": "unknown"}
    if license_.lower() in _LICENSES:
        return {"license": license_.lower()}
    return {"license": "other", "license_name": license_.lower()}


def _scores(facts: Mapping[str, Any]) -> Iterator[dict[str, Json]]:
    for score in shown_scores(facts):
        if score["value"] is not None:
            yield {"type": score["name"], "name": score["name"], "value": score["value"]}


def pipeline_tag(project: Project) -> str | None:
    """Return the Hub's name of the project's task; None for a project that does not declare what it combines."""
    combining = project.combining()
    if combining is None:
        return None
    if combining.kind == "probabilities":
        return "image-classification" if combining.write_map is None else "image-segmentation"
    return {"values": "image-to-image", "embeddings": "image-feature-extraction"}[combining.kind]


def _use(project: str) -> str:
    """Return the card's last part: how to use the weights from the Hub."""
    return (
        f"\n## Use with runner\n\n```sh\nrunner {project} train --from hf:OWNER/NAME@REVISION --data DIR\n```\n\n"
        "starts a training from these weights, with the preset and the settings in `config.json`.\n"
    )
