"""Numbers as people type them on the command line."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sizer.cli import main
from sizer.cli.options import COUNT, QUANTITY

GPT2 = str(Path(__file__).parent / "data" / "configs" / "gpt2.json")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("4k", 4096),
        ("4K", 4096),
        ("1M", 2**20),
        ("1e3", 1000),
        ("1,024", 1024),
        ("1.5k", 1536),
        ("-3", -3),
    ],
)
def test_a_count(text: str, value: int) -> None:
    assert COUNT.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("2.7B", 2.7e9), ("1e12", 1e12), ("7b", 7e9), ("1.3T", 1.3e12), ("350M", 350e6), ("27e8", 2.7e9)],
)
def test_a_quantity(text: str, value: float) -> None:
    assert QUANTITY.convert(text, None, None) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text", ["", "k", "4kk", "4.5", "1e400", "4 k 4", "0x10", "9" * 60, "4b"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        COUNT.convert(text, None, None)


def test_both_on_the_command_line() -> None:
    answer = CliRunner().invoke(main, ["check", GPT2, "-s", "1k", "--fail-on", "never"])
    assert answer.exit_code == 0, answer.output
    assert "s 1024" in answer.output
    refused = CliRunner().invoke(main, ["check", GPT2, "-s", "1kk"])
    assert refused.exit_code == 2
    assert "4096 or 4k" in refused.stderr
