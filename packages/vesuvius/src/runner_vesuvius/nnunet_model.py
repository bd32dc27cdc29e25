"""Networks that nnU-Net v2 trained, made into runs: plans.json, dataset.json and fold_X/checkpoint_final.pth."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner_core import BadInput, Tensors, did_you_mean, first_few, shell_word

_FILES = ("checkpoint_final.pth", "checkpoint_best.pth")
_BUILT = {
    "conv_op": "torch.nn.modules.conv.Conv3d",
    "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
    "norm_op_kwargs": {"eps": 1e-05, "affine": True},
    "conv_bias": True,
    "dropout_op": None,
    "nonlin": "torch.nn.LeakyReLU",
}
"""What every residual-encoder U-Net of nnU-Net's own plans is made of (`arch_kwargs`)."""
_SCHEMES = {
    "CTNormalization": "fixed",
    "NoNormalization": "fixed",
    "RGBTo01Normalization": "fixed",
    "ZScoreNormalization": "volume",
}
"""nnU-Net's normalisation → `data.normalise`."""


@dataclass(frozen=True)
class Trained:
    """A network of nnU-Net: the file of its weights, the weights by nnU-Net's names, and the settings that fit it."""

    file: Path
    weights: Mapping[str, Any]
    settings: Mapping[str, Any]
    heads: int
    """Channels of its answer: 2 (background and surface, softmax) or 1 (a region, sigmoid)."""
    spacing: Sequence[float]


def import_nnunet(parser: ArgumentParser, words: Sequence[str]) -> int:
    """Make a run of a network that nnU-Net v2 trained: `predict`, `evaluate` and `train --from` then use it.

    The folder is a model of nnU-Net (plans.json, dataset.json, fold_0 …), one of its folds or one of its checkpoints.
    """
    parser.add_argument("model", type=Path, metavar="MODEL", help="the model's folder, a fold or a checkpoint_….pth")
    parser.add_argument("--fold", metavar="N", help="the fold to take, if there are several; `all` is a name too")
    parser.add_argument("--weights", choices=("final", "best"), help="which checkpoint; default: final if there")
    parser.add_argument("--run-dir", type=Path, metavar="RUN", help="a new folder; default: runs/vesuvius/TIME")
    options = parser.parse_args(words)
    from runner_core import write_run

    trained = read(find(options.model, options.fold, options.weights))
    run = write_run(
        "vesuvius",
        weights=translated(trained),
        statistics={"mean": 0.0, "std": 1.0},
        preset="resenc-l",
        settings=trained.settings,
        source=trained.file,
        run_dir=options.run_dir,
    )
    if set(trained.spacing) != {1.0}:
        print(f"NOTE: it was trained on voxels of {trained.spacing}; yours are taken to be as large")
    if trained.settings["data.normalise"] == "volume":
        print("NOTE: the z-scores of this run leave out voxels of 0; nnU-Net's count every voxel, or, with")
        print("use_mask_for_norm, leave them out too and then set them to the mean")
    print(f"{trained.file} is the run {run.path}. Next:")
    print(
        f"  runner vesuvius predict {shell_word(run.path)} VOLUMES --out OUT   # nnU-Net mirrors too: --predict.views"
    )
    print(f"  runner vesuvius train --from {shell_word(run.path)} --data DATA")
    return 0


def find(named: Path, fold: str | None = None, weights: str | None = None) -> Path:
    """Return the checkpoint that the user means. Raises BadInput if there is none, or if several could be meant."""
    if named.is_file():
        return named
    if not named.is_dir():
        raise BadInput(f"{named}: there is no such file or folder")
    wanted = _FILES if weights is None else (f"checkpoint_{weights}.pth",)
    folders = [named] if any((named / name).is_file() for name in _FILES) else sorted(named.glob("fold_*"))
    if not folders:
        raise BadInput(f"{named} is no model of nnU-Net: it has neither fold_… folders nor a {' or '.join(_FILES)}")
    if fold is not None:
        folders = [folder for folder in folders if folder.name == f"fold_{fold}"]
    if len(folders) != 1:
        raise BadInput(f"{named} has {_listed(sorted(named.glob('fold_*')))}: choose one with --fold N")
    for name in wanted:
        if (folders[0] / name).is_file():
            return folders[0] / name
    raise BadInput(f"{folders[0]} has no {' or '.join(wanted)}: in it: {_listed(sorted(folders[0].iterdir()))}")


def _listed(paths: Sequence[Path]) -> str:
    return first_few([path.name for path in paths]) if paths else "nothing"


def read(file: Path) -> Trained:
    """Return the network in a checkpoint of nnU-Net. Raises BadInput for a network that is not known here."""
    from runner_core import read_pth, stored_tensors

    saved = read_pth(file)
    if not isinstance(saved, Mapping) or not isinstance(saved.get("network_weights"), Mapping):
        raise BadInput(f"{file} is no checkpoint of nnU-Net v2: it holds no network_weights")
    own = saved.get("init_args")
    own = own if isinstance(own, Mapping) else {}
    place, plans = _beside(file, "plans", own)
    about, dataset = _beside(file, "dataset", own)
    configuration = _configuration(place, plans, own.get("configuration") or file.absolute().parent.parent.name)
    try:
        heads = _heads(about, dataset)
        settings = dict(_settings(place, plans, configuration))
        weights = stored_tensors(file, saved["network_weights"])
        return Trained(file, weights, settings, heads, [float(n) for n in configuration["spacing"]])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadInput(f"{place} or {about} is not as nnU-Net v2 writes it: {type(error).__name__} {error}") from error


