"""What a person sees: every command on terminals of 80, 120 and 200 columns, and its words as they were looked at.

Words are compared without figures, which change with every fit: look at them, then `python tests/test_terminal.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import sys
import tempfile
import termios
from pathlib import Path
from threading import Thread

import pytest
from click import Context
from measure_fakes import FakeExecutor
from rich.cells import cell_len

import shapes.calibrate
from shapes.calibrate import Calibration
from sizer.cli import COMMANDS as SHOWN
from sizer.cli import main, measuring

DATA = Path(__file__).parent / "data"
CONFIGS = Path("tests/data/configs")
GPT2, LLAMA = (str(CONFIGS / f"{name}.json") for name in ("gpt2", "llama-3.1-8b"))
COMMANDS: dict[str, tuple[str, ...]] = {
    "check": ("check", GPT2),
    "check-devices": ("check", GPT2, "--device", "h100-sxm", "--device", "b200"),
    "diff": ("diff", GPT2, LLAMA, "--fail-on", "never"),
    "ops": ("ops", LLAMA, "--top", "6", "--sort", "model"),
    "explain": ("explain", "SZ101"),
    "ops-explain": ("ops", GPT2, "--explain", "qkv"),
    "search": ("search", "--h", "1024", "--device", "h100-sxm"),
    "memory": ("memory", LLAMA, "--tp", "8"),
    "plan": ("plan", GPT2, "--gpus", "2", "--global-batch", "8", "--top", "2"),
    "mfu": ("mfu", LLAMA, "--gpus", "8", "--global-batch", "64", "--step-time", "10"),
    "deploy": ("deploy", LLAMA, "--tp", "8"),
    "devices": ("devices",),
    "device": ("devices", "h100-sxm", "b200"),
    "rules": ("rules",),
    "bench": ("bench", "--suite", "reports/suites/control.toml", "--dry-run"),
    "bench-products": ("bench", "-m", "64", "-n", "64", "-k", "62:66:1", "--store", "STORE"),
    "bench-config": ("bench", GPT2, "-s", "256", "--store", "STORE"),
    "store-list": ("store", "--store", "STORE", "list"),
    "calibrate": ("calibrate", "--device", "h100-sxm", "--store", "STORE"),
    "plan-decode": ("plan", GPT2, "--gpus", "2", "--phase", "decode"),
    "memory-decode": ("memory", LLAMA, "--phase", "decode", "--context", "8k"),
    "check-fix": ("check", GPT2, "--diff", "--unsafe-fixes"),
    "bench-self-test": ("bench", "--self-test"),
    "search-emit": ("search", GPT2, "--what", "vocab", "--emit", "--device", "h100-sxm"),
    "mfu-explain": ("mfu", LLAMA, "--gpus", "8", "--global-batch", "64", "--step-time", "10", "--explain"),
    "store-import": ("store", "--store", "STORE", "import", "STORE"),
    "store-prune": ("store", "--store", "STORE", "prune"),
    "check-pipeline": ("check", LLAMA, "--tp", "2", "--pp", "4", "--gpus", "64", "--global-batch", "128"),
}
WIDTHS = (80, 120, 200)
#: What is data, a patch or a plain line has no colours.
PLAIN = ("check-fix", "search-emit", "store-import", "store-prune")
#: Servers say nothing on a terminal, and an export is lines for other programs.
WITHOUT = {"lsp", "mcp", "store export"}
#: What their tables list changes with the data: of those the heads are compared.
LISTS = ("devices", "device", "bench", "deploy", "search", "plan", "plan-decode")
#: What is said about their tables changes with it too.
HEADS_ALONE = ("devices", "device", "deploy")
#: What a calibration of a made-up device found.
FITTED = Calibration("h100-sxm", {}, {"bf16": {"large": 0.04, "skinny": 0.1}, "held out": 0.05}, {})


def shown(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch, term: str = "xterm-256color", encoding: str = "utf-8"
) -> str:
    monkeypatch.setattr(measuring, "chosen_executor", lambda *_: FakeExecutor(lambda one: 1e-3))
    monkeypatch.setattr(shapes.calibrate, "stored_products", lambda *_: [FITTED])
    monkeypatch.setattr(shapes.calibrate, "calibrate", lambda *_, **__: FITTED)
    monkeypatch.chdir(DATA.parents[1])
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store.db")
        stored = command.startswith("store") or command == "calibrate"
        calls = [COMMANDS["bench-products"]] if stored else []
        for call in (*calls, COMMANDS[command]):
            text = on_a_terminal(
                width, [store if word == "STORE" else word for word in call], monkeypatch, term, encoding
            )
    assert ("\x1b[" in text) == (command not in PLAIN and term != "dumb")
    return re.sub(r"\x1b\[[\d;]*m", "", text.replace(store, "STORE"))


def on_a_terminal(width: int, said: list[str], monkeypatch: pytest.MonkeyPatch, term: str, encoding: str) -> str:
    """What a command of this process writes to a pseudo-terminal so wide."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    read = bytearray()

    def reads() -> None:
        with contextlib.suppress(OSError):  # how Linux says that the other side is closed
            while more := os.read(leader, 1 << 16):
                read.extend(more)

    reader = Thread(target=reads)
    reader.start()
    with open(follower, "w", encoding=encoding) as terminal, monkeypatch.context() as patched:
        for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
            patched.delenv(name, raising=False)
        patched.setenv("TERM", term)
        patched.setattr(sys, "stdout", terminal)
        patched.setattr(sys, "__stdout__", terminal)
        with pytest.raises(SystemExit) as end:
            main(said)
        assert end.value.code in (0, 1, None)
    reader.join()
    os.close(leader)
    return read.decode(encoding).replace("\r\n", "\n")


