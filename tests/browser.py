"""Debian's Chromium, headless, driven by playwright's client: nothing is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]


def missing() -> str | None:
    """Why there is no browser here; None where there is one."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright's client is not installed"
    return None if os.path.exists(CHROMIUM) else "Chromium is not installed (apt-get install chromium)"


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()
