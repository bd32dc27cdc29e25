"""A network that nnU-Net trained becomes a run; whatever is not known of it is refused by name.

nnunet_model.json holds plans.json and dataset.json as nnU-Net 2.8.1 wrote them, with a smaller network in the plans,
and the names and shapes of that network's weights.
"""

from __future__ import annotations

import argparse
import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runner_core
import torch
from runner_core import BadInput
from runner_vesuvius import nnunet_model
from runner_vesuvius.network import ResEncUNet

KNOWN = json.loads(Path(__file__).with_name("nnunet_model.json").read_text(encoding="utf-8"))
Change = Callable[[dict[str, Any]], object]


def import_nnunet(*words: object) -> int:
    return nnunet_model.import_nnunet(argparse.ArgumentParser(), [str(word) for word in words])


def full_disk(*arguments: object, **more: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = {name: torch.randn(shape, generator=generator) for name, shape in KNOWN["shapes"].items()}
    for name, tensor in found.items():  # nnU-Net has each of these twice
        if ".all_modules." in name or name.startswith("decoder.encoder."):
            tensor.fill_(100.0)
    return found


def write_model(folder: Path, change: Change = lambda known: None, **more: Any) -> Path:
    """Write a model's folder, its fold 0 with a checkpoint as nnU-Net's trainer saves it, and return the folder."""
    known = json.loads(json.dumps({"plans": KNOWN["plans"], "dataset": KNOWN["dataset"]}))
    change(known)
    model = folder / "nnUNetTrainer__nnUNetResEncUNetMPlans__3d_fullres"
    (model / "fold_0").mkdir(parents=True)
    for name, content in known.items():
        (model / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    saved = {
        "network_weights": weights(),
        "optimizer_state": {"state": {}, "param_groups": [{"lr": 0.01}]},
        "grad_scaler_state": None,
        "logging": {"train_losses": [np.float32(0.5)], "ema_fg_dice": [np.float64(0.25)]},
        "_best_ema": np.float64(0.25),
        "current_epoch": 1,
        "init_args": {"configuration": "3d_fullres", "fold": 0, "device": torch.device("cpu")},
        "trainer_name": "nnUNetTrainer",
        "inference_allowed_mirroring_axes": (0, 1, 2),
    }
    torch.save({**saved, **more}, model / "fold_0" / "checkpoint_final.pth")
    return model


def configuration(known: dict[str, Any]) -> dict[str, Any]:
    return known["plans"]["configurations"]["3d_fullres"]


def built(known: dict[str, Any]) -> dict[str, Any]:
    return configuration(known)["architecture"]["arch_kwargs"]


def network(model: Path) -> tuple[ResEncUNet, nnunet_model.Trained]:
    trained = nnunet_model.read(nnunet_model.find(model))
    made = ResEncUNet(*(trained.settings[f"model.resenc.{name}"] for name in ("features", "blocks", "halvings")))
    made.load_state_dict(nnunet_model.translated(trained))
    return made, trained


def test_weights_settings_and_the_one_logit(tmp_path) -> None:
    made, trained = network(write_model(tmp_path))
    assert trained.settings == {
        "model.architecture": "resenc",
        "model.resenc.features": (4, 6, 8),
        "model.resenc.blocks": (1, 2, 1),
        "model.resenc.halvings": (2, 2, 1),
        "data.patch": (16, 16, 16),
        "train.batch_size": 2,
        "data.normalise": "fixed",
        "data.intensities": (27.0, 195.0, 118.4654312133789, 45.633827209472656),
        "predict.min_size": 0,
        "predict.fill_holes": 0,
    }
    given = weights()
    finest = given["decoder.seg_layers.1.weight"]
    assert torch.equal(made.heads[0].weight, finest[1:] - finest[:1])
    assert torch.equal(made.up[0].weight, given["decoder.transpconvs.1.weight"])
    assert torch.equal(made.down[1].blocks[0].widen[0].weight, given["encoder.stages.1.blocks.0.skip.1.conv.weight"])
    assert all(parameter.abs().max() < 50 for parameter in made.parameters())


def test_the_run_predicts_and_a_training_starts_from_it(tmp_path, write_volumes, capsys) -> None:
    model, run = write_model(tmp_path), tmp_path / "run"
    assert import_nnunet(model, "--run-dir", run) == 0
    shown = capsys.readouterr().out
    assert f"train --from {run}" in shown
    made, trained = network(model)
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 16), np.uint8)
    low, high, mean, std = trained.settings["data.intensities"]
    with torch.no_grad():
        x = (torch.from_numpy(image).float().clamp(low, high) - mean) / std
        expected = made.eval()(x[None, None])[0][0, 0].sigmoid()
    opened = runner_core.open(run)
    assert opened.status == "imported"
    found = opened.predict(image, **{"precision.mode": "float32"}).prediction.probability / 255
    np.testing.assert_allclose(found, expected, atol=0.51 / 255)
    data = write_volumes({"1": "A", "2": "B", "3": "C"})
    tuned = runner_core.train(
        "vesuvius", data=data, from_=run, run_dir=tmp_path / "tuned",
        **{"train.epochs": 1, "train.steps_per_epoch": 1, "train.workers": 0, "data.validation_patches": 1,
           "loss.topology_crop": 12},
    )  # fmt: skip
    assert tuned.settings["data.normalise"] == "fixed"
    started = json.loads((tuned.path / "start.json").read_text(encoding="utf-8"))["fit"]
    assert not started["kept"]
    assert not started["differ"]
    for resume in ({"resume": run}, {"resume": "auto", "run_dir": run}):
        with pytest.raises(BadInput, match="no training to continue"):
            runner_core.train("vesuvius", **resume)


