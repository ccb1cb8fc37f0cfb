"""JUnit's XML, as Ant's schema has it: a suite a configuration and device, a test case a rule."""

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from sizer.answers.diff import Diff
from sizer.checking.findings import SEVERITIES
from sizer.documents import Document
from sizer.rules import RULES

from .findings import Annotation, annotate, looked_at, reviewed, title

#: Characters that no XML document may hold, escaped or not.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: The schema demands a time and a host. A check depends on neither, and its report is the same each time.
_FIXED = {"timestamp": "1970-01-01T00:00:00", "hostname": "localhost", "time": "0"}


def render(document: Document, page: object) -> str:
    """Errors and warnings are failures; what does not apply or was left out is skipped; infos pass with their text."""
    answer = reviewed(document)
    found = list(annotate(answer))
    root = ElementTree.Element("testsuites")
    for path, device, _, _, skipped in looked_at(answer):
        own = [one for one in found if (one.path, one.device) == (path, device)]
        cases = {rule.code: f"{rule.code} {rule.slug}" for rule in RULES}
        if isinstance(answer, Diff):
            cases = {code: f"{code} {title(code)}" for one in own for code in one.codes}
            cases = cases or {"diff": "no finding added, no budget broken"}
        named = {**_FIXED, "name": _xml(path), "package": _xml(device), "id": str(len(root))}
        _suite(ElementTree.SubElement(root, "testsuite", named), cases, skipped, own)
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def _suite(
    suite: ElementTree.Element, cases: Mapping[str, str], skipped: set[str], found: Sequence[Annotation]
) -> None:
    """A test case each of ``cases``, and how many came out how."""
    add = ElementTree.SubElement
    infos = []
    add(suite, "properties")
    for code, name in cases.items():
        case = add(suite, "testcase", {"name": name, "classname": suite.attrib["name"], "time": "0"})
        listed = [one for one in found if code in one.codes]
        kind = min((one.severity for one in listed), key=SEVERITIES.index, default="info")
        if kind != "info":
            add(case, "failure", {"type": kind, "message": _xml(listed[0].message)}).text = _said(listed)
        elif code in skipped:
            add(case, "skipped")
        else:
            infos += listed
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.attrib |= {"tests": str(len(cases)), **{k: str(len(suite.findall(f"*/{v}"))) for k, v in counts.items()}}
    add(suite, "system-out").text = _said(infos)
    add(suite, "system-err")


def _said(listed: Sequence[Annotation]) -> str:
    """A line each: where, its rule and its message."""
    return _xml(
        "\n".join(
            f"{one.path}{f':{one.place.line}:{one.place.column}' if one.place else ''}: {one.code}: {one.message}"
            for one in listed
        )
    )


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
