"""What every test needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported: pytest's workers share the cores, and threads that spin for each other's cores make kernels
# of microseconds take milliseconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says how busy the machine is: no deadline, and no health check that is one.
settings.register_profile("sizer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sizer")

# A workflow of GitHub's has another default format.
os.environ.pop("GITHUB_ACTIONS", None)

#: A line of a file whose tests are all slow.
SLOW_FILE = "\npytestmark = pytest.mark.slow\n"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The fast loop does not import what it leaves out whole: torch's tools take longer than most tests."""
    if config.option.markexpr == "not slow" and collection_path.suffix == ".py":
        return SLOW_FILE in collection_path.read_text(encoding="utf-8") or None
    return None
