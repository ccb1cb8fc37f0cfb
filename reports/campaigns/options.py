"""Every command with options drawn at random, valid and not, in this process: exit code 0, 1 or 2, one line for 2."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import click

from reports.campaigns.configurations import ROOT
from reports.campaigns.outcome import Outcome, judge, run_command
from sizer.cli import main

#: Commands that only answer; bench and calibrate measure and write, and store has a campaign of its own.
COMMANDS = ("check", "ops", "search", "memory", "mfu", "plan", "devices", "rules", "explain")
WORDS = (
    "", "0", "1", "-1", "2", "3", "8", "64", "4096", "1048576", "2147483648", "1e400", "nan", "inf", "-inf",
    "0.5", "1%",
    "1:2:3", "4096:8192", "64,128", "a=b", "*=colwise", "x" * 300, "\x1b[31m", "\udcff", "../..", "é", "--", "h100-sxm",
    "SZ101", "bf16", "all", "text", "json",
)  # fmt: skip
CONFIGS = ("gpt2", "llama-3.1-8b")


def _value(option: click.Parameter, rng: random.Random) -> str:
    kind: Any = option.type
    if isinstance(kind, click.Choice) and rng.random() < 0.7:
        return str(rng.choice(list(kind.choices)))
    if kind.name.startswith("integer") and rng.random() < 0.7:
        return str(rng.choice((1, 2, 4, 8, 16, 128, 1024)))
    return rng.choice(WORDS)


def arguments(rng: random.Random, folder: Path) -> list[str]:
    """A command with zero to four of its options."""
    name = rng.choice(COMMANDS)
    command = main.get_command(click.Context(main), name)
    assert command is not None
    words = [name]
    takes = [one for one in command.params if isinstance(one, click.Argument)]
    if takes and rng.random() < 0.95:
        config = str(ROOT / "tests" / "data" / "configs" / f"{rng.choice(CONFIGS)}.json")
        words.append(rng.choice(("SZ101", "SZ999")) if name == "explain" else config)
    options = [one for one in command.params if isinstance(one, click.Option) and "--trace" not in one.opts]
    for option in rng.sample(options, min(len(options), rng.randint(0, 4))):
        flag = rng.choice([*option.opts, *option.secondary_opts])
        if option.name in ("measure", "source", "store", "log") or flag in ("--help",):
            continue
        if option.is_flag:
            words.append(flag)
        elif option.name in ("output", "plot", "write_baseline"):
            words += [flag, str(rng.choice((folder / "out.txt", folder / "no" / "x", folder, "/dev/null", "")))]
        else:
            words += [flag, _value(option, rng)]
    return words


def run(count: int, rng: random.Random, folder: Path) -> Outcome:
    outcome = Outcome()
    for _ in range(count):
        words = arguments(rng, folder)
        # A search without --predict or --device measures where there is an accelerator.
        judge(outcome, run_command([*words, "--predict"] if words[0] == "search" else words), words)
        left = sorted(path.name for path in folder.iterdir() if path.name != "out.txt")
        if left:
            outcome.violation("files left over", (words, left))
            for name in left:
                (folder / name).unlink()
    return outcome