def _beside(file: Path, name: str, own: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return where plans or dataset were found, and the content: NAME.json beside or above, or the checkpoint's."""
    for folder in (file.absolute().parent, file.absolute().parent.parent):
        path = folder / f"{name}.json"
        if path.is_file():
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise BadInput(f"{path} is no JSON that can be read: {error}") from error
            if not isinstance(found, Mapping):
                raise BadInput(f"{path} is not as nnU-Net v2 writes it: {type(found).__name__}")
            return str(path), found
    kept = own.get({"plans": "plans", "dataset": "dataset_json"}[name])
    if isinstance(kept, Mapping):
        return f"{file}", kept
    raise BadInput(f"{file}: there is no {name}.json beside it or in the folder above: copy it from the model's folder")


def _configuration(place: str, plans: Mapping[str, Any], named: str) -> Mapping[str, Any]:
    """Return the configuration with what it inherits; `named` is its name or a model's folder, TRAINER__PLANS__NAME."""
    known = plans.get("configurations")
    name = named.rpartition("__")[2]
    if not isinstance(known, Mapping) or not isinstance(known.get(name), Mapping):
        hint = did_you_mean(name, [*known] if isinstance(known, Mapping) else [])
        raise BadInput(f"{place} has no configuration {name!r}{hint}: keep the model's folder as nnU-Net named it")
    found, seen = dict(known[name]), {name}
    while parent := found.pop("inherits_from", None):
        if parent in seen or not isinstance(known.get(parent), Mapping):
            raise BadInput(f"{place}: configuration {name!r} inherits from {parent!r}, which is not there")
        seen.add(parent)
        found = {**known[parent], **found}
    if len(found.get("patch_size", ())) != 3:
        raise BadInput(f"{place}: configuration {name!r} is not 3-D; sheets need a network that sees volumes")
    return found


def _heads(place: str, dataset: Mapping[str, Any]) -> int:
    """Return the channels of the network's answer. Raises BadInput for other inputs and labels than this project's."""
    channels = dataset.get("channel_names") or dataset["modality"]
    if len(channels) != 1:
        raise BadInput(
            f"{place}: the network reads {len(channels)} channels ({first_few([*channels.values()])}), not one"
        )
    labels = {name: value for name, value in dataset["labels"].items() if name != "ignore"}
    classes = {name: value for name, value in labels.items() if name != "background"}
    if len(classes) != 1 or labels.get("background") != 0:
        raise BadInput(
            f"{place}: labels must be background (0), one surface and perhaps ignore; it has {first_few([*labels])}"
        )
    (value,) = classes.values()
    if dataset.get("regions_class_order") is None and not isinstance(value, list):
        return 2
    if value not in (1, [1]):
        raise BadInput(f"{place}: the region of the surface is {value}; only one of label 1 is known")
    return 1


def _settings(place: str, plans: Mapping[str, Any], configuration: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a run with this network, by dotted name."""
    if "architecture" not in configuration:
        raise BadInput(
            f"{place} names no `architecture`: nnU-Net before 2.3 wrote it; train again, or convert it there"
        )
    kind, built = (configuration["architecture"][name] for name in ("network_class_name", "arch_kwargs"))
    if kind.rpartition(".")[2] != "ResidualEncoderUNet":
        raise BadInput(
            f"{place}: the network is a {kind.rpartition('.')[2]}; only ResidualEncoderUNet (ResEnc) is known"
        )
    if plans.get("transpose_forward", [0, 1, 2]) != [0, 1, 2]:
        raise BadInput(f"{place}: transpose_forward is {plans['transpose_forward']}; only [0, 1, 2] is known")
    for name, value in _BUILT.items():
        if built[name] != value:
            raise BadInput(f"{place}: {name} is {built[name]}; only {value} is known")
    for name, values in (("kernel_sizes", {3}), ("n_conv_per_stage_decoder", {1})):
        if any({*_flat(one)} != values for one in built[name]):
            raise BadInput(f"{place}: {name} is {built[name]}; only {values.pop()} is known")
    spacing = [float(n) for n in configuration["spacing"]]
    if len(set(spacing)) > 1:
        raise BadInput(f"{place}: voxels of {spacing}; volumes of scrolls have cubic ones")
    yield "model.architecture", "resenc"
    yield "model.resenc.features", tuple(built["features_per_stage"])
    yield "model.resenc.blocks", tuple(built["n_blocks_per_stage"])
    yield "model.resenc.halvings", _halvings(place, built["strides"])
    yield "data.patch", tuple(configuration["patch_size"])
    yield "train.batch_size", int(configuration["batch_size"])
    yield from _normalisation(place, plans, configuration)
    yield "predict.min_size", 0
    yield "predict.fill_holes", 0


def _flat(value: Any) -> list[int]:
    return [*value] if isinstance(value, (list, tuple)) else [value]


def _halvings(place: str, strides: Sequence[Any]) -> tuple[int, ...]:
    """Return how often each axis is halved. Raises BadInput unless it is at each level from the second until a last."""
    levels = [_flat(one) * (3 if len(_flat(one)) == 1 else 1) for one in strides]
    most = tuple(sum(level[axis] != 1 for level in levels) for axis in range(3))
    if levels != [[2 if 0 < number <= times else 1 for times in most] for number in range(len(levels))]:
        raise BadInput(f"{place}: strides are {strides}; only halving from the second level on is known")
    return most


def _normalisation(place: str, plans: Mapping[str, Any], configuration: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    (scheme,) = configuration["normalization_schemes"]
    if scheme not in _SCHEMES:
        raise BadInput(f"{place}: the normalisation {scheme} is not known (known: {', '.join(_SCHEMES)})")
    yield "data.normalise", _SCHEMES[scheme]
    if scheme == "CTNormalization":
        grey = plans["foreground_intensity_properties_per_channel"]["0"]
        found = [float(grey[n]) for n in ("percentile_00_5", "percentile_99_5", "mean", "std")]
        wide = 256 if found[1] > 255 else 1  # trained on 16 bits, of which the high byte is read here
        yield "data.intensities", tuple(n / wide for n in found)
    elif _SCHEMES[scheme] == "fixed":
        yield "data.intensities", (0.0, 255.0, 0.0, 1.0 if scheme == "NoNormalization" else 255.0)


# ---------------------------------------------------------------- weights

_PREFIX = re.compile(r"^(module\.|_orig_mod\.)+")
_PARTS = (
    (r"encoder\.stem\.convs\.0", "stem.blocks.0.normed"),
    (r"encoder\.stages\.(\d+)\.blocks\.(\d+)\.conv1", r"down.\1.blocks.\2.first"),
    (r"encoder\.stages\.(\d+)\.blocks\.(\d+)\.conv2", r"down.\1.blocks.\2.second"),
    (r"encoder\.stages\.(\d+)\.blocks\.(\d+)\.skip\.\d+", r"down.\1.blocks.\2.widen"),
    (r"decoder\.stages\.(\d+)\.convs\.0", r"merge.\1.blocks.0.normed"),
    (r"decoder\.transpconvs\.(\d+)", r"up.\1"),
    (r"decoder\.seg_layers\.(\d+)", r"heads.\1"),
)
"""nnU-Net's names of the modules, and ours. It counts the decoder's levels from the coarsest, we from the finest."""
_INNER = {".conv.": ".0.", ".norm.": ".1."}


def translated(trained: Trained) -> Tensors:
    """Return the weights under the names of `ResEncUNet`: one logit instead of two, which is their difference."""
    levels = len(trained.settings["model.resenc.features"])
    found: dict[str, Any] = {}
    for name, tensor in trained.weights.items():
        own = _own_name(_PREFIX.sub("", name), levels)
        if own is None:
            raise BadInput(f"{trained.file}: {name} is no weight of a residual-encoder U-Net of nnU-Net")
        if own.startswith("heads.") and tensor.shape[:1] != (trained.heads,):
            raise BadInput(
                f"{trained.file}: {name} has the shape {tuple(tensor.shape)}, and dataset.json asks for "
                f"{trained.heads} channels"
            )
        if own.startswith("heads.") and trained.heads == 2:
            tensor = tensor[1:] - tensor[:1]
        found.setdefault(own, tensor)
    _refuse_other_plans(trained, found)
    return {name: tensor for name, tensor in found.items() if name}


def _refuse_other_plans(trained: Trained, weights: Mapping[str, Any]) -> None:
    """Raise BadInput for plans of a larger network than the file holds, before memory is taken for it."""
    sizes = zip(trained.settings["model.resenc.features"], trained.settings["model.resenc.blocks"], strict=True)
    for level, (channels, blocks) in enumerate(sizes):
        for block in range(blocks):
            tensor = weights.get(f"down.{level}.blocks.{block}.second.0.weight")
            if tensor is None or tensor.shape[:2] != (channels, channels):
                raise BadInput(
                    f"{trained.file} holds another network than plans.json describes: level {level + 1} has no "
                    f"{blocks} blocks of {channels} channels"
                )


def _own_name(name: str, levels: int) -> str | None:
    """Return our name of a weight, "" for one that stands twice in nnU-Net's, None for an unknown one."""
    if ".all_modules." in name or name.startswith("decoder.encoder."):
        return ""
    for pattern, own in _PARTS:
        match = re.fullmatch(pattern + r"(\.(?:conv\.|norm\.)?)(weight|bias)", name)
        if match is None:
            continue
        module, inner = match.expand(own), match[match.re.groups - 1]
        if name.startswith("decoder."):
            kind, number, *rest = module.split(".")
            module = ".".join([kind, str(levels - 2 - int(number)), *rest])
        return module + _INNER.get(inner, inner) + match[match.re.groups]
    return None
