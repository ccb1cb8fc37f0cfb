"""Rules' findings with their severity and their suggestions, each priced; findings of one cause are merged.

A severity has two sources (the paragraph "Grading" of the catalogue). A requirement of a kernel, or a source's plain
recommendation, is a warning when it is broken, whatever its price. A cost alone is a warning when fixing it saves
enough of a step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from math import inf

from shapes.cost.constants import gemm_constants, least_certain
from shapes.cost.corrections import family_table
from shapes.device import Device
from shapes.errors import InputError, refuse
from shapes.frozen import Names, Numbers, Values, among, frozen, replace, without
from shapes.model.resize import DIMENSIONS, MULTIPLES, dimensions, resize
from shapes.operators.parallel import split_problems
from shapes.operators.types import Attention
from shapes.step import CostSource, Pricer, Step, StepCost
from shapes.step.stack import SoftwareStack
from shapes.workload import WORKLOAD_FIELDS, Workload
from sizer.readers import Source
from sizer.rules import RULES
from sizer.rules.base import Context, Finding, Judgement, NotApplicable, Rule, Suggestion, within
from sizer.rules.dimensions import ALTERNATIVES
from sizer.subject import Subject, read_model, read_subject, resized_subject, run_on

from .findings import SEVERITIES, Change, PricedFinding, PricedSuggestion, Severity
from .project import Suppression


def of_dimensions(change: Change) -> bool:
    """Whether a change touches the model's dimensions alone, not its workload."""
    return set(change) <= set(DIMENSIONS)


def dimensions_and_fields(change: Change) -> tuple[dict[str, int | str], Values]:
    """A change in two parts: the model's dimensions, and the workload's fields."""
    dims = among(change, DIMENSIONS)
    return dims, without(change, dims)


def changed_subject(subject: Subject, change: Change) -> Subject:
    """``subject`` with dimensions and workload fields changed; InputError where that is no model or cannot be split."""
    dims, asked = dimensions_and_fields(change)
    model, held = subject.whole(), subject.dimensions
    keys = subject.reading.keys if subject.reading else {name: name for name in held}
    refuse(
        bool(keys) and not dims.keys() <= keys.keys(), "expected dimensions that the file has keys for", "change", dims
    )
    # One key may set two dimensions (Jamba's MLPs and experts): both change.
    dims |= {other: dims[name] for name in [*dims] for other in held if name in keys and keys.get(other) == keys[name]}
    if "expert_d_ff" in dims and "shared_d_ff" in held and "shared_d_ff" not in keys:
        # The file gives the width of shared experts as a number of experts, so it scales with an expert's width.
        dims["shared_d_ff"] = held["shared_d_ff"] * int(dims["expert_d_ff"]) // held["expert_d_ff"]
    model = resize(model, **dims) if dims else model  # type: ignore[arg-type]
    reading = subject.reading
    if "hidden" in dims and "d_ff" not in dims and reading and reading.config and not reading.recognised:
        # A width that the file leaves out follows the hidden size, by the reader's own default.
        said = {keys[name]: value for name, value in dimensions(model).items() - held.items() if name in keys}
        read = dimensions(read_model(Source(reading.config, said), config_format=reading.format).model)
        model = resize(model, d_ff=read["d_ff"]) if "d_ff" in read else model
    workload = replace(subject.asked or subject.workload, **asked)
    changed = resized_subject(subject, model, workload)
    if not subject.asked:
        return changed
    # Judge the split that the change asks for, not the one that it replaces.
    return replace(changed, asked=workload if split_problems(model, workload) else None)


def named_change(change: Change, before: Subject, after: Subject) -> dict[str, int | str]:
    """The change under the file's own names, with the dimensions that follow from it and have a key there."""
    old = dimensions(before.whole()).items()
    full = {**change, **{key: value for key, value in dimensions(after.whole()).items() if (key, value) not in old}}
    keys = before.reading.keys if before.reading else {}
    return {before.name_of(key): value for key, value in full.items() if key in change or not keys or key in keys}


