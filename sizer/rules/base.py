"""What a rule is, what it sees and what it answers.

A rule is one function in its topic's file, declared by ``rule``. Its docstring is its page (``sizer explain``,
reports/rules.md), its name is its slug, and ``source`` says where it comes from. It answers ``NotApplicable`` or its
findings (none: the rule is kept). Rules do no I/O, parse nothing and claim no speed-up: they propose, ``sizer.check``
prices.
"""

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import cleandoc
from math import lcm
from typing import Any

from shapes.cost import Cost
from shapes.device import Device
from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.frozen import Ints, Named, Names, Sizes, Values, frozen, replace
from shapes.memory import ROOM, Memory, largest_microbatch, memory
from shapes.model import AttentionShape, ModelShape, Unproven, Unread
from shapes.operators.parallel import split_problems
from shapes.operators.types import Operator, Product
from shapes.step import StepCost
from shapes.step.stack import SoftwareStack
from shapes.workload import Workload

#: Bytes that a kernel loads at once. NVIDIA's guide asks it of leading dimensions (8 elements of fp16), Hopper's TMA of
#: strides, CUTLASS of its align8 kernels; AMD's and Intel's libraries load vectors of 16 bytes as well.
VECTOR_BYTES = 16


@frozen
class Suggestion:
    """A change that would fix the finding: dimensions or fields of ``Workload`` with their new values."""

    change: Mapping[str, int | str]
    note: str = ""


Suggestions = tuple[Suggestion, ...]


def suggest(name: str, values: Iterable[int | str], note: str = "") -> Suggestions:
    """One suggestion for each of ``values`` of a dimension or a field of ``Workload``."""
    return tuple(Suggestion({name: value}, note) for value in values)


