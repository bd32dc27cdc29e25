"""The PyTorch engine."""

from runner_core.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine"]
