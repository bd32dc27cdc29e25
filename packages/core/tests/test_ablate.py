"""`ablate` switches each optimisation off, measures its effect, and reports it."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from runner_core import BadInput, Learning
from runner_core.base.location import Url
from runner_core.base.writing import json_text
from runner_core.cli import main
from runner_core.cli.measure import refuse
from runner_core.config import RunConfig, TrainConfig
from runner_core.config.values import plain
from runner_core.contract import Remedy
from runner_core.contract.setup import Setup
from runner_core.output.report.charts import Bar, bar_chart
from runner_core.plugins.manager import Plugins
from runner_core.plugins.settings import from_preset
from runner_core.tools.measure import ablate as ablation
from runner_core.tools.measure import ablate_report as report
from runner_core.tools.measure.ablate import Ablation
from runner_core.tools.measure.ablate_report import as_json, footnotes
from runner_core.tools.measure.agreement import parity
from runner_core.tools.measure.optimisations import ALL, SAME, cases, refuse_unknown
from runner_core.tools.measure.paired import DATA, LOSS, NETWORK, STEP
from runner_core.tools.measure.process import TrialFailed
from runner_core.tools.measure.times import Times
from runner_core.tools.measure.trial import Doubt, Turn
from runner_core.training.assembly import TrainingSpec

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
from measure_toy import ready

READY = ready()
OWN = (
    Remedy("kernel", off={"model.width": 5}, part="network", why="Fast."),
    Remedy("few", off={"train.batch_size": 2}, part="data", why="Other samples.", same=False),
    Remedy("nothing", off={"model.dropout": 0.1}, part="loss", why="What the run has anyway."),
)


@pytest.fixture
def setup(toy, monkeypatch):
    """The toy with optimisations of its own, preset default."""
    plugins = Plugins.load("toy")
    kind = plugins.project()
    monkeypatch.setattr(kind, "learning", lambda self: Learning(optimisations=OWN))
    config = from_preset(kind, "default")
    return Setup(kind(config), config, "default", None, plugins)


# ---------------------------------------------------------------- what there is to switch off


def names(found):
    return [case.name for case in found]


def test_what_the_run_has_is_switched_off_each_by_itself_then_all(setup):
    found = cases(setup, READY)
    assert names(found) == ["kernel", "few", "cache", SAME, ALL]
    assert found[0].settings == {"model.width": 5}
    assert found[3].settings == {"model.width": 5, "cache.mode": "off"}
    assert found[3].parts == ("network", "data")
    assert found[3].same
    assert found[4].settings == {"model.width": 5, "train.batch_size": 2, "cache.mode": "off"}
    assert not found[4].same


def test_where_all_learn_the_same_there_is_one_of_all(setup, monkeypatch):
    monkeypatch.setattr(type(setup.project), "learning", lambda self: Learning(optimisations=OWN[:1]))
    assert names(cases(setup, READY)) == ["kernel", "cache", ALL]
    monkeypatch.setattr(type(setup.project), "learning", lambda self: Learning())
    assert names(cases(setup, READY)) == ["cache"]


def test_what_a_gpu_has_is_there_only_on_one(setup, monkeypatch):
    monkeypatch.setattr(type(setup.project), "learning", lambda self: Learning())
    assert names(cases(setup, READY)) == ["cache"]
    setup.config.train.compile, setup.config.train.channels_last = "on", "on"
    on_gpu = replace(READY, kind="cuda", device="A GPU", precision="bfloat16", cache="device")
    assert names(cases(setup, on_gpu)) == ["device-cache", "precision", "compile", "channels-last", "cache", ALL]
    assert cases(setup, on_gpu)[-1].settings["cache.mode"] == "off"
    setup.config.train.compile, setup.config.train.channels_last = "off", "on"
    assert names(cases(setup, READY)) == ["channels-last", "cache", ALL]


def test_what_is_streamed_has_others(setup, monkeypatch):
    monkeypatch.setattr(type(setup.project), "learning", lambda self: Learning())
    streamed = replace(READY, cache="stream")
    assert names(cases(setup, streamed)) == ["look-ahead"]
    setup.source = Url("s3://bucket/data")
    assert names(cases(setup, streamed)) == ["look-ahead", "connections", ALL]
    setup.config.train.workers = 3
    assert names(cases(setup, streamed)) == ["look-ahead", "connections", "workers", ALL]


def test_keras_compiles_on_a_gpu_without_being_asked(setup, monkeypatch):
    monkeypatch.setattr(type(setup.project), "framework", "keras")
    monkeypatch.setattr(type(setup.project), "learning", lambda self: Learning())
    setup.config.train.steps_per_execution = 4
    assert names(cases(setup, replace(READY, kind="cuda", device="A GPU"))) == ["compile", "blocks", "cache", ALL]


def test_what_several_devices_exchange_is_there_only_with_several(setup, monkeypatch):
    monkeypatch.setattr(type(setup.project), "learning", lambda self: Learning())
    setup.config.train.accumulate = 2
    several = replace(READY, strategy="ddp", exchange={"exchange.gradients": "step", "exchange.unused": "none"})
    assert names(cases(setup, READY)) == ["cache"]
    assert names(cases(setup, several)) == ["one-exchange", "no-search", "cache", ALL]
    setup.config.train.accumulate = 1
    searches = replace(several, exchange=several.exchange | {"exchange.unused": "find"})
    assert names(cases(setup, searches)) == ["cache"]
    gathers = replace(several, exchange=several.exchange | {"exchange.features": "scatter"})
    assert names(cases(setup, gathers)) == ["no-search", "reduce-scatter", "cache", ALL]
    half = {"exchange.gather": "bfloat16", "exchange.reduce": "bfloat16"}
    setup.config.exchange.gather = setup.config.exchange.reduce = "bfloat16"
    levels = replace(READY, strategy="hsdp", exchange=half)
    assert names(cases(setup, levels)) == ["bf16-gather", "bf16-reduce", "two-levels", "cache", ALL]
    autocast = replace(levels, precision="bfloat16")
    (without,) = [case.settings for case in cases(setup, autocast) if case.name == "precision"]
    assert without == {"precision.mode": "float32", "exchange.gather": "float32"}, "it is refused in float32"


def test_some_may_be_chosen_and_others_are_refused(setup):
    assert names(cases(setup, READY, ("few", "kernel"))) == ["kernel", "few", ALL]
    assert names(cases(setup, READY, ("nothing",))) == []
    refuse_unknown(setup, ("few", "look-ahead"))
    with pytest.raises(BadInput, match=r"toy has no optimisation 'kernels'.*did you mean.*kernel.*connections"):
        refuse_unknown(setup, ("kernels",))


# ---------------------------------------------------------------- measuring


class Fake:
    """A trial that says that it takes `slower` times as long without some settings, whatever the clock says."""

    doubts = None

    made: list[Fake] = []  # noqa: RUF012 - emptied by the fixture
    slower: dict[str, float] = {}  # noqa: RUF012
    fails: dict[str, TrialFailed] = {}  # noqa: RUF012
    learns: dict[str, float] = {}  # noqa: RUF012
    asked: list[tuple[str, str]] = []  # noqa: RUF012

    def __init__(self, base, name, settings, *, memory_bytes=None, timeout=None, say=None):
        self.name, self.settings, self.alive, self.step = name, settings, False, 0
        self.factor = math.prod(f for setting, f in self.slower.items() if setting in settings)
        self.memory_bytes, self.ready = memory_bytes, None
        self.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def prepare(self):
        self.asked.append((self.name, "prepare"))

    def _do(self, what):
        time.sleep(0.01)
        self.asked.append((self.name, what))
        for other in (self.made[0], self):  # one that is there may end as well
            failure = self.fails.pop(f"{other.name}: {what}", None) if other.alive or what == "start" else None
            if failure:
                other.alive = False
                raise failure

    def start(self):
        self.alive, self.step = True, 1
        self._do("start")
        self.ready = replace(READY, host_bytes=int(1000 * self.factor))
        return self.ready

    def steps(self, count):
        self._do("steps")
        first, self.step = self.step, self.step + count + 1
        losses = [1 / (1 + i) * self.learns.get(self.name, 1.0) for i in range(first, self.step)]
        return Turn(0.01 * self.factor * count, 4 * count, count, 0.0, first, losses)

    def data(self, seconds):
        self._do("data")
        return 1000 / self.factor

    def network(self, count):
        self._do("network")
        return 0.005 * self.factor

    def loss(self, count):
        self._do("loss")
        return None

    def doubt(self):
        return Fake.doubts

    def evaluate(self, samples):
        self._do("evaluate")
        return {"loss": self.learns.get(self.name, 1.0), "other": 3.0}

    def memory(self):
        return int(1000 * self.factor), 0

    def close(self):
        self.alive = False


@pytest.fixture
def fake(monkeypatch):
    for name in ("made", "asked"):
        monkeypatch.setattr(Fake, name, [])
    for name in ("slower", "fails", "learns"):
        monkeypatch.setattr(Fake, name, {})
    monkeypatch.setattr(ablation, "_BEGUN", -math.inf)  # all are measured, however little time there is
    monkeypatch.setattr(ablation, "Trial", Fake)
    return Fake


def run(setup, seconds=0.0, say=lambda text: None, only=(), source=None):
    base = TrainingSpec("toy", "default", source, plain(setup.config))
    return Ablation(base, seconds, say, 0.05).run(lambda ready: cases(setup, ready, only))


def test_each_case_takes_turns_with_the_run_as_it_is(setup, fake):
    fake.slower = {"model.width": 3.0, "cache.mode": 7.0}
    found = run(setup)
    assert names(row.case for row in found.rows) == ["kernel", "few", "cache", SAME, ALL]
    kernel, few, cache, same, everything = found.rows
    assert kernel.times[STEP].longer.ratio == pytest.approx(3)
    assert kernel.times[NETWORK].longer.ratio == pytest.approx(3)
    assert set(kernel.times) == {STEP, NETWORK}  # of the others it is not said that they change
    assert set(cache.times) == {STEP, DATA}
    assert cache.times[DATA].longer.ratio == pytest.approx(7)
    for row in (same, everything):
        assert set(row.times) == {STEP, DATA, NETWORK}
        assert row.times[STEP].longer.ratio == pytest.approx(21)
    assert LOSS not in found.times  # the engine cannot tell
    assert found.seconds_per_epoch == pytest.approx(0.1)
    assert cache.epoch.usual == pytest.approx((0.1, 0.7))
    assert (found.host_bytes, kernel.host_bytes) == (1000, 3000)
    assert few.agreement is None
    assert not any(trial.alive for trial in fake.made)


def test_who_begins_changes_and_time_is_kept(setup, fake):
    found = run(setup, 2.0, only=("kernel",))
    turns = [name for name, what in fake.asked if what == "network"]
    assert found.rows[0].times[STEP].longer.rounds >= 4
    pairs = list(zip(turns[-8::2], turns[-7::2], strict=True))
    assert set(pairs) == {("as set", "kernel"), ("kernel", "as set")}
    for row in run(setup, 0.0).rows:  # a round each, if there is no time for more
        assert {times.longer.rounds for times in row.times.values()} == {1}


def test_losses_that_should_agree_are_compared_over_the_same_steps(setup, fake):
    fake.learns = {"kernel": 1.004, "cache": 1.2}
    found = run(setup)
    parities = {row.case.name: row.agreement for row in found.rows}
    assert parities["kernel"].agrees
    assert parities["kernel"].difference == pytest.approx(0.004, rel=0.1)
    assert parities["kernel"].steps >= 10
    assert not parities["cache"].agrees
    assert parities["few"] is None
    notes = " ".join(report.footnotes(found))
    assert "cache should learn the same and does not: mean loss of" in notes
    assert "kernel should" not in notes


def test_chance_is_no_difference_but_what_is_evaluated_must_agree():
    class Side:
        def __init__(self, losses, evaluated):
            self.first_losses, self.evaluated = losses, evaluated

    on = Side([1.0, 2.0, 1.5, 1.2, 1.7], 1.0)
    assert parity(on, Side([1.3, 1.8, 1.9, 1.0, 1.6], 1.0)).agrees  # dropout draws other numbers
    assert not parity(on, Side([1.3, 1.8, 1.9, 1.0, 1.6], 1.05)).agrees
    assert not parity(on, Side([1.1, 2.1, 1.6, 1.3, 1.8], 1.0)).agrees
    assert not parity(on, Side([math.nan] * 5, 1.0)).agrees
    assert not parity(Side([1.0, math.nan, math.inf], 1.0), Side([1.0, 2.0, 1.5], 1.0)).agrees
    same = parity(on, Side([1.0, 2.0], 1.0))
    assert (same.steps, same.before, same.after, same.evaluated) == (2, 1.5, 1.5, (1.0, 1.0))
    assert same.agrees


def test_a_case_that_fails_is_a_row_and_no_end(setup, fake):
    fake.fails = {"kernel: start": TrialFailed("it crashed\nhere")}
    said = []
    found = run(setup, say=said.append)
    assert (found.rows[0].outcome, found.rows[0].reason) == ("failed", "it crashed\nhere")
    assert [bool(row.failed) for row in found.rows] == [True, False, False, False, False]
    assert list(report.rows(found))[1][:4] == ("kernel", "", "failed", "")
    assert "without kernel: it crashed\nhere" in report.footnotes(found)


def test_what_does_not_fit_beside_the_other_is_measured_by_itself(setup, fake):
    fake.slower = {"model.width": 3.0}
    fake.fails = {"kernel: steps": TrialFailed("out of memory", memory=True)}
    found = run(setup)
    kernel, few = found.rows[:2]
    assert kernel.apart
    assert not kernel.failed
    assert kernel.times[STEP].longer.ratio == pytest.approx(3)
    assert (kernel.times[STEP].longer.rounds, kernel.times[STEP].longer.low) == (1, 0)  # of other minutes
    assert not few.apart
    starts = [name for name, what in fake.asked if what == "start"]
    assert starts[:5] == ["as set", "kernel", "kernel", "as set", "few"]
    assert list(report.rows(found))[1][0] == "kernel *"
    assert any("no room for both" in note for note in report.footnotes(found))


def test_what_does_not_fit_by_itself_either_fails(setup, fake):
    class Twice(dict):
        def pop(self, key, default=None):
            return TrialFailed("out of memory", memory=True) if key == "kernel: start" else default

    fake.fails = Twice()
    found = run(setup)
    assert (found.rows[0].outcome, found.rows[0].reason) == ("too large", "out of memory")
    assert found.rows[1].times


def test_the_run_as_it_is_begins_anew_when_it_ends(setup, fake):
    """Killed by the machine while another one had its turn: that one is measured by itself."""
    fake.fails = {"as set: network": TrialFailed("killed by SIGKILL", memory=True)}

    original = Fake._do

    def only_later(self, what):
        if what == "network" and [trial.name for trial in self.made] == ["as set", "gradients"]:
            self.asked.append((self.name, what))
            return
        original(self, what)

    fake._do = only_later
    try:
        found = run(setup)
    finally:
        fake._do = original
    assert found.rows[0].apart
    assert not any(row.failed for row in found.rows)


def test_wrong_gradients_are_said_whatever_the_losses_say(setup, fake, monkeypatch):
    monkeypatch.setattr(Fake, "doubts", Doubt("wrong", "train.compile computes the gradient of a bias wrongly"))
    found = run(setup)
    assert all(row.agreement.agrees for row in found.rows if row.agreement)
    assert any("WRONG GRADIENTS" in line and "bias" in line for line in footnotes(found))


def test_gradients_that_nobody_compared_are_not_called_right(setup, fake, monkeypatch):
    monkeypatch.setattr(Fake, "doubts", Doubt("unchecked", "no memory for the comparison"))
    found = run(setup)
    assert any("UNCHECKED GRADIENTS" in line and "no memory" in line for line in footnotes(found))
    assert as_json({}, found)["unchecked_gradients"] == "no memory for the comparison"
    assert as_json({}, found)["wrong_gradients"] is None


def test_a_case_that_fails_later_tells_no_half_of_it(setup, fake):
    fake.fails = {"kernel: network": TrialFailed("it crashed")}
    found = run(setup)
    assert found.rows[0].reason == "it crashed"
    assert not found.rows[0].times
    assert not any(line.startswith("kernel") for line in report.as_csv(found).splitlines())


def test_a_cache_that_only_a_case_needs_is_built_before_it_is_measured(setup, fake):
    """Memory that building the cache takes does not count as a training's."""
    found = run(setup)
    built = [name for name, what in fake.asked if what == "prepare"]
    assert built == ["kernel", "few"]  # with the cache off there is none
    first = fake.asked.index(("kernel", "prepare"))
    assert fake.asked[first + 1] == ("kernel", "start")
    assert not any(row.failed for row in found.rows)
    fake.asked.clear()
    setup.config.cache.mode = "stream"
    run(setup)
    assert not any(what == "prepare" for _, what in fake.asked)


