"""Weights that a project's package brings along: a run folder inside the package, which is only ever read.

    PACKAGE/weights/
      config.yaml, summary.json, split.yaml, contents.json, checkpoints/     as in any run, without its data
      MODEL_CARD.md, NOTICE                                                  what they can do, and who made the data

The word `builtin` names this folder wherever a command or a call takes a run. It may lie where nobody can write.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.base.files import read_json
from runner_core.base.location import shell_word
from runner_core.plugins.discovery import Plugin, find_project, projects

BUILTIN = "builtin"
"""The word that stands for the weights in a project's package."""
FOLDER = "weights"
CARD = "MODEL_CARD.md"
NO_DATA = "the built-in weights come without data: name yours with --data"


def weights_of(plugin: Plugin) -> Path | None:
    """Return the folder of the weights in a project's package, or None. Does not import the project."""
    spec = find_spec(plugin.entry.module.partition(".")[0])
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / FOLDER / "config.yaml").is_file():
            return Path(place) / FOLDER
    return None


def named_run(project: str, named: Path) -> Path:
    """Return the run that the user named: the folder in the package for `builtin`, any other path as it is.

    Raises BadInput if the project has no weights in its package, and for a misspelt `builtin`.
    """
    if os.fspath(named) != BUILTIN:
        if (near := did_you_mean(os.fspath(named), [BUILTIN])) and not named.exists():
            raise BadInput(f"{named}: there is no such run folder{near}")
        return named
    found = weights_of(find_project(project))
    if found is None:
        have = [name for name, plugin in projects().items() if weights_of(plugin)]
        others = f" (these have: {', '.join(have)})" if have else ""
        raise BadInput(f"project {project} has no built-in weights{others}: train a run, and name it")
    return found


def is_builtin(run: Path) -> bool:
    """Return whether a run folder lies in a package, where nothing is written."""
    return run.name == FOLDER and (run / CARD).is_file()


def statement(run: Path) -> str:
    """Return the sentences that say what built-in weights were trained on, and where more is said."""
    about = read_json(run / "summary.json", lambda found: str(found["statement"]), "install the package again") or ""
    return f"built-in weights: {about} See {shell_word(run / CARD)}"
