"""Discovery through entry points, the order of plugins, and what is refused."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from runner_core import BadInput, Project, RunnerError, hookimpl
from runner_core.plugins import discovery
from runner_core.plugins.manager import Plugins

NOTHING: dict[str, Any] = {"project": None, "config": None, "records": []}


def plugin(**functions: Any) -> types.ModuleType:
    """A plugin module whose hooks are these functions."""
    module = types.ModuleType("plugin")
    vars(module).update({name: hookimpl(function) for name, function in functions.items()})
    return module


def extended(*extensions: tuple[str, Any], chosen: tuple[str, ...] = ()) -> Plugins:
    plugins = Plugins(chosen)
    plugins.register(plugin(runner_cache=lambda: "core", runner_metrics=lambda: ["core"]), "core")
    plugins.register(plugin(runner_metrics=lambda: ["project"]), "p", kind="project")
    for name, extension in extensions:
        plugins.register(extension, name, kind="extension")
    return plugins


def install(folder: Path, dist: str, group: str, name: str, value: str) -> Path:
    """Write metadata as a wheel would, so that importlib.metadata finds it on the path."""
    info = folder / f"{dist}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n", encoding="utf-8")
    return folder


def test_a_project_is_found_by_metadata_without_importing_it(toy: None) -> None:
    sys.modules.pop("toy_project", None)
    found = discovery.projects()["toy"]
    assert (found.distribution, found.version) == ("toy", "0.1")
    assert found.summary() == "Bright discs in noise, found by a tiny network"
    assert "toy_project" not in sys.modules


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `a clone`, with the projects heads (torch) and doses (Keras), from which the core is installed."""
    root = tmp_path / "a clone"
    for folder, text in (("core", ""), ("heads", f'entry-points."{discovery.PROJECTS}".heads = "h"'),
                         ("doses", f'entry-points."{discovery.PROJECTS}".doses = "d"')):  # fmt: skip
        (root / "packages" / folder).mkdir(parents=True)
        (root / "packages" / folder / "pyproject.toml").write_text(f"[project]\n{text}\n")
    (root / "packages" / "doses" / "cpu.txt").touch()
    site = install(tmp_path / "site", "runner_core", "x", "x", "x")
    address = json.dumps({"url": (root / "packages" / "core").as_uri(), "dir_info": {"editable": True}})
    (site / "runner_core-1.0.dist-info" / "direct_url.json").write_text(address)
    install(site, "torch", "x", "x", "x")  # version 1.0, whatever is installed here
    monkeypatch.syspath_prepend(str(site))
    return root


def test_a_missing_project_is_added_by_a_line_that_keeps_cuda_out(repository: Path) -> None:
    torch_line = "`uv pip install --torch-backend cpu -e packages/heads`"
    keras_line = "`uv pip install --overrides packages/doses/cpu.txt -e packages/doses tensorflow-cpu`"
    assert discovery.how_to_install("kidneys") == discovery.how_to_install("core") == "", "no such project is there"
    assert f"README in {repository} has the lines that install doses, heads;" in discovery.none_installed()
    if not discovery._without_cuda():  # tensorflow-cpu may be installed here
        first = f"`uv pip install -e packages/heads` in {repository} adds it, without CUDA {torch_line}"
        assert discovery.how_to_install("heads") == first
    metadata = repository.parent / "site" / "torch-1.0.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0+cpu\n")
    assert discovery.how_to_install("heads") == f"{torch_line} in {repository} adds it"
    assert discovery.how_to_install("doses") == f"{keras_line} in {repository} adds it"
    with pytest.raises(BadInput, match=re.escape(f"; {torch_line} in {repository} adds it")):
        discovery.find_project("heads")


def test_only_the_chosen_project_is_loaded(toy: None) -> None:
    plugins = Plugins.load("toy")
    assert plugins.names == ["core", "project toy"]
    assert plugins.project().name == "toy"
    assert "runner_brainunet" not in plugins.versions


def test_an_extension_wins_over_the_core_and_adds_to_it(toy_extension: None, tmp_path: Path) -> None:
    plugins = Plugins.load("toy")
    project = plugins.project()(plugins.project().presets["demo"]())
    cache = plugins.first("runner_cache", project=project, config=project.config, records=[])
    assert type(cache).__name__ == "ToyCache"
    sinks = plugins.all("runner_sinks", project=project, config=project.config, folder=tmp_path)
    assert [type(s).__name__ for s in sinks] == ["JsonlSink", "TextSink", "CountingSink"]
    assert plugins.provides()["extension toyext"] == ["cache", "sinks"]
    assert plugins.versions["extension toyext"] == "toy-extension 0.1"


def test_an_extension_is_switched_off(toy_extension: None) -> None:
    plugins = Plugins.load("toy", without=["toyext"])
    assert "extension toyext" not in plugins.names


def test_the_order_is_core_project_extensions() -> None:
    plugins = extended(("e", plugin(runner_metrics=lambda: ["extension"], runner_cache=lambda: "extension")))
    assert plugins.all("runner_metrics", project=None, config=None) == ["core", "project", "extension"]
    assert plugins.first("runner_cache", **NOTHING) == "extension"


