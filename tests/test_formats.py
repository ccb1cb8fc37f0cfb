"""The registry of formats: every command's document is rendered in every format from a real, small answer."""

from __future__ import annotations

import csv
import io
import json
import pkgutil
import re
from collections.abc import Callable
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner

import sizer
import sizer.documents
import sizer.render
from shapes.device import load_device
from shapes.errors import InputError, printable
from shapes.workload import Workload
from sizer.answers.bench import Bench, Check, SelfTest, Stored
from sizer.answers.deploy import deploy
from sizer.answers.plan import plan
from sizer.checking.findings import Checked
from sizer.cli import COMMANDS as CLI
from sizer.cli import main
from sizer.documents import Findings, Table
from sizer.documents.lookup import devices
from sizer.render import COMMANDS, Page, document_of, formats, render
from sizer.rules import RULES
from sizer.subject import read_subject

#: Modules of sizer/render that are no format.
SHARED = {"findings", "vega"}
#: What documents are made of.
PARTS = {"charts", "document", "pipeline"}
MODULES = {module.name for module in pkgutil.iter_modules(sizer.render.__path__)}
FORMATS = {name for command in COMMANDS for name in formats(command)}
GPT2 = str(Path(__file__).parent / "data" / "configs" / "gpt2.json")


def test_every_file_of_the_render_package_is_a_format_or_shared() -> None:
    assert MODULES - SHARED == FORMATS
    made = {where.partition(":")[0] for where, _ in COMMANDS.values()}
    assert {module.name for module in pkgutil.iter_modules(sizer.documents.__path__)} - PARTS == made


@pytest.mark.parametrize("format_", sorted(FORMATS))
def test_a_format_renders(format_: str) -> None:
    found = import_module(f"sizer.render.{format_}")
    assert callable(found.render)
    assert found.__doc__


@pytest.mark.parametrize("module", sorted(SHARED))
def test_what_is_shared_holds_no_renderer_that_nobody_could_ask_for(module: str) -> None:
    found = import_module(f"sizer.render.{module}")
    assert not hasattr(found, "render")


def commands() -> dict[str, click.Command]:
    """Every command and subcommand by the name a person types."""
    found: dict[str, click.Command] = {}
    for name in CLI:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": one for inner, one in command.commands.items()}
    return found


WITH_FORMATS = [name for name, one in commands().items() if any(option.name == "format_" for option in one.params)]


@pytest.mark.parametrize("name", WITH_FORMATS)
def test_format_offers_what_the_registry_holds_the_first_being_the_default(name: str) -> None:
    option = next(parameter for parameter in commands()[name].params if parameter.name == "format_")
    assert tuple(option.type.to_info_dict()["choices"]) == formats(name)
    assert option.default == formats(name)[0]


def test_every_command_of_the_registry_is_one_of_the_command_line() -> None:
    for name in COMMANDS:
        base, _, option = name.partition(" --")
        assert base in commands()
        if option:
            assert f"--{option.split()[0]}" in [text for p in commands()[base].params for text in p.opts]


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="expected one of text, json, csv"):
        render("search", "yaml", None)


def test_every_json_document_carries_the_schema_s_version() -> None:
    config = "tests/data/configs/gpt2.json"
    calls = (
        ["check", config],
        ["ops", config],
        ["memory", config],
        ["devices", "h200"],
        ["search", "--h", "1024"],
        ["mfu", config, "--step-time", "1", "--gpus", "8", "--global-batch", "64"],
        ["plan", config, "--gpus", "2", "--global-batch", "8"],
        ["deploy", config],
    )
    for call in calls:
        result = CliRunner().invoke(main, [*call, "--format", "json"])
        assert result.exit_code in (0, 1), result.output
        assert json.loads(result.output)["schema_version"] == 1


def of_gpt2(make: Callable[..., Any], **options: Any) -> Any:
    subject = read_subject(GPT2)
    return make(subject, load_device("h100-sxm"), **options)


def mfu_of_gpt2() -> Any:
    from sizer.answers.mfu import MfuAnswer, counts, utilization
    from sizer.readers import read_config

    device = load_device("h100-sxm")
    run = Workload(1, 1024, global_batch=64)
    rows = tuple(utilization(count, 1.0, 8, device) for count in counts(read_config(GPT2).model, run))
    return MfuAnswer(1.0, 8, 64, 1024, device, "bf16", "none", rows, None, None, ())


