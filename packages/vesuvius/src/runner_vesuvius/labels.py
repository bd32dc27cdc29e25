"""Values of the voxels of a label."""

BACKGROUND, SURFACE, IGNORE = 0, 1, 2
"""An ignored voxel is not annotated: it may be surface or not."""
