"""Hyperspectral infrared tissue segmentation, as a project for runner."""