#: A small answer of every command that needs nothing measured, with a formula and markup where a file may have them.
ANSWERS: dict[str, Callable[[], Any]] = {
    "check": lambda: Checked((sizer.check(GPT2), sizer.check(GPT2, tp=5))),
    "diff": lambda: sizer.diff(GPT2, GPT2.replace("gpt2", "qwen2.5-7b")),
    "ops": lambda: sizer.ops(GPT2),
    "ops --explain": lambda: sizer.ops(GPT2).named("mlp"),
    "search": lambda: sizer.search(h=1024),
    "search --emit": lambda: sizer.search(GPT2, what="vocab"),
    "memory": lambda: sizer.memory(GPT2),
    "mfu": mfu_of_gpt2,
    "plan": lambda: of_gpt2(
        lambda s, device: plan(s.model, device, gpus=2, global_batch=8, base=s.workload, tokens=1e9)
    ),
    "plan --phase decode": lambda: sizer.plan(GPT2, phase="decode", gpus=2, s=128, context=256),
    "deploy": lambda: deploy(GPT2, tp=5, recipe="blockwise"),
    "bench": lambda: Bench(()),
    "bench --self-test": lambda: SelfTest("x", (Check("a", True, "b"), Check("c", None, "d"))),
    "bench --dry-run": lambda: {"tiny": ((), 0.5)},
    "store list": lambda: Stored((), 0),
    "store export": lambda: Stored((), 0),
    "devices": devices,
    "rules": lambda: RULES,
    "explain": lambda: RULES[0],
}
#: Answers of what only a store or a training of constants has, and a run's row, a cell of which is the configuration's
#: JSON (test_steps.py); their own tests render them.
ELSEWHERE = {"calibrate", "mfu --row"}
CASES = [(command, format_) for command in ANSWERS for format_ in formats(command)]


def tables(command: str, format_: str, answer: Any) -> list[Table]:
    parts = [part for one in document_of(command, answer).seen(format_) for part in one.seen(format_)]
    return [part for part in parts if isinstance(part, Table) and part.rows]


def test_every_command_has_an_answer_here() -> None:
    assert set(ANSWERS) | ELSEWHERE == set(COMMANDS)


@pytest.mark.parametrize(("command", "format_"), CASES)
def test_every_command_in_every_format(command: str, format_: str) -> None:
    answer = ANSWERS[command]()
    shown = render(command, format_, answer, Page(80))
    assert isinstance(shown, str)
    CHECKS[format_](command, answer, shown)


def check_jsonl(command: str, answer: Any, shown: str) -> None:
    for line in shown.splitlines():
        assert isinstance(json.loads(line, parse_constant=pytest.fail), dict)


def check_junit(command: str, answer: Any, shown: str) -> None:
    for suite in ElementTree.fromstring(shown).iter("testsuite"):
        assert len(suite.findall("testcase")) == int(suite.attrib["tests"])


def check_text(command: str, answer: Any, shown: str) -> None:
    assert shown.endswith("\n")
    for line in shown.splitlines():
        assert not re.search(r"<[\w.]+ object at|\b[A-Z]\w+\(\w+=|\bNone\b|\['|\{'|\bnan\b", line), line
        assert line == line.rstrip() or "  " in line
    for table in tables(command, "text", answer):
        columns, rows = table.seen("text")
        for text in [*(one.name for one in columns), *(cell.shown for row in rows for cell in row)]:
            assert printable(text).strip() in shown


def check_json(command: str, answer: Any, shown: str) -> None:
    json.loads(shown, parse_constant=pytest.fail)


def check_csv(command: str, answer: Any, shown: str) -> None:
    head, *rows = csv.reader(io.StringIO(shown))
    assert len(set(head)) == len(head)
    for row in rows:
        assert len(row) == len(head)
        assert not [cell for cell in row if re.match(r"\[|\{|\('|\(\)|[=@+]", cell)], row


def check_markdown(command: str, answer: Any, shown: str) -> None:
    assert shown.count("<details>") == shown.count("</details>")
    found = re.findall(r"(?:^\|.*\n)+", shown, re.MULTILINE)
    assert len(found) >= len(tables(command, "markdown", answer))
    for table in found:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def check_html(command: str, answer: Any, shown: str) -> None:
    assert shown.startswith("<!doctype html>")
    assert shown.count("<table>") == shown.count("</table>")
    for table in tables(command, "html", answer):
        _, rows = table.seen("html")
        for cell in (cell for row in rows for cell in row):
            assert f">{escape(printable(cell.shown), quote=True)}<" in shown


def check_github(command: str, answer: Any, shown: str) -> None:
    said = sum(len(part.findings) for part in parts_of(command, answer) if part.label != "fixed")
    assert len(re.findall("^::", shown, re.MULTILINE)) == said


def parts_of(command: str, answer: Any) -> list[Findings]:
    parts = [part for one in document_of(command, answer).seen("text") for part in one.seen("text")]
    return [part for part in parts if isinstance(part, Findings)]


