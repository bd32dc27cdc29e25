"""The plugins of one run, in one pluggy manager: core < the chosen project < extensions.

Only the chosen project's plugin is loaded, so that no hook has to check which project runs. pluggy registers plugins
and finds their implementations. Its own call, order and `check_pending` do less than is needed here:

- a call stops at the first answer: it could not see that two extensions answer, which must be refused;
- an error in a call, or in a list of answers, does not name its plugin;
- `tryfirst` and `trylast` are the plugins' own marks: one could put itself first. `--extension` is the user's choice;
- `check_pending` and `register` miss functions without @hookimpl, and offer no "did you mean".
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import pluggy

from runner_core.base.errors import ENDING, BadInput, RunnerError, did_you_mean
from runner_core.config.extensions import refuse_unusable, section_name
from runner_core.contract import hooks
from runner_core.contract.project import Project
from runner_core.plugins import discovery
from runner_core.plugins.discovery import Plugin
from runner_core.plugins.settings import HEAD

_PREFIX = "runner_"
_RENAMED_HOOKS = {"runner_fixes": "runner_remedies"}
"""Hooks by their names before 0.1.0."""


class Plugins:
    """Loaded plugins. `first` and `all` call a hook; `provides` lists the hooks of each plugin."""

    def __init__(self, chosen: Sequence[str] = ()) -> None:
        self._manager = pluggy.PluginManager("runner")
        self._manager.add_hookspecs(hooks)
        self._chosen = tuple(chosen)
        self._extensions: dict[str, object] = {}
        self.idle: list[str] = []
        """Extensions that are installed and have no part in this run: they give no hook, only commands."""
        self._configs: dict[str, type] = {}
        self._versions: dict[str, str] = {}

    @classmethod
    def load(
        cls,
        project: str,
        chosen: Sequence[str] = (),
        without: Sequence[str] = (),
        broken: Callable[[str], None] | None = None,
    ) -> Plugins:
        """Load the core, the project and every installed extension except those in `without`.

        Extensions in `chosen` win if several give the same first-result capability; of two, the first named. `broken`
        receives the fault of each plugin that cannot be loaded, which is then left out; without `broken`, BadInput is
        raised.
        """
        from runner_core.plugins import defaults

        installed = discovery.extensions()
        for name in (*chosen, *without):
            if name not in installed:
                there = ", ".join(installed) or "none"
                raise BadInput(
                    f"no extension {name!r} is installed{did_you_mean(name, installed)} (installed: {there})"
                )
        for name in chosen:
            if name in without:
                raise BadInput(f"extension {name!r} is both chosen and switched off")
        plugins = cls(chosen)
        plugins.register(defaults, "core", _core_version())
        extensions = [extension for name, extension in installed.items() if name not in without]
        for plugin in [discovery.find_project(project), *extensions]:
            try:
                plugins.add(plugin)
            except BadInput as error:
                if broken is None:
                    raise
                broken(str(error))
        return plugins

    def add(self, plugin: Plugin) -> None:
        """Import an installed plugin and register it."""
        try:
            loaded = plugin.entry.load()
        except (Exception, SystemExit) as error:
            if _is_ending(error):
                raise
            plain = isinstance(error, (ImportError, AttributeError))  # other errors are unclear without their name
            what = str(error) if plain else f"{type(error).__name__}: {error}"
            raise BadInput(
                f"the {plugin.kind} {plugin.name!r} ({plugin.distribution} {plugin.version}) cannot be loaded from "
                f"{plugin.entry.value!r}: {what}{_remedy(f'{plugin.kind} {plugin.name}')}"
            ) from error
        self.register(loaded, plugin.name, f"{plugin.distribution} {plugin.version}", plugin.kind)

    def register(self, plugin: object, name: str, version: str = "", kind: str = "core") -> None:
        """Register a plugin object. Raises BadInput for unknown hooks, unknown arguments and duplicates."""
        label = name if kind == "core" else f"{kind} {name}"
        config = getattr(plugin, "Config", None) if kind == "extension" else None
        if config is not None:
            refuse_unusable(config, name)
        _check_hooks(plugin, label, has_settings=config is not None)
        if kind == "extension" and name not in self._chosen and not any(hasattr(plugin, hook) for hook in hook_names()):
            self.idle.append(name)
            return
        try:
            self._manager.register(plugin, label)
        except ValueError as error:
            raise BadInput(
                f"plugin {label!r} is registered twice, or its module is another plugin's too: {error}"
            ) from None
        self._versions[label] = version
        if kind == "extension":
            self._extensions[name] = plugin
        if config is not None:
            self._configs[label] = config

    def first(self, hook: str, **arguments: Any) -> Any:
        """Return the capability: an extension's if one gives it, else the project's, else the core's.

        Raises BadInput when two extensions give it and none was chosen, or when one fails; RunnerError when no plugin
        gives it.
        """
        offers = self._implementations(hook)
        given: dict[str, Any] = {}
        for name in self._extensions:
            if offer := offers.pop(f"extension {name}", None):
                answer = self._answer(offer, hook, arguments)
                given |= {} if answer is None else {name: answer}
        chosen = next((name for name in self._chosen if name in given), None)
        if len(given) > 1 and chosen is None:
            raise BadInput(conflict(hook, list(given)))
        if given:
            return given[chosen or next(iter(given))]
        for offer in reversed(offers.values()):
            if (answer := self._answer(offer, hook, arguments)) is not None:
                return answer
        raise RunnerError(f"no plugin provides {hook.removeprefix(_PREFIX)!r}: none of {', '.join(self.names)}")

    def all(self, hook: str, **arguments: Any) -> list[Any]:
        """Return the answers of all plugins in one list: the core's, then the project's, then the extensions'.

        Raises BadInput when a plugin fails, or returns something other than a list, a tuple or None.
        """
        found: list[Any] = []
        for name, offer in self._implementations(hook).items():
            answer = self._answer(offer, hook, arguments)
            if not isinstance(answer, (list, tuple, type(None))):
                raise BadInput(f"{name}: {hook} must return a list, it returned {type(answer).__name__}{_remedy(name)}")
            found += answer or ()
        return found

    def project(self) -> type[Project]:
        """Return the chosen project's class, checked for the members that the command line needs."""
        cls: type[Project] = self.first("runner_project")
        refuse_incomplete(cls)
        return cls

    def sections(self, project: type[Project]) -> dict[str, type]:
        """Return the sections of settings that extensions add to the project's, and their classes."""
        taken = {*(field.name for field in dataclasses.fields(project.Config)), *dir(project.Config), *HEAD}
        found: dict[str, type] = {}
        for label, config in self._configs.items():
            name = section_name(label.removeprefix("extension "))
            if name in taken or name in found:
                raise BadInput(
                    f"{label} has settings called {name!r}, and so has runner, {project.name} or another extension: "
                    f"its package must give it another name{_remedy(label)}"
                )
            found[name] = config
        return found

    @property
    def names(self) -> list[str]:
        """Active plugins in order: core, the project, the extensions."""
        return list(self._versions)

    @property
    def versions(self) -> dict[str, str]:
        """Active plugins with distribution and version: saved with the run."""
        return dict(self._versions)

    def provides(self) -> dict[str, list[str]]:
        """Plugin → names of the hooks that it implements, without their prefix."""
        return {
            name: [h.removeprefix(_PREFIX) for h in hook_names() if callable(getattr(plugin, h, None))]
            for name in self.names
            if (plugin := self._manager.get_plugin(name)) is not None
        }

    def offers(self, hook: str) -> list[str]:
        """Return the plugins that implement `hook`, the strongest first: chosen extensions, others, project, core."""
        chosen = [f"extension {name}" for name in self._chosen]
        strongest = self.names[::-1]
        strongest.sort(key=lambda name: name not in chosen)
        return [name for name in strongest if hasattr(self._manager.get_plugin(name), hook)]

    def contested(self, hook: str) -> list[str]:
        """Return the extensions among which the user must choose; empty if there is nothing to choose."""
        if not gives_first_result(hook):
            return []
        found = [name for name, plugin in self._extensions.items() if hasattr(plugin, hook)]
        return found if len(found) > 1 and not set(found) & set(self._chosen) else []

    def _implementations(self, hook: str) -> dict[str, pluggy.HookImpl]:
        """Return a hook's implementations by plugin, in the order of registration: core, project, extensions."""
        return {offer.plugin_name: offer for offer in getattr(self._manager.hook, hook).get_hookimpls()}

    def _answer(self, offer: pluggy.HookImpl, hook: str, arguments: dict[str, Any]) -> Any:
        """Call this plugin's hook, an extension's with its own settings, and return the result."""
        if "settings" not in offer.argnames:
            return _answer(offer, hook, arguments)
        label = offer.plugin_name
        config = arguments["config"] if "config" in arguments else arguments["project"].config
        name = section_name(label.removeprefix("extension "))
        own = getattr(config, name) if name in config.extensions else self._configs[label]()
        return _answer(offer, hook, {**arguments, "settings": own})


