"""A search's answer as CSV: the baseline and the candidates, a row each; the change's fields are columns."""

from __future__ import annotations

import csv
import io

from sizer.render.page import Page
from sizer.searching.ranked import Ranked, SearchResult


def render(result: SearchResult, page: Page) -> str:
    out = io.StringIO()
    ranked = (result.baseline, *result.candidates)
    names = list(dict.fromkeys(key for one in ranked for key in one.change))
    flat = [{**{key: one.change.get(key) for key in names}, **_scalars(one)} for one in ranked]
    writer = csv.DictWriter(out, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _scalars(one: Ranked) -> dict[str, object]:
    return {key: value for key, value in one.to_dict().items() if not isinstance(value, dict)}
