"""GPU cases of openkbp besides its preset."""

from benchmarks.gpucase import Case

CASES = [
    Case("openkbp", "batch 4", {"train.batch_size": 4}),
    Case("openkbp", "recomputed activations", {"model.recompute": True}),
]
