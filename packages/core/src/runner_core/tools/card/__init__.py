"""The files that go with an exported network: model card, research object crate, and what trains it again.

    card.json               all facts, for programs: `facts.py` collects them from a run
    MODEL_CARD.md           the same for people, with the worst cases' pictures in figures/: `text.py`
    ro-crate-metadata.json  the folder as an RO-Crate: `crate.py`

`write_card` writes them into an exported folder. `same.py` compares the facts of two runs, for `runner reproduce`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner_core.base.writing import replace_json, replace_text
from runner_core.contract import Json
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.builtin import CARD
from runner_core.tools.card.crate import CRATE, crate
from runner_core.tools.card.facts import FACTS, PICTURES, collect
from runner_core.tools.card.text import text

__all__ = ["collect", "write_card"]


def write_card(run: RunFolder, facts: Mapping[str, Json], folder: Path, exported: Sequence[Path]) -> list[Path]:
    """Write the card of a run into `folder`, beside the files in `exported`, and return the new files."""
    written = [folder / FACTS, folder / CARD]
    for case in facts["worst"]:
        if picture := case.get("picture"):
            (folder / PICTURES).mkdir(exist_ok=True)
            shutil.copyfile(run.figures / case["file"], folder / picture)
            written.append(folder / picture)
    replace_json(folder / FACTS, facts)
    replace_text(folder / CARD, text(facts, [path.name for path in exported]))
    replace_json(folder / CRATE, crate(facts, folder, [*exported, *written]))
    return [*written, folder / CRATE]