#: (A rule's code, the field that it names) -> how bad it is. 2: nothing runs so. 1: the rule is broken outright. 0: it
#: is met in part (a head dimension of 96 on an alignment of 64).
Objection = tuple[str, str]
Objections = Mapping[Objection, int]


def context_of(subject: Subject, device: Device, step: Step) -> Context:
    """What the rules may look at: ``subject``, the workload that was asked for, and the operators of ``step``.

    A vision tower's operators are left out: rules speak of the text tower's dimensions.
    """
    own = [pair for pair in step.priced if not pair[0].name.startswith("vision.")]
    return Context(
        model=subject.model,
        workload=subject.asked or subject.workload,
        device=device,
        operators=[operator for operator, _ in own],
        costs=[cost for _, cost in own],
        dimensions=subject.dimensions,
        given=subject.given,
        dtype=subject.workload.dtype,
        kept=subject.kept,
        step=step.cost,
        stack=subject.stack,
        unread=subject.unread,
        parameters=subject.parameters,
        unproven=subject.unproven,
    )


def objections(context: Context, unsplit: Workload | None = None) -> Objections:
    """Violations of the rules on shapes and splits in ``context`` (``unsplit``: as ``_answer`` takes it)."""
    return objections_in((rule, _answer(rule, context, unsplit)) for rule in RULES if not rule.of_costs)


def objections_in(answers: Iterable[tuple[Rule, Judgement]]) -> Objections:
    """What the ``answers`` of the rules on shapes and splits object to."""
    found = dict[Objection, int]()
    for rule, answer in answers:
        if not rule.of_costs:
            for finding in answer:
                key = rule.code, finding.field
                found[key] = max(found.get(key, 0), 2 * finding.error, finding.violated)
    return found


def worse(after: Objections, before: Objections, least: int = -1) -> Names:
    """Codes of the rules that object to ``after`` more than to ``before``.

    ``least``: the grade from which a new objection counts. 0: a rule that is met in part is none, because the change is
    of the split, or ``before`` had none that runs.
    """
    return tuple(dict.fromkeys(key[0] for key, grade in after.items() if grade > before.get(key, least)))


@frozen
class Proposals:
    """Each rule's answer about ``subject`` (None: the rule is suppressed), by the predicted costs of ``step``.

    ``subject`` has an element type that the pricer's device runs. ``asked``: the workload as it was given. ``broken``:
    the shape rules that the subject violates, suppressed ones too. ``measured``: the step was timed on the device at
    hand.
    """

    subject: Subject
    asked: Workload
    pricer: Pricer
    step: Step
    broken: Objections
    answers: tuple[tuple[Rule, Judgement | None], ...]
    suppression: Suppression
    measured: bool = False

    @property
    def device(self) -> Device:
        return self.pricer.device

    def timed_by(self, source: CostSource) -> "Proposals":
        """The same proposals, priced by measured seconds."""
        pricer = Pricer(self.device, source)
        return replace(self, pricer=pricer, step=pricer.step(self.subject.operators), measured=True)

    def findings(self) -> Iterator[tuple[Rule, Finding]]:
        for rule, answer in self.answers:
            yield from ((rule, finding) for finding in answer or ())

    def changed_subjects(self) -> Iterator[Subject]:
        """The subject under each suggested change of dimensions: the models that measuring would time."""
        for _, finding in self.findings():
            for suggestion in finding.suggestions:
                if of_dimensions(suggestion.change):
                    with suppress(InputError):  # no such model or split: it has no price either
                        yield changed_subject(self.subject, suggestion.change)


