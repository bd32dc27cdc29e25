"""DINOv2's training step by step, as its paper and code define it, without this project's code.

Names of weights are those of its released files. B images, two global and L local crops each, crop by crop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Weights = dict[str, Tensor]


class Oracle:
    """Student, teacher, optimizer and schedules of `steps` steps; `settings` are numbers by DINOv2's names."""

    def __init__(self, backbone: Weights, heads: Mapping[str, Weights], settings: Mapping[str, Any]) -> None:
        self.s = settings
        parts = {"backbone": backbone, **heads}
        self.student = {p: {n: w.clone().requires_grad_() for n, w in own.items()} for p, own in parts.items()}
        self.teacher = {p: {n: w.clone() for n, w in own.items()} for p, own in parts.items()}
        self.depth = 1 + max(int(name.split(".")[1]) for name in backbone if name.startswith("blocks."))
        groups = [self._group(part, name) for part in self.student for name in self.student[part]]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999))
        self.centres = {"cls": torch.zeros(()), "patch": torch.zeros(())}

    def _group(self, part: str, name: str) -> dict[str, Any]:
        rate = 1.0
        if part == "backbone":
            first = ("pos_embed", "patch_embed", "mask_token", "cls_token", "register_tokens")
            layer = self.depth + 1
            if any(word in name for word in first):
                layer = 0
            elif name.startswith("blocks."):
                layer = int(name.split(".")[1]) + 1
            rate = self.s["layerwise_decay"] ** (self.depth + 1 - layer)
            rate *= self.s["patch_embed_lr_mult"] if "patch_embed" in name else 1.0
        decays = not (name.endswith(".bias") or "norm" in name or "gamma" in name)
        return {"params": [self.student[part][name]], "rate": rate, "decays": decays, "last": "last_layer" in name}

    # ------------------------------------------------------------ schedules

    def schedule(self, begin: float, end: float, step: int, warm: int = 0, start: float = 0.0, total: int = 0) -> float:
        rising = np.linspace(start, begin, warm)
        turns = np.arange((total or self.s["steps"]) - warm)
        falling = end + 0.5 * (begin - end) * (1 + np.cos(np.pi * turns / max(1, len(turns))))
        values = np.concatenate((rising, falling))
        return float(values[step]) if step < len(values) else end

    # ------------------------------------------------------------ network

    def vit(self, w: Weights, images: list[Tensor], masks: list[Tensor | None], drop: float) -> list[Tensor]:
        xs = [self._prepared(w, *both) for both in zip(images, masks, strict=True)]
        for block in range(self.depth):
            own = {name.split(".", 2)[2]: v for name, v in w.items() if name.startswith(f"blocks.{block}.")}
            for residual, gamma in ((self._attention, "ls1.gamma"), (_mlp, "ls2.gamma")):
                xs = [_stochastic(x, residual, own, own[gamma], drop) for x in xs]
        return [functional.layer_norm(x, x.shape[-1:], w["norm.weight"], w["norm.bias"], 1e-6) for x in xs]

    def _prepared(self, w: Weights, image: Tensor, mask: Tensor | None) -> Tensor:
        patches = functional.conv2d(
            image, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=self.s["patch"]
        )
        side = patches.shape[-1]
        x = patches.flatten(2).transpose(1, 2)
        if mask is not None:
            x = torch.where(mask[..., None], w["mask_token"][None], x)
        x = torch.cat((w["cls_token"].expand(len(x), -1, -1), x), 1) + self._positions(w["pos_embed"], side)
        if "register_tokens" in w:
            x = torch.cat((x[:, :1], w["register_tokens"].expand(len(x), -1, -1), x[:, 1:]), 1)
        return x

    def _positions(self, grid: Tensor, side: int) -> Tensor:
        own = math.isqrt(grid.shape[1] - 1)
        if own == side:
            return grid
        square = grid[:, 1:].reshape(1, own, own, -1).permute(0, 3, 1, 2)
        if self.s["registers"]:
            square = functional.interpolate(square, size=(side, side), mode="bicubic", antialias=True)
        else:
            scale = (side + 0.1) / own
            square = functional.interpolate(square, scale_factor=(scale, scale), mode="bicubic")
        return torch.cat((grid[:, :1], square.permute(0, 2, 3, 1).flatten(1, 2)), 1)

    def _attention(self, w: Weights, x: Tensor) -> Tensor:
        x = functional.layer_norm(x, x.shape[-1:], w["norm1.weight"], w["norm1.bias"], 1e-6)
        qkv = functional.linear(x, w["attn.qkv.weight"], w["attn.qkv.bias"])
        q, k, v = qkv.unflatten(-1, (3, self.s["heads"], -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        return functional.linear((weights @ v).transpose(1, 2).flatten(2), w["attn.proj.weight"], w["attn.proj.bias"])

    def head(self, w: Weights, x: Tensor) -> Tensor:
        for layer in (0, 2, 4):
            x = functional.linear(x, w[f"mlp.{layer}.weight"], w[f"mlp.{layer}.bias"])
            x = functional.gelu(x) if layer < 4 else x
        x = functional.normalize(x, dim=-1)
        lengths = w["last_layer.weight_v"].norm(dim=1, keepdim=True)
        return x @ (w["last_layer.weight_g"] * w["last_layer.weight_v"] / lengths).T

    # ------------------------------------------------------------ losses

    def targets(self, logits: Tensor, temperature: float, kind: str) -> Tensor:
        if self.s["centering"] == "centering":
            p = ((logits - self.centres[kind]) / temperature).softmax(-1)
            self.centres[kind] = 0.9 * self.centres[kind] + 0.1 * logits.mean(0)
            return p
        q = (logits / temperature).exp().T
        q = q / q.sum()
        for _ in range(3):
            q = q / q.sum(1, keepdim=True) / q.shape[0]
            q = q / q.sum(0, keepdim=True) / q.shape[1]
        return (q * q.shape[1]).T

    def losses(self, batch: Mapping[str, Tensor], temperature: float) -> Tensor:
        crops, small, masks = batch["globals"], batch["locals"], batch["masks"]
        count = len(crops) // 2
        patch_head = "ibot_head" if "ibot_head" in self.student else "dino_head"
        first = 1 + self.s["registers"]
        with torch.no_grad():
            (found,) = self.vit(self.teacher["backbone"], [crops], [None], 0.0)
            taught = self.head(self.teacher["dino_head"], found[:, 0])
            patches = self.head(self.teacher[patch_head], found[:, first:][masks])
            p = self.targets(taught, temperature, "cls").split(count)
            patch_p = self.targets(patches, temperature, "patch")
        large, little = self.vit(self.student["backbone"], [crops, small], [masks, None], self.s["drop_path"])
        logits = [self.head(self.student["dino_head"], tokens[:, 0]) for tokens in (large, little)]
        log = [(own / 0.1).log_softmax(-1).split(count) for own in logits]
        pairs = len(log[1]) * 2 + 2
        dino = sum(-(t * s).sum(-1).mean() for s in log[1] for t in p) / pairs
        dino = dino + sum(-(p[1 - i] * log[0][i]).sum(-1).mean() for i in range(2)) / pairs
        patch_log = (self.head(self.student[patch_head], large[:, first:][masks]) / 0.1).log_softmax(-1)
        weight = (1 / masks.sum(1).clamp(min=1.0))[:, None].expand_as(masks)[masks]
        ibot = -((patch_p * patch_log).sum(-1) * weight).sum() / len(masks)
        koleo = sum(_koleo(part) for part in large[:, 0].split(count))
        return dino + ibot + 0.1 * koleo

    # ------------------------------------------------------------ training

    def step(self, number: int, batch: Mapping[str, Tensor]) -> float:
        s = self.s
        rate = self.schedule(s["lr"], s["min_lr"], number, s["warmup"])
        decay = self.schedule(s["weight_decay"], s["weight_decay_end"], number)
        temperature = self.schedule(
            s["teacher_temp"], s["teacher_temp"], number, s["temp_warmup"], s["warmup_teacher_temp"], s["temp_warmup"]
        )
        for group in self.optimizer.param_groups:
            frozen = group["last"] and number < s["freeze"]
            group["lr"] = 0.0 if frozen else rate * group["rate"]
            group["weight_decay"] = decay if group["decays"] else 0.0
        self.optimizer.zero_grad()
        loss = self.losses(batch, temperature)
        loss.backward()
        for own in self.student.values():
            nn.utils.clip_grad_norm_(own.values(), s["clip"])
        self.optimizer.step()
        momentum = self.schedule(s["momentum"], 1.0, number)
        with torch.no_grad():
            for part, own in self.student.items():
                for name, w in own.items():
                    self.teacher[part][name].mul_(momentum).add_(w, alpha=1 - momentum)
        return float(loss.detach())


def _mlp(w: Weights, x: Tensor) -> Tensor:
    x = functional.layer_norm(x, x.shape[-1:], w["norm2.weight"], w["norm2.bias"], 1e-6)
    x = functional.gelu(functional.linear(x, w["mlp.fc1.weight"], w["mlp.fc1.bias"]))
    return functional.linear(x, w["mlp.fc2.weight"], w["mlp.fc2.bias"])


def _stochastic(x: Tensor, residual: Any, w: Weights, gamma: Tensor, drop: float) -> Tensor:
    """Stochastic depth over the batch: a random part of it has the residual, larger by what the others lack."""
    if not drop:
        return x + gamma * residual(w, x)
    few = torch.randperm(len(x))[: max(int(len(x) * (1 - drop)), 1)]
    added = torch.zeros_like(x)
    added[few] = gamma * residual(w, x[few]) * (len(x) / len(few))
    return x + added


def _koleo(z: Tensor) -> Tensor:
    z = functional.normalize(z, dim=-1)
    nearest = (z @ z.T - 3 * torch.eye(len(z))).argmax(1)
    return -(torch.nn.functional.pairwise_distance(z, z[nearest], eps=1e-8) + 1e-8).log().mean()
