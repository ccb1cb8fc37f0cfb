"""Seconds of sparse attention's kernels: an indexer's scores, its choice of keys, attention over the chosen ones.

Each form has a few constants a device, fitted to published tables (reports/fit/sparse.py, shapes/data/sparse.toml);
``paid`` are the waves of blocks over the device's units, the last one paid in part. Devices without tables take a
relative's, scaled by peak and bandwidth. No table holds a backward: it takes the forward's rate times ``BACKWARD``.

Whole attention layers of 2k to 64k tokens on H200, projections included, which nothing was fitted on, are off by 10%
(MiniMax-M3, vLLM 0.24), 11% (GLM-5, vLLM), 12% and 13% (DeepSeek-V4, SGLang); DeepSeek-V3.2's by 12% from 8k on.
GLM-5's decode steps are off by 3% (SGLang); vLLM's take longer on the host, TensorRT-LLM's prompts twice as long.
"""

from typing import Any, NamedTuple

import numpy as np

from shapes.dtypes import next_multiple
from shapes.frozen import Items, Named, Numbers, replace
from shapes.operators.types import IndexScores, SparseAttention, TopK

from .constants import Parts, read_seconds

SparseOperator = IndexScores | TopK | SparseAttention
#: Rate of a backward over its forward's: FlashAttention 3's (shapes/data/attention).
BACKWARD = 0.76


class Sizes(NamedTuple):
    """Sizes of one run: ``queries`` in all, each against so many ``keys``, in ``heads`` of ``width`` channels.

    There are ``sequences`` of ``length`` keys. All are numbers or columns. ``width``: of attention, of a key and of a
    value together; of a choice, the entries chosen.
    """

    queries: Any
    keys: Any
    heads: Any
    width: Any
    sequences: Any
    length: Any


def paid(blocks: Any, c: Named) -> Any:
    """Waves that ``blocks`` take: half of the empty part of the last one is paid."""
    waves = np.maximum(blocks / c["units"], 1.0)
    return (waves + np.ceil(waves)) / 2


def _scores(one: Sizes, c: Numbers) -> Parts:
    """Blocks of 4 queries walk the keys (DeepGEMM's fp8_mqa_logits), whose reading that hides; scores are added."""
    block = 2 * 4 * one.heads * one.width * c["units"] / c["flops_per_s"]
    shared = np.clip(4 * one.sequences / one.queries, 1.0, 4.0)  # sequences of fewer queries share a block
    computing = paid(np.ceil(one.queries / 4), c) * (one.keys * shared + c["prologue_keys"]) * block
    scored, keys = (read_seconds(moved, c) for moved in _bytes(one))
    return c["launch_s"], np.maximum(keys - computing, 0.0) + scored, computing


def _bytes(one: Sizes) -> Items:
    """Of queries, in fp8, with the scores written, of 4 each; and of keys, in fp8 with a scale each."""
    return one.queries * (one.heads * one.width + 4 * one.keys), one.sequences * one.length * (one.width + 4)


def _paged(one: Sizes, c: Numbers) -> Parts:
    """A decode step's: each sequence's keys are read once, which many blocks share."""
    computing = 2 * one.queries * one.keys * one.heads * one.width / c["flops_per_s"]
    return c["launch_s"] + one.sequences * c["sequence_s"], read_seconds(sum(_bytes(one)), c), computing


def _top_k(one: Sizes, c: Numbers) -> Parts:
    """A block for each query passes over its scores, and first looks for a threshold if keys outnumber the chosen.

    With fewer keys as many numbers are written.
    """
    many = np.clip((one.length - one.width) * one.sequences / one.queries, 0.0, 1.0)
    each = many * c["choice_s"] + one.keys * c["key_s"]
    moving = 4 * one.queries * (one.keys + one.width) / c["bandwidth_bytes_per_s"]
    return c["launch_s"], moving, np.maximum(one.queries / c["units"], 1.0) * each


def _attention(one: Sizes, c: Numbers) -> Parts:
    """``together`` units for every query and 64 of its heads walk all keys that it may choose (FlashMLA's sparse_fwd).

    Of those that its sequence lacks none is gathered. Blackwell's waves end at half as many queries as units;
    its ``flops_per_s`` are of twice the work.
    """
    block = 2 * 64 * one.width * c["units"] / c["flops_per_s"]
    waves = paid(c["together"] * one.queries * one.heads / 64, c)
    gathered = one.queries * np.minimum(one.keys, one.length) * one.width
    return c["launch_s"], gathered / c["bandwidth_bytes_per_s"], waves * (one.keys + c["prologue_keys"]) * block


#: Seconds of the launch, of moving and of arithmetic of one run, by its sizes and constants.
FORMS = {"index_scores": _scores, "index_decode": _paged, "top_k": _top_k, "sparse_attention": _attention}


def form_of(operator: SparseOperator) -> tuple[str, bool]:
    """The name in FORMS that prices the operator, and whether such operators were measured: no backward was."""
    cached = isinstance(operator, IndexScores) and operator.cached
    return "index_decode" if cached else operator.kind, operator.phase == "forward"


def sparse_parts(operator: SparseOperator, c: Numbers) -> Items:
    """Seconds of the launch, of moving and of arithmetic of one run."""
    launch, moving, computing = FORMS[form_of(operator)[0]](_sizes(operator), c)
    if operator.phase != "forward":
        times = operator.flops / replace(operator, phase="forward").flops / BACKWARD
        return launch, moving * 2, computing * times
    return launch, moving, computing


def _sizes(operator: SparseOperator) -> Sizes:
    queries, length = operator.batch * operator.q_len, operator.kv_len
    if isinstance(operator, SparseAttention):
        # A block takes the heads that share a key, in tiles of 64.
        heads = next_multiple(operator.heads, 64 * operator.kv_heads)
        return Sizes(queries, operator.keys, heads, operator.head_dim + operator.v_head_dim, operator.batch, length)
    keys = operator.pairs / operator.q_len
    own = (1, operator.top_k) if isinstance(operator, TopK) else (operator.heads, operator.head_dim)
    return Sizes(queries, keys, *own, operator.batch, length)