def within(workload: Workload, change: Named, *, runs: bool = True) -> Values:
    """``change`` of ranks, with the data-parallel ranks that the given devices leave, if they divide.

    Where nobody gave a number of devices and training ``runs`` on several, they stay as many: one device alone is run
    by other software, whose price does not compare.
    """
    ranks = math.prod(change.get(key, getattr(workload, key)) for key in ("t", "p", "cp"))
    alone = runs and workload.train and ranks * workload.d == 1
    gpus = workload.gpus or workload.model_ranks * alone
    if not gpus or {"t", "p", "cp"}.isdisjoint(change) or gpus % ranks:
        return {**change}
    return {**change, "d": gpus // ranks}


@frozen
class Finding:
    """What a rule found, before pricing.

    ``field``: a dimension (``DIMENSIONS``), a field of Workload, or a name of what ``value`` measures. ``value``: ""
    means the context's own value of ``field``. ``error``: it cannot run or cannot be sharded. ``violated``: it
    breaks a kernel's requirement or the source's plain recommendation, and is a warning whatever its price. Every other
    severity follows from the price. ``cause``: where it comes from, if not from ``field``; findings of one cause are
    reported as one. ``at_most_s``: seconds of a step that the cause takes at most, where the rule knows; no suggestion
    is credited with more. ``noted``: a cost worth knowing even where mending it does not pay.
    """

    field: str
    message: str
    suggestions: Suggestions = ()
    error: bool = False
    violated: bool = False
    cause: str = ""
    at_most_s: float = math.inf
    noted: bool = False
    value: int | float | str = ""

    @property
    def outright(self) -> bool:
        """Whether it is reported whatever mending it costs: something is broken, or a device is full."""
        return self.error or self.violated or self.noted or self.field == "memory"


@frozen
class NotApplicable:
    """The rule's premise does not hold (no tensor parallelism, no gated MLP …), which is not a pass.

    ``note``: the report's notes give the reason.
    """

    reason: str
    note: bool = False

    def __iter__(self) -> Iterator[Finding]:
        """No findings."""
        return iter(())


@frozen
class Context:
    """What a rule may look at.

    ``model`` is None where the class was traced: its products and ``parameters`` are known, the modules in ``unproven``
    were not understood, and no step has a price. ``costs`` holds one ``Cost`` for each of ``operators``, in their
    order; ``step_s`` is their sum over counts. ``given`` names the workload's fields that the caller or the file set;
    the rest are defaults. ``dtype`` is the element type that products are priced in (another than the workload's if the
    device does not have that). ``kept``: options of ``shapes.memory.memory``. ``step``: the global step as software
    stack ``stack`` runs it (None: prices were measured).
    """

    model: ModelShape | None
    workload: Workload
    device: Device
    operators: Sequence[Operator]
    costs: Sequence[Cost]
    dimensions: Sizes
    given: frozenset[str]
    dtype: str
    kept: Values
    step: StepCost | None
    stack: SoftwareStack
    unread: tuple[Unread, ...]
    parameters: int
    unproven: tuple[Unproven, ...]

    @property
    def divides(self) -> bool:
        """Whether the model divides over the workload's devices, so that its step's memory can be counted."""
        return self.model is None or not split_problems(self.model, self.workload)

    @property
    def miscounted(self) -> bool:
        """Whether the number of devices is not the product of the degrees."""
        own = self.workload
        return own.gpus not in (None, own.d * own.model_ranks)

    @property
    def whole(self) -> ModelShape:
        """The model, for rules that need one."""
        assert self.model
        return self.model

    @property
    def room_bytes(self) -> int:
        """Bytes of the device that a step may fill."""
        return int(ROOM * self.device.memory.bytes)

    def memory(self, **change: Any) -> Memory:
        """Memory of the workload with ``change``. InputError: a split that is not allowed."""
        return memory(self.whole, replace(self.workload, **change), device=self.device, **self.kept)

    def total_bytes(self, change: Named) -> float:
        """Bytes of the workload with ``change``; infinite where the model does not divide so."""
        try:
            return self.memory(**change).total_bytes
        except InputError:
            return math.inf

    def holds(self, change: Named) -> bool:
        """Whether a device has room for the workload with this ``change`` of ranks."""
        return self.total_bytes(within(self.workload, change)) <= self.room_bytes

    def largest_microbatch(self) -> int:
        """The largest microbatch in the device's room; half of it where experts are spread over ranks.

        A rank's experts may be routed twice the mean that memory is counted by (MFU 32.4% with balance forced, 14.7% as
        routed: marin issue 7668).
        """
        most = largest_microbatch(self.whole, self.workload, self.room_bytes, **self.kept)
        return most // 2 if self.workload.e > 1 else most

    def sets_any(self, *fields: str) -> bool:
        """Whether the caller or the file set one of these workload fields, and so wants advice on it."""
        return not self.given.isdisjoint(fields)

    def timed(self) -> Iterator[tuple[Operator, Cost, float]]:
        """Each operator with its cost and the seconds that all its runs in a microbatch take."""
        for operator, cost in zip(self.operators, self.costs, strict=True):
            yield operator, cost, operator.count * cost.seconds

    def seconds_of(self, which: Callable[[Operator], bool]) -> float:
        """Seconds of a microbatch in the operators that ``which`` holds for."""
        return sum(seconds for operator, _, seconds in self.timed() if which(operator))

    @property
    def step_s(self) -> float:
        return sum(seconds for _, _, seconds in self.timed())

    @property
    def alignment(self) -> int:
        """Elements that dimensions should be multiples of, on this device in this dtype."""
        return self.device.alignment_elements(self.dtype)

    @property
    def vector(self) -> int:
        """Elements in 16 bytes, which the tensor cores' loads require of a leading dimension on every device."""
        return min(VECTOR_BYTES // BYTES[self.dtype] or 1, self.alignment)

    def off_vector(self, value: int, t: int = 1) -> bool:
        """Whether a shard of ``value`` is no multiple of ``vector``, or ``value`` does not divide into t shards."""
        return value % (self.vector * t) != 0


#: A rule's findings as a helper of it yields them.
Findings = Iterator[Finding]
Judgement = NotApplicable | tuple[Finding, ...]
#: The answer of a rule's function: findings, or words on why its premise does not hold.
Answer = Judgement | Iterable[Finding] | Finding | str
Check = Callable[[Context], Answer]


#: A rule's premise -> whether it holds in a context, and the reason that is given where it does not.
PREMISES: dict[str, tuple[Callable[[Context], bool], str]] = {
    "costs": (bool, ""),
    "model": (lambda one: one.model is not None, "the time of a step is not known"),
    "split": (lambda one: one.divides, "the model does not divide over its devices (SZ105, SZ110, SZ115, SZ117)"),
    "shards": (lambda one: one.workload.t > 1, "no tensor parallelism"),
    "heads": (lambda one: {"heads", "head_dim"} <= one.dimensions.keys(), "no attention heads known"),
    "counted": (lambda one: not one.miscounted, "the devices are no product of the degrees (SZ120)"),
    "train": (
        lambda one: one.workload.train,
        "inference has no weight gradients, and batches of the requests that wait",
    ),
    "rows": (lambda one: not one.workload.decode and one.workload.s > 1, "a step of decoding has a token a request"),
    "products": (lambda one: any(isinstance(op, Product) for op in one.operators), "no matrix products"),
    "length": (
        lambda one: one.model is None or one.model.main.length is None,
        "the model, not the workload, sets the sequence length",
    ),
}


@frozen
class Rule:
    """A row of the catalogue.

    ``of_costs``: it judges seconds or bytes alone, and so forbids no suggestion. ``needs``: names of PREMISES; the rule
    is not applicable where one of them does not hold.
    """

    code: str
    slug: str
    source: str
    judge: Check
    needs: Names

    @property
    def of_costs(self) -> bool:
        return "costs" in self.needs

    def check(self, context: Context) -> Judgement:
        """The rule's judgement of ``context``, as a tuple that may be read more than once."""
        for holds, reason in map(PREMISES.__getitem__, self.needs):
            if not holds(context):
                return NotApplicable(reason)
        answer = self.judge(context)
        if isinstance(answer, str):
            return NotApplicable(answer)
        if isinstance(answer, NotApplicable):
            return answer
        return tuple(
            replace(one, value=one.value or context.dimensions.get(one.field) or getattr(context.workload, one.field))
            for one in ((answer,) if isinstance(answer, Finding) else answer)
        )

    @property
    def body(self) -> str:
        """The page without its heading and source: what the rule asks, a bad and a good example, what it suggests."""
        return cleandoc(self.judge.__doc__ or "")

    @property
    def page(self) -> str:
        return f"{self.body}\n\nSource: {self.source}"

    @property
    def summary(self) -> str:
        """What a rule asks, in its docstring's first line."""
        return self.body.partition("\n")[0]


#: Code -> rule, filled as the topics' files are imported.
DECLARED = dict[str, Rule]()


def rule(code: str, source: str, needs: str = "") -> Callable[[Check], Check]:
    """Declare the decorated function as the rule ``code``, with its own name as its slug.

    ``needs``: names of PREMISES, separated by blanks; "costs" for a rule that judges costs alone.
    """

    def declared(judge: Check) -> Check:
        if code in DECLARED:
            raise ValueError(f"{code} is {DECLARED[code].slug} already")
        DECLARED[code] = Rule(code, judge.__name__.replace("_", "-"), source, judge, tuple(needs.split()))
        return judge

    return declared


def largest_power_of_two(value: int) -> int:
    """The largest power of two that divides ``value``: 50257 -> 1, 10944 -> 64."""
    return value & -value


def neighbours(value: int, step: int) -> Ints:
    """The multiples of ``step`` next to ``value``, below (if positive) and above."""
    below = value // step * step
    return tuple(multiple for multiple in (below, below + step) if multiple > 0)


def nearest_first(values: Iterable[int], value: int) -> list[int]:
    return sorted(values, key=lambda other: abs(other - value))


def powers_near(degree: int, divides: Callable[[int], bool]) -> Ints:
    """The nearest power of two below ``degree``, and the nearest above it up to its double, that ``divides`` accepts.

    >>> powers_near(3, lambda ranks: 28 % ranks == 0)
    (2, 4)
    """
    whole = [1 << power for power in range(degree.bit_length() + 1) if divides(1 << power)]
    return *[one for one in whole if one < degree][-1:], *[one for one in whole if one > degree][:1]


def power_text(value: int) -> str:
    """How aligned a size is: "odd", "divisible by 32"."""
    power = largest_power_of_two(value)
    return "odd" if power == 1 else f"divisible by {power}"


def shard_text(symbol: str, value: int, t: int, step: int) -> str:
    """A shard of ``value`` and its alignment, against ``step``: "v/t = 16032 is divisible by 32, not by 64"."""
    if value % t:
        return f"{symbol} = {value} does not divide over t {t}"
    name = f"{symbol}/t = {value // t}" if t > 1 else symbol
    is_now = power_text(value // t)
    return f"{name} is {is_now}, not {'a multiple of' if is_now == 'odd' else 'by'} {step}"


def unaligned_shards(
    context: Context, name: str, symbol: str, value: int, said: str, near: Callable[[int, int], Iterable[int]]
) -> list[Finding]:
    """A finding if a dimension's shards over t are off the device's alignment; else none.

    ``said``: the message around the shard's text. ``near``: (value, multiple that is asked for) -> values to suggest.
    """
    step = context.alignment
    t = context.workload.expert_t if name == "expert_d_ff" else context.workload.t
    if value % (step * t) == 0:
        return []
    return [
        Finding(
            name,
            said.format(shard_text(symbol, value, t, step)),
            suggest(name, near(value, step * t)),
            violated=context.off_vector(value, t),
        )
    ]


def square(context: Context) -> bool:
    """Whether heads x head_dim is known to be the hidden size; a trace's caller may have named only some of them."""
    dims = context.dimensions
    return {"heads", "head_dim", "hidden"} <= dims.keys() and dims["heads"] * dims["head_dim"] == dims["hidden"]


#: Head dimensions that every fused kernel takes, the widest first; and the widest that any of them trains.
COMMON_HEADS, WIDEST_HEAD = (128, 64), 256
#: Devices of a node: numbers of heads had best divide over so many tensor-parallel ranks.
NODE = 8
#: A hidden size farther away than this share is another model, not a neighbour.
NEIGHBOURHOOD = 0.1


def heads_that_keep_hidden(
    context: Context, multiple: int, fits: Callable[[int], bool] = lambda head_dim: True
) -> Suggestions:
    """Other numbers of heads at the same hidden size whose head dimension is a multiple of ``multiple``.

    These are the next larger and the next smaller head dimension that ``fits`` and divides the hidden size. As many
    query heads share a key/value head as before. The heads divide by t and by 2, as a prime number of them could never
    be split.
    """
    if not _resizable(context):
        return ()
    dim, hidden = context.dimensions["head_dim"], context.dimensions["hidden"]
    whole = (size for size in range(multiple, WIDEST_HEAD + 1, multiple) if size != dim and hidden % size == 0)
    fitting = [size for size in whole if fits(size) and _divides(context, hidden // size)]
    larger = bisect(fitting, dim)
    near = *fitting[larger:][:1], *fitting[:larger][-1:]
    return tuple(Suggestion(_with_groups(context, hidden // size), f"head_dim {size}") for size in near)


def whole_heads_near(context: Context) -> Suggestions:
    """The nearest hidden sizes of whole heads of 128 or 64, whose number divides over t and over a node.

    As many query heads share a key/value head as before, unless no near size has such a number of heads.
    """
    if not _resizable(context):
        return ()
    hidden, now = context.dimensions["hidden"], context.dimensions["heads"]
    found = []
    for dim in COMMON_HEADS:
        near = {heads * dim: heads for heads in neighbours(hidden // dim, lcm(NODE, context.workload.t))}
        if now * dim <= hidden * (1 + NEIGHBOURHOOD):
            near[now * dim] = now
        found += [
            (abs(size - hidden), size, heads, dim)
            for size, heads in near.items()
            if 0 < abs(size - hidden) <= NEIGHBOURHOOD * hidden
        ]
    alike = [one for one in found if _divides(context, one[2])]
    return tuple(
        Suggestion({"hidden": size, **(_with_groups(context, heads) if heads != now else {})}, f"head_dim {dim}")
        for _, size, heads, dim in sorted(alike or found)
    )


def _resizable(context: Context) -> bool:
    """Whether other heads can be proposed: plain attention, whose heads add up to the hidden size."""
    return context.model is not None and isinstance(context.model.attention, AttentionShape) and square(context)


def _divides(context: Context, heads: int) -> bool:
    """Whether so many heads divide over t and by 2, in as many groups of key/value heads as keep the ratio."""
    dims = context.dimensions
    return heads % lcm(context.workload.t, 2) == 0 and heads * dims["kv_heads"] % dims["heads"] == 0


def _with_groups(context: Context, heads: int) -> Sizes:
    """So many heads, and key/value heads that keep as many query heads to each; else as many as now, or a node's."""
    now, kv = context.dimensions["heads"], context.dimensions["kv_heads"]
    groups, rest = divmod(heads * kv, now)
    if rest:
        groups = NODE if heads % kv else kv
    return {"heads": heads} if groups == kv or kv == now else {"heads": heads, "kv_heads": groups}


def larger_microbatch(context: Context, wanted: int, note: str = "") -> Suggestions:
    """The smallest microbatch of at least ``wanted`` sequences that memory holds and the global batch is made of.

    None in inference, where a batch is as large as the requests that wait; where ``wanted`` does not fit, the largest
    that does (without a global batch the largest doubling of today's). Where what runs now does not fit either, memory
    is asked only if the layout was said.
    """
    workload, b = context.workload, context.workload.b
    if not workload.train:
        return ()
    fits = context.largest_microbatch() if context.model and context.divides else math.inf
    most = fits if fits >= b or context.sets_any("gpus", "d") else math.inf
    if workload.global_batch is None:
        # Of doublings of today's half of the first that does not fit.
        larger = wanted if wanted <= most else (b << int(most // b).bit_length()) >> 1
        return suggest("b", [larger] * (larger > b), note)
    rank = workload.global_batch // workload.d
    groups = workload.p if workload.vpp > 1 else 1  # of microbatches that an interleaved schedule goes through
    whole = [other for other in range(b + 1, int(min(most, rank)) + 1) if rank % (other * groups) == 0]
    return suggest("b", [other for other in whole if other >= wanted][:1] or whole[-1:], note)
