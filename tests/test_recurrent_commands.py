"""Every command on every recurrent family: an answer, or one line of refusal where the model lacks the part."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiers import every_run

from sizer.cli import main
from tests.test_recurrent import HYBRIDS, read

#: One of each kind of recurrence that differs in what its layers run.
KINDS = ("qwen3_5_moe_text", "kimi_linear", "falcon_h1", "lfm2", "jamba", "minimax")
STEP = ["--device", "h100-sxm", "-b", "2", "-s", "64"]
DECODE = ["--device", "h100-sxm", "-b", "4", "--phase", "decode", "--context", "512"]
#: Of every family, in the fast loop.
FEW = ("ops", "ops decode", "memory split")
COMMANDS = {
    "check": STEP,
    "check split": [*STEP, "--tp", "2", "--cp", "2"],
    "check decode": DECODE,
    "ops": STEP,
    "ops prefill": [*STEP, "--phase", "prefill"],
    "ops decode": DECODE,
    "memory": STEP,
    "memory decode": DECODE,
    "memory split": [*STEP, "--tp", "2", "--checkpointing", "selective"],
    "plan": ["--device", "h100-sxm", "--gpus", "2", "--global-batch", "4", "-s", "64"],
    "deploy": ["--device", "h100-sxm", "--tp", "2"],
    "mfu": [*STEP, "--gpus", "1", "--global-batch", "4", "--step-time", "0.1"],
}


SPACES = ("swiglu", "heads", "experts", "model")
#: Every space of a mixture and of a dense hybrid, and one of each other kind.
SEARCHED = (
    *product(("qwen3_5_moe_text", "falcon_h1"), SPACES),
    *(("kimi_linear", "heads"), ("lfm2", "swiglu"), ("jamba", "model"), ("minimax", "experts")),
)


@pytest.fixture
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": request.param, **HYBRIDS[request.param]}))
    return path


def output_of(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


@pytest.mark.slow
@pytest.mark.parametrize("config", HYBRIDS, indirect=True)
def test_a_step_is_listed_and_decoded_and_fits_split(config: Path) -> None:
    for command in FEW:
        code, said = output_of(command.split()[0], config, *COMMANDS[command])
        assert code in (0, 1), said


@pytest.mark.slow
@pytest.mark.parametrize("config", KINDS, indirect=True)
def test_every_command_answers(config: Path) -> None:
    for command, options in COMMANDS.items():
        code, said = output_of(command.split()[0], config, *options)
        assert code in (0, 1), said
    assert output_of("diff", config, config, *STEP)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("config", "what"), every_run(product(KINDS, SPACES), *SEARCHED), indirect=["config"])
def test_a_search_finds_candidates_or_says_what_the_model_lacks(config: Path, what: str) -> None:
    limits = {"swiglu": ["--limit", "step=1"], "experts": ["--tolerance", "50%"], "model": ["--range", "64:128"]}
    code, said = output_of("search", config, "--what", what, *limits.get(what, []), *STEP)
    family = json.loads(config.read_text())["model_type"]
    if code == 2:
        assert said.count("\n") == 1
        model = read(family)
        lacks = {"swiglu": model.moe, "heads": True, "experts": not model.moe, "model": True}
        assert lacks[what], said
