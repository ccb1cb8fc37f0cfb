"""Write the skeletons of one more of a kind.

    python -m tests.tools.new KIND NAME [SLUG] [TOPIC]
    python -m tests.tools.new rule SZ131 expert_width tokens      (a file of sizer/rules; else dimensions)
    python -m tests.tools.new device h300-sxm

It writes the file (or function), its registration and its test's rows, never over something that is there, then says
what is left: every line marked SKELETON, and what ``tests/test_registries.py`` still misses.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.tools.kinds import KINDS, ROOT, members

MODULE = '"""SKELETON: the first line is the row in reports/reference.md."""\n\nfrom __future__ import annotations\n\n'


@dataclass(frozen=True)
class Write:
    """A new file. ``like``: a file of facts that it begins as, each value marked, arrays of tables cut to the first."""

    path: str
    text: str = ""
    like: str = ""


@dataclass(frozen=True)
class Insert:
    """Text after the first match of ``after`` in a file that is there; at its end where ``after`` is empty."""

    path: str
    after: str
    text: str


def _tuple_end(name: str) -> str:
    """Up to the last element of the tuple of names assigned to ``name``, on a line or several."""
    return rf'(?s)\n{name} = \([^)]*?"(?=,?\s*\))'


_TEST = "\n\ndef test_{slug}_SKELETON() -> None:\n    assert {call}  # SKELETON: a figure that somebody published\n"

STEPS: dict[str, tuple[Write | Insert, ...]] = {
    "rule": (
        Insert(
            "sizer/rules/{topic}.py",
            "",
            '\n\n@rule("{name}", "SKELETON")\ndef {slug}(context: Context) -> Answer:\n'
            '    """SKELETON: the configuration does what hardware asks, in one sentence.\n\n'
            "    SKELETON: why, with the arithmetic.\n\n    Bad: SKELETON\n    Good: SKELETON\n\n"
            '    Suggestion: SKELETON\n    """\n    if context.model is None:\n'
            '        return "the dimensions are not known"\n    return ()  # SKELETON\n',
        ),
        Insert(
            "tests/test_rules.py", r"\nBAD: .*\n", '    ("{name}", model(), {{}}, "hidden", 2048, []),  # SKELETON\n'
        ),
        Insert("tests/test_rules.py", r"\nGOOD: .*\n", '    ("{name}", model(), {{}}),  # SKELETON\n'),
        Insert("tests/test_rules.py", r"\nNOT_APPLICABLE: .*\n", '    ("{name}", NO_ATTENTION, {{}}),  # SKELETON\n'),
    ),
    "reader": (
        Write(
            "sizer/readers/{name}.py",
            MODULE + "from collections.abc import Mapping\nfrom typing import Any\n\n"
            "from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack\n"
            "from .reading import Fields, table\nfrom .reading import Reading, reading\n\n"
            'NAME = "{name}"\n\n_TABLE = table("formats")[NAME]\n\n\n'
            "def read(config: Mapping[str, Any], where: str) -> Reading:\n"
            "    fields = Fields(config)\n"
            '    hidden, heads, layers = fields.integer("hidden"), fields.integer("heads"), fields.layers("layers")\n'
            "    attention = AttentionShape(heads, heads, hidden // heads)  # SKELETON\n"
            "    block = Block(attention, MlpShape(4 * hidden), count=layers)\n"
            '    vocab = fields.integer("vocab")\n'
            '    model = ModelShape("llama", (Stack("decoder", hidden, (block,)),), vocab=vocab)\n'
            '    return reading(fields, NAME, model, where, keys=_TABLE["dimensions"])\n',
        ),
        Insert("sizer/readers/formats.json", r' "modules": \[[^\]]*"(?=\])', ', "{name}"'),
        Insert(
            "sizer/readers/formats.json",
            r"^\{\n",
            ' "{name}": {{"claim": {{"all": ["SKELETON"]}}, "dimensions": {{"hidden": "SKELETON"}}, '
            '"known": {{"matters": {{"SKELETON": "what"}}, "harmless": []}}}},\n',
        ),
        Insert(
            "tests/test_readers_formats.py", r"\nSMALLEST: .*\n", '    "{name}": ("SKELETON.yaml", "SKELETON: 1"),\n'
        ),
    ),
    "layout": (
        Insert(
            "sizer/readers/layouts.json",
            r"^\{\n",
            ' "{name}": {{"title": "{name}", "names": {{"hidden_size": "SKELETON"}}, '
            '"kinds": {{"": {{"model_type": "\'llama\'"}}}}}},\n',
        ),
        Insert("sizer/readers/formats.json", r' "layouts": \[[^\]]*"(?=\])', ', "{name}"'),
        Insert(
            "sizer/readers/formats.json",
            r"^\{\n",
            ' "{name}": {{"claim": {{"all": ["SKELETON"]}}, '
            '"known": {{"matters": {{"SKELETON": "what"}}, "harmless": []}}}},\n',
        ),
        Insert(
            "tests/test_readers_formats.py", r"\nSMALLEST: .*\n", '    "{name}": ("SKELETON.yaml", "SKELETON: 1"),\n'
        ),
    ),
    "family": (
        Insert("sizer/readers/families.toml", r"\n(?=\[arcee\])", '[{name}]\nlike = "llama"  # SKELETON\n\n'),
        Insert("tests/test_readers.py", r"\nSETTINGS: .*\n", '    ("{name}", SMALL),  # SKELETON\n'),
    ),
    "format": (
        Write(
            "sizer/render/{name}.py",
            MODULE + "from sizer.documents import Document\nfrom . import Page\n\n\n"
            "def render(document: Document, page: Page) -> str:\n"
            '    return document.headline + "\\n"  # SKELETON\n',
        ),
        Insert("sizer/render/formats.json", r'"check": \[[^\n]*badge', " {name}"),
        Insert(
            "tests/test_formats.py", r"\nCHECKS: .*\n", '    "{name}": check_json,  # SKELETON: a check of its own\n'
        ),
    ),
    "device": (
        Write("shapes/data/devices/{name}.toml", like="shapes/data/devices/l4.toml"),
        Insert("tests/test_devices.py", r"\nPUBLISHED_TFLOPS = .*\n", '    "{name}": 121,  # SKELETON\n'),
    ),
    "stack": (
        Write("shapes/data/stacks/{name}.toml", like="shapes/data/stacks/pytorch-ddp.toml"),
        Insert("tests/test_steps.py", r"\nPUBLISHED = .*\n", '    "{name}": "SKELETON",\n'),
    ),
    "engine": (
        Write("shapes/data/engines/{name}.toml", like="shapes/data/engines/torchao.toml"),
        Insert("shapes/engines.py", _tuple_end("ENGINES"), ', "{name}"'),
        Insert("tests/test_deploy.py", "", _TEST.replace("{call}", 'load_engine("{name}").facts')),
    ),
    "kernel": (
        Write("shapes/data/kernels/{name}.toml", like="shapes/data/kernels/fa3.toml"),
        Insert("shapes/kernels.py", _tuple_end("KERNELS"), ', "{name}"'),
        Insert("tests/test_kernels.py", "", _TEST.replace("{call}", 'load_kernel("{name}").takes')),
    ),
    "recipe": (
        Write("shapes/data/recipes/{name}.toml", like="shapes/data/recipes/int8.toml"),
        Insert("shapes/recipes.py", _tuple_end("RECIPES"), ', "{name}"'),
        Insert("tests/test_recipes.py", "", _TEST.replace("{call}", 'load_recipe("{name}").products')),
    ),
    "space": (
        Insert(
            "sizer/searching/spaces.py",
            r"(?s).*?(?=\n\n\n#: ``--what`` -> who makes)",
            "\n\n\ndef {name}(request: Request) -> Space:\n"
            '    """SKELETON: which values, and why no others; the first line is the row in reports/reference.md."""\n'
            "    vocab = request.model.vocab\n"
            "    values = request.limits.values(vocab, 2 * vocab, request.step)\n"
            '    return request.space([{{"vocab": size}} for size in values])  # SKELETON',
        ),
        Insert("sizer/searching/spaces.py", r"for one in \([\w, ]*", ", {name}"),
        Insert(
            "tests/test_search.py",
            "",
            _TEST.replace("{call}", 'search(str(CONFIGS / "gpt2.json"), what="{name}").ranked'),
        ),
    ),
    "operator": (
        Insert(
            "shapes/operators/types.py",
            r"(?s).*?(?=\n\n\n@frozen\nclass OperatorKind)",
            '\n\n\n@frozen\nclass {name}:\n    """SKELETON: its sizes, in BLAS order."""\n\n'
            "    name: str\n    phase: Phase\n    bytes: int\n"
            '    dtype: str = "bf16"\n    count: int = 1\n    kind: Literal["{slug}"] = "{slug}"\n\n'
            "    @property\n    def flops(self) -> int:\n        return 0  # SKELETON\n",
        ),
        Insert("shapes/operators/types.py", r"\nOperator = [^)]*?Collective", " | {name}"),
        Insert(
            "shapes/data/operators.toml",
            r"(?s).*\n",
            '\n[[kinds]]\ntype = "{name}"\nkind = "{slug}"\nwork_class = ""  # SKELETON: its class of work\n'
            'lowered = "shapes.operators.cores:{slug}_operators"\npriced = "shapes.cost:{slug}_costs"\n'
            'explained = "shapes.cost.explain:{slug}_terms"\n',
        ),
        Insert(
            "tests/test_cost.py",
            r"(?s)\nOPERATORS = \(\n.*?(?=    Collective\()",
            '    {name}("SKELETON", "forward", 1 << 27),\n',
        ),
        Insert("tests/test_cost.py", r"\nfrom shapes\.operators\.types import \(\n", "    {name},\n"),
    ),
    "command": (
        Write(
            "sizer/cli/{name}.py",
            MODULE + "import click\n\n\n@click.command()\ndef command() -> None:\n"
            '    """SKELETON: what it answers. Its document goes to sizer/documents, its formats to sizer/render."""\n'
            '    click.echo("SKELETON")\n',
        ),
        Insert(
            "sizer/cli/commands.json",
            r'(?s).*?"Look up": \{\n',
            '    "{name}": ["sizer.cli.{name}", "SKELETON: one line."],\n',
        ),
        Insert("README.md", r"(?s)\| command \|.*?\n\|---.*?\n", "| `sizer {name}` | SKELETON |\n"),
        Insert(
            "tests/test_cli.py",
            "",
            '\n\ndef test_{slug}_SKELETON() -> None:\n    assert run("{name}").exit_code == 0\n',
        ),
    ),
}