def propose(subject: Subject, device: Device, suppression: Suppression | None = None) -> Proposals:
    """Run every rule once; the suppressed ones too, to know what is broken before a suggestion is applied."""
    asked, suppression = subject.asked or subject.workload, suppression or Suppression()
    # Without its ranks the split no longer makes up the number of devices, which is no finding (SZ120).
    unsplit = replace(subject.workload, gpus=None) if subject.asked else None
    subject = _on_device(run_on(subject, device), device)
    # One attention factor for the subject and its suggestions, so that their prices compare.
    dims = {op.head_dim for op in subject.operators if isinstance(op, Attention)}
    stack = subject.stack.for_head_dims_near(device.architecture, *dims) if len(dims) == 1 else subject.stack
    pricer = Pricer(device, stack=stack)
    step = pricer.step(subject.understood, subject.workload, subject.model)
    # SZ119 judges the element type that was asked for.
    context = replace(context_of(subject, device, step), workload=asked)
    own = subject.workload
    fixed = own.frozen_architecture or bool(own.finetune) or (not own.train and subject.released)
    answered = [(rule, _answer(rule, context, unsplit)) for rule in RULES]
    if fixed:
        answered = [(rule, _in_reach(one)) for rule, one in answered]
    answers = tuple((rule, one if suppression.keeps(rule.code, subject.where) else None) for rule, one in answered)
    return Proposals(subject, asked, pricer, step, objections_in(answered), answers, suppression)


def _in_reach(answer: Judgement) -> Judgement:
    """Advice on a model whose weights exist already (tuned or served): only how it is run can change.

    A breach that nobody can mend becomes a note; a cost that nobody can save is dropped.
    """
    if isinstance(answer, NotApplicable):
        return answer
    kept = []
    for finding in answer:
        advice = tuple(one for one in finding.suggestions if set(one.change).isdisjoint(DIMENSIONS))
        if advice or finding.error or not (finding.suggestions or finding.field in DIMENSIONS):
            kept.append(replace(finding, suggestions=advice))
        elif finding.violated:
            kept.append(
                replace(finding, suggestions=(), violated=False, message=f"{finding.message} (as its weights are)")
            )
    return tuple(kept)


def _answer(rule: Rule, context: Context, unsplit: Workload | None) -> Judgement:
    """The rule's answer. ``unsplit``: the workload without a split that cannot run (None: the split runs).

    A split that cannot run has errors alone. Shape rules then judge the unsplit model, as no such shard will exist.
    Cost rules say nothing, as what would run is not what was asked for.
    """
    answer = rule.check(context)
    # A finding on e concerns experts' ranks, which may fold where no price is known of it.
    if not unsplit or any(one.error or one.field == "e" for one in answer):
        return answer
    if rule.of_costs:
        return NotApplicable("the split cannot be priced")
    return rule.check(replace(context, workload=unsplit))


def _on_device(subject: Subject, device: Device) -> Subject:
    """``subject`` in an element type that the device has, so that it can be priced; SZ119 reports the difference."""
    dtype = subject.workload.dtype
    if dtype in device.peak_flops:
        return subject
    instead = next((other for other in ALTERNATIVES[dtype] if other in device.peak_flops), dtype)
    device.peak(instead if subject.model else dtype)  # InputError for a type that it has no figures for
    changed = resized_subject(subject, subject.whole(), replace(subject.workload, dtype=instead, recipe=None))
    asked = replace(subject.asked, dtype=instead, recipe=None) if subject.asked else None
    return replace(
        changed, asked=asked, notes=(*subject.notes, f"times are those of {instead}: {device.name} has no {dtype}")
    )


#: A cost alone is a warning when fixing it saves at least this share of the step.
NOTABLE_SHARE = 0.01


@frozen
class Offer:
    """A suggestion with its price, the step that it was compared with, and the breaches that it fixes.

    ``saving``: seconds saved beyond what doing less work saves; a larger model's extra work earns no credit. It is at
    most the finding's own part (``Finding.at_most_s``), where the change saves by other causes too.
    """

    priced: PricedSuggestion
    step: Step
    fixes: frozenset[Objection]
    change: Change
    tier: str
    saving: float = 0.0

    def noted(self, note: str) -> "Offer":
        """The same offer with one more note."""
        return replace(self, priced=replace(self.priced, note="; ".join(filter(None, (self.priced.note, note)))))

    @property
    def change_s(self) -> float:
        return self.priced.step_seconds_change or 0.0


Offers = tuple[Offer, ...]


@frozen
class Graded:
    """One rule's finding, the offers that fix it, and the severity that follows."""

    rule: Rule
    finding: Finding
    offers: Offers
    severity: Severity

    @property
    def breach(self) -> Objection:
        return self.rule.code, self.finding.field


