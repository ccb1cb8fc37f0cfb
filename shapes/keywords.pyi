# Written by tests/tools/make_stubs.py.
from typing import Literal, TypedDict

from .workload import AttentionKernel, ContextWay, Dispatcher, Implementation, KvDtype, Optimizer, PrecisionName, RunPhase, SentDtype

class WorkloadKeywords(TypedDict, total=False):
    b: int
    microbatch: int
    s: int
    sequence: int
    dtype: str
    phase: RunPhase
    t: int
    tp: int
    p: int
    pp: int
    d: int
    dp: int
    e: int
    ep: int
    zero: int
    attention: AttentionKernel
    checkpointing: str
    sequence_parallel: bool
    images: str | None
    fused_qkv: bool | None
    fused_gate_up: bool | None
    expert_load: float
    decoder_s: int | None
    decoder_sequence: int | None
    gpus: int | None
    global_batch: int | None
    cp: int
    vpp: int
    replicas: int
    recipe: str | None
    finetune: str | None
    lora_rank: int
    lora_dropout: float
    lora_targets: str | None
    base: str | None
    frozen_architecture: bool
    context: int | None
    kv_dtype: KvDtype | None
    speculative: int
    optimizer: Optimizer | None
    precision: PrecisionName | None
    implementation: Implementation | None
    compiled: bool
    vocab_rows: int
    no_overlap: str | None
    dispatcher: Dispatcher
    cp_comm: ContextWay
    ep_overlap: bool
    reduces: SentDtype | None
    gathers: SentDtype | None
    attention_dtype: Literal['fp8'] | None
    etp: int | None
    offload: float
    offload_params: float
    offload_saved: float
    document: int | None
