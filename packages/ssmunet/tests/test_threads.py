"""Pixels shared among threads: the same results in order, and no thread that waits for itself."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from runner_ssmunet.filters import BandFilters
from runner_ssmunet.spectral import SpectralStack
from runner_ssmunet.threads import shared


@pytest.fixture
def threads():
    """Sets PyTorch's threads; as they were afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_shares_are_contiguous_in_order_and_each_in_a_thread_of_its_own(threads):
    threads(3)

    def work(share):
        return list(share), threading.get_ident(), torch.get_num_threads()

    found = shared(range(8), work)
    assert [share for share, _, _ in found] == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert threading.get_ident() not in {own for _, own, _ in found}
    assert {inner for _, _, inner in found} == {1}
    assert torch.get_num_threads() == 3


def test_the_callers_thread_does_what_is_not_worth_sharing(threads):
    threads(3)
    assert shared(range(1), lambda share: threading.get_ident()) == [threading.get_ident()]
    assert shared(range(0), len) == [0]
    threads(1)
    assert shared(range(8), len) == [8]


def test_what_shares_within_a_share_does_not_wait_for_its_own_thread(threads):
    threads(2)
    assert shared(range(4), lambda outer: shared(outer, list)) == [[[0, 1]], [[2, 3]]]


def test_an_error_in_a_share_reaches_the_caller(threads):
    threads(2)
    with pytest.raises(ZeroDivisionError):
        shared(range(2), lambda share: 1 // share[0])


def test_a_forked_process_has_threads_of_its_own(threads):
    threads(2)
    shared(range(2), len)
    read, write = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover
        try:
            os.write(write, bytes(shared(range(4), len)))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 2) == bytes([2, 2])


def test_spectral_stack_does_not_depend_on_threads(threads):
    torch.manual_seed(0)
    stack = SpectralStack(BandFilters(torch.linspace(900, 1800, 40).tolist(), [1655.0, 1240.0, 1080.0]), 1, 4, 0.0, 5)
    spectra = torch.randn(33, 40)

    def learned(count):
        threads(count)
        own = spectra.clone().requires_grad_()
        features = stack(own)
        return features.detach(), *torch.autograd.grad(features.square().sum(), [own, *stack.parameters()])

    alone, together, again = learned(1), learned(3), learned(3)
    for one, three, twice in zip(alone, together, again, strict=True):
        torch.testing.assert_close(one, three, rtol=1e-5, atol=1e-5 * float(one.abs().max()))
        assert torch.equal(three, twice)
    with torch.no_grad():
        assert torch.equal(stack(spectra), alone[0])
        assert not stack(spectra).requires_grad