def _answer(offer: pluggy.HookImpl, hook: str, arguments: dict[str, Any]) -> Any:
    """Call this plugin's hook and return the result.

    pluggy itself would call all plugins at once, and an error would not name its plugin.
    """
    try:
        return offer.function(**{name: arguments[name] for name in offer.argnames})
    except RunnerError:
        raise
    except (Exception, SystemExit) as error:
        if offer.plugin_name == "core" or _is_ending(error):
            raise
        raise BadInput(
            f"{offer.plugin_name}: {hook} failed: {type(error).__name__}: {error} (--debug shows where)"
            f"{_remedy(offer.plugin_name)}"
        ) from error


def _is_ending(error: BaseException) -> bool:
    """Return whether this is the command line's exit after a signal, rather than a plugin's own sys.exit()."""
    return isinstance(error, SystemExit) and error.code in {128 + number for number in ENDING}


def _remedy(label: str) -> str:
    kind, _, name = label.partition(" ")
    return f"; `--no-extension {name}` switches it off" if kind == "extension" else ""


def conflict(hook: str, extensions: Sequence[str]) -> str:
    """Return the message for several extensions that give the same first-result capability."""
    return (
        f"the extensions {' and '.join(extensions)} both provide {hook.removeprefix(_PREFIX)!r}: choose one with "
        f"`--extension NAME`, or switch one off with `--no-extension NAME`"
    )


