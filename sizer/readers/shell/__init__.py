"""Bash scripts read without running them: their own assignments are expanded, commands and tests are only looked at."""

from __future__ import annotations

from sizer.readers.shell.expand import unknown_in
from sizer.readers.shell.follow import Script, follow

__all__ = ["Script", "follow", "unknown_in"]
