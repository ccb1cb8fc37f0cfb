"""Options that several commands share, how help lists them, where output goes; numbers as people type them (4k)."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import click

from shapes.device import DEFAULT_DEVICE
from shapes.errors import InputError, refuse, write_whole
from shapes.frozen import Function, Names, Texts, Values, first_of, given
from shapes.program import named_function
from shapes.toml_table import nearest, others_words, ours, spelled, squeezed, table_of
from shapes.workload import OPTIONS, WORKLOAD_FIELDS, option_of, workload_fields
from sizer.process import clearing, end_line, give_up_output
from sizer.render import Page, formats, render

_NUMBER = r"\s*((?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?(?:e[+-]?\d{1,2})?|\.\d+(?:e[+-]?\d{1,2})?)\s*([a-z]*|%)\s*"


def scaled(text: str, of: str) -> float | None:
    """The number that a text says in the units ``of`` something (options.json); None where it is none."""
    found, units = re.fullmatch(_NUMBER, text.lower()) if len(text) <= 40 else None, TABLES["units"][of]
    return float(re.sub("[_,]", "", found[1])) * units[found[2]] if found and found[2] in units else None


def count(text: str) -> int | None:
    """The integer that a text says, ``4k`` being 4,096 and ``1e3`` 1,000; None where it is none."""
    if re.fullmatch(r"-?\d{1,40}", text):
        return int(text)
    found = scaled(text, "count")
    return None if found is None or found % 1 else int(found)


def seconds(text: str) -> float | None:
    """The seconds that a text says, with or without a unit; None where it is no time (1,5 may be two)."""
    return scaled(text, "time") if "," not in text else None


def _number(name: str, read: Callable[[str], float | None], expected: str) -> Any:
    """click's type of an option that ``read`` turns into a value; a usage error if that is None."""

    def convert(value: Any) -> Any:
        found = read(value) if isinstance(value, str) else value
        if found is None:
            raise click.BadParameter(f"{value!r} is not {expected}.")
        return found

    convert.__name__ = name
    return click.types.convert_type(convert)


COUNT = _number("integer", count, "an integer (such as 4096 or 4k)")
QUANTITY = _number("number", lambda text: scaled(text, "quantity"), "a number (such as 2.7e9 or 2.7B)")
DURATION = _number("time", lambda text: seconds(text) or None, "a time above zero (such as 90, 90s, 800ms or 2min)")
#: 500 may be milliseconds or seconds, and both have an answer.
LATENCY = _number(
    "time",
    lambda text: (text[-1:].isalpha() and seconds(text)) or None,
    "a time with its unit (500ms, 0.5s), above zero",
)


