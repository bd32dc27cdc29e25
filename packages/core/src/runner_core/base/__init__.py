"""Foundations of everything else: errors, texts, files, sizes, processes. Nothing here knows about training."""
