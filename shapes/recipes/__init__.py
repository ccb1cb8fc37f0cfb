"""Low-precision recipes: which products run in fewer bits, what quantising moves, and what shapes they take.

One sourced file a recipe; the names are Megatron-Core's and Transformer Engine's (``--fp8-recipe``).
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.toml_table import Table

FOLDER = Path(__file__).parent

RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8", "nvfp4", "int8")
#: The recipe that an element type alone stands for.
DEFAULT = {"fp8": "delayed", "mxfp8": "mxfp8", "nvfp4": "nvfp4", "int8": "int8"}


@frozen
class Alignment:
    """What dimensions must be multiples of, in elements.

    ``features`` (k and n), ``rows`` (tokens), ``per_shard``: a tensor-parallel shard's features, ``expert_rows``: each
    expert's rows, ``overlap``: of products that overlap with communication.
    """

    features: int
    rows: int
    per_shard: int
    expert_rows: int
    overlap: int
    otherwise: str
    source: str
    verified: bool


@frozen
class Recipe:
    """One recipe. ``products``: phases whose products run in ``dtype``, others in 16 bits; ``keeps``: layers that do.

    ``passes`` over a 16-bit tensor quantise it, writing ``bytes_per_element`` (scales included) for each layout in
    which it is read. ``generations``: of devices that have the kernels.
    """

    name: str
    title: str
    dtype: str
    generations: tuple[str, ...]
    products: tuple[str, ...]
    keeps: tuple[str, ...]
    passes: int
    bytes_per_element: float
    alignment: Alignment
    source: str
    verified: bool


@lru_cache(maxsize=16)
def load_recipe(name: str) -> Recipe:
    """The recipe's file; InputError lists the known names."""
    if name not in RECIPES:
        raise InputError(f"expected one of {', '.join(RECIPES)}", key="recipe", value=name)
    top = Table(tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")), f"{name}.toml")
    quantise, alignment = top.table("quantise"), top.table("alignment")

    def multiple(key: str) -> int:
        return alignment.integer(key) if alignment.has(key) else 1

    recipe = Recipe(
        name=top.text("name"),
        title=top.text("title"),
        dtype=top.text("dtype"),
        generations=top.texts("generations"),
        products=top.texts("products"),
        keeps=top.texts("keeps"),
        passes=quantise.integer("passes"),
        bytes_per_element=quantise.number("bytes_per_element"),
        alignment=Alignment(
            features=multiple("features"),
            rows=multiple("rows"),
            per_shard=multiple("per_shard"),
            expert_rows=multiple("expert_rows"),
            overlap=multiple("overlap"),
            otherwise=alignment.text("otherwise"),
            source=alignment.text("source"),
            verified=alignment.flag("verified") or False,
        ),
        source=quantise.text("source"),
        verified=quantise.flag("verified") or False,
    )
    for table in (top, quantise, alignment):
        table.refuse_the_rest()
    return recipe
