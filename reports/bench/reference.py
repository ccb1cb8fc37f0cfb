"""Write reports/reference.md, every member of each registry (python reports/bench/reference.py).

A test compares the page with the registries, so a member without its row fails the fast loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import click

from shapes.device import list_devices, load_device
from shapes.engines import ENGINES, load_engine
from shapes.kernels import KERNELS, load_kernel
from shapes.operators.types import KINDS
from shapes.recipes import RECIPES, load_recipe
from shapes.step.stack import list_stacks, load_stack
from sizer.checking.project import FILE_KEYS
from sizer.checking.project import KEYS as PROJECT_KEYS
from sizer.cli import COMMANDS, main
from sizer.readers import LAYOUTS, MODULES, READERS
from sizer.readers.huggingface import DECODERS, ENCODERS, HYBRIDS, NESTED
from sizer.readers.reading import table as layouts
from sizer.render import COMMANDS as OUTPUTS
from sizer.render import formats
from sizer.rules import RULES
from sizer.searching.spaces import SPACES

PAGE = Path(__file__).parents[1] / "reference.md"
Rows = Iterable[tuple[object, ...]]


def table(columns: tuple[str, ...], rows: Rows) -> list[str]:
    """A Markdown table; the first column is the member's name."""
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, *rest in rows:
        lines.append("| " + " | ".join([f"`{name}`", *(str(one).replace("|", "\\|") for one in rest)]) + " |")
    return [*lines, ""]


def first_line(module: str) -> str:
    """The first line of a module's docstring, without the full stop."""
    return summary(import_module(module))


