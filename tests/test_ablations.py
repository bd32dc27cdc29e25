"""Every project's optimisations can be switched off, under every preset; `ablate` measures them; and their page."""

from __future__ import annotations

import json
import sys

import pytest
from runner_core import flat, plain
from runner_core.config.values import overlay_named
from runner_core.plugins import discovery
from runner_core.plugins.manager import Plugins
from runner_core.plugins.settings import from_preset, refuse_nonsense
from runner_core.tools.measure.optimisations import CORE
from workspace import ROOT, Runner

sys.path.append(str(ROOT))  # the benchmarks are no package that one installs
from benchmarks import ablations

PROJECTS = tuple(discovery.projects())
PRESETS = [(name, preset) for name in PROJECTS for preset in Plugins.load(name).project().presets]


@pytest.mark.parametrize("name", PROJECTS)
def test_optimisations_have_names_of_their_own_and_settings_that_there_are(name):
    project = Plugins.load(name).project()
    there = (*project(project.Config()).learning().optimisations, *CORE)
    assert len({o.name for o in there}) == len(there)
    known = flat(project.Config())
    for optimisation in there:
        assert set(optimisation.off) <= set(known), optimisation.name
        assert optimisation.why.endswith(".")
        assert " without, " in optimisation.why  # one sentence says both


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_each_can_be_switched_off_alone_and_all_together(name, preset):
    project = Plugins.load(name).project()
    config = from_preset(project, preset)
    offs = [o.off for o in project(config).learning().optimisations]
    for off in [*offs, {setting: value for each in offs for setting, value in each.items()}]:
        changed = overlay_named(config, off, "off")
        refuse_nonsense(changed)
        project(changed)
        assert {k: v for k, v in flat(changed).items() if k in off} == {k: plain(v) for k, v in off.items()}


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("name", "only", "part"),
    [
        ("brainunet", "channels-last", "network"),
        ("openkbp", "packed", "data"),
        ("ssmunet", "tissue", "network"),
        ("vesuvius", "skeleton-recall", "loss"),
        ("dinocell", "look-ahead", "data"),
    ],
)
def test_the_demo_is_measured_with_and_without(runner: Runner, tmp_path, name, only, part):
    smaller = ("--train.batch-size", "4") if name == "dinocell" else ()  # a batch of the demo's takes a second
    done = runner(name, "ablate", "--only", only, "--minutes", "0.05", "--out", tmp_path / "found", *smaller)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "found" / "ablate.json").read_text())
    (row,) = kept["without"]
    assert row["name"] == only
    assert not row["failed"]
    assert {"step", part} <= set(row)
    assert row["same"] == (row["losses"] is not None)
    if row["same"]:
        assert row["losses"]["agree"], row["losses"]
    assert kept["with_all"]["peak_memory_bytes"]["host"] > 10**8


# ---------------------------------------------------------------- the page


def made(name: str = "vesuvius") -> dict:
    """A result as `ablate` writes it, with the machine."""

    def of(seconds: float) -> dict:
        return {"median": seconds, "low": seconds, "high": seconds}

    def ratio(on: float, off: float, **more: object) -> dict:
        found = {"with": of(on), "without": of(off), "ratio": off / on, "low": None, "high": None, "rounds": 2}
        return found | more

    def memory(host: int) -> dict:
        return {"peak_memory_bytes": {"host": host, "device": 0}, "seconds_per_epoch": 1.0}

    there = {"date": "2030-01-02", "cpu": "A CPU", "cores": 2, "ram_gb": 8, "gpu": "none", "load": [0.1, 0.2]}
    case = {"failed": None, "about": "It does; without, it does not.", "same": False, "losses": None}
    return {
        **{"project": name, "preset": "demo", "data": "phantom", "samples_per_epoch": 1200, "batch": 8},
        **{"sample": {"image": "32 × 32 × 32 uint8"}, "precision": "float32", "cache": "memmap", "engine": "torch"},
        **{"kind": "cpu", "device": "A CPU", "machine": there},
        "with_all": {"step": of(0.1), "data": of(0.001), "network": of(0.09), "loss": of(0.01), **memory(10**9)},
        "left_out": ["gather", "all off"],
        "without": [
            {"name": "cache", **case, "step": ratio(0.1, 0.2), "data": ratio(0.001, 0.019), **memory(10**9),
             "same": True, "losses": {"agree": True, "difference": 0.0004}},
            {"name": "skeleton-recall", **case, "step": ratio(0.1, 0.1, low=0.9, high=1.1, rounds=8),
             "loss": ratio(0.01, 0.06), **memory(2 * 10**9)},
            {"name": "targets", "failed": "out of memory", "about": "It was; without, it was not."},
        ],
    }  # fmt: skip


def test_the_page_is_what_the_results_say():
    assert ablations.PAGE.read_text(encoding="utf-8") == ablations.page(), (
        "run `python benchmarks/ablations.py --render`"
    )
    assert {path.stem for path in ablations.RESULTS.glob("*.json")} <= {*ablations.RUNS, ablations.SPECTRAL}


def test_a_section_says_what_was_measured_and_whether_the_aims_were_met(tmp_path):
    (tmp_path / "vesuvius.json").write_text(json.dumps(made()))
    text = ablations.page(tmp_path)
    flowing = " ".join(text.split())
    for part in (
        "## vesuvius",
        "Preset `demo`, data: phantom; 1,200 samples an epoch, in batches of 8 (image 32 × 32 × 32 uint8)",
        "| (nothing) | | 100 ms | 1,000 | 90 ms | 10 ms | 1 GB |",
        "| cache | 2 | 100 → 200 ms ~2 | 1,000 → 52.6 ~19 | – | – | 1 GB ×1 | agree (0.04% apart) |",
        "| skeleton-recall | 8 | 100 → 100 ms ≈1 | – | – | 10 → 60 ms ~6 | 2 GB ×2 | others |",
        "| targets | | failed: out of memory |",
        "Not measured, for lack of time: gather, all off.",
        "- **cache**: It does; without, it does not.",
        "data path 20 times as fast as without cache: 19 – **NOT met**",
        "losses 5 times as fast as without skeleton-recall: 6 – **met**",
        "*Measured on 2030-01-02: A CPU, 2 cores, 8 GB, GPU: none; load 0.1 before, 0.2 after.*",
    ):
        assert part in flowing, part
    assert "Nothing has been measured" not in text


def test_ssmunet_s_layers_have_a_section_of_their_own(tmp_path):
    there = made()["machine"]
    found = {"pixels": 512, "length": 425, "filters": 24, "threads": 2, "seconds": [0.5, 50.0], "bytes": [10**8, 10**9]}
    (tmp_path / "spectral.json").write_text(json.dumps(found | {"machine": there}))
    text = " ".join(ablations.page(tmp_path).split())
    assert "| the textbook's | 50,000 | 100 | 1,000 | 10 |" in text
    assert text.count("**met**") == 2


def test_the_layers_learn_the_same_however_they_are_measured():
    found = ablations.spectral(quick=True)
    assert found["seconds"][1] > 0
    assert len(found["bytes"]) == 2