def snapshot(command: str, text: str) -> str:
    """What is compared of a command's ``text``: its words, of those of LISTS without the rows of tables."""
    if command in LISTS:
        text = re.sub(r"^(─+\n)(?:(?!left out).+\n)*", r"\1", text, flags=re.MULTILINE)
    if command in HEADS_ALONE:
        text = "\n\n".join(re.findall(r"^.+(?=\n─+$)", text, flags=re.MULTILINE))
    return words(text)


def words(text: str) -> str:
    """``text`` without figures and line breaks that its width makes: a paragraph a line, a table's rows apart."""
    text = re.sub(r"\d[\d,.]*(e[+-]\d+)?", "#", text)
    text = re.sub(r" (us|ms|s|M|B|G|KiB|MiB|GiB)\b", " UNIT", text)
    paragraphs = (" ".join(one.split()) for one in re.split(r"\n\n+", text))
    return "\n".join(re.sub(r"─+", "─", one) for one in paragraphs) + "\n"


def snapshots(command: str) -> dict[int, str]:
    """By width what was looked at."""
    text = (DATA / "snapshots" / "terminal" / f"{command}.txt").read_text(encoding="utf-8")
    parts = re.split(r"^=== (\d+) columns\n", text, flags=re.MULTILINE)
    return {int(width): said for width, said in zip(parts[1::2], parts[2::2], strict=True)}


def test_every_command_and_view_has_its_words() -> None:
    seen = {" ".join(word for word in said if re.fullmatch(r"[a-z]+", word)) for said in COMMANDS.values()}
    groups = {name: getattr(main.get_command(Context(main), name), "commands", {"": None}) for name in SHOWN}
    every = {f"{name} {one}".strip() for name, subcommands in groups.items() for one in subcommands}
    assert {one for one in every - WITHOUT if not any(said.startswith(one) for said in seen)} == set()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_keeps_to_the_width_and_to_its_words(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(command, width, monkeypatch)
    # An address is whole, so that it can be followed.
    assert [line for line in text.splitlines() if cell_len(line) > width and "https://" not in line] == []
    assert not re.search(r"\bNone\b|\bnan\b|<.* object at", text)
    assert snapshot(command, text) == snapshots(command)[width]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "store-import"])  # a path and four counts
def test_a_terminal_of_forty_columns_is_kept_to(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    long = (line for line in shown(command, 40, monkeypatch).splitlines() if len(line) > 40)
    assert [line for line in long if "https://" not in line] == []


@pytest.mark.parametrize("width", [40, 120])
def test_a_terminal_that_is_dumb_says_the_same_without_colours(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown("check", width, monkeypatch, "dumb") == shown("check", width, monkeypatch)


@pytest.mark.parametrize("encoding", ["ascii", "cp437"])
@pytest.mark.parametrize("command", ["check", "check-devices", "ops", "explain", "diff", "rules"])
@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_without_chinese_keeps_to_its_width_too(
    command: str, width: int, encoding: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "模型配置文件一二三四五六七八九十.json"
    file.write_text(Path(GPT2).read_text().replace('"model_type"', '"名": "甲乙丙丁", "model_type"'), encoding="utf-8")
    said = tuple(str(file) if word == GPT2 else word for word in COMMANDS[command])
    monkeypatch.setitem(COMMANDS, "written out", said)
    text = shown("written out", width, monkeypatch, encoding=encoding)
    assert [line for line in text.splitlines() if len(line) > width] == []
    assert "\\u" in text or str(file) not in said  # written out, not left out


def test_a_plan_has_its_memory_and_mfu_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown("plan", 80, monkeypatch)
    assert re.search(r"^ *tp .* GiB +MFU$", text, re.MULTILINE)


def test_a_search_at_equal_loss_has_its_loss_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["search", LLAMA, "--what", "model", "--quality", "15T", "--predict", "--device", "h100-sxm"]
    monkeypatch.chdir(DATA.parents[1])
    text = re.sub(r"\x1b\[[\d;]*m", "", on_a_terminal(80, said, monkeypatch, "xterm-256color", "utf-8"))
    assert re.search(r"^baseline .* 1\.000x  \+0\.00%$", text, re.MULTILINE)


def test_the_line_of_a_file_without_line_breaks_is_cut_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "one.json"
    config = json.loads(Path(GPT2).read_text())
    keys = sorted(config, key=lambda key: (key > "m", key != "vocab_size", key))  # it is in the middle
    file.write_text(json.dumps({key: config[key] for key in keys}), encoding="utf-8")
    monkeypatch.setitem(COMMANDS, "one", ("check", str(file)))
    (line,) = [line for line in shown("one", 80, monkeypatch).splitlines() if " | " in line]
    assert '"vocab_size": 50257' in line
    assert line.startswith("      1 | …")
    assert line.endswith("…")


if __name__ == "__main__":
    for name in COMMANDS:
        file = DATA / "snapshots" / "terminal" / f"{name}.txt"
        file.parent.mkdir(exist_ok=True)
        said = (f"=== {at} columns\n{snapshot(name, shown(name, at, pytest.MonkeyPatch()))}" for at in WIDTHS)
        file.write_text("".join(said), encoding="utf-8")
