"""What is timed of a candidate: whole parts of a model as jobs, and how many times each counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shapes.errors import InputError
from shapes.measure.jobs import Job, Part, PartName
from shapes.model import AttentionShape, Block, MlpShape, ModelShape
from shapes.operators import Gemm, GroupedGemm
from shapes.workload import Workload
from sizer.searching.predicting import rebuilt, timed_operators
from sizer.searching.space import Space, whole_heads

#: (job, how many times it counts in the candidate's time)
WeightedJobs = Sequence[tuple[Job, float]]


def weighted_jobs(space: Space, change: Mapping[str, int]) -> WeightedJobs:
    """What is measured of a candidate, each job with its weight at the baseline's tokens.

    Their products are those that ``predicting.price`` prices. InputError for what is only predicted.
    """
    model, workload = rebuilt(space, change)
    if space.operators_of is not None or space.measured_parts == ():
        found = timed_operators(space, change)
        return [(Job(operator), operator.count) for operator in found if isinstance(operator, Gemm | GroupedGemm)]
    names = space.measured_parts or (("layer", "head") if model.head else ("layer",))
    _refuse(model, workload, names)
    scale = space.workload.tokens / workload.tokens
    jobs: dict[str, tuple[Job, float]] = {}
    for name in names:
        for block in model.main.blocks if name != "head" else model.main.blocks[:1]:
            job, count = _job(name, model, block, workload), block.count if name != "head" else 1
            # Blocks that differ elsewhere may have the same MLP: one job, which counts for all of them.
            jobs[job.key] = job, scale * count + (jobs[job.key][1] if job.key in jobs else 0.0)
    return list(jobs.values())


def left_out(space: Space) -> tuple[str, ...]:
    """What of a step is not timed, a sentence each."""
    if space.operators_of is not None:
        return ()
    if space.measured_parts == ():
        return ("matrix products are timed one by one; activations, permutation and all-to-all are not",)
    notes = []
    if space.measured_parts is None:
        notes.append("layers and the head are timed, embedding and optimizer are not")
    if space.workload.t > 1:
        norms = ", norms run on all tokens" if space.workload.sequence_parallel else ""
        notes.append(f"one of {space.workload.t} tensor-parallel shards is timed, communication is not{norms}")
    return tuple(notes)


def _refuse(model: ModelShape, workload: Workload, names: tuple[PartName, ...]) -> None:
    reason = None
    if workload.p * workload.e > 1:
        reason = "one pipeline stage and expert shard: others"
    elif workload.train and workload.checkpointing != "none":
        reason = "no checkpointing: recomputed layers"
    elif len(model.stacks) > 1 and names != ("head",):
        reason = "a decoder: stacks of layers"
    elif model.moe is not None and "layer" in names:
        reason = "a dense model: experts"
    elif {"layer", "self_attention"}.intersection(names) and not all(
        whole_heads(block.attention.heads, block.attention.kv_heads, workload.t)
        for block in model.main.blocks
        if isinstance(block.attention, AttentionShape)
    ):
        reason = f"whole key/value heads on each of {workload.t} shards: split ones"
    if reason is not None:
        raise InputError(f"expected {reason} are not measured, --predict covers them", key="--measure")


def _job(name: PartName, model: ModelShape, block: Block, workload: Workload) -> Job:
    """The part of one such block on one shard."""
    t, attention, mlp = workload.t, block.attention, block.mlp
    if isinstance(attention, AttentionShape):
        heads, kv_heads = attention.on_shard(t)
        fused = attention.fused_qkv if workload.fused_qkv is None else workload.fused_qkv
        attention = replace(attention, heads=heads, kv_heads=kv_heads, fused_qkv=fused)
    if isinstance(mlp, MlpShape):
        fused = mlp.fused_gate_up if workload.fused_gate_up is None else workload.fused_gate_up
        mlp = replace(mlp, width=-(-mlp.width // t), fused_gate_up=fused)
    stack = replace(model.main, blocks=(replace(block, attention=attention, mlp=mlp, count=1),))
    one = replace(model, stacks=(stack,), vocab=-(-model.vocab // t))
    alone = replace(workload, t=1, sequence_parallel=False, fused_qkv=None, fused_gate_up=None)
    return Job(Part(name, one, alone, "forward+backward" if workload.train else "forward"))
