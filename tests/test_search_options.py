"""A search ignores nothing that it is told: each option changes the answer or is refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from sizer.cli import main
from sizer.cli.search import command

CONFIGS = Path(__file__).parent / "data" / "configs"
LLAMA, GPT2, MOE = (str(CONFIGS / f"{name}.json") for name in ("llama-3.1-8b", "gpt2", "qwen3-30b-a3b"))

HEADS = (LLAMA, "--what", "heads")
MODEL = (GPT2, "--what", "model", "--tolerance", "3%")
#: A search, and an option that it must not pass over.
ACTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("--h", "4096"), ("--d-ff", "11000")),
    (("--h", "4096", "--what", "heads"), ("--heads", "64")),
    (("--h", "4096", "--what", "heads"), ("--kv-heads", "4")),
    (("--h", "4096", "--what", "model"), ("--layers", "48")),
    (("--h", "4096", "--what", "model"), ("--vocab", "50304")),
    (("--h", "4096"), ("--heads", "64")),
    (HEADS, ("--h", "8192")),
    (MODEL, ("--params", "2e8")),
    (HEADS, ("--params", "2e8")),
    (HEADS, ("--what", "swiglu")),
    (("--h", "4096"), ("--tolerance", "3%")),
    (("--h", "4096"), ("--range", "10900:11000")),
    (("--h", "4096"), ("--limit", "step=16")),
    (MODEL, ("--limit", "aspect=40:60")),
    (HEADS, ("--limit", "head-dim=64")),
    (HEADS, ("--limit", "aspect=40:60")),
    (HEADS, ("--limit", "tp-ready=64")),
    (MODEL, ("--limit", "vary=kv-ratio")),
    (HEADS, ("--limit", "vary=kv-ratio")),
    (HEADS, ("--serving", "context=8k")),
    (HEADS, ("--limit", "training-budget=90%")),
    (MODEL, ("--quality", "10G")),
    (HEADS, ("--quality", "10G")),
    ((*MODEL, "--gpus", "8"), ("--layouts",)),
    (HEADS, ("--layouts",)),
    (HEADS, ("--phase", "infer")),
    (("--h", "4096"), ("--limit", "step=1")),
    (HEADS, ("--limit", "step=1")),
    (HEADS, ("--device", "a100-sxm")),
    (HEADS, ("--power-limit", "350")),
    ((*MODEL, "--dp", "64"), ("--nics", "2", "--nic-gbps", "100")),
    ((*MODEL, "--dp", "64", "--nics", "2"), ("--nic-gbps", "100")),
    (("--h", "4096"), ("--objective", "step-time")),
    (("--h", "4096"), ("--what", "swiglu-gemm")),
    (HEADS, ("--what", "swiglu-gemm")),
    (HEADS, ("--strategy", "racing")),
    (HEADS, ("--limit", "regret=2%")),
    (HEADS, ("--limit", "confidence=0.9")),
    (HEADS, ("--time-limit", "3")),
    (HEADS, ("--store", "here.db")),
    (HEADS, ("--top", "1")),
    (HEADS, ("-b", "1")),
    (HEADS, ("-s", "1024")),
    (HEADS, ("--dtype", "fp8")),
    (HEADS, ("--tp", "2")),
    (MODEL, ("--pp", "2")),
    (MODEL, ("--dp", "8")),
    ((*MODEL, "--dp", "8"), ("--zero", "3")),
    ((*MODEL, "--dp", "8", "--zero", "3"), ("--replicas", "2")),
    ((MOE, "--what", "experts", "--dp", "8"), ("--ep", "8")),
    (HEADS, ("--ep", "2")),
    ((MOE, "--what", "experts", "--tp", "2", "--dp", "8"), ("--etp", "1")),
    (HEADS, ("--cp", "2")),
    (MODEL, ("--stack", "megatron-core-te")),
    (HEADS, ("--stack", "megatron-core-te")),
    (MODEL, ("--vpp", "2")),
    (MODEL, ("--workload", "no-overlap=data")),
    (MODEL, ("--workload", "ep-overlap")),
    ((MOE, "--what", "experts", "--dp", "8", "--ep", "8"), ("--workload", "dispatcher=alltoall")),
    (MODEL, ("--gpus", "8")),
    ((*MODEL, "--dp", "8"), ("--global-batch", "64")),
    (HEADS, ("--attention", "eager")),
    (("--h", "4096"), ("--recipe", "blockwise")),
    (HEADS, ("--phase", "prefill")),
    (HEADS, ("--context", "4k")),
    (HEADS, ("--kv-dtype", "fp8")),
    (HEADS, ("--workload", "speculative=1")),
    (HEADS, ("--checkpointing", "full")),
    ((*MODEL, "--tp", "2"), ("--sequence-parallel",)),
    (HEADS, ("--workload", "fused-qkv")),
    (("--h", "4096"), ("--workload", "fused-gate-up")),
    (HEADS, ("--finetune", "lora")),
    (HEADS, ("--lora-rank", "256")),
    (HEADS, ("--workload", "frozen-architecture")),
    ((MOE, "--what", "experts"), ("--workload", "expert-load=2")),
    (MODEL, ("--optimizer", "sgd")),
    (MODEL, ("--offload", "1")),
    (MODEL, ("--precision", "fp32")),
    (HEADS, ("--set", "num_attention_heads=64")),
    (HEADS, ("--power-limit", "500")),
    ((*MODEL, "--dp", "16"), ("--nics", "4", "--nic-gbps", "100")),
    (MODEL, ("--nic-gbps", "100")),
)
#: Where the answer goes and where it comes from, and what another model or device uses.
ELSEWHERE = {
    "--measure",
    "--emit",
    "--format",
    "--output",
    "--config-format",
    "--training",
    "--implementation",
    "--images",
    "--root",
    "--download",
}


@cache
def answer(words: tuple[str, ...]) -> Any:
    result = CliRunner().invoke(main, ["search", *words, "--predict", "--format", "json"])
    if result.exit_code:
        assert result.exit_code == 2, result.output
        return result.stderr
    found = json.loads(result.stdout)
    return {key: value for key, value in found.items() if key != "elapsed_s"}


@pytest.mark.slow
@pytest.mark.parametrize(("base", "option"), ACTS, ids=[f"{base[1:3]} {option}" for base, option in ACTS])
def test_each_option_changes_the_answer_or_is_refused(base: tuple[str, ...], option: tuple[str, ...]) -> None:
    assert answer((*base, *option)) != answer(base)


def test_every_option_of_a_search_is_in_the_table() -> None:
    known = {max(one.opts, key=len) for one in command.params if isinstance(one, click.Option)}
    aliases = {"-b": "--microbatch", "-s": "--sequence"}
    tried = {aliases.get(option[0], option[0]) for _, option in ACTS}
    assert known - ELSEWHERE <= tried


@pytest.mark.parametrize(
    ("config", "what", "others"),
    [(LLAMA, "experts", "swiglu or heads or vocab or model"), (MOE, "swiglu", "experts or heads or vocab or model")],
    ids=["dense", "mixture"],
)
def test_a_refusal_names_what_works_for_the_family(config: str, what: str, others: str) -> None:
    result = CliRunner().invoke(main, ["search", config, "--what", what])
    assert result.exit_code == 2
    assert f"expected --what {others}: " in result.stderr
