"""How engines take a model's shapes on so many ranks in a format: they load, pad, copy, fall back or refuse."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.dtypes import next_multiple
from shapes.engines import FORMATS, USES, Engine, Fact, Verdict, list_engines, load_engine
from shapes.errors import InputError, one_of, positive_int, refuse
from shapes.frozen import Ints, Names, Pair, frozen, replace
from shapes.memory import memory
from shapes.memory.engine import UTILIZATION, engine_bytes, most_requests
from shapes.model import AttentionShape, MlaShape, ModelShape
from shapes.model.resize import Side, dimensions, sides
from shapes.toml_table import spelled
from shapes.workload import Workload
from sizer.printing import Printable
from sizer.subject import read_model

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@frozen
class FactOutcome:
    """One fact of an engine about the model. ``padded_share``: elements added over those there are; 0 otherwise."""

    topic: str
    verdict: Verdict
    message: str
    source: str
    padded_share: float = 0.0


class RequestFit(NamedTuple):
    """Bytes of a rank for one request of ``context`` tokens, and the ``limit_bytes`` that a serving engine takes.

    ``requests``: so many fit (None: more than are searched).
    """

    weight_bytes: int
    needed_bytes: int
    limit_bytes: int
    context: int
    requests: int | None

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.limit_bytes


@frozen
class Deployed:
    """One engine's answer: the worst of its ``outcomes``, which hold those that pass as well.

    ``taken_at``: tensor-parallel degrees up to 64 at which it takes the model, looked for where an engine refuses.
    """

    engine: str
    title: str
    use: str
    version: str
    read: str
    outcomes: tuple[FactOutcome, ...]
    taken_at: Ints = ()

    @property
    def verdict(self) -> Verdict:
        return max((one.verdict for one in self.outcomes), key=VERDICTS.index, default="unknown")


@frozen
class Deployment(Printable):
    """A model over ``tp`` ranks, its experts whole on ``ep`` groups of them, in ``recipe`` on ``device``.

    ``memory``: None where the model cannot be split so, which is then refused.
    """

    path: str
    model_type: str
    tp: int
    ep: int
    recipe: str
    device: str
    memory: RequestFit | None
    engines: tuple[Deployed, ...]
    notes: Names

    COMMAND = "deploy"

    @property
    def ok(self) -> bool:
        """Whether no engine refuses the model."""
        return all(one.verdict != "refused" for one in self.engines)


def deploy(
    config: object,
    *,
    tp: int = 1,
    ep: int = 1,
    recipe: str | None = None,
    device: str | Device = DEFAULT_DEVICE,
    engines: Sequence[str] = (),
    config_format: str | None = None,
) -> Deployment:
    """How each of ``engines`` takes ``config`` over ``tp`` ranks in the format ``recipe``, and whether it fits.

    ``config``: as for ``sizer.check``, but no module. ``ep``: ranks that hold whole experts; tp / ep ranks then cut
    each. ``recipe``: bf16, tensorwise or blockwise fp8, mxfp8, mxfp4, nvfp4, int8 or int4, or the name of one of
    ``shapes.recipes`` (None: the format of most of a quantised release, which trainers that do not run it unpack; else
    bf16). ``engines``: names, or "serving", "training", "fine-tuning" (none: all that run the format). Raises
    InputError for an input that cannot be read, and for names that are none of these.
    """
    positive_int(tp, "tp", 2**20)
    positive_int(ep, "ep", 2**20)
    refuse(tp % ep and ep % tp, f"expected a divisor or a multiple of tp = {tp}", "ep", ep)
    own = None if recipe is None else one_of(spelled(recipe, "recipe", FORMATS), FORMATS, "recipe")
    target = load_device(device)
    uses = *list_engines(), *USES
    engines = [one_of(spelled(name, "engine", uses), uses, "engine") for name in engines]
    reading = read_model(config, config_format=config_format)
    model = reading.model
    refuse(
        not model.vocab,
        "expected a language model: engines' facts are known for those (`sizer memory` says whether another fits)",
        "deploy",
        model.model_type,
        where=reading.source,
    )
    form, unknown = (own, ()) if own else _released_in(model)
    among = {}
    for one in map(load_engine, list_engines()):
        unpacking = None if own else one.unpacking(form)
        if one.name in engines or ((unpacking or form in one.formats) and (not engines or one.use in engines)):
            among[one] = unpacking

    def over(ranks: int) -> tuple[RequestFit | None, list[Deployed]]:
        served = _served(model, ranks, ep, target, own)
        return served, [
            _deployed(one, model, (ranks, ep), form, unpacking, target, served, unknown)
            for one, unpacking in among.items()
        ]

    served, found = over(tp)
    if any(one.verdict == "refused" for one in found):
        # Powers of two, and what the heads divide over: degrees that people run.
        heads = dimensions(model).get("heads", 1)
        others = [at for at in range(1, 65) if 0 in (64 % at, heads % at) and 0 in (at % ep, ep % at)]
        taken = [(one.engine, at) for at in others for one in over(at)[1] if one.verdict not in ("refused", "unknown")]
        found = [replace(one, taken_at=tuple(at for engine, at in taken if engine == one.engine)) for one in found]
    return Deployment(
        reading.source, model.model_type, tp, ep, form, target.name, served, tuple(found), reading.left_out
    )


#: Tokens of the request that has to fit.
CONTEXT = 4096


def _served(model: ModelShape, tp: int, ep: int, device: Device, form: str | None) -> RequestFit | None:
    """Memory of a rank (``form``: None, the release's own); None where the split cannot be, or nothing is decoded."""
    spread = max(1, ep // tp)
    context = min(CONTEXT, model.max_positions or CONTEXT)
    workload = Workload(phase="decode", b=1, s=1, context=context, t=tp, e=spread, d=spread)
    held = "fp8" if form in ("tensorwise", "blockwise") else form  # what elements are held in; only the scales differ
    try:
        return RequestFit(
            memory(model, workload, weight_dtype=held).components["weights"],
            engine_bytes(model, workload, held),
            int(UTILIZATION * device.memory.bytes),
            context,
            most_requests(model, workload, device, UTILIZATION, held),
        )
    except InputError:
        return None


def _released_in(model: ModelShape) -> tuple[str, tuple[FactOutcome, ...]]:
    """The one of FORMATS that most of a quantised release is in.

    bf16 where it is not quantised, or where no engine's facts are known of its format, which is then said.
    """
    if not (formats := model.formats):
        return "bf16", ()
    most = max(formats, key=formats.__getitem__)
    found = most.title.split()[0].lower() if most.recipe is None else spelled(most.recipe, "recipe", FORMATS)
    if found in FORMATS and (most.bits == 4) == (found in ("int4", "mxfp4", "nvfp4")):
        return found, ()
    return "bf16", (
        FactOutcome(
            "format",
            "unknown",
            f"released in {most.title}, about which no fact is known: these facts are for bf16",
            "config.json",
        ),
    )


def _deployed(
    engine: Engine,
    model: ModelShape,
    ranks: Pair,
    form: str,
    unpacking: Fact | None,
    device: Device,
    served: RequestFit | None,
    unknown: tuple[FactOutcome, ...],
) -> Deployed:
    said = []
    if unpacking:
        said.append(_said(unpacking, False, f"released in {form}", "unpacked to 16 bits"))
        form = "bf16"
    runs = form in engine.formats
    if not runs:
        said.append(FactOutcome("format", "refused", f"no {form} among {', '.join(engine.formats)}", engine.repository))
    elif engine.use == "serving" and served and not served.fits:
        said.append(FactOutcome("memory", "refused", "a request does not fit", "sizer memory --phase decode"))
    of_format = False
    for fact in engine.facts * runs:
        if form in fact.formats and isinstance(model.attention, _KINDS[fact.needs]):
            outcomes = list(_outcomes(fact, model, ranks, device))
            of_format |= bool(outcomes) and fact.formats != FORMATS
            said += outcomes
    if form != "bf16" and runs and not of_format:
        said.append(FactOutcome("format", "unknown", f"nothing is known of {form} here", engine.repository))
    return Deployed(engine.name, engine.title, engine.use, engine.version, engine.read, (*said, *unknown))


#: A fact's need -> the kind of attention that a model has to have for it.
_KINDS = {"": object, "keys": AttentionShape, "latent": MlaShape}


def _outcomes(fact: Fact, model: ModelShape, ranks: Pair, device: Device) -> Iterator[FactOutcome]:
    tp, ep = ranks
    expert_tp = max(1, tp // ep)
    if fact.check == "generation":
        yield _said(
            fact,
            device.architecture in fact.generations,
            f"{device.name} is {device.architecture}",
            f"only for {', '.join(fact.generations)}",
        )
    elif fact.check == "multiple":
        yield from _multiples(fact, model, tp, expert_tp)
    else:
        own = {} if fact.every else {"expert_d_ff": expert_tp, "experts": ep}
        held = dimensions(model) | {one.name: one.layers for one in model.stacks[1:]} | {model.model_type: model.layers}
        if mixer := model.mixer:
            held["recurrent_inputs"] = mixer.width(*mixer.form.parts)
        for name in fact.of:
            if name in held:
                yield _size(fact, name, next_multiple(held[name], fact.padded), own.get(name, tp))


def _size(fact: Fact, name: str, size: int, ranks: int) -> FactOutcome:
    """The outcome of a whole dimension over ``ranks``."""
    step = {"whole": fact.multiple, "shards": fact.multiple * ranks}.get(fact.check, ranks)
    whole, over = size % ranks == 0, f"does not divide over {ranks} ranks"
    holds, otherwise = {
        "absent": (False, "not taken"),
        "divides": (whole, over),
        "one": (whole or size == 1, over),
        "shares": (whole or ranks % size == 0, f"neither divides nor is divided by {ranks}"),
        "enough": (size >= ranks, f"each on {-(-ranks // size)} of {ranks} ranks"),
    }.get(fact.check, (size % step == 0, f"not a multiple of {step}"))
    return _said(fact, holds, f"{name} {size}", otherwise, size, next_multiple(size, step))


def _multiples(fact: Fact, model: ModelShape, tp: int, expert_tp: int) -> Iterator[FactOutcome]:
    """Outcomes of a fact on multiples for the worst shard of each dimension, matrices merged as engines merge them."""
    asked = dict[str, list[Side]]()
    for side in sides(model, tp, expert_tp, fused=True):
        if side.dimension in fact.of and (not fact.cut or side.shards > 1 or (side.merged and fact.merged)):
            asked.setdefault(side.dimension, []).append(side)
    for own in asked.values():
        side = min(own, key=lambda side: side.features % fact.multiple == 0)
        padded = next_multiple(side.features, fact.multiple)
        yield _said(
            fact,
            side.features == padded,
            f"{side.matrix}: {side.share}",
            f"not a multiple of {fact.multiple}",
            side.features,
            padded,
        )


def _said(fact: Fact, holds: bool, said: str, otherwise: str, size: int = 0, padded: int = 0) -> FactOutcome:
    if holds:
        return FactOutcome(fact.topic, "loads", said, fact.source)
    share = padded / size - 1 if fact.otherwise == "pads" and size else 0.0
    to = f", padded to {padded} ({share:.2%} more)" if share else ""
    instead = f"; {fact.instead}" if fact.instead else ""
    return FactOutcome(fact.topic, fact.otherwise, f"{said}: {otherwise}{to}{instead}", fact.source, share)