def grade(rule: Rule, finding: Finding, own: Proposals, predicted: Proposals) -> Graded:
    """``finding`` with those of its suggestions that make a model, split, run, and break no rule that is kept now.

    Changes of dimensions are priced by ``own`` source of seconds, those of the workload by ``predicted``.
    """
    subject = own.subject
    # A fix mends all that is broken at its field: a kernel's padding too, not the alignment alone.
    alike = {key for key in own.broken if key[1] == finding.field}
    offers = []
    for suggested in finding.suggestions:
        if not subject.model:  # no step has a price, so no saving is known
            named = {subject.name_of(key): value for key, value in suggested.change.items()}
            priced = PricedSuggestion(named, None, None, None, within_error=False, note=suggested.note)
            offers.append(Offer(priced, Step((), ()), frozenset(), suggested.change, ""))
            continue
        change = within(subject.asked or subject.workload, suggested.change, runs=subject.asked is None)
        suggestion = replace(suggested, change=change)
        by = own if of_dimensions(suggestion.change) else predicted
        offer = price_offer(suggestion, by, finding.at_most_s, runs=finding.error)
        if offer and (not finding.violated or alike <= offer.fixes):
            offers.append(offer if by is own else offer.noted(f"predicted for {by.device.name}"))
    # Memory that is nearly full is no loss of time; neither is room that recomputation leaves free.
    field = finding.field
    asked = field in subject.given - {"checkpointing"} if field in WORKLOAD_FIELDS else field != "memory"
    return Graded(rule, finding, tuple(offers), severity(finding, offers, asked=asked, measured=own.measured))


def severity(finding: Finding, offers: Sequence[Offer], *, asked: bool = True, measured: bool = False) -> Severity:
    """A breach is a warning at any price, unless it was measured and makes no difference there.

    A cost alone is a warning if an offer saves ``NOTABLE_SHARE`` of the step, beyond the error and beyond doing less
    work. It is none for a default that nobody ``asked`` for (a microbatch of 4).
    """
    if finding.error:
        return "error"
    if finding.violated and not (measured and offers):
        return "warning"
    notable = asked and any(
        not offer.priced.within_error and offer.saving >= NOTABLE_SHARE * offer.step.seconds for offer in offers
    )
    return "warning" if notable else "info"


def price_offer(suggestion: Suggestion, by: Proposals, at_most_s: float = inf, *, runs: bool = False) -> Offer | None:
    """Rebuild the model with the change and compare the two steps.

    None where no such model or split exists, or where the change breaks a rule that the subject keeps. ``runs``: it is
    enough that the changed split runs; what it breaks is then named instead.
    """
    subject, step, pricer = by.subject, by.step, by.pricer
    try:
        changed = changed_subject(subject, suggestion.change)
    except InputError:
        return None
    after = pricer.step(changed.operators, changed.workload, changed.model)
    unsplit = changed.workload if changed.asked else None
    left = objections(context_of(changed, pricer.device, after), unsplit)
    # Another split may meet a rule in part: what that costs is in its price.
    if worse(left, by.broken, -(not subject.asked and of_dimensions(suggestion.change))) and not (
        runs and not changed.asked
    ):
        return None
    scale = equal_work(subject, step, changed, after)
    gain = step.seconds - after.seconds * scale
    # A change of the workload alone does the same work for each token, wherever the slowest stage is.
    smaller = changed.model != subject.model and step.flops
    less_work = step.seconds * (1 - after.flops * scale / step.flops) if smaller else 0.0
    saving = min(gain - max(0.0, less_work), at_most_s)
    off_s = pricer.error_s(step, after)
    if changed.workload.t < subject.workload.t and pricer.stack and step.cost and after.cost:
        off_s += _of_fewer_shards(subject, pricer.stack, step.cost, after.cost, gain, scale)
    priced = PricedSuggestion(
        change=named_change(suggestion.change, subject, changed),
        step_seconds_change=-gain,
        parameters_change=changed.parameters - subject.parameters,
        flops_change=round(after.flops * scale) - step.flops,
        within_error=saving <= off_s,
        note="; ".join(filter(None, (suggestion.note, *_reservations(subject, changed, pricer.device, scale)))),
    )
    # An error is fixed once it is no error; everything else once it is gone.
    fixes = frozenset(key for key, grade in by.broken.items() if left.get(key, -1) < 2 * (grade == 2))
    return Offer(priced, step, fixes, suggestion.change, _tier(by, suggestion.change), saving)