def test_an_extension_that_gives_none_leaves_it_to_the_core() -> None:
    plugins = extended(("e", plugin(runner_cache=lambda: None)))
    assert plugins.first("runner_cache", **NOTHING) == "core"


def test_two_extensions_that_give_the_same_are_refused_until_one_is_chosen() -> None:
    both = ("a", plugin(runner_cache=lambda: "A")), ("b", plugin(runner_cache=lambda: "B"))
    with pytest.raises(BadInput, match=r"a and b both provide 'cache'.*--extension NAME"):
        extended(*both).first("runner_cache", **NOTHING)
    for name in ("a", "b"):
        assert extended(*both, chosen=(name,)).first("runner_cache", **NOTHING) == name.upper()


def test_of_two_that_are_chosen_the_first_named_wins() -> None:
    both = ("a", plugin(runner_cache=lambda: "A")), ("b", plugin(runner_cache=lambda: "B"))
    assert extended(*both, chosen=("b", "a")).first("runner_cache", **NOTHING) == "B"


def test_a_plugin_may_not_put_itself_first() -> None:
    eager = types.ModuleType("plugin")
    vars(eager)["runner_cache"] = hookimpl(tryfirst=True)(lambda: None)
    with pytest.raises(BadInput, match="plain @hookimpl"):
        Plugins().register(eager, "e", kind="extension")


SOURCES = {
    "plain": "@hookimpl\ndef runner_cache():\n    pass\n\n\n@core.hookimpl\ndef runner_sinks():\n    pass\n",
    "below.plain": "@hookimpl\ndef runner_crop():\n    pass\n",
    "inside:made": "class P:\n    @hookimpl\n    def runner_remedies(self): ...\n\nmade = P()\n",
    "torn": "def (",
    "dynamic": "globals()['runner_cache'] = 1\n",
}


@pytest.mark.parametrize(
    "value, hooks",
    [
        ("plain", ["cache", "sinks"]),
        ("below.plain", ["crop"]),
        ("inside:made", ["remedies"]),
        ("torn", []),
        ("dynamic", []),
        ("missing", []),
        ("below.missing.deeper", []),
    ],
)
def test_hooks_are_read_without_importing(
    value: str, hooks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "__init__.py").write_text("raise AssertionError('imported')\n", encoding="utf-8")
    for name, text in SOURCES.items():
        file = tmp_path.joinpath(*name.partition(":")[0].split(".")).with_suffix(".py")
        file.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(install(tmp_path, "some_dist", discovery.EXTENSIONS, "some", value)))
    assert discovery.extensions()["some"].hooks() == hooks


def test_two_extensions_of_which_one_declines_need_no_choice() -> None:
    plugins = extended(("a", plugin(runner_cache=lambda: None)), ("b", plugin(runner_cache=lambda: "B")))
    assert plugins.first("runner_cache", **NOTHING) == "B"


def fails() -> None:
    raise ValueError("no such disk")


def test_a_hook_that_fails_is_told_with_its_plugin() -> None:
    plugins = extended(("bad", plugin(runner_cache=fails, runner_metrics=lambda: sys.exit(3))))
    with pytest.raises(BadInput, match=r"extension bad: runner_cache failed: ValueError: no such disk.*--no-extension"):
        plugins.first("runner_cache", **NOTHING)
    with pytest.raises(BadInput, match="extension bad: runner_metrics failed: SystemExit: 3"):
        plugins.all("runner_metrics", project=None, config=None)
    with pytest.raises(SystemExit):  # SIGTERM came while it was called
        extended(("e", plugin(runner_cache=lambda: sys.exit(143)))).first("runner_cache", **NOTHING)
    own = Plugins()
    own.register(plugin(runner_cache=fails), "core")
    with pytest.raises(ValueError, match="no such disk"):  # a fault of ours
        own.first("runner_cache", **NOTHING)


def test_what_a_hook_refuses_is_told_as_it_is() -> None:
    def refuse() -> None:
        raise BadInput("not here")

    with pytest.raises(BadInput, match=r"^not here$"):
        extended(("e", plugin(runner_cache=refuse))).first("runner_cache", **NOTHING)


@pytest.mark.parametrize("answer, what", [(3, "int"), ("loss", "str"), ({}, "dict")])
def test_what_is_no_list_is_refused(answer: object, what: str) -> None:
    plugins = extended(("e", plugin(runner_metrics=lambda: answer)))
    with pytest.raises(BadInput, match=f"extension e: runner_metrics must return a list, it returned {what}"):
        plugins.all("runner_metrics", project=None, config=None)


@pytest.mark.parametrize("answer", [None, (), ("mine",), ["mine"]])
def test_lists_tuples_and_none_are_taken(answer: object) -> None:
    found = extended(("e", plugin(runner_metrics=lambda: answer))).all("runner_metrics", project=None, config=None)
    assert found == ["core", "project", *(answer or ())]  # type: ignore[misc]


