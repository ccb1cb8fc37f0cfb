"""Engines and a model: each one's verdict, what it does other than load the model, and the source of each fact."""

from collections.abc import Iterator
from types import SimpleNamespace

from shapes.frozen import Words
from shapes.memory.engine import UTILIZATION
from sizer.answers.deploy import Deployed, Deployment, FactOutcome

from . import Cell, Document, Part, Section, Table, Text, columns, lines, notes
from .charts import LOOKS

#: How a verdict is coloured.
STYLES: Words = LOOKS["verdicts"]

ENGINES = columns(
    "deploy",
    verdict=lambda one: Cell(one.verdict, style=STYLES.get(one.verdict, "")),
    taken=lambda one: ", ".join(map(str, one.taken_at)) or "none up to 64" * (one.verdict == "refused"),
    holding=lambda one: f"{len(one.outcomes) - len(_told(one))} of {len(one.outcomes)}",
)


def document(answer: Deployment) -> Document:
    sources = list(dict.fromkeys(fact.source for one in answer.engines for fact in _told(one)))
    by_verdict = {
        one.verdict: [of.title for of in answer.engines if of.verdict == one.verdict] for one in answer.engines
    }
    parts: list[Part] = [
        Text("; ".join(f"{name}: {', '.join(titles)}" for name, titles in by_verdict.items()), "head"),
        Text(
            f"{answer.path}: {answer.model_type} at tp {answer.tp}{f' ep {answer.ep}' * (answer.ep > 1)}, "
            f"{answer.recipe} on {answer.device}"
        ),
        # An engine refuses what it has no model for whatever its sizes are; few say so in a line that can be quoted.
        Text("verdicts are of sizes and formats: that an engine has this architecture is yours to look up"),
        *_memory(answer),
        Table(ENGINES, answer.engines),
    ]
    for one in answer.engines:
        parts += _engine(one, sources)
    parts += lines((f"[{number}] {source}" for number, source in enumerate(sources, 1)), "url")
    parts += notes(answer.notes)
    return Document("sizer deploy", (Section(answer.path, parts),), answer, records=lambda: _records(answer))


def _memory(answer: Deployment) -> Iterator[Text]:
    """Whether a serving engine can hold it at all, which comes before every other question."""
    one = answer.memory
    if not one:
        yield Text("memory: not known of a split that cannot run", "warning")
        return
    weights, needed, limit = (f"{size / 2**30:,.1f} GiB" for size in one[:3])
    many = "more requests than are searched" if one.requests is None else f"{one.requests:,} requests"
    fits = f"{many} fit" if one.fits else "does not fit"
    yield Text(
        f"memory to serve: {needed} a rank (weights {weights}, one request of {one.context:,} tokens, workspace) of "
        f"{limit}, {UTILIZATION:.0%} of the device: {fits}",
        "" if one.fits else "error",
    )


def _told(one: Deployed) -> list[FactOutcome]:
    """The facts that an engine does otherwise than load by."""
    return [fact for fact in one.outcomes if fact.verdict != "loads"]


def _engine(one: Deployed, sources: list[str]) -> Iterator[Text]:
    told = _told(one)
    if told or not one.outcomes:
        yield Text(
            f"{one.title}: {one.verdict}{'; no fact of it is about this' * (not told)}", STYLES.get(one.verdict, "")
        )
    for fact in told:
        yield Text(f"{fact.verdict}: {fact.topic}: {fact.message} [{sources.index(fact.source) + 1}]", indent=2)


def _records(answer: Deployment) -> Table:
    rows = [SimpleNamespace(engine=one, fact=fact) for one in answer.engines for fact in one.outcomes]
    return Table(columns("deploy records"), rows)
