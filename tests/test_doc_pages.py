"""Type what the pages tell people to type: each page's commands and Python, from top to bottom, in one folder.

Commands are typed as printed, with four changes: `uv run` is left out (this environment stands for the one that it
would make), data sets are the project's phantom, trainings are short, and a run that the page takes for granted is
trained first. What is not typed here is named in
ELSEWHERE with the test that does type it, or with what it needs.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from workspace import ROOT, Runner

FENCE = re.compile(r"^```(\w*).*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = sorted(
    p for glob in ("README.md", "docs/**/*.md", "packages/*/README.md", "examples/*/README.md") for p in ROOT.glob(glob)
)
OWN_TESTS = {
    "docs/write-a-project.md": "tests/test_write_a_project.py",
    "packages/core/README.md": "packages/core/tests/test_readme.py",
    "docs/write-an-extension.md": "tests/test_examples.py",
    "examples/*/README.md": "tests/test_examples.py",
    "docs/contributing.md": "its commands are the parts of .ci/run",
    "docs/index.md": "test_the_quick_start_has_commands_of_other_pages",
}
"""Pages that other tests follow."""
ELSEWHERE = {
    r"pip install uv|uv (sync|venv)\b|\.venv/bin/activate": "tests/test_fresh_install.py and .ci/run alone install",
    r"uv run pytest": ".ci/run workspace",
    r"runner \w+ (profile|tune|ablate)|tune-…|runner verify-resume": "tests/test_profile_projects.py, "
    "test_ablations.py and test_resume.py, packages/core/tests/test_tune.py",
    r"s3://": "packages/core/tests/test_streamed_cli.py and packages/dinocell/tests type it with a server of their own",
    r"--devices|torchrun|srun|#SBATCH": "packages/core/tests/test_distributed_cli.py; needs several processes",
    r"\.ci/run (hostile|slow|weekly)|kills/campaign\.py": "parts of .ci/run; packages/core/tests/test_kills.py",
    r"/data/CC359": "packages/brainunet/tests/test_files.py has that data set's names",
    r"ssmunet dearray|ssmunet train --data cores$": "tests/test_ssmunet.py cuts a mosaic and checks its cores",
    r"--calls\.positive|ssmunet baselines": "packages/ssmunet/tests/test_calls.py and test_classical.py",
    r"mlflow ui": "a server of MLflow's own, tried by hand with MLflow 3.17",
    r"dinov2_vits14_pretrain": "needs Meta's weights: packages/dinocell/tests/test_weights.py",
}
SHORT = "--train.epochs 1 --train.steps-per-epoch 4 --log.every 1 --health.mode warn".split()
PREPARED: dict[str, Callable[[dict[str, Any]], None]] = {
    "packages/dinocell/README.md": lambda names: names.update(images()),
}
"""Names that a page's Python finds at its beginning: the reader's own arrays."""


class Line(NamedTuple):
    """A command of a page."""

    text: str
    words: list[str]
    into: str | None
    """The file that `>` names."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def followed(page: Path) -> bool:
    """Whether this file follows the page: it has commands or Python, and no test of its own."""
    kinds = {kind for kind, _ in FENCE.findall(page.read_text(encoding="utf-8"))}
    return bool(kinds & {"sh", "python"}) and not any(fnmatch(name(page), pattern) for pattern in OWN_TESTS)


def commands(block: str) -> Iterator[Line]:
    """The lines of a block that are typed here; the others must be known to ELSEWHERE."""
    for text in block.replace("\\\n", " ").splitlines():
        if any(re.search(pattern, text) for pattern in ELSEWHERE):
            continue
        words = shlex.split(text, comments=True)
        if words[:2] == ["uv", "run"]:
            words = words[4:] if words[2] == "--package" else words[2:]
        assert words[0] == "runner", f"{text}: nothing types this: say in ELSEWHERE what does"
        into = words[words.index(">") + 1] if ">" in words else None
        yield Line(text, words[1 : words.index(">")] if into else words[1:], into)


