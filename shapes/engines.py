"""How serving, training and fine-tuning engines take a model's shapes: load, pad, copy, fall back or refuse.

One file an engine, every fact with the file and the line of the engine's public repository that it was read in.
``sizer deploy`` evaluates them, ``reports/bench/engine_facts.py`` looks them up again in a clone; nothing here knows an
engine by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .dtypes import next_multiple
from .frozen import Named, Names, frozen
from .model import ModelShape
from .model.resize import Side, resize, sides
from .program import added
from .recipes import RECIPES, Recipe
from .toml_table import Table, load, named
from .workload import Workload

ENGINES = (
    "vllm",
    "tensorrt-llm",
    "sglang",
    "llama-cpp",
    "transformer-engine",
    "torchao",
    "megatron-core",
    "nemo",
    "torchtitan",
    "fsdp",
    "deepspeed",
    "maxtext",
    "peft",
    "bitsandbytes",
)
#: Uses of an engine.
USES = ("serving", "training", "fine-tuning")
#: Formats that weights are deployed in.
FORMATS = ("bf16", *RECIPES[1:], "int4")

#: Blocks larger than this need not divide the latent projection's outputs.
_LATENT_BLOCK = 32

#: How an engine takes a model, the best first. "unknown": no check was found in it, and its outcome was not seen.
Verdict = Literal["loads", "pads", "copies", "falls back", "unknown", "refused"]
#: ``divides``: a dimension over the ranks; ``shares``: it over them or they over it; ``enough``: no fewer than ranks;
#: ``one``: over the ranks, or a single one that each copies;
#: ``multiple``: each shard's features of every matrix; ``whole``: the model's; ``shards``: each rank's part of a
#: dimension; ``absent``: the model has no such dimension, or stack of layers ("decoder": one that reads an encoder), or
#: is of no such type;
#: ``generation``: the device's; ``unpacked``: releases in these formats are read into 16 bits.
Check = Literal["divides", "shares", "enough", "one", "multiple", "whole", "shards", "absent", "generation", "unpacked"]


@frozen
class Fact:
    """A requirement ``check`` on the dimensions ``of`` in these ``formats``, and the verdict ``otherwise``.

    ``multiple``: of elements. ``cut``: it holds only for sides that are cut over ranks or, where ``merged``, are one
    matrix with others. ``every``: experts lie over all ranks too. ``padded``: the dimension is first padded to this
    multiple. ``needs``: what the model has to have: "experts", "latent" attention or neither ("dense"). ``instead``:
    the outcome in words. ``quote``: the line of the source that says so ("": an issue or pull request says it).
    """

    topic: str
    check: Check
    otherwise: Verdict
    source: str
    instead: str = ""
    of: Names = ()
    formats: Names = FORMATS
    multiple: int = 1
    cut: bool = False
    merged: bool = True
    every: bool = False
    padded: int = 1
    needs: str = ""
    generations: Names = ()
    quote: str = ""


@frozen
class Engine:
    """``formats``: those that it runs. ``version``: the tag or commit that its files were read at, on the day ``read``.

    ``use``: of USES.
    """

    name: str
    title: str
    repository: str
    version: str
    read: str
    use: str
    formats: Names
    facts: tuple[Fact, ...]

    def unpacking(self, form: str) -> Fact | None:
        """What says that a release in ``form`` is read into 16 bits; None where it is run as it is, or not at all."""
        known = (one for one in self.facts if one.check == "unpacked" and form in one.formats)
        return None if form in self.formats else next(known, None)


def list_engines() -> Names:
    """Names of the engines that ship with the package, then of those that other distributions add."""
    return *ENGINES, *added("sizer.engines")


def load_engine(name: str) -> Engine:
    """The engine's file; InputError lists the known names."""
    own = added("sizer.engines").get(name)
    return load(Path(own) if own is not None else named("engines", name, "engine", list_engines()), _engine)


def scaled_by(side: Side, recipe: Recipe | None) -> int:
    """Elements of a block along a side; of a release, which was cut into blocks whole, where ranks cut it again."""
    if not recipe:
        return side.block if side.shards > 1 and side.whole % side.block == 0 else 1
    return max(recipe.alignment.features, recipe.alignment.per_shard)


def cut_blocks(model: ModelShape, workload: Workload) -> dict[str, Side]:
    """Dimension -> the first side of a matrix whose shard is not made of whole blocks."""
    found = dict[str, Side]()
    for side in sides(model, workload.t, workload.expert_t):
        step = scaled_by(side, workload.low_precision)
        # A latent projection's last block may be cut short.
        if side.features % step and not (side.dimension == "kv_lora_rank" and side.output and step > _LATENT_BLOCK):
            found.setdefault(side.dimension, side)
    return found


def padded_to(side: Side, name: str = "") -> int:
    """Features that the engine ``name`` ("": any) pads a shard to which cuts blocks of a release.

    0 where one that is known to take such shards, or not to, does not pad them.
    """
    said = {
        (fact.otherwise == "pads") * next_multiple(side.features, fact.multiple)
        for engine in map(load_engine, list_engines())
        for fact in engine.facts
        if name in ("", engine.name) and fact.check == "multiple" and side.dimension in fact.of
        if side.kept and side.kept.title.lower().startswith(fact.formats) and side.features % fact.multiple
    }
    return min(said, default=0) and max(said)


def as_run(model: ModelShape, workload: Workload, engine: str = "") -> ModelShape | None:
    """The model with the widths that ``engine`` ("": any) pads where ranks cut blocks of a release.

    None where it is not known to pad them.
    """
    for name, side in cut_blocks(model, workload).items():
        if not (features := padded_to(side, engine)):
            return None
        model = resize(model, **{name: side.shards * features})
    return model


def _engine(data: Named, where: str) -> Engine:
    top = Table(data, where)
    repository, version = top.text("repository"), top.text("version")
    facts = tuple(_fact(table, repository, version) for table in top.tables("facts"))
    return top.record(Engine, use=top.choice("use", USES), formats=_formats(top), facts=facts)


def _fact(table: Table, repository: str, version: str) -> Fact:
    source = table.text("source")
    if not source.startswith(("http", "blob/", "issues/", "pull/")):
        source = f"blob/{version}/{source}"
    return table.record(
        Fact, source=source if source.startswith("http") else f"{repository}/{source}", formats=_formats(table)
    )


def _formats(table: Table) -> Names:
    found = table.texts("formats") or FORMATS
    if {*found} - {*FORMATS}:
        raise table.fail("formats", f"expected some of {', '.join(FORMATS)}")
    return found
