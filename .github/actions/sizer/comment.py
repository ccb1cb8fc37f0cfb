"""One comment on a pull request, written once and then updated in place: python comment.py FILE [SARIF].

The first line of FILE, a comment of HTML, tells which comment is ours. The fixes of SARIF become suggestion blocks on
the lines that they change, each posted once; GitHub refuses lines outside of the pull request, which is no failure.
GITHUB_API_URL, GITHUB_REPOSITORY, GITHUB_TOKEN and GITHUB_EVENT_PATH are as in a workflow. Standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote
from urllib.request import Request, urlopen

#: GitHub's limit on a comment.
LONGEST = 65536
CUT = "\n\n… cut: the whole is in the job's summary.\n"


def main(file: str, sarif: str | None = None) -> int:
    """0, also where there is nothing to say or no right to say it (a fork's token); 1 for any other refusal."""
    path = Path(file)
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    number = event.get("pull_request", {}).get("number")
    if number is None or not path.is_file():
        print("sizer: no pull request, or no report: no comment")
        return 0
    body = path.read_text(encoding="utf-8")
    marker = body.partition("\n")[0]
    if len(body) > LONGEST:
        body = body[: body.rindex("<details>", 0, LONGEST - len(CUT))] + CUT
    repository = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}"
    issues = f"{repository}/issues"
    try:
        if sarif is not None and Path(sarif).is_file():
            _suggest(f"{repository}/pulls/{number}/comments", event["pull_request"]["head"]["sha"], Path(sarif))
        ours = next((one for one in _comments(f"{issues}/{number}/comments") if one["body"].startswith(marker)), None)
        if ours is None:
            if "\n| " in body:  # a table: where nothing changed nothing is said
                _call("POST", f"{issues}/{number}/comments", {"body": body})
        elif ours["body"] != body:
            _call("PATCH", f"{issues}/comments/{ours['id']}", {"body": body})
    except HTTPError as error:
        print(f"::warning title=sizer::cannot comment: {error.code} {error.reason}")
        return 0 if error.code in (401, 403) else 1
    except URLError as error:
        print(f"::warning title=sizer::cannot comment: {error.reason}")
        return 1
    return 0


def _suggest(url: str, commit: str, sarif: Path) -> None:
    """The first fix of each result as a suggestion block, unless it is there from an earlier run."""
    there = {one["body"] for one in _comments(url)}
    for result in json.loads(sarif.read_text(encoding="utf-8"))["runs"][0]["results"]:
        for fix in result.get("fixes", ())[:1]:
            found = _block(fix["artifactChanges"][0])
            if found is None:
                continue
            path, line, new = found
            body = f"sizer {result['ruleId']}: {fix['description']['text']}\n\n```suggestion\n{new}\n```"
            if body not in there:
                place = {"path": path, "line": line, "side": "RIGHT", "commit_id": commit}
                try:
                    _call("POST", url, {"body": body, **place})
                except HTTPError as error:
                    if error.code != 422:  # a line that is not part of the pull request
                        raise


def _block(change: dict[str, Any]) -> tuple[str, int, str] | None:
    """The file, the line and its new text; None where several lines change, or the text would end the block."""
    path = unquote(change["artifactLocation"]["uri"])
    replaced = sorted(change["replacements"], key=lambda one: one["deletedRegion"]["startColumn"], reverse=True)
    (line, *others) = {one["deletedRegion"]["startLine"] for one in replaced}
    if others or not Path(path).is_file():
        return None
    text = Path(path).read_bytes().decode("utf-8-sig").split("\n")[line - 1].removesuffix("\r")
    for one in replaced:
        region = one["deletedRegion"]
        text = text[: region["startColumn"] - 1] + one["insertedContent"]["text"] + text[region["endColumn"] - 1 :]
    return None if "```" in text else (path, line, text)


def _comments(url: str) -> Iterator[dict[str, Any]]:
    page = 1
    while found := _call("GET", f"{url}?per_page=100&page={page}"):
        yield from found
        page += 1


def _call(method: str, url: str, data: dict[str, Any] | None = None) -> Any:
    headers = {"Accept": "application/vnd.github+json", "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}"}
    content = None if data is None else json.dumps(data).encode("utf-8")
    request = Request(url, content, {**headers, "Content-Type": "application/json"}, method=method)
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
