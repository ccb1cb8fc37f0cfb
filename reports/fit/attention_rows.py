"""Measured fused attention: aiconfigurator-core's tables, and rows in attention.csv's columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fit.evidence import attention_of, read_rows
from fit.tables import parquet_columns
from shapes.calibrate import consensus
from shapes.cost.fused_attention import AttentionBatch, work_of
from shapes.device import load_device
from shapes.kernels import run_of
from shapes.operators.types import Attention

Array = NDArray[np.float64]

#: What the kernels' authors published, and what others did, in attention.csv's columns.
FIGURES = Path(__file__).with_name("attention_figures.csv")
#: Longest head dimension fitted from the tables: beyond it frameworks fall back to other kernels.
LARGEST_HEAD = 256

#: What aiconfigurator's tables call the kernels, by device folder, ours first.
TABLES_OF: dict[str, dict[str, tuple[str, ...]]] = {
    "fa2": {
        "a100-sxm": ("a100_sxm", "flash_attention", "vllm_flash_attn", "torch_flow"),
        "l40s": ("l40s", "vllm_flash_attn_fa2", "flashinfer", "torch_flow"),
        "b60": ("b60", "vllm_flash_attn"),
    },
    "fa3": {
        "h100-sxm": ("h100_sxm", "fa3", "vllm_flash_attn_fa3", "torch_flow"),
        "h200": ("h200_sxm", "fa3", "vllm_flash_attn_fa3", "torch_flow"),
    },
    "flashinfer": {
        "b200": (
            "b200_sxm",
            "flashinfer",
            "trtllm_mha",
            "vllm_flashinfer",
            "vllm_flashinfer_trtllmprefill",
            "torch_flow",
        ),
        "l40s": ("l40s", "flashinfer"),
    },
}
#: Of encoders (encoder_attention_perf.parquet, no mask) what vLLM and SGLang run: FlashAttention, of the 4th generation
#: on Blackwell, where it replaces the kernel that a head dimension of ours is priced as.
ENCODERS_OF: dict[str, dict[str, tuple[str, tuple[int, ...], tuple[str, ...]]]] = {
    "fa2": {"l40s": ("l40s", (64, 72, 80), ("vllm_vit_flash_attn_fa2",))},
    "fa3": {
        "h100-sxm": ("h100_sxm", (64, 72, 80), ("flash_attention_v3", "vllm_vit_flash_attn_fa3")),
        "h200": ("h200_sxm", (64, 72, 80), ("flash_attention_v3", "vllm_vit_flash_attn_fa3")),
    },
    "flashinfer": {"b200": ("b200_sxm", (64,), ("flash_attention_v4", "vllm_vit_flash_attn_fa4"))},
    "cudnn": {"gb200": ("gb200", (72, 80), ("flash_attention_v4", "vllm_vit_flash_attn_fa4"))},
}
#: Head dimensions that a framework serves by a fallback: a third slower a FLOP than its own 128 and 256.
FALLBACKS = {("torch_flow", 192)}
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8"}


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured attentions of one kernel, device, dtype and phase; ``groups`` are what is held out whole."""

    work: AttentionBatch
    seconds: Array
    groups: NDArray[np.generic]
    source: str

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, rows: NDArray[np.generic]) -> Rows:
        work = AttentionBatch(*(getattr(self.work, name)[rows] for name in AttentionBatch.__match_args__))
        return Rows(work, self.seconds[rows], self.groups[rows], self.source)

    def joined(self, other: Rows) -> Rows:
        work = AttentionBatch(
            *(np.concatenate([getattr(self.work, f.name), getattr(other.work, f.name)]) for f in fields(self.work))
        )
        groups = np.concatenate([self.groups.astype(str), other.groups.astype(str)])
        return Rows(work, np.concatenate([self.seconds, other.seconds]), groups, f"{self.source}; {other.source}")


