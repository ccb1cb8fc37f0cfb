"""Whether there is an accelerator to measure on, asked without loading torch where there cannot be one."""

from __future__ import annotations

import os

#: Device files of NVIDIA's and AMD's drivers.
DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd")


def accelerator_here() -> bool:
    """Whether torch is installed and sees an accelerator."""
    if not any(os.path.exists(path) for path in DRIVERS):
        return False
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())
