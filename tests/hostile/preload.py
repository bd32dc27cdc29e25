"""Imports what the commands import, before they are forked: readers, engines, scores."""

from importlib import import_module

from runner_core import tensorboard_without_tensorflow

tensorboard_without_tensorflow()  # TensorFlow cannot be forked
for name in (
    "monai.metrics", "torchvision", "zarr", "tifffile", "nibabel", "scipy.io", "h5py", "spectral", "agilent_format",
    "brukeropus.file", "pyarrow.parquet", "PIL.PngImagePlugin", "runner_core.cli.check", "runner_core.tools.check",
    "runner_ssmunet.project", "runner_brainunet.project", "runner_vesuvius.project", "runner_dinocell.project",
    "runner_openkbp.csvfiles",
):  # fmt: skip
    import_module(name)
