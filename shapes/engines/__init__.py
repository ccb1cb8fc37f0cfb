"""What serving and training engines do with a model's shapes: load, pad, copy, fall back or refuse.

One file an engine, every fact with the file of the engine's public repository that it was read in. ``sizer deploy``
evaluates them; nothing here knows an engine by name.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast, get_args

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.toml_table import Table

FOLDER = Path(__file__).parent

ENGINES = ("vllm", "tensorrt-llm", "sglang", "transformer-engine", "torchao")
#: Formats that weights are deployed in.
FORMATS = ("bf16", "fp8", "fp8-block", "mxfp8", "nvfp4", "int8", "int4")
#: The same by the names of ``shapes.recipes``.
ALIASES = {"tensorwise": "fp8", "delayed": "fp8", "blockwise": "fp8-block"}

#: What an engine does, the best first. "unknown": no check was found, and what becomes of the model was not seen.
Verdict = Literal["loads", "pads", "copies", "falls back", "unknown", "refused"]
#: ``divides``: a dimension over the ranks; ``shares``: it over them or they over it; ``enough``: no fewer than ranks;
#: ``multiple``: each shard's features of every matrix; ``whole``: the model's; ``generation``: the device's.
Check = Literal["divides", "shares", "enough", "multiple", "whole", "generation"]


@frozen
class Fact:
    """What ``check`` asks of the dimensions ``of``, in these ``formats``, and what happens ``otherwise``.

    ``multiple``: of elements. ``cut``: asked only of sides that are cut over ranks or merged with others in one matrix.
    ``padded``: the dimension is first padded to this multiple. ``needs``: "experts", "latent" attention or neither
    ("dense") that the model has. ``instead``: what then happens, in words.
    """

    topic: str
    check: Check
    otherwise: Verdict
    source: str
    instead: str = ""
    of: tuple[str, ...] = ()
    formats: tuple[str, ...] = FORMATS
    multiple: int = 1
    cut: bool = False
    padded: int = 1
    needs: str = ""
    generations: tuple[str, ...] = ()


@frozen
class Engine:
    """``formats``: those that it runs. ``version``: what its files were read at."""

    name: str
    title: str
    repository: str
    version: str
    formats: tuple[str, ...]
    facts: tuple[Fact, ...]


@lru_cache(maxsize=16)
def load_engine(name: str) -> Engine:
    """The engine's file; InputError lists the known names."""
    if name not in ENGINES:
        raise InputError(f"expected one of {', '.join(ENGINES)}", key="engine", value=name)
    top = Table(tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")), f"{name}.toml")
    engine = Engine(
        name=top.text("name"),
        title=top.text("title"),
        repository=top.text("repository"),
        version=top.text("version"),
        formats=_formats(top),
        facts=tuple(_fact(table, top.text("repository")) for table in top.tables("facts")),
    )
    top.refuse_the_rest()
    return engine


def _fact(table: Table, repository: str) -> Fact:
    check, otherwise = table.text("check"), table.text("otherwise")
    for key, value, known in (("check", check, get_args(Check)), ("otherwise", otherwise, get_args(Verdict))):
        if value not in known:
            raise table.fail(key, f"expected one of {', '.join(known)}")
    source = table.text("source")
    fact = Fact(
        topic=table.text("topic"),
        check=cast(Check, check),
        otherwise=cast(Verdict, otherwise),
        source=source if source.startswith("http") else f"{repository}/{source}",
        instead=table.text("instead") if table.has("instead") else "",
        of=table.texts("of"),
        formats=_formats(table),
        multiple=table.integer("multiple") if table.has("multiple") else 1,
        cut=table.flag("cut") or False,
        padded=table.integer("padded") if table.has("padded") else 1,
        needs=table.text("needs") if table.has("needs") else "",
        generations=table.texts("generations"),
    )
    table.refuse_the_rest()
    return fact


def _formats(table: Table) -> tuple[str, ...]:
    found = table.texts("formats") or FORMATS
    for one in found:
        if one not in FORMATS:
            raise table.fail("formats", f"expected some of {', '.join(FORMATS)}")
    return found
