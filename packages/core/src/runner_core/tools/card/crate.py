"""The exported folder as a research object crate (RO-Crate 1.1), so that other programs can read files and origin.

Specification: https://w3id.org/ro/crate/1.1
"""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import file_digest
from pathlib import Path
from typing import Any

from runner_core.contract import Json

CRATE = "ro-crate-metadata.json"
_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
_TYPES = {".md": "text/markdown", ".keras": "application/zip", ".onnx": "application/octet-stream"}
"""Media types that the system may not know; what nobody knows is application/octet-stream."""


def crate(facts: Mapping[str, Any], folder: Path, files: Sequence[Path]) -> dict[str, Json]:
    """Return ro-crate-metadata.json: the folder, each of its `files`, the data set, and the training that made them."""
    parts = [{"@id": path.relative_to(folder).as_posix()} for path in files]
    training, project = facts["training"], facts["project"]
    license_id = f"https://spdx.org/licenses/{facts['license']}" if facts.get("license") else "#license"
    times = {"startTime": _iso(training["started"]), "endTime": _iso(training["ended"])}
    entities = [
        {"@id": CRATE, "@type": "CreativeWork", "conformsTo": {"@id": _SPECIFICATION}, "about": {"@id": "./"}},
        {
            "@id": "./",
            "@type": "Dataset",
            "name": f"{project}, trained for {training['steps']:,} steps",
            "description": f"{facts['task']}. {facts['limits']}".strip(),
            "datePublished": datetime.now().astimezone().date().isoformat(),
            "license": {"@id": license_id},
            "hasPart": parts,
            "mentions": {"@id": "#training"},
        },
        {
            "@id": license_id,
            "@type": "CreativeWork",
            "name": facts.get("license") or "not stated",
            "description": "License of the weights",
        },
        *(_file(path, part) for path, part in zip(files, parts, strict=True)),
        {
            "@id": "#data",
            "@type": "CreativeWork",
            "name": facts["data"]["source"],
            "description": "The records that the network was trained and validated on; they are not in this folder",
            "identifier": facts["data"]["identity"] or "unknown",
        },
        {
            "@id": "#runner",
            "@type": "SoftwareApplication",
            "name": "runner",
            "version": str(facts["versions"].get("runner-core", "unknown")),
        },
        {
            "@id": "#training",
            "@type": "CreateAction",
            "name": f"Training of {project}",
            "instrument": {"@id": "#runner"},
            "object": {"@id": "#data"},
            "result": parts,
            **{key: value for key, value in times.items() if value},
        },
    ]
    return {"@context": f"{_SPECIFICATION}/context", "@graph": entities}


def _file(path: Path, part: Mapping[str, str]) -> dict[str, Json]:
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    about = {"name": path.name, "encodingFormat": kind, "contentSize": str(path.stat().st_size)}
    with path.open("rb") as file:
        return {**part, "@type": "File", **about, "sha256": file_digest(file, "sha256").hexdigest()}


def _iso(time: str | None) -> str | None:
    """Return a time of a run ("2026-11-25 07:15:12 +0000") as ISO 8601 writes it."""
    if not time:
        return None
    return datetime.strptime(time, "%Y-%m-%d %H:%M:%S %z").isoformat()
