"""Models by name: a bundled table of released ones, the local Hugging Face cache, and what recipes name.

A name is ``organisation/name`` or the name alone, in any case. Nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shapes.errors import InputError, shorten
from sizer.readers.fields import table
from sizer.readers.loading import beside, load_text, parse_mapping
from sizer.readers.reading import NoModel, Reading
from sizer.readers.training import with_settings_of


def released(name: str) -> tuple[Mapping[str, Any], str]:
    """(the configuration of a model of this name, where it is from). InputError, with the nearest names, for none."""
    models = table("released")["models"]
    known = {_plain(one): one for one in models} | {_plain(one).rpartition("/")[2]: one for one in models}
    found = known.get(_plain(name))
    if found is not None:
        return models[found][
            "config"
        ], f"{found}, from the table ({table('released')['sources'][models[found]['source']]})"
    if (cached := _cached(name)) is not None:
        return {**parse_mapping(load_text(cached), str(cached)), **beside(cached)}, str(cached)
    litgpt = table("litgpt_models")["models"]
    if (settings := litgpt.get(_plain(name).rpartition("/")[2])) is not None:
        note = "sizes are litgpt's, whose embedding and head are two matrices: {:,} parameters less where they are tied"
        return {"norm_class_name": "LayerNorm", **settings}, note
    raise InputError(
        f"no such file, and no model of this name is known here{_nearest(name, {*known, *litgpt})}", where=name
    )


def _nearest(name: str, known: set[str]) -> str:
    from difflib import get_close_matches  # only an unknown name pays for it

    near = get_close_matches(_plain(name), known, n=3, cutoff=0.6)
    return f": nearest are {', '.join(near)}" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("/meta-llama-", "/llama-").removeprefix("meta-llama-")


def _cached(name: str) -> Path | None:
    """The config.json of the snapshot that the local cache calls main."""
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    folder = hub / f"models--{name.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text("utf-8").strip()
        path = folder / "snapshots" / revision / "config.json"
        return path if "/" not in revision and path.is_file() else None
    except (OSError, ValueError):
        return None


def read_recipe(
    row: Mapping[str, Any],
    config: Mapping[str, Any],
    where: str,
    read: Callable[[str], Reading],
    is_name: Callable[[str], bool],
) -> Reading:
    """The model that a recipe names, ``read`` by its name, with the workload of the keys that ``row`` lists.

    A recipe opens no file: a path in it is refused.
    """
    name = _at(config, row["model"])
    if not isinstance(name, str):
        raise InputError("expected a model's name", where=where, key=row["model"], value=name)
    try:
        if not is_name(name):
            raise InputError("a path is not followed")
        reading = read(name)
    except InputError as error:
        said = f"names a model ({row['model']} = {shorten(name)}): {error.expected}; give that model's config.json"
        raise NoModel(said, where=where) from None
    settings = {theirs: _at(config, ours) for ours, theirs in row["names"].items()}
    settings = {key: value for key, value in settings.items() if value not in (None, "auto")}
    note = f"of the recipe's keys {', '.join((row['model'], *row['names']))} are read, and no others"
    reading = replace(reading, source=where, keys={}, notes=(note, *reading.notes))
    return with_settings_of(reading, {"gradient_accumulation_steps": 1, **settings}, where)


def _at(config: Mapping[str, Any], key: str) -> Any:
    """The value under a dotted key; None where there is none."""
    first, _, rest = key.partition(".")
    value = config.get(first)
    return value if not rest else _at(value, rest) if isinstance(value, Mapping) else None
