"""Measurable work: operators as a model runs them, memory-bound kernels with their shapes, parts of a model.

A ``Job`` is one of these and the kernel to run it with; its ``key`` names it in the store for good, so nothing that
does not change the work (an operator's name, how often a model runs it) is in it.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

from shapes.dtypes import BYTES
from shapes.frozen import Named, Values, frozen, replace, without
from shapes.model import Block, MlpShape, ModelShape, Stack
from shapes.operators.types import Attention, Collective, Elementwise, Gemm, GroupedGemm
from shapes.toml_table import DATA, content
from shapes.workload import Workload

PartName = Literal["mlp", "self_attention", "layer", "head"]
Direction = Literal["forward", "forward+backward", "dgrad", "wgrad"]

#: Kernels of experts; "" is the first.
EXPERTS = ("grouped_mm", "loop")
#: Kernels of attention.
ATTENTION = content(DATA / "timing.toml")["attention"]
#: Names and sizes of kinds of work in progress bars and tables; an operator's fields that do not change its timing.
ROWS = content(DATA / "rows.toml")


@frozen
class MemoryBound:
    """A memory-bound kernel over ``rows`` x ``columns`` elements (tokens x hidden, tokens x vocabulary).

    ``what``: norm (RMSNorm), layer_norm, softmax, cross_entropy, activation (silu(gate) * up), residual.
    ``phase="dgrad"`` is its backward.
    """

    what: str
    rows: int
    columns: int
    phase: Literal["forward", "dgrad"] = "forward"
    dtype: str = "bf16"
    kind: Literal["memory_bound"] = "memory_bound"
    flops: ClassVar[int] = 0

    @property
    def bytes(self) -> int:
        """Least bytes moved: inputs read once, outputs written once."""
        inputs, outputs = ROWS["tensors"].get(self.what, (1, 1))
        moved: int = inputs + outputs if self.phase == "forward" else 2 * inputs + outputs
        return moved * self.rows * self.columns * BYTES[self.dtype]


@frozen
class Part:
    """A part of ``model`` run on ``workload``: MLP, attention with projections, a layer, or last norm, head and loss.

    The main stack's first block is the one that is built. ``direction`` "forward+backward" also makes every gradient;
    "dgrad" and "wgrad" are gradients of the input and of the weights alone, of a forward that ran before.
    ``compiled``: through torch.compile.
    """

    part: PartName
    model: ModelShape
    workload: Workload
    direction: Direction = "forward+backward"
    compiled: bool = False
    kind: Literal["part"] = "part"

    @property
    def block(self) -> Block:
        return self.model.main.blocks[0]

    @property
    def flops(self) -> int:
        """FLOPs of the matrix products (2 a parameter and token forward, 4 backward) and of attention's full square.

        In "dgrad" and "wgrad" those of that phase's products.
        """
        from shapes.operators import operators

        one_layer = ModelShape(
            self.model.model_type,
            (Stack("main", self.model.hidden, (replace(self.block, count=1),)),),
            self.model.vocab,
            head=self.model.vocab > 0,
        )
        workload = replace(self.workload, phase="train", checkpointing="none", p=1, d=1, zero=0)
        return sum(
            one.flops * one.count
            for one in operators(one_layer, workload)
            if ROWS["parts"][self.part] in one.name and self.direction in ("forward+backward", one.phase)
        )


#: The work that a job times.
Work = Gemm | GroupedGemm | Attention | Elementwise | Collective | MemoryBound | Part


def swiglu(tokens: int, hidden: int, width: int, *, dtype: str = "bf16", gated: bool = True, **more: Any) -> Part:
    """The MLP of ``width`` d_ff over ``hidden``: gate, up, activation, down for ``tokens`` rows; ``more`` of a Part."""
    block = Block(None, MlpShape(width, gated), norms=0)
    model = ModelShape("mlp", (Stack("main", hidden, (block,), final_norm=0),), head=False)
    return Part("mlp", model, Workload(1, tokens, dtype), **more)


def head(tokens: int, hidden: int, vocab: int, *, dtype: str = "bf16", **more: Any) -> Part:
    """The last norm, the head of ``vocab`` words and the loss over ``tokens`` rows; ``more`` of a Part."""
    model = ModelShape("head", (Stack("main", hidden, (Block(None, None, norms=0),)),), vocab)
    return Part("head", model, Workload(1, tokens, dtype), **more)


@dataclass(frozen=True)  # no slots: the key is kept
class Job:
    """One thing to measure. ``kernel``: which implementation ("" is the default: what the framework would choose).

    Attention: flash, cudnn, efficient, math, flash_attn. Grouped GEMM: grouped_mm, loop. fp8 GEMM: fast_accum,
    precise_accum. Jobs of a smaller ``priority`` come first when time is short. ``label`` is for people (a suite's
    sweep) and no part of the key.
    """

    work: Work
    kernel: str = ""
    priority: int = 0
    label: str = ""

    @cached_property
    def key(self) -> str:
        """`key_of` the description, kept: making it takes as long as timing a small kernel."""
        return key_of(self.describe())

    def describe(self) -> Values:
        """Flat fields: kind, phase, dtype, kernel and the sizes, without what does not change the work."""
        work = self.work
        if isinstance(work, Part):
            out = _describe_part(work)
        else:
            out = without(asdict(work), ROWS["untimed"])
            if out.get("weight_bytes", 0) is None:
                del out["weight_bytes"]
        if isinstance(work, Elementwise):
            out["name"] = work.name
        return {**out, "kernel": self.kernel}

    @property
    def title(self) -> str:
        """A short name for progress bars and tables."""
        work = self.work
        known = ROWS["titles"].get(work.kind, "{0.kind} {0.name}").format
        return f"{_part_title(work) if isinstance(work, Part) else known(work)} {self.kernel}".rstrip()


def key_of(description: Named) -> str:
    """The store's key: one line of JSON, the same for the same work in every process and year."""
    return json.dumps(description, sort_keys=True, separators=(",", ":"))


