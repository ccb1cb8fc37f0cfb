"""At home in a repository: the pre-commit hooks and the GitHub Action, run whole in a scratch repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from sizer.cli import main

ROOT = Path(__file__).parents[1]
ACTION = ROOT / ".github" / "actions" / "sizer"
GPT2 = json.loads((ROOT / "tests" / "data" / "configs" / "gpt2.json").read_text())


def configure(path: Path, **changes: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(GPT2 | changes, indent=2) + "\n")


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A repository with a good model, and a web app whose settings have the same file name."""
    folder = tmp_path / "scratch"
    configure(folder / "models" / "config.json", vocab_size=50304)
    (folder / "web").mkdir()
    (folder / "web" / "config.json").write_text('{"apiUrl": "https://example.org"}\n')
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def environment(tmp_path: Path) -> dict[str, str]:
    """`sizer` on the path, as an installed one would be: this checkout's."""
    bin_ = tmp_path / "bin"
    bin_.mkdir(exist_ok=True)
    (bin_ / "sizer").write_text(f'#!/bin/sh\nexec {sys.executable} -m sizer "$@"\n')
    (bin_ / "sizer").chmod(0o755)
    path = f"{bin_}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT")}
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "PRE_COMMIT_HOME": str(tmp_path / "pre-commit")}


