"""Bring records into batches: pipeline, crops, splits, samples, loader, cache, streams."""