#: All but the line feed, the tab and colours: what could forge or hide a line on a terminal.
_CONTROL = re.compile(
    r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


@cache
def spellings() -> Values:
    """Other programs' words -> their names here (spellings.toml), read only when a word is not known."""
    said = dict(table_of(__file__, "spellings.toml"))
    further = {name: f"is --workload {name}=VALUE of check, diff, memory, mfu, ops, plan" for name in _FURTHER}
    denied = {f"no-{name}": f"is --workload {name}=false of check, diff, memory, mfu, ops, plan" for name in _FURTHER}
    return said | {"meant": said["meant"] | further | denied}


class Option(click.Option):
    """An option that help lists under ``group``."""

    def __init__(self, *names: Any, group: str = "Options", **said: Any) -> None:
        super().__init__(*names, **said)
        self.group = group


def _held(source: str) -> Iterable[str]:
    """The names of "module:name", a collection or a function that gives one."""
    found = named_function(source)
    return found() if callable(found) else found  # type: ignore[no-any-return]  # names, wherever they are kept


def completing(*sources: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """A completion of the names that ``sources`` hold, after a comma too; a file where none fits."""

    def complete(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        before, comma, begun = typed.rpartition(",")
        names = (name for one in sources for name in map(str, _held(one)))
        found = [f"{before}{comma}{name}" for name in names if name.lower().startswith(begun.lower())]
        return [*map(CompletionItem, found)] or [CompletionItem(typed, type="file")]

    return complete


def config_name(said: str) -> str:
    """A CONFIG argument, with ~ as the home even if a shell left it; an empty one is refused, not this folder."""
    if not said.strip():
        raise click.BadParameter("expected a file, a folder or a glob: is a variable unset?")
    return os.path.expanduser(said)


class _File(click.Path):
    """A file's name: an empty one is refused before there is an answer to write."""

    def convert(self, value: Any, *at: Any) -> Any:
        """The name, which is not empty."""
        if not value:
            self.fail("expected a file name", *at)
        return super().convert(value, *at)


_KINDS: Values = {
    "count": COUNT,
    "quantity": QUANTITY,
    "time": DURATION,
    "latency": LATENCY,
    "int": int,
    "float": float,
    "file": _File(dir_okay=False),
    "folder": click.Path(file_okay=False),
    "path": click.Path(),
    "there": click.Path(exists=True, file_okay=False),
    "config": config_name,
}


class _Whole(click.IntRange):
    name = "integer"  # "is not a valid integer range"


_RANGES: dict[str, Function] = {"int": _Whole, "float": partial(click.FloatRange, min_open=True)}


#: Tables of options. "brief": those of a command that ``--help`` lists, ``--help-all`` lists all; "headings": the
#: groups of both, in their order; "units": counts of tokens and sequences double (4k is 4,096),
#: quantities of parameters and operations are decimal (2.7B is 2,700,000,000).
TABLES: Values = table_of(__file__, "options.json")


def declared(table: str) -> list[click.Parameter]:
    """The options of a table of options.json, in its order; a row without "help" is an argument.

    A row is a "field" of a workload, or click's keywords, but "names"; "kind": count, quantity, time (``numbers``),
    int, float, file, folder, path, there (a folder that is), config, with "least" (of floats excluded) and "most";
    "choices", or where they are; "completes": where names are. Help lists the names of a {module:name}.
    """
    return [_declared(dict(row)) for row in TABLES[table]]


def _declared(said: Values) -> click.Parameter:
    if "field" in said:
        return workload_option(**said)
    kind, names, ends = said.pop("kind", ""), said.pop("names"), [said.pop(end, None) for end in ("least", "most")]
    if kind:
        said["type"] = _RANGES[kind](*ends) if any(end is not None for end in ends) else _KINDS[kind]
    if "choices" in said:
        known = said.pop("choices")
        said["type"] = Known(_held(known) if isinstance(known, str) else known)
    if "completes" in said:
        said["shell_complete"] = completing(*said.pop("completes"))
    if "help" not in said:
        return click.Argument(names, **said)
    said["help"] = re.sub(r"\{(.*?:.*?)\}", lambda found: ", ".join(_held(found[1])), said["help"])
    return Option(names, **said)


def _help_all(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        context.meta["sizer.help_all"] = True
        click.echo(context.get_help())
        context.exit()


_HELP_ALL = Option(**TABLES["help all"], callback=_help_all)


def usage_text(error: click.UsageError) -> str:
    """click's message on a command's words; for an option or argument that does not exist the one that is meant."""
    ctx = error.ctx
    path = ctx.command_path if ctx else "sizer"
    instead, said = spellings()["instead"].get(path.partition(" ")[2], {}), error.format_message().rstrip(".")
    command = getattr(ctx, "command", None)
    own = {word: vars(one).get("help") for one in getattr(command, "params", ()) for word in one.opts}
    if isinstance(error, click.NoSuchOption):
        return _no_such_option(error.option_name, path, own, instead)
    if isinstance(error, click.BadOptionUsage):
        said = f"{error.option_name} needs a value: {own.get(error.option_name, 'none was given')}"
    elif listed := getattr(command, "commands", None):
        said = f"{said}: expected one of {', '.join(listed)}"
    return (
        f"{said}: {instead['argument']}" if "argument" in said and "argument" in instead else f"{said} ({path} --help)"
    )


def _no_such_option(name: str, path: str, own: Values, instead: Values) -> str:
    """The option that is meant by one that a command does not have: by its sense, or by letters if few differ."""
    known = {squeezed(key): said for key, said in (spellings()["meant"] | instead).items()}
    same = others_words()["same"]
    for one in (name, *same.get(name.strip("-").replace("-", "_"), ())):
        if found := known.get(squeezed(one)):
            return f"{name} {found}"
    having = [
        command
        for command in TABLES["brief"]
        if any(name in "/".join(one.get("names", ())).split("/") for one in TABLES[command])
    ]
    begun = [one for one in own if one.startswith(f"{name}-")]
    every = [*own, *(f"--{one.replace('_', '-')}" for one in same)]
    near = [ours(one, own) for one in begun[:1] or nearest(name, every, cutoff=0.75)]
    meant = "".join(f"; did you mean {one}?" for one in near if one in own)
    said = f": it is of sizer {', '.join(having)}" if having else meant
    further = "-all" * (path.rpartition(" ")[2] in TABLES["brief"])
    return f"No such option {name}{said} ({path} --help{further})"


class Command(click.Command):
    """A command whose help groups its options, and which takes other programs' names of them."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        found = super().get_params(ctx)
        return [*found, _HELP_ALL] if ctx.info_name in TABLES["brief"] else found

    def parse_args(self, ctx: click.Context, args: Texts) -> Texts:
        own = {word for one in self.get_params(ctx) for word in (*one.opts, *one.secondary_opts)}
        try:
            said = [self._ours(word, own) for word in args]
            self._one_value_each(ctx, said)
            return super().parse_args(ctx, said)
        except click.BadOptionUsage as error:
            error.ctx = error.ctx or ctx
            raise

    def _one_value_each(self, ctx: click.Context, said: Texts) -> None:
        """Refuse a second value behind an option that may be given again (--device h100 b200).

        It is no file; and a second device is refused where one alone counts.
        """
        of = {word: one for one in self.get_params(ctx) if one.multiple for word in one.opts}
        refuse(said.count("--device") > 1 and "--device" not in of, "expected one device", "--device")
        for option, value, further in zip(said, said[1:], said[2:]):  # noqa: B905 - the shorter ends it
            if option not in of or further.startswith("-"):
                continue
            offered = of[option].shell_complete(ctx, further)
            if ("=" in value and "=" in further) or any(one.type == "plain" for one in offered):
                raise click.UsageError(f"{option} takes one value: {option} {value} {option} {further}", ctx)

    @staticmethod
    def _ours(word: str, own: set[str]) -> str:
        """An option's name as this command spells it: --batch-size 8, --TP 8, -tp 8."""
        name, equals, value = word.partition("=")
        if not name.startswith("-") or name in own or name[:2] in own or not name.strip("-"):
            return word
        return f"{ours(name, [one for one in own if one.startswith('--')])}{equals}{value}"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        brief = () if ctx.meta.get("sizer.help_all") else TABLES["brief"].get(ctx.info_name, ())
        of = {*brief, "--help", "--help-all"}
        shown = [
            one
            for one in self.get_params(ctx)
            if isinstance(one, click.Option) and not (brief and of.isdisjoint(one.opts))
        ]
        for title in TABLES["headings"]:
            listed = [one.get_help_record(ctx) for one in shown if getattr(one, "group", "Output") == title]
            if records := list(filter(None, listed)):
                with formatter.section(title):
                    formatter.write_dl(records)


class Asked(SimpleNamespace):
    """The options of ``command`` by name. ``workload``: those that were given of the fields of ``Workload``."""

    command: str
    workload: Values

    def answer(self, found: object, view: str = "") -> None:
        """Say what the command found, or what that view of it (" --explain") is."""
        write_answer(self.command + view, found, self.format_, self.output)

    def demand(self, **needed: str) -> None:
        """InputError for an option that was given without the one that it acts with."""
        said = vars(self)
        for name, other in needed.items():
            refuse(said[name] and not said[other], f"expected --{other} with it", name)

    def named(self, *names: str) -> Values:
        """These options, as keywords."""
        return {name: getattr(self, name) for name in names}

    def of(self, call: Any, *given: Any, **more: Any) -> Any:
        """What the library's ``call`` answers: options go to its keywords of their names, those of ``more`` before."""
        own = self.named(*call.__wrapped__.__kwdefaults__.keys() & vars(self))
        return call(*given, **own | more, **self.workload)

    def source(self, config: str | None = None) -> object:
        """The source of a CONFIG argument, with ``--set`` and ``--training``: its path, or standard input for "-"."""
        from sizer.readers import Source, is_name, parse_setting

        config = config or self.config
        refuse(
            "://" in config or re.fullmatch(r"[0-9.]+[bBmM]", config) is not None,
            "expected a file or a model's name, such as Qwen/Qwen3-8B (--download asks the hub); "
            "`sizer search --params 7B` sizes a new one",
            where=config,
        )
        if self.download and is_name(config):
            from sizer.readers.released import download

            download(config)
        name, text = ("<stdin>", read_standard_input()) if config == "-" else (config, None)
        return Source(name, dict(map(parse_setting, self.set)), self.training, text, self.root)

    def suppression(self) -> Values:
        """Rules' codes as people type them, several an option with commas between; after a + those selected too."""
        added = tuple(value[1:] for value in self.select if value.startswith("+"))
        only = tuple(value for value in self.select if not value.startswith("+"))
        return {"select": codes(only), "extend_select": codes(added), "ignore": codes(self.ignore)}


def codes(values: Names) -> Names:
    """Rules' codes of an option given several times, several between commas."""
    return tuple(code.strip() for value in values for code in value.split(",") if code.strip())


def subcommand(name: str, parts: str, epilog: str | None = None) -> Callable[[Callable[[Asked], None]], Command]:
    """A command of a function that takes its options as one object; its errors name options, not fields.

    ``parts``: tables of options.json in the order of help, and "workload" and "output".
    """

    def decorate(function: Callable[[Asked], None]) -> Command:
        def called(**options: Any) -> None:
            workload = given({name: options.pop(name) for name in OPTIONS if name in options})
            try:
                _allow(options)
                workload |= dict(stated(text, "--workload") for text in options.pop("further", ()))
                function(Asked(command=name, workload=workload, **options))
            except InputError as error:
                raise option_error(error) from None

        params = [*chain.from_iterable(_part(one, name) for one in parts.split())]
        return Command("command", callback=called, params=params, help=function.__doc__, epilog=epilog)

    return decorate


def _part(part: str, command: str) -> list[click.Parameter]:
    if part == "workload":
        return workload_options
    return output_options(command) if part == "output" else declared(part)


def _allow(options: Values) -> None:
    """Name the devices asked for so that they say what they are allowed (``shapes.device.load_device``)."""
    watts, cards, rate = (options.pop(name, None) for name in ("power_limit", "nics", "nic_gbps"))
    refuse((cards is None) is not (rate is None), "expected --nics and --nic-gbps together", "--nics", cards)
    first, *fabric = (cards or "").split(":")
    network = ":".join((f":{first}x{rate}Gb", *fabric)) * (cards is not None)
    behind = f":{watts}W" * (watts is not None) + network
    key = "devices" if "devices" in options else "device"
    if isinstance(asked := options.get(key), tuple):
        named = tuple(name + behind for name in codes(asked) or (DEFAULT_DEVICE,) * bool(behind))
        one = "expected one device's name (`sizer check` takes several)"
        refuse(key == "device" and len(named) > 1, one, "--device", ", ".join(named))
        options[key] = named if key == "devices" else first_of(named)


class Known(click.Choice):  # type: ignore[type-arg] # generic from click 8.2 on
    """A choice that completion offers and that is refused in this program's own words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        key = param.opts[-1] if param else ""
        value = spelled(value, key.lstrip("-").replace("-", "_"), self.choices)
        if value not in self.choices:
            raise option_error(InputError(f"expected one of {', '.join(self.choices)}", key, value))
        return value


def workload_option(field: str, **other: Any) -> Option:
    """The option of one field of ``Workload``; ``other`` replaces what its declaration says."""
    one, name = OPTIONS[field], option_of(field)
    said = Values(help=one.help, group=one.group, default=None)
    if one.kind is bool:
        name = f"{name}/--no-{name[2:]}"
    else:
        choice = one.choices and one.kind is str
        said["type"] = Known(one.choices) if choice else COUNT if one.kind is int else one.kind
        said["metavar"] = one.metavar
    return Option([*filter(None, (one.short, name, field))], **said | other)


#: Fields of ``Workload`` that ``--workload`` says, by their names there.
_FURTHER = [option_of(field).removeprefix("--workload ") for field, one in OPTIONS.items() if one.further]
#: Every option a field of ``Workload``, passed on under that name, None where not given; the rarer ones by one option.
workload_options = [
    *(workload_option(field) for field, one in OPTIONS.items() if not one.further),
    *declared("further"),
]


def stated(text: str, option: str) -> tuple[str, Any]:
    """The field and the value of a KEY=VALUE, numbers as the other options take them; KEY alone is KEY=true."""
    key, equals, value = text.strip().partition("=")
    name = key.strip().replace("-", "_")
    if not equals:
        value = "true"
    ((field, _),) = workload_fields({name: value}).items()
    kind = OPTIONS[field].kind if field in OPTIONS else bool
    try:
        if kind is bool:
            return field, {"true": True, "false": False}[value.lower()]
        return field, COUNT.convert(value, None, None) if kind is int else kind(value)
    except (click.UsageError, ValueError, KeyError):
        expected = {bool: "true or false", int: "a number (such as 64 or 8k)"}.get(kind, "a number")
        raise InputError(f"expected {expected}", option, text) from None


def exceeds(worst: str | None, fail_on: str) -> bool:
    """Whether a finding at ``worst`` severity is one that ``--fail-on`` fails on."""
    from sizer.checking.findings import SEVERITIES

    levels = SEVERITIES
    return worst is not None and fail_on != "never" and levels.index(worst) <= levels.index(fail_on)


def option_error(error: InputError) -> InputError:
    """The same error naming the command-line option, and what somebody may have meant."""
    context = click.get_current_context(silent=True)
    params = context.command.params if context else ()
    options = {one.name: one.opts[-1] for one in params if isinstance(one, click.Option)}
    key = error.key
    if key in WORKLOAD_FIELDS:
        key = option_of(key)
    elif key:
        key = ", ".join(options.get(one) or options.get(f"{one}s", one) for one in key.split(", "))
    return InputError(error.expected + _meant(error.expected, key, error.value), key, error.value, error.where)


def _meant(expected: str, key: str | None, value: object) -> str:
    """The choice that a wrong value may have meant: by its sense, else by its letters."""
    said, (start, _, listed) = str(value).lower(), expected.partition("one of ")
    senses, choices = spellings()["means"].get((key or "").lstrip("-"), {}), listed.split(", ")
    sense = senses.get(said, "")
    if listed and sense.partition(" ")[0].rstrip(",") not in choices:  # another command's: what that is here
        sense = next((one for one in (senses.get(sense, ""), sense) if one.startswith("--")), "")
    if key == "model_type":
        from sizer.readers.reading import table

        start, choices = "expected ", list(table("hf_defaults"))
    if said in choices or sense:
        near = [said if said in choices else sense]
    else:
        near = nearest(said, choices) if start == "expected " else []
    return f"; did you mean {near[0]}?" if near and near[0] != str(value) else ""


def output_options(command: str) -> list[click.Parameter]:
    """``--format``, with the registry's names (the first is the default), and ``--output``."""
    names, (format_, output) = formats(command), TABLES["output"]
    return [_declared({**format_, "choices": names, "default": names[0]}), _declared(dict(output))]


def write_answer(command: str, answer: object, format_: str | None = None, output: str | None = None) -> None:
    """``answer`` rendered by the registry's renderer, to standard output or to a file.

    In a workflow of GitHub's, annotations are the default where the command has them.
    """
    if output is None and left_open("format_") and os.environ.get("GITHUB_ACTIONS") == "true":
        format_ = "github"
    if format_ not in formats(command) and left_open("format_"):
        format_ = None  # the default, which another view of the command's answer may have another of
    text = render(command, format_, answer, _page(output))
    if output:
        write_whole(output, _with_newline(text).encode("utf-8", "backslashreplace"))
    else:
        say(text)


def left_open(option: str) -> bool:
    """Whether an option was left at its default."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(option) is click.core.ParameterSource.DEFAULT


def say(text: str) -> None:
    """Print ``text``; on a terminal control characters are written out."""
    end_line()
    refuse(sys.stdout is None, "standard output is closed: name a file with -o")
    encoding = _encoding()
    shown = _with_newline(text).encode(encoding, "backslashreplace").decode(encoding)
    try:
        shown = _CONTROL.sub(lambda found: ascii(found.group())[1:-1], shown)
        click.echo(shown, nl=False, color=_colours())
    except OSError as error:
        give_up_output()
        raise InputError(f"cannot be written: {error.strerror}", where="standard output") from None


def pass_on(text: str, output: str | None) -> None:
    """A file's own text, or a patch of it: byte for byte, but on a terminal."""
    data = text.encode("utf-8")
    if output:
        write_whole(output, data)
    elif text and (sys.stdout is None or sys.stdout.isatty()):
        say(text)
    else:
        end_line()
        click.echo(data, nl=False)


def _with_newline(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _page(output: str | None) -> Page:
    """As wide as the terminal; where colours are forced, a pipe is one."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 200)
    if output or sys.stdout is None:
        return Page(width)
    return Page(width, sys.stdout.isatty() or _colours(), _colours(), _encoding())


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def _colours() -> bool:
    """NO_COLOR says no, FORCE_COLOR yes, wherever it goes to; else a terminal that is not dumb has colours."""
    said = os.environ.get
    if said("NO_COLOR") or said("FORCE_COLOR"):
        return not said("NO_COLOR")
    return sys.stdout.isatty() and said("TERM") != "dumb"


def say_line(line: str) -> None:
    """On standard error, at once; a terminal's words are whole."""
    text, terminal = f"sizer: {line}", sys.stderr.isatty()
    if terminal:
        import textwrap

        text = textwrap.fill(text, shutil.get_terminal_size().columns, break_on_hyphens=False)
    click.echo(clearing(terminal) + text, err=True)


def read_standard_input() -> str:
    """Standard input as text; what is too large or not UTF-8 is an InputError."""
    from sizer.readers.loading import MAX_BYTES, decode

    refuse(sys.stdin is None, "standard input is closed", where="<stdin>")
    return decode(sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>")
