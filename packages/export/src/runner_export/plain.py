"""Open an exported network where runner cannot be imported: python plain.py FOLDER NETWORKS.

Every line on its input names a folder with in.npz: out.npz is written there, and a line that begins with `DONE`.
session.py lies beside this file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

DONE = "written: "


class NoRunner:
    """Refuses the import of runner and its projects."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0].startswith("runner_"):
            raise ImportError(f"{name}: an exported network needs runner")


def main(folder: Path, networks: str) -> None:
    """Answer every line."""
    sys.meta_path.insert(0, NoRunner())
    import session

    infer = session.load_networks(folder, json.loads(networks))
    for line in sys.stdin:
        place = Path(line.strip())
        with np.load(place / "in.npz", allow_pickle=False) as arrays:
            found = infer(dict(arrays))
        np.savez(place / "out.npz", **found)
        print(f"{DONE}{place}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