def test_settings_that_cannot_be_measured_end_it(setup, fake):
    fake.fails = {"as set: start": TrialFailed("there is no data")}
    with pytest.raises(TrialFailed, match="there is no data"):
        run(setup)


def test_each_streamed_trial_fetches_into_a_folder_of_its_own(setup, fake):
    setup.config.cache.mode = "stream"
    run(setup, only=("kernel", "few"))
    folders = {trial.name: trial.settings.get("cache.dir") for trial in fake.made}
    assert folders.pop("gradients") is None  # what it fetches, a training uses
    assert None not in folders.values()
    assert len(set(folders.values())) == len(folders) == 4
    setup.config.cache.mode = "auto"
    fake.made.clear()
    run(setup)
    assert not any("cache.dir" in trial.settings for trial in fake.made)
    fake.made.clear()
    run(setup, source="s3://bucket/data", only=("kernel",))
    assert all("cache.dir" in trial.settings for trial in fake.made if trial.name != "gradients")


def test_no_trial_may_take_all_memory(setup, fake, monkeypatch):
    monkeypatch.setattr(ablation, "available_ram", lambda: 1000)
    run(setup)
    assert {trial.memory_bytes for trial in fake.made} == {900}


# ---------------------------------------------------------------- how it is told


def test_the_table_names_what_was_measured_and_how_much_longer_it_takes(setup, fake):
    fake.slower = {"model.width": 3.0, "cache.mode": 700.0}
    found = run(setup, 2.0)
    told = report.head(setup, found)
    line = report.headline(told)
    for part in (
        "toy, preset default, data phantom: batches of 4 (image 24 × 24 float32)",
        "40 samples an epoch",
        "float32",
        "cache memmap",
    ):
        assert part in line
    table = list(report.rows(found))
    assert all(len(row) == len(report.COLUMNS) for row in table)
    _, rounds, *cells = table[0]
    few = "~" if int(rounds) < 6 else ""
    assert cells[:1] == [f"{few}10 ms"]
    assert (cells[1].strip("~"), cells[2].strip("~")) == ("1,000", "5 ms")
    sign, nothing = "~" if int(table[1][1]) < 6 else "×", "~" if int(table[2][1]) < 6 else "≈"
    assert table[1][2:6] == (f"10 → 30 ms {sign}3", "–", f"5 → 15 ms {sign}3", "–")
    assert table[1][6:] == (f"100 → 300 ms {sign}3", "3.0 kB ×3", "equal")
    assert table[2][2] == f"10 → 10 ms {nothing}1"
    assert table[2][8] == "others"
    assert table[3][3][:-4] == "1,000 → 1.4 "
    assert table[3][6][:-4] == "100 ms → 1:10 "


