"""The pages name nothing that is missing: links and anchors, settings, commands and their flags.

That the site is built without a warning is for `mkdocs build --strict` to say (.ci/run).
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Collection, Iterator
from contextlib import redirect_stdout
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner_core import Project, RunConfig, flat
from runner_core.cli import PROJECT_COMMANDS, options
from runner_core.cli.completion import completion
from runner_core.cli.parsing import ALIASES
from runner_core.config.values import REMOVED
from runner_core.plugins import discovery
from runner_core.plugins.manager import Plugins
from workspace import ROOT

PAGES = sorted(
    p for glob in ("*.md", "docs/**/*.md", "packages/*/README.md", "examples/*/README.md") for p in ROOT.glob(glob)
)
FENCE = re.compile(r"^```(\w*).*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
FILES = {"bin", "csv", "json", "jsonl", "keras", "log", "onnx", "pt2", "py", "safetensors", "xml", "yaml"}
"""Endings of file names that look like settings: `log.jsonl`."""
OWN_FLAGS = {
    "compare": {"--out", "--json"},
    "cache": {"--dir", "--project", "--older-than-days", "--max-gb", "--all"},
    "doctor": {"--json"},
    "list": {"--json", "--hooks", "--extension", "--no-extension"},
    "new": {"--framework", "--into", "--task"},
    "completion": set(),
    "watch": {"--port"},
    "reproduce": {"--data", "--from", "--run-dir", "--tolerance", "--json"},
}
"""Flags of `runner`'s own commands, which take no settings."""

pages = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


@pages
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    lost = [target for target in LINK.findall(text) if "://" not in target and not _leads(page, target)]
    assert not lost


@pages
def test_settings_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = set().union(flat(RunConfig()), *(flat(kind.Config()) for kind in _projects().values()), _extensions())
    sections = {name.partition(".")[0] for name in known}
    if "(RunConfig):" in text:  # a page that makes a project with settings of its own: only the core's are known
        sections = {f.name for f in fields(RunConfig)} - {"data"}
    named = re.findall(r"(?<![\w./-])(?:--)?([a-z]+)\.(?:no-)?([a-z][\w-]*)", "\n".join(_code(text)))
    settings = {f"{a}.{b.replace('-', '_')}" for a, b in named if a in sections and b not in FILES}
    if page.name == "CHANGELOG.md":  # it tells what became of old settings
        settings -= REMOVED.keys()
    assert settings <= known