def _of_fewer_shards(
    subject: Subject, stack: SoftwareStack, cost: StepCost, after: StepCost, gain: float, scale: float
) -> float:
    """Seconds of a smaller t's gain that are not certain.

    Messages may be hidden where no run says otherwise; sequence parallelism at the same t would share what each rank
    computes whole; and what data parallelism saves over a network that nobody stated is no fault of t.
    """
    messages_s, reduced_s = (
        cost.parts.get(part, 0.0) - after.parts.get(part, 0.0) * scale
        for part in ("tensor parallelism", "data parallelism")
    )
    off_s = messages_s * (stack.tiers["communication"] != "fitted") + max(0.0, reduced_s) * bool(cost.unknown)
    return off_s + (gain - messages_s) * ("sequence_parallel" not in subject.given)


def _reservations(subject: Subject, changed: Subject, device: Device, scale: float) -> Iterator[str]:
    """Notes on a change: published practice that it gives up, and what its price is compared with."""
    now = _practice(changed)
    if lost := [what for what, own in _practice(subject).items() if own and own != now[what]]:
        yield f"does not keep {', '.join(lost)}"
    # Attention factors of two head dimensions were fitted on different runs and do not compare: both steps use the
    # first's.
    dims = [one.dimensions.get("head_dim", 0) for one in (subject, changed)]
    if len({subject.stack.attention_factor(device.architecture, dim) for dim in dims}) > 1:
        yield f"by the stack's attention factor of head_dim {dims[0]}"
    if scale != 1.0:
        yield "at equal tokens and devices"
    if subject.workload.spread > changed.workload.spread and not subject.named_stack:
        yield f"both steps on {subject.stack.name}"
    if changed.asked:
        yield "needs the other errors mended too"
    elif subject.asked and changed.workload == subject.workload and changed.model == subject.model:
        yield "the times here are of it"


def _practice(subject: Subject) -> Numbers:
    """Published practice on heads that a suggestion keeps, or says that it does not (0: the subject has it not)."""
    heads, kv_heads, dim = (subject.dimensions.get(name, 1) for name in ("heads", "kv_heads", "head_dim"))
    return {
        f"heads for {SHARDS} shards": heads % SHARDS == 0,
        "the query heads of a key/value head": heads / kv_heads,
        "a power of two in head_dim": dim & (dim - 1) == 0,
    }


def _tier(by: Proposals, change: Change) -> str:
    """A price's tier: the least certain of products, misaligned products and, for a workload, the software stack."""
    if by.measured:
        return "measured"
    _, origin = gemm_constants(by.device, by.subject.workload.dtype)
    products = "fitted" if origin.own_device else "borrowed" if origin.same_vendor else "extrapolated"
    of = [products, "fitted" if family_table(by.device)["tier"] in ("published", "measured") else "extrapolated"]
    if by.step.cost and not of_dimensions(change):
        of.append(by.step.cost.tier)
    return least_certain(of)


def equal_work(subject: Subject, step: Step, changed: Subject, after: Step) -> float:
    """The factor on the changed step's seconds that gives a saving one meaning in each phase.

    Training: a step at equal tokens and devices (a larger microbatch does more work, a smaller t leaves devices free).
    Serving: latency as it is, to the first token or for each further one.
    """
    return 1.0 if subject.workload.serving else _tokens(subject, step) / _tokens(changed, after)


def _tokens(subject: Subject, step: Step) -> float:
    """Tokens of one data-parallel rank's step, over the devices that share them."""
    workload = subject.workload
    return workload.tokens * step.accumulation / workload.model_ranks


