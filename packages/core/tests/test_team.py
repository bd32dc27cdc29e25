"""The team of processes that meet without PyTorch: what they tell each other, and who is missed."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from runner_core.base.errors import PeerLost
from runner_core.contract.team import Place

pytest.importorskip("grpc", reason="grpcio is not installed (extra keras)")

from runner_core.engines.team import GrpcTeam


def _places(count: int) -> list[Place]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    return [Place(number, count, number, count, address) for number in range(count)]


def _member(place: Place) -> list[Any]:
    """What one of the processes hears; a thread stands for it."""
    team = GrpcTeam(place, 20, lambda error: False)
    own = {"x": np.full((place.number, 2), place.number, np.float32), "y": np.array(place.number)}
    aside = team.aside()
    heard = [team.every({"n": place.number}), team.share(["first", place.number])]
    heard += [[{n: a.tolist() for n, a in arrays.items()} for arrays in team.every_arrays(own)]]
    heard += [[team.noticed(number) for number in (place.number, 7 - place.number, 0)]]
    heard += [aside.every(10 * place.number), [team.every(turn)[-1] for turn in range(50)][-1]]
    heard += [len(set(team.addresses)), team.speaks()]
    team.leave()
    return heard


def test_all_hear_the_same() -> None:
    count = 3
    with ThreadPoolExecutor(count) as pool:
        heard = list(pool.map(_member, _places(count)))
    assert sorted(one.pop() for one in heard) == [False, False, True], "one speaks"
    assert heard[0] == heard[1] == heard[2]
    every, shared, arrays, noticed, aside, last, addresses = heard[0]
    assert every == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert shared == ["first", 0]
    assert arrays == [{"x": [[n, n]] * n, "y": n} for n in range(count)]
    assert noticed == [0, 2, 7], "of the call before"
    assert (aside, last, addresses) == ([0, 10, 20], 49, 3)


def test_who_does_not_come_is_named() -> None:
    first, second, _ = _places(3)

    def meet(place: Place) -> GrpcTeam:
        return GrpcTeam(place, 1, lambda error: False)

    with ThreadPoolExecutor(2) as pool:
        for met in [pool.submit(meet, first), pool.submit(meet, second)]:
            with pytest.raises(PeerLost, match=r"1 of 3 processes did not come within 1 s .*: process 2"):
                met.result()
    with pytest.raises(PeerLost, match=r"process 1 of 3 on .* could not meet the others at tcp://127.0.0.1:\d+ within"):
        meet(_places(3)[1])
