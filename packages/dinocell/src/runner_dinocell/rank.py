"""RankMe (Garrido et al. 2023, arXiv:2210.02885): the number of directions in a whole validation's embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from runner_core import Array, Arrays, Tensors, added

EPSILON = 1e-7
"""Added to every singular value's share, as in the paper."""


class RankMe:
    """exp of the entropy of the shares p = σ/Σσ + ε of the singular values σ of all embeddings: 1 … min(N, D).

    The metric is named `rank`. Embeddings are those that `step` returns, (B, …, D), N of D numbers in all. Their D × D
    products are kept on the device in float64: σ² are the eigenvalues.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._products: Any = None
        self._count = 0

    def update(self, prediction: Any, batch: Tensors) -> None:
        rows = prediction.flatten(0, -2)
        with torch.autocast(rows.device.type, enabled=False):
            wide = rows.double()
            products = wide.T @ wide
        self._products = products if self._products is None else self._products + products
        self._count += len(rows)

    def compute(self) -> dict[str, float]:
        if self._products is None:
            return {}
        values = torch.linalg.eigvalsh(self._products).clamp(min=0).sqrt().flip(0)
        return {"rank": _spread(values[: self._count].cpu().numpy())}

    def state(self) -> Arrays:
        if self._products is None:
            return {}
        return {"products": self._products.cpu().numpy(), "count": np.array(self._count)}

    def merge(self, states: Sequence[Arrays]) -> None:
        total = added(states)
        self._products = torch.from_numpy(total["products"]) if total else None
        self._count = int(total.get("count", 0))


def rank_me(embeddings: Array) -> float:
    """Return RankMe of (N, …, D), by its definition."""
    rows = embeddings.reshape(-1, embeddings.shape[-1]).astype(np.float64)
    return _spread(np.linalg.svd(rows, compute_uv=False))


def _spread(singular: Array) -> float:
    """Return exp of the entropy of the singular values' shares; 0 if all are 0."""
    if not singular.sum() > 0:
        return 0.0
    share = singular / singular.sum() + EPSILON
    return float(np.exp(-(share * np.log(share)).sum()))
