"""What a repair of the store kept, and what was lost."""

from __future__ import annotations

from shapes.errors import printable
from shapes.measure.salvage import Repair
from sizer.render.page import Page

#: Lost measurements that are named one by one.
MOST_NAMED = 20


def render(answer: Repair, page: Page) -> str:
    if not answer.aside:
        return f"{printable(str(answer.path))}: nothing to repair, {answer.kept} measurements"
    lines = [f"{printable(str(answer.path))}: {answer.kept} measurements kept, {len(answer.lost)} lost"]
    if answer.rebuilt:
        lines.append(f"  {answer.rebuilt} of those kept lost their environment: exported, but not used for new ones")
    lines += [f"  lost: {what}" for what in answer.lost[:MOST_NAMED]]
    if len(answer.lost) > MOST_NAMED:
        lines.append(f"  lost: {len(answer.lost) - MOST_NAMED} more")
    return "\n".join([*lines, "  as it was: " + ", ".join(map(str, answer.aside))])