def hook_names() -> list[str]:
    """Return every hook, in the order of hooks.py."""
    return [name for name in vars(hooks) if name.startswith(_PREFIX)]


def gives_first_result(hook: str) -> bool:
    """Return whether one plugin provides this capability, rather than all together."""
    return bool(getattr(hooks, hook).runner_spec["firstresult"])


def _check_hooks(plugin: object, label: str, has_settings: bool) -> None:
    """Refuse unknown or unmarked hooks and unknown arguments, which would be ignored silently or fail late."""
    for name in dir(plugin):
        function = getattr(plugin, name, None)
        if not name.startswith(_PREFIX) or not inspect.isroutine(function):
            continue
        if name in _RENAMED_HOOKS:
            raise BadInput(f"plugin {label!r}: the hook `{name}` is called `{_RENAMED_HOOKS[name]}` now: rename it")
        if name not in hook_names():
            raise BadInput(f"plugin {label!r}: there is no hook {name!r}{did_you_mean(name, hook_names())}")
        if not hasattr(function, "runner_impl"):
            raise BadInput(f"plugin {label!r}: mark {name} with @hookimpl, else it is never called")
        if any(getattr(function, "runner_impl").values()):  # noqa: B009 - unknown to the type
            raise BadInput(
                f"plugin {label!r}: mark {name} with plain @hookimpl: the order is core < project < extensions"
            )
        known = _arguments(getattr(hooks, name))
        for argument in _arguments(function):
            if argument == "settings" and not has_settings:
                raise BadInput(
                    f"plugin {label!r}: {name} takes `settings`, those of an extension that declares a `Config`, and "
                    "there is none (a project's settings are in `config`)"
                )
            if argument not in known:
                raise BadInput(
                    f"plugin {label!r}: {name} has no argument {argument!r}{did_you_mean(argument, known)} "
                    f"(it may take: {', '.join(known) or 'none'})"
                )


