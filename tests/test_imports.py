"""What may be imported by what, and what must not be loaded at all."""

from __future__ import annotations

import ast
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "scipy", "pyarrow", "matplotlib", "jsonschema", "rich")


def loaded_by(code: str) -> set[str]:
    """The heavy packages that running ``code`` in a fresh interpreter loads."""
    probe = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import sizer, shapes",
        "import sizer; sizer.check; sizer.ops; sizer.search; sizer.read_config; sizer.pad_vocab",
        "import sizer; sizer.check('tests/data/configs/gpt2.json')",
        "from click.testing import CliRunner; from sizer.cli import main\n"
        "result = CliRunner().invoke(main, ['check', 'tests/data/configs/llama-3.1-8b.json']); assert result.output",
        "import sizer; sizer.swiglu_width(4096, device='h100-sxm')",
    ],
)
def test_advice_without_measuring_loads_nothing_heavy(code: str) -> None:
    assert loaded_by(code) == set()


def test_a_type_that_transformers_does_not_know_is_refused_before_it_loads() -> None:
    pytest.importorskip("transformers")
    code = """
import sizer
try:
    sizer.check({"model_type": "no_such_type", "hidden_size": 64})
except sizer.InputError as error:
    assert "expected a model_type that transformers" in str(error), error
"""
    assert loaded_by(code) == set()


def test_the_probe_sees_what_is_loaded() -> None:
    assert loaded_by("import scipy") == {"scipy"}


def test_dir_and_help_show_the_library() -> None:
    import sizer

    assert set(sizer.__all__) <= set(dir(sizer))
    shown = pydoc.render_doc(sizer, renderer=pydoc.plaintext)
    for name in (
        "check(config",
        "search(config",
        "ops(config",
        "pad_vocab(vocab",
        "swiglu_width(",
        "class ModelShape",
        "class Report",
    ):
        assert name in shown
    for name in sizer.__all__:
        assert getattr(sizer, name).__doc__, name


@pytest.mark.slow
def test_only_the_command_line_and_the_front_doors_construct_an_executor() -> None:
    """Everything else is given one, so that a cluster's fits in its place."""
    root = Path(__file__).parents[1]
    made = {
        str(path.relative_to(root))
        for folder in ("shapes", "sizer")
        for path in (root / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) in ("InProcess", "here")
    }
    far = {
        "shapes/measure/ray_workers.py",
        "shapes/measure/workers.py",
    }  # the end at each device, and the one that is here
    assert made <= {
        "sizer/answers/bench.py",  # `bench all` runs without click, so without the command line
        "sizer/searching/entry.py",
        "sizer/checking/__init__.py",
        "sizer/cli/measuring.py",
        *far,
    }
    assert made
