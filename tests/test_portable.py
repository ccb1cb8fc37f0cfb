"""Windows and macOS: the names that only POSIX has are deleted, and what people run still runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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
    optional = {"torch", "transformers", "ray", "pyarrow", "pygls", "lsprotocol", "mcp", "mcp_types", "vl_convert"}
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