def summary(one: object) -> str:
    """The first line of what documents it, without the full stop."""
    return (one.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def tera(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e12:.0f}"


def devices() -> Rows:
    for one in map(load_device, list_devices()):
        peaks = [tera(one.peak_flops.get(dtype)) for dtype in ("fp16", "bf16", "fp8")]
        memory, bandwidth = f"{one.memory.bytes / 2**30:.0f}", f"{one.memory.bandwidth_bytes_per_s / 1e12:.2f}"
        fitted = ", ".join(one.cost) or "-"
        yield one.name, one.title, one.architecture, *peaks, memory, bandwidth, fitted


def stacks() -> Rows:
    for one in map(load_stack, list_stacks()):
        yield one.name, one.title, one.tiers["kernels"], one.rows


def families() -> list[str]:
    tables = (("decoders", DECODERS), ("hybrids", HYBRIDS), ("encoders", ENCODERS))
    lines = [f"- {title}: {', '.join(f'`{name}`' for name in sorted(types))}" for title, types in tables]
    return [*lines, f"- their part of a larger model: {', '.join(f'`{name}`' for name in sorted(NESTED))}", ""]


def output_formats() -> Rows:
    for name in sorted({name for command in OUTPUTS for name in formats(command)}):
        commands = ", ".join(f"`{command}`" for command in OUTPUTS if name in formats(command))
        yield name, first_line(f"sizer.render.{name}"), commands


def dimension_keys() -> Rows:
    """Each dimension with its keys in the formats that state them as plain keys, the usual spelling first."""
    stated = {name: row["dimensions"] for name, row in layouts("formats").items() if "dimensions" in row}
    for dimension in dict.fromkeys(one for keys in stated.values() for one in keys):
        yield dimension, *(_keys(keys.get(dimension, ())) for keys in stated.values())


def dimension_formats() -> tuple[str, ...]:
    return "dimension", *(name for name, row in layouts("formats").items() if "dimensions" in row)


def _keys(said: object) -> str:
    return ", ".join(f"`{one}`" for one in ([said] if isinstance(said, str) else said)) or "-"


#: What a key of a project says, where no option of `sizer check` has its name.
PROJECT = {
    "per-file": "tables of `path` (a glob) with the keys below for the files of that path alone",
    "budgets": "a table of `diff --budget`'s keys: `max-step-regression`, `max-memory`",
    "workload": "a table of a workload's fields by their options' names, such as `tp = 8`",
    "path": "the files that a per-file table is about, a glob",
    "reason": "why: a per-file table that ignores a rule says so",
}


def project_keys() -> Rows:
    check = next(command for name, command in commands() if name == "check")
    options = {one.opts[-1].lstrip("-"): one.help for one in check.params if isinstance(one, click.Option)}
    for key in dict.fromkeys((*PROJECT_KEYS, *FILE_KEYS)):
        places = " and ".join(
            where for where, known in (("the project", PROJECT_KEYS), ("per-file", FILE_KEYS)) if key in known
        )
        yield key, places, PROJECT.get(key) or options[key]


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        yield name, command


def operators() -> Rows:
    seen = set()
    for one in KINDS:
        name = f"{one.type.__name__} {one.kind}" if one.type in seen else one.type.__name__
        seen.add(one.type)
        priced, measured = one.priced.partition(":")[2], (one.measured or "-").partition(":")[2] or "-"
        yield name, (one.type.__doc__ or "").strip().partition("\n")[0], f"`{priced}`", f"`{measured}`"


#: What may stand behind a device's name (shapes.device.load_device).
VARIANTS = (
    ("`500W`", "the power it may take, a quarter of its own at the least"),
    ("`8x400Gb`", "network cards of a node and Gb/s of each"),
    (
        "`leaf32`",
        "nodes that reach each other through one leaf switch (through one for each card where cards have rails)",
    ),
    ("`2to1`", "oversubscription: what leaves a leaf switch has half of its cards' rate, together; needs `leaf32`"),
    ("`sharp`", "switches add up all-reduces (SHARP): a card sends its bytes once, not twice"),
)


def page() -> str:
    types = len(DECODERS) + len(HYBRIDS) + len(ENCODERS)
    fitted = sum(bool(load_device(name).cost) for name in list_devices())
    outputs = len({name for command in OUTPUTS for name in formats(command)})
    lines = [
        "# Reference",
        "",
        f"sizer has {len(COMMANDS)} commands and {len(RULES)} rules. It reads {len(READERS)} formats of configuration, "
        f"among them {types} model types of transformers, and writes {outputs} output formats. "
        f"It knows {len(list_devices())} devices, {fitted} of them with fitted constants, "
        f"and prices steps for {len(list_stacks())} software stacks.",
        "",
        "Written by `python reports/bench/reference.py` from the registries. The rules are in [rules.md](rules.md).",
        "",
        "## Commands",
        *table(("command", "answers"), ((name, said) for name, (_, said) in COMMANDS.items())),
        "## Formats of configurations",
        *table(("format", "reads"), ((name, first_line(f"sizer.readers.{name}")) for name in MODULES)),
        *table(("format of layouts.json", "reads"), ((name, layouts("layouts")[name]["title"]) for name in LAYOUTS)),
        "## Keys of dimensions",
        "What each dimension is called, of formats that state it as a plain key; the first is the usual spelling.",
        "",
        *table(dimension_formats(), dimension_keys()),
        "## Keys of a project",
        "In `[tool.sizer]` of pyproject.toml, or in sizer.toml. What the command line says comes first.",
        "",
        *table(("key", "of", "says"), project_keys()),
        "## Model types of transformers",
        *families(),
        "## Devices",
        "Peaks are dense TFLOPS with fp32 accumulation. *Fitted* names the constants that are the device's own.",
        "",
        *table(("device", "title", "architecture", "fp16", "bf16", "fp8", "GiB", "TB/s", "fitted"), devices()),
        "Words behind a device's name, by colons (`h100-sxm:500W:8x400Gb:leaf32:2to1:sharp`; `--power-limit 500`, and "
        "`--nics 8:leaf32:2to1:sharp --nic-gbps 400`, write them):",
        "",
        *table(("word", "says"), VARIANTS),
        "## Software stacks",
        *table(("stack", "title", "kernels' factors", "fitted on"), stacks()),
        "## Engines of `sizer deploy`",
        *table(
            ("engine", "title", "use", "version", "read", "formats of weights"),
            (
                (one.name, one.title, one.use, one.version[:12], one.read, ", ".join(one.formats))
                for one in map(load_engine, ENGINES)
            ),
        ),
        "## Attention kernels",
        *table(
            ("kernel", "title", "priced by", "where it refuses"),
            ((one.name, one.title, one.costs, one.fallback or "-") for one in map(load_kernel, KERNELS)),
        ),
        "## Low-precision recipes",
        *table(
            ("recipe", "title", "element type", "generations"),
            ((one.name, one.title, one.dtype, ", ".join(one.generations)) for one in map(load_recipe, RECIPES)),
        ),
        "## Search spaces",
        *table(("space", "searches"), ((name, summary(space)) for name, space in SPACES.items())),
        "## Operators",
        *table(("operator", "is", "priced by", "measured by"), operators()),
        "## Output formats",
        *table(("format", "writes", "commands"), output_formats()),
    ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
