"""Software stacks: which kernels run, what the host costs and what overlaps, as data beside devices and kernels.

One file each in ``stacks/<name>.toml``; a user's own file is given by its path. Adding one touches nothing else. The
form that these constants enter is ``shapes.cost.step``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from shapes.dtypes import DTYPES
from shapes.errors import InputError
from shapes.files import read_text
from shapes.frozen import frozen
from shapes.toml_table import Table
from shapes.workload import AttentionKernel

STACKS_DIR = Path(__file__).parent / "stacks"

#: A stack's file is a page or two.
MAX_BYTES = 1 << 20

#: Whose runs a configuration is likely to become, where nobody says.
DEFAULT_STACK = "transformers-eager"

#: What an operator's seconds are multiplied by: products, attention, and the groups of memory-bound operators.
PRODUCTS = ("gemm", "bmm", "grouped", "attention")
ELEMENTWISE = (
    "norm",
    "rotary",
    "residual",
    "activation",
    "softmax",
    "dropout",
    "cross_entropy",
    "embedding",
    "moe",
    "quantise",
)
CLASSES = (*PRODUCTS, *ELEMENTWISE)
#: Of those, what a mixture of experts runs beside its routing's products.
EXPERTS = ("grouped", "moe")
#: An expert's dispatch that runs beside another microbatch's computing.
OVERLAPPED = "overlapped_expert"
#: Communication, by what it serves.
GROUPS = ("tensor", "expert", OVERLAPPED, "context", "pipeline", "data")
#: Of which group that is a part which some trainers do not overlap: gathers of updated weights, sends of the forward.
PARTS = {"gather": "data", "tensor-forward": "tensor"}
#: How a figure is known (shapes/design: "A figure has a tier").
TIERS = ("measured", "published", "fitted", "borrowed", "extrapolated")
#: Of a step's prediction: fitted on this stack and kind of device, on the stack alone, or on another stack.
STEP_TIERS = ("fitted", "borrowed", "extrapolated")


@frozen
class Host:
    """What the host does: ``launch_s`` seconds a kernel; ``kernels``: launches an operator of each class takes.

    ``collective_s``: host seconds a collective takes. ``softmax_fallback_s``: what a layer's attention takes more
    where Megatron's fused softmax does not take the shape (sequences x heads a rank no multiple of 4).
    """

    launch_s: float
    kernels: Mapping[str, float]
    collective_s: float
    softmax_fallback_s: float


@frozen
class Overlap:
    """One group's communication: ``hidden`` is the share of the computing beside it that can cover it

    (``overlapped`` in a file's expert table: that of ``OVERLAPPED``), ``contention`` the share of the covered seconds
    by which they slow the computing down, ``speed`` the bandwidth it reaches over what NCCL's own test reaches.
    """

    hidden: float
    contention: float
    speed: float


@frozen
class Interval:
    """A step lies between ``low`` and ``high`` times its prediction in ``coverage`` of cases.

    ``ratio`` bounds, at the same coverage, the relative error of the ratio of two steps on one stack and device.
    """

    low: float
    high: float
    ratio: float


@frozen
class Release:
    """Releases whose names ``match``: seconds of all kernels over the newest release's, and of experts' beside that."""

    match: str
    kernels: float
    experts: float


@frozen
class SoftwareStack:
    """One software stack. ``formats``: configuration formats whose default it is; ``framework`` and ``year`` say

    which unknown stacks it stands nearest to. ``architectures``: of the devices it was fitted on. ``kernels``: seconds
    of each class over the tables' (``CLASSES``), ``by_dtype`` and ``attention`` the same for products by element
    type and for attention by architecture and head dimension, ``by_device`` for all products of a device that no
    table was fitted for. ``compiles``: torch.compile runs the products. ``attention_kernels``: which kernel runs it, by
    architecture ("other": elsewhere; absent: the device's usual one). ``optimizer``: seconds of the update over those
    of moving its bytes. ``fixed_s``: once a step. ``rows``: what its constants were fitted on, in words. ``loss``: how
    it runs the cross-entropy, of shapes.memory. ``releases``: of its own, other than its newest.
    """

    name: str
    title: str
    framework: str
    year: int
    aliases: tuple[str, ...]
    formats: tuple[str, ...]
    architectures: tuple[str, ...]
    kernels: Mapping[str, float]
    compiles: bool
    by_dtype: Mapping[str, float]
    by_device: Mapping[str, float]
    attention: Mapping[str, Mapping[int, float]]
    attention_kernels: Mapping[str, str]
    host: Host
    overlap: Mapping[str, Overlap]
    optimizer: float
    fixed_s: float
    coverage: float
    intervals: Mapping[str, Interval]
    tiers: Mapping[str, str]
    sources: Mapping[str, str]
    rows: str
    loss: str
    releases: tuple[Release, ...]
    origin: str

    def __hash__(self) -> int:
        # Mappings do not hash; stacks that compare equal have the same name and origin.
        return hash((self.name, self.origin))

    def attention_factor(self, architecture: str, head_dim: int) -> float:
        """Seconds of attention over the tables', at the nearest head dimension of the architecture's own figures."""
        own = self.attention.get(architecture)
        if not own:
            return self.kernels["attention"]
        return own[min(own, key=lambda known: abs(known - head_dim))]

    def for_head_dims_near(self, architecture: str, head_dim: int) -> SoftwareStack:
        """This stack with the attention factor of ``head_dim`` at every head dimension.

        Factors of different head dimensions were fitted on different runs, so that their ratio says nothing of what
        another head dimension gains; the kernels' own prices do.
        """
        factor = self.attention_factor(architecture, head_dim)
        return replace(self, attention={**self.attention, architecture: {head_dim: factor}})

    def attention_kernel(self, architecture: str) -> str | None:
        """The attention kernel that this stack runs on ``architecture``; None: the device's usual one."""
        return self.attention_kernels.get(architecture, self.attention_kernels.get("other"))

    def without_overlap(self, groups: Iterable[str]) -> SoftwareStack:
        """This stack with the communication of ``groups`` (``GROUPS``, ``PARTS``) beside no computing."""
        alone = {group: Overlap(0.0, 0.0, self.overlap[PARTS.get(group, group)].speed) for group in groups}
        return replace(self, overlap={**self.overlap, **alone}) if alone else self

    def of_release(self, name: str) -> SoftwareStack:
        """This stack as the release that ``name`` is of ran it: itself where no release of its own says otherwise."""
        own = next((release for release in self.releases if fnmatchcase(name, release.match)), None)
        if own is None:
            return self
        scale = {key: own.kernels * (own.experts if key in EXPERTS else 1.0) for key in CLASSES}
        return replace(self, kernels={key: value * scale[key] for key, value in self.kernels.items()}, releases=())

    def tier(self, architecture: str) -> str:
        """How a step on a device of ``architecture`` is known."""
        if self.architectures:
            return "fitted" if architecture in self.architectures else "borrowed"
        return "extrapolated"


def list_stacks() -> tuple[str, ...]:
    """Names of the stacks that ship with the package, sorted. Reads the folder, no file."""
    return tuple(sorted(entry.name[:-5] for entry in os.scandir(STACKS_DIR) if entry.name.endswith(".toml")))


def load_stack(stack: str | os.PathLike[str] | SoftwareStack) -> SoftwareStack:
    """The stack by name or alias, or by a .toml path; an unknown name is an InputError that lists the known."""
    if isinstance(stack, SoftwareStack):
        return stack
    if not isinstance(stack, (str, os.PathLike)):
        raise InputError("expected a stack's name or a .toml path", key="stack", value=stack)
    text = os.fspath(stack)
    if text.lower().endswith(".toml"):
        return _load_file(Path(text))
    name = text.strip().lower()
    if name in list_stacks():
        return _load_file(STACKS_DIR / f"{name}.toml")
    for known in list_stacks():
        if any(fnmatchcase(name, alias) for alias in _load_file(STACKS_DIR / f"{known}.toml").aliases):
            return _load_file(STACKS_DIR / f"{known}.toml").of_release(name)
    raise InputError(f"expected one of {', '.join(list_stacks())}, or a .toml path", key="stack", value=stack)


def default_stack(config_format: str | None) -> SoftwareStack:
    """The stack that runs configurations of this format, as far as the format tells."""
    usual = load_stack(DEFAULT_STACK)
    # One file where one will do: `check` reads a Hugging Face configuration in a blink.
    if config_format is None or config_format in usual.formats:
        return usual
    return load_stack(_stack_of_format().get(config_format, DEFAULT_STACK))


@lru_cache(maxsize=1)
def _stack_of_format() -> Mapping[str, str]:
    return {known: name for name in list_stacks() for known in load_stack(name).formats}


def stack_from_mapping(data: Mapping[str, object], where: str) -> SoftwareStack:
    """A validated stack from a stack file's content; InputError names ``where`` and the key."""
    top = Table(data, where)
    kernels, optimizer = top.table("kernels"), top.table("optimizer")
    kernels_of = top.table("attention_kernel")
    for key, kernel in kernels_of.data.items():
        if kernel not in get_args(AttentionKernel):
            raise kernels_of.fail(key, f"expected one of {', '.join(get_args(AttentionKernel))}")
    everything = kernels.number("elementwise")
    factors = {key: kernels.number(key) for key in PRODUCTS}
    factors |= {key: kernels.number(key) if kernels.has(key) else everything for key in ELEMENTWISE}
    result = SoftwareStack(
        name=top.text("name"),
        title=top.text("title"),
        framework=top.text("framework"),
        year=top.integer("year"),
        aliases=top.texts("aliases"),
        formats=top.texts("formats"),
        architectures=top.texts("architectures"),
        kernels=MappingProxyType(factors),
        compiles=top.flag("compiles") or False,
        by_dtype=_numbers(top.table("by_dtype"), DTYPES),
        by_device=_numbers(top.table("by_device")),
        attention=_attention(top.table("attention")),
        attention_kernels=MappingProxyType({key: kernels_of.text(key) for key in kernels_of.data}),
        host=_host(top.table("host")),
        overlap=_overlaps(top.table("communication")),
        optimizer=optimizer.number("update"),
        fixed_s=optimizer.zero_or_more("fixed_s"),
        coverage=top.share("coverage"),
        intervals=_intervals(top.table("interval")),
        tiers=_tiers(top),
        sources=top.documents(),
        rows=top.text("rows"),
        loss=_loss(top),
        releases=_releases(top.table("release")),
        origin=where,
    )
    for table in (top, kernels, optimizer):
        table.refuse_the_rest()
    return result


def _numbers(table: Table, known: Collection[str] | None = None) -> Mapping[str, float]:
    for key in table.data:
        if known is not None and key not in known:
            raise table.fail(key, f"expected keys out of {', '.join(known)}")
    return MappingProxyType({key: table.number(key) for key in table.data})


def _attention(table: Table) -> Mapping[str, Mapping[int, float]]:
    found = {}
    for architecture in table.data:
        by_head_dim = table.table(architecture)
        for key in by_head_dim.data:
            if not key.isdecimal():
                raise by_head_dim.fail(key, "expected head dimensions as keys")
        found[architecture] = MappingProxyType({int(key): by_head_dim.number(key) for key in by_head_dim.data})
    return MappingProxyType(found)


def _host(table: Table) -> Host:
    kernels = table.table("kernels")
    everything = kernels.number("elementwise")
    launches = {key: kernels.number(key) for key in PRODUCTS}
    launches |= {key: kernels.number(key) if kernels.has(key) else everything for key in ELEMENTWISE}
    kernels.refuse_the_rest()
    host = Host(
        table.zero_or_more("launch_s"),
        MappingProxyType(launches),
        table.zero_or_more("collective_s"),
        table.zero_or_more("softmax_fallback_s"),
    )
    table.refuse_the_rest()
    return host


def _overlaps(communication: Table) -> Mapping[str, Overlap]:
    found = {group: _overlap(communication.table(group)) for group in GROUPS if group not in ("expert", OVERLAPPED)}
    expert = communication.table("expert")
    # What a stack does not say that it can run costs as without it.
    overlapped = expert.share("overlapped" if expert.has("overlapped") else "hidden")
    plain = _overlap(expert)
    return MappingProxyType(found | {"expert": plain, OVERLAPPED: replace(plain, hidden=overlapped)})


def _overlap(table: Table) -> Overlap:
    result = Overlap(table.share("hidden"), table.share("contention"), table.number("speed"))
    table.refuse_the_rest()
    return result


def _intervals(table: Table) -> Mapping[str, Interval]:
    found = {}
    for tier in table.data:
        if tier not in STEP_TIERS:
            raise table.fail(tier, f"expected keys out of {', '.join(STEP_TIERS)}")
        own = table.table(tier)
        found[tier] = Interval(own.number("low"), own.number("high"), own.number("ratio"))
        if not found[tier].low <= 1 <= found[tier].high:
            raise table.fail(tier, "expected low <= 1 <= high: both times the prediction")
        own.refuse_the_rest()
    return MappingProxyType(found)


def _loss(top: Table) -> str:
    """Of shapes.memory's LOSSES; a file that does not say runs transformers' own."""
    loss = top.text("loss") if top.has("loss") else "fp32"
    if loss not in ("fp32", "in-place", "fused"):
        raise top.fail("loss", "expected one of fp32, in-place, fused")
    return loss


def _releases(table: Table) -> tuple[Release, ...]:
    found = []
    for key in table.data:
        own = table.table(key)
        found.append(Release(own.text("match"), own.number("kernels"), own.number("experts")))
        own.refuse_the_rest()
    return tuple(found)


def _tiers(top: Table) -> Mapping[str, str]:
    table = top.table("tiers")
    tiers = {key: table.text(key) for key in table.data}
    for key, tier in tiers.items():
        if tier not in TIERS:
            raise table.fail(key, f"expected one of {', '.join(TIERS)}")
    return MappingProxyType(tiers)


@lru_cache(maxsize=64)
def _load_file(path: Path) -> SoftwareStack:
    text = read_text(path, MAX_BYTES)
    try:
        data = tomllib.loads(text)
    except (RecursionError, ValueError) as error:
        raise InputError(f"expected TOML: {error}", where=str(path)) from None
    return stack_from_mapping(data, str(path))
