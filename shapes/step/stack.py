"""Software stacks: which kernels run, what the host costs and what overlaps, as data, like devices and kernels.

One file each in ``data/stacks/<name>.toml``; a user's own file is given by its path. Adding one touches nothing else.
The form that these constants enter is ``shapes.step.seconds``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from shapes.cost.constants import TIERS
from shapes.errors import AnyPath, InputError, refuse
from shapes.frozen import Named, Names, Numbers, Words, first_of, frozen, replace
from shapes.toml_table import DATA, Amount, Share, Table, content, load, names, shipped
from shapes.workload import AttentionKernel, Loss

#: The stack that is likely to run a configuration, if nobody says.
DEFAULT_STACK = "transformers-eager"
#: The same of training that is spread over devices: the stack that runs every split.
SPREAD_STACK = "megatron-core-te"

#: Classes of operators that have a factor on their seconds: products, attention, and groups of memory-bound operators.
PRODUCTS = ("gemm", "bmm", "grouped", "attention")
FACTS = content(DATA / "operators.toml")["step"]
ELEMENTWISE = FACTS["elementwise"]
CLASSES = (*PRODUCTS, *ELEMENTWISE)
#: The classes that only a mixture of experts runs, besides its routing's products.
EXPERTS = ("grouped", "moe")
#: An expert's dispatch that overlaps another microbatch's computing.
OVERLAPPED = "overlapped_expert"
#: Communication, by what it serves.
GROUPS = ("tensor", "expert", OVERLAPPED, "context", "pipeline", "data")
#: Groups that cross nodes first, and how many times slower than usual a network that nobody states may be. An interval
#: up to that holds 89% of 123 runs without a stated network (reports/bench/steps_network.py; 79% without it).
BETWEEN, SLOWEST = ("pipeline", "data"), 4.0
#: Parts that some trainers do not overlap -> their group: gathers of updated weights, and sends of the forward.
PARTS = FACTS["inside"]
#: A stack whose name ends so replays CUDA graphs: megatron-core-te+graphs.
GRAPHS = "+graphs"
#: One of whose names this is a part overlaps nothing.
ALONE = "-no-overlap"
#: Tiers of a step: fitted on this stack and kind of device, on this stack on other devices, or on another stack.
STEP_TIERS = ("fitted", "borrowed", "extrapolated")


@frozen
class Host:
    """The host's time: ``launch_s`` seconds a kernel; ``kernels``: kernels that an operator of each class launches.

    ``collective_s``: the host's seconds for a collective. ``softmax_fallback_s``: further seconds of a layer's
    attention if Megatron's fused softmax does not take the shape (sequences x heads a rank are no multiple of 4).
    ``backward``: seconds of a backward's launches over those of a forward's, which come from Python (0: not known).
    """

    launch_s: Amount
    kernels: Numbers
    collective_s: Amount
    softmax_fallback_s: Amount
    backward: Amount = 0.0


@frozen
class Overlap:
    """One group's communication, and how a stack overlaps it.

    ``hidden``: the share of the compute next to it that can cover it (``overlapped`` in a file's expert table: that of
    ``OVERLAPPED``). ``contention``: the share of the covered seconds by which it slows the computing down. ``speed``:
    the bandwidth it reaches over what NCCL's own test reaches.
    """

    hidden: Share
    contention: Share
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
    """Releases whose names ``match``: seconds of all kernels over the newest release's, and of experts' in addition."""

    match: str
    kernels: float
    experts: float


@frozen
class SoftwareStack:
    """One software stack.

    ``formats``: configuration formats whose default it is. ``framework`` and ``year`` say which unknown stacks it is
    nearest to. ``architectures``: of the devices it was fitted on. ``kernels``: seconds of each class over the tables'
    (``CLASSES``), ``by_dtype`` and ``attention`` the same for products by element type and for attention by
    architecture and head dimension, ``by_device`` for all products of a device that no table was fitted for.
    ``compiles``: torch.compile runs the products. ``attention_kernels``: which kernel runs it, by architecture
    ("other": elsewhere; absent: the device's usual one). ``optimizer``: seconds of the update over those of moving its
    bytes. ``fixed_s``: once a step. ``rows``: what its constants were fitted on, in words. ``loss``: how it runs the
    cross-entropy, of shapes.memory. ``misaligned_bmm``: what batched products of 16 bits take more where a dimension is
    off 16 bytes (1: what the tables say). ``releases``: of its own, other than its newest. ``without``: fields of a
    workload for the kinds of parallelism that its trainers do not have. ``intervals``: by tier, and
    by architecture where runs on such devices are further off, or nearer, than others.
    """

    name: str
    title: str
    framework: str
    year: int
    aliases: Names
    formats: Names
    architectures: Names
    kernels: Numbers
    compiles: bool
    by_dtype: Numbers
    by_device: Numbers
    attention: Mapping[str, Mapping[int, float]]
    attention_kernels: Words
    host: Host
    overlap: Mapping[str, Overlap]
    optimizer: float
    fixed_s: float
    coverage: Share
    intervals: Mapping[str, Interval]
    tiers: Words
    sources: Words
    rows: str
    releases: tuple[Release, ...]
    origin: str
    loss: Loss = "fp32"
    misaligned_bmm: float = 1.0
    without: Names = ()

    # Mappings do not hash; stacks that compare equal have the same name and origin.
    HASHED = "name", "origin"

    def attention_factor(self, architecture: str, head_dim: int) -> float:
        """Seconds of attention over the tables', at the nearest head dimension of the architecture's own figures."""
        own = self.attention.get(architecture)
        if not own:
            return self.kernels["attention"]
        return own[min(own, key=lambda known: abs(known - head_dim))]

    def for_head_dims_near(self, architecture: str, head_dim: int) -> SoftwareStack:
        """This stack with the attention factor of ``head_dim`` at every head dimension.

        Factors of different head dimensions were fitted on different runs, so that their ratio does not tell what
        another head dimension gains. The kernels' own prices do.
        """
        factor = self.attention_factor(architecture, head_dim)
        return replace(self, attention={**self.attention, architecture: {head_dim: factor}})

    def attention_kernel(self, architecture: str) -> str | None:
        """The attention kernel that this stack runs on ``architecture``; None: the device's usual one."""
        return self.attention_kernels.get(architecture, self.attention_kernels.get("other"))

    def without_overlap(self, groups: Iterable[str]) -> SoftwareStack:
        """This stack with the communication of ``groups`` (``GROUPS``, ``PARTS``) overlapping no computing."""
        alone = {group: Overlap(0.0, 0.0, self.overlap[PARTS.get(group, group)].speed) for group in groups}
        return replace(self, overlap={**self.overlap, **alone}) if alone else self

    def on_slower_network(self) -> SoftwareStack:
        """This stack where nodes are `SLOWEST` times as far apart: what data parallelism and pipelines send."""
        slower = {key: replace(own, speed=own.speed / SLOWEST) for key, own in self.overlap.items() if key in BETWEEN}
        return replace(self, overlap={**self.overlap, **slower})

    def of_release(self, name: str) -> SoftwareStack:
        """This stack in the release that ``name`` belongs to; itself if it has no such release."""
        own = first_of(release for release in self.releases if fnmatchcase(name, release.match))
        if not own:
            return self
        kernels = {
            key: value * own.kernels * (own.experts if key in EXPERTS else 1) for key, value in self.kernels.items()
        }
        return replace(self, kernels=kernels, releases=())

    def with_graphs(self) -> SoftwareStack:
        """This stack replaying CUDA graphs of its layers: the host launches none of their kernels and runs ahead."""
        return replace(self, name=f"{self.name}{GRAPHS}", host=Host(0.0, self.host.kernels, 0.0, 0.0))

    def tier(self, architecture: str) -> str:
        """How a step on a device of ``architecture`` is known."""
        return "fitted" if architecture in self.architectures else "borrowed" if self.architectures else "extrapolated"


def list_stacks() -> Names:
    """Names of the stacks that ship with the package, sorted. Reads the folder, no file."""
    return names("stacks")


def load_stack(stack: AnyPath | SoftwareStack) -> SoftwareStack:
    """The stack by name or alias, or by a .toml path; an unknown name is an InputError that lists the known."""
    if isinstance(stack, SoftwareStack):
        return stack
    refuse(not isinstance(stack, str | os.PathLike), "expected a stack's name or a .toml path", "stack", stack)
    text = os.fspath(stack)
    if text.lower().endswith(".toml"):
        return load(Path(text), stack_from_mapping)
    name = text.strip().lower()
    if name.endswith(GRAPHS):
        return load_stack(name.removesuffix(GRAPHS)).with_graphs()
    if ALONE in name:
        return replace(load_stack(name.replace(ALONE, "")).without_overlap(GROUPS), name=name)
    if name in list_stacks():
        return load(shipped("stacks", name), stack_from_mapping)
    for known in map(load_stack, list_stacks()):
        if any(fnmatchcase(name, alias) for alias in known.aliases):
            return known.of_release(name)
    raise InputError(f"expected one of {', '.join(list_stacks())}, or a .toml path", "stack", stack)


def default_stack(config_format: str | None, spread: bool = False, compiled: bool = False) -> SoftwareStack:
    """The stack that runs configurations of this format, as far as the format tells.

    ``spread``: training over several devices; a format whose stack runs on one device alone then gets Megatron-Core's.
    ``compiled``: the file says that torch.compile runs it.
    """
    usual = load_stack(SPREAD_STACK if spread else DEFAULT_STACK)
    # One file where one will do: `check` reads a Hugging Face configuration in a blink.
    if config_format is None or (config_format in usual.formats and usual.compiles == compiled):
        return usual
    listed = (one for one in map(load_stack, list_stacks()) if one.compiles == compiled and one.name != DEFAULT_STACK)
    return next((one for one in listed if config_format in one.formats), usual)


class _Factors(Table):
    """Seconds over those of a table, launches, shares: what is further from 1 than this is a typing error."""

    most = 1e4


def stack_from_mapping(data: Named, where: str) -> SoftwareStack:
    """A validated stack from a stack file's content; InputError names ``where`` and the key."""
    top = _Factors(data, where)
    below = top.table
    optimizer, host = below("optimizer"), below("host")
    result = top.record(
        SoftwareStack,
        kernels=_by_class(below("kernels")),
        by_dtype=top.numbers_by_dtype("by_dtype"),
        by_device=below("by_device").keyed(Table.number),
        attention=below("attention").keyed(_by_head_dim),
        attention_kernels=below("attention_kernel").keyed(
            lambda table, key: table.choice(key, get_args(AttentionKernel))
        ),
        host=host.record(Host, kernels=_by_class(host.table("kernels"))),
        overlap=_overlaps(below("communication")),
        optimizer=optimizer.number("update"),
        fixed_s=optimizer.zero_or_more("fixed_s"),
        intervals=below("interval").keyed(_interval, (*STEP_TIERS, *top.texts("architectures"))),
        tiers=below("tiers").keyed(lambda table, key: table.choice(key, TIERS)),
        sources=top.documents(),
        releases=tuple(below("release").keyed(lambda table, key: table.table(key).record(Release)).values()),
        origin=where,
    )
    optimizer.refuse_the_rest()
    return result


def _by_class(table: Table) -> Numbers:
    """A figure for each of CLASSES; of memory-bound ones that have none, "elementwise".

    A scan's kernels are its library's own in every stack, and adding up gradients is a plain kernel.
    """
    everything = table.number("elementwise")
    found = {key: table.number(key) for key in PRODUCTS}
    usual = dict.fromkeys(ELEMENTWISE, everything) | {"scan": 1.0, "accumulate": 1.0}
    # Only accumulation may be free: a product can add its own result up.
    free = {"accumulate": table.zero_or_more}
    found |= {key: free.get(key, table.number)(key) if table.has(key) else usual[key] for key in ELEMENTWISE}
    table.refuse_the_rest()
    return MappingProxyType(found)


def _by_head_dim(table: Table, architecture: str) -> Mapping[int, float]:
    own = table.table(architecture)
    for key in own.data:
        if not key.isdecimal():
            raise own.fail(key, "expected head dimensions as keys")
    return MappingProxyType({int(key): value for key, value in own.keyed(Table.number).items()})


def _overlaps(communication: Table) -> Mapping[str, Overlap]:
    expert = communication.table("expert")
    # An overlap that a stack does not state is none.
    overlapped = expert.share("overlapped" if expert.has("overlapped") else "hidden")
    found = {
        group: communication.table(group).record(Overlap) for group in GROUPS if group not in ("expert", OVERLAPPED)
    }
    plain = expert.record(Overlap)
    return MappingProxyType(found | {"expert": plain, OVERLAPPED: replace(plain, hidden=overlapped)})


def _interval(table: Table, tier: str) -> Interval:
    found = table.table(tier).record(Interval)
    if not found.low <= 1 <= found.high:
        raise table.fail(tier, "expected low <= 1 <= high: both times the prediction")
    return found
