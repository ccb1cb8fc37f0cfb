"""SARIF 2.1.0 (OASIS): findings as code-scanning services take them."""

import json
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from shapes.frozen import Sizes, Values, Words
from shapes.program import installed
from sizer.answers.diff import BUDGETS
from sizer.checking.findings import Fix
from sizer.documents import Document
from sizer.readers.locate import Place
from sizer.rules import find_rule

from .findings import Annotation, annotate, reviewed, rule_url, title

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(document: Document, page: object) -> str:
    found = list(annotate(reviewed(document)))
    codes = sorted({one.code for one in found})
    driver = {"name": "sizer", "rules": [*map(_rule, codes)]}
    if package := installed():
        driver["version"] = package.version
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(one, codes.index(one.code)) for one in found],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False) + "\n"


def _rule(code: str) -> Values:
    described = {"id": code, "shortDescription": {"text": title(code)}}
    if code in BUDGETS:
        return {**described, "name": code}
    rule, url = find_rule(code), rule_url(code)
    return {
        **described,
        "name": rule.slug,
        "help": {"text": rule.page, "markdown": rule.page},
        **({"helpUri": url} if url else {}),
    }


def _result(one: Annotation, index: int) -> Values:
    file = {"uri": _uri(one.path)}
    location = {"physicalLocation": {"artifactLocation": file, "region": _region(one.place)}}
    same = "\0".join((one.code, one.path, one.field, one.device))
    return {
        "ruleId": one.code,
        "ruleIndex": index,
        "level": one.severity if one.severity != "info" else "note",
        "message": {"text": one.message},
        "locations": [location],
        "partialFingerprints": {"finding/v1": sha256(same.encode("utf-8", "surrogateescape")).hexdigest()},
        "properties": {"device": one.device},
        **({"fixes": [_fix(title, fix, file) for title, fix in one.fixes]} if one.fixes else {}),
    }


def _region(place: Place | None) -> Sizes:
    if not place:
        return {"startLine": 1}
    return {"startLine": place.line, "startColumn": place.column, "endColumn": place.end_column}


def _fix(title: str, fix: Fix, file: Words) -> Values:
    replaced = [{"deletedRegion": _region(one.place), "insertedContent": {"text": one.text}} for one in fix.edits]
    return {
        "description": {"text": f"{title}{fix.unsafe and f' (unsafe: {fix.unsafe})'}"},
        "artifactChanges": [{"artifactLocation": file, "replacements": replaced}],
    }


def _uri(path: str) -> str:
    """A path as a URI, relative to the working directory where it lies below it."""
    there, here = Path(path), Path.cwd()
    if there.is_relative_to(here):
        there = there.relative_to(here)
    return there.as_uri() if there.is_absolute() else quote(there.as_posix(), errors="surrogateescape")