#: Suggestions that a finding lists.
MOST = 3
#: Models whose parameters differ by no more than this share are the same size.
SAME_SIZE = 0.02
#: Savings that differ by less than this share of the step are a tie, which alignment decides.
TIE = 0.005
#: In a tie multiples of so many elements are preferred: two cache lines of bf16 on each of 2, 4 or 8 shards.
PREFERRED = 256
SHARDS = 8


@frozen
class Cause:
    """One cause's finding, the offers that fix it, and the breaches (code, field) that it is of."""

    finding: PricedFinding
    offers: Offers
    breaches: frozenset[Objection]

    def mended_by(self, offer: Offer) -> bool:
        return not self.breaches.isdisjoint(offer.fixes)

    def fixed_by(self, offer: Offer) -> bool:
        """Whether ``offer`` mends it, or makes the same change as one of its own offers."""
        return self.mended_by(offer) or any(offer.change == own.change for own in self.offers)

    def left(self, own: Offers, there: PricedFinding | None) -> "Cause":
        """This cause with the offers ``own``; ``there``: the finding whose offers fix it too."""
        message = self.finding.message
        if there and not own:
            message += f"; what fixes {there.code} fixes it, priced there"
        return Cause(replace(self.finding, message=message, **_price_of(own)), own, self.breaches)


def _price_of(offers: Offers, saved_s: float | None = None) -> Values:
    """The fields of a finding that its best offer sets; ``saved_s``: its seconds where there is no offer."""
    best = max(offers, key=lambda offer: offer.saving, default=None)
    if best:
        saved_s = None if best.priced.step_seconds_change is None else max(0.0, best.saving)
    return {
        "suggestions": tuple(offer.priced for offer in offers),
        "step_seconds": saved_s,
        "within_error": best is not None and best.priced.within_error,
        "tier": least_certain(offer.tier for offer in offers) if saved_s and offers else "",
    }


def findings_by_cause(graded: Sequence[Graded], own: Proposals) -> list[Cause]:
    """One finding for each cause, the worst first, with the offers that fix it.

    A cost that no offer saves is left out, unless it was measured or no step has a price.
    """
    said = None if own.measured else _said(graded)
    found = dict[str, list[Graded]]()
    for one in sorted(graded, key=lambda one: (not one.finding.error, not one.finding.violated, one.rule.code)):
        found.setdefault(one.finding.cause or one.finding.field, []).append(one)  # the outright ones first
    causes = [cause for alike in found.values() if (cause := _merged(alike, own, said))]
    causes.sort(
        key=lambda one: (SEVERITIES.index(one.finding.severity), -(one.finding.step_seconds or 0.0), one.finding.code)
    )
    done = list[Cause]()
    for cause in causes:
        done.append(_priced_once(cause, done) if own.subject.model else cause)
    return done


def together(causes: Iterable[Cause], graded: Iterable[Graded], by: Proposals) -> PricedSuggestion | None:
    """One change of the first offer of each cause that is compatible with those taken before it.

    None where no two offers are compatible.
    """
    change: Change = {}
    taken, said, saved = list[Offer](), _said(graded), -inf
    for cause in causes:
        for offer in cause.offers:
            if change.keys() & offer.change or not _same_size(offer, by.subject):
                continue
            both = price_offer(Suggestion({**change, **offer.change}), by)
            # An offer that costs nothing is taken too: it mends its breach with the others.
            if not both or both.saving < saved - TIE * by.step.seconds:
                continue
            left = _left(both.change, by, said) if taken else {}
            # What fits by itself need not fit with the others.
            if "SZ121" not in left:
                change, saved = both.change, both.saving
                taken.append(both.noted("then fix " * bool(left) + ", ".join(left)))
                break
    return taken[-1].priced if len(taken) > 1 else None


#: Code -> (index of its severity, minus the seconds that mending it saves; minus infinity where it is broken outright).
_Said = Mapping[str, tuple[int, float]]


def _said(graded: Iterable[Graded]) -> _Said:
    found = dict[str, tuple[int, float]]()
    for one in graded:
        cost = inf if one.finding.outright else max((offer.saving for offer in one.offers), default=0.0)
        # Memory counts as one level worse: what may fit may also not.
        own = SEVERITIES.index(one.severity) - (one.finding.field == "memory"), -cost
        found[one.rule.code] = min(found.get(one.rule.code, own), own)
    return found


