"""`runner list`: what is installed, what each plugin provides, who wins and what is contested."""

from __future__ import annotations

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