def test_a_plugin_that_exits_when_imported_cannot_be_loaded(
    toy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving_ext.py").write_text("import sys\nsys.exit('needs a licence')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(install(tmp_path, "leaving_ext", discovery.EXTENSIONS, "leaving", "leaving_ext")))
    with pytest.raises(BadInput, match=r"cannot be loaded.*SystemExit: needs a licence.*--no-extension leaving"):
        Plugins.load("toy")


def test_nobody_gives_it() -> None:
    with pytest.raises(RunnerError, match="no plugin provides 'engine'"):
        extended().first("runner_engine", project=None, config=None)


def test_an_unknown_hook_is_refused_with_a_hint() -> None:
    with pytest.raises(BadInput, match="no hook 'runner_cahce'; did you mean 'runner_cache'"):
        Plugins().register(plugin(runner_cahce=lambda: None), "e", kind="extension")


def test_an_unknown_argument_is_refused_with_a_hint() -> None:
    with pytest.raises(BadInput, match="runner_cache has no argument 'confg'; did you mean 'config'"):
        Plugins().register(plugin(runner_cache=lambda confg: None), "e", kind="extension")


def test_a_hook_without_its_mark_is_refused() -> None:
    unmarked = types.ModuleType("plugin")
    vars(unmarked)["runner_cache"] = lambda: None
    with pytest.raises(BadInput, match="mark runner_cache with @hookimpl"):
        Plugins().register(unmarked, "e", kind="extension")


def test_a_plugin_registered_twice_is_refused() -> None:
    one = plugin(runner_cache=lambda: None)
    plugins = extended(("e", one))
    with pytest.raises(BadInput, match="twice"):
        plugins.register(one, "other", kind="extension")


@pytest.mark.parametrize(
    "group, find", [(discovery.PROJECTS, discovery.projects), (discovery.EXTENSIONS, discovery.extensions)]
)
def test_two_distributions_with_one_name_are_refused(
    group: str, find: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dist in ("first_dist", "second_dist"):
        monkeypatch.syspath_prepend(str(install(tmp_path / dist, dist, group, "same", "nowhere")))
    with pytest.raises(BadInput, match=r"'same': first_dist 1.0 and second_dist 1.0; uninstall"):
        find()


def test_a_project_named_like_a_command_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path, "bad_name", discovery.PROJECTS, "list", "nowhere")))
    with pytest.raises(BadInput, match="name of a command"):
        discovery.projects()


def test_an_extension_that_cannot_be_imported_says_how_to_go_on(
    toy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path, "broken_ext", discovery.EXTENSIONS, "broken", "nowhere_at_all")))
    with pytest.raises(BadInput, match=r"nowhere_at_all.*--no-extension broken"):
        Plugins.load("toy")
    told: list[str] = []
    assert Plugins.load("toy", broken=told.append).names == ["core", "project toy"]
    assert "nowhere_at_all" in told[0]
    assert Plugins.load("toy", without=["broken"]).names == ["core", "project toy"]


def test_unknown_names_come_with_hints(toy: None) -> None:
    with pytest.raises(BadInput, match="did you mean 'toy'"):
        discovery.find_project("tyo")
    with pytest.raises(BadInput, match="no extension 'x' is installed"):
        Plugins.load("toy", chosen=["x"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("least", "health().lower_bounds"),
        ("of_data", "dataset.settings"),
        ("uninformed", "health().chance_losses"),
        ("remarks", "checks().prediction"),
        ("judge", "judging().judge"),
        ("faults", "Config.faults"),
    ],
)
def test_an_old_name_is_answered_with_the_new_one(old: str, new: str) -> None:
    from runner_core.plugins.manager import refuse_incomplete

    with pytest.raises(BadInput, match=re.escape(f"`{old}` is `{new}`")):
        refuse_incomplete(type("Old", (Project,), {"name": "old", old: ()}))


def test_an_old_hook_is_answered_with_the_new_one() -> None:
    old = types.ModuleType("plugin")
    vars(old)["runner_fixes"] = hookimpl(lambda project, report: [])
    with pytest.raises(BadInput, match="the hook `runner_fixes` is called `runner_remedies` now"):
        Plugins().register(old, "e", kind="extension")


@pytest.mark.parametrize(
    ("old", "new"),
    [("Fix", "Remedy"), ("Optimisation", "Remedy"), ("Cost", r"Step\(loss, terms"), ("measured", r"term\(\)")],
)
def test_an_old_name_of_the_face_is_answered_with_the_new_one(old: str, new: str) -> None:
    with pytest.raises(ImportError, match=f"`{old}` is gone from runner_core: write `{new}"):
        exec(f"from runner_core import {old}")


def test_an_old_name_of_testing_is_answered_with_the_new_one() -> None:
    with pytest.raises(ImportError, match=r"`with_pipeline` is gone from .*: write `cropped\(project, record\)`"):
        exec("from runner_core.testing import with_pipeline")
