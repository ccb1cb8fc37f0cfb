"""`search --layouts`: whole models, each in its best of the layouts that a plan finds for the configuration."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from click.testing import CliRunner

import sizer
from shapes import program
from shapes.device import load_device
from shapes.memory import memory
from shapes.model.resize import resize
from shapes.operators import operators
from shapes.step import Pricer
from shapes.step.stack import load_stack
from shapes.workload import Workload
from sizer.cli import main
from sizer.searching import search

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "intermediate_size": 8192,
    "vocab_size": 32000,
}
ASKED: dict[str, Any] = {"s": 2048, "stack": "megatron-core-te"}
GPUS, BATCH = 8, 128


@lru_cache(maxsize=1)
def layouts() -> tuple[Workload, ...]:
    found = sizer.plan(CONFIG, gpus=GPUS, global_batch=BATCH, **ASKED)
    assert isinstance(found, sizer.answers.plan.Plan)
    return tuple(replace(one.workload, implementation=found.implementation) for one in found.candidates[:40:4])


def test_the_baseline_takes_its_plan_and_each_candidate_its_own_best() -> None:
    ways, device = layouts(), load_device("h100-sxm")
    found = search(CONFIG, what="model", layouts=ways, **ASKED)
    pricer = Pricer(device, stack=load_stack(ASKED["stack"]))
    model = sizer.read_config(CONFIG).model
    assert len(found.candidates) >= 3
    for one in (found.baseline, *found.candidates):
        assert one.layout in ways
        changed = resize(model, **one.change)
        steps = [
            pricer.step(operators(changed, way), way, changed).seconds
            for way in ways
            if memory(changed, way).total_bytes <= device.memory.bytes
        ]
        assert one.timing.seconds == pytest.approx(min(steps))


def test_a_stop_keeps_what_the_first_layout_gave() -> None:
    said: list[tuple[int, int, str]] = []

    def stop(done: int, of: int, best: str) -> None:
        said.append((done, of, best))
        if of == len(layouts()):
            program.REQUESTS.append(2)

    try:
        found = search(CONFIG, what="model", layouts=layouts(), progress=stop, **ASKED)
    finally:
        program.REQUESTS.clear()
    assert said[-1][:2] == (1, len(layouts()))
    assert {one.layout for one in (found.baseline, *found.candidates)} == {layouts()[0]}


def test_layouts_need_a_configuration_devices_and_a_batch() -> None:
    run = CliRunner().invoke(main, ["search", "--params", "1e9", "--layouts", "--gpus", "8"])
    assert run.exit_code == 2
    assert "expected CONFIG, --gpus, --global-batch" in run.output
