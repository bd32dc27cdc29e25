"""Rules that watch a run, and what their findings do to it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
from runner_core.base.errors import Unhealthy
from runner_core.config import RunConfig
from runner_core.contract import Finding, HealthEvent
from runner_core.health import ConstantPrediction, FiniteValidation, Health, InputIgnored, PrecisionAsked, default_rules


def validation(lowest, highest, step=1):
    return HealthEvent("validation", step, 0, {"decision_min": lowest, "decision_max": highest, "loss": 1.0})


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 4), st.integers(0, 9))
def test_constant_prediction_counts_in_a_row(constants, patience, young):
    rule = ConstantPrediction(patience, young)
    in_a_row = 0
    for step, constant in enumerate(constants):
        finding = rule.observe(validation(0.0, 0.0 if constant else 1.0, step))
        in_a_row = in_a_row + 1 if constant else 0
        assert (finding.level if finding else None) == (
            None if not in_a_row else "error" if in_a_row >= patience and step >= young else "warning"
        )
    end = rule.observe(HealthEvent("end", 9, 9, {}))
    assert (end is not None and end.level == "error") == bool(in_a_row)


def test_nan_does_not_make_a_constant_network_vary():
    rule = ConstantPrediction(3)
    rule.observe(validation(0.0, 0.0))
    assert rule.observe(validation(float("nan"), float("nan"))) is None
    assert rule.in_a_row == 1


@pytest.mark.parametrize("name", ["loss", "dice", "decision_min", "decision_max"])
def test_a_validation_that_is_not_finite_is_an_error(name):
    facts = {"loss": 1.0, "dice": 0.5, "other": float("nan"), "decision_min": 0.0, "decision_max": 1.0}
    rule = FiniteValidation("dice")
    assert rule.observe(HealthEvent("validation", 1, 0, facts)) is None
    finding = rule.observe(HealthEvent("validation", 1, 0, facts | {name: float("inf")}))
    assert finding.level == "error"
    assert name in finding.message


def test_no_decision_is_no_finding():
    rule = ConstantPrediction(1)
    assert rule.observe(HealthEvent("validation", 1, 0, {"loss": 1.0})) is None
    assert rule.observe(HealthEvent("end", 1, 0, {})) is None


@pytest.mark.parametrize(
    "asked, seen, healthy",
    [
        ("bfloat16", {"torch.bfloat16": 9}, True),
        ("bfloat16", {"torch.bfloat16": 9, "torch.float32": 1}, False),
        ("bfloat16", {"torch.float32": 10}, False),
        ("float16", {"torch.bfloat16": 3}, False),
        ("float32", {"float32": 3}, True),
        ("float32", {"torch.bfloat16": 3}, False),
        ("tf32", {"torch.bfloat16": 3}, False),
    ],
)
def test_precision_asked(asked, seen, healthy):
    event = HealthEvent("first_step", 1, 0, {"precision_asked": asked, "precision_seen": seen})
    finding = PrecisionAsked().observe(event)
    assert (finding is None) == healthy
    if finding:
        assert finding.level == "error"
        assert asked in finding.message


@pytest.mark.parametrize(
    "asked, seen, why", [("tf32", {"torch.float32": 3}, "either way"), ("bfloat16", {}, "no layer")]
)
def test_precision_that_cannot_be_seen_is_noted(asked, seen, why):
    event = HealthEvent("first_step", 1, 0, {"precision_asked": asked, "precision_seen": seen})
    finding = PrecisionAsked().observe(event)
    assert finding.level == "note"
    assert asked in finding.message
    assert why in finding.message


def test_a_network_without_layers_to_observe_is_noted_once(tmp_path):
    torch = pytest.importorskip("torch")

    class Pixel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.zeros(()))

        def forward(self, image):
            return image[:, :1] * self.scale

    class Bare(toy.Toy):
        def model(self, precision):
            return Pixel()

    summary = toy.run(toy.small(train__epochs=3), tmp_path, project=Bare, rules=[PrecisionAsked()])
    assert [f["level"] for f in summary["health"]] == ["note"]
    assert sum(line["event"] == "health" for line in toy.log_lines(tmp_path)) == 1


class Says:
    name = "says"

    def __init__(self, level, moment="log"):
        self.level, self.moment, self.asked = level, moment, 0

    def observe(self, event):
        self.asked += 1
        return Finding(self.name, self.level, "something") if event.moment == self.moment else None


@pytest.mark.parametrize("level", ["note", "warning", "error"])
@pytest.mark.parametrize("mode", ["stop", "warn", "off"])
def test_modes(level, mode):
    told = []
    rule = Says(level)
    health = Health([rule], mode, lambda finding, step, epoch: told.append(finding.level))
    error = health.observe(HealthEvent("log", 3, 1, {}))
    assert (error is not None) == (level == "error" and mode == "stop")
    assert rule.asked == (0 if mode == "off" else 1)
    expected = "warning" if level == "error" and mode == "warn" else level
    assert told == ([] if mode == "off" else [expected])
    assert [f.level for f in health.findings] == told


def test_default_rules_follow_the_settings():
    config = RunConfig()
    config.health.constant_after, config.health.constant_steps = 7, 50
    rules = {rule.name: rule for rule in default_rules(toy.Toy(toy.ToyConfig()), config)}
    assert {"constant prediction", "finite validation", "precision", "splits", "weights unchanged"} < rules.keys()
    for name in ("constant prediction", "input ignored"):
        assert (rules[name].patience, rules[name].steps) == (7, 50)


class AlwaysBackground(toy.Toy):
    def decision(self, prediction):
        return (prediction > 1e9).float()


@pytest.mark.torch
def test_a_constant_network_ends_the_run_after_saving(tmp_path):
    config = toy.small(train__epochs=9, health__constant_steps=0)
    with pytest.raises(Unhealthy, match="decided 0 everywhere in 3 validations in a row") as stopped:
        toy.run(config, tmp_path, project=AlwaysBackground)
    assert stopped.value.exit_code == 3
    summary = stopped.value.summary
    assert (summary["status"], summary["epochs"]) == ("unhealthy", 3)
    assert [f["level"] for f in summary["health"]] == ["warning", "error"]
    assert toy.final_state(tmp_path)[0]["loop"]["step"] == 9
    events = [line["event"] for line in toy.log_lines(tmp_path)]
    assert events[-5:] == ["validation", "watch", "health", "checkpoint", "end"]


@pytest.mark.torch
def test_a_resumed_run_remembers_how_often(tmp_path):
    """Two constant validations, then killed: the third is an error although this process saw one only."""

    class Bomb(Says):
        def observe(self, event):
            if event.moment == "log" and event.step == 8:
                raise KeyboardInterrupt

    config = toy.small(train__epochs=9, health__constant_steps=0)
    with pytest.raises(KeyboardInterrupt):
        toy.run(config, tmp_path, project=AlwaysBackground, rules=[ConstantPrediction(3, 0), Bomb("note")])
    with pytest.raises(Unhealthy, match="3 validations in a row"):
        toy.run(config, tmp_path, project=AlwaysBackground, resume=True)


class Counts:
    """Counts events by moment, log lines too, and tells at the end."""

    name = "counts"

    def __init__(self):
        self.memory = {}

    def observe(self, event):
        self.memory[event.moment] = self.memory.get(event.moment, 0) + 1
        self.memory.setdefault("losses", []).append(event.facts.get("loss"))
        return Finding(self.name, "note", str(self.memory)) if event.moment == "end" else None


class Bomb:
    name = "bomb"

    def observe(self, event):
        if event.moment == "log" and event.step == 8:
            raise KeyboardInterrupt


@pytest.mark.torch
@pytest.mark.parametrize("every", [1, 2])
def test_a_rule_with_a_memory_counts_from_line_to_line_over_a_resume(tmp_path, every):
    """It is neither told twice of what came after the checkpoint nor shown the past validations again."""
    config = toy.small(train__epochs=4, checkpoint__every=every)
    whole = toy.run(config, tmp_path / "whole", rules=[Counts()])
    (told,) = [finding["message"] for finding in whole["health"]]
    assert "'log': 7," in told
    assert "'validation': 4," in told
    with pytest.raises(KeyboardInterrupt):
        toy.run(config, tmp_path / "killed", rules=[Counts(), Bomb()])
    resumed = toy.run(config, tmp_path / "killed", rules=[Counts()], resume=True)
    assert resumed["health"] == whole["health"]
    toy.assert_equal_runs(tmp_path / "killed", tmp_path / "whole")
    memories = toy.final_state(tmp_path / "killed")[0]["loop"]["memories"]
    assert memories["counts"]["validation"] == 4


def test_memories_are_copies():
    rule, told = Counts(), []
    health = Health([rule, Says("note")], "stop", lambda *finding: told.append(finding))
    health.observe(validation(0.0, 1.0))
    kept = health.memories()
    assert kept == {"counts": {"validation": 1, "losses": [1.0]}}
    rule.memory["losses"].append(2.0)
    assert kept["counts"]["losses"] == [1.0]
    health.restore(kept, [])
    rule.memory["losses"].append(3.0)
    assert kept["counts"]["losses"] == [1.0]


def test_without_a_memory_in_the_checkpoint_the_validations_are_replayed():
    """A rule that came later, or a checkpoint of an older version; others are replayed to in any case."""
    new, known, plain = Counts(), Counts(), Says("note")
    known.name = "known"
    health = Health([new, known, plain], "stop", lambda *finding: None)
    health.restore({"known": {"log": 9}}, [validation(0.0, 1.0), validation(0.0, 1.0)])
    assert new.memory["validation"] == 2
    assert known.memory == {"log": 9}
    assert plain.asked == 2
    assert not health.findings


@pytest.mark.torch
def test_constant_at_the_end(tmp_path):
    """Too few validations to be stopped before: the end of the run is unhealthy all the same."""
    with pytest.raises(Unhealthy, match="the trained network decides 0 everywhere"):
        toy.run(toy.small(train__epochs=1, health__constant_steps=0), tmp_path, project=AlwaysBackground)


@pytest.mark.torch
def test_a_short_trial_run_is_warned_of_a_constant_network_and_does_not_fail(tmp_path):
    """health.constant_steps promises it of runs below 100 steps, their end included."""
    summary = toy.run(toy.small(train__epochs=2), tmp_path, project=AlwaysBackground)
    assert (summary["status"], summary["steps"]) == ("done", 6)
    assert {f["level"] for f in summary["health"]} == {"warning"}
    assert any("the trained network decides 0 everywhere" in f["message"] for f in summary["health"])


@pytest.mark.parametrize("rule", [ConstantPrediction, InputIgnored])
@pytest.mark.parametrize("step, level", [(1, "warning"), (99, "warning"), (100, "error")])
def test_the_end_of_a_run_is_an_error_from_constant_steps_on(rule, step, level):
    facts = {"decision_min": 1.0, "decision_max": 1.0}
    if rule is InputIgnored:
        facts = {"decision_min": 0.0, "decision_max": 1.0, "decision_mark_min": 0.5, "decision_mark_max": 0.5}
    found = rule(3, 100)
    found.observe(HealthEvent("validation", step, 1, facts))
    assert found.observe(HealthEvent("end", step, 1, {})).level == level


@pytest.mark.torch
def test_warn_goes_on(tmp_path):
    display = toy.Quiet()
    config = toy.small(train__epochs=5, health__mode="warn")
    summary = toy.run(config, tmp_path, project=AlwaysBackground, display=display)
    assert (summary["status"], summary["epochs"]) == ("done", 5)
    assert any(text.startswith("WARNING: constant prediction") for text in display.said)


def test_precision_that_is_not_on_is_found_in_a_run(tmp_path):
    """A network that switches autocast off inside: mixed precision was asked for and never computed."""
    torch = pytest.importorskip("torch")

    class Stubborn(toy.Toy):
        def step(self, model, batch, progress):
            with torch.autocast("cpu", enabled=False):
                return super().step(model, batch, progress)

    config = toy.small(precision__mode="bfloat16")
    with pytest.raises(Unhealthy, match=r"bfloat16 was asked for, but layers compute otherwise: 2 in float32"):
        toy.run(config, tmp_path / "off", project=Stubborn)
    summary = toy.run(config, tmp_path / "on")
    assert summary["precision"] == {"asked": "bfloat16", "seen": {"torch.bfloat16": 2}}


def test_nan_stops_and_is_never_saved(tmp_path):
    """The third step's loss is NaN: step and term are named, and every checkpoint is from before it."""
    torch = pytest.importorskip("torch")

    class Fails(toy.Toy):
        def step(self, model, batch, progress):
            result = super().step(model, batch, progress)
            factor = float("nan") if progress.step == 4 and model.training else 1.0
            return result._replace(loss=result.loss * factor, terms={"bce": result.terms["bce"] * factor})

    with pytest.raises(Unhealthy, match="bce was NaN or infinite in step 5") as stopped:
        toy.run(toy.small(log__every=100, checkpoint__every_steps=4), tmp_path, project=Fails)
    assert stopped.value.summary["status"] == "unhealthy"
    values, tensors = toy.final_state(tmp_path)
    assert values["loop"]["step"] == 4
    assert all(t.isfinite().all() for t in tensors.values() if t.dtype == torch.float32)
