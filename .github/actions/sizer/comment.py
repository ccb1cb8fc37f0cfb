"""One comment on a pull request, written once and then updated in place: python comment.py FILE.

The first line of FILE, a comment of HTML, tells which comment is ours. GITHUB_API_URL, GITHUB_REPOSITORY, GITHUB_TOKEN
and GITHUB_EVENT_PATH are as in a workflow. Standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

#: GitHub's limit on a comment.
LONGEST = 65536
CUT = "\n\n… cut: the whole is in the job's summary.\n"


def main(file: str) -> int:
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
    issues = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    try:
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


def _comments(url: str) -> Iterator[dict[str, Any]]:
    page = 1
    while found := _call("GET", f"{url}?per_page=100&page={page}"):
        yield from found
        page += 1


def _call(method: str, url: str, data: dict[str, str] | None = None) -> Any:
    headers = {"Accept": "application/vnd.github+json", "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}"}
    content = None if data is None else json.dumps(data).encode("utf-8")
    request = Request(url, content, {**headers, "Content-Type": "application/json"}, method=method)
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