def test_of_few_rounds_it_is_said_that_nobody_knows_how_sure_they_are(setup, fake):
    fake.slower = {"model.width": 1.05}
    found = run(setup, only=("kernel",))
    nothing, kernel = report.rows(found)
    assert nothing[1:3] == ("2", "~10 ms")
    assert kernel[1:3] == ("1", "10 → 10.5 ms ~1.05")
    assert "~ that it comes from fewer than 6 rounds" in " ".join(report.footnotes(found))
    found.rows[0].times[STEP] = Times([0.01] * 6, [0.0105] * 6)
    assert list(report.rows(found))[1][1:3] == ("6", "10 → 10.5 ms ×1.05")
    found.rows[0].times[STEP] = Times([0.01] * 6, [0.0105, 0.0095] * 3)
    assert "≈" in list(report.rows(found))[1][2]


def test_a_row_agrees_with_itself_however_its_rounds_differ(setup, fake):
    """The machine was fast in one round and slow in another: the ratio of medians is not that of the pairs."""
    found = run(setup, only=("kernel",))
    found.times[STEP] = [0.137] * 9
    found.rows[0].times[STEP] = Times([0.1, 0.1, 0.2], [0.12, 0.25, 0.21])
    _, kernel = report.rows(found)
    on, off, ratio = (float(word) for word in re.findall(r"[\d.]+", kernel[2]))
    assert on == 100
    assert off / on == pytest.approx(ratio, rel=0.01)
    assert [float(word) for word in re.findall(r"[\d.]+", kernel[6])][2] == ratio
    (line,) = [one for one in csv.DictReader(report.as_csv(found).splitlines()) if one["quantity"] == "epoch"]
    assert float(line["median without"]) / float(line["median with"]) == pytest.approx(float(line["ratio"]))


