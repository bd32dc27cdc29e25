"""Rank labels by how much the networks that never saw them disagree."""
