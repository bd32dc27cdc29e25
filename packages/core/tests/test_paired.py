"""Trials that take turns, and what is concluded from their times."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
from measure_toy import ready
from runner_core.tools.measure.paired import SAMPLE, Contender, Rounds
from runner_core.tools.measure.process import TrialFailed
from runner_core.tools.measure.times import LEAST, compare, spread
from runner_core.tools.measure.trial import Turn


class Fake:
    """A trial of which a step takes as long as `seconds` says, by the number of the step."""

    def __init__(self, name, seconds, log=None, fails_at=None):
        self.name, self.seconds, self.log, self.fails_at = name, seconds, log if log is not None else [], fails_at
        self.ready, self.alive, self.done, self.starts = None, False, 0, 0

    def start(self):
        self.alive, self.done, self.ready = True, 1, ready()
        self.starts += 1
        return self.ready

    def close(self):
        self.alive = False

    def steps(self, count):
        if self.fails_at is not None and self.done >= self.fails_at:
            self.alive = False
            raise TrialFailed("gone")
        self.log.append(self.name)
        first = self.done
        self.done += count + 1
        losses = [1.0 / (n + 1) for n in range(first, self.done)]
        return Turn(count * self.seconds(first), 4 * count, count, 0.0, first, losses)


def test_interval_is_that_of_the_signed_rank_test():
    """Faster is what SciPy's exact test calls significant at 2.5 %, one-sided."""
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(3)
    for rounds in (5, 6, 7, 8, 12, 16):
        for _ in range(60):
            ratios = np.exp(rng.normal(0.05, 0.08, rounds))
            found = compare(ratios, np.ones(rounds))
            test = stats.wilcoxon(np.log(ratios), alternative="greater", method="exact")
            assert found.faster == (test.pvalue <= 0.025), (rounds, ratios)
            assert found.low <= found.ratio <= found.high


def test_too_few_rounds_say_nothing():
    found = compare([2.0] * (LEAST - 1), [1.0] * (LEAST - 1))
    assert (found.ratio, found.low, found.high) == (2.0, 0.0, math.inf)
    assert not found.faster
    assert compare([2.0] * LEAST, [1.0] * LEAST).faster
    assert compare([], []).rounds == 0


def test_one_disturbed_round_does_not_decide():
    before = [1.0, 1.01, 0.99, 1.0, 1.02, 1.0, 0.98, 1.0]
    disturbed = [*before[:-1], 9.0]
    assert compare(disturbed, [b / 1.2 for b in before]).ratio == pytest.approx(1.2, rel=0.02)
    assert not compare(disturbed, before).faster


def test_noise_is_seldom_called_faster():
    """On a machine with bursts, at most 2.5 % of equal contenders are called faster."""
    rng = np.random.default_rng(0)
    noise = np.exp(rng.normal(0, 0.1, (4000, 2, 8)) + 0.7 * (rng.random((4000, 2, 8)) < 0.1))
    assert np.mean([compare(one, other).faster for one, other in noise]) < 0.03


def test_who_begins_changes():
    log = []
    contenders = [Contender(Fake(name, lambda step: 1.0, log)) for name in "ab"]
    for contender in contenders:
        contender.start()
        contender.warm(1.0)
    log.clear()
    rounds = Rounds(*contenders)
    for _ in range(3):
        rounds.round()
    assert "".join(log) == "abbaab"
    assert rounds.done == 3


def test_turns_are_about_as_long_for_all():
    slow, quick = (Contender(Fake(name, lambda step, s=s: s)) for name, s in (("slow", 0.5), ("quick", 0.01)))
    for contender in (slow, quick):
        contender.start()
    rounds = Rounds(slow, quick, seconds=1.5)
    rounds.until(deadline=0.0)
    assert rounds.done == LEAST
    assert (slow.count, quick.count) == (3, 150)
    assert rounds.times[SAMPLE].faster.ratio == pytest.approx(50)
    assert slow.samples == 4 * len(slow.losses) == 4 * slow.trial.done


def test_a_round_that_fails_is_left_out_for_all():
    steady, failing = Contender(Fake("a", lambda step: 1.0)), Contender(Fake("b", lambda step: 1.0, fails_at=6))
    for contender in (steady, failing):
        contender.start()
    rounds = Rounds(steady, failing)
    with pytest.raises(TrialFailed):
        rounds.until(deadline=0.0)
    assert len(rounds.times[SAMPLE].base) == len(rounds.times[SAMPLE].rival) == rounds.done
    assert steady.trial.alive


def test_those_that_do_not_fit_together_are_never_alive_together(monkeypatch):
    log = []
    fakes = [Fake(name, lambda step: 1.0, log) for name in "ab"]
    rounds = Rounds(*(Contender(fake) for fake in fakes), apart=True)
    begin = Fake.steps

    def alone(fake, count):
        assert [f.name for f in fakes if f.alive] == [fake.name]
        return begin(fake, count)

    monkeypatch.setattr(Fake, "steps", alone)
    rounds.until(deadline=0.0, least=2)
    assert [fake.starts for fake in fakes] == [2, 2]


def test_losses_are_those_since_the_start():
    contender = Contender(Fake("a", lambda step: 1.0))
    contender.start()
    contender.warm(1.0)
    assert contender.losses == pytest.approx([1.0, *(1 / (n + 1) for n in range(1, contender.trial.done))])
    contender.start()
    assert contender.losses == [1.0]


def test_spread():
    assert spread([3.0]).median == 3.0
    found = spread(list(range(1, 10)))
    assert (found.low, found.median, found.high) == (3, 5, 7)
