"""What is searched, and for what: candidates that change named dimensions of a baseline, limits, and objectives.

A space is a function of a ``Request`` (``spaces``); it gives candidates as columns and says which of their operators
are timed. A search starts from a configuration, from dimensions or from a number of parameters.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import product
from math import lcm, log
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from shapes.columns import Array, IntegerTable
from shapes.device import Device
from shapes.dtypes import next_multiple
from shapes.errors import InputError, positive_int, refuse
from shapes.frozen import (
    Counts,
    Function,
    Ints,
    Named,
    Names,
    Pair,
    Sizes,
    Values,
    among,
    frozen,
    in_words,
    replace,
    without,
)
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.model.resize import dimensions, resize
from shapes.operators import layer_operators
from shapes.operators.types import Operator
from shapes.step.stack import SoftwareStack
from shapes.toml_table import check_bounds, table_of
from shapes.workload import Workload
from sizer.readers.reading import tokenizer_size
from sizer.subject import read_subject

if TYPE_CHECKING:
    from shapes.measure.jobs import PartName  # loads what measures, which a prediction has no use for


#: Tokens of a search that names no batch: 4 sequences of 4096.
DEFAULT_B, DEFAULT_S = 4, 4096
#: What a search of an MLP's width times: all MLPs of a model, one MLP, or the ML Engineering book's single product.
Scope = Literal["model", "mlp", "product"]

#: Tokens of Llama 3's tokenizer, and of SmolLM2's up to so many parameters, where none is named.
VOCAB, SMALL_VOCAB, SMALL = 128256, 49152, 5e8
#: Published models up to about here tie embedding and head, and some up to this hidden size have heads of 64.
TIED, MOST_OF_64 = 4e9, 2048
#: Widths of MLPs are multiples of it, as LLaMA's are.
WIDE = 256
#: How far from a budget a model may be that is called one of it.
MISSED = 0.25

#: Sizes as somebody gave them; a vocabulary may be a tokenizer's name.
Dimensions = Mapping[str, int | str | None]
_TABLES = table_of(__file__, "tables.toml")
#: Dimension -> the command line's option of it.
OPTIONS: dict[str, str] = _TABLES["options"]
#: Those that are keywords of ``search`` under their own names.
DIMENSIONS = tuple(OPTIONS)[1:]


@frozen
class Baseline:
    """``parameters`` is the budget of a model search (None: the model's own).

    ``stack``: what runs it, the file's format's where none was named, on which `check` will price what is proposed
    (None: there is no file, and kernels alone are priced). ``given``: fields of the workload that somebody named.
    """

    model: ModelShape
    workload: Workload
    parameters: float | None = None
    scope: Scope = "mlp"
    stack: SoftwareStack | None = None
    given: frozenset[str] = frozenset()
    notes: Names = ()

    @classmethod
    def from_config(
        cls,
        config: object,
        *,
        dimensions: Dimensions | None = None,
        parameters: float | None = None,
        scope: Scope = "model",
        step: int = 1,
        stack: str | SoftwareStack | None = None,
        **workload: Any,
    ) -> "Baseline":
        """``config`` as for ``sizer.check``, with dimensions changed. InputError for one that is not understood.

        One that its split does not divide gives way to the nearest that it does, widths in multiples of ``step``.
        """
        subject = read_subject(config, nearest=True, stack=stack, **workload)
        # A search shapes a model to train, which does not have a quantised release's formats.
        model = resize(subject.whole().in_formats(lambda _: None), **_given(dimensions))
        notes = subject.left_out
        if run := subject.asked:
            model, changes = _dividing(model, run, step)
            # Read again, so that the stack is the split's and what still does not divide is refused.
            subject = read_subject(replace(subject.reading, model=model), stack=stack, **workload)
            notes += (f"baseline: {in_words(changes)}, which --tp {run.t} divides",) * bool(changes)
        return cls(model, subject.workload, parameters, scope, subject.stack, subject.given, notes)

    @classmethod
    def from_dimensions(
        cls,
        h: int | None,
        *,
        dimensions: Dimensions | None = None,
        parameters: float | None = None,
        scope: Scope = "mlp",
        step: int = 1,
        shards: int = 1,
        **workload: Any,
    ) -> "Baseline":
        """A plain gated decoder of hidden size ``h``, 32 layers where nothing is said, split over ``shards``.

        Without ``h`` it is the `usual_model` of about ``parameters``. Where nothing is said d_ff is the multiple of 256
        and ``step`` nearest to 8h/3, heads are of 128 or 64, grouped.
        """
        given, usual = _given({"hidden": h, **(dimensions or {})}), {"dtype": "fp16"} if scope == "product" else {}
        run = Workload(**{"b": DEFAULT_B, "s": DEFAULT_S, **usual, **workload})
        if h is None and parameters is not None:
            vocab = next_multiple(given.pop("vocab", VOCAB if parameters > SMALL else SMALL_VOCAB), step)
            return cls(resize(usual_model(parameters, step, shards, run.p, vocab), **given), run, parameters, scope)
        if h is None:
            raise InputError("expected a configuration to start from, --h 4096 or --params 8B")
        count, dim = usual_heads(h, shards)
        if "heads" in given:
            count = given["heads"]
            refuse(h % count, f"expected a divisor of h = {h}", "heads", count)
            dim = h // count
        kv_heads = given.get("kv_heads") or (count if "heads" in given else usual_kv_heads(count, shards))
        wide = lcm(WIDE, step)
        width = given.get("d_ff") or max(1, round(8 * h / 3 / wide)) * wide
        attention = AttentionShape(count, kv_heads, dim, rotary_dim=dim)
        block = Block(attention, MlpShape(width), count=given.get("layers") or 32)
        model = ModelShape(
            "llama", (Stack("decoder", h, (block,)),), vocab=given.get("vocab") or next_multiple(VOCAB, step)
        )
        return cls(model, run, parameters, scope)


def _dividing(model: ModelShape, run: Workload, step: int) -> tuple[ModelShape, Sizes]:
    """``model`` with heads and widths that ``run`` divides, the next or the nearest, and what changed of it."""
    held, t = dimensions(model), run.t
    kv_heads = held.get("kv_heads", t)
    if t % kv_heads:
        kv_heads = next_multiple(kv_heads, t)
    heads = next_multiple(held.get("heads", t), lcm(t, kv_heads))
    found = {"heads": heads, "head_dim": held.get("head_dim", 1), "kv_heads": kv_heads}
    for name in ("d_ff", "shared_d_ff", "expert_d_ff"):
        if held.get(name, 0) % t:
            found[name] = max(1, round(held[name] / step)) * step
    found = among(found, held)
    return resize(model, **found), dict(sorted(found.items() - held.items()))


def on_a_cpu(h: int | None) -> Values:
    """The workload that is measured on a processor by default: a race needs thousands of runs of ten milliseconds.

    >>> on_a_cpu(512)
    {'b': 1, 's': 64, 'dtype': 'fp32'}
    """
    return {"b": 1, "s": 2 ** min(max(24 - 2 * ((h or 512) - 1).bit_length(), 4), 10), "dtype": "fp32"}


def sequences(tokens: int, workload: Named) -> Sizes:
    """b and s that make ``tokens``: of the s asked for, else of 4096, or one short sequence."""
    refuse("b" in workload, "expected -b or --tokens, not both", "tokens", tokens)
    s = int(workload.get("s") or min(DEFAULT_S, positive_int(tokens, "tokens")))
    refuse(tokens % s, f"expected a multiple of the sequence {s}", "tokens", tokens)
    return {"b": tokens // s, "s": s}


def _given(dimensions: Dimensions | None) -> Counts:
    found = {}
    for key, value in (dimensions or {}).items():
        if isinstance(value, str) and not value.isdigit():
            found[key] = tokenizer_size(value) or 0
            refuse(not found[key], "expected a size, or the name of a known tokenizer", OPTIONS[key], value)
        elif value is not None:
            found[key] = positive_int(int(value), OPTIONS[key])
    return found


def usual_kv_heads(heads: int, shards: int) -> int:
    """Key/value heads of grouped queries, as many as ``shards`` split: 8 as published models have, else 4, else all."""
    return next((kv for kv in (lcm(8, shards), lcm(4, shards)) if heads % kv == 0 and kv < heads), heads)


def usual_heads(h: int, shards: int) -> Pair:
    """Heads and their dimension: fours of 128 or 64 that add up to ``h`` and that ``shards`` divide.

    Where none do, so many eights of 128 as come nearest to ``h`` (gpt-oss has 64 of 64 at 2880).

    >>> usual_heads(4096, 8), usual_heads(2880, 8)
    ((32, 128), (24, 128))
    """
    for dim in (128, 64):
        if h % (dim * lcm(4, shards)) == 0:
            return h // dim, dim
    each = lcm(8, shards)
    return max(1, round(h / 128 / each)) * each, 128


def usual_model(parameters: float, step: int, shards: int, p: int, vocab: int) -> ModelShape:
    """The decoder of about ``parameters`` nearest to published practice that is aligned and splits as asked.

    Heads in multiples of 8 (below 16 of 4) and of ``shards``, of 128 or up to h 2048 of 64, grouped; layers in
    multiples of 4 and of ``p``, about 32 or, where that is more, h/128; d_ff about 3h, in multiples of 256 and of
    ``step``; tied up to ``TIED`` parameters.
    """
    refuse(not 1e7 <= parameters <= 1e14, "expected between 1e7 and 1e14 parameters (7B, 1.5e9)", "params", parameters)
    tied, each, wide = parameters <= TIED, lcm(4, shards), lcm(WIDE, step)
    found = []
    for heads, dim in product((one for one in range(each, 1024, each) if one < 16 or one % 8 == 0), (64, 128)):
        hidden, kv_heads = heads * dim, usual_kv_heads(heads, shards)
        usual, ends = max(32, hidden // 128), (vocab * (2 - tied) + 1) * hidden
        if not 1 / 6 < (ends + 12 * hidden**2 * usual) / parameters < 6:
            continue  # far off whatever its layers
        for layers in range(next_multiple(max(1, usual // 2), lcm(4, p)), 2 * usual + p, lcm(4, p)):
            rest = 2 * hidden * (hidden + kv_heads * dim + 1)
            width = max(1, round(((parameters - ends) / layers - rest) / (3 * hidden * wide))) * wide
            off = (
                abs(log(layers / usual)) + abs(log(width / hidden / 3)) + (dim == 64) * max(0, log(hidden / MOST_OF_64))
            )
            missed = abs((ends + layers * (rest + 3 * hidden * width)) / parameters - 1)
            attention = AttentionShape(heads, kv_heads, dim, rotary_dim=dim)
            found.append((off + 100 * max(0, missed - 0.01), missed, attention, layers, width))
    found = [one for one in found if one[1] <= MISSED]
    refuse(not found, "no usual decoder of so many parameters splits so", "params", parameters)
    _, _, attention, layers, width = min(found, key=itemgetter(0))
    block = Block(attention, MlpShape(width), count=layers)
    hidden = attention.heads * attention.head_dim
    return ModelShape("llama", (Stack("decoder", hidden, (block,)),), vocab=vocab, tied=tied)


#: Longest range that is searched: a typing error must not fill the memory.
MOST_VALUES = 1_000_000

#: Names of ``vary`` -> the dimensions that they let change. REACH: dimensions where more is better, whatever the time.
VARIABLE: dict[str, Names] = _TABLES["vary"]
REACH: dict[str, float] = _TABLES["reach"]


def resized(model: ModelShape, change: Named | IntegerTable) -> ModelShape:
    """``model`` with a change of its dimensions; a context is none."""
    return resize(model, **without({**change}, ("s",)))


def reaches(change: Named) -> list[Any]:
    """The values of a change, or of columns, that ``REACH`` names, turned so that less is better."""
    return [1.0 * change[name] ** power for name, power in REACH.items() if name in change]


class Candidates(Sequence[Sizes]):
    """Changes of the same dimensions, an array for each in ``columns``; an index gives the change at that place.

    >>> Candidates({"d_ff": np.array([64, 128]), "layers": np.array([2, 1])})[1]
    {'d_ff': 128, 'layers': 1}
    """

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self.columns = columns

    @classmethod
    def of(cls, changes: Sequence[Sizes]) -> "Candidates":
        """Changes that were made one by one."""
        if isinstance(changes, Candidates):
            return changes
        return cls({name: np.array([change[name] for change in changes]) for name in (changes[0] if changes else ())})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, place: Any) -> Any:
        """The change at a place; the candidates of a slice, of places or of a mask."""
        if isinstance(place, int):
            return {name: int(column[place]) for name, column in self.columns.items()}
        return Candidates({name: column[place] for name, column in self.columns.items()})

    def where(self, conditions: Mapping[str, Array], excluded: Counter[str]) -> "Candidates":
        """Those that meet all ``conditions``; what each leaves out that those before it did not is ``excluded``."""
        kept = np.ones(len(self), dtype=bool)
        for reason, condition in conditions.items():
            if left_out := int((kept & ~condition).sum()):
                excluded[reason] += left_out
            kept &= condition
        found: Candidates = self[kept]
        return found


@frozen
class Space:
    """What is searched: ``candidates`` are changes of ``model`` (dimensions) or ``workload`` (b, s).

    ``timed`` lists the operators of a step that are timed (None: all), measured as ``measured_parts`` of the model
    (None: whole layers and the head; none: their matrix products one by one).
    ``as_run``: a workload as a software stack runs it on a device, which then prices whole steps (None: kernels alone
    are added up).
    ``ruled``: rules can judge the candidates (not the book's single product). ``loss``: candidates' predicted loss over
    the baseline's, its error, and notes (None: quality was not asked for). ``excluded``: constraint, in words that a
    person can act on -> how many candidates it left out.
    """

    what: str
    model: ModelShape
    workload: Workload
    candidates: Candidates
    baseline: Sizes
    timed: Callable[[ModelShape, Workload], Iterable[Operator]] | None = None
    measured_parts: "tuple[PartName, ...] | None" = None
    as_run: Callable[[Workload, Device], Workload] | None = None
    ruled: bool = True
    loss: Callable[[Candidates], tuple[Array, Array, Names]] | None = None
    excluded: Sizes = field(default_factory=dict)
    notes: Names = ()

    @property
    def tokens(self) -> int:
        """The tokens that all times are for: the baseline's microbatch, or its global step if a stack runs it."""
        return self.workload.tokens * (self.workload.accumulation if self.as_run else 1)

    def where(self, conditions: Mapping[str, Array]) -> "Space":
        """This space with the candidates that meet all ``conditions``; InputError where there are none."""
        excluded = Counter[str]()
        kept = self.candidates.where(conditions, excluded)
        if not len(kept):
            raise nothing_left(self.what, excluded)
        return replace(self, candidates=kept, excluded={**self.excluded, **excluded})


def layers_named(words: Names, model: ModelShape, workload: Workload) -> Iterator[Operator]:
    """The layers' operators whose names hold one of ``words``: ``Space.timed`` of parts of a layer."""
    return (one for one in layer_operators(model, workload) if any(word in one.name for word in words))


#: Largest change of parameters where none is asked for, and those that follow where it leaves no candidate.
TOLERANCE, WIDER = 0.01, (0.02, 0.05, 0.1, 0.25)


@frozen
class Limits:
    """Bounds common to all spaces.

    ``tolerance``: largest relative change of parameters. ``low``..``high`` bound the searched dimension; every
    ``step``-th value is taken (None: the space's own choice). ``aspect`` bounds h/L and ``head_dims`` names the head
    dimensions allowed (None: the space's own choice); ``tp_ready``: candidates also split over so many tensor-parallel
    shards (None: over the workload's); ``vary``: names of ``VARIABLE``, which are tried halved and doubled. ``spread``:
    the factor within which a whole model's shape stays (None: the space's own choice).
    """

    tolerance: float = TOLERANCE
    low: int | None = None
    high: int | None = None
    step: int | None = None
    aspect: tuple[float, float] | None = None
    head_dims: Ints | None = None
    tp_ready: int | None = None
    vary: Names | None = None
    spread: float | None = None

    def __post_init__(self) -> None:
        low, high, aspect = self.low, self.high, self.aspect or (1.0, 1.0)
        check_bounds(tolerance=self.tolerance, step=self.step, tp_ready=self.tp_ready)
        refuse(
            low is not None and high is not None and low > high,
            "expected LOW:HIGH with LOW at most HIGH",
            "--range",
            f"{low}:{high}",
        )
        refuse(
            not 0 < aspect[0] <= aspect[1],
            "expected LOW:HIGH, positive, LOW at most HIGH",
            "--limit aspect",
            f"{aspect[0]:g}:{aspect[1]:g}",
        )
        for name in self.vary or ():
            refuse(name not in VARIABLE, f"expected some of {', '.join(VARIABLE)}", "--limit vary", name)
        for number in self.head_dims or ():
            positive_int(number, "--limit head-dim")

    def shards(self, t: int) -> int:
        """Tensor-parallel shards that candidates split over, of a workload that runs on ``t``."""
        return lcm(t, self.tp_ready or 1)

    def values(self, low: int, high: int, step: int) -> range:
        """Multiples of the step within the range asked for, else within ``low``..``high``."""
        low, high = self.low if self.low is not None else low, self.high if self.high is not None else high
        step = self.step or step
        found = range(next_multiple(max(low, 1), step), high + 1, step)
        refuse(
            len(found[:MOST_VALUES]) == MOST_VALUES,
            f"expected fewer than {MOST_VALUES} values",
            "--range",
            f"{low}:{high}",
        )
        return found


@frozen
class Request:
    """The input of a space; ``excluded``: constraint -> how many candidates it has left out so far."""

    what: str
    baseline: Baseline
    device: Device
    limits: Limits
    excluded: Counter[str] = field(default_factory=Counter)

    @property
    def model(self) -> ModelShape:
        return self.baseline.model

    @property
    def workload(self) -> Workload:
        return self.baseline.workload

    @property
    def shards(self) -> int:
        """Tensor-parallel shards that candidates split over."""
        return self.limits.shards(self.workload.t)

    @property
    def step(self) -> int:
        """Sizes that are multiples of this are aligned on every shard."""
        return self.device.alignment_elements(self.workload.dtype) * self.shards

    def space(self, candidates: Sequence[Sizes], *notes: str, model: ModelShape | None = None, **fields: Any) -> Space:
        """The space of ``candidates``, each with values for the same names. ``fields``: those of ``Space``."""
        if not len(candidates):
            raise nothing_left(self.what, self.excluded)
        model, changed = model or self.model, Candidates.of(candidates)
        own = {**dimensions(model), "s": self.workload.s}
        return Space(
            self.what,
            model,
            self.workload,
            changed,
            {name: own[name] for name in changed.columns},
            excluded=self.excluded,
            notes=notes,
            **fields,
        )


def whole_heads(heads: int, kv_heads: int, t: int) -> bool:
    """Whether ``t`` shards hold whole heads; key/value heads fewer than the shards are copied."""
    return heads % t == 0 and (kv_heads % t == 0 or t % kv_heads == 0)


class NothingLeftError(InputError):
    """Constraints leave no candidate."""


def nothing_left(what: str, excluded: Sizes) -> NothingLeftError:
    """The error of a search whose constraints leave no candidate: it names the one that excludes the most."""
    if not excluded:
        return NothingLeftError(f"no candidate for {what}: widen --range or --tolerance")
    worst = max(excluded, key=excluded.__getitem__)
    said = f"{worst} excludes the most ({excluded[worst]}); widen the limit it names, or widen --range or --tolerance"
    return NothingLeftError(f"no candidate for {what} is left: {said}{', or search --what model' * (what != 'model')}")


#: Values of an objective that differ by less than this share are a tie: no device tells them apart.
TIE = 0.005
#: And losses, by less than this one.
EQUAL = 0.001


#: Name of an objective -> its weight, a positive factor on a candidate's seconds; the candidate with the least product
#: is the best. It is a function of one candidate, or of many as arrays: the timed FLOPs, layers and parameters.
OBJECTIVES: Mapping[str, Function] = {
    "step-time": lambda one: 1.0,
    "layer-time": lambda one: 1 / one.layers,
    "time-per-parameter": lambda one: 1 / one.parameters,
    "tflops": lambda one: 1 / one.flops,
}


#: Time at equal parameters: what more of them are worth is taken off, and doing less work is no gain.
DEFAULT_OBJECTIVE = "time-per-parameter"
