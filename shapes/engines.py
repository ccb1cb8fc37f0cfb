"""What serving and training engines do with a model's shapes: load, pad, copy, fall back or refuse.

One file an engine, every fact with the file of the engine's public repository that it was read in. ``sizer deploy``
evaluates them; nothing here knows an engine by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from shapes.frozen import frozen
from shapes.toml_table import Table, load, named

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


def load_engine(name: str) -> Engine:
    """The engine's file; InputError lists the known names."""
    return load(named("engines", name, "engine", ENGINES), _engine)


def _engine(data: Mapping[str, Any], where: str) -> Engine:
    top = Table(data, where)
    facts = tuple(_fact(table, top.text("repository")) for table in top.tables("facts"))
    return top.record(Engine, formats=_formats(top), facts=facts)


def _fact(table: Table, repository: str) -> Fact:
    source = table.text("source")
    return table.record(
        Fact,
        check=table.choice("check", get_args(Check)),
        otherwise=table.choice("otherwise", get_args(Verdict)),
        source=source if source.startswith("http") else f"{repository}/{source}",
        formats=_formats(table),
    )


def _formats(table: Table) -> tuple[str, ...]:
    found = table.texts("formats") or FORMATS
    for one in found:
        if one not in FORMATS:
            raise table.fail("formats", f"expected some of {', '.join(FORMATS)}")
    return found
