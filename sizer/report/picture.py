"""A picture's file, by matplotlib: drawn whole before it replaces anything."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from shapes.errors import InputError
from shapes.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, path: str) -> None:
    """``figure`` as PNG, SVG or PDF by the ending of ``path`` (PNG without one)."""
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, format=Path(path).suffix.removeprefix(".") or "png")
    except ValueError as error:
        raise InputError(f"cannot be drawn: {error}", key="--plot", value=path) from None
    write_whole(path, drawn.getvalue())
