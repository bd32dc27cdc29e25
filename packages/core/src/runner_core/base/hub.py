"""Weights on the Hugging Face Hub, `hf:OWNER/NAME[@REVISION]`: fetched where the user wrote that, and never otherwise.

Two files are fetched, a .safetensors and config.json: others of a repository may hold programs. A revision is resolved
to a commit, whose files never change; what is in huggingface_hub's cache already is not asked for again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput

PREFIX = "hf:"
WEIGHTS, ABOUT = "model.safetensors", "config.json"
OWN = "runner"
"""Entry of config.json in a repository that `export --to hub-folder` wrote: project, preset, settings."""
_FORM = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORTEST = 7
"""Digits of a commit by which it is known: as git abbreviates."""
_SAFE = ".safetensors"
_LARGEST_ABOUT = 1 << 24
_SECONDS = 30


@dataclass(frozen=True)
class Fetched:
    """Weights of a repository at one commit.

    Attributes:
        source: hf:OWNER/NAME@COMMIT.
        file: The weights, in the cache of huggingface_hub.
        about: The content of config.json; empty if there is none.
    """

    source: str
    file: Path
    about: Mapping[str, Any]


def is_hub(named: str) -> bool:
    """Return whether text names a repository of the Hub."""
    return named.startswith(PREFIX)


def is_same(named: str, source: str) -> bool:
    """Return whether `named` may mean the weights of `source`, which has a commit.

    >>> commit = "hf:a/b@0123456789"
    >>> is_same("hf:a/b", commit), is_same("hf:a/b@0123456", commit), is_same("hf:a/b@01", commit)
    (True, True, False)
    """
    repository, revision = _parsed(named)
    other, commit = _parsed(source)
    return repository == other and (
        revision is None or (len(revision) >= _SHORTEST and str(commit).startswith(revision))
    )


def fetch(named: str) -> Fetched:
    """Return the weights that the user named, after asking the Hub where the cache does not have their commit.

    The environment of huggingface_hub holds: HF_ENDPOINT, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE. Raises BadInput if they
    cannot be fetched, or if the repository has none that are safe to read.
    """
    repository, revision = _parsed(named)
    hub = _library(named)
    if (found := _cached(hub, repository, revision)) is not None:
        return found
    api = hub.HfApi(library_name="runner")
    try:
        info = api.model_info(repository, revision=revision, timeout=_SECONDS)
        names = [file.rfilename for file in info.siblings or ()]
        wanted = [*(name for name in names if name == ABOUT), _weights(named, names)]  # weights in the cache mean: all
        files = [
            Path(hub.hf_hub_download(repository, name, revision=info.sha, library_name="runner")) for name in wanted
        ]
    except BadInput:
        raise
    except Exception as error:  # of the connection, of the server, of the disk: the library's and its transport's
        why = (str(error).strip().splitlines() or [""])[0][:300]
        raise BadInput(
            f"--from {named}: it cannot be fetched from {api.endpoint} ({type(error).__name__}: {why}). "
            "Without a connection, name a commit that is in the cache (hf:OWNER/NAME@COMMIT), or a file"
        ) from error
    return Fetched(f"{PREFIX}{repository}@{info.sha}", files[-1], _about(named, files[0] if files[1:] else None))


def fetched(source: str) -> Fetched:
    """Return weights that were fetched earlier, without asking the Hub. Raises BadInput if the cache lacks them.

    Whoever calls this knows their digest: a file of another name is another's, where one program more used the cache.
    """
    hub = _library(source)
    found = _cached(hub, *_parsed(source)) or _only_cached(hub, source)
    if found is None:
        raise BadInput(f"{source} is not in the cache of huggingface_hub any more: fetch it with --from {source}")
    return found


def _parsed(named: str) -> tuple[str, str | None]:
    found = _FORM.fullmatch(named)
    if found is None:
        raise BadInput(f"--from {named}: write hf:OWNER/NAME or hf:OWNER/NAME@REVISION (a branch, a tag or a commit)")
    return found["repository"], found["revision"]


def _library(named: str) -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read at the import: nothing but what is asked for is asked
    try:
        import huggingface_hub
    except ImportError:
        raise BadInput(
            f"--from {named}: this needs the package huggingface_hub: `uv pip install huggingface-hub`"
        ) from None
    return huggingface_hub


def _cached(hub: Any, repository: str, revision: str | None) -> Fetched | None:
    """Return the weights of a commit from the cache, None if it lacks them or `revision` is no commit."""
    if revision is None or not _COMMIT.fullmatch(revision):
        return None
    try:
        places = [hub.try_to_load_from_cache(repository, name, revision=revision) for name in (WEIGHTS, ABOUT)]
    except ValueError as error:
        raise BadInput(f"--from {PREFIX}{repository}: this cannot be a repository's name ({error})") from error
    file, about = (Path(place) if isinstance(place, str) else None for place in places)
    source = f"{PREFIX}{repository}@{revision}"
    return None if file is None else Fetched(source, file, _about(source, about))


def _only_cached(hub: Any, source: str) -> Fetched | None:
    """Return the only file of weights that the cache has of a commit, whatever its name; None for none or several."""
    repository, revision = _parsed(source)
    try:
        folder = Path(hub.snapshot_download(repository, revision=revision, local_files_only=True))
    except (OSError, ValueError):
        return None
    files = [path for path in folder.iterdir() if path.name.endswith(_SAFE) and path.is_file()]
    return Fetched(source, files[0], {}) if len(files) == 1 else None


def _weights(named: str, names: list[str]) -> str:
    """Return the name of the file of weights. Raises BadInput if there is none that is safe, or more than one."""
    found = [name for name in names if name.endswith(_SAFE) and "/" not in name]
    if WEIGHTS in found or len(found) == 1:
        return WEIGHTS if WEIGHTS in found else found[0]
    if found:
        raise BadInput(f"--from {named}: it has {len(found)} files of weights: fetch one of them, and name the file")
    raise BadInput(
        f"--from {named}: it has no .safetensors, and other files are not fetched, because they may hold programs"
    )


def _about(named: str, file: Path | None) -> Mapping[str, Any]:
    """Return the content of config.json; other programs write what they want into it."""
    if file is None or file.stat().st_size > _LARGEST_ABOUT:
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"--from {named}: its {ABOUT} is damaged: {error}") from error
    return found if isinstance(found, dict) else {}