def test_the_scale_of_16_bits_becomes_that_of_the_high_byte_which_is_read(tmp_path) -> None:
    def widen(known: dict[str, Any]) -> None:
        grey = known["plans"]["foreground_intensity_properties_per_channel"]["0"]
        grey.update({name: 256 * value for name, value in grey.items()})

    settings = [
        nnunet_model.read(nnunet_model.find(write_model(tmp_path / name, change))).settings["data.intensities"]
        for name, change in (("bytes", lambda known: None), ("wide", widen))
    ]
    assert settings[0] == pytest.approx(settings[1])


def test_a_region_and_a_folder_without_plans(tmp_path) -> None:
    """A region has one logit already; the checkpoint has plans and dataset too, for who keeps it alone."""
    one = {name: tensor[:1] if "seg_layers" in name else tensor for name, tensor in weights().items()}
    known = {**KNOWN["dataset"], "labels": {"background": 0, "surface": [1]}, "regions_class_order": [1]}
    about = {"configuration": "3d_fullres", "plans": KNOWN["plans"], "dataset_json": known}
    model = write_model(tmp_path, network_weights=one, init_args=about)
    for name in ("plans", "dataset"):
        (model / f"{name}.json").unlink()
    alone = tmp_path / "weights.pth"
    shutil.move(model / "fold_0" / "checkpoint_final.pth", alone)
    made, _ = network(alone)
    assert torch.equal(made.heads[1].weight, one["decoder.seg_layers.0.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k: configuration(k).update(patch_size=[64, 64]), "'3d_fullres' is not 3-D"),
        (lambda k: k["plans"].update(transpose_forward=[1, 0, 2]), "transpose_forward"),
        (lambda k: k["plans"].update(configurations={"2d": {}}), "no configuration '3d_fullres'"),
        (lambda k: configuration(k).update(spacing=[2.0, 1.0, 1.0]), r"voxels of \[2.0, 1.0, 1.0\]"),
        (lambda k: configuration(k).pop("architecture"), "nnU-Net before 2.3"),
        (lambda k: configuration(k)["architecture"].update(network_class_name="a.PlainConvUNet"), "PlainConvUNet"),
        (lambda k: built(k).update(norm_op="a.BatchNorm3d"), "BatchNorm3d"),
        (lambda k: built(k).update(kernel_sizes=[[1, 3, 3]] * 3), "kernel_sizes"),
        (lambda k: built(k).update(strides=[[1, 1, 1], [1, 2, 2], 2]), "strides"),
        (lambda k: configuration(k).update(normalization_schemes=["OwnNormalization"]), "OwnNormalization"),
        (lambda k: configuration(k).update(normalization_schemes=["RescaleTo01Normalization"]), "RescaleTo01"),
        (lambda k: k["dataset"].update(channel_names={"0": "CT", "1": "earlier"}), "2 channels"),
        (lambda k: k["dataset"].update(labels={"background": 0, "verso": 1, "recto": 2}), "recto"),
        (lambda k: configuration(k).update(inherits_from="elsewhere"), "inherits from 'elsewhere'"),
        (lambda k: configuration(k).pop("batch_size"), "not as nnU-Net v2 writes it: KeyError 'batch_size'"),
        (lambda k: k["plans"].pop("foreground_intensity_properties_per_channel"), "not as nnU-Net v2 writes it"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(tmp_path, change: Change, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        nnunet_model.read(nnunet_model.find(write_model(tmp_path, change)))


def spoil(file: Path, how: str) -> None:
    if how == "pointer":
        file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", encoding="utf-8")
    elif how == "truncated":
        file.write_bytes(file.read_bytes()[:-2000])
    elif how == "other":
        torch.save({"state_dict": {"a": torch.ones(2)}}, file)
    elif how == "objects":
        torch.save({"network_weights": weights(), "logging": Path("x")}, file)
    elif how == "plain":
        torch.save({"network_weights": {"encoder.stages.0.0.convs.0.conv.weight": torch.ones(2)}}, file)
    else:
        file.unlink()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("pointer", "pointer of Git LFS"),
        ("truncated", "cannot be read as weights"),
        ("other", "no checkpoint of nnU-Net v2"),
        ("objects", "holds more than tensors"),
        ("plain", "is no weight of a residual-encoder U-Net"),
        ("missing", "has no checkpoint_final"),
    ],
)
def test_files_that_are_no_checkpoint_are_refused(tmp_path, how: str, message: str) -> None:
    model = write_model(tmp_path)
    spoil(model / "fold_0" / "checkpoint_final.pth", how)
    with pytest.raises(BadInput, match=message):
        import_nnunet(model, "--run-dir", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"decoder.seg_layers.1.weight": torch.ones(1).expand(2, 10**12)}, "claims more values than the file holds"),
        ({"decoder.seg_layers.1.weight": torch.ones(())}, r"has the shape \(\), and dataset\.json asks for 2 channels"),
        ({"decoder.seg_layers.1.weight": "none"}, "decoder|heads"),
    ],
)
def test_weights_that_cannot_be_are_refused(tmp_path, changed: dict[str, Any], message: str) -> None:
    model = write_model(tmp_path, network_weights={**weights(), **changed})
    with pytest.raises(BadInput, match=message):
        import_nnunet(model, "--run-dir", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("made", [False, True])
def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, made: bool) -> None:
    model, run = write_model(tmp_path), tmp_path / "runs" / "m7"
    if made:
        run.mkdir(parents=True)
    monkeypatch.setattr("runner_core.training.checkpoints.Checkpoints.save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        import_nnunet(model, "--run-dir", run)
    assert run.exists() == made
    monkeypatch.undo()
    assert import_nnunet(model, "--run-dir", run) == 0


@pytest.mark.parametrize("plans", [{"features_per_stage": [4096] * 3}, {"n_blocks_per_stage": [64] * 3}])
def test_plans_of_a_larger_network_are_refused_before_it_is_built(tmp_path, monkeypatch, plans) -> None:
    monkeypatch.setattr(runner_core, "write_run", lambda *given, **more: pytest.fail("it would be built"))
    model = write_model(tmp_path, lambda known: built(known).update(plans))
    with pytest.raises(BadInput, match=r"holds another network than plans\.json describes: level 1 has no"):
        import_nnunet(model, "--run-dir", tmp_path / "run")


def test_the_fold_and_the_checkpoint_are_the_users_choice(tmp_path) -> None:
    model = write_model(tmp_path)
    shutil.copytree(model / "fold_0", model / "fold_all")
    shutil.copy(model / "fold_0" / "checkpoint_final.pth", model / "fold_0" / "checkpoint_best.pth")
    with pytest.raises(BadInput, match=r"has fold_0.*fold_all: choose"):
        nnunet_model.find(model)
    assert nnunet_model.find(model, "0", "best") == model / "fold_0" / "checkpoint_best.pth"
    assert nnunet_model.find(model / "fold_all") == model / "fold_all" / "checkpoint_final.pth"
    with pytest.raises(BadInput, match=r"no checkpoint_best\.pth"):
        nnunet_model.find(model, "all", "best")
    with pytest.raises(BadInput, match="neither fold_"):
        nnunet_model.find(tmp_path)


@pytest.mark.parametrize("masked", [False, True])
def test_z_scores_are_those_of_each_volume(tmp_path, capsys, masked) -> None:
    scores = {"normalization_schemes": ["ZScoreNormalization"], "use_mask_for_norm": [masked]}
    model = write_model(tmp_path, lambda known: configuration(known).update(scores))
    assert nnunet_model.read(nnunet_model.find(model)).settings["data.normalise"] == "volume"
    assert import_nnunet(model, "--run-dir", tmp_path / "run") == 0
    assert "leave out voxels of 0" in capsys.readouterr().out
