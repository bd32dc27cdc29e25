"""Export a trained network: model.safetensors, and model.json, which says how to build, feed and read it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Json, Statistics, flat, plain

from runner_ssmunet.classes import Classes, palette
from runner_ssmunet.config import SSMConfig
from runner_ssmunet.labels import output_labels, output_names
from runner_ssmunet.preprocess import settings_of

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"


def export(network: Any, folder: Path, config: SSMConfig, classes: Classes, statistics: Statistics) -> Sequence[Path]:
    """Write `network` (SSMUNetwork) into `folder` and return the files. `load_network` reads them."""
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    text = json.dumps(description(network.settings, config, classes, statistics), indent=1, ensure_ascii=False)
    (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
    return [folder / WEIGHTS, folder / DESCRIPTION]


def description(
    network: Mapping[str, Any], config: SSMConfig, classes: Classes, statistics: Statistics
) -> dict[str, Json]:
    """Return all that `SSMUNet.predict` does around the network, in numbers and in words."""
    data = config.data
    given = output_labels(classes.names, data.ignore).tolist()
    colours = palette(len(classes.names), classes.colours)[given]
    return {
        "project": "ssmunet",
        "made_by": f"runner-ssmunet {version('runner-ssmunet')}",
        "load": "runner_ssmunet.export.load_network(folder) of the package runner-ssmunet: a torch.nn.Module",
        "network": {**network, "scan": "auto"},  # the machine that trained it need not be the one that uses it
        "input": {
            "spectra": "(B, H, W, L) float32: (prepared - mean) / std, 0 where there is no tissue",
            "tissue": "(B, H, W) bool",
            "prepare": {
                "how": "one core: wavenumbers low to high without the gap, averaged (bin) or resampled (step), "
                "baseline, derivative, normalisation, rounded to float16; nothing runs across the gap "
                "(runner_ssmunet.preprocess.prepare)",
                **{name: plain(value) for name, value in settings_of(data).items()},
            },
            "wavenumbers": np.asarray(statistics["wavenumbers"]).tolist(),
            "mean": np.asarray(statistics["mean"]).tolist(),
            "std": np.asarray(statistics["std"]).tolist(),
            **_steps(config, statistics),
        },
        "output": {
            "what": "logits (B, K, H, W)",
            "classes": list(output_names(classes.names, data.ignore)),
            "labels": given,
            "colours": ["#" + bytes(colour).hex() for colour in colours],
            "patch": data.patch,
            "overlap": config.predict.overlap,
            "use": "features(spectra, tissue) of the whole core once; classify() in patches that overlap, their "
            "probabilities blended",
        },
        "settings": flat(config),
    }


def _steps(config: SSMConfig, statistics: Statistics) -> dict[str, Json]:
    """Return the steps of `preprocess.steps`, if any: their settings, and the constants of those on the device."""
    if not config.preprocess.steps:
        return {}
    what = "preprocess.steps replace baseline, derivative and normalisation (runner_ssmunet.steps.pipeline); the "
    what += "operations (runner_ssmunet.steps.operations.applied) come after the rounding, before mean and std"
    return {"preprocess": {"how": what, "settings": plain(config.preprocess), **_lists(statistics["preprocess"])}}


def _lists(value: Any) -> Any:
    """Return nested dicts and lists with lists in place of arrays."""
    if isinstance(value, Mapping):
        return {key: _lists(own) for key, own in value.items()}
    if isinstance(value, list):
        return [_lists(own) for own in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def read_description(folder: Path) -> dict[str, Json]:
    """Return the content of an exported model.json. Raises BadInput if it is missing or describes something else."""
    file = folder / DESCRIPTION
    try:
        content: Json = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}; give the folder that `runner ssmunet export` wrote") from error
    except ValueError as error:
        raise BadInput(f"{file}: this is not JSON ({error}); export the network again") from error
    parts = {"project", "network", "input", "output"}
    if not isinstance(content, dict) or not parts <= set(content) or content["project"] != "ssmunet":
        raise BadInput(f"{file}: no ssmunet network is described; give the folder that `runner ssmunet export` wrote")
    return content


def load_network(folder: Path) -> tuple[Any, dict[str, Json]]:
    """Return the exported network (SSMUNetwork, on the CPU, in evaluation mode) and its description.

    Raises BadInput naming the file that is missing or does not fit.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from runner_ssmunet.network import SSMUNetwork

    content = read_description(folder)
    file = folder / WEIGHTS
    try:
        network = SSMUNetwork(**content["network"])
        network.load_state_dict(load_file(file))
    except FileNotFoundError as error:
        raise BadInput(f"{file}: no such file; give the folder that `runner ssmunet export` wrote") from error
    except (SafetensorError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{file}: does not fit {DESCRIPTION} beside it: {reason}; export the network again") from error
    return network.eval(), content


def frozen_network(folder: Path, classes: int, embed: int, base: int, scan: str = "auto") -> Any:
    """Return the exported network with its stack frozen, for training on features.

    Its head continues to learn if it has the same classes and widths, else a new head starts. Raises BadInput as
    `load_network` does.
    """
    from runner_ssmunet.network import SSMUNetwork

    trained, content = load_network(folder)
    wanted = content["network"] | {"classes": classes, "embed": embed, "base": base, "scan": scan}
    if wanted != content["network"]:
        fresh = SSMUNetwork(**wanted)
        fresh.stack.load_state_dict(trained.stack.state_dict())
        trained = fresh
    trained.freeze()
    return trained.train()
