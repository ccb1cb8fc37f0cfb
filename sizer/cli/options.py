"""Options that several commands share: the device, the workload and where output goes."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from shapes.device import DEFAULT_DEVICE
from shapes.dtypes import DTYPES
from shapes.errors import InputError
from shapes.files import write_whole
from shapes.finetune import BASES, METHODS
from shapes.kernels import CHOICES
from shapes.recipes import RECIPES
from shapes.workload import NOT_OVERLAPPED, Dispatcher, Implementation, KvDtype, RunPhase
from sizer.cli.numbers import COUNT
from sizer.ending import give_up_output
from sizer.render import draw, drawn, formats, render
from sizer.render.page import Page, plain, unlinked
from sizer.workload_names import WORKLOAD_FIELDS, option_of

#: All but the line feed, the tab and the colours of ``_coloured``: what could forge or hide a line on a terminal.
_CONTROL = re.compile(
    r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)

F = TypeVar("F", bound=Callable[..., Any])

#: Begins a linked text; nothing that is read can know it, and so forge a link.
_MARK = f"\ue000{os.urandom(8).hex()} "
_LINKED = re.compile(f"{_MARK}(.*?)\ue001(.*?)\ue002", re.DOTALL)
#: Terminals that follow links, by a variable that they set.
_FOLLOWS_LINKS = ("VTE_VERSION", "WT_SESSION", "KITTY_WINDOW_ID", "WEZTERM_PANE", "KONSOLE_VERSION", "GHOSTTY_BIN_DIR")
_PROGRAMS = ("iTerm.app", "vscode", "WezTerm", "ghostty", "Hyper")

COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def device_option(function: F) -> F:
    """``--device``: a device's name or alias, passed on as ``device``."""
    return click.option(
        "--device",
        default=DEFAULT_DEVICE,
        show_default=True,
        metavar="NAME",
        help="Target accelerator (`sizer devices`).",
    )(function)


def stack_option(function: F) -> F:
    """``--stack``: a software stack's name, passed on as ``stack``; None where not given."""
    return click.option(
        "--stack",
        metavar="NAME",
        help="Software stack that runs the step (a name of shapes/stacks or a .toml). [default: by the file's format]",
    )(function)