def read_tables(
    paths: Iterable[Path],
    sources: Sequence[str] = (),
    dtype: str = "bf16",
    kernel: str = "fa2",
    device: str = "a100-sxm",
) -> Rows:
    """The consensus over frameworks of context_attention_perf.parquet files: no cached prefix; ``sources``: kernels."""
    values = []
    for path in paths:
        columns = parquet_columns(path)
        count = len(columns["isl"])
        window, step = (columns.get(name, [0] * count) for name in ("window_size", "step"))
        names = (
            "batch_size",
            "isl",
            "num_heads",
            "num_key_value_heads",
            "head_dim",
            "attn_dtype",
            "kv_cache_dtype",
            "latency",
            "framework",
            "kernel_source",
        )
        for b, s, h, kv, d, own, cache, ms, framework, ran, w, past in zip(
            *(columns[name] for name in names), window, step, strict=True
        ):
            plain = _DTYPES.get(own) == _DTYPES.get(cache) == dtype and past == 0 and d <= LARGEST_HEAD and ms > 0
            # One token is decoding, and a window of 1024 at head_dim 256 ran a Triton kernel in most frameworks.
            if (
                plain
                and s >= 16
                and not (d == LARGEST_HEAD and w)
                and (not sources or (ran in sources and (ran, d) not in FALLBACKS))
            ):
                key = (b, s, h, kv or h, d, int(w) if w and w < s else 0)
                values.append((key, str(framework), ms * 1e-3))
    truth = sorted(consensus(values).items())
    generation = load_device(device).architecture
    operators = [
        Attention("", "forward", b, h, kv, s, s, d, d, True, w or None, dtype) for (b, s, h, kv, d, w), _ in truth
    ]
    # A vendor's own build goes by the name of what torch runs there.
    named = "sdpa" if load_device(device).vendor == "intel" else kernel
    runs = [run_of(named, generation, dtype, op.head_dim, op.v_head_dim) for op in operators]
    return Rows(
        work_of(operators, runs),
        np.array([seconds for _, seconds in truth]),
        np.array([op.q_len for op in operators]),
        "aiconfigurator-core",
    )


def read_encoders(
    paths: Iterable[Path], heads: Sequence[int], sources: Sequence[str], kernel: str, device: str
) -> Rows:
    """The consensus over frameworks of encoder_attention_perf.parquet files, of ``heads`` dimensions by ``sources``."""
    values = []
    for path in paths:
        columns = parquet_columns(path)
        names = ("batch_size", "isl", "num_heads", "head_dim", "latency", "framework", "kernel_source")
        for b, s, h, d, ms, framework, ran in zip(*(columns[name] for name in names), strict=True):
            if s >= 16 and d in heads and ran in sources and ms > 0:
                values.append(((b, s, h, d), str(framework), ms * 1e-3))
    truth = sorted(consensus(values).items())
    operators = [Attention("", "forward", b, h, h, s, s, d, d, False) for (b, s, h, d), _ in truth]
    generation = load_device(device).architecture
    runs = [run_of(kernel, generation, "bf16", one.head_dim, one.v_head_dim) for one in operators]
    seconds = np.array([one for _, one in truth])
    return Rows(work_of(operators, runs), seconds, np.array([one.q_len for one in operators]), "aiconfigurator-core")


def read_evidence(
    path: Path, keep: Callable[[str], bool] = lambda source: True
) -> dict[tuple[str, str, str, str], Rows]:
    """Rows by (kernel, device, dtype, phase) of sources to ``keep``; held out by model, head dimensions or figure."""
    collected: dict[tuple[str, str, str, str], list[tuple[Attention, float, str]]] = {}
    for row in read_rows(path):
        if not keep(row["source"]):
            continue
        operator = attention_of(row)
        key = (operator.kernel, row["device"], row["dtype"], operator.phase)
        collected.setdefault(key, []).append((operator, float(row["us"]) * 1e-6, _group(row)))
    result = {}
    for (kernel, device, dtype, phase), measured in collected.items():
        operators = [operator for operator, _, _ in measured]
        generation = load_device(device).architecture
        runs = [run_of(kernel, generation, dtype, op.head_dim, op.v_head_dim, op.trains) for op in operators]
        result[kernel, device, dtype, phase] = Rows(
            work_of(operators, runs),
            np.array([seconds for _, seconds, _ in measured]),
            np.array([group for _, _, group in measured]),
            "attention.csv",
        )
    return result


def _group(row: Mapping[str, str]) -> str:
    if row["source"].startswith("gac"):
        # Blocks of 16 head dimensions: neighbours leave together.
        return f"d{int(row['d_qk']) // 16}"
    # A user runs another model, with head dimensions of its own: whole models leave.
    return row["note"].partition(";")[0]


def by_authors(source: str) -> bool:
    """Whether rows of ``source`` in FIGURES are the kernels' authors', which are fitted: others' judge."""
    return source.startswith("arXiv")
