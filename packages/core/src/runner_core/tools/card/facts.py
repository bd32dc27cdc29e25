"""Facts about a trained network for its card, from its run's folder and its checkpoint.

No path of the machine and no name of a record is among them, but for the worst cases, which may be left out: records
are known by digests of their names and contents.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from runner_core.config import RunConfig
from runner_core.config.values import flat_items, overlay_named, plain
from runner_core.contract import Json, State
from runner_core.contract.setup import Setup
from runner_core.data.splits import SPLITS
from runner_core.output.pictures import file_name
from runner_core.output.progress import read_starts
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.settings import PHANTOM, for_other_data, from_preset, read_settings
from runner_core.tools.uncertainty import mean
from runner_core.training.evaluation import read_scores
from runner_core.training.seen import read_contents, read_split, read_start

FACTS = "card.json"
PICTURES = "figures"
FORMAT = 1
WORST = 3
"""Number of worst cases that a card shows."""
_NETWORK = "model."
"""How names of the network's own tensors begin in a checkpoint."""
NOT_TRAINING = ("cache", "remote", "log", "predict")
"""Sections of settings that change no training. A card has none of them, and whoever reads one takes none from it."""
_PATH = re.compile(r"(?<![\w.:/])/(?:[^\s/]+/)+(?=[^\s/])")
"""The folders of an absolute path in a text."""


def collect(
    setup: Setup, run: RunFolder, checkpoint: Path, state: State, task: str, anonymous: bool
) -> dict[str, Json]:
    """Return the facts about the network in `checkpoint`, whose content is `state`.

    Args:
        setup: The run's project, settings and plugins.
        run: The run's folder.
        checkpoint: The exported checkpoint.
        state: Its content.
        task: One line that says what the project does.
        anonymous: True to leave out the names and pictures of the worst cases.
    """
    summary, starts, config = run.read_summary(), read_starts(run), setup.config
    project = type(setup.project)
    preset = dict(flat_items(_settings(from_preset(project, setup.preset, config.extensions))))
    settings = portable_settings(setup)
    return {
        "format": FORMAT,
        "project": setup.name,
        "task": task,
        "limits": project.limits,
        "preset": setup.preset,
        "settings": settings,
        "changed": {n: value for n, value in flat_items(settings) if n not in preset or preset[n] != value},
        "seed": config.train.seed,
        "deterministic": config.train.deterministic,
        "weights": _weights(checkpoint, state),
        "start": None if (start := read_start(run.path)) is None else {key: start[key] for key in ("digest", "about")},
        "data": _data(run, state),
        "training": {
            **{key: summary.get(key) for key in ("status", "epochs", "steps", "wall_seconds", "energy", "devices")},
            "started": starts[0].get("time") if starts else None,
            "ended": summary.get("ended"),
        },
        "versions": summary.get("versions", {}),
        "device": (summary.get("device") or {}).get("name") or (summary.get("device") or {}).get("kind"),
        **_scores(run, anonymous),
        "metrics": summary.get("metrics", {}),
        "health": [{**found, "message": _PATH.sub("", found["message"])} for found in summary.get("health", [])],
    }


def portable_settings(setup: Setup) -> dict[str, Json]:
    """Return the settings that change a training by section, without what is of this machine and of these data."""
    config = setup.config
    portable = for_other_data(config, type(setup.project), setup.preset)  # without tables of files
    if config.data.split not in ("auto", "none") and not config.data.split.startswith("group:"):
        portable = overlay_named(portable, {"data.split": "auto"}, "card")  # a card's `names` has the split
    return _settings(portable)


def _settings(config: RunConfig) -> dict[str, Json]:
    """Return the settings that change a training; a file or folder by its name alone."""

    def named(value: Any) -> Json:
        if dataclasses.is_dataclass(value):
            return {field.name: named(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return value.name if isinstance(value, Path) else plain(value)

    return {name: value for name, value in named(config).items() if name not in NOT_TRAINING}


def digest_of(name: str) -> str:
    """Return the digest that stands for the name of a record or group."""
    return xxhash.xxh3_128_hexdigest(name.encode(errors="backslashreplace"))


def _weights(checkpoint: Path, state: State) -> dict[str, Json]:
    """Return a digest over names, types, shapes and values of the network's tensors, and the number of values."""
    found, count = hashlib.sha256(), 0
    for name in sorted(state.tensors):
        if name.startswith(_NETWORK):
            array = np.ascontiguousarray(np.asarray(state.tensors[name]))
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            found.update(array.tobytes())
            count += array.size
    return {"checkpoint": checkpoint.name, "sha256": found.hexdigest(), "values": count}


def _data(run: RunFolder, state: State) -> dict[str, Json]:
    """Return what the run was trained on, whatever data the command at hand was given."""
    split, contents = read_split(run.path), read_contents(run.path)
    source = read_settings(run.config_file).source or PHANTOM
    names = {} if split is None else {name: sorted(map(digest_of, split.get(name, ()))) for name in SPLITS}
    return {
        "source": PHANTOM if source == PHANTOM else Path(source).name,
        "identity": (state.values.get("settings") or {}).get("data and its preparation"),
        "split": run.read_summary().get("split", {}),
        "names": names,
        "contents": {digest_of(key): digest for key, digest in sorted(contents.items())},
    }


def _scores(run: RunFolder, anonymous: bool) -> dict[str, Json]:
    """Return the scores at the end of the run, with intervals over groups, and the worst records."""
    content = read_scores(run.path)
    rows = content.get("records", [])
    groups = [row["group"] for row in rows]
    scores = [_score(name, value, content, groups) for name, value in content.get("means", {}).items()]
    worst = [] if anonymous else [_case(run, number, row) for number, row in enumerate(rows[:WORST], 1)]
    return {"scores": scores, "scored": {"records": len(rows), "groups": len(set(groups))}, "worst": worst}


def _score(name: str, value: float | None, content: Mapping[str, Any], groups: Sequence[str]) -> dict[str, Json]:
    """Return a score of the set with its 95 % interval, which only a mean over records has."""
    found = [row["scores"].get(name) for row in content["records"]]
    there = [(float(score), group) for score, group in zip(found, groups, strict=True) if score is not None]
    low = high = None
    if value is not None and there and math.isclose(value, np.mean([score for score, _ in there]), rel_tol=1e-9):
        low, high = _finite(mean([score for score, _ in there], [group for _, group in there]).interval())
    return {
        "name": name,
        "value": value,
        "low": low,
        "high": high,
        "baseline": (content.get("baseline") or {}).get(name),
        "shown": name in content.get("shown", [name]),
    }


def _finite(values: Sequence[float]) -> Iterator[float | None]:
    return (value if math.isfinite(value) else None for value in values)


def _case(run: RunFolder, number: int, row: Mapping[str, Any]) -> dict[str, Json]:
    """Return one of the worst records, and its picture if the run drew it."""
    file = f"{number:03d}-{file_name(row['record'])}.png"
    picture = {"file": file, "picture": f"{PICTURES}/{file}"} if (run.figures / file).is_file() else {}
    return {"record": row["record"], "scores": row["scores"], **picture}
