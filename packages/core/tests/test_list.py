"""`runner list`: what is installed, what each plugin provides, who wins and what is contested."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

Runner = Callable[..., subprocess.CompletedProcess[str]]
PROJECT, EXTENSION = (Path(__file__).parent / "toy" / name for name in ("project", "extension"))


def test_list_shows_every_plugin_with_the_hooks_of_its_source(runner: Runner) -> None:
    done = runner("list", installed=(PROJECT, EXTENSION), PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "toy toy 0.1 project Bright discs in noise, found by a tiny network" in lines
    assert "toyext toy-extension 0.1 cache, sinks Another cache and another tracker" in lines
    assert "toy_extension" not in done.stderr, "it was imported"
    for words, part in ((["--nonsense"], "--nonsense"), (["--extension", "toyext"], "--hooks")):
        refused = runner("list", *words)
        assert refused.returncode == 2
        assert part in refused.stderr


def test_list_hooks_says_who_wins_what_is_contested_and_what_is_broken(runner: Runner, tmp_path: Path) -> None:
    source = "from runner_core import hookimpl\n\n\n@hookimpl\ndef runner_cache():\n    return None\n"
    for name, text in (("rival", source), ("broken", "import nowhere_at_all\n")):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[runner.extensions]\n{name} = {name}\n", encoding="utf-8")
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    installed = (PROJECT, EXTENSION, tmp_path)

    def hooks(*words: str, code: int = 0) -> list[str]:
        done = runner("list", "--hooks", "toy", *words, installed=installed)
        assert done.returncode == code
        return [" ".join(line.split()) for line in done.stdout.splitlines()]

    lines = hooks(code=2)
    assert "project project toy" in lines
    assert "cache extension rival or extension toyext core" in lines
    assert "sinks core + extension toyext" in lines
    contested = "cache is contested: rival and toyext; if both answer, choose one with `--extension NAME`"
    assert contested in lines
    assert contested in hooks("--no-extension", "broken"), "no fault: one may decline"
    assert any("PROBLEM" in line and "nowhere_at_all" in line and "--no-extension broken" in line for line in lines)
    chosen = hooks("--extension", "toyext", "--no-extension", "broken")
    assert "cache extension toyext extension rival, core" in chosen
    assert not [line for line in chosen if "PROBLEM" in line]
    assert "cache extension toyext core" in hooks("--no-extension", "rival", code=2)
    refused = runner("list", "--hooks", "toy", "--extension", "rivel", installed=installed)
    assert refused.returncode == 2
    assert "did you mean 'rival'" in refused.stderr


def test_a_project_adds_a_command_of_its_own(runner: Runner, tmp_path: Path) -> None:
    info = tmp_path / "toy-0.1.dist-info"
    shutil.copytree(PROJECT / info.name, info)
    with (info / "entry_points.txt").open("a", encoding="utf-8") as table:
        table.write("[runner.commands]\ntoy.count-discs = toy_counting:count\nother.count-stars = toy_counting:count\n")
    source = "import sys\n\nprint('imported', file=sys.stderr)\n\n\n"
    source += 'def count(parser, words):\n    """Count discs: in a picture,\n    or in many.\n\n    More.\n    """\n'
    source += "    parser.add_argument('--all', action='store_true', help='count each')\n"
    source += "    print('all' if parser.parse_args(words).all else 'some')\n"
    (tmp_path / "toy_counting.py").write_text(source, encoding="utf-8")
    shutil.copy(PROJECT / "toy_project.py", tmp_path)

    def said(*words: str, code: int = 0) -> str:
        done = runner(*words, installed=(tmp_path,))
        assert done.returncode == code, done.stderr
        assert ("imported" in done.stderr) == ("count-discs" in words), "lists import nothing"
        return " ".join((done.stdout if not code else done.stderr).split())

    listed = said("toy", "--help")
    assert "toy count-discs count discs: in a picture, or in many " in listed
    assert "count-stars" not in listed
    assert said("toy", "count-discs") == "some"
    assert said("toy", "count-discs", "--all") == "all"
    assert "Count discs: in a picture, or in many." in said("toy", "count-discs", "--help")
    assert "did you mean '--all'?" in said("toy", "count-discs", "--al1", code=2)
    assert "did you mean 'count-discs'?" in said("toy", "count-disc", code=2)
    assert "count-discs count discs" in said("completion", "words", "toy", "count")
    assert (
        said("completion", "words", "toy", "count-discs", "--")
        == "none --help show this help message and exit --debug show tracebacks of errors --all count each"
    )


def test_a_project_cannot_replace_a_command_that_every_project_has(runner: Runner, tmp_path: Path) -> None:
    info = tmp_path / "toy-0.1.dist-info"
    shutil.copytree(PROJECT / info.name, info)
    with (info / "entry_points.txt").open("a", encoding="utf-8") as table:
        table.write("[runner.commands]\ntoy.check = toy_checking:check\n")
    shutil.copy(PROJECT / "toy_project.py", tmp_path)
    for words in (["--help"], ["check"], ["train"], ["count"]):
        refused = runner("toy", *words, installed=(tmp_path,))
        assert refused.returncode == 2
        assert "the command 'toy.check' of toy has the name of a command that every project has" in refused.stderr
        assert "have the command renamed" in refused.stderr
        assert refused.stderr.count("\n") == 1
        assert not refused.stdout


def _extension(folder: Path, name: str, commands: str, source: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    table = f"[runner.extensions]\n{name} = {name}_ext\n[runner.commands]\n{commands}\n"
    (info / "entry_points.txt").write_text(table, encoding="utf-8")
    (folder / f"{name}_ext.py").write_text(source, encoding="utf-8")


LATER = """
from dataclasses import dataclass


@dataclass
class Config:
    queue: str = "long"


def later(project, parser, words):
    \"\"\"Do it later.\"\"\"
    parser.add_argument("--when", help="the time")
    print(project, parser.parse_args(words).when)
"""


def test_an_extension_adds_a_command_to_every_project_and_nothing_to_its_runs(runner: Runner, tmp_path: Path) -> None:
    _extension(
        tmp_path, "late", "late.later = late_ext:later", f"import sys\nprint('imported', file=sys.stderr)\n{LATER}"
    )

    def said(*words: str) -> str:
        done = runner(*words, installed=(PROJECT, tmp_path))
        assert done.returncode == 0, done.stderr
        assert ("imported" in done.stderr) == (words[-1] not in ("--help", "list", "la")), "lists import nothing"
        return " ".join(done.stdout.split())

    assert "toy later do it later" in said("toy", "--help")
    assert "late late 1.0 `later`" in said("list")
    assert "later do it later" in said("completion", "words", "toy", "la")
    assert "--when the time" in said("completion", "words", "toy", "later", "--")
    assert said("toy", "later", "--when", "soon") == "toy soon"
    (tmp_path / "mine.yaml").write_text("late: {queue: short}\ntrain: {epochs: 9}\n")
    plain = said("toy", "config", "--config", "mine.yaml")
    assert "epochs: 9" in plain
    assert " late: " not in plain, "a run does not depend on it"
    chosen = said("toy", "config", "--config", "mine.yaml", "--extension", "late")
    assert "late: queue: short" in chosen


def test_two_plugins_cannot_add_one_command(runner: Runner, tmp_path: Path) -> None:
    for name in ("late", "tardy"):
        _extension(tmp_path, name, f"{name}.later = {name}_ext:later", LATER)
    refused = runner("toy", "later", installed=(PROJECT, tmp_path))
    assert refused.returncode == 2
    assert "the command 'tardy.later' of tardy has the name of one of late" in refused.stderr
