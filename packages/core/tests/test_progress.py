"""How long a network's calls will take is said once, as soon as it can be known."""

from __future__ import annotations

import io

import pytest
from runner_core.base import progress
from runner_core.base.progress import Estimate, record_bar


@pytest.mark.parametrize(
    ("seconds_each", "calls", "said_at"),
    [(0.1, 1000, progress._CALLS_TO_TIME), (2.0, 1000, 4), (60.0, 3, 2), (0.1, 0, None), (0.1, 1, None)],
)
def test_the_first_call_does_not_count(monkeypatch, seconds_each, calls, said_at) -> None:
    clock, said = [0.0], []
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    estimate = Estimate(calls, lambda *found: said.append((number, *found)))

    def network(arrays: str) -> str:
        clock[0] += seconds_each if number > 1 else 100  # the first compiles
        return arrays.upper()

    timed = estimate.counting(network)
    for number in range(1, calls + 1):  # noqa: B007 - the closures read it
        assert timed("a") == "A"
    expected = [] if said_at is None else [(said_at, pytest.approx(calls * seconds_each), pytest.approx(seconds_each))]
    assert said == expected


def test_without_a_terminal_lines_say_the_time_left(monkeypatch) -> None:
    clock, said = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with record_bar("scoring", 8, io.StringIO(), said.append) as bar:
        for key in "abcdefgh":
            bar.begin(key)
            clock[0] += 6
            bar.done()
    assert said[0] == "scoring: 2 of 8, about 0:36 left"
    assert len(said) == 4
