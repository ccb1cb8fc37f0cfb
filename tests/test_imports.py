"""What may be imported by what, and what must not be loaded at all."""

from __future__ import annotations

import ast
import json
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import sizer

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


#: A type that no formula reads, small.
RECOGNISED = {"model_type": "molmo2_text", "num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 128}


@pytest.mark.slow
def test_the_command_line_recognises_without_compilers_and_as_the_library_does(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (path := tmp_path / "config.json").write_text(json.dumps(RECOGNISED))
    code = f"""
import json, sys
import sizer.__main__ as program
sys.argv = ["sizer", "check", {str(path)!r}, "--format", "json"]
try:
    program.run()
except SystemExit as end:
    assert not end.code, end.code
assert "torch" in sys.modules
assert not {{"scipy", "torch._inductor", "torch.distributed.tensor", "torch._dynamo.utils"}} & sys.modules.keys()
# What asks for more gets the real thing.
import torch, transformers
assert torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(1)) == 1
assert transformers.models.llama.LlamaConfig().hidden_size == 4096
from transformers.loss.loss_utils import ForCausalLMLoss
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    own, _ = json.JSONDecoder().raw_decode(done.stdout)
    library = sizer.check(path).to_dict()
    for one in (own["reports"][0], library):
        one.pop("elapsed_s", None)
    assert own["reports"][0]["model"] == library["model"]
    assert own["reports"][0]["step"] == library["step"]


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
