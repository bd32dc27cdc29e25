"""Samples of fields: windows, and the random numbers for everything that is done to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from runner_core import Array, Arrays, BadInput, PatchSamples, SampleSpec, Store, random_below, random_words

from runner_dinocell import masks
from runner_dinocell.config import CellConfig
from runner_dinocell.objects import known

GLOBALS = 2
"""Global crops of a window."""
_PLACE = 4
"""The first random words of a position choose the window's place (`PatchSamples`), the last of them its cell."""


class CellSamples(PatchSamples):
    """Windows of fields at random places, as in `PatchSamples`, each with the inputs of its crops.

    If the fields have `cells`, each window lies around one of them, all equally likely.

    image (C, w, w) is as prepared. levels (C, 2) float32 and grey (C,) int32 are the field's. draws
    (`augment.draw_count`,) float32 in [0, 1) determine everything random about the crops. mask (2, tokens) bool has the
    masked patches of the two global crops, row by row. Of the two, the first and the second are masked in turn, by a
    share between those of `loss.masked_share`.

    All of it is a pure function of (seed, epoch, position): it depends neither on batches nor on ranks nor workers.
    Raises BadInput for fields smaller than the window.
    """

    def __init__(self, store: Store, records: Sequence[int], config: CellConfig, split: str) -> None:
        from runner_dinocell.augment import draw_count  # imports torch, which no worker needs

        data = config.data
        channels = store.arrays["image"].shapes[0][0]
        _refuse_small(store, records, data.window)
        windows = data.windows if split == "train" else data.validation_windows
        super().__init__(store, ("image",), (channels, data.window, data.window), records, windows)
        self._of_field = {name: store.arrays[name] for name in ("levels", "grey")}
        self._draws = draw_count(config, channels)
        self._side = config.augment.global_size // config.model.patch
        self._masked = config.loss.masked_share
        self.spec |= {
            "levels": SampleSpec((channels, 2), np.dtype(np.float32)),
            "grey": SampleSpec((channels,), np.dtype(np.int32)),
            "draws": SampleSpec((self._draws,), np.dtype(np.float32)),
            "mask": SampleSpec((GLOBALS, self._side**2), np.dtype(bool)),
        }
        self._cells = store.arrays.get("cells")
        if self._cells is not None:
            self._sides = store.arrays["image"].shapes

    def starts_of(self, records: Array, positions: Array, seed: int, epoch: int) -> Array:
        """Return where windows begin: around a random cell of their field, moved into it, or anywhere without cells."""
        starts = super().starts_of(records, positions, seed, epoch)
        if self._cells is None:
            return starts
        words = random_words(seed, epoch, positions, _PLACE)[:, -1:]
        for row, record in enumerate(records.tolist()):
            cells = known(self._cells.read(record))
            if len(cells):
                chosen = cells[int(random_below(words[row], np.array([len(cells)]))[0]), 1:]
                window, sides = self.patch[1:], np.array(self._sides[record][1:])
                starts[row, 1:] = np.clip(chosen - window // 2, 0, sides - window)
        return starts

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        super().fill(indices, positions, seed, epoch, out)
        for i, record in enumerate(out["record"].tolist()):
            for name, array in self._of_field.items():
                out[name][i] = array.read(record)
        drawn = random_words(seed, epoch, positions, _PLACE + masks.WORDS + self._draws)[:, _PLACE:]
        out["draws"][...] = (drawn[:, masks.WORDS :] >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        blocks = masks.block_masks(drawn[:, : masks.WORDS], self._side, self._masked)
        out["mask"][...] = False
        out["mask"][np.arange(len(positions)), positions % GLOBALS] = blocks


def _refuse_small(store: Store, records: Sequence[int], window: int) -> None:
    shapes = store.arrays["image"].shapes
    for record in records:
        _, *size = shapes[record]
        if min(size) < window:
            raise BadInput(
                f"{store.keys[record]}: {size[0]} × {size[1]} pixels, smaller than a window of {window}². Set "
                "data.window to a side that fits, or leave the field out."
            )
