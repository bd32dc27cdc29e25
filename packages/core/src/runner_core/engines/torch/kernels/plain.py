"""PyTorch's own plain kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Compute by PyTorch's own plain kernels inside this context."""
    cudnn = torch.backends.cudnn
    precision_before, tf32 = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    onednn = torch._C._get_mkldnn_enabled()
    torch.set_float32_matmul_precision("highest")
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns of Intel's GPUs
    try:
        with (
            cudnn.flags(enabled=False, benchmark=False, deterministic=True, allow_tf32=False),
            sdpa_kernel(SDPBackend.MATH),
            torch.compiler.set_stance("force_eager"),
        ):
            yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        torch.set_float32_matmul_precision(precision_before)
        cudnn.allow_tf32 = tf32
