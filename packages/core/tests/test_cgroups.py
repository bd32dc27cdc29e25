"""Memory and cores that control groups leave a process: both versions, at every level, in containers; and a real group
where one can be made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from runner_core.base import resources
from runner_core.base.resources import available_ram
from runner_core.engines.usage import usable_cores

GB = 10**9
UNLIMITED = 9223372036854771712
Files = dict[str, str | int]
Tree = Callable[[str, dict[str, Files]], None]


def second(limit: int | str, used: int, high: int | str = "max", files: int = 0) -> Files:
    stat = f"anon {used - files}\ninactive_file {files}\nactive_file 0\nfile {files}"
    return {"memory.max": limit, "memory.high": high, "memory.current": used, "memory.stat": stat}


def first(limit: int, used: int, files: int = 0, above: int = UNLIMITED) -> Files:
    stat = f"cache 7\ninactive_file 1\nactive_file 1\ntotal_inactive_file {files}\ntotal_active_file 0"
    stat += f"\nhierarchical_memory_limit {min(limit, above)}"
    return {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Writes a process's /proc/self/cgroup, a mountinfo and the groups' files: `where` is group, mounted root, kind."""

    def write(where: str, groups: dict[str, Files]) -> None:
        process, point = tmp_path / "self", tmp_path / "cgroup mount"
        process.mkdir(exist_ok=True)
        group, root, kind = where.split()
        number, options = ("0:", "rw,nsdelegate") if kind == "cgroup2" else ("4:cpu,memory", "rw,cpu,memory")
        (process / "cgroup").write_text(f"9:name=systemd:/\n{number}:{group}\n")
        escaped = str(point).replace(" ", "\\040")
        (process / "mountinfo").write_text(
            "23 1 0:21 / /proc rw,relatime shared:5 - proc proc rw\n"
            f"35 31 0:32 {root} {escaped} rw,nosuid shared:9 master:1 - {kind} {kind} {options}\n"
        )
        for name, files in groups.items():
            (point / name).mkdir(parents=True, exist_ok=True)
            for file, text in files.items():
                (point / name / file).write_text(f"{text}\n")
        monkeypatch.setattr(resources, "_PROCESS", process)

    return write


@pytest.mark.parametrize(
    ("where", "groups", "left"),
    [
        # systemd, version 2: the service has none, its slice has
        ("/user.slice/a.scope / cgroup2", {
            "user.slice/a.scope": second("max", GB), "user.slice": second(8 * GB, 3 * GB)}, 5 * GB),
        # SLURM, version 2: the step's limit is looser than the job's
        ("/slurm/job_7/step_0/task_0 / cgroup2", {
            "slurm/job_7/step_0/task_0": second("max", GB), "slurm/job_7/step_0": second(9 * GB, GB),
            "slurm/job_7": second(4 * GB, 2 * GB)}, 2 * GB),
        # throttled before it is killed
        ("/a / cgroup2", {"a": second(8 * GB, GB, high=2 * GB)}, GB),
        # files that the kernel keeps are given back
        ("/a / cgroup2", {"a": second(8 * GB, 7 * GB, files=6 * GB)}, 7 * GB),
        # a container with a name space of its own: its group is the root
        ("/ / cgroup2", {".": second(3 * GB, GB)}, 2 * GB),
        # one without: the mount shows its group as the root, its path is the whole one
        ("/docker/4f2a /docker/4f2a cgroup2", {".": second(3 * GB, GB)}, 2 * GB),
        # moved out of its name space
        ("/../other /docker/4f2a cgroup2", {".": second(3 * GB, GB)}, 2 * GB),
        # more is used than is allowed
        ("/a / cgroup2", {"a": second(GB, 2 * GB)}, 0),
        # nothing limits
        ("/a / cgroup2", {"a": second("max", GB)}, None),
        # version 1
        ("/slurm/uid_0/job_7/step_0 / cgroup", {
            "slurm/uid_0/job_7/step_0": first(UNLIMITED, GB), "slurm/uid_0/job_7": first(4 * GB, 2 * GB, files=GB),
            "slurm": first(UNLIMITED, 90 * GB), ".": first(UNLIMITED, 99 * GB)}, 3 * GB),
        # of a level above what a container sees
        ("/docker/4f2a /docker/4f2a cgroup", {".": first(UNLIMITED, GB, above=3 * GB)}, 2 * GB),
    ],
)  # fmt: skip
def test_the_tightest_limit_of_all_levels_counts(tree: Tree, where: str, groups: dict[str, Files], left: int | None):
    tree(where, groups)
    found = resources.memory_left()
    assert found is None or found < UNLIMITED // 2
    assert found == left
    free = psutil.virtual_memory().available
    assert available_ram() == (pytest.approx(free, rel=0.5) if left is None or left > 0.5 * free else left)


def test_a_level_that_cannot_be_read_hides_no_other(tree: Tree) -> None:
    tree("/a/b/c / cgroup2", {"a/b/c": {"memory.current": 5}, "a/b": {"memory.current": "?"}, "a": second(8 * GB, GB)})
    assert resources.memory_left() == 7 * GB


@pytest.mark.parametrize("text", ["", "nonsense", "0::/a\nnonsense", "0::/a"])
def test_without_control_groups_there_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(resources, "_PROCESS", tmp_path)
    assert resources.memory_left() is None
    (tmp_path / "cgroup").write_text(text)
    (tmp_path / "mountinfo").write_text("nonsense\n")
    assert resources.memory_left() is None
    assert resources.cores() is None


@pytest.mark.parametrize(
    ("where", "groups", "quota"),
    [
        ("/a/b / cgroup2", {"a/b": {"cpu.max": "max 100000"}, "a": {"cpu.max": "150000 100000"}}, 1.5),
        ("/a/b / cgroup", {"a/b": {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100000},
                           "a": {"cpu.cfs_quota_us": 50000, "cpu.cfs_period_us": 100000}}, 0.5),
        ("/a / cgroup2", {"a": {"cpu.max": "max 100000"}}, None),
    ],
)  # fmt: skip
def test_so_does_the_tightest_quota_of_cores(tree: Tree, where: str, groups: dict[str, Files], quota: float | None):
    tree(where, groups)
    assert resources.cores() == quota
    assert usable_cores() == (len(os.sched_getaffinity(0)) if quota is None else max(1, round(quota)))


@pytest.fixture
def real_group() -> Iterator[Path]:
    """A control group of version 1 or 2, its parent limited to 700 MB; skipped where none may be made."""
    folder: Path | None = None
    for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        if not (Path(base) / "memory.stat").exists():
            continue
        folder = Path(base) / f"runner-test-{os.getpid()}" / "inner"
        with suppress(OSError):
            folder.mkdir(parents=True)
            (folder.parent / limit).write_text("700000000")
            (folder / "memory.stat").read_text()
            break
        folder = None
    if folder is None:
        pytest.skip("no control group with a memory limit can be made here (it takes root, and cgroup files to write)")
    yield folder
    for group in (folder, folder.parent):
        with suppress(OSError):
            group.rmdir()


def test_in_a_real_group_the_limit_of_its_parent_counts(real_group: Path) -> None:
    code = (
        "import os; print(os.getpid()); input(); "
        "from runner_core.base.resources import available_ram; print(available_ram())"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = process.stdout.readline().strip()
    (real_group / "cgroup.procs").write_text(pid)
    told, _ = process.communicate("\n", timeout=60)
    assert 600_000_000 < int(told) <= 700_000_000
