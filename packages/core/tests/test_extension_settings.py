"""An extension's own settings: flags, files, bounds, the run that keeps them, and the extension that is gone."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import runner_core
import yaml
from runner_core import AtLeast, BadInput, RunConfig, hookimpl
from runner_core.config.extensions import with_sections
from runner_core.plugins.manager import Plugins
from runner_core.testing import train_toy

Runner = Any
PROJECT = Path(__file__).parent / "toy/project"
MODULE = """
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from runner_core import AtLeast, hookimpl


@dataclass
class Config:
    every: Annotated[int, AtLeast(1)] = 10
    \"\"\"Steps between two messages.\"\"\"
    style: Literal["short", "long"] = "short"
    \"\"\"Length of a message.\"\"\"
    out: Path | None = None

    def faults(self) -> Iterator[str]:
        if self.style == "long" and self.every < 3:
            yield "chat.style long needs a chat.every of 3 or more"


@hookimpl
def runner_metrics(project, settings: Config):
    (Path.cwd() / "seen.json").write_text(json.dumps([settings.every, settings.style, project.config.chat.every]))
    return []
"""
SHORT = ("--train.epochs", "1", "--train.steps-per-epoch", "2", "--train.warmup", "0", "--health.mode", "off")


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """A folder in which the extension `chat-room` is installed."""
    folder = tmp_path / "installed"
    info = folder / "chat-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chat\nVersion: 0.1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[runner.extensions]\nchat = chat_room\n", encoding="utf-8")
    (folder / "chat_room.py").write_text(MODULE, encoding="utf-8")
    return folder


def test_settings_are_flags_and_keys_of_a_file(runner: Runner, chat: Path, tmp_path: Path) -> None:
    both = (PROJECT, chat)
    shown = runner("toy", "train", "--help", installed=both).stdout
    assert "--chat.every" in shown
    assert "≥1" in shown
    assert "Steps between two messages." in shown
    (tmp_path / "mine.yaml").write_text("chat:\n  every: 4\n", encoding="utf-8")
    words = ("toy", "config", "--config", "mine.yaml")
    merged = runner(*words, "--chat.style", "long", installed=both)
    assert yaml.safe_load(merged.stdout)["chat"] == {"every": 4, "style": "long", "out": None}
    refused = {
        ("--chat.every", "0"): "setting chat.every must be at least 1, not 0",
        ("--chat.style", "long", "--chat.every", "2"): "chat.style long needs a chat.every of 3 or more",
    }
    for flags, message in refused.items():
        done = runner(*words, *flags, installed=both)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    (tmp_path / "mine.yaml").write_text("chat:\n  evry: 4\n", encoding="utf-8")
    assert "there is no setting 'chat.evry'; did you mean 'every'?" in runner(*words, installed=both).stderr
    assert runner(*words, "--no-extension", "chat", installed=both).returncode == 0


@pytest.mark.torch
def test_a_run_keeps_them(runner: Runner, chat: Path, tmp_path: Path) -> None:
    both, run = (PROJECT, chat), tmp_path / "run"
    done = runner("toy", "train", "--run-dir", run, "--chat.every", "7", *SHORT, installed=both)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "seen.json").read_text()) == [7, "short", 7]
    assert yaml.safe_load((run / "config.yaml").read_text())["chat"]["every"] == 7
    assert yaml.safe_load(runner("toy", "config", "--config", run / "config.yaml", installed=both).stdout)["chat"] == {
        **{"every": 7, "style": "short", "out": None}
    }
    more = ("--train.schedule", "constant")
    (tmp_path / "seen.json").unlink()
    resumed = runner("toy", "train", "--resume", run, "--chat.style", "long", *more, installed=both)
    assert "train.schedule" in resumed.stderr, "this, and not the extension's setting, is refused"
    assert "chat.style" not in resumed.stderr
    gone = runner("toy", "evaluate", run)
    assert gone.returncode == 2
    assert "was trained with the extension 'chat', which is not installed" in gone.stderr
    elsewhere = runner("toy", "config", "--config", run / "config.yaml")
    assert elsewhere.returncode == 2
    assert "`chat` holds settings of the extension 'chat', which is not installed" in elsewhere.stderr
    for words in (("evaluate", run), ("config", "--config", run / "config.yaml")):
        left_out = runner("toy", *words, "--no-extension", "chat")
        assert left_out.returncode == 0, left_out.stderr
    assert runner("toy", "train", "--resume", run, "--no-extension", "chat").returncode == 0


@pytest.mark.torch
def test_an_author_trains_a_toy_with_them(chat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(chat))
    monkeypatch.chdir(tmp_path)
    run = train_toy(tmp_path, "chat", {"chat.every": 3, "train.epochs": 1})
    assert json.loads((tmp_path / "seen.json").read_text()) == [3, "short", 3]
    assert runner_core.open(run).status == "done"
    assert runner_core.open(run).settings["chat.every"] == 3
    assert [row["step"] for row in runner_core.open(run).steps] == [*range(1, 7)]
    assert runner_core.open(run).scores["error"] < 0.5
    for name, settings, message in (
        ("chat", {"chat.evry": 3}, "did you mean 'every'?"),
        ("chat", {"chat.every": 0}, "setting chat.every must be at least 1"),
        ("chta", {}, "no extension 'chta' is installed; did you mean 'chat'?"),
    ):
        with pytest.raises(BadInput) as refused:
            train_toy(tmp_path / "other", name, settings)
        assert message in str(refused.value)


@dataclass
class Own:
    many: list[int] = field(default_factory=list)
    least: Annotated[int, AtLeast(1)] = 1


@pytest.mark.parametrize("send", [copy.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))])
def test_they_are_copied_and_sent_to_other_processes(send: Any) -> None:
    config = with_sections(RunConfig(), {"own": Own})
    config.own.many.append(3)  # type: ignore[attr-defined]
    config.train.epochs = 5
    assert send(config) == config
    assert type(send(config)) is type(config)


@dataclass
class NoDefault:
    address: str


@dataclass
class WrongDefault:
    share: Annotated[int, AtLeast(1)] = 0


def _takes(settings: Any) -> list[Any]:
    return []


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("cache", Own, "extension cache has settings called 'cache', and so has runner"),
        ("plugins", Own, "extension plugins has settings called 'plugins'"),
        ("model", Own, "extension model has settings called 'model'"),
        ("faults", Own, "extension faults has settings called 'faults'"),
        ("2d", Own, "'2d', which cannot be a section"),
        ("mail", dict, "must be a dataclass"),
        ("mail", NoDefault, "a field lacks a default"),
        ("mail", WrongDefault, "the default of a setting mail.share must be at least 1"),
        ("mail", None, "takes `settings`, those of an extension that declares a `Config`"),
    ],
)
def test_what_cannot_be_a_section_is_refused(toy: None, name: str, kind: Any, message: str) -> None:
    plugins = Plugins.load("toy")
    plugin = SimpleNamespace(runner_sinks=hookimpl(_takes), **({} if kind is None else {"Config": kind}))

    def load() -> None:
        plugins.register(plugin, name, kind="extension")
        plugins.sections(plugins.project())

    with pytest.raises(BadInput) as refused:
        load()
    assert message in str(refused.value)
