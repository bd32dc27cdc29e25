"""What two contenders have learned of as many samples, in steps of their own size."""

from __future__ import annotations

from collections.abc import Mapping

from runner_core.measure.agreement import Agreement, same_samples
from runner_core.measure.turns import Contender

Loss = Mapping[str, float]


def together(begun: Loss, best: Contender, rival: Contender, evaluated: int) -> Agreement:
    """Both are alive, and neither has seen more than its turns: who is behind catches up first. `begun`: what the best
    was evaluated to at its start; `evaluated`: samples of an evaluation."""
    for behind, ahead in ((best, rival), (rival, best)):
        assert behind.trial.ready is not None
        if steps := max(0, ahead.samples - behind.samples) // behind.trial.ready.batch:
            behind.take(steps)
    before, after = (contender.trial.evaluate(evaluated) for contender in (best, rival))
    return same_samples(begun, before, after, rival.samples)


def apart(best: Contender, rival: Contender, evaluated: int) -> Agreement:
    """There is room for one: each from its start, one after the other. Neither is alive afterwards."""
    samples = max(best.samples, rival.samples)
    found = []
    for contender in (best, rival):
        for other in (best, rival):
            other.trial.close()
        ready = contender.start()
        begun = contender.trial.evaluate(evaluated)
        contender.take(max(1, (samples - contender.samples) // ready.batch))
        found.append((begun, contender.trial.evaluate(evaluated)))
        contender.trial.close()
    (begun, before), (_, after) = found
    return same_samples(begun, before, after, samples)
