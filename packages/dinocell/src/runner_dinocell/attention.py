"""Attention of the teacher's CLS token: its row of the last block's attention, and no other row.

A pre-hook on the attention module sees its input and computes that row from its weights. So nothing depends on how
attention is implemented, and 4 crops of 785 tokens and 6 heads take 0.075 MB instead of 59. It works in networks that
are wrapped (DDP) or sharded (`fully_shard`: weights are whole inside their own block only).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner_dinocell.channels import channel_shares
from runner_dinocell.network import DinoNet


@torch.no_grad()
def attention_maps(network: DinoNet, image: Tensor) -> Tensor:
    """Return the share of attention of each patch, (B, heads, h, w) float32, in image (B, C, H, W).

    The shares sum to 1 with those of the CLS token itself and the registers. With model.channels bag and invariant they
    are the mean over channels, with tokens the sum. If the network is sharded, all ranks must call this.
    """
    backbone, rows = network.teacher.backbone, []

    def keep(attention: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        rows.append(cls_row(attention, inputs[0], named.get("attn_mask")))

    handle = backbone.last_attention.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with torch.compiler.set_stance("force_eager"):  # compiled code ignores the hook
            network.embed(image)
    finally:
        handle.remove()
    (row,) = rows
    patch = network.teacher.patch
    grid = (-1, image.shape[2] // patch, image.shape[3] // patch)
    maps = row[:, :, backbone.num_prefix_tokens :].unflatten(2, grid).sum(2)  # over channels with tokens of their own
    if not network.teacher.one_by_one:
        return maps
    return torch.einsum("bchyx,bc->bhyx", maps.unflatten(0, (len(image), -1)), channel_shares(image))


def cls_row(attention: nn.Module, tokens: Tensor, seen: Tensor | None = None) -> Tensor:
    """Return the softmax of the CLS token's query with all keys: tokens (M, N, D) → (M, heads, N) float32.

    `seen` (M, 1, 1, N) bool marks the keys that it may attend to; None: all.
    """
    width, heads = tokens.shape[-1], attention.num_heads
    weight, bias = attention.qkv.weight, attention.qkv.bias
    if hasattr(weight, "full_tensor"):  # gathered apart, when it is called
        query, keys, _ = attention.qkv(tokens).chunk(3, dim=-1)
        query = query[:, :1]
    else:
        query = functional.linear(tokens[:, :1], weight[:width], bias[:width])
        keys = functional.linear(tokens, weight[width : 2 * width], bias[width : 2 * width])
    query, keys = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (query, keys))
    logits = (query @ keys.mT).float() * (width // heads) ** -0.5
    return (logits if seen is None else logits.masked_fill(~seen, -torch.inf)).softmax(-1)[:, :, 0]
