"""What every test needs."""

from __future__ import annotations

import os

# Before torch is imported: pytest's workers share the cores, and threads that spin for each other's cores make kernels
# of microseconds take milliseconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")