class Reader:
    """Somebody who follows a page in the folder `here`."""

    def __init__(self, runner: Runner, here: Path) -> None:
        self.runner, self.here = runner, here
        self.names: dict[str, Any] = {}
        self.project = ""
        """The one that the page named last."""

    def type(self, line: Line) -> None:
        if line.words and line.words[0] not in ("compare", "cache", "list", "doctor", "new"):
            self.project = line.words[0]
        self._train_what_is_taken_for_granted(line.words)
        done = self.runner(*self._words(line.words))
        # a phantom of plates has damaged fields, which evaluate and predict tell by their exit code
        told = self.project == "dinocell" and re.search(r"could not be (scored|predicted) \(see above\)", done.stderr)
        assert done.returncode == 0 or told, f"{line.text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        if line.into:
            (self.here / line.into).write_text(done.stdout, encoding="utf-8")

    def _train_what_is_taken_for_granted(self, words: list[str]) -> None:
        if words[-1:] == ["--resume"] and "--run-dir" not in words and not (self.here / "runs" / self.project).exists():
            done = self.runner(self.project, "train", *SHORT)
            assert done.returncode == 0, done.stderr
        for before, word in pairwise(words):
            if re.fullmatch(r"runs/[\w-]+", word) and before != "--run-dir" and not (self.here / word).exists():
                done = self.runner(self.project, "train", "--run-dir", word, *SHORT)
                assert done.returncode == 0, done.stderr

    def _words(self, words: list[str]) -> list[str]:
        project, command = [*words, "", ""][:2]
        words = [path for word in words for path in self._matching(self._path(project, word))]
        if command not in ("train", "check", "crossval") or "--help" in words or "--resume" in words:
            return words
        if "--data" in words and "--config" not in words:
            words = [*words, "--preset", "demo"]  # the last one counts: presets for a GPU take hours here
        if command == "crossval" and "--folds" not in words:
            words = [*words, "--folds", "2"]
        return words if command == "check" else [*words, *SHORT]

    def _matching(self, word: str) -> list[str]:
        """The paths that a shell would put in the place of a pattern."""
        return sorted(str(path.relative_to(self.here)) for path in self.here.glob(word)) if "*" in word else [word]

    def _path(self, project: str, word: str) -> str:
        """The reader's own data are the project's phantom, in the place and by the name that the page has."""
        if word.startswith("/data/"):
            folder = self.here / word.lstrip("/")
            if not folder.exists():
                done = self.runner(project, "phantom", folder)
                assert done.returncode == 0, done.stderr
            return str(folder)
        if word in ("new/", "scans/") or word.startswith("core_7."):
            return self._inputs(project, word)
        return word

    def _inputs(self, project: str, word: str) -> str:
        source = Path(self._path(project, "/data/of-the-reader"))
        place = self.here / word
        if word.endswith("/"):
            shutil.copytree(source, place, dirs_exist_ok=True)
        else:
            shutil.copy(next(p for p in sorted(source.rglob(f"*{place.suffix}"))), place)
        return word

    def run(self, code: str, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(self.here)
        if (network := self.here / "network").is_dir():
            monkeypatch.syspath_prepend(str(network))
        exec(compile(code, page, "exec"), self.names)


@pytest.mark.weekly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", [page for page in PAGES if followed(page)], ids=name)
def test_a_page_is_followed(page: Path, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(runner, tmp_path)
    PREPARED.get(name(page), lambda names: None)(reader.names)
    done = 0
    for kind, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind == "sh":
            for line in commands(block):
                reader.type(line)
                done += 1
        elif kind == "python":
            reader.run(block, name(page), monkeypatch)
            done += 1
    if not done:
        pytest.skip("all that it tells to type is typed elsewhere")


def test_pages_with_tests_of_their_own_are_there() -> None:
    for pattern in OWN_TESTS:
        assert any(fnmatch(name(page), pattern) for page in PAGES), pattern


def images() -> dict[str, Any]:
    import torch

    return {"images": torch.rand(2, 3, 48, 48)}


def test_what_check_prints_is_what_the_page_shows(runner: Runner, real_patients: Path) -> None:
    page = (ROOT / "docs/your-own-data.md").read_text(encoding="utf-8")
    (shown,) = (text for _, text in FENCE.findall(page) if text.startswith("/data/open-kbp: "))
    done = runner("openkbp", "check", "--data", real_patients)
    assert done.returncode == 0, done.stderr
    said = iter(map(everywhere, done.stdout.replace(str(real_patients), "/data/open-kbp").splitlines()))
    for line in shown.splitlines():
        assert line.strip() == "…" or everywhere(line) in said, f"{line!r} is not printed, or not in this place"


def everywhere(line: str) -> str:
    """A printed line without what differs between machines and days: dates, the cache's folder, free space."""
    line = re.sub(r" in \S+/openkbp/[0-9a-f]{16}", " in CACHE", line)
    return re.sub(r"\d+-\d+-\d+-\d{6}|[\d.,]+ [MGT]B free", "…", line)


def test_the_quick_start_has_commands_of_other_pages() -> None:
    """Those pages' tests type them."""
    quick, *others = (
        {
            line.partition("  #")[0].rstrip()
            for kind, block in FENCE.findall(text)
            if kind == "sh"
            for line in block.splitlines()
        }
        for text in (
            (ROOT / page).read_text(encoding="utf-8") for page in ("docs/index.md", "README.md", "docs/use.md")
        )
    )
    assert quick
    assert not quick - set().union(*others)
