"""Answers of a trial that is ready, for tests that start none."""

from __future__ import annotations

from runner_core.tools.measure.trial import Ready


def ready(**values) -> Ready:
    usual = {
        **{"engine": "torch", "device": "a processor", "kind": "cpu", "device_total": 0, "threads": 2, "block": 1},
        **{"precision": "float32", "cache": "memmap", "set_bytes": 1000, "batch": 4, "steps_per_epoch": 10, "lead": 1},
        **{"samples_per_epoch": 40, "parameters": 5, "seconds": 0.1, "first_step_seconds": 0.1, "loss": 1.0},
        **{"host_bytes": 1000, "device_bytes": 0, "sample": {"image": "24 × 24 float32"}},
    }
    return Ready(**{**usual, **values})
