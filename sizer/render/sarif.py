"""SARIF 2.1.0 (OASIS): findings as code-scanning services take them."""

from __future__ import annotations

import json
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sizer.documents.document import Document
from sizer.render import Page
from sizer.render.findings import BUDGETS, Annotation, annotate, reviewed, rule_url, title
from sizer.rules import find_rule

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def render(document: Document, page: Page) -> str:
    found = list(annotate(reviewed(document)))
    codes = sorted({one.code for one in found})
    driver = {"name": "sizer", "rules": [_rule(code) for code in codes], **_version()}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(one, codes.index(one.code)) for one in found],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False) + "\n"


def _version() -> dict[str, str]:
    try:
        return {"version": version("sizer")}
    except PackageNotFoundError:
        return {}


def _rule(code: str) -> dict[str, Any]:
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


def _result(one: Annotation, index: int) -> dict[str, Any]:
    region = {"startLine": 1}
    if one.place is not None:
        region = {"startLine": one.place.line, "startColumn": one.place.column, "endColumn": one.place.end_column}
    location = {"physicalLocation": {"artifactLocation": {"uri": _uri(one.path)}, "region": region}}
    same = "\0".join((one.code, one.path, one.field, one.device))
    return {
        "ruleId": one.code,
        "ruleIndex": index,
        "level": LEVELS[one.severity],
        "message": {"text": one.message},
        "locations": [location],
        "partialFingerprints": {"finding/v1": sha256(same.encode("utf-8", "surrogateescape")).hexdigest()},
        "properties": {"device": one.device},
    }


def _uri(path: str) -> str:
    """A path as a URI, relative to the working directory where it lies below it."""
    there = Path(path)
    if there.is_absolute():
        try:
            there = there.relative_to(Path.cwd())
        except ValueError:
            return "file://" + quote(there.as_posix(), errors="surrogateescape")
    return quote(there.as_posix(), errors="surrogateescape")
