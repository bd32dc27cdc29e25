"""Networks that understand any stains: which channels a crop shows, and tokens for each channel.

`model.channels invariant` is the recipe of the project's source: crops of one window show different channels, so that
the network must say the same of a cell whatever the stain. `tokens` is ChannelViT (Bao et al. 2024, arXiv:2309.16108):
each channel has patch tokens of its own, marked by a learned vector, and random choices of channels hide the others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from runner_dinocell.vit import CellTransformer, Tokens, interpolated


def shown(draws: Tensor, there: Tensor, one: bool) -> Tensor:
    """Return the channels (B, 1 + K, C) float32, 1 or 0, that each crop of a window shows.

    The first crop shows all channels that are there. Each other crop shows a random one of them (`one`), or a random
    choice: first its size is drawn, from one to all, then its channels (hierarchical channel sampling).

    Args:
        draws: (B, K, C + 1) in [0, 1).
        there: (B, C), 0 for channels that are missing.
        one: whether the other crops show a single channel.
    """
    channels = there.shape[1]
    place = (draws[..., :channels] - there[:, None]).argsort(2).argsort(2)  # missing channels come last
    count = there.sum(1)[:, None, None]
    last = torch.zeros_like(draws[..., channels:]) if one else (draws[..., channels:] * count).floor()
    return torch.cat((there[:, None], (place <= last).to(there.dtype)), 1)


def mean_shown(crops: Tensor, shown: Tensor) -> Tensor:
    """Return the mean (B, K, 1, S, S) over the channels that crops (B, K, C, S, S) show; the others are 0 in them."""
    return crops.sum(2, keepdim=True) / shown.sum(2).clamp(min=1)[..., None, None, None]


def channel_shares(images: Tensor) -> Tensor:
    """Return each channel's weight (M, C) in the mean over those of (M, C, H, W) that are not 0 everywhere, float32."""
    there = images.flatten(2).any(2).float()
    return there / there.sum(1, keepdim=True).clamp(min=1)


class ChannelTransformer(CellTransformer):
    """Images (M, C, H, W) and mask (M, T) bool → `Tokens`; C may differ from the trained number of channels.

    Each channel's patches are tokens, so attention sees C · T of them; a mask hides a patch in all channels. Channels
    that are 0 everywhere are missing: nothing attends to them. `Tokens.patches` are means over the others. A channel
    beyond the trained ones is marked by the mean of their vectors.
    """

    def __init__(self, channels: int, drop_path: float, exact: bool = False, **arguments: Any) -> None:
        super().__init__(drop_path, exact, **arguments)
        self.channel_embed = nn.Parameter(torch.zeros(1, channels, self.embed_dim))
        nn.init.trunc_normal_(self.channel_embed, std=0.02)

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tokens:
        count, channels = images.shape[:2]
        shares = channel_shares(images)
        patches = self.patch_embed(images.flatten(0, 1)[:, None])  # (M · C, h, w, D)
        height, width = patches.shape[1:3]
        patches = patches.flatten(1, 2).unflatten(0, (count, channels))
        if mask is not None:
            patches = torch.where(mask[:, None, :, None], self.mask_token.to(patches.dtype), patches)
        position = interpolated(self.pos_embed, height, width, registers=self.num_reg_tokens > 0)
        patches = patches + position + self._marks(channels)[:, :, None]
        first = [token.expand(count, -1, -1) for token in self.first_tokens]
        seen = (shares > 0).repeat_interleave(height * width, 1)
        seen = torch.cat((seen.new_ones(count, self.num_prefix_tokens), seen), 1)[:, None, None]
        tokens = torch.cat((*first, patches.flatten(1, 2)), 1)
        for block in self.blocks:
            tokens = block(tokens, attn_mask=seen)
        tokens = self.norm(tokens)
        each = tokens[:, self.num_prefix_tokens :].unflatten(1, (channels, -1))
        return Tokens(tokens[:, 0], torch.einsum("mctd,mc->mtd", each, shares.to(each)))

    def _marks(self, channels: int) -> Tensor:
        """Return the vectors (1, channels, D) that mark the channels."""
        trained = self.channel_embed
        new = channels - trained.shape[1]
        return torch.cat((trained, trained.mean(1, keepdim=True).expand(-1, new, -1)), 1) if new > 0 else trained