def _vetted(offers: Offers, own: Proposals, said: _Said | None, *, error: bool, outright: bool) -> Offers:
    """At most ``MOST`` of ``offers`` (the best first): those that, applied, leave nothing worse than ``said``.

    After them come offers that leave something worse, which is then named, if one of these holds: they save more than
    mending it would; they mend an ``error`` (another model only where no offer before leaves nothing); they break
    nothing outright, and mend an ``outright`` breach or are all there is. Of several values of the same workload fields
    the first is enough.
    """
    clean, others = list[Offer](), list[Offer]()
    for offer in offers:
        reshapes = of_dimensions(offer.change)
        if not (error or reshapes) and offer.change.keys() in [one.change.keys() for one in clean]:
            continue
        left = said and _left(offer.change, own, said)
        if not left:
            clean.append(offer)
        elif (error and not (clean and reshapes)) or sum(left.values()) < (
            inf if outright or not clean else offer.saving
        ):
            others.append(offer.noted("then fix " + ", ".join(left)))
    return (*clean, *others)[:MOST]


def _left(change: Change, own: Proposals, said: _Said) -> Numbers:
    """Codes of findings that a ``change`` makes worse than ``said``, each with the seconds that mending it saves."""
    changed = changed_subject(replace(own.subject, given=own.subject.given | change.keys()), change)
    if own.subject.asked and changed.reading:
        # Read again, so that the stack is the changed split's and not that of the unsplit model.
        workload = changed.asked or changed.workload
        changed = read_subject(
            replace(changed.reading, model=changed.model),
            nearest=True,
            stack=changed.named_stack,
            **{name: getattr(workload, name) for name in WORKLOAD_FIELDS if name in changed.given},
        )
    then = propose(changed, own.device, own.suppression)
    scale = equal_work(own.subject, own.step, changed, then.step)
    return {
        code: -cost * scale
        for code, (level, cost) in _said(grade(rule, one, then, then) for rule, one in then.findings()).items()
        # The difference of two infinite costs is not a number, which no comparison puts within a tie.
        if level < (was := said.get(code, (2, 0.0)))[0] and not was[1] - cost * scale <= TIE * own.step.seconds
    }


def _merged(ordered: Sequence[Graded], own: Proposals, said: _Said | None) -> Cause | None:
    """The findings of one cause as one; None where nothing is left to say."""
    subject, unpriced = own.subject, own.subject.model is None
    error = ordered[0].finding.error
    outright = frozenset(one.breach for one in ordered if one.finding.outright)
    # Each change once, as the finding offers it that it saves the most of; of equal ones the first.
    by_saving = sorted((offer for one in reversed(ordered) for offer in one.offers), key=lambda one: one.saving)
    distinct = {frozenset(offer.priced.change.items()): offer for offer in by_saving}
    everything = tuple(distinct.values())
    # Where an offer mends every error of this cause, those that leave one are dropped.
    errors = {one.breach for one in ordered if one.finding.error and not one.rule.of_costs}
    everything = tuple(offer for offer in everything if errors <= offer.fixes) or everything
    useful = () if unpriced else _worth_a_line(everything, subject, outright=outright, error=error)
    offers = _vetted(useful, own, said, error=error, outright=bool(outright))
    if not offers and (own.measured or unpriced):
        offers = everything[:MOST]
    elif not offers and not outright and any(one.finding.suggestions for one in ordered):
        return None
    return Cause(_as_one(ordered, subject, offers), offers, frozenset(one.breach for one in ordered))


def _as_one(ordered: Sequence[Graded], subject: Subject, offers: Offers) -> PricedFinding:
    """The findings of one cause as one, under the first one's code."""
    rule, finding = ordered[0].rule, ordered[0].finding
    # The rules' own seconds, for findings that propose no change.
    known = [one.finding.at_most_s for one in ordered if 0 < one.finding.at_most_s < inf]
    proposed = any(one.finding.suggestions for one in ordered)
    return PricedFinding(
        code=rule.code,
        slug=rule.slug,
        severity=min((one.severity for one in ordered), key=SEVERITIES.index),
        field=subject.name_of(finding.field),
        value=finding.value,
        message="; ".join(dict.fromkeys(one.finding.message for one in ordered)),
        codes=tuple(dict.fromkeys(one.rule.code for one in ordered)),
        violated=any(one.finding.violated for one in ordered),
        **_price_of(offers, None if proposed else max(known, default=None)),
    )


