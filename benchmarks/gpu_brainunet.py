"""GPU cases of brainunet besides its preset."""

from benchmarks.gpucase import Case

CASES = [
    Case("brainunet", "batch 128", {"train.batch_size": 128}),
    Case("brainunet", "cache on the device", {"cache.mode": "device"}),
    Case("brainunet", "preset light", preset="light"),
]