@pages
def test_commands_are_there_with_their_flags(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    made = set(re.findall(r"runner new (\w+)", text))
    made |= set(re.findall(r'^\[project.entry-points."runner.extensions"\]\n(\w+) =', text, re.MULTILINE))
    wrong = [line for line in _commands(text) if not _understood(line, made)]
    assert not wrong


def test_the_yaml_for_schedulers_starts_runner_with_words_that_it_understands() -> None:
    text = (ROOT / "docs" / "more-than-one-machine.md").read_text(encoding="utf-8")
    task, train_job, job = (yaml.safe_load(block) for language, block in FENCE.findall(text) if language == "yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    for words in (shlex.split(task["run"]), train_job["spec"]["trainer"]["command"], container["command"]):
        (place,) = [n for n, word in enumerate(words) if word.endswith("runner")]
        assert _understood(shlex.join(words[place + 1 :]), set())
        assert "auto" in words


def _leads(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.exists() and (not anchor or anchor in _anchors(file))


@cache
def _anchors(file: Path) -> set[str]:
    """Anchors of a page's headings, as both the forge and MkDocs make them of English."""
    titles = re.findall(r"^#+ +(.*?) *$", FENCE.sub("", file.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@cache
def _projects() -> dict[str, type[Project]]:
    return {name: Plugins.load(name).project() for name in discovery.projects()}


@cache
def _extensions() -> set[str]:
    """Settings of the installed extensions."""
    loaded = {name: plugin.entry.load() for name, plugin in discovery.extensions().items()}
    return {
        f"{name}.{setting}"
        for name, module in loaded.items()
        if hasattr(module, "Config")
        for setting in flat(module.Config())
    }


def _code(text: str) -> Iterator[str]:
    """Code spans, and blocks that are not Python."""
    yield from (block for language, block in FENCE.findall(text) if language != "python")
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def _commands(text: str) -> Iterator[str]:
    """Command lines of the runner, from the word after `runner` on: those of shell blocks, and code spans."""
    blocks = "\n".join(block for language, block in FENCE.findall(text) if language in ("", "sh", "bash", "console"))
    spans = re.findall(r"`((?:uv run )?runner [^`\n]+)`", FENCE.sub("", text))
    for line in [*blocks.replace("\\\n", " ").splitlines(), *spans]:
        found = re.search(r"(?:^|[\s/])runner +(\S.*)", line.partition(" #")[0].partition(" > ")[0].rstrip())
        if found:
            yield found[1]


def _understood(line: str, made: set[str]) -> bool:
    """`made`: names of projects and extensions that the page itself makes."""
    words = shlex.split(line)
    flags = {word.partition("=")[0] for word in words if word.startswith("-")} - {
        "-h",
        "--help",
        "--help-all",
        "--debug",
    }
    flags = {ALIASES.get(flag, flag) for flag in flags if flag.strip("-").partition(".")[0] not in made}
    if words[0] in ("--help", "--version"):
        return len(words) == 1
    if words[0] in OWN_FLAGS:
        return flags <= OWN_FLAGS[words[0]]
    if words[0] == "verify-resume":  # comes before the project, and takes the flags of a training
        words = [*words[1:2], words[0], *words[2:]]
        return bool(words[1:]) and not flags - _flags(_projects().get(words[0]), words[1])
    command = next((word for word in words[1:2] if word not in ("COMMAND", "…", "--help", "--help-all")), None)
    if command in _own_commands(words[0]):
        return not flags - _own_flags(
            words[0], command, words[2] if words[2:3] and words[2] in PROJECT_COMMANDS else ""
        )
    if command not in PROJECT_COMMANDS:
        return command is None and not flags and (words[0].isupper() or words[0] in {*_projects(), *made})
    kind = _projects().get(words[0])  # None: a name that stands for any project, or one that the page itself makes
    return not {name for name in flags - _flags(kind, command) if kind or "." not in name}


def _own_commands(project: str) -> Collection[str]:
    """Commands that plugins add to a project; of a name that stands for any project, those of extensions."""
    found = discovery.own_commands(_plugin(project), PROJECT_COMMANDS)
    known = project in discovery.projects()
    return [name for name, command in found.items() if known or command.owner.kind == "extension"]


def _plugin(project: str) -> discovery.Plugin:
    installed = discovery.projects()
    return installed.get(project) or next(iter(installed.values()))


@cache
def _own_flags(project: str, command: str, word: str) -> set[str]:
    """Flags of a command that a plugin adds; `word` is another command that it takes, as `submit` does."""
    with redirect_stdout(io.StringIO()) as answer:
        completion(["words", _plugin(project).name, command, *filter(None, [word]), "--"])
    return {line.partition("\t")[0] for line in answer.getvalue().splitlines()[1:]}


def _flags(project: type[Project] | None, command: str) -> set[str]:
    kind = getattr(options, f"{command.title().replace('-', '')}Options", options.RunOptions)
    own: list[Any] = [*fields(kind), *(fields(project.predict_options) if project and command == "predict" else ())]
    settings: dict[str, Any] = flat(project.Config() if project else RunConfig())
    names = [f.name.strip("_") for f in own] + list(settings)
    off = [re.sub(r"(\w+)$", r"no_\1", name) for name in names]
    return {f"--{name.replace('_', '-')}" for name in [*names, *off]}


def test_nobody_is_told_to_install_our_names_from_an_index() -> None:
    """The packages are on no index, where runner-view, for example, is a stranger's: name folders or files."""
    sources = [path for path in ROOT.glob("packages/*/src/**/*.py") if path.is_file()]
    named = re.compile(r"pip install\b[^`&;\n]*[\s'\"]runner-[a-z]")
    texts = {path: path.read_text(encoding="utf-8") for path in [*PAGES, *sources]}
    assert [f"{path}: {found[0]}" for path, text in texts.items() if (found := named.search(text))] == []