def test_what_there_is_no_time_for_is_left_out_and_named(setup, fake, monkeypatch):
    monkeypatch.setattr(ablation, "_BEGUN", 0.5)
    said = []
    found = run(setup, say=said.append)
    assert names(row.case for row in found.rows) == ["kernel"], "the first one in any case"
    assert found.left_out == ["few", "cache", SAME, ALL]
    told = " ".join(report.footnotes(found))
    assert f"Not measured: few, cache, {SAME}, {ALL}. Each takes" in told
    assert "about --minutes 1 would do for all" in told
    assert report.as_json({}, found)["left_out"] == found.left_out
    assert said == ["with all optimisations", "without kernel"]
    found = run(setup, 60.0, only=("nothing",))
    assert not found.left_out


def test_much_more_time_than_asked_for_is_said(setup, fake, monkeypatch):
    monkeypatch.setattr(ablation, "_OVER", 0.0)
    said = []
    run(setup, say=said.append)
    assert "with all off" in said
    assert "more than asked for: most of it to start trainings" in said[-1]


def test_json_and_csv_hold_the_same(setup, fake):
    fake.slower = {"model.width": 3.0}
    fake.fails = {"cache: start": TrialFailed("no")}
    found = run(setup)
    kept = json.loads(json_text(report.as_json(report.head(setup, found), found)))
    kernel, _, cache, *_ = kept["without"]
    assert kernel["off"] == {"model.width": 5}
    assert kernel["step"]["ratio"] == pytest.approx(3)
    assert kernel["step"]["low"] is None  # after one round nothing can be said of it
    assert kernel["losses"]["agree"]
    assert kernel["losses"]["difference"] == 0
    assert kept["left_out"] == []
    assert cache["failed"] == "no"
    assert kept["with_all"]["peak_memory_bytes"] == {"host": 1000, "device": 0}
    assert kept["units"]["data"] == "seconds of a sample"
    lines = list(csv.DictReader(report.as_csv(found).splitlines()))
    ratios = {(line["without"], line["quantity"]): float(line["ratio"]) for line in lines if line["ratio"]}
    assert ratios["kernel", "step"] == pytest.approx(3)
    assert ratios["kernel", "host memory"] == pytest.approx(3)
    assert not any(name == "cache" for name, _ in ratios)


