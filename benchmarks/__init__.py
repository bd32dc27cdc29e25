"""Side by side: runner and what people use otherwise. `python -m benchmarks` measures, and writes docs/benchmarks.md.

A benchmark is a module here with `run(options) -> Result`; its name is in `NAMES`, in the order of the page.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # s3server

NAMES = (
    "startup",
    "loop",
    "cache",
    "metrics",
    "scan",
    "spectral",
    "preprocess",
    "brain",
    "brain_stages",
    "openkbp",
    "volumes",
    "scrolls",
    "large_scrolls",
    "ensemble",
    "streaming",
    "checkpoints",
    "manifest",
    "survey",
    "scaling",
    "exchange",
    "targets",
    "losses",
    "ssl_losses",
    "topology",
    "surface_metric",
    "mending",
    "augment3d",
    "nnunet",
    "equal_samples",
    "multicrop",
    "experiments",
    "verdict",
    "near_duplicates",
    "wrong_labels",
)
