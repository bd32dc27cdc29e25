"""Formats that the runner writes and reads again: settings, runs, checkpoints, caches; and its command line."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import yaml
from hypothesis import strategies as st

from hostile import datasets
from hostile.case import Format
from hostile.formats import gzipped, nifti, tiff
from hostile.mutations import TEXTS, Changed, Draw, damage, json_text, lines, number, pick, tree


def yaml_text(draw: Draw, content: bytes) -> Changed:
    """A YAML file: its tree, or its text."""
    how = pick(draw, ("tree", "tree", "tree", "value", "value", "lines", "trick"))
    if how == "tree":
        what, value = tree(draw, yaml.safe_load(content))
        try:
            return what, yaml.safe_dump(value).encode("utf-8", "surrogatepass")
        except yaml.YAMLError:  # a value that has no YAML
            return what, json.dumps(value).encode()
    if how == "lines":
        return lines(draw, content)
    if how == "trick":
        name = pick(draw, sorted(_TRICKS))
        return name, _TRICKS[name]
    rows = content.decode().split("\n")
    at = draw(st.integers(0, len(rows) - 1))
    value = pick(draw, (*TEXTS, *_SCALARS))
    rows[at] = f"{rows[at].partition(':')[0]}: {value}"
    return f"line {at + 1}: {rows[at][:60]!r}", "\n".join(rows).encode("utf-8", "surrogatepass")


_SCALARS = (
    "2020-01-01", "2020-01-01T10:00:00Z", "2020-99-99", "0x_", "0b_", "0o_", "0_", "1:2:3", "190:20:30",
    "!!binary ////", "!!set {a}",
    "!!omap []", "!!pairs [a: 1]", "!!timestamp x", "!!int x", "!!float x", "!!bool x", "!!null x",
    "!!python/name:os.system",
    "!local x", "<<: *a", "{? [a]: b}", "? a", "|\n x", ">-", "&a", "*undefined", "yes", "no", "on", "Off", ".inf",
    "-.inf", ".NaN",
    "1e5", "1e400", "0.1e-400", "10000000000000000000000", "=", "[", "{", "]", "@x", "`x", "%x", "#", "'", '"',
    '"\\x"', '"\\ud800"',
    "- - - -", "\x07", "\x85", "\u2028", "\ufeff", "{a: {a: {a: 1}}}", "[[[[[[]]]]]]",
)  # fmt: skip
_TRICKS: dict[str, bytes] = {
    "5,000 lists deep": b"data: " + b"[" * 5000 + b"]" * 5000,
    "5,000 mappings deep": b"data: " + b"{a: " * 5000 + b"}" * 5000,
    "aliases that multiply": b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
        f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]\n".encode() for p, c in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "an alias of itself": b"data: &a\n  split: *a\n",
    "a merge of itself": b"data: &a\n  <<: *a\n",
    "merges that multiply": b"a: &a {x: 1}\n" + b"".join(
        f"{c}: &{c} {{<<: [{', '.join([f'*{p}'] * 9)}]}}\n".encode() for p, c in zip("abcdefgh", "bcdefghi",
        strict=True)
    ),
    "two documents": b"train: {}\n---\ntrain: {}\n",
    "a directive": b"%YAML 9.9\n---\ntrain: {}\n",
    "a key that is a list": b"? [a, b]\n: 1\n",
    "a key that is a mapping": b"? {a: b}\n: 1\n",
    "a key twice": b"train: {epochs: 1, epochs: 2}\n",
    "a million lines": b"a:\n" + b"- 1\n" * 1_000_000,
    "a number of a million digits": b"train: {epochs: " + b"9" * 1_000_000 + b"}\n",
    "a text of 10 MB": b"train: {device: " + b"x" * 10_000_000 + b"}\n",
}  # fmt: skip


def safetensors(draw: Draw, content: bytes) -> Changed:
    """Change the header's description of the tensors, or its size."""
    (size,) = struct.unpack("<Q", content[:8])
    how = pick(draw, ("tree", "tree", "tree", "size", "dtype", "values"))
    if how == "size":
        value = number(draw, "<Q")
        return f"header of {int.from_bytes(value, 'little')} bytes", value + content[8:]
    said, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    names = sorted(name for name in said if name != "__metadata__")
    if how == "values":
        import numpy as np

        value = pick(draw, (np.nan, np.inf, 0.0, 1e30, -1.0))
        return f"every number is {value}", content[: 8 + size] + np.full(len(body) // 4, value, "<f4").tobytes()
    if how == "dtype":
        name = pick(draw, names)
        said[name]["dtype"] = pick(draw, ("F16", "BF16", "I32", "U32", "BOOL", "F8_E4M3", "X", ""))
        if said[name]["dtype"] in ("F16", "BF16") and said[name]["shape"]:
            said[name]["shape"][-1] *= 2  # as many bytes
        what = f"{name} is {said[name]['dtype']}"
    else:
        what, said = tree(draw, said)
    text = json.dumps(said).encode()
    return what, struct.pack("<Q", len(text)) + text + body


def manifest(draw: Draw, content: bytes) -> Changed:
    """A checkpoint's manifest, under a checksum of its own that is right (`seal`)."""
    what, value = tree(draw, json.loads(content))
    return what, json.dumps(value).encode()


def seal(folder: Path) -> None:
    """Give every checkpoint below `folder` a manifest that vouches for the files as they are, as far as it is one."""
    import xxhash
    from runner_core import hash_file

    for path in folder.rglob("manifest.json"):
        try:
            said = json.loads(path.read_text())
            for name, facts in said["files"].items():
                file = path.with_name(name)
                if file.is_file() and not file.is_symlink():
                    facts |= {"bytes": file.stat().st_size, "xxh3_128": hash_file(file)}
        except (ValueError, KeyError, TypeError, AttributeError, OSError):
            pass  # the manifest itself is what is wrong
        try:
            said.pop("checksum", None)
            checksum = xxhash.xxh3_128_hexdigest(json.dumps(said, sort_keys=True).encode())
            path.write_text(json.dumps({"checksum": checksum, **said}))
        except (ValueError, TypeError, AttributeError, UnboundLocalError, OSError):
            pass


def cache_meta(draw: Draw, content: bytes) -> Changed:
    """A cache's meta.json; half of them under a checksum that is right."""
    from runner_core.data.cache.identity import digest_json

    what, value = tree(draw, json.loads(content))
    if isinstance(value, dict) and draw(st.booleans()):
        value.pop("checksum", None)
        try:
            return f"{what}, sealed", json.dumps(value | {"checksum": digest_json(value)}).encode()
        except ValueError:
            pass
    return what, json.dumps(value).encode()


def json_lines(draw: Draw, content: bytes) -> Changed:
    """A log: one of its lines as JSON, or its text."""
    if pick(draw, range(4)) == 2:
        return lines(draw, content)
    rows = content.decode().rstrip("\n").split("\n")
    at = draw(st.integers(0, len(rows) - 1))
    what, value = tree(draw, json.loads(rows[at]))
    rows[at] = json.dumps(value)
    return f"line {at + 1}: {what}", ("\n".join(rows) + "\n").encode()


def flags(draw: Draw, content: bytes) -> Changed:
    """Words of a command line: a setting with a value that it is not made for."""
    names = json.loads(content)
    out = []
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)):
        value = pick(draw, (*TEXTS, "-1", "0", "1e-9", "99999999999999999999", "2 3", "None", "auto", "a b"))
        value = value.replace("\0", "\\0").replace("\ud800", "?")  # no command line has them
        out += [pick(draw, (f"--{name}={value}", f"--{name} {value}"))] if draw(st.booleans()) else [f"--{name}", value]
    return " ".join(out)[:160], json.dumps(out).encode()


