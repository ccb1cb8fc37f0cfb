"""What engines do with a model as text: a table by engine, and the source of each line."""

from __future__ import annotations

import textwrap

from sizer.answers.deploy import Deployment
from sizer.render.page import Page

#: What a verdict is coloured as.
STYLES = {"refused": "error", "unknown": "warning", "falls back": "warning", "pads": "info", "copies": "info"}


def render(found: Deployment, page: Page) -> str:
    experts = f" ep {found.ep}" if found.ep > 1 else ""
    lines = [f"{found.path}: {found.model_type} at tp {found.tp}{experts}, {found.recipe} on {found.device}", ""]
    width = max(len(one.title) for one in found.engines)
    sources: dict[str, int] = {}
    for one in found.engines:
        verdict = page.style(f"{one.verdict:10}", STYLES.get(one.verdict, ""))
        lines.append(f"{one.title:{width}}  {verdict}  {one.version}")
        for fact in one.outcomes:
            if fact.verdict == "loads":
                continue
            number = sources.setdefault(fact.source, len(sources) + 1)
            text = f"{fact.verdict}: {fact.topic}: {fact.message} [{number}]"
            lines += textwrap.wrap(text, page.width, initial_indent="  ", subsequent_indent="    ")
        held = sum(fact.verdict == "loads" for fact in one.outcomes)
        lines.append(f"  {held} of {len(one.outcomes)} facts hold" if one.outcomes else "  no fact of it is about this")
    if sources:
        lines += ["", *(f"[{number}] {source}" for source, number in sources.items())]
    return "\n".join(lines)