def _arguments(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def _core_version() -> str:
    from importlib.metadata import version

    return f"runner-core {version('runner-core')}"


_VALUES = ("name", "framework", "Config", "presets")

_METHODS = ("records", "decode", "prepare", "samples", "model", "step", "phantom")
"""Methods without a default: `Project`'s own versions do nothing."""

_PRESETS = ("default", "demo")


_FIELDS = {
    "learning": "adjust after_step augment initialise optimisations optimizer parameter_groups recompute schedule "
    "shard_units splittable",
    "health": "chance_losses decision ignored lower_bounds",
    "checks": "annotation grid plain_metrics",
    "judging": "collect judge pooled scored shown tables untrained",
    "pictures": "figure snapshot_samples snapshots watch",
}
_MOVED = {
    **{old: f"{facet}().{old}" for facet, names in _FIELDS.items() for old in names.split()},
    **{old: f"dataset.{old}" for old in ("crop", "phantom_version", "prepare_version", "remote", "samples_setting")},
    **{"data_settings": "dataset.settings", "of_data": "dataset.settings"},
    **{"least": "health().lower_bounds", "uninformed": "health().chance_losses"},
    **{"check": "checks().record", "check_set": "checks().records", "remarks": "checks().prediction"},
    **{"faults": "Config.faults", "PredictOptions": "predict_options"},
}
"""Members of a project by their names before 0.1.0, which nothing would call now, and their places."""
_GONE = {
    "left_out": "runner_core.leave_out(text)",
    "pipeline.decode_cropped": "cropped` (its `decoded` and `box`) in `predict(cropped, infer)",
}
"""Attributes that a project's own methods used before 0.1.0, and what to write now."""


def _refuse_moved(cls: type[Any], name: str) -> None:
    moved = {old: place for old, place in _MOVED.items() if hasattr(cls, old)}
    if _takes_more(cls, "pictures", 0):
        moved["pictures"] = "pictures().draw_watched"
    if _takes_more(cls, "baseline", 1) or _takes_more(cls, "export", 2):
        moved["statistics"] = "self.statistics` in `baseline(cropped)` and `export(model, folder)"
    if "record" in (_first_argument(cls, "predict"), _first_argument(cls, "baseline")):
        moved["record"] = "cropped.record` in `predict(cropped, infer)` and `baseline(cropped)"
    moved |= {old: place for old, place in _GONE.items() if _uses(cls, old)}
    if moved:
        places = ", ".join(f"`{old}` is `{place}`" for old, place in moved.items())
        raise BadInput(f"project {name}: members of {cls.__name__} have new places: {places} (runner_core.Project)")


def _uses(cls: type[Any], attribute: str) -> bool:
    """Return whether a method of the class has `self.` and this attribute in its source."""
    methods = [m for c in cls.__mro__ if c is not Project for m in vars(c).values() if inspect.isfunction(m)]
    named = [method for method in methods if attribute.partition(".")[0] in method.__code__.co_names]
    try:  # another object may have an attribute of that name
        return any(re.search(rf"\bself\.{re.escape(attribute)}\b", inspect.getsource(method)) for method in named)
    except (OSError, TypeError):  # no source
        return False


def _takes_more(cls: type[Any], method: str, count: int) -> bool:
    """Return whether the class has the method, with more arguments than `count` and self; `*args` do not count."""
    found = getattr(cls, method, None)
    if not callable(found):
        return False
    kinds = [parameter.kind for parameter in inspect.signature(found).parameters.values()]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return len([kind for kind in kinds if kind not in several]) > 1 + count


def _first_argument(cls: type[Any], method: str) -> str:
    """Return the name of the method's first argument after self; "" if there is none."""
    found = getattr(cls, method, None)
    return next(iter([*inspect.signature(found).parameters][1:]), "") if callable(found) else ""


def refuse_incomplete(cls: type[Any]) -> None:
    """Raise BadInput that names the project and everything it lacks, or a `monitor` that cannot choose a checkpoint."""
    name = getattr(cls, "name", cls.__name__)
    _refuse_moved(cls, name)
    if hasattr(cls, "faster_with"):
        raise BadInput(
            f"project {name}: `faster_with` is gone: set train.compile or train.channels_last to on in presets that "
            "were measured to gain by it"
        )
    missing = [value for value in _VALUES if not hasattr(cls, value)]
    missing += [f"{method}()" for method in _METHODS if getattr(cls, method, None) in (None, getattr(Project, method))]
    if missing:
        raise BadInput(f"project {name}: its class {cls.__name__} lacks {', '.join(missing)}, which have no default")
    if presets := [preset for preset in _PRESETS if preset not in cls.presets]:
        raise BadInput(f"project {name} lacks the preset {' and '.join(presets)}")
    for metric, way in cls.directions.items():
        if way not in ("max", "min"):
            raise BadInput(f'project {name}: directions[{metric!r}] must be "max" or "min", not {way!r}')
    match cls.monitor:
        case (str(), "max" | "min"):
            return
    raise BadInput(
        f'project {name}: monitor must be a validation metric and "max" or "min", as in ("dice", "max"), '
        f"not {cls.monitor!r}"
    )