def workload_options(function: F) -> F:
    """The workload: every option a field of ``Workload``, passed on under that name; None where not given."""
    options = (
        click.option("-b", "--microbatch", "b", type=COUNT, help="Sequences a microbatch. [default: the file's, or 4]"),
        click.option(
            "-s",
            "--sequence",
            "s",
            type=COUNT,
            help="Tokens a sequence. [default: the file's, or 4096, at most the model's longest]",
        ),
        click.option("--decoder-sequence", "decoder_s", type=int, help="Target tokens of an encoder-decoder."),
        click.option("--dtype", type=click.Choice(DTYPES), help="Element type. [default: the file's, or bf16]"),
        click.option("--tp", "t", type=int, help="Tensor-parallel degree. [default: 1]"),
        click.option("--pp", "p", type=int, help="Pipeline-parallel degree. [default: 1]"),
        click.option("--dp", "d", type=int, help="Data-parallel degree. [default: 1]"),
        click.option("--ep", "e", type=int, help="Expert-parallel degree. [default: 1]"),
        click.option("--cp", type=int, help="Context-parallel degree: ranks that share a sequence. [default: 1]"),
        click.option("--vpp", type=int, help="Chunks of layers a pipeline stage (interleaved schedule). [default: 1]"),
        click.option("--replicas", type=int, help="HSDP: groups of ranks that each shard the model. [default: 1]"),
        click.option("--gpus", type=COUNT, help="Devices; --dp follows as GPUs / (TP x PP x CP)."),
        click.option(
            "--no-overlap",
            metavar="NAMES",
            help=f"Communication beside no computing, of {', '.join(NOT_OVERLAPPED)}, or none. [default: the file's]",
        ),
        click.option("--global-batch", type=COUNT, help="Sequences a step; gradient accumulation follows."),
        click.option("--zero", type=click.IntRange(0, 3), help="ZeRO stage. [default: 0]"),
        click.option(
            "--attention",
            type=click.Choice(CHOICES),
            metavar="KERNEL",
            help=f"Attention kernel: {', '.join(CHOICES)}. [default: auto, the device's usual one]",
        ),
        click.option(
            "--recipe", type=click.Choice(RECIPES), help="Low-precision recipe of the products. [default: by --dtype]"
        ),
        click.option(
            "--phase",
            type=click.Choice(get_args(RunPhase)),
            help="What is run: training, a prompt (infer, prefill) or a step of generating. [default: train]",
        ),
        click.option(
            "--context", type=COUNT, help="Decoding: keys a request has in its cache. [default: the sequence]"
        ),
        click.option(
            "--kv-dtype", type=click.Choice(get_args(KvDtype)), help="Inference: KV cache's type. [default: 16 bits]"
        ),
        click.option(
            "--speculative", type=click.IntRange(0), help="Decoding: drafted tokens a request and step. [default: 0]"
        ),
        click.option(
            "--checkpointing",
            type=click.Choice(["none", "selective", "full"]),
            help="Activation checkpointing. [default: none]",
        ),
        click.option("--sequence-parallel/--no-sequence-parallel", default=None, help="Split norms over the TP group."),
        click.option("--fused-qkv/--no-fused-qkv", default=None, help="One QKV product. [default: as the model class]"),
        click.option(
            "--fused-gate-up/--no-fused-gate-up",
            default=None,
            help="One gate and up product. [default: as the model class]",
        ),
        click.option(
            "--finetune", metavar="METHOD", help=f"Fine-tuning: {', '.join(METHODS)}. [default: training from scratch]"
        ),
        click.option("--lora-rank", type=int, help="Rank of LoRA's adapters. [default: 8]"),
        click.option(
            "--lora-targets", metavar="NAMES", help="Matrices with adapters (commas), or all-linear. [default: peft's]"
        ),
        click.option("--base", metavar="TYPE", help=f"LoRA's frozen weights: {', '.join(BASES)}. [default: by method]"),
        click.option(
            "--frozen-architecture",
            is_flag=True,
            default=None,
            help="A released model: advise the workload only (--finetune implies it).",
        ),
        click.option(
            "--optimizer", metavar="NAME", help="Whose states are kept (a wrong name lists them). [default: adamw]"
        ),
        click.option(
            "--precision",
            metavar="NAME",
            help="What parameters are kept in (a wrong name lists them). [default: by --dtype]",
        ),
        click.option(
            "--implementation",
            type=click.Choice(get_args(Implementation)),
            help="Whose kernels save activations: transformers' modules or Megatron's. [default: the file's]",
        ),
        click.option(
            "--expert-load", type=float, help="Fullest expert's tokens over the mean. [default: 1.0, even routing]"
        ),
        click.option(
            "--dispatcher",
            type=click.Choice(get_args(Dispatcher)),
            help="Experts' tokens: flex (DeepEP, HybridEP: once a node) or alltoall (every copy). [default: flex]",
        ),
        click.option("--ep-overlap", is_flag=True, default=None, help="Dispatch beside another batch's computing."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def trace_options(function: F) -> F:
    """``--trace`` and ``--tp-plan``, passed on as ``trace`` and ``plan`` (a mapping, or None where not given)."""
    function = click.option(
        "--tp-plan",
        "plan",
        multiple=True,
        metavar="GLOB=STYLE",
        callback=_plan,
        help="With --trace: how modules are split over --tp, colwise or rowwise. [default: transformers' own plan]",
    )(function)
    return click.option(
        "--trace", is_flag=True, help="List operators by tracing the model class (needs sizer[trace])."
    )(function)


def _plan(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    for value in values:
        if "=" not in value:
            raise InputError("expected GLOB=colwise or GLOB=rowwise", key="--tp-plan", value=value)
    return {glob: style for glob, _, style in (value.rpartition("=") for value in values)} or None


def given(values: dict[str, Any]) -> dict[str, Any]:
    """The options a person gave: those that are not None."""
    return {key: value for key, value in values.items() if value is not None}


def codes(values: tuple[str, ...]) -> tuple[str, ...]:
    """Rules' codes as people type them, several an option with commas between."""
    return tuple(code.strip() for value in values for code in value.split(",") if code.strip())


def option_error(error: InputError) -> InputError:
    """The same error naming the command-line option instead of the workload's field."""
    if error.key in WORKLOAD_FIELDS:
        return InputError(error.expected, where=error.where, key=option_of(error.key), value=error.value)
    return error


def output_options(command: str) -> Callable[[F], F]:
    """``--format``, of which the registry holds the names (the first is the default), and ``--output``."""
    names = formats(command)

    def decorate(function: F) -> F:
        if drawn(command):
            function = click.option(
                "--plot",
                metavar="FILE",
                expose_value=False,
                callback=_picture,
                help="Draw the page's charts too: .png, .svg or .pdf (needs sizer[plot]).",
            )(function)
        function = click.option(
            "-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write here, not to the terminal."
        )(function)
        return click.option(
            "--format", "format_", type=click.Choice(names), default=names[0], show_default=True, help="Format."
        )(function)

    return decorate


def _picture(context: click.Context, _parameter: click.Parameter, path: str | None) -> None:
    """Kept for ``write_answer``; an ending that cannot be drawn is refused before anything is worked out."""
    if path is not None:
        from sizer.render.picture import ending

        ending(path)
    context.meta["sizer.plot"] = path


def plot_wanted() -> bool:
    """Whether ``--plot`` names a file."""
    return click.get_current_context().meta.get("sizer.plot") is not None


def write_answer(
    command: str, answer: object, format_: str | None = None, output: str | None = None, *, seen: object = None
) -> None:
    """``answer`` rendered by the registry's renderer, to standard output or to a file, and drawn where --plot says.

    ``seen``: what a page and a picture are made of, where that is more than ``answer``. In a workflow of GitHub's,
    annotations are the default where the command has them.
    """
    if (
        output is None
        and _format_left_open()
        and os.environ.get("GITHUB_ACTIONS") == "true"
        and "github" in formats(command)
    ):
        format_ = "github"
    context = click.get_current_context(silent=True)
    if context is not None and (picture := context.meta.get("sizer.plot")) is not None:
        click.echo(f"sizer: {draw(command.partition(' ')[0], seen or answer, picture)}", err=True)
    text = render(command, format_, seen if format_ == "html" and seen is not None else answer, _page(output))
    if output is not None:
        write_whole(
            output, text if isinstance(text, bytes) else _with_newline(text).encode("utf-8", "backslashreplace")
        )
    elif isinstance(text, bytes):
        raise InputError(f"expected a file: {format_} is binary", key="--output")
    else:
        say(text)


def _format_left_open() -> bool:
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source("format_") if context is not None else None
    return source is click.core.ParameterSource.DEFAULT


def say(text: str) -> None:
    """``text`` on standard output, where a terminal shows it as it is: control characters are written out."""
    if sys.stdout is None:
        raise InputError("standard output is closed: name a file with -o")
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    shown = _with_newline(text).encode(encoding, "backslashreplace").decode(encoding)
    try:
        shown = _CONTROL.sub(lambda found: ascii(found.group())[1:-1], shown)
        click.echo(_LINKED.sub("\x1b]8;;\\1\x1b\\\\\\2\x1b]8;;\x1b\\\\", shown), nl=False)
    except OSError as error:
        give_up_output()
        raise InputError(f"cannot be written: {error.strerror}", where="standard output") from None


def _with_newline(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _page(output: str | None) -> Page:
    """As wide as the terminal; coloured and linked only on one, unless NO_COLOR says not to be or it knows no links."""
    terminal = output is None and sys.stdout is not None and sys.stdout.isatty()
    coloured = terminal and "NO_COLOR" not in os.environ
    width = min(shutil.get_terminal_size((100, 24)).columns, 140)
    return Page(
        width, _coloured if coloured else plain, _linked if terminal and _links_followed() else unlinked, terminal
    )


def _links_followed() -> bool:
    """Whether the terminal shows OSC 8 hyperlinks; FORCE_HYPERLINK (0 or 1) decides where it is set."""
    if (forced := os.environ.get("FORCE_HYPERLINK")) is not None:
        return forced not in ("", "0")
    known = any(name in os.environ for name in _FOLLOWS_LINKS) or os.environ.get("TERM_PROGRAM") in _PROGRAMS
    return known and os.environ.get("TERM") != "dumb" and (sys.stdout.encoding or "").lower().startswith("utf")


def _linked(text: str, address: Callable[[], str | None]) -> str:
    found = address()
    if found is None or not found.isascii() or not found.isprintable():
        return text
    return f"{_MARK}{found}\ue001{text}\ue002"


def _coloured(text: str, kind: str) -> str:
    return click.style(text, fg=COLOURS.get(kind), bold=kind == "head" or None)


def read_standard_input() -> str:
    """Standard input as text; what is too large or not UTF-8 is an InputError."""
    from sizer.readers.loading import MAX_BYTES, decode

    if sys.stdin is None:
        raise InputError("standard input is closed", where="<stdin>")
    return decode(sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>")


def config_options(function: F) -> F:
    """``--config-format`` (passed on), and ``--set`` and ``--training``, which ``config_argument`` reads."""
    options = (
        click.option("--config-format", metavar="NAME", help="The file's format. [default: detected]"),
        click.option(
            "--set",
            multiple=True,
            metavar="KEY=VALUE",
            expose_value=False,
            callback=_kept,
            help="Replace or add a key of the file (a script's variable too); several allowed.",
        ),
        click.option(
            "--training",
            multiple=True,
            metavar="FILE",
            expose_value=False,
            callback=_kept,
            help="A trainer's settings for the workload: ds_config.json, accelerate's YAML, TrainingArguments' JSON.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _kept(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    context.meta[f"sizer.{parameter.name}"] = values


def config_argument(config: str) -> object:
    """What the CONFIG argument names, with ``--set`` and ``--training``: its path, or standard input when it is "-"."""
    from sizer.readers import Source
    from sizer.readers.settings import parse_setting

    meta = click.get_current_context().meta
    settings = dict(parse_setting(text) for text in meta.get("sizer.set", ()))
    training = meta.get("sizer.training", ())
    if config == "-":
        return Source("<stdin>", settings, training, read_standard_input())
    return Source(config, settings, training) if settings or training else config
