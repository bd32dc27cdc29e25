"""Types behind the hooks: the interfaces between the core, its plugins and the engines.

Nothing here imports a framework: `Tensors` maps names to the engine's own tensors (torch or Keras), `Arrays` maps names
to NumPy arrays on the host.
"""

from runner_core.contract.data import (
    Box,
    Cache,
    CachePlan,
    Cropped,
    Cropper,
    Pipeline,
    Samples,
    SampleSpec,
    Store,
    StoredArray,
    Streamed,
    StreamedSamples,
    is_streamed,
)
from runner_core.contract.run import (
    LEFT_OUT,
    CheckpointFormat,
    Device,
    Divisible,
    Finding,
    HealthEvent,
    HealthRule,
    Metric,
    Precision,
    Remedy,
    Sink,
    State,
    added,
)
from runner_core.contract.setup import Engine, Trained, Trainer
from runner_core.contract.values import Array, Arrays, HostBatch, Infer, Json, Progress, Scalar, Step, Tensors

__all__ = [
    "LEFT_OUT",
    "Array",
    "Arrays",
    "Box",
    "Cache",
    "CachePlan",
    "CheckpointFormat",
    "Cropped",
    "Cropper",
    "Device",
    "Divisible",
    "Engine",
    "Finding",
    "HealthEvent",
    "HealthRule",
    "HostBatch",
    "Infer",
    "Json",
    "Metric",
    "Pipeline",
    "Precision",
    "Progress",
    "Remedy",
    "SampleSpec",
    "Samples",
    "Scalar",
    "Sink",
    "State",
    "Step",
    "Store",
    "StoredArray",
    "Streamed",
    "StreamedSamples",
    "Tensors",
    "Trained",
    "Trainer",
    "added",
    "is_streamed",
]
