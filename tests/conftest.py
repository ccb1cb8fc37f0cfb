"""What every test needs."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported: pytest's workers share the cores, and threads that spin for each other's cores make kernels
# of microseconds take milliseconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says how busy the machine is: no deadline, and no health check that is one.
settings.register_profile("sizer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("sizer"), max_examples=20)

# A workflow of GitHub's has another default format.
os.environ.pop("GITHUB_ACTIONS", None)

#: What pytest -m is given in the fast loop, where hypothesis draws fewer examples.
FAST = "not slow"
#: A line of a file whose tests are all slow.
SLOW_FILE = "\npytestmark = pytest.mark.slow\n"


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("fast" if config.option.markexpr == FAST else "sizer")
    # Neighbours go to one worker, so that what they share is made once, and none waits for another's last.
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "worksteal"
    # Each worker's own: the user's store is no place for what tests measure, and one process at a time has it.
    folder = TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    os.environ["SIZER_STORE"] = str(Path(folder.name) / "measurements.db")
    if os.environ.get("SIZER_SHIM"):
        import cuda_shim

        held = ExitStack()
        held.enter_context(cuda_shim.installed())
        config.add_cleanup(held.close)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Looking for garbage among all modules and tests, over and over, is a twentieth of a run: as the program does."""
    gc.freeze()
    gc.set_threshold(100_000)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Whatever leaves slow tests out leaves out exhaustive ones."""
    if item.get_closest_marker("exhaustive"):
        item.add_marker(pytest.mark.slow)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The fast loop does not import what it leaves out whole: torch's tools take longer than most tests."""
    if config.option.markexpr == FAST and collection_path.suffix == ".py":
        return SLOW_FILE in collection_path.read_text(encoding="utf-8") or None
    return None


@pytest.fixture
def fewer_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of a tenth of the pairs, in half as many rounds: these tables are of a few thousand products."""
    for name, value in (("PAIRS", 60_000), ("NEAR_PAIRS", 15_000), ("ROUNDS", 30), ("QUIET", 1)):
        monkeypatch.setattr(f"fit.correction.{name}", value)


@pytest.fixture(scope="session", autouse=True)
def small_cache() -> Iterator[None]:
    """A small cache means few input sets, and little to flush: what tests time does not matter.

    Some processors have 300 MiB. Of them a product of 8 rows is flushed 600 MiB, over and over.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shapes.measure.backend.cpu_cache_bytes", lambda: 2**14)
        yield