def test_the_page_has_bars_for_each_quantity(setup, fake):
    fake.slower = {"model.width": 30.0}
    fake.fails = {"few: start": TrialFailed("<b>no</b>")}
    found = run(setup)
    text = report.as_page(report.head(setup, found), found)
    assert "A step: times as long without" in text
    assert "Network alone" in text
    assert "Loss alone" not in text  # nobody could tell
    assert "&lt;b&gt;no&lt;/b&gt;" in text
    assert "model.width=5" in text


def test_bars_begin_at_one_and_show_their_interval():
    bars = [
        Bar("a", 10.0, 9.0, 11.0, "a", "×10"),
        Bar("b", 0.5, 0.0, math.inf, "b", "×0.5"),
        Bar("<c>", 1.0, 0.9, 1.1, "a", "≈1"),
    ]
    text = bar_chart("Title & more", bars)
    assert text.count('class="interval"') == 2
    assert "Title &amp; more" in text
    assert "&lt;c&gt;" in text
    assert text.count("<rect") == 3
    assert bar_chart("nothing", []) == ""


# ---------------------------------------------------------------- the command


def test_bad_flags(here, capsys, monkeypatch):
    assert main(["toy", "ablate", "--only", "nonsense"]) == 2
    assert "toy has no optimisation 'nonsense'" in capsys.readouterr().err
    assert main(["toy", "ablate", "--minutes", "0"]) == 2
    assert "--minutes" in capsys.readouterr().err
    with monkeypatch.context() as started:
        started.setenv("WORLD_SIZE", "2")
        started.setenv("RANK", "1")
        assert main(["toy", "ablate"]) == 2
    assert "ablate starts its processes itself: run it without torchrun" in capsys.readouterr().err
    config = RunConfig(train=TrainConfig(devices=2, device="cpu"))
    setup = SimpleNamespace(config=config, project=SimpleNamespace(framework="keras"))
    with pytest.raises(BadInput, match="ablate measures one device of a Keras project: leave out --devices"):
        refuse("ablate", SimpleNamespace(setup=setup, options=SimpleNamespace(minutes=1)))
    (here / "full").mkdir()
    (here / "full" / "file").touch()
    assert main(["toy", "ablate", "--out", "full"]) == 2
    assert "the folder is not empty" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_interrupted_it_tells_what_it_has(here, fake, capsys, monkeypatch, stop, code):
    """In the second case: the first one is told."""
    monkeypatch.setattr(Plugins.load("toy").project(), "learning", lambda self: Learning(optimisations=OWN))
    fake.fails = {"few: steps": stop}
    assert main(["toy", "ablate", "--minutes", "0.001", "--out", "found"]) == code
    said = capsys.readouterr().out
    assert "interrupted" in said
    assert "found/report.html" in said
    assert [row["name"] for row in json.loads((here / "found" / "ablate.json").read_text())["without"]] == ["kernel"]
    assert not any(trial.alive for trial in fake.made)


@pytest.mark.slow
@pytest.mark.torch
def test_the_command_measures_the_toy(here, capsys):
    assert main(["toy", "ablate", "--minutes=0.05", "--out=found", "--only=cache", "--train.threads=1"]) == 0
    said = capsys.readouterr().out
    kept = json.loads((here / "found" / "ablate.json").read_text())
    (row,) = kept["without"]
    assert row["name"] == "cache"
    assert not row["failed"]
    assert row["losses"]["agree"]
    assert row["data"]["ratio"] > 1
    assert kept["with_all"]["network"]["median"] > 0
    assert kept["with_all"]["loss"]["median"] < kept["with_all"]["network"]["median"]
    assert "toy, preset demo, data phantom" in said
    assert "cache memmap" in said
    assert (here / "found" / "report.html").read_text().startswith("<!doctype html>")
    assert (here / "found" / "ablate.csv").read_text().count("\n") > 4
