"""A step's arithmetic on work small enough to add up by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import exp, hypot, log
from pathlib import Path
from typing import Any

import pytest

from shapes.cost import Cost
from shapes.device import load_device
from shapes.errors import InputError
from shapes.memory import memory
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.model.stages import counted, trained_tensors
from shapes.operators import operators
from shapes.operators.types import Attention, Collective, Elementwise, Gemm, GroupedGemm, Operator
from shapes.step import Pricer, Step, StepCost, priced_work, schedule_of, step_cost, with_host
from shapes.step.seconds import (
    COLLECTIVE,
    MOST_GROUPS,
    WITHIN,
    Kind,
    Region,
    Schedule,
    Work,
    each_value,
    factor,
    microbatch,
    slowest_stage,
    spread,
    step_parts,
    with_layers,
    work,
)
from shapes.step.stack import (
    CLASSES,
    GROUPS,
    Host,
    Interval,
    Overlap,
    SoftwareStack,
    default_stack,
    list_stacks,
    load_stack,
)
from shapes.workload import Workload

H100 = load_device("h100-sxm")
CORE = load_stack("megatron-core-te")
GEMM, NORM, SENT = Kind("gemm"), Kind("norm"), Kind(COLLECTIVE)
DGRAD = Kind("gemm", backward=True)
#: Nothing overlaps, the host takes no time, every factor is 1.
BARE = replace(
    CORE,
    kernels=dict.fromkeys(CLASSES, 1.0),
    by_dtype={},
    by_device={},
    attention={},
    host=Host(0.0, dict.fromkeys(CLASSES, 1.0), 0.0, 0.0),
    overlap=dict.fromkeys(GROUPS, Overlap(0.0, 0.0, 1.0)),
    optimizer=1.0,
    fixed_s=0.0,
)


def stage(layers: float = 1.0, ends: float = 0.0, update: float = 0.0, **communication: float) -> Work:
    """A stage of products alone, a message a group."""
    return Work(
        Region({GEMM: layers}, {GEMM: 10, SENT: len(communication.keys() & WITHIN)}),
        Region({GEMM: ends}, {GEMM: 2}) if ends else Region(),
        dict(communication),
        update,
    )


def parts(one: Work, stack: SoftwareStack = BARE, whole: Work | None = None, **schedule: Any) -> dict[str, float]:
    ran = (microbatch(work, stack, H100) for work in (one, whole or one))
    found = step_parts(one, Schedule(**schedule), stack, *ran)
    return {name: float(seconds) for name, seconds in found.items() if seconds}


def cost(seconds: float, error: float = 0.0) -> Cost:
    return Cost(seconds, seconds, seconds, "test", "compute", error, "large")


def model(layers: int, head_passes: int = 1) -> ModelShape:
    block = Block(AttentionShape(8, 8, 64), MlpShape(1024), count=layers)
    return ModelShape("m", (Stack("decoder", 512, (block,)),), vocab=1024, head_passes=head_passes)


@pytest.mark.parametrize("p", [1, 2])
def test_a_decode_step_waits_at_least_for_its_bytes_of_every_stage(p: int) -> None:
    run = Workload(b=1, s=1, phase="decode", context=1024, p=p)
    listed = operators(model(4), run)
    moved = sum(one.count * one.bytes for one in listed)
    free = Pricer(H100, lambda asked, _: [cost(0.0) for _ in asked]).step(listed, run)
    assert free.seconds == pytest.approx(p * moved / H100.memory.bandwidth_bytes_per_s, rel=0.02)


def test_a_group_that_sends_nothing_takes_no_time_of_the_host() -> None:
    sends = replace(BARE, host=replace(BARE.host, collective_s=1.0))
    assert [microbatch(stage(**sent), sends, H100).waiting_for_host for sent in ({}, {"tensor": 0.0})] == [
        0.0,
        2**0.25 - 1,
    ]


def test_the_host_takes_its_time_for_every_kernel_and_every_collective_of_the_layers() -> None:
    host = Host(1e-3, BARE.host.kernels | {"norm": 3.0}, 1e-2, 0.5)  # type: ignore[operator]  # of dicts here
    one = stage(1.0, 1.0)
    one.layers.runs[SENT] = 8
    one.layers.seconds[NORM], one.layers.runs[NORM] = 0.0, 5
    one.layers.fallbacks = 2
    # Layers: 10 products, 5 norms of 3 launches, 8 collectives within, 2 fallbacks; ends: 2 products.
    in_layers = 1e-3 * (10 + 3 * 5) + 1e-2 * 8 + 0.5 * 2
    found = microbatch(one, replace(BARE, host=host), H100)
    # Near the balance both are partly paid, each region by itself.
    waiting = (1 + in_layers**4) ** 0.25 - 1 + (1 + 2e-3**4) ** 0.25 - 1
    assert found.waiting_for_host == pytest.approx(waiting)


def test_a_forward_that_waits_for_the_host_gains_nothing_from_a_backward_that_does_not() -> None:
    host = replace(BARE.host, launch_s=1.0, backward=0.5)
    one = Work(Region({GEMM: 4.0, DGRAD: 8.0}, {GEMM: 10, DGRAD: 10}, 2))
    # 10 s of launches to 4 forward, and half of 10 to 8 backward; fallbacks are a forward's.
    assert microbatch(one, replace(BARE, host=host), H100).waiting_for_host == 6.0
    late = replace(host, launch_s=2.0, softmax_fallback_s=3.0)
    assert microbatch(one, replace(BARE, host=late), H100).waiting_for_host == (20 + 2 * 3 - 4) + (20 / 2 - 8)


def test_what_a_stack_says_of_a_class_a_type_and_a_device_multiplies() -> None:
    stack = replace(
        BARE,
        kernels=BARE.kernels | {"gemm": 2.0, "attention": 7.0, "norm": 3.0, "moe": 11.0},  # type: ignore[operator]
        by_dtype={"fp8": 5.0},
        by_device={"h100-sxm": 13.0},
        attention={"hopper": {64: 17.0, 128: 19.0}},
    )

    def seconds(kind: Kind, stack: SoftwareStack = stack) -> float:
        return float(microbatch(Work(Region({kind: 1.0}, {kind: 1})), stack, H100).computing)

    assert seconds(GEMM) == 2 * 13
    assert seconds(Kind("gemm", "fp8")) == 2 * 5 * 13
    assert seconds(Kind("attention", 80)) == 17 * 13
    assert seconds(Kind("attention", 80), replace(stack, attention={})) == 7 * 13
    # Memory-bound operators do not care for the device's products; one that no stack names costs as a norm.
    assert (seconds(Kind("moe")), seconds(Kind("unnamed"))) == (11, 3)


def test_the_attention_factor_is_that_of_the_nearest_head_dimension() -> None:
    stack = replace(BARE, attention={"hopper": {128: 1.2, 64: 1.5, 256: 0.9}})
    found = [stack.attention_factor("hopper", head_dim) for head_dim in (32, 80, 120, 160, 512)]
    assert found == [1.5, 1.5, 1.2, 1.2, 0.9]


def test_graphs_leave_nothing_to_the_host_and_a_step_waits_for_the_slowest_of_many_ranks() -> None:
    graphs = replace(BARE, fixed_s=0.5, host=Host(1e-3, BARE.host.kernels, 1e-2, 0.5)).with_graphs()
    assert graphs.name == f"{BARE.name}+graphs"
    # Twice the ranks wait a sixth longer: nothing on 8, as without graphs on 8 x 2^6.
    waiting = [parts(stage(1.0, 1.0, 0.5), graphs, ranks=8 * 2**n).get("once a step", 0.0) for n in (-3, 0, 1, 6)]
    assert waiting == pytest.approx([0, 0, 0.5 / 6, 0.5])
    one = stage(1.0, 1.0, tensor=0.0)
    one.layers.fallbacks = 2
    assert microbatch(one, graphs, H100).waiting_for_host == 0


def test_communication_shows_beyond_what_computing_hides_and_slows_computing_by_contention() -> None:
    stack = replace(BARE, overlap={**BARE.overlap, "tensor": Overlap(0.5, 0.25, 0.5), "data": Overlap(0.1, 0.0, 1.0)})
    # 0.4 s at half the speed is 0.8; half of one second covers 0.5, a quarter of which is paid by computing.
    assert parts(stage(tensor=0.4), stack)["tensor parallelism"] == pytest.approx(0.3 + 0.25 * 0.5)
    assert parts(stage(tensor=0.1), stack)["tensor parallelism"] == pytest.approx(0.25 * 0.2)
    # The ends' computing hides nothing of what layers send, but the whole microbatch hides data parallelism's.
    assert parts(stage(0.0, 1.0, tensor=0.1), stack)["tensor parallelism"] == pytest.approx(0.2)
    assert parts(stage(1.0, 1.0, data=1.0), stack)["data parallelism"] == pytest.approx(1 - 0.1 * 2)
    # A part that the stack overlaps otherwise shows by itself.
    apart = replace(stack, overlap={**stack.overlap, "tensor-forward": Overlap(0.0, 0.0, 0.5)})
    one = stage(tensor=0.4, **{"tensor-forward": 0.3})
    assert parts(one, apart)["tensor parallelism"] == pytest.approx(0.25 * 0.2 + 0.3 / 0.5)


def test_microbatches_gather_and_reduce_as_often_as_their_sharding_needs() -> None:
    one = stage(1.0, 0.0, 0.5, tensor=0.1, data=0.3, gather=0.1)
    once = parts(one, accumulation=4)
    assert once == pytest.approx(
        {"products": 4.0, "tensor parallelism": 0.4, "data parallelism": 0.3, "optimizer": 0.5}
    )
    zero_2 = parts(one, accumulation=4, reduces_every_microbatch=True)["data parallelism"]
    assert zero_2 == pytest.approx(0.3 + 3 * 0.2)
    assert parts(one, accumulation=4, every_microbatch=True)["data parallelism"] == pytest.approx(4 * 0.3)
    assert schedule_of(Workload(b=2, d=4, p=2, vpp=2, zero=3, global_batch=64)) == Schedule(8, 2, 2, False, False, 8)
    assert schedule_of(Workload(b=2, d=4, zero=3, global_batch=64)) == Schedule(8, 1, 1, True, False, 4)
    assert schedule_of(Workload(b=1, zero=2, global_batch=5)) == Schedule(5, 1, 1, False, True, 1)


def test_a_pipeline_pays_the_other_stages_once_and_its_sends_with_every_chunk() -> None:
    one, whole = stage(2.0, pipeline=0.1), stage(6.0, 1.0)
    found = parts(one, whole=whole, accumulation=8, p=4, vpp=2)
    assert found["pipeline bubble"] == pytest.approx((7.0 - 2.0) / 2)
    assert found["pipeline sends"] == pytest.approx((8 + 4 - 1) * 2 * 0.1)
    # What the stages send themselves keeps the others waiting as well.
    slow = parts(stage(2.0, tensor=0.5), whole=stage(6.0, 1.0, tensor=1.5), accumulation=8, p=4, vpp=2)
    assert slow["pipeline bubble"] == pytest.approx((7.0 + 1.5 - 2.0 - 0.5) / 2)
    assert "pipeline bubble" not in parts(one, accumulation=8, p=4)
    assert "pipeline bubble" not in parts(one, whole=stage(1.0), accumulation=8, p=4)


def test_an_update_is_paid_once_with_what_surrounds_it_and_inference_has_none() -> None:
    stack = replace(BARE, optimizer=3.0, fixed_s=0.25)
    trained = parts(stage(update=0.5), stack, accumulation=4)
    assert (trained["optimizer"], trained["once a step"]) == (1.5, 0.25)
    assert set(parts(stage(), stack)) == {"products"}


def test_an_error_of_operators_beyond_the_calibrated_one_widens_the_interval() -> None:
    stack = replace(BARE, intervals={"fitted": Interval(0.8, 1.3, 0.05)})

    def priced(error: float, *architectures: str) -> tuple[float, float]:
        known = replace(stack, architectures=architectures)
        found = step_cost(replace(stage(), priced_s=2.0, off_s=2 * error), None, Schedule(), known, H100)
        return found.low / found.seconds, found.high / found.seconds

    assert priced(0.05, "hopper") == priced(0.10, "hopper") == pytest.approx((0.8, 1.3))
    wide = exp(-hypot(log(0.8), 0.2)), exp(hypot(log(1.3), 0.2))
    assert priced(0.30, "hopper") == pytest.approx(wide)
    # An architecture whose runs are further off has its own.
    stack = replace(stack, intervals={**stack.intervals, "hopper": Interval(0.6, 1.5, 0.05)})
    assert priced(0.05, "hopper") == pytest.approx((0.6, 1.5))
    assert priced(0.05) == pytest.approx((0.8, 1.3))  # of no stack
    stack = replace(stack, intervals={"fitted": Interval(0.8, 1.3, 0.05), "blackwell": Interval(0.6, 1.5, 0.05)})
    assert priced(0.05, "hopper") == pytest.approx((0.8, 1.3))
    # Where a tier has no interval of its own, the next wider one's, else the widest there is.
    assert priced(0.0) == pytest.approx((0.8, 1.3))
    intervals = {**stack.intervals, "extrapolated": Interval(0.5, 2.0, 0.3)}
    wider = replace(stack, intervals=intervals, architectures=("ampere",))
    found = step_cost(stage(), None, Schedule(), wider, H100)
    assert (found.low, found.high, found.ratio_error, found.tier) == (0.5, 2.0, 0.3, "borrowed")


def test_a_network_that_nobody_states_may_be_slower_and_is_named() -> None:
    one, stack = stage(data=2.0), replace(BARE, intervals={"fitted": Interval(0.8, 1.3, 0.05)})
    said = replace(H100, link=replace(H100.link, stated=True))
    usual, stated, node = (
        step_cost(one, None, Schedule(ranks=ranks), stack, device)
        for device, ranks in ((H100, 16), (said, 16), (H100, 8))
    )
    # A second of work and 2 of gradients, which take four times as long on the slowest network.
    assert usual.seconds == stated.seconds == 3.0
    assert (stated.low, stated.high, stated.unknown) == (node.low, node.high, node.unknown)
    assert (stated.high, stated.unknown) == (pytest.approx(3 * 1.3), ())
    assert (usual.low, usual.high) == pytest.approx((3 * 0.8, 3 * exp(hypot(log(1.3), log(9 / 3)))))
    assert usual.unknown == ("network not stated (--nics)",)
    # What it moves by less than a tenth is allowed for and not named.
    little = stage(data=0.02)
    cost = step_cost(little, None, Schedule(ranks=16), stack, H100)
    assert (cost.high > 1.02 * 1.3, cost.unknown) == (True, ())


def test_the_error_of_operators_is_weighted_by_the_seconds_of_all_their_runs() -> None:
    listed = Gemm("a", "forward", 8, 8, 8, count=3), Gemm("b", "forward", 8, 8, 8)
    found = priced_work(listed, [cost(1.0, 0.1), cost(2.0, 0.5)])
    assert (found.priced_s, found.off_s) == pytest.approx((5, 3 * 0.1 + 2 * 0.5))


def test_a_change_is_off_by_what_its_other_operators_are_and_no_more_than_two_steps_of_a_stack() -> None:
    pricer = Pricer(H100)
    kept, gone, new = (Gemm("layers.*.up", "forward", 4096, n, 4096) for n in (4096, 5000, 5120))
    before = pricer.step([kept, replace(gone, count=3)])
    after = pricer.step([kept, replace(gone, count=1), replace(new, count=2)])
    price = before.costs[1]
    off = 2 * max(price.high - price.seconds, price.seconds - price.low)
    assert pricer.error_s(before, after) == pytest.approx(off)
    assert pricer.error_s(before, before) == 0
    known = StepCost(2.0, 0.5, 4.0, 0.9, 0.05, "fitted", {})
    assert pricer.error_s(replace(before, cost=known, accumulation=4), after) == pytest.approx(4 * off)
    sure = replace(known, ratio_error=off)
    assert pricer.error_s(replace(before, cost=sure, accumulation=4), after) == pytest.approx(2 * off)


def test_a_trace_is_one_whole_pass_however_many_stages_were_asked_for() -> None:
    run = Workload(b=1, s=512)
    listed, pricer = operators(model(4), run), Pricer(H100, stack=CORE)
    traced = pricer.step(listed, replace(run, p=4, vpp=2))
    assert traced.seconds == pytest.approx(pricer.step(listed, run, model(4)).seconds)


def test_parts_are_added_up_as_often_as_they_run_and_a_token_passes_every_stage() -> None:
    listed = (Gemm("layers.*.up", "forward", 8, 8, 8, count=3), Gemm("lm_head", "forward", 8, 8, 8))
    one = Step(listed, (cost(1.0), cost(0.5)))
    assert (one.seconds, replace(one, stages=4).seconds) == (3.5, 14.0)
    assert replace(one, accumulation=2).flops == 2 * (3 + 1) * 2 * 8**3
    # Where nothing takes time, all are as notable: the cost's own tier.
    assert replace(one, costs=(cost(0.0), cost(0.0))).tier == "fitted"
    assert Step((), ()).tier == "measured"  # of no operator nothing is less certain


@pytest.mark.parametrize(
    ("layers", "predicting", "p", "ends", "slowest"),
    [
        # 10 layers over 4 stages, head of 1.5: 3, 3, 3 and a last one of 1 and its head.
        (10, 0, 4, 1.5, 3.0),
        # A head of 2.5: a layer less than 4 on each, since 3, 3, 3 and one with the head take 3.5.
        (10, 0, 4, 2.5, 3.5),
        # The head alone is slower than every stage of layers: it stays, with no layer next to it.
        (10, 0, 4, 5.0, 5.0),
        # 9 and one that predicts: 3, 3 and 3 layers, and on the last the predicting one with the head.
        (10, 1, 4, 1.5, 3.0),
        # 10 and two that predict over 4: the last holds these two, a layer at most, and the head.
        (12, 2, 4, 1.5, 4.0),
        # A predicting layer and a head of 2.5 are slower than the 3, 3 and 3 of the others.
        (10, 1, 4, 2.5, 3.5),
    ],
)
def test_the_slowest_stage_is_as_fast_as_layers_can_be_spread(
    layers: int, predicting: int, p: int, ends: float, slowest: float
) -> None:
    held = -(-layers // p)
    for layer_s in (1.0, 0.25):
        last = stage(layer_s * held, layer_s * ends, data=1.0)
        found = slowest_stage(last, model(layers, 1 + predicting), p, BARE, H100)
        took = sum((*found.layers.seconds.values(), *found.ends.seconds.values()))
        assert took == pytest.approx(layer_s * slowest)


def test_stages_are_balanced_by_what_their_layers_take_the_host_and_their_messages_too() -> None:
    # 9 layers over 2 and a head worth 3: 6 of them on the first stage.
    last = stage(5.0, 3.0)
    assert slowest_stage(last, model(9), 2, BARE, H100).layers.seconds[GEMM] == pytest.approx(6.0)
    # Two launches of 2 s a layer and as many of the head, 1.07 layers then: 5, and the slower 4 with the head.
    launched = replace(BARE, host=replace(BARE.host, launch_s=2.0))
    found = slowest_stage(last, model(9), 2, launched, H100)
    assert (found.layers.seconds[GEMM], found.ends.seconds[GEMM]) == (pytest.approx(4.0), 3.0)
    # 3 s of messages a layer, which show: the head is worth 0.75, and the 5 are slower.
    told = slowest_stage(stage(5.0, 3.0, tensor=15.0), model(9), 2, BARE, H100)
    assert (told.layers.seconds[GEMM], told.communication["tensor"], told.ends) == (5.0, 15.0, Region())


def test_stages_that_hold_equal_numbers_of_layers_stay_as_they_are_prediction_aside() -> None:
    last = stage(3.0, 1.0)
    assert slowest_stage(last, model(12), 4, BARE, H100) is last
    assert slowest_stage(last, model(13, head_passes=2), 4, BARE, H100) is last


def test_a_share_of_a_stages_layers_sends_its_share_within_them_and_all_of_the_rest() -> None:
    one = stage(4.0, 1.0, 0.5, tensor=0.2, expert=0.1, context=0.3, data=0.4, pipeline=0.5, **{"tensor-forward": 0.1})
    one.layers.fallbacks = 8
    half = with_layers(one, 0.5)
    assert half.layers == Region({GEMM: 2.0}, {GEMM: 5.0, SENT: 1.5}, 4.0)
    assert half.ends == one.ends
    assert half.communication == pytest.approx(
        {"tensor": 0.1, "expert": 0.05, "context": 0.15, "data": 0.4, "pipeline": 0.5, "tensor-forward": 0.05}
    )
    assert half.update_s == 0.5


def test_operators_are_added_up_by_where_they_run_and_what_they_serve() -> None:
    def sent(name: str, what: Any = "all_reduce", phase: Any = "forward", count: int = 1) -> Collective:
        return Collective(name, phase, what, 8, 2, count=count)

    listed: list[Operator] = [
        Gemm("layers.*.up", "forward", 8, 8, 8, count=3),
        Gemm("layers.*.up", "dgrad", 8, 8, 8, dtype="fp8"),
        Gemm("lm_head", "forward", 8, 8, 8),
        Gemm("layers.*.attention.scores", "forward", 8, 8, 8, batch=6, kind="bmm", count=2),
        Gemm("layers.*.attention.scores", "dgrad", 8, 8, 8, batch=6, kind="bmm"),
        Gemm("layers.*.attention.scores", "forward", 8, 8, 8, batch=8, kind="bmm"),
        GroupedGemm("layers.*.experts", "forward", 4, 8, 8, 8, count=2),
        Attention("layers.*.core", "forward", 1, 8, 8, 64, 64, 128, 64),
        Elementwise("layers.*.norm", "forward", "norm", 8, 8, count=5),
        Elementwise("optimizer", "optimizer", "optimizer", 8, 8),
        sent("layers.*.tensor_parallel.all_reduce", count=7),
        sent("layers.*.tensor_parallel.all_reduce", phase="dgrad"),
        sent("layers.*.moe.all_to_all", "all_to_all"),
        sent("layers.*.overlapped_moe.all_to_all", "all_to_all"),
        sent("layers.*.context_parallel.all_gather", "all_gather"),
        sent("pipeline.receive", "send_recv"),
        sent("data_parallel.reduce_scatter", "reduce_scatter", "wgrad"),
        sent("data_parallel.all_gather", "all_gather", count=3),
        sent("adapters.tensor_parallel.all_reduce", phase="wgrad"),
    ]
    found = work(listed, [1.0] * len(listed))
    assert found.layers.seconds == {
        GEMM: 3.0,
        Kind("gemm", "fp8", backward=True): 1.0,
        Kind("bmm"): 3.0,
        Kind("bmm", backward=True): 1.0,
        Kind("grouped"): 2.0,
        Kind("attention", 128): 1.0,
        NORM: 5.0,
    }
    # Each group of a grouped product is launched on its own, as many as a rank of the fitted runs had.
    assert found.layers.runs[Kind("grouped")] == 8
    many = [replace(one, groups=256) for one in listed if isinstance(one, GroupedGemm)]
    assert work(many, [1.0]).layers.runs[Kind("grouped")] == 2 * MOST_GROUPS
    assert found.layers.fallbacks == 2  # 6 sequences x heads are no multiple of 4
    assert found.ends.seconds == {GEMM: 1.0}
    assert found.update_s == 1.0
    assert found.communication == {
        "tensor": 8.0,
        "tensor-forward": 7.0,
        "expert": 1.0,
        "overlapped_expert": 1.0,
        "context": 1.0,
        "pipeline": 1.0,
        "data": 5.0,
        "gather": 3.0,
    }
    # Of the collectives the host issues those within layers one by one.
    assert [found.layers.runs[Kind(COLLECTIVE, backward=one)] for one in (False, True)] == [10, 1]


def test_a_dispatch_hides_behind_its_own_experts_alone() -> None:
    half = replace(BARE, overlap=BARE.overlap | {"expert": Overlap(0.5, 0.0, 1.0)})
    one = stage(layers=10.0, expert=3.0)
    assert parts(one, half)["expert parallelism"] == pytest.approx(3.0)
    one.layers.seconds[Kind("grouped")] = one.layers.seconds[Kind("moe")] = 2.0
    assert parts(one, half)["expert parallelism"] == pytest.approx(3.0 - 0.5 * 4.0)


def test_grouped_products_of_sixteen_bits_are_no_faster_than_plain_ones() -> None:
    quick = replace(BARE, kernels=BARE.kernels | {"gemm": 1.1, "grouped": 0.7}, by_dtype={"mxfp8": 0.9})
    found = {detail: factor(Kind("grouped", detail), quick, H100) for detail in ("", "mxfp8")}
    assert found == {"": pytest.approx(1.1), "mxfp8": pytest.approx(0.63)}
    slow = replace(quick, kernels=quick.kernels | {"grouped": 1.5})
    assert factor(Kind("grouped"), slow, H100) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("asked", "each"),
    [
        ({"reduces": "fp32"}, (10, 10)),  # a cast, a sum, zeros
        ({"zero": 3}, (6, 6)),  # two gathers of 16 bits copied out, gradients into a buffer of 16 bits
        ({"zero": 3, "reduces": "fp32"}, (6, 8)),
        ({"zero": 1}, None),
    ],
)
def test_what_copies_of_gradients_and_weights_move(asked: dict[str, Any], each: tuple[int, int] | None) -> None:
    one = model(2)
    workload = Workload(b=1, s=128, d=8, **asked)
    found = [op for op in operators(one, workload) if isinstance(op, Elementwise) and op.what == "accumulate"]
    n = counted(trained_tensors(one, workload)).total
    assert [(op.bytes_read, op.bytes_written) for op in found] == ([] if each is None else [(each[0] * n, each[1] * n)])
    # A step pays them in every microbatch, unless its products or gathers do without them.
    seconds = {
        name: sum(step_cost(work(found, [0.5] * len(found)), None, Schedule(4), stack, H100).parts.values())
        for name, stack in (("bare", BARE), ("core", replace(BARE, kernels=CORE.kernels)))
    }
    assert seconds == {"bare": pytest.approx(2.0 * len(found)), "core": 0.0}


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_layers_are_spread_so_that_the_slowest_stage_is_as_fast_as_can_be(p: int) -> None:
    for layers, quarters in product(range(1, 25), range(16)):
        ends = quarters / 4
        others, last, slowest = spread(layers, p, ends)
        tried = [max(other, max(0, layers - other * (p - 1)) + ends) for other in range(1, layers + 1)]
        assert slowest == min(tried) == tried[int(others) - 1]
        assert last == max(0, layers - others * (p - 1))


def test_of_spreads_that_take_as_long_the_one_with_fewer_layers_at_the_end_is_taken() -> None:
    # 3 and 1 with the ends, or 2 and 2 with the ends: three layers' worth either way.
    assert spread(4, 2, 1) == (3, 1, 3)
    # And the slowest is then one without ends: 2 of 2, where the last has none and ends of two layers' worth.
    even = slowest_stage(stage(2.0, 1.0), model(3), 2, BARE, H100)
    assert (even.layers.seconds, even.ends.seconds) == ({GEMM: 2.0}, {})


def test_operators_that_together_take_a_notable_share_are_as_certain_as_they_are() -> None:
    listed = tuple(Gemm("layers.*.up", "forward", 512, n, 512, count=count) for n, count in ((512, 1), (1024, 90)))
    fitted, guessed = cost(1.0), replace(cost(0.001), tier="extrapolated")
    assert Step(listed, (fitted, guessed)).tier == "fitted"  # 0.09 of 1.09 s
    assert Step(listed, (fitted, replace(guessed, seconds=0.002))).tier == "extrapolated"  # 0.18 of 1.18
    often = (replace(listed[0], count=2), replace(listed[1], count=1))
    assert Step(often, (cost(0.4), replace(cost(0.1), tier="extrapolated"))).tier == "extrapolated"  # 0.1 of 0.9
    assert Step(often, (cost(0.6), replace(cost(0.1), tier="extrapolated"))).tier == "fitted"  # 0.1 of 1.3


def test_an_operator_that_is_gone_is_off_as_often_as_it_ran() -> None:
    pricer, one = Pricer(H100), Gemm("layers.*.up", "forward", 4096, 5000, 4096)
    before, after = pricer.step([one]), pricer.step([replace(one, n=4096)])
    (price,) = before.costs
    assert pricer.error_s(before, after) == max(price.high - price.seconds, price.seconds - price.low) > 0


def test_a_stack_near_a_head_dimension_has_its_factor_for_every_one() -> None:
    stack = replace(BARE, attention={"hopper": {64: 17.0, 128: 19.0}, "ampere": {64: 3.0}})
    near = stack.for_head_dims_near("hopper", 80)
    assert [near.attention_factor("hopper", head_dim) for head_dim in (64, 128, 256)] == [17.0] * 3
    assert near.attention_factor("ampere", 128) == 3.0
    # A release is one: asked for again it is itself.
    release = load_stack("megatron-bridge-25.09-fp8")
    assert release.of_release("megatron-bridge-25.09-fp8") == release


def test_compiled_models_run_on_the_stack_that_compiles_and_others_on_the_one_that_does_not() -> None:
    stacks = [load_stack(name) for name in list_stacks()]
    for stack in stacks:
        for known in stack.formats:
            # nanoGPT without compile is eager torch on one device, and DDP on several.
            alone, spread = (default_stack(known, several, stack.compiles) for several in (False, True))
            assert known in alone.formats
            assert alone.compiles == stack.compiles
            if stack.name != "transformers-eager":
                assert (spread if stack.name == "pytorch-ddp" else alone).name == stack.name


def test_what_a_users_device_cannot_price_is_the_files_fault_and_what_ours_cannot_is_not(tmp_path: Path) -> None:
    def failing(error: Exception) -> Any:
        def source(*_: object) -> Any:
            raise error

        return source

    one, own = Gemm("up", "forward", 512, 512, 512), replace(H100, origin=str(tmp_path / "mine.toml"))
    with pytest.raises(InputError, match=r"mine.toml: cost and error: expected tables as .* \(ZeroDivisionError\)"):
        Pricer(own, failing(ZeroDivisionError())).step([one])
    with pytest.raises(InputError, match=r"^already said$"):
        Pricer(own, failing(InputError("already said"))).step([one])
    with pytest.raises(ZeroDivisionError):
        Pricer(H100, failing(ZeroDivisionError())).step([one])
    with pytest.raises(InputError, match=r"mine.toml: cost and error = nan: expected constants that give finite"):
        Pricer(own, lambda *_: [cost(float("nan"))]).step([one])


def test_the_hosts_update_is_of_the_states_to_the_byte() -> None:
    run = Workload(b=1, s=512, offload=1.0, precision="fp32")
    one = model(2)
    there = {part.name: part.hosted for part in memory(one, run).parts}
    assert "master_weights" not in there
    known = StepCost(2.0, 1.0, 4.0, 0.9, 0.05, "fitted", {"gemm": 2.0})
    found = with_host(known, one, run, H100).parts["optimizer on the host"]
    assert found == pytest.approx(2.5 * there["optimizer_states"] / H100.link.host_memory_bytes_per_s / 0.2, rel=1e-12)
    for wrong, device in ((None, H100), (one, replace(H100, link=replace(H100.link, host_bytes_per_s=0)))):
        with pytest.raises(InputError, match="the host is not known"):
            with_host(known, wrong, run, device)


def test_each_value_of_a_mapping_is_worked_out_where_it_is() -> None:
    assert each_value({"one": 1, "more": {"two": 2}}, lambda value: 10 * value) == {"one": 10, "more": {"two": 20}}
