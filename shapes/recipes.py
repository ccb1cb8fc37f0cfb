"""Low-precision recipes: which products run in fewer bits, what quantising moves, and what shapes they take.

One sourced file a recipe; the names are Megatron-Core's and Transformer Engine's (``--fp8-recipe``).
"""

from __future__ import annotations

from functools import cache
from math import ceil

from .dtypes import BYTES, QUANTISED
from .frozen import Named, Names, frozen
from .toml_table import Table, load, named

RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8", "mxfp4", "nvfp4", "int8")
#: The recipe of an element type alone.
DEFAULT = {one: one for one in QUANTISED} | {"fp8": "delayed"}


@frozen
class Alignment:
    """Multiples that dimensions must be, in elements.

    ``features`` (k and n), ``rows`` (tokens), ``per_shard``: a tensor-parallel shard's features, ``expert_rows``: each
    expert's rows, ``overlap``: of products that overlap with communication.
    """

    otherwise: str
    source: str
    features: int = 1
    rows: int = 1
    per_shard: int = 1
    expert_rows: int = 1
    overlap: int = 1
    verified: bool = False


@frozen
class Quantise:
    """``passes`` over a 16-bit tensor quantise it.

    They write ``bytes_per_element`` (scales included) for each layout in which it is read.
    """

    passes: int
    bytes_per_element: float
    source: str
    verified: bool = False


@frozen
class Recipe:
    """One recipe. ``products``: phases whose products run in ``dtype``, others in 16 bits; ``keeps``: layers that do.

    ``generations``: of devices that have the kernels; ``either_layout``: of those whose products read an operand in
    either layout, so that no transposed copy of a weight is kept. ``gathered``: bytes an element of the tokens that
    data-parallel ranks gather for experts, quantised before or, in 16 bits, after.
    """

    name: str
    title: str
    dtype: str
    generations: Names
    products: Names
    keeps: Names
    quantise: Quantise
    alignment: Alignment
    either_layout: Names = ()
    gathered: float = 2.0


@cache
def load_recipe(name: str) -> Recipe:
    """The recipe's file; InputError lists the known names."""
    return load(named("recipes", name, "recipe", RECIPES), _recipe)


def _recipe(data: Named, where: str) -> Recipe:
    return Table(data, where).record(Recipe)


@frozen
class WeightFormat:
    """How a quantised release keeps a matrix: bits an element, scales of blocks, and what its products run in.

    ``block``: rows and columns of a matrix [out, in] that share ``scale_bits``, of scale and zero point (0: all).

    ``recipe``: in which the products run; None: weights alone are quantised, activations and
    arithmetic keep the workload's element type.
    """

    title: str
    bits: int
    block: tuple[int, int]
    scale_bits: float
    recipe: str | None = None

    def stored_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix of ``rows`` x ``columns`` with its scales."""
        down, across = (-(-size // (part or size)) for size, part in zip((rows, columns), self.block, strict=True))
        return ceil((rows * columns * self.bits + down * across * self.scale_bits) / 8)

    def read_bytes(self, rows: int, columns: int) -> float | None:
        """Bytes an element that a product reads; None where that is its element type's, or hardly more."""
        if self.recipe is not None and self.bits == 8 * BYTES[load_recipe(self.recipe).dtype]:
            return None
        return self.stored_bytes(rows, columns) / (rows * columns)
