"""What kernels are built for: facts of others' code, one sourced file each."""

from shapes.kernels.attention import CHOICES, KERNELS, Earlier, Kernel, Run, Takes, load_kernel, resolve, run_of

__all__ = ["CHOICES", "KERNELS", "Earlier", "Kernel", "Run", "Takes", "load_kernel", "resolve", "run_of"]
