"""Fused attention kernels: which head dimensions each is built for, by generation, and what runs where it refuses.

One sourced file a kernel, ``data/kernels/<name>.toml``; ``data/usual-kernels.toml`` says which of them a device's usual
stack runs. Facts only: what they cost is fitted (``data/attention/<name>.toml``) and priced by
shapes.cost.fused_attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from .dtypes import next_multiple
from .errors import InputError, one_of
from .frozen import Named, Names, frozen, replace
from .toml_table import DATA, Table, content, load, named

#: Kernels by the names that ``--attention`` takes; "flash" is what "auto" was called first.
KERNELS = ("fa2", "fa3", "fa4", "cudnn", "flashinfer", "sdpa", "mem_efficient", "fused_sdpa", "eager")
CHOICES = ("auto", "flash", *KERNELS)


@frozen
class Takes:
    """Shapes that a kernel accepts on some generations, in some element types. Empty or None: no condition is known.

    ``training``: holds where a backward follows (True), where none does (False), or either way (None).
    ``built``: head dimensions that it is compiled for; another one is padded up to the next, or refused if ``exact``.
    ``multiple``: what both dimensions must be multiples of; ``copies``: others are padded there with a copy of Q, K, V.
    ``largest`` bounds both dimensions; ``pairs`` (d_qk, d_v) are taken too, as they are.
    """

    source: str
    generations: Names = ()
    dtypes: Names = ()
    training: bool | None = None
    built: tuple[int, ...] = ()
    exact: bool = False
    multiple: int = 1
    copies: bool = False
    largest: int | None = None
    pairs: tuple[tuple[int, int], ...] = ()
    verified: bool = False

    def run(self, kernel: str, d_qk: int, d_v: int) -> Run | str:
        """How ``kernel`` runs these head dimensions, or why it does not take them."""
        qk, v, copied = d_qk, d_v, None
        if (d_qk, d_v) not in self.pairs:
            aligned = next_multiple(max(d_qk, d_v), self.multiple)
            copied = aligned if d_qk % self.multiple or d_v % self.multiple else None
            if reason := self._refusal(aligned, copied):
                return reason
            # A kernel without a list of dimensions takes each one, padded to its multiple.
            qk, v = next_multiple(d_qk, self.multiple), next_multiple(d_v, self.multiple)
            if self.built:
                qk = v = next((built for built in self.built if built >= aligned), aligned)
        return Run(kernel, qk, v, copied, (), self.built, self.source, self.verified)

    def _refusal(self, aligned: int, copied: int | None) -> str:
        pairs = ", ".join(f"({qk}, {v})" for qk, v in self.pairs)
        training = " in training" * bool(self.training)
        if self.largest is None:
            if pairs:
                return f"takes only {pairs}{training}"
        elif aligned > self.largest:
            return f"takes head dimensions up to {self.largest}{pairs and f' or {pairs}'}{training}"
        if copied and not self.copies:
            return f"takes multiples of {self.multiple}"
        built = ", ".join(map(str, self.built))
        return f"is built for {built} alone" if self.exact and aligned not in self.built else ""


@frozen
class Kernel:
    """One kernel's file. ``costs``: whose constants price it; ``fallback``: what runs where it refuses.

    ``first``: by generation, a kernel that a dispatcher tries before its own.
    """

    name: str
    title: str
    costs: str
    fallback: str | None
    first: Mapping[str, str]
    takes: tuple[Takes, ...]

    def runs_on(self, generation: str) -> bool:
        return any(not one.generations or generation in one.generations for one in self.takes)


@frozen
class Run:
    """How an attention of some head dimensions runs: by which kernel in the end, in which dimensions, and why.

    ``d_qk`` and ``d_v`` are computed, ``copied`` is the dimension that Q, K and V are copied to first (None: no copy).
    ``refused`` says for each kernel asked before why it did not take the shape. ``verified``: the facts were read in
    the kernel's own sources.
    """

    kernel: str
    d_qk: int
    d_v: int
    copied: int | None
    refused: tuple[tuple[str, str], ...]
    built: tuple[int, ...]
    source: str
    verified: bool


def load_kernel(name: str) -> Kernel:
    """The kernel's file; InputError lists the known names."""
    return load(named("kernels", name, "attention", KERNELS), _kernel)


def _kernel(data: Named, where: str) -> Kernel:
    top = Table(data, where)
    return top.record(
        Kernel,
        costs=top.text("costs") if top.has("costs") else top.text("name"),
        first=top.read_only("first"),
        takes=tuple(table.record(Takes) for table in top.tables("takes")),
    )


def _usual() -> Named:
    """Generation -> what "auto" runs there."""
    return content(DATA / "usual-kernels.toml")


def resolve(kernel: str, generation: str, training: bool) -> str:
    """The kernel that is asked for: "auto" and "flash" are what the generation's usual stack runs.

    InputError: an unknown name, or a kernel that does not run on this generation at all.
    """
    one_of(kernel, CHOICES, "attention")
    if kernel in ("auto", "flash"):
        # A generation that no file knows is a user's own device: torch's dispatcher runs wherever torch does.
        return str(_usual().get(generation, {}).get("train" if training else "infer", "sdpa"))
    if generation in _usual() and not load_kernel(kernel).runs_on(generation):
        others = [name for name in KERNELS if load_kernel(name).runs_on(generation)]
        raise InputError(f"expected a kernel that runs on {generation}: {', '.join(others)}", "attention", kernel)
    return kernel


@lru_cache(4096)
def run_of(kernel: str, generation: str, dtype: str, d_qk: int, d_v: int, training: bool = False) -> Run:
    """The run where ``kernel`` is asked for head dimensions ``d_qk`` (queries, keys) and ``d_v`` (values).

    >>> run_of("fa3", "hopper", "bf16", 160, 160).d_qk
    192
    >>> run_of("fa4", "blackwell", "bf16", 192, 192).kernel
    'cudnn'
    """
    name = resolve(kernel, generation, training)
    if generation not in _usual():
        return Run(name, d_qk, d_v, None, (), (), f"nothing is known of kernels on {generation}", False)
    refused = dict[str, str]()
    while True:
        facts = load_kernel(name)
        for asked in (facts.first.get(generation), name):
            if asked is None or asked in refused:
                continue
            found = _accepted(load_kernel(asked), generation, dtype, d_qk, d_v, training)
            if isinstance(found, Run):
                return replace(found, refused=tuple(refused.items()))
            refused[asked] = found
        # Eager takes whatever there is, so the chain ends.
        name = facts.fallback or "eager"


def _accepted(kernel: Kernel, generation: str, dtype: str, d_qk: int, d_v: int, training: bool) -> Run | str:
    """The run by the first clause that takes the shape, or the reason of the last that did not."""
    found: Run | str = f"takes no {dtype} on {generation}"
    for one in kernel.takes:
        here = (not one.generations or generation in one.generations) and (not one.dtypes or dtype in one.dtypes)
        if here and one.training in (None, training) and not isinstance(found, Run):
            found = one.run(kernel.name, d_qk, d_v)
    return found