class RefusedError(Exception):
    """Why nothing was written."""


def _marked(text: str, name: str) -> str:
    """A file of facts as a skeleton: another name, no other spelling of it, the first of each array of tables."""
    tables = re.split(r"(?m)^(?=\[)", text)
    heads = [table.partition("\n")[0] for table in tables]
    first = [
        table for at, table in enumerate(tables) if not table.startswith("[[facts") or heads.index(heads[at]) == at
    ]
    marked = re.sub(r"(?m)^(\w+ = (?!.*[\[{]$).*)$", r"\1  # SKELETON", "".join(first))
    marked = re.sub(r"(?m)^(aliases|torch_names) = .*$", r"\1 = []  # SKELETON", marked)
    return re.sub(r"(?m)^name = .*$", f'name = "{name}"', marked, count=1)


def _changed(step: Write | Insert, words: dict[str, str]) -> tuple[Path, str]:
    """The file of a step and its new content; RefusedError for a file that is there, or has no place for it."""
    path = ROOT / step.path.format(**words)
    if isinstance(step, Write):
        if path.exists():
            raise RefusedError(f"{path.relative_to(ROOT)} is there already")
        return path, _marked((ROOT / step.like).read_text(), words["name"]) if step.like else step.text.format(**words)
    if not path.exists():
        raise RefusedError(f"{path.relative_to(ROOT)} is not there: name another, or mend STEPS in tests/tools/new.py")
    old, new = path.read_text(encoding="utf-8"), step.text.format(**words)
    if not step.after:
        return path, old + new
    place = re.search(step.after, old)
    if place is None:
        raise RefusedError(f"{path.relative_to(ROOT)} has no {step.after!r}: mend STEPS in tests/tools/new.py")
    return path, old[: place.end()] + new + old[place.end() :]


