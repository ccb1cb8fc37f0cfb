"""torch's caching allocator, simulated: its rules, a step's requests against torch's own, and what runs reserved."""

from __future__ import annotations

import itertools
import math
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from public_memory import runs
from tiny_models import LLAMA

import sizer
from shapes.device import load_device
from shapes.frozen import replace
from shapes.memory import memory
from shapes.memory.allocator import MIB, Segments
from shapes.workload import Workload
from sizer.readers import read_config

SMALL = {"model_type": "llama", **LLAMA}


def reserved(*sizes: int) -> int:
    """Of tensors that come (or go: the size below 0 of one that is there) one after the other."""
    segments, there = Segments(), dict[int, int]()
    for at, size in enumerate(sizes):
        if size > 0:
            there[size] = at
        segments.change(there[abs(size)], size)
    return segments.reserved


def test_small_requests_share_2_mib_middle_ones_20_and_large_ones_have_their_own() -> None:
    assert reserved(1) == reserved(MIB, MIB - 512) == 2 * MIB
    assert reserved(MIB + 1) == reserved(9 * MIB, 10 * MIB - 512) == 20 * MIB
    assert reserved(10 * MIB) == 10 * MIB
    assert reserved(33 * MIB) == 34 * MIB


def test_a_free_block_is_cut_and_its_neighbours_are_joined_again() -> None:
    # 40 MiB are free for 12 and 28, then again for 40; of 40 for 39.5 the last half is not cut off.
    assert reserved(40 * MIB, -40 * MIB, 12 * MIB, 28 * MIB) == 40 * MIB
    assert reserved(40 * MIB, -40 * MIB, 12 * MIB, 28 * MIB, -12 * MIB, -28 * MIB, 40 * MIB - 1) == 40 * MIB
    assert reserved(40 * MIB, -40 * MIB, 39 * MIB + 512 * 1024, 12 * MIB) == 52 * MIB
    # The smallest that holds it: 12 go into 20 and leave 30 for 30.
    assert reserved(30 * MIB, 20 * MIB, -30 * MIB, -20 * MIB, 12 * MIB, 30 * MIB - 1) == 50 * MIB


def test_at_the_devices_end_segments_that_nothing_lies_in_are_given_back() -> None:
    """``release_cached_blocks``, then cudaMalloc is tried again (c10/cuda/CUDACachingAllocator.cpp, malloc)."""
    segments = Segments(100 * MIB)
    for name, size in enumerate((40 * MIB, 40 * MIB)):
        segments.change(name, size)
    segments.change(0, -40 * MIB)
    segments.change("cut", 10 * MIB)  # 30 MiB are left free next to it, in a segment that stays
    segments.change(1, -40 * MIB)
    segments.change("large", 50 * MIB)
    assert (segments.reserved, segments.most) == (90 * MIB, 90 * MIB)
    # Where that is not enough it is out of memory, and what it asked for says by how much.
    segments.change("larger", 60 * MIB)
    assert segments.most == 150 * MIB


def test_cached_segments_are_given_back_before_a_step_is_out_of_memory() -> None:
    """Cached blocks of one step are no reason to be out of memory in the next."""
    model, how = read_config({**SMALL, "num_hidden_layers": 4}).model, {"microbatches": 1, "simulate": True}
    workload = Workload(b=2, s=1024, dtype="fp32")
    free = memory(model, workload, context_bytes=0, **how)
    assert free.reserved_bytes is not None
    device = replace(load_device("h100-sxm"), memory=replace(load_device("h100-sxm").memory, bytes=free.total_bytes))
    near = memory(model, workload, device=device, context_bytes=0, **how)
    assert near.total_bytes == free.total_bytes < near.reserved_bytes < free.reserved_bytes


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 64 * MIB)), max_size=60),
    st.sampled_from([math.inf, 64 * MIB, 200 * MIB]),
)
def test_blocks_in_use_never_overlap_and_all_is_free_or_in_use(steps: list[tuple[int, int]], limit: float) -> None:
    segments, there = Segments(limit), dict[int, int]()
    for name, size in steps:
        segments.change(name, -there.pop(name) if name in there else there.setdefault(name, size))
        blocks = sorted((address, own) for own, address in chain(segments.held.values(), *segments._free))
        assert all(one + own <= other for (one, own), (other, _) in itertools.pairwise(blocks))
        assert sum(own for _, own in blocks) == segments.reserved >= sum(there.values())


@pytest.mark.parametrize(
    "how",
    [{}, {"checkpointing": "full"}, {"microbatches": 2}],
    ids=["one microbatch", "checkpointed", "accumulated"],
)
def test_what_is_reserved_for_a_step_is_as_for_torchs_own_requests(how: dict[str, Any]) -> None:
    """Torch's own order of storages through the same allocator; one block of logits more or less is a draw."""
    pytest.importorskip("torch")
    from allocator_oracle import requests

    b, s = 2, 1024
    segments = Segments()
    asked = {**how, "checkpointing": "checkpointing" in how}
    for name, size in requests(SMALL, b, s, **asked):
        segments.change(name, size)
    workload = Workload(b=b, s=s, dtype="fp32", checkpointing=how.get("checkpointing", "none"))
    ours = memory(
        read_config(SMALL).model, workload, context_bytes=0, microbatches=how.get("microbatches", 1), simulate=True
    )
    assert ours.reserved_bytes == pytest.approx(segments.reserved, rel=0.08)


def test_runs_reserved_to_6_percent_more_than_is_simulated_and_no_less() -> None:
    """Streams and kernels' workspaces are not in it. The largest of all ranks of 19 runs of Megatron on B200."""
    held = [one.peak().reserved for one in runs() if "reserved" in one.own]
    off = [published / ours - 1 for published, ours in filter(None, held)]
    assert len(off) == 19
    assert 0 < min(off) < max(off) < 0.065


def test_it_is_an_answer_of_training_alone() -> None:
    found = sizer.memory(SMALL, device="h100-sxm", b=1)
    assert found.memory.reserved_bytes is not None
    assert found.memory.reserved_bytes >= found.memory.allocated_bytes
    for other in ({"phase": "decode"}, {"offload_saved": 1.0}):
        assert sizer.memory(SMALL, device="h100-sxm", b=1, **other).memory.reserved_bytes is None  # type: ignore[arg-type]


def test_gradients_are_there_once_however_many_microbatches_are_in_flight() -> None:
    """A pipeline of eager modules adds all its microbatches' up."""
    own = {"device": "h100-sxm", "b": 1, "s": 256, "p": 4, "implementation": "huggingface"}
    few, many = (sizer.memory({**SMALL, "num_hidden_layers": 8}, **own, global_batch=size).memory for size in (4, 64))  # type: ignore[arg-type]
    assert few.reserved_bytes is not None
    assert many.reserved_bytes is not None
    assert many.components["gradients"] == few.components["gradients"] > 0
    assert 0 <= many.reserved_bytes - many.allocated_bytes < many.components["gradients"]
