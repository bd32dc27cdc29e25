"""The heartbeat of processes that train together: who is lost, and who is only slow."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from runner_core.base.errors import PeerLost
from runner_core.contract.team import Place
from runner_core.engines.heartbeat import Heartbeat, Lost, Member

PATIENCE = 1.0


class Memory:
    """A store within this process; `cut` blocks all who use it, as a network does whose link is down."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.cut = threading.Event()

    def set(self, key: str, value: str) -> None:
        self._pass()
        self.values[key] = value.encode()

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._pass()
        return [self.values[key] for key in keys]

    def _pass(self) -> None:
        while self.cut.is_set():
            time.sleep(0.01)


class Team:
    """Heartbeats of several processes, all in this one."""

    def __init__(self, count: int, patience: float = PATIENCE) -> None:
        self.store, self.ended = Memory(), dict[int, PeerLost]()
        here = Member.here()
        members = [replace(here, host=f"node{number}") for number in range(count)]
        self.beats = [
            Heartbeat(self.store, Place(n, count, n, count, ""), members, patience, lambda e, n=n: self._end(n, e))
            for n in range(count)
        ]
        for beat in self.beats:
            beat.start()

    def _end(self, number: int, error: PeerLost) -> None:
        self.ended[number] = error

    def close(self) -> None:
        for beat in self.beats:
            beat.close()

    def found(self, numbers: tuple[int, ...], seconds: float = 10.0) -> list[Lost]:
        """What these processes found, once all have."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(self.beats[n].found is None for n in numbers):
            time.sleep(0.02)
        found = [self.beats[n].found for n in numbers]
        assert all(found)
        return [one for one in found if one is not None]


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    monkeypatch.setattr("runner_core.engines.heartbeat._GRACE", 0.3)
    team = Team(3)
    yield team
    team.close()


def test_a_silent_process_is_named_by_all_others(three: Team) -> None:
    three.beats[1].close()  # its threads end: no heartbeat any more
    for lost in three.found((0, 2)):
        assert lost.numbers == (1,)
        assert "nothing was heard from process 1 (node1) of 3 for 1 s (train.patience_seconds)" in lost.text
    with pytest.raises(PeerLost, match="this training ends; each saved checkpoint is complete") as caught:
        three.beats[0].check()
    assert caught.value.exit_code == 75
    assert not caught.value.ended


def test_the_first_process_is_named_when_it_is_silent(three: Team) -> None:
    three.beats[0].close()
    assert {lost.numbers for lost in three.found((1, 2))} == {(0,)}


def test_without_the_store_each_side_names_the_other(three: Team) -> None:
    three.store.cut.set()
    first, second, third = three.found((0, 1, 2))
    assert (first.numbers, second.numbers, third.numbers) == ((1, 2), (0,), (0,))
    three.store.cut.clear()


def test_a_process_that_did_not_run_blames_nobody_for_it(three: Team) -> None:
    three.beats[1]._looked -= 18  # as after SIGSTOP and SIGCONT
    three.beats[1]._heard[0].at -= 18
    time.sleep(0.6)
    assert [beat.found for beat in three.beats] == [None] * 3, "the others are still there"
    three.store.cut.set()  # they have ended, and with them the store
    (lost,) = three.found((1,))
    assert lost.numbers == (0, 1)
    assert lost.text.startswith("process 1 (node1) of 3 did not run for 18 s, and nothing was heard from process 0 (")
    three.store.cut.clear()


def test_a_process_whose_main_thread_cannot_be_reached_is_ended(three: Team) -> None:
    three.beats[2].close()
    three.found((0, 1))
    until = time.monotonic() + 5
    while len(three.ended) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    assert {number: error.numbers for number, error in three.ended.items()} == {0: (2,), 1: (2,)}


def test_nobody_is_lost_while_one_takes_long_outside_of_steps() -> None:
    team = Team(3, patience=2.5)
    for beat, step in zip(team.beats, (3, 4, 4), strict=True):
        beat.step, beat.stepping = step, beat is not team.beats[0]  # the first saves a checkpoint
    time.sleep(4)
    team.close()
    assert [beat.found for beat in team.beats] == [None, None, None]


def test_a_process_that_stays_behind_in_a_step_is_named(three: Team) -> None:
    for beat, step in zip(three.beats, (4, 4, 3), strict=True):
        beat.step, beat.stepping = step, True
    for lost in three.found((0, 1, 2)):
        assert lost.numbers == (2,)
        assert "process 2 (node2) of 3 has not come to its next batch for 1 s" in lost.text


def test_all_that_hang_in_the_same_step_end(three: Team) -> None:
    for beat in three.beats:
        beat.step, beat.stepping = 4, True
    assert {lost.text for lost in three.found((0, 1, 2))} == {
        "no process has finished its step for 1 s (train.patience_seconds)"
    }


def test_steps_that_go_on_are_no_loss() -> None:
    team = Team(3, patience=2.5)
    until = time.monotonic() + 4
    while time.monotonic() < until:
        for beat in team.beats:
            beat.step, beat.stepping = beat.step + 1, True
        time.sleep(0.1)
    team.close()
    assert [beat.found for beat in team.beats] == [None, None, None]


def test_after_a_broken_connection_the_ended_process_is_named() -> None:
    """On this machine at once, from its number."""
    child = subprocess.Popen(["true"])
    child.wait()
    here = Member.here()
    ended = replace(here, host="node1", pid=child.pid)
    assert ended.has_ended() is True
    assert replace(here, pid=os.getppid()).has_ended() is False
    assert replace(ended, space="another machine").has_ended() is None
    beat = Heartbeat(Memory(), Place(0, 2, 0, 2, ""), [here, ended], 300, lambda error: None)
    error = beat.after_failure()
    beat.close()
    assert (error.numbers, error.ended) == ((1,), True)
    assert "process 1 (node1) of 2 ended, so this training ends" in str(error)


def test_a_process_ends_even_if_its_last_words_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from runner_core.engines.torch import team

    codes: list[int] = []
    never = threading.Event()
    monkeypatch.setattr(team, "_LAST_WORDS", 0.1)
    monkeypatch.setattr(os, "_exit", codes.append)
    one = object.__new__(team.TorchTeam)
    one.last_words(lambda error: codes.append(0) if never.wait(60) else None)
    one._end(PeerLost("gone"))
    assert codes == [75]
    never.set()