def write(kind: str, name: str, slug: str = "", topic: str = "dimensions") -> list[Path]:
    """Write the skeletons; the files written or changed. RefusedError for a name that is there."""
    if name in members(kind):
        raise RefusedError(f"{kind} {name} is there already")
    if kind == "rule" and (codes := sorted(members(kind))):
        expected = f"SZ{int(codes[-1][2:]) + 1}"
        if name != expected:
            raise RefusedError(f"codes run on: expected {expected}")
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
        raise RefusedError(f"{name!r} is no name")
    fields = {"name": name, "slug": re.sub(r"\W", "_", slug or name).lower(), "topic": topic}
    before: dict[Path, str | None] = {}
    try:
        for step in STEPS[kind]:
            path, text = _changed(step, fields)
            before.setdefault(path, path.read_text(encoding="utf-8") if path.exists() else None)
            path.write_text(text, encoding="utf-8")
    except (RefusedError, OSError):
        for path, old in before.items():  # nothing is left half written
            if old is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(old, encoding="utf-8")
        raise
    python = [str(path) for path in before if path.suffix == ".py"]
    for words in (("check", "-q", "--fix", "--select", "I"), ("format", "-q")):
        subprocess.run([sys.executable, "-m", "ruff", *words, *python], cwd=ROOT, check=False, capture_output=True)
    for path in before:
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
    return list(before)


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in STEPS:
        sys.stderr.write(f"{__doc__}\nkinds: {', '.join(KINDS)}\n")
        return 2
    try:
        written = write(*arguments)
    except RefusedError as reason:
        sys.stderr.write(f"{reason}\n")
        return 1
    sys.stdout.writelines(f"wrote {path.relative_to(ROOT)}\n" for path in written)
    # Another process: this one has imported the registries as they were.
    said = subprocess.run(
        [sys.executable, "-m", "tests.tools.kinds", *arguments[:2]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stdout.write(f"\nleft to do:\n{said.stdout}{said.stderr}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
