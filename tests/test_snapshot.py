"""torch's memory snapshots next to a prediction: torch's own records of a training step, and what is no snapshot."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sizer
from sizer.answers.snapshot import read_snapshot
from sizer.cli import main

LLAMA = str(Path(__file__).parent / "data" / "configs" / "llama-3.1-8b.json")
MIB = 2**20


def frame(file: str, name: str) -> dict[str, Any]:
    return {"filename": file, "line": 7, "name": name}


def block(address: int, size: int, *frames: dict[str, Any], state: str = "active_allocated") -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": list(frames)}


def event(action: str, address: int, size: int, *frames: dict[str, Any]) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "frames": list(frames)}


FORWARD = (frame("/x/torch/nn/modules/linear.py", "forward"), frame("/run/model.py", "forward"))
STATES = (frame("/x/torch/optim/adamw.py", "_init_group"), frame("/run/train.py", "step"))


def a_step() -> dict[str, Any]:
    """Weights of 2 MiB from before its history, 8 of activations that are gone at its end, the backward's, states."""
    history = [
        event("alloc", 100, 5 * MIB, *FORWARD),
        event("alloc", 200, 3 * MIB, *FORWARD),
        event("free_completed", 100, 5 * MIB, *STATES),
        event("alloc", 100, 1 * MIB),
        event("free_requested", 200, 3 * MIB),
        event("free_completed", 200, 3 * MIB),
        {"action": "oom", "device_free": 0, "size": 2**40},
        event("alloc", 300, 6 * MIB, *STATES),
    ]
    blocks = [block(0, 2 * MIB, frame("/run/train.py", "_apply")), block(100, 1 * MIB), block(300, 6 * MIB, *STATES)]
    blocks += [block(400, 9 * MIB, state="inactive")]
    return {
        "segments": [{"device": 0, "address": 0, "total_size": 18 * MIB, "blocks": blocks}],
        "device_traces": [history, []],
    }


@pytest.mark.parametrize("dump", [pickle.dumps, lambda one: json.dumps(one).encode()])
def test_the_blocks_of_the_fullest_moment_are_said_by_kind_and_line(tmp_path: Path, dump: Any) -> None:
    file = tmp_path / "snapshot"
    file.write_bytes(dump(a_step()))
    found = {kind: dict(lines) for kind, lines in read_snapshot(file).items() if lines.total()}
    # 2 + 5 + 3 MiB before the first is freed; at the end 2 + 1 + 6.
    assert found == {
        "weights": {"/run/train.py:7 _apply": 2 * MIB},
        "activations": {"/run/model.py:7 forward": 8 * MIB},
    }


def native(name: str) -> dict[str, Any]:
    """A frame of C++, as torch records them unless it is asked for Python's alone."""
    return {"filename": "??", "line": 0, "name": name}


#: The innermost frames of every block.
ALLOCATES = (native("torch::unwind::unwind()"), native("at::detail::empty_cuda(c10::ArrayRef<long>)"))
OWN_STEP = (*ALLOCATES, frame("/run/optimizer.py", "step"), frame("/x/torch/optim/optimizer.py", "wrapper"))
BACKWARD = (
    *ALLOCATES,
    native("torch::autograd::generated::BmmBackward0::apply(std::vector<at::Tensor>&&)"),
    native("torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)"),
)


def a_step_in_all_frames() -> dict[str, Any]:
    """torch's default (stacks="all"): weights of 2 MiB from before, then forward, backward and a user's own AdamW."""
    einops = frame("/x/site-packages/einops/einops.py", "einsum")
    states = [event("alloc", 300 + n, 3 * MIB, *OWN_STEP) for n in range(2)]
    history = [
        event("alloc", 100, 4 * MIB, *ALLOCATES, frame("/x/torch/functional.py", "einsum"), einops, *FORWARD),
        event("alloc", 200, 2 * MIB, *BACKWARD),
        event("free_completed", 100, 4 * MIB),
        *states,
        event("alloc", 400, 1 * MIB, *OWN_STEP),
        event("free_completed", 400, 1 * MIB),
    ]
    blocks = [block(0, 2 * MIB), block(200, 2 * MIB, *BACKWARD), *(block(one["addr"], 3 * MIB) for one in states)]
    return {"segments": [{"device": 0, "blocks": blocks}], "device_traces": [history]}


def test_frames_of_c_are_passed_over_and_what_an_optimizer_of_ones_own_keeps_are_its_states(tmp_path: Path) -> None:
    """As in public snapshots of Stanford's CS336 (kkaitlyn111/cs336-a2-systems, Wedsonlin/assignment2-systems)."""
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(a_step_in_all_frames()))
    found = {kind: dict(lines) for kind, lines in read_snapshot(file).items() if lines.total()}
    assert found == {
        "optimizer_states": {"/run/optimizer.py:7 step": 6 * MIB},
        "temporary": {"/run/optimizer.py:7 step": 1 * MIB},
        "gradients": {"BmmBackward0": 2 * MIB},
        "no frames": {"": 2 * MIB},
    }


def test_the_line_of_a_forward_is_the_models_not_that_of_einops_or_c(tmp_path: Path) -> None:
    file, early = tmp_path / "snapshot.pickle", a_step_in_all_frames()
    early["device_traces"] = [early["device_traces"][0][:1]]
    early["segments"][0]["blocks"] = [block(100, 4 * MIB)]
    file.write_bytes(pickle.dumps(early))
    assert dict(read_snapshot(file)["activations"]) == {"/run/model.py:7 forward": 4 * MIB}


