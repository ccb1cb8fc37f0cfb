"""A calibration as text: each error on what was held out."""

from __future__ import annotations

from shapes.calibrate import Calibration
from sizer.render.page import Page


def render(result: Calibration, page: Page) -> str:
    lines = []
    for name, error in result.error.items():
        text = ", ".join(f"{k} {v:.1%}" for k, v in error.items()) if isinstance(error, dict) else f"{error:.1%}"
        lines.append(f"{name:>20}  {text}")
    return "\n".join(lines)
