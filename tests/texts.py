"""A configuration's text, read as a file of a name is."""

from pathlib import Path
from typing import Any

from sizer.readers import Reading, Source, read_config


def read_text(
    text: str,
    *,
    where: str,
    config_format: str | None = None,
    settings: dict[str, Any] | None = None,
    root: str | Path | None = None,
) -> Reading:
    """Read a configuration's text; ``where`` names it in errors."""
    return read_config(Source(where, settings or {}, text=text, root=root), config_format=config_format)
