"""JUnit's XML, as Ant's schema has it: a suite a configuration and device, a test case a rule."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

from sizer.answers.diff import Diff
from sizer.checking.findings import Checked
from sizer.render.annotations import Annotation, annotate, title
from sizer.render.page import Page
from sizer.rules import RULES

#: Characters that no XML document may hold, escaped or not.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: The schema demands a time and a host; a check is of no moment and no host, and is to be the same each time.
_FIXED = {"timestamp": "1970-01-01T00:00:00", "hostname": "localhost", "time": "0"}


def render(answer: Checked | Diff, page: Page) -> str:
    """Errors and warnings are failures; what does not apply or was left out is skipped; infos pass with their text."""
    found = list(annotate(answer))
    root = ElementTree.Element("testsuites")
    if isinstance(answer, Checked):
        for report in answer.reports:
            cases = {rule.code: f"{rule.code} {rule.slug}" for rule in RULES}
            skipped = {*report.not_applicable, *report.suppressed}
            own = [one for one in found if (one.path, one.device) == (report.path, report.device)]
            _suite(root, report.path, report.device, cases, skipped, own)
    else:
        for file in answer.files:
            for device in file.devices:
                own = [one for one in found if (one.path, one.device) == (file.path, device.device)]
                cases = {code: f"{code} {title(code)}" for one in own for code in one.codes} or {
                    "diff": "no finding added, no budget broken"
                }
                _suite(root, file.path, device.device, cases, set(), own)
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def _suite(
    root: ElementTree.Element,
    path: str,
    device: str,
    cases: Mapping[str, str],
    skipped: set[str],
    found: Iterable[Annotation],
) -> None:
    by_code: dict[str, list[Annotation]] = {}
    for one in found:
        for code in one.codes:
            by_code.setdefault(code, []).append(one)
    failed = {code for code, listed in by_code.items() if any(one.severity != "info" for one in listed)}
    named = {"name": _xml(path), "package": _xml(device), "id": str(len(root))}
    counts = {"tests": len(cases), "failures": len(failed), "errors": 0, "skipped": len(skipped & cases.keys())}
    suite = ElementTree.SubElement(root, "testsuite", {**named, **_FIXED, **{k: str(v) for k, v in counts.items()}})
    ElementTree.SubElement(suite, "properties")
    for code, name in cases.items():
        case = ElementTree.SubElement(suite, "testcase", {"name": name, "classname": _xml(path), "time": "0"})
        text = "\n".join(f"{_where(one)}{one.severity}: {one.message}" for one in by_code.get(code, ()))
        if code in failed:
            kind = min((one.severity for one in by_code[code]), key=("error", "warning", "info").index)
            ElementTree.SubElement(
                case, "failure", {"type": kind, "message": _xml(by_code[code][0].message)}
            ).text = _xml(text)
        elif code in skipped:
            ElementTree.SubElement(case, "skipped")
    infos = [
        f"{_where(one)}{one.code}: {one.message}" for code in by_code if code not in failed for one in by_code[code]
    ]
    ElementTree.SubElement(suite, "system-out").text = _xml("\n".join(infos))
    ElementTree.SubElement(suite, "system-err")


def _where(one: Annotation) -> str:
    return f"{one.path}:{one.place.line}:{one.place.column}: " if one.place is not None else f"{one.path}: "


def _xml(text: str) -> str:
    return _NOT_XML.sub("�", text)