def by_key(jobs: Iterable[Job]) -> dict[str, Job]:
    """Equal work once, in the order first asked for; of its priorities the one most wanted."""
    once = dict[str, Job]()
    for job in jobs:
        if job.key not in once or job.priority < once[job.key].priority:
            once[job.key] = job
    return once


def _part_title(part: Part) -> str:
    """The title that tells one part of a table from the next: "layer h=2560 a=20 d_ff=10240 tokens=8192 bf16"."""
    block, head = part.block, part.part == "head"
    sizes = {
        "h": part.model.hidden,
        "v": part.model.vocab if head else None,
        "a": None if head or part.part == "mlp" else getattr(block.attention, "heads", None),
        "d_ff": None if head or part.part == "self_attention" else getattr(block.mlp, "width", None),
        "tokens": part.workload.tokens,
    }
    known = (f"{name}={size}" for name, size in sizes.items() if size)
    words = part.part, *known, part.workload.dtype, part.direction
    return " ".join([*words, "compiled"] if part.compiled else words)


def _describe_part(part: Part) -> Values:
    model, workload = part.model, part.workload
    out = {
        "kind": part.part,
        "phase": part.direction,
        "dtype": workload.dtype,
        "compiled": part.compiled,
        "hidden": model.hidden,
        "b": workload.b,
        "s": workload.s,
    }
    if workload.low_precision:
        out["recipe"] = workload.low_precision.name
    if part.part == "head":
        return {**out, "vocab": model.vocab}
    block = asdict(replace(part.block, count=1))
    if part.part == "mlp":
        # An MLP sees rows, whatever their sequences.
        return {**out, "b": 1, "s": workload.tokens, "mlp": {"gated": block["mlp"].get("gated"), **block["mlp"]}}
    if part.part == "self_attention":
        return {**out, "attention": block["attention"], "attention_core": workload.attention}
    return {**out, "block": block, "attention_core": workload.attention}


def flat(description: Values) -> Values:
    """m, n, k, batch and layout of a description, for tables and calibration; None where there is none.

    MLP: m tokens, n d_ff, k hidden. Head: m tokens, n vocabulary, k hidden. Others: m tokens, k hidden.
    Memory-bound: m rows, n columns. Attention: m q_len, n kv_len, k head_dim, batch of sequences.
    """
    kind = description["kind"]
    m, n, k = map(description.get, ROWS["sizes"].get(kind, "mnk"))
    batch = description.get("batch", description.get("groups", 1))
    if kind in get_args(PartName):
        m, k, batch = description["b"] * description["s"], description["hidden"], 1
        mlp = description.get("mlp") or (description.get("block") or {}).get("mlp") or {}
        n = description.get("vocab") or mlp.get("width")
    return {"batch": batch, "m": m, "n": n, "k": k, "layout": description.get("layout")}
