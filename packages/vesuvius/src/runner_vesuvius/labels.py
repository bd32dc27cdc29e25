"""What the voxels of a label mean."""

BACKGROUND, SURFACE, IGNORE = 0, 1, 2
"""What is ignored is not annotated: it may be surface or not."""
