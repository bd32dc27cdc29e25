"""The spectral stack: filters, Mamba layers along the wavenumbers, attention pooling. (P, L) → (P, F).

Pixels are independent here. The stack goes over them chunk by chunk and keeps only the spectra for the gradient:
everything in between is recomputed, and only the pooled features of all pixels exist at once. A batch of which little
is kept on a CPU is not computed again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from runner_ssmunet.filters import BandFilters, SincFilters
from runner_ssmunet.mamba import Mamba
from runner_ssmunet.recompute import in_chunks

ELEMENTS = {"cpu": 2**19, "cuda": 2**25}
"""Default size of a chunk, in pixels × wavenumbers × filters.

On a CPU, a chunk of this size stays in a core's cache (measured: larger chunks take up to a quarter longer, smaller
ones too). On a GPU it takes about 5 GB and keeps the GPU busy."""


KEPT = 2**30
"""Most bytes that a batch on a CPU may keep for the gradient, so that nothing is computed again."""


class AttentionPooling(nn.Module):
    """(P, L, F) → (P, F) and the attention (P, L): a = softmax_L(w₂ᵀ tanh(W₁z + b)), p = Σ a·z. W₁: F → F/2.

    Softmax and sum are float32, also under autocast.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(1, channels // 2)
        self.hidden = nn.Linear(channels, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)  # a bias would be lost in the softmax

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.score(torch.tanh(self.hidden(z))).squeeze(-1)
        with torch.autocast(z.device.type, enabled=False):
            attention = torch.softmax(scores.to(z.dtype), -1)
            return torch.bmm(attention[:, None], z).squeeze(1), attention


class MambaLayer(nn.Module):
    """z ← LayerNorm(Dropout(Mamba(z)) + z), (P, L, F). z is float32 also under autocast."""

    def __init__(self, channels: int, states: int, dropout: float, scan: str = "auto") -> None:
        super().__init__()
        self.mamba = Mamba(channels, d_state=states, scan=scan)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(channels)

    def forward(self, z: Tensor) -> Tensor:
        return self.norm(self.dropout(self.mamba(z)) + z)


class SpectralStack(nn.Module):
    """Spectra (P, L) float32 → features (P, F) float32; `over` does the same for images.

    There are `layers` Mamba layers with `states` states each. `chunk` is the number of pixels at once, each chunk
    recomputed for the gradient (0: all pixels at once, everything kept; None: by `ELEMENTS` for the device, and
    recomputed only beyond `KEPT`). For `scan` see `Mamba`.
    """

    def __init__(
        self,
        filters: BandFilters | SincFilters,
        layers: int = 2,
        states: int = 16,
        dropout: float = 0.1,
        chunk: int | None = None,
        scan: str = "auto",
    ) -> None:
        super().__init__()
        self.filters = filters
        self.layers = nn.Sequential(*(MambaLayer(filters.count, states, dropout, scan) for _ in range(layers)))
        self.pooling = AttentionPooling(filters.count)
        self.chunk = chunk

    def forward(self, x: Tensor) -> Tensor:
        chunk = self._pixels_at_once(x)
        if not chunk or not len(x):
            return self.attend(x)[0]
        draws = self.training and any(layer.dropout.p > 0 for layer in self.layers)
        keep = self.chunk is None and x.device.type == "cpu" and self.kept_bytes(x) <= KEPT
        return in_chunks(self._pooled, x, chunk, list(self.parameters()), draws, keep)

    def attend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (P, F) and the attention of each wavenumber (P, L), all pixels at once."""
        features, attention = self.pooling(self.layers(self.filters(x)))
        return features, attention

    def _pixels_at_once(self, x: Tensor) -> int:
        if self.chunk is not None:
            return self.chunk
        elements = ELEMENTS["cpu" if x.device.type == "cpu" else "cuda"]
        return max(1, elements // (x.shape[-1] * self.filters.count))

    def kept_bytes(self, x: Tensor) -> int:
        """Return about how many bytes spectra (P, L) keep for the gradient if nothing is computed again."""
        count = self.filters.count
        values = 4 * count  # filters, pooling, and what enters and leaves
        for layer in self.layers:
            inner, states = layer.mamba.d_inner, layer.mamba.d_state
            values += 4 * inner + 3 * count + 3 * states + inner * states // 32
        return x.numel() * x.element_size() * values

    def _pooled(self, x: Tensor) -> Tensor:
        return self.attend(x)[0]

    def over(self, image: Tensor, tissue: Tensor) -> Tensor:
        """Return features (B, H, W, F) of an image (B, H, W, L), computed for `tissue` (B, H, W) bool only.

        All other pixels count as the spectrum 0, their value in z-scored data: one pixel, computed once, gives them
        their features. In evaluation that is exact; in training they also share the dropout. That pixel is always
        computed, so that every parameter has a gradient even without tissue (distributed training waits for all of
        them).
        """
        places = tissue.flatten().nonzero().squeeze(1)  # a GPU's host waits here, once: for how many there are
        spectra = torch.cat((image.new_zeros(1, image.shape[-1]), image.flatten(0, 2).index_select(0, places)))
        features = self(spectra)
        rows = features[:1].expand(tissue.numel(), -1).index_copy(0, places, features[1:])
        return rows.reshape(*tissue.shape, features.shape[1])