def _worth_a_line(offers: Offers, subject: Subject, *, outright: frozenset[Objection], error: bool) -> Offers:
    """The offers that save; for a breach that none of them saves by mending, the cheapest one."""
    # Of what cannot run another split comes before another model, unless it leaves a breach of the model itself.
    offers = tuple(
        sorted(
            offers,
            key=lambda one: (error and (len(outright - one.fixes), of_dimensions(one.change)), _rank(one, subject)),
        )
    )
    if error:  # what cannot run has no time to compare with
        return offers
    useful = [
        one for one in offers if one.change_s <= 0 and (one.saving > 0 or (outright and _same_size(one, subject)))
    ]
    cheapest = [one.noted("slower, but nothing faster fixes it" * (one.change_s > 0)) for one in offers[:1] if outright]
    return tuple(useful or cheapest)


def _same_size(offer: Offer, subject: Subject) -> bool:
    return abs(offer.priced.parameters_change or 0) <= SAME_SIZE * subject.parameters


def _rank(offer: Offer, subject: Subject) -> tuple[bool, int, int, int, float]:
    """Sort key: equal parameters first, then the saving; in a tie the alignment, then heads that divide over a node."""
    powers = [value & -value for key, value in offer.change.items() if isinstance(value, int) and key != "heads"]
    heads = int(offer.change.get("heads", SHARDS))
    return (
        not _same_size(offer, subject),
        -round(offer.saving / (TIE * offer.step.seconds)) if offer.step.seconds else 0,
        -min([PREFERRED, *powers]),
        -min(heads & -heads, SHARDS),
        offer.change_s,
    )


def _priced_once(cause: Cause, done: Sequence[Cause]) -> Cause:
    """``cause`` without the offers that fix a cause in ``done`` too: they are priced there alone, so that costs add up.

    A cause that the first offer of an error fixes keeps no offer: what cannot run has to be changed anyway.
    """
    for one in done:
        # The first offer of an error fixes this cause, which is no error itself.
        if one.finding.severity == "error" != cause.finding.severity and any(map(cause.mended_by, one.offers[:1])):
            return cause.left((), one.finding)
    own = tuple(offer for offer in cause.offers if not any(one.fixed_by(offer) for one in done))
    both_ways = (
        one.finding for one in done if any(map(one.fixed_by, cause.offers)) and any(map(cause.fixed_by, one.offers))
    )
    there = next(both_ways, None)
    if own == cause.offers or (not own and not there):
        return cause
    return cause.left(own, there)


#: Values tried on each side; many make no model (heads that do not divide).
MOST_TRIED = 64


def neighbours(proposals: Proposals, dimension: str) -> tuple[PricedSuggestion, ...]:
    """The two nearest values below and above that make a model and break no rule that is kept now, ascending.

    Priced as a finding's suggestions are. Empty for a dimension that the model does not have, or that a trace hides.
    """
    value = proposals.subject.dimensions.get(dimension)
    if value is None or not proposals.subject.model:
        return ()

    def side(way: int) -> list[PricedSuggestion]:
        changes = (Suggestion({dimension: other}) for other in _values(dimension, value, way))
        return [one.priced for one in islice(filter(None, (price_offer(each, proposals) for each in changes)), 2)]

    return *reversed(side(-1)), *side(1)


def _values(dimension: str, value: int, way: int) -> range:
    """Multiples of ``MULTIPLES`` above (``way`` 1) or below (-1) ``value``, nearest first."""
    of = MULTIPLES.get(dimension, 1)
    first = way * (way * value // of + 1) * of
    return range(first, (way > 0) * (first + MOST_TRIED * of), way * of)[:MOST_TRIED]