# ---------------------------------------------------------------- the formats

_SMALL = {
    "brainunet": "--preset small --data.size 32 --data.spacing 10 --model.features 2 4 --train.batch-size 2",
    "vesuvius": "--preset demo --data.patch 16 16 16 --data.patches 2 --model.base 2 --model.multipliers 1 2 "
    "--model.blocks 1 --loss.topology-crop 12 --train.batch-size 1",
    "dinocell": "--preset demo --data.window 32 --data.windows 1 --model.prototypes 16 --model.hidden 16 "
    "--model.bottleneck 8 --augment.global-size 16 --augment.local-size 8 --augment.locals 1 --train.batch-size 2",
}
_ONE = (
    "--train.epochs 1 --train.steps-per-epoch 2 --train.schedule constant --train.warmup 0 --train.device cpu "
    "--health.mode warn --health.memory off --checkpoint.every 1"
)
_STEP = "run/checkpoints/step-00000002"


def _train(project: str, data: str, more: str = "") -> str:
    return f"{project} train --data {{data}}/{data} --run-dir {{data}}/run {_SMALL[project]} {_ONE} {more}"


def _below(name: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        (folder / name).mkdir()
        make(folder / name)

    return made


def _settings(folder: Path) -> None:
    """A settings file, a split and a table beside three heads."""
    datasets.heads(folder)
    said = {
        "preset": "small",
        "data": {"size": 32, "spacing": 10.0, "split": "auto", "validation_fraction": 0.3},
        "model": {"features": [4, 8]},
        "train": {"epochs": 1, "batch_size": 2, "learning_rate": 0.01, "clip": None, "device": "cpu", "seed": 0},
        "cache": {"mode": "auto", "max_gb": 1.0},
        "log": {"every": 1, "mlflow": None},
        "health": {"mode": "stop"},
    }
    (folder / "settings.yaml").write_text(yaml.safe_dump(said))
    (folder / "split.yaml").write_text(
        yaml.safe_dump({"train": ["sub-0", "sub-1"], "validation": ["sub-2"], "test": []})
    )


def _flags_of(*projects: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        datasets.heads(folder)
        names = ["data.split", "data.validation-fraction", "data.size", "data.spacing", "model.features",
        "train.epochs",
                 "train.steps-per-epoch", "train.batch-size", "train.learning-rate", "train.seed", "train.device",
                 "train.threads",
                 "train.warmup", "train.clip", "train.ema", "train.accumulate", "train.workers", "train.schedule",
                 "train.compile",
                 "validate.every", "checkpoint.every", "checkpoint.keep", "cache.mode", "cache.dir", "cache.max-gb",
                 "cache.workers",
                 "crop.mode", "crop.size", "precision.mode", "health.mode", "log.every", "log.mlflow", "log.wandb",
                 "config", "preset",
                 "data", "extension", "no-extension", "remote.endpoint", "remote.timeout",
                 "predict.threshold"]  # fmt: skip
        (folder / "flags.json").write_text(json.dumps(names))

    return make


_RUN_WORDS = (
    "brainunet report {data}/run", "brainunet evaluate {data}/run", "brainunet export {data}/run --out out/x",
    "brainunet train --resume {data}/run --train.epochs 2", "compare {data}/run {data}/other",
    "brainunet predict {data}/run {data}/data/sub-1/sub-1_ses-1_T1w.nii.gz --out out",
)  # fmt: skip
_CHECKPOINT_WORDS = (*_RUN_WORDS[1:4], _RUN_WORDS[5])

KEPT = [
    Format("settings file", _settings, {"settings.yaml": yaml_text},
           ["brainunet config --config {file}", "brainunet config --config {file}",
           "brainunet check --data {data} --config {file}"],
           share=12),
    Format("split file", _settings, {"split.yaml": yaml_text},
           ["brainunet check --data {data} --config {data}/settings.yaml --data.split {file}"], share=4),
    Format("command line", _flags_of("brainunet"), {"flags.json": flags},
           ["brainunet config {flags}", "brainunet check --data {data} --data.size 32 --data.spacing 10 {flags}"],
           share=14,
           only=True, whole=False),
    Format("checkpoint", _below("data", datasets.heads),
           {f"{_STEP}/manifest.json": json_text, f"{_STEP}/state.json": json_text,
           f"{_STEP}/model.safetensors": safetensors,
            f"{_STEP}/training.safetensors": safetensors}, _CHECKPOINT_WORDS, prepare=(_train("brainunet", "data"),),
            after=seal,
           share=8, writes=("run", "data")),
    Format("checkpoint, unsealed", _below("data", datasets.heads),
           {f"{_STEP}/manifest.json": damage, f"{_STEP}/state.json": damage, f"{_STEP}/model.safetensors": damage,
            "run/checkpoints/best.json": json_text}, _CHECKPOINT_WORDS, prepare=(_train("brainunet", "data"),), share=3,
           writes=("run",)),
    Format("run folder", _below("data", datasets.heads),
           {"run/summary.json": json_text, "run/log.jsonl": json_lines, "run/config.yaml": yaml_text,
           "run/split.yaml": yaml_text,
            "run/scores.json": json_text, "run/scores.csv": lines}, _RUN_WORDS,
           prepare=(_train("brainunet", "data"), _train("brainunet", "data", "--train.seed 1").replace("/run ",
           "/other ")), share=10,
           writes=("run", "other")),
    Format("cache", _below("data", datasets.heads),
           {"meta.json": cache_meta, "array-0.bin": damage, "array-1.bin": damage},
           ["cache verify --dir {data}/kept", "cache list --dir {data}/kept", "cache prune --dir {data}/kept --all",
            _train("brainunet", "data", "--cache.dir {data}/kept")],
           prepare=(_train("brainunet", "data", "--cache.dir {data}/kept"),), share=8, writes=("run", "kept"),
           find=True),
    Format("cache, blosc2", _below("data", datasets.volumes),
           {"meta.json": cache_meta, "array-*.bin": damage},
           ["cache verify --dir {data}/kept", _train("vesuvius", "data",
           "--cache.mode blosc2 --cache.dir {data}/kept")],
           prepare=(_train("vesuvius", "data", "--cache.mode blosc2 --cache.dir {data}/kept"),), share=3,
           writes=("run", "kept"), find=True),
    Format("cache, streamed", _below("data", datasets.plates),
           {"stream/[0-9a-f]*": damage, "stream/total": damage, "identities.sqlite": damage},
           ["cache list --dir {data}/kept", "cache prune --dir {data}/kept --all",
            _train("dinocell", "data/images", "--cache.max-gb 0.1 --cache.dir {data}/kept")],
           prepare=(_train("dinocell", "data/images", "--cache.max-gb 0.1 --cache.dir {data}/kept"),), share=3,
           writes=("run", "kept"), find=True),
    Format("predict NIfTI", _below("data", datasets.heads), {"data/sub-1/sub-1_ses-1_T1w.nii.gz": gzipped(nifti)},
           ["brainunet predict {data}/run {file} --out out"], prepare=(_train("brainunet", "data"),), torn=1, share=5),
    Format("predict tif", _below("data", datasets.volumes), {"data/train_images/1.tif": tiff},
           ["vesuvius predict {data}/run {file} --out out"], prepare=(_train("vesuvius", "data"),), torn=0.9, share=5),
    Format("predict cells", _below("data", datasets.plates), {"data/images/P1/P1_A01_site1_Ch1.tif": tiff,
    "data/table.csv": lines},
           ["dinocell predict {data}/run {data}/data/images --out out",
           "dinocell predict {data}/run {data}/data/table.csv --out out"],
           prepare=(_train("dinocell", "data/images"),), share=3),
    Format("train on NIfTI", _below("data", datasets.heads),
           {"data/sub-1/sub-1_ses-1_T1w.nii.gz": gzipped(nifti),
           "data/sub-1/sub-1_ses-1_T1w_brainmask.nii.gz": gzipped(nifti)},
           [_train("brainunet", "data").replace("{data}/run", "out/run")], torn=1, share=3),
]  # fmt: skip