def test_weights_that_were_there_before_the_history_are_looked_for_among_blocks_without_frames(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(a_step_in_all_frames()))
    answer = sizer.memory(LLAMA, explain=file)
    assert answer.explained is not None
    held = {one.what: one for one in answer.explained}
    weights = sum(answer.memory.components.get(name, 0) for name in ("weights", "master_weights", "buffers"))
    assert held["weights"].predicted_bytes is None
    assert held["weights"].unexplained_bytes == 0
    assert held["no frames"].predicted_bytes is not None
    assert held["no frames"].predicted_bytes >= weights > 0
    assert held["optimizer_states"].predicted_bytes == answer.memory.components["optimizer_states"]


def test_blocks_that_went_with_the_history_are_known_by_their_bytes_alone(tmp_path: Path) -> None:
    file, before = tmp_path / "snapshot", a_step()
    before["device_traces"][0].insert(0, event("free_completed", 900, 40 * MIB))
    file.write_bytes(pickle.dumps(before))
    found = read_snapshot(file)
    assert found["no frames"].total() == 40 * MIB  # there before anything else
    assert sum(lines.total() for lines in found.values()) == 42 * MIB


@pytest.mark.slow
def test_a_step_that_torch_recorded_takes_what_is_predicted(tmp_path: Path) -> None:
    import torch
    from torch.cuda._memory_viz import _profile_to_snapshot
    from torch.profiler import ProfilerActivity, profile
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, vocab_size=1024
    )
    model, tokens = LlamaForCausalLM(config), torch.randint(0, 1024, (2, 128))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()  # which makes the optimizer's states
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True) as ran:
        step()
    snapshot = _profile_to_snapshot(ran)
    for segment in snapshot["segments"]:  # as torch/csrc/cuda/memory_snapshot.cpp writes them
        at = segment["address"]
        for one in segment["blocks"]:
            one["address"], at = at, at + one["size"]
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(snapshot))
    answer = sizer.memory(config.to_dict(), b=2, s=128, dtype="fp32", explain=file)
    assert answer.explained is not None
    held = {one.what: one for one in answer.explained}
    assert held["in all"].predicted_bytes == answer.memory.allocated_bytes
    assert abs(held["in all"].unexplained_bytes) < 0.01 * held["in all"].bytes
    assert held["activations"].bytes > 0.4 * held["in all"].bytes


class _Runs:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("exit 1",)


def sized(size: float) -> bytes:
    """JSON of one block of a size that no block has."""
    return json.dumps({"segments": [{"blocks": [block(0, size)]}], "device_traces": [[]]}).encode()  # type: ignore[arg-type]


DEEP = b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b"."


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(_Runs()),
        pickle.dumps({"segments": _Runs(), "device_traces": []}),
        pickle.dumps([1]),
        b"",
        b"{}",
        DEEP,
        pickle.dumps(a_step())[:-40],
        b"not a snapshot",
        b'{"segments": [{"blocks": [1]}], "device_traces": [[]]}',
        b'{"segments": [], "device_traces": []}',
        *(sized(size) for size in (float("inf"), float("nan"), -5, 10**300)),
    ],
)
def test_what_is_no_snapshot_is_one_line_and_nothing_of_it_runs(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(data)
    said = CliRunner().invoke(main, ["memory", LLAMA, "--explain", str(file)])
    assert said.exit_code == 2
    assert said.stderr == f"sizer: {file}: expected what torch.cuda.memory._dump_snapshot writes, or its JSON\n"


def test_a_snapshot_is_shown_next_to_the_prediction(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(a_step()))
    said = CliRunner().invoke(main, ["memory", LLAMA, "--explain", str(file)])
    assert "the snapshot at its fullest moment" in said.stdout
    assert "/run/model.py:7 forward" in said.stdout
    plain = CliRunner().invoke(main, ["memory", LLAMA])
    assert "snapshot" not in plain.stdout


def test_a_list_that_a_pickle_holds_a_million_times_is_read_as_often_as_the_file_has_bytes(tmp_path: Path) -> None:
    """Of 150 kB there would be 4e8 blocks and 4e8 events, and 1e8 characters of one frame."""
    file, shared = tmp_path / "snapshot.pickle", [frame("/run/model.py", "forward" * 10**3)] * 20_000
    blocks = [block(0, 2 * MIB, *shared)] * 20_000
    history = [event("snapshot", 0, 0)] * 20_000
    file.write_bytes(pickle.dumps({"segments": [{"blocks": blocks}] * 20_000, "device_traces": [history] * 20_000}))
    found = read_snapshot(file)
    assert sum(lines.total() for lines in found.values()) == 2 * MIB


@pytest.mark.parametrize("put", [b"r\x00\x00\x00\x01", b"p16777216\n"])
def test_an_index_of_a_pickles_memo_takes_no_memory_of_its_size(tmp_path: Path, put: bytes) -> None:
    """The compiled unpickler's memo is an array up to the index: 256 MiB here, 64 GiB at most."""
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(b"\x80\x02}" + put + b".")
    tracemalloc.start()
    try:
        with pytest.raises(sizer.InputError, match="_dump_snapshot"):
            read_snapshot(file)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