def hooks(scratch: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Our hooks as they stand in .pre-commit-hooks.yaml, without the installation that `language: python` makes."""
    ours = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    local = [{**hook, "language": "system", "verbose": True} for hook in ours]
    (scratch / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": local}]}))
    git(scratch, "add", ".")
    command = [sys.executable, "-m", "pre_commit", "run", "--all-files", "--color", "never"]
    return subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_hooks_pass_a_good_model_and_pass_over_a_web_app(scratch: Path, tmp_path: Path) -> None:
    ran = hooks(scratch, environment(tmp_path))
    assert ran.returncode == 0, ran.stdout
    assert "web/config.json" not in ran.stdout.partition("sizer diff")[2]
    assert "models/config.json: " in ran.stdout
    assert "no model configuration differs from HEAD" in ran.stdout


@pytest.mark.slow
def test_the_hooks_stop_a_commit_that_makes_a_model_worse(scratch: Path, tmp_path: Path) -> None:
    configure(scratch / "models" / "config.json", vocab_size=50257)
    ran = hooks(scratch, environment(tmp_path))
    assert ran.returncode == 1
    assert "warning SZ101 vocab_size = 50257" in ran.stdout
    assert "added warning SZ101" in ran.stdout  # sizer diff


class Comments(BaseHTTPRequestHandler):
    """A stand-in of the comments of pull request 7: what GitHub's API answers to the three calls that are made.

    ``suggested``: comments on lines.
    """

    kept: list[dict[str, Any]]
    suggested: list[dict[str, Any]]
    calls: list[str]
    refuses = False

    def do_GET(self) -> None:
        page = int(self.path.rpartition("page=")[2])
        self._answer(200, self._listed()[100 * (page - 1) : 100 * page])

    def do_POST(self) -> None:
        self._listed().append({"id": len(self._listed()) + 1, **self._body()})
        self._answer(201, self._listed()[-1])

    def _listed(self) -> list[dict[str, Any]]:
        return self.suggested if "/pulls/" in self.path else self.kept

    def do_PATCH(self) -> None:
        comment = next(one for one in self.kept if one["id"] == int(self.path.rpartition("/")[2]))
        comment.update(self._body())
        self._answer(200, comment)

    def _body(self) -> dict[str, str]:
        content: dict[str, str] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return content

    def _answer(self, status: int, content: object) -> None:
        self.calls.append(f"{self.command} {self.path.partition('?')[0]}")
        assert self.headers["Authorization"] == "Bearer a-token"
        self.send_response(403 if self.refuses else status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def comments() -> Iterator[tuple[str, type[Comments]]]:
    handler = type("Handler", (Comments,), {"kept": [], "suggested": [], "calls": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()


def run_action(scratch: Path, tmp_path: Path, api: str, **inputs: str) -> int:
    """The action's steps in order, expressions filled in as the runner does; the last step's exit code."""
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    values = {name: str(one["default"]) for name, one in action["inputs"].items()} | {"token": "a-token"} | inputs
    event, output, summary = (tmp_path / name for name in ("event.json", "output", "summary"))
    event.write_text(json.dumps({"pull_request": {"number": 7, "head": {"sha": "abc"}}}))
    output.write_text("")
    runner = {
        **environment(tmp_path),
        "GITHUB_ACTION_PATH": str(ACTION),
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_API_URL": api,
        "GITHUB_REPOSITORY": "someone/models",
        "GITHUB_ACTIONS": "true",
    }
    installed = tmp_path / "sizer-venv" / "bin" / "sizer"  # as the cache has it
    installed.parent.mkdir(parents=True, exist_ok=True)
    installed.unlink(missing_ok=True)
    installed.symlink_to(tmp_path / "bin" / "sizer")
    code = 0
    for step in action["runs"]["steps"]:
        if step["name"] in ("Cache", "Install") or (step["name"] == "Badge" and not values["badge"]):
            continue
        outputs = dict(line.partition("=")[::2] for line in output.read_text().splitlines())
        filled = {f"inputs.{name}": value for name, value in values.items()}
        filled |= {
            f"steps.{step}.outputs.{name}": value for step in ("key", "price") for name, value in outputs.items()
        }
        variables = {key: filled[value[4:-3]] for key, value in step.get("env", {}).items()}
        assert "${{" not in step["run"]  # nothing of a pull request is ever pasted into a script
        ran = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=scratch,
            check=False,
            env={**runner, **variables},
        )
        code = ran.returncode
        assert code == 0 or step["name"] == "Result"
    return code


@pytest.mark.slow
def test_the_action_comments_once_and_updates_in_place(
    scratch: Path, tmp_path: Path, comments: tuple[str, type[Comments]], capfd: pytest.CaptureFixture[str]
) -> None:
    api, server = comments
    server.kept.extend({"id": number + 1, "body": f"talk {number}"} for number in range(120))  # more than a page
    configure(scratch / "models" / "config.json", vocab_size=50257)
    assert run_action(scratch, tmp_path, api, base="HEAD") == 1
    assert server.calls[-1] == "POST /repos/someone/models/issues/7/comments"
    assert server.kept[-1]["body"].startswith("<!-- sizer diff -->\n### sizer: 1 configuration changed, ")
    assert "::warning file=models/config.json,line=" in capfd.readouterr().out
    run_action(scratch, tmp_path, api, base="HEAD")
    (suggested,) = server.suggested  # once
    lines = (scratch / "models" / "config.json").read_text().split("\n")
    fixed = lines[suggested["line"] - 1].replace("50257", "50304")
    assert suggested["body"].endswith(f"\n\n```suggestion\n{fixed}\n```")
    assert (suggested["path"], suggested["commit_id"]) == ("models/config.json", "abc")
    configure(scratch / "models" / "config.json", vocab_size=50304, n_layer=24)
    run_action(scratch, tmp_path, api, base="HEAD", arguments="--budget=max-step-regression=1%\n")
    assert server.calls[-1] == "PATCH /repos/someone/models/issues/comments/121"
    assert len(server.kept) == 121
    assert "over budget" in server.kept[-1]["body"]
    configure(scratch / "models" / "config.json", vocab_size=50304)
    assert run_action(scratch, tmp_path, api, base="HEAD") == 0
    assert "no configuration changed" in server.kept[-1]["body"]


def test_the_action_installs_once_for_its_code_and_python(tmp_path: Path) -> None:
    """The key of its cache changes with a file of the package alone; what is cached is not installed."""
    steps = {one["name"]: one for one in yaml.safe_load((ACTION / "action.yml").read_text())["runs"]["steps"]}
    assert steps["Install"]["if"] == "${{ steps.cache.outputs.cache-hit != 'true' }}"
    assert (steps["Key"]["id"], steps["Cache"]["id"]) == ("key", "cache")
    assert steps["Cache"]["with"] == {"path": "${{ steps.key.outputs.venv }}", "key": "${{ steps.key.outputs.key }}"}
    clone = tmp_path / "clone"
    for name in ("shapes", "sizer"):
        (clone / name / "data").mkdir(parents=True)
    (clone / "sizer" / "data" / "a.toml").write_text("a = 1")
    (clone / "pyproject.toml").write_text("")
    keys = []
    for change in ("", "README.md", "sizer/data/a.toml"):
        if change:
            (clone / change).write_text("a = 2")
        output = tmp_path / f"output{len(keys)}"
        runner = {
            "GITHUB_ACTION_PATH": str(clone / "x/y/z"),
            "RUNNER_TEMP": str(tmp_path),
            "GITHUB_OUTPUT": str(output),
        }
        (clone / "x/y/z").mkdir(parents=True, exist_ok=True)
        subprocess.run(["bash", "-e", "-c", steps["Key"]["run"]], check=True, env={**os.environ, **runner})
        keys.append(dict(line.split("=") for line in output.read_text().splitlines()))
    assert keys[0] == keys[1]
    assert keys[0]["key"] != keys[2]["key"]
    assert keys[0]["bin"] == str(tmp_path / "sizer-venv" / "bin")


@pytest.mark.slow
def test_the_action_says_nothing_where_nothing_changed(
    scratch: Path, tmp_path: Path, comments: tuple[str, type[Comments]]
) -> None:
    api, server = comments
    assert run_action(scratch, tmp_path, api, base="HEAD", badge="badge.json") == 0
    assert server.kept == []
    assert json.loads((scratch / "badge.json").read_text())["label"] == "sizer"


@pytest.mark.slow
def test_a_token_of_a_fork_that_may_not_comment_fails_nothing(
    scratch: Path, tmp_path: Path, comments: tuple[str, type[Comments]], capfd: pytest.CaptureFixture[str]
) -> None:
    api, server = comments
    server.refuses = True
    configure(scratch / "models" / "config.json", vocab_size=50304, n_layer=11)
    assert run_action(scratch, tmp_path, api, base="HEAD", arguments="--fail-on=never") == 0
    assert "::warning title=sizer::cannot comment: 403" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("vocab", "message", "colour"), [(50257, "1 warning", "orange"), (50304, "no findings", "brightgreen")]
)
def test_the_badge_is_what_shields_reads(tmp_path: Path, vocab: int, message: str, colour: str) -> None:
    configure(tmp_path / "config.json", vocab_size=vocab)
    result = CliRunner().invoke(main, ["check", str(tmp_path), "--select", "SZ101", "--format", "badge"])
    badge = {"schemaVersion": 1, "label": "sizer", "message": message, "color": colour}
    assert json.loads(result.stdout) == badge
