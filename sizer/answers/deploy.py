"""What engines do with a model's shapes on so many ranks in a format: load, pad, copy, fall back or refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.engines import ALIASES, ENGINES, FORMATS, Engine, Fact, Verdict, load_engine
from shapes.errors import InputError, positive_int
from shapes.frozen import frozen
from shapes.json_form import shown
from shapes.model import AttentionShape, MlaShape, ModelShape
from shapes.model.resize import Side, dimensions, sides
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


@frozen
class Deployed:
    """One engine's answer: the worst of its ``outcomes``, which hold those that pass as well."""

    engine: str
    title: str
    version: str
    outcomes: tuple[FactOutcome, ...]

    JSON = shown("verdict", facts="outcomes")

    @property
    def verdict(self) -> Verdict:
        return max((one.verdict for one in self.outcomes), key=VERDICTS.index, default="unknown")


@frozen
class Deployment(Printable):
    """A model over ``tp`` ranks, its experts whole on ``ep`` groups of them, in ``recipe`` on ``device``."""

    path: str
    model_type: str
    tp: int
    ep: int
    recipe: str
    device: str
    engines: tuple[Deployed, ...]

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
    """What each of ``engines`` (all that are known) does with ``config`` over ``tp`` ranks in the format ``recipe``.

    ``config``: what ``sizer.check`` takes, but a module. ``ep``: ranks that experts are spread over whole; tp / ep
    ranks then cut each. ``recipe``: bf16, fp8 (a scale a tensor), fp8-block, mxfp8, nvfp4, int8 or int4, or the name of
    one of ``shapes.recipes`` (None: the format that most of a quantised release is in, else bf16). Raises InputError
    for what cannot be read or is none of these.
    """
    positive_int(tp, "tp", maximum=2**20)
    positive_int(ep, "ep", maximum=2**20)
    if tp % ep and ep % tp:
        raise InputError(f"expected a divisor or a multiple of tp = {tp}", key="ep", value=ep)
    reading = read_model(config, config_format=config_format)
    form, unknown = _released_in(reading.model) if recipe is None else (ALIASES.get(recipe, recipe), ())
    if form not in FORMATS:
        raise InputError(f"expected one of {', '.join((*FORMATS, *ALIASES))}", key="recipe", value=recipe)
    target = load_device(device)
    found = tuple(
        _deployed(load_engine(name), reading.model, tp, max(1, tp // ep), form, target) for name in engines or ENGINES
    )
    found = tuple(replace(one, outcomes=(*one.outcomes, *unknown)) for one in found)
    return Deployment(reading.source, reading.model.model_type, tp, ep, form, target.name, found)


def _released_in(model: ModelShape) -> tuple[str, tuple[FactOutcome, ...]]:
    """Of FORMATS what most of a quantised release is in; bf16 where it is not quantised or no engine's facts are known

    of its format, which is then said.
    """
    if not (formats := model.formats):
        return "bf16", ()
    most = max(formats, key=lambda one: formats[one])
    found = most.title.split()[0] if most.recipe is None else ALIASES.get(most.recipe, most.recipe)
    if found in FORMATS and (most.bits == 4) == (found in ("int4", "nvfp4")):
        return found, ()
    said = f"released in {most.title}, of which no fact is known: these are of bf16"
    return "bf16", (FactOutcome("format", "unknown", said, "config.json"),)


def _deployed(engine: Engine, model: ModelShape, tp: int, expert_tp: int, form: str, device: Device) -> Deployed:
    if form not in engine.formats:
        missing = FactOutcome("format", "refused", f"no {form} among {', '.join(engine.formats)}", engine.repository)
        return Deployed(engine.name, engine.title, engine.version, (missing,))
    outcomes = [
        outcome
        for fact in engine.facts
        if form in fact.formats and _has(model, fact.needs)
        for outcome in _outcomes(fact, model, tp, expert_tp, device)
    ]
    return Deployed(engine.name, engine.title, engine.version, tuple(outcomes))


def _has(model: ModelShape, needs: str) -> bool:
    kinds = {"": object, "keys": AttentionShape, "latent": MlaShape}
    return isinstance(model.attention, kinds[needs])


def _outcomes(fact: Fact, model: ModelShape, tp: int, expert_tp: int, device: Device) -> Iterator[FactOutcome]:
    if fact.check == "generation":
        holds = device.architecture in fact.generations
        yield _said(fact, holds, f"{device.name} is {device.architecture}", f"for {', '.join(fact.generations)}")
    elif fact.check == "multiple":
        yield from _multiples(fact, model, tp, expert_tp)
    else:
        yield from _sizes(fact, model, tp, expert_tp)


def _sizes(fact: Fact, model: ModelShape, tp: int, expert_tp: int) -> Iterator[FactOutcome]:
    """What is asked of whole dimensions."""
    held = dimensions(model)
    for name in fact.of:
        if name not in held:
            continue
        ranks = expert_tp if name == "expert_d_ff" else tp
        size = -(-held[name] // fact.padded) * fact.padded
        said = f"{name} {size}"
        if fact.check == "shares":
            yield _said(
                fact, size % ranks == 0 or ranks % size == 0, said, f"neither divides nor is divided by {ranks}"
            )
        elif fact.check == "enough":
            yield _said(fact, size >= ranks, said, f"each on {-(-ranks // size)} of {ranks} ranks")
        else:
            step = fact.multiple if fact.check == "whole" else ranks
            want = f"not a multiple of {step}" if fact.check == "whole" else f"does not divide over {ranks} ranks"
            yield _said(fact, size % step == 0, said, want, size, -(-size // step) * step)


def _multiples(fact: Fact, model: ModelShape, tp: int, expert_tp: int) -> Iterator[FactOutcome]:
    """What is asked of each shard of every matrix, as serving engines merge them: the worst side of each dimension."""
    worst: dict[str, Side] = {}
    for side in sides(model, tp, expert_tp, fused=True):
        if side.dimension not in fact.of or (fact.cut and side.shards == 1 and not side.merged):
            continue
        known = worst.setdefault(side.dimension, side)
        if side.features % fact.multiple and known.features % fact.multiple == 0:
            worst[side.dimension] = side
    for side in worst.values():
        features, padded = side.features, -(-side.features // fact.multiple) * fact.multiple
        name = f"{side.whole}/{side.shards} = {features}" if side.shards > 1 else str(features)
        said = f"{side.matrix}: {name}"
        yield _said(fact, features == padded, said, f"not a multiple of {fact.multiple}", features, padded)


def _said(fact: Fact, holds: bool, said: str, otherwise: str, size: int = 0, padded: int = 0) -> FactOutcome:
    if holds:
        return FactOutcome(fact.topic, "loads", said, fact.source)
    share = padded / size - 1 if fact.otherwise == "pads" and size else 0.0
    words = f": {otherwise}" if fact.check != "generation" else f", {otherwise} alone"
    to = f", padded to {padded} ({share:.2%} more)" if share else ""
    instead = f"; {fact.instead}" if fact.instead else ""
    return FactOutcome(fact.topic, fact.otherwise, f"{said}{words}{to}{instead}", fact.source, share)
