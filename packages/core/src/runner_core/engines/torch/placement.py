"""Where a network's weights lie: on which device, in which order of their axes."""

from __future__ import annotations

import torch
from torch import nn

from runner_core.project import Project
from runner_core.protocols import Precision

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def wanted(setting: str, project: Project, device: torch.device) -> bool:
    """compile, channels_last: as set, or (auto) on a GPU where the project measured it faster."""
    value = getattr(project.config.train, setting)
    return value == "on" or (value == "auto" and device.type == "cuda" and setting in project.faster_with)


def fresh(project: Project, policy: Precision) -> nn.Module:
    """A network as a training begins with it."""
    network: nn.Module = project.model(policy)
    project.initialise(network)
    return network


def place(network: nn.Module, project: Project, device: torch.device) -> nn.Module:
    """The network on the device, its convolutions' weights channels last where that is wanted."""
    network.to(device)
    if wanted("channels_last", project, device):
        for parameter in network.parameters():
            layout = CHANNELS_LAST.get(parameter.ndim)
            if layout is not None:
                parameter.data = parameter.data.contiguous(memory_format=layout)
    return network
