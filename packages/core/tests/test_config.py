"""Settings: preset < file < flags, strict types, round trips."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from runner_core import AtLeast, BadInput, Between, DataSet, RunConfig
from runner_core.cli.saved import _without_removed
from runner_core.config import TrainConfig
from runner_core.config.bounds import refuse_out_of_bounds
from runner_core.config.values import flat, overlay, plain, refuse_removed
from runner_core.contract.project import Project
from runner_core.data.splits import read_lists
from runner_core.plugins.settings import (
    SettingsFile,
    differences,
    dump,
    for_other_data,
    from_file,
    read_settings,
    refuse_nonsense,
    refuse_other_model,
    save,
)
from runner_core.training.keeping import refuse_other_settings


@dataclass
class Inner:
    rate: float = 0.5
    name: str | None = None
    sizes: tuple[int, ...] = (1, 2)
    pair: tuple[int, float] = (1, 2.0)
    folder: Path | None = None
    mode: Literal["on", "off", "auto"] = "auto"
    table: dict[str, float] = field(default_factory=dict)
    flag: bool = False
    names: list[str] = field(default_factory=list)


@dataclass
class Outer:
    count: int = 1
    inner: Inner = field(default_factory=Inner)


inner = st.builds(
    Inner,
    rate=st.floats(allow_nan=False, allow_infinity=False),
    name=st.none() | st.text(),
    sizes=st.lists(st.integers(), max_size=4).map(tuple),
    pair=st.tuples(st.integers(), st.floats(allow_nan=False)),
    folder=st.none() | st.just(Path("/a/b")),
    mode=st.sampled_from(["on", "off", "auto"]),
    table=st.dictionaries(st.text(), st.floats(allow_nan=False)),
    flag=st.booleans(),
    names=st.lists(st.text()),
)


@given(st.builds(Outer, count=st.integers(), inner=inner))
def test_settings_survive_yaml(config: Outer) -> None:
    again = overlay(Outer(), yaml.safe_load(yaml.safe_dump(plain(config))), "file")
    assert again == config


def test_every_shared_setting_survives_yaml() -> None:
    config = RunConfig()
    assert overlay(RunConfig(), yaml.safe_load(dump(config)), "file") == config


def test_what_is_not_named_keeps_its_value() -> None:
    base = Outer(count=7, inner=Inner(rate=0.1, sizes=(9,)))
    changed = overlay(base, {"inner": {"rate": 2}}, "file")
    assert changed == Outer(count=7, inner=Inner(rate=2.0, sizes=(9,)))
    assert base.inner.rate == 0.1


@pytest.mark.parametrize(
    "values, message",
    [
        ({"cuont": 1}, "f.yaml: there is no setting 'cuont'; did you mean 'count'"),
        ({"inner": {"raet": 1}}, "f.yaml: there is no setting 'inner.raet'; did you mean 'rate'"),
        ({"count": "many"}, "f.yaml: count must be a whole number, not 'many'"),
        ({"count": 1.5}, "count must be a whole number"),
        ({"count": True}, "count must be a whole number"),
        ({"inner": 3}, "inner must be a section"),
        ({"inner": {"rate": "fast"}}, "inner.rate must be a number"),
        ({"inner": {"rate": True}}, "inner.rate must be a number"),
        ({"inner": {"sizes": 3}}, "inner.sizes must be a list"),
        ({"inner": {"sizes": [1, "x"]}}, r"inner.sizes\[1\] must be a whole number"),
        ({"inner": {"pair": [1]}}, "inner.pair must be a list of 2"),
        ({"inner": {"mode": "atuo"}}, "inner.mode must be one of on, off, auto, not 'atuo'; did you mean 'auto'"),
        ({"inner": {"flag": "yes please"}}, "inner.flag must be true or false"),
        ({"inner": {"name": 3}}, "inner.name must be text"),
        ({"inner": {"table": {"a": "b"}}}, "inner.table.a must be a number"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        overlay(Outer(), values, "f.yaml")


def test_what_yaml_1_1_reads_otherwise_is_understood() -> None:
    read = yaml.safe_load("inner: {rate: 1e-3, mode: off}")
    assert read == {"inner": {"rate": "1e-3", "mode": False}}  # what PyYAML makes of it
    config = overlay(Outer(), read, "file")
    assert config.inner.rate == 0.001
    assert config.inner.mode == "off"


def test_a_projects_own_validation_becomes_bad_input() -> None:
    @dataclass
    class Even:
        number: int = 2

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError("number must be even")

    with pytest.raises(BadInput, match=r"f.yaml: settings: number must be even"):
        overlay(Even(), {"number": 3}, "f.yaml")


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: [1", "not valid YAML"),
        ("- 1\n- 2", "expected sections"),
        ("preset: 3", "preset must be text"),
        ("!!python/object/apply:os.system ['true']", "s.yaml, line 1, column 1: not valid YAML: could not determine"),
        ("train:\n  epochs: 3\n  seed: 1\n  epochs: 4\n", r"s.yaml, line 4, column 3: .*'epochs' appears here twice"),
        ("train: {}\nmodel: {}\ntrain: {}", r"s.yaml, line 3, column 1: .*'train' appears here twice"),
        ("train:\n  epochs: 3\n seed: 1\n", r"s.yaml, line 3, column 2: not valid YAML: expected"),
        ("train: [1, 2\nmodel: 3\n", r"s.yaml, line 2, column 6: not valid YAML: expected ',' or ']', but got ':'"),
        ("a: \x00", "s.yaml, line 1: not valid YAML"),
    ],
)
def test_a_file_that_is_no_settings_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=message) as raised:
        read_settings(path)
    assert len(str(raised.value).splitlines()) == 1


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"a: \xff\xfe")
    with pytest.raises(BadInput, match=r"s.yaml: the settings file is not text in UTF-8 \(byte 3\)"):
        read_settings(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing.yaml: the settings file cannot be read"):
        read_settings(tmp_path / "nothing.yaml")


def test_a_saved_run_reads_back(tmp_path: Path) -> None:
    config = RunConfig()
    config.train.batch_size = 3
    head = {"project": "toy", "preset": "demo", "source": "phantom", "plugins": {"core": "1"}, "chosen": ["x"]}
    save(tmp_path / "config.yaml", config, head)
    file = read_settings(tmp_path / "config.yaml")
    assert (file.project, file.preset, file.source, file.plugins, file.chosen) == tuple(head.values())
    assert overlay(RunConfig(), file.sections, "file") == config


@pytest.mark.parametrize(
    "name, value",
    [
        ("batch_size", 0),
        ("epochs", -1),
        ("learning_rate", -1e-3),
        ("warmup", 1.5),
        ("seed", -1),
        ("clip", 0),
        ("ema", 0),
        ("ema", 1),
        ("learning_rate", 0),
    ],
)
def test_numbers_that_no_run_can_mean_are_refused(name: str, value: float) -> None:
    config = RunConfig()
    setattr(config.train, name, value)
    with pytest.raises(BadInput, match=f"train.{name} must (be|lie)"):
        refuse_nonsense(config)


def test_a_number_that_is_not_finite_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("train:\n  learning_rate: .inf\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"mine.yaml: setting train.learning_rate must be a finite number, not inf$"):
        from_file(RunConfig(), Project, read_settings(file))


@pytest.mark.parametrize("name", ["learning_rate", "weight_decay", "clip", "ema", "warmup"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(name: str, value: float) -> None:
    config = RunConfig()
    setattr(config.train, name, value)
    with pytest.raises(BadInput, match=f"train.{name} must be a finite number"):
        refuse_nonsense(config)


@pytest.mark.parametrize("name", ["steps_per_epoch", "batch_size", "epochs", "accumulate", "patience", "threads"])
@pytest.mark.parametrize("value", [0, -1])
def test_counts_below_one_are_refused(name: str, value: int) -> None:
    config = RunConfig()
    setattr(config.train, name, value)
    with pytest.raises(BadInput, match=f"train.{name} must be at least 1"):
        refuse_nonsense(config)


def test_differences_are_by_dotted_name() -> None:
    one, other = RunConfig(), RunConfig()
    other.train.epochs = 3
    assert differences(one, other) == {"train.epochs": (100, 3)}
    assert differences(one, RunConfig()) == {}
    assert set(flat(one)) >= {f"train.{f.name}" for f in dataclasses.fields(one.train)}


def test_a_trained_model_is_not_used_with_other_settings(tmp_path: Path) -> None:
    one, other = RunConfig(), RunConfig()
    other.train.device, other.cache.mode = "cpu", "memory"
    refuse_other_model(one, other, tmp_path)
    other.crop.margin = 9
    with pytest.raises(BadInput, match=r"crop.margin: the run has 4, you asked for 9"):
        refuse_other_model(one, other, tmp_path)


def test_the_split_of_a_trained_model_is_its_own(tmp_path: Path) -> None:
    other = RunConfig()
    other.data.split = "group:a"
    with pytest.raises(BadInput, match=r"data.split: the run has 'auto', you asked for 'group:a'"):
        refuse_other_model(RunConfig(), other, tmp_path)


def test_a_full_disk_never_empties_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    save(path, RunConfig(), {"project": "toy"})
    before = path.read_text(encoding="utf-8")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match=r"config.yaml cannot be written: No space left"):
        save(path, RunConfig(), {"project": "other"})
    assert path.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == [path]


@dataclass
class Threshold:
    threshold: float = 0.5


@dataclass
class Predicting(RunConfig):
    predict: Threshold = field(default_factory=Threshold)


def test_settings_of_prediction_are_free_for_a_trained_model() -> None:
    refuse_other_model(Predicting(), Predicting(predict=Threshold(0.7)), Path("run"))
    with pytest.raises(BadInput, match=r"train\.seed: the run has 0, you asked for 1"):
        refuse_other_model(Predicting(), Predicting(train=TrainConfig(seed=1)), Path("run"))


def test_what_the_data_are_is_free_for_a_trained_model() -> None:
    one, other = RunConfig(), RunConfig()
    one.data.split = "group:a"
    refuse_other_model(one, other, Path("run"), DataSet(settings=("data.split",)))
    one.train.ema, other.train.ema = None, 0.9
    with pytest.raises(BadInput, match=r"train\.ema"):  # none was named before: that is no move
        refuse_other_model(one, other, Path("run"), DataSet(settings=("data.split",), places=("train.ema",)))
    one.train.ema = 0.5
    refuse_other_model(one, other, Path("run"), DataSet(settings=("data.split",), places=("train.ema",)))
    other.train.ema = 0.5

    class Described(Project):
        presets: ClassVar[dict[str, Callable[[], RunConfig]]] = {"default": RunConfig}
        dataset = DataSet(settings=("data.split",))

    one.train.seed = 3
    found = for_other_data(one, Described, "default")
    assert (found.data.split, found.train.seed) == ("auto", 3)
    assert one.data.split == "group:a"


# ---------------------------------------------------------------- hostile files

LAUGHS = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10))


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("train:\n  seed: !!int 0x_\n", 2, "'0x_' is no int"),
        ("train:\n  seed: !!int x\n", 2, "'x' is no int"),
        ("train:\n  seed: " + "9" * 5000 + "\n", 2, "is no int"),
        ("train:\n  clip: !!float one\n", 2, "'one' is no float"),
        ("source: !!timestamp 2024-13-45\n", 1, "is no timestamp"),
        ("source: !!timestamp later\n", 1, "is no timestamp"),
        ("source: !!bool maybe\n", 1, "is no bool"),
        ("source: !!binary ä\n", 1, "not valid YAML"),
        ("\nsource: !!python/object/apply:os.system [true]\n", 2, "python/object/apply"),
        ("source: !mine x\n", 1, "!mine"),
        ("a: " + "[" * 200_000, 1, "more than 50 levels deep"),
        ("a: " + "{a: " * 50_000, 1, "more than 50 levels deep"),
        ("- " * 100_000, 1, "more than 50 levels deep"),
        ("\n".join(" " * n + "a:" for n in range(600)), 50, "more than 50 levels deep"),
        (LAUGHS, 5, "expand to more than 100,000 values"),
        (MERGED, 6, "expand to more than 100,000 values"),
        ("a: &a [1, *a]\n", 1, r"the alias \*a refers to no complete value"),
        ("a: *b\n", 1, r"the alias \*b refers to no complete value"),
        ("train:\n  seed: 1\n  seed: 2\n", 3, "'seed' appears here twice"),
        ("train: {[a]: 1}\n", 1, "unhashable key"),
        ("a: b: c\n", 1, "not valid YAML"),
        ("a: \x00\n", 1, "not valid YAML"),
        ("a: 1\nb: \x07\n", 2, "not valid YAML"),
        ("a: 1\n---\nb: 2\n", 2, "not valid YAML"),
    ],
)
def test_yaml_that_is_no_settings_file_is_refused_by_its_line(tmp_path, text, line, said):
    file = tmp_path / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=said) as refused:
        read_settings(file)
    assert str(refused.value).startswith(f"{file}, line {line}")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: {seed: 0x_}", "train.seed must be a whole number, not '0x_'"),
        ("train: {seed: 1:30}", "train.seed must be a whole number, not '1:30'"),
        ("train: {seed: 010}", "train.seed must be a whole number, not '010'"),
        ("train: {seed: 2024-01-01}", "train.seed must be a whole number, not '2024-01-01'"),
        ("plugins: {1: 2}", "plugins must be names"),
        ("chosen: 5", "chosen must be a list of extensions"),
        ("chosen: [[a]]", "chosen must be a list of extensions"),
        ("train: {seed: [" + "1, " * 50_000 + "]}", "train.seed must be a whole number"),
    ],
)
def test_values_of_another_kind_are_refused_by_name(tmp_path, text, said):
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=f"^{file}: {said}") as refused:
        overlay(RunConfig(), read_settings(file).sections, str(file))
    assert len(str(refused.value)) < 500


def test_a_huge_settings_file_is_not_read(tmp_path):
    file = tmp_path / "settings.yaml"
    with file.open("wb") as huge:
        huge.truncate(10**12)
    with pytest.raises(BadInput, match=r"1.0 TB; a .* takes at most 262.1 kB"):
        read_settings(file)


def test_what_yaml_allows_is_taken(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(
        "log: {experiment: 2024-01-01}\n"
        "train: &t\n  seed: 0x1F\n  clip: 1.5e+0\n  learning_rate: 1e-3\n  epochs: 1_000\n"
    )
    found = overlay(RunConfig(), read_settings(file).sections, str(file))
    assert (found.log.experiment, found.train.seed, found.train.clip) == ("2024-01-01", 31, 1.5)
    assert (found.train.learning_rate, found.train.epochs) == (1e-3, 1000)


def test_names_in_a_split_are_text(tmp_path):
    file = tmp_path / "split.yaml"
    file.write_text("validation: [007, 010, 1:30, 2024-01-01, yes, 0x_, 1e3, null]\ntest:\n- 1.50\n")
    names = ["007", "010", "1:30", "2024-01-01", "yes", "0x_", "1e3", "null"]
    assert read_lists(file) == {"validation": names, "test": ["1.50"]}
    file.write_text("validation: [[a]]\n")
    with pytest.raises(BadInput, match="expected names of groups or records"):
        read_lists(file)


def test_a_long_settings_file_that_needs_the_slow_parser_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text('source: "\\udcff"\n' + "".join(f"k{n}: [1, 2, 3]\n" for n in range(2000)))
    with pytest.raises(BadInput, match="with a path that is not text takes at most 16"):
        read_settings(path)


@dataclass
class Odd:
    either: Annotated[int, AtLeast(1)] | Literal["auto"] = "auto"
    share: Annotated[float, Between(0, 1)] | None = None
    sides: Annotated[tuple[int, ...], AtLeast(2)] = (2, 3)
    named: dict[str, float] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, ""),
        ({"either": 1, "share": 0.5, "sides": (), "named": {"x": 1.0}}, ""),
        ({"either": 0}, "setting either must be at least 1, not 0"),
        ({"share": 1.0}, "setting share must lie between 0 and 1, not 1.0"),
        ({"sides": (2, 1)}, "setting sides must be at least 2, not (2, 1)"),
        ({"sides": (2, math.inf)}, "setting sides must be a finite number"),
        ({"named": {"x": math.nan}}, "setting named must be a finite number"),
    ],
)
def test_bounds_hold_whatever_the_type(settings: dict[str, Any], message: str) -> None:
    if not message:
        refuse_out_of_bounds(Odd(**settings))
        return
    with pytest.raises(BadInput, match=re.escape(message)):
        refuse_out_of_bounds(Odd(**settings))


@dataclass
class DiceLoss:
    dice: float = 1.0


@dataclass
class WithLoss(RunConfig):
    loss: DiceLoss = field(default_factory=DiceLoss)


def test_a_setting_that_projects_had_is_answered() -> None:
    with pytest.raises(BadInput, match=r"old\.yaml: the setting 'loss\.measure_every' is gone: .*`profile` times them"):
        overlay(WithLoss(), {"loss": {"measure_every": 5}}, "old.yaml")
    with pytest.raises(BadInput, match=r"the setting 'loss\.measure_every' is gone"):
        refuse_removed(WithLoss(), ["train.epochs", "loss.measure_every"])
    refuse_removed(WithLoss(), ["train.epochs", "loss.unknown"])


def test_a_run_that_is_older_than_a_setting_continues_if_it_is_at_its_default() -> None:
    saved, now = {"train.seed": 1}, {"train.seed": 1, "loss.dice": 1.0}
    refuse_other_settings(saved, now, {"loss.dice": 1.0})
    with pytest.raises(BadInput, match=r"loss\.dice: unset in the run, 1\.0 now"):
        refuse_other_settings(saved, now, {"loss.dice": 0.5})
    with pytest.raises(BadInput, match=r"loss\.dice: 2\.0 in the run, 1\.0 now"):
        refuse_other_settings(saved | {"loss.dice": 2.0}, now, {"loss.dice": 1.0})


def test_a_run_continues_in_the_type_in_which_it_began_however_it_is_asked_for() -> None:
    began = {"precision.mode": "auto", "computing in": "float32"}
    refuse_other_settings(began, {"computing in": "float32"})
    with pytest.raises(BadInput, match=r"\(set precision\.mode to the run's\): 'float32' in the run, 'bfloat16' now"):
        refuse_other_settings(began, {"computing in": "bfloat16"})


def test_a_run_that_had_a_removed_setting_can_be_used_and_continued() -> None:
    saved = SettingsFile(Path("config.yaml"), {"loss": {"measure_every": 5, "dice": 2.0}})
    assert _without_removed(saved, WithLoss()).sections == {"loss": {"dice": 2.0}}
    refuse_other_settings({"loss.measure_every": 5, "train.seed": 1}, {"train.seed": 1})
    saved = SettingsFile(Path("config.yaml"), {"predict": {"part_sheets": 0.75, "threshold": 0.4}})
    assert _without_removed(saved, RunConfig()).sections == {"predict": {"threshold": 0.4}}
    refuse_other_settings({"predict.part_sheets": 0.0}, {})
    for flip, views in ((True, {}), (False, {"views": []})):  # without the mirrored head, as it was trained
        saved = SettingsFile(Path("config.yaml"), {"predict": {"flip": flip, "threshold": 0.4}})
        assert _without_removed(saved, RunConfig()).sections == {"predict": {"threshold": 0.4, **views}}
