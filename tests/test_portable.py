"""Windows and macOS: the names that only POSIX has are deleted, and what people run still runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest
from click.testing import CliRunner

from sizer.cli import COMMANDS, main
from sizer.render import github, render, sarif

ROOT = Path(__file__).parents[1]
#: What CPython on Windows has not.
WITHOUT = """
import os, signal, sys
for name in ("SIGHUP", "SIGPIPE", "SIGALRM", "SIGKILL", "SIGUSR1", "SIGCHLD", "setitimer", "ITIMER_REAL", "alarm",
             "pthread_sigmask", "SIG_BLOCK", "SIG_SETMASK"):
    delattr(signal, name)
for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "set_blocking", "chown", "fork",
             "geteuid", "getuid", "mkfifo", "fchmod", "killpg", "setsid", "nice", "getloadavg", "sched_getaffinity"):
    delattr(os, name)
for name in ("fcntl", "resource", "termios", "tty", "pwd", "grp"):
    sys.modules[name] = None
"""
RUN = """
from click.testing import CliRunner
from sizer.cli import main
from sizer.process import end_in_order_of_signals, hold_standard_files, in_order
hold_standard_files()
end_in_order_of_signals()
with in_order(str):
    pass
for words in {calls!r}:
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code in (0, 1), (words, result.output)
"""


def run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


def test_commands_run_without_a_posix_name(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_bytes((ROOT / "tests/data/configs/gpt2.json").read_bytes().replace(b"50257", b"50211"))
    text = config.read_bytes()
    calls = [
        ["check", str(config)],
        ["check", str(config), "--fix", "--unsafe-fixes"],
        ["ops", str(config), "--format", "csv", "-o", str(tmp_path / "ops.csv")],
        ["memory", str(config)],
        ["plan", str(config), "--gpus", "2", "--global-batch", "8"],
        ["search", "--h", "1024", "--predict"],
        ["deploy", str(config)],
        ["rules"],
    ]
    run(RUN.format(calls=calls))
    assert config.read_bytes() == text.replace(b"50211", b"50240")
    assert (tmp_path / "ops.csv").read_text().startswith("name,")


def test_no_module_names_what_only_posix_has_as_it_is_imported() -> None:
    """Of every module that needs no further library."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in ("shapes", "sizer")
        for path in sorted((ROOT / package).rglob("*.py"))
    ]
    optional = {
        "torch",
        "transformers",
        "ray",
        "pyarrow",
        "pygls",
        "lsprotocol",
        "mcp",
        "mcp_types",
        "anyio",
        "vl_convert",
    }
    run(
        f"""
import importlib
for name in {sorted(optional)!r}:
    sys.modules[name] = None
for name in {json.dumps([name for name in names if not name.endswith("__main__")])}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name.partition(".")[0] in {optional!r}, (name, error.name)
"""
    )


def test_a_store_is_locked_without_fcntl(tmp_path: Path) -> None:
    run(
        f"""
sys.modules["fcntl"] = None
from shapes.errors import InputError
from shapes.measure.store import Store
with Store.open({str(tmp_path / "a.db")!r}, measuring=True):
    try:
        Store.open({str(tmp_path / "a.db")!r}, measuring=True)
    except InputError as error:
        assert "another process measures" in str(error)
    else:
        raise AssertionError
Store.open({str(tmp_path / "a.db")!r}, measuring=True).close()
    """
    )


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_in_letters_that_every_console_has(command: str) -> None:
    """A pipe on Windows has its code page: what it lacks ended help in a traceback."""
    for option in ("--help", "--help-all"):
        said = CliRunner().invoke(main, [*filter(None, [command]), option], catch_exceptions=False).output
        said.encode("cp437")


@pytest.mark.parametrize(("end", "name"), [("\r\n", "crlf"), ("\n", "lf"), ("\r\n", "ünï cødé")])
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_fix_keeps_the_ends_of_lines(tmp_path: Path, suffix: str, end: str, name: str) -> None:
    texts = {
        "json": '{"model_type": "gpt2",\n "vocab_size": 50257,\n "n_embd": 768, "n_layer": 12, "n_head": 12}\n',
        "yaml": "hidden_size: 1024\nnum_layers: 2\nnum_attention_heads: 16\nvocab_size: 50257 # GPT-2's\n"
        "seq_length: 2048\nffn_hidden_size: 4090\n",
    }
    file = tmp_path / f"{name}.{suffix}"
    file.write_bytes(texts[suffix].replace("\n", end).encode())
    result = CliRunner().invoke(main, ["check", str(file), "--fix", "--unsafe-fixes"], catch_exceptions=False)
    assert result.exit_code in (0, 1), result.output
    after = file.read_bytes()
    assert b"50304" in after or b"4096" in after
    assert after.count(end.encode()) == texts[suffix].count("\n")
    assert after.count(b"\n") == texts[suffix].count("\n")


# Windows' paths without Windows: a Path, which the program has, is what Python 3.14 asks for instead.
@pytest.mark.filterwarnings("ignore:pathlib.PurePath.as_uri:DeprecationWarning")
def test_paths_in_annotations_and_sarif_are_as_github_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import sizer

    class Here(PureWindowsPath):
        @classmethod
        def cwd(cls) -> PureWindowsPath:
            return cls("C:\\work")

    report = sizer.check(str(ROOT / "tests/data/configs/gpt2.json"))
    for module in (github, sarif):
        monkeypatch.setattr(module, "Path", Here)
    assert sarif._uri("C:\\work\\models\\a b.json") == "models/a%20b.json"
    assert sarif._uri("D:\\models\\a.json") == "file:///D:/models/a.json"
    shown = render("check", "github", report._answer())
    assert "\\" not in shown
    assert "tests/data/configs/gpt2.json,line=" in shown