CHECKS: dict[str, Callable[[str, Any, Any], None]] = {
    "text": check_text,
    "json": check_json,
    "sarif": check_json,
    "badge": check_json,
    "csv": check_csv,
    "markdown": check_markdown,
    "html": check_html,
    "github": check_github,
    "jsonl": check_jsonl,
    "junit": check_junit,
}


def test_a_formula_is_no_formula_and_a_list_is_no_python_in_csv() -> None:
    from sizer.documents import Document

    rows = [{"text": "=HYPERLINK(1)", "list": ("SZ101", "SZ102"), "number": -1.5}, {"text": "\t+x", "more": None}]
    shown = import_module("sizer.render.csv").render(Document("", (), records=lambda: rows), Page())
    assert shown == "text,list,number,more\n'=HYPERLINK(1),SZ101 SZ102,-1.5,\n'\\t+x,,,\n"


def test_a_narrow_terminal_leaves_columns_out_and_says_which() -> None:
    answer = ANSWERS["ops"]()
    narrow, pipe = (str(render("ops", "text", answer, Page(100, terminal=one))) for one in (True, False))
    assert "left out, the terminal is too narrow: " in narrow
    assert max(map(len, narrow.splitlines()[4:30])) <= 100 < max(map(len, pipe.splitlines()[4:30]))
    assert "left out" not in pipe


@pytest.mark.parametrize("command", [name for name in ANSWERS if "text" in formats(name)])
def test_no_line_is_over_a_terminal_s_width(command: str) -> None:
    answer = ANSWERS[command]()
    for width in (80, 120, 140):
        shown = render(command, "text", answer, Page(width, terminal=True))
        assert not [line for line in shown.splitlines() if len(line) > width and "https://" not in line]
        for table in tables(command, "text", answer):
            columns, rows = table.seen("text")
            for at, column in enumerate(columns):
                if column.drop == 0 and column.name in shown and width >= 120:  # a number is never folded
                    numbers = [row[at].shown for row in rows if row[at].value is not None]
                    assert all(number in shown for number in numbers)


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colours_are_forced_and_forbidden_by_the_usual_variables(environment: dict[str, str], coloured: bool) -> None:
    for call in (("check", GPT2), ("memory", GPT2), ("ops", GPT2), ("deploy", GPT2)):
        shown = CliRunner(env={"NO_COLOR": "", "FORCE_COLOR": "", **environment}).invoke(main, call, color=True).output
        assert ("\x1b[" in shown) == coloured, call


def test_counts_by_severity_have_its_colour() -> None:
    answer = Checked((sizer.check(GPT2, tp=5),))
    counts = {level: number for level, number in answer.tally().items() if number}
    assert len(counts) > 1
    shown = str(render("check", "text", answer, Page(200, terminal=True, coloured=True)))
    for level, number in counts.items():
        colour = {"error": 31, "warning": 33, "info": 36}[level]
        assert f"\x1b[{colour}m{number} {level}" in shown


def test_jobs_that_were_not_reached_in_time_are_named_those_of_a_page_all() -> None:
    from shapes.measure.environment import Environment
    from shapes.measure.jobs import Job
    from shapes.measure.runner import Sweep
    from shapes.measure.stats import Drift
    from shapes.operators.types import Gemm
    from sizer.answers.bench import MeasuredTable

    left = tuple(Job(Gemm("bench", "forward", size, 8, 8, 1, "bf16", "tn")) for size in range(8, 20))
    environment = Environment("h200", ())
    table = MeasuredTable((), Sweep({}, left, Drift(0.0, 0.0, 0), 0, 0, 1.0), environment, ())
    text, page = (str(render("bench", name, Bench((table,)))) for name in ("text", "html"))
    assert "12 jobs" in text
    assert "gemm 8 x 8 x 8" in text
    assert "… and 2 more" in text
    assert "gemm 19 x 8 x 8" not in text
    assert "gemm 19 x 8 x 8" in page


def test_every_table_of_columns_is_shown_somewhere_and_every_word_in_it_means_something() -> None:
    """A word of "show" is a format, a function of sizer.documents or one that its table is given."""
    import sizer.documents as document

    folder = Path(document.__file__).parent
    code = "\n".join(path.read_text() for path in (*folder.glob("*.py"), folder.parent / "render" / "html.py"))
    tables = json.loads((folder / "columns.json").read_text())
    assert set(re.findall(r'columns\(\s*"([^"]+)"', code)) == set(tables)
    for table, rows in tables.items():
        for row in rows:
            show = row.get("show", ",")
            named = show.isidentifier() and show not in ("d",)
            assert not named or hasattr(document, show) or f"{show}=" in code, (table, row)
            assert set(row) <= {*document.Column._fields}, (table, row)
