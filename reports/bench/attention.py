"""Attention by kernel, judged: reports/attention.md. A minute.

python reports/bench/attention.py --tables .../aiconfigurator_core/systems/data --evidence attention.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import on_path  # noqa: F401  # reports/fit
from fit.attention import errors
from fit.attention_arrays import attention_seconds
from fit.attention_rows import ENCODERS_OF, FIGURES, TABLES_OF, Rows, by_authors, read_evidence, read_tables
from fit.evidence import attention_of, read_rows
from fit.tables import parquet_columns
from opening import with_answer
from tabulate import tabulate

from shapes.calibrate import held_out
from shapes.cost import predict, predict_many
from shapes.cost.fused_attention import constants_of, phase_of
from shapes.device import load_device
from shapes.kernels import KERNELS, load_kernel, resolve
from shapes.operators.types import Attention
from shapes.toml_table import content, shipped

REPORT = Path(__file__).parents[1] / "attention.md"
#: Devices whose tables no fit has seen: what a data sheet and a relative's constants give.
BORROWED = {"b300": "b300_sxm", "gb200": "gb200", "gb300": "gb300", "rtx-pro-6000-server": "rtx_pro_6000_server"}
HEAD_DIMS = (64, 80, 96, 100, 128, 160, 192, 256)


def figure(off: np.ndarray) -> list[str]:
    size = np.abs(off)
    return (
        [f"{100 * value:.1f}%" for value in (size.mean(), np.median(off), np.quantile(size, 0.95))] if size.size else []
    )


def errors_of(kernel: str, device: str, dtype: str) -> dict[str, float]:
    """Errors on rows left out of the fit, as the fit wrote them with its constants."""
    constants = content(shipped("attention", kernel))
    found: dict[str, float] = constants[device][dtype]["error"]
    return found


def published(path: Path) -> str:
    rows = []
    for (kernel, name, dtype, phase), measured in sorted(read_evidence(path).items()):
        known = constants_of(kernel, load_device(name), dtype)
        backward = phase != "forward"
        off = errors(measured, known.phases[phase_of(backward, training=True)], backward, dtype)
        own = errors_of(known.kernel, name, known.dtype)
        unseen = f"{100 * own.get('sweep', own['backward' if backward else 'forward']):.1f}%"
        rows.append([load_kernel(kernel).title, name, dtype, phase, len(measured), *figure(off), unseen])
    headers = ["kernel", "device", "dtype", "phase", "rows", "MAPE", "bias", "95th percentile", "MAPE, left out"]
    return tabulate(rows, headers, tablefmt="github")


def tables(root: Path) -> str:
    rows = []
    for kernel, devices in TABLES_OF.items():
        for name, (folder, *sources) in devices.items():
            files = sorted((root / folder / "attention").rglob("context_attention_perf.parquet"))
            for dtype in ("bf16", "fp8") if kernel != "fa2" and name != "l40s" else ("bf16",):
                data = read_tables(files, sources, dtype, kernel, name)
                rows.append([kernel, name, dtype, "fitted", *judged(data, kernel, name, dtype)])
    for name, folder in BORROWED.items():
        kernel = resolve("auto", load_device(name).architecture, training=False)
        sources = {source for _, *some in TABLES_OF[kernel].values() for source in some} | {"vllm_flash_attn_fa2"}
        files = sorted((root / folder / "attention").rglob("context_attention_perf.parquet"))
        data = read_tables(files, sorted(sources), "bf16", kernel, name)
        rows.append([kernel, name, "bf16", "borrowed", *judged(data, kernel, name, "bf16")])
    headers = ["kernel", "device", "dtype", "tier", "shapes", "MAPE", "bias", "95th percentile", "no window", "window"]
    return tabulate(rows, headers, tablefmt="github")


def judged(data: Rows, kernel: str, name: str, dtype: str) -> list[str]:
    """Errors on held-out sequence lengths from 512 on, of a fitted kernel; the same rows of a borrowed one."""
    off = errors(data, constants_of(kernel, load_device(name), dtype).phases[0], False, dtype)
    rows = held_out(data.work.q_len) & (data.work.q_len >= 512)
    window = data.work.window > 0
    parts = [
        f"{100 * np.abs(off[rows & part]).mean():.1f}%" if (rows & part).any() else "-" for part in (~window, window)
    ]
    return [str(len(data)), *figure(off[rows]), *parts]


def encoders(root: Path) -> str:
    """Served encoders by device and the kernel that a row names, lengths from 512 on that no fit has seen."""
    fitted = {source for devices in ENCODERS_OF.values() for _, _, some in devices.values() for source in some}
    folders = {name: folder for devices in ENCODERS_OF.values() for name, (folder, *_) in devices.items()}
    rows = []
    for name, folder in (folders | BORROWED).items():
        found: dict[str, list[tuple[Attention, float]]] = {}
        for path in sorted((root / folder / "encoder_attention").rglob("encoder_attention_perf.parquet")):
            columns = parquet_columns(path)
            names = ("kernel_source", "framework", "batch_size", "isl", "num_heads", "head_dim", "latency")
            for ran, framework, b, s, h, d, ms in zip(*(columns[one] for one in names), strict=True):
                if s >= 512:
                    one = Attention("", "forward", b, h, h, s, s, d, d, False)
                    found.setdefault(f"{ran}, {framework}", []).append((one, ms * 1e-3))
        for ran, some in sorted(found.items()):
            unseen = [some[at] for at in np.flatnonzero(held_out(np.array([one.q_len for one, _ in some])))]
            costs = predict_many([one for one, _ in unseen], name)
            off = np.array([cost.seconds / seconds - 1 for cost, (_, seconds) in zip(costs, unseen, strict=True)])
            which = "another kernel" if ran.split(",")[0] not in fitted else "fitted" if name in folders else "borrowed"
            rows.append([name, ran, which, len(unseen), *figure(off)])
    headers = ["device", "kernel", "rows of", "shapes", "MAPE", "median", "95th percentile"]
    return tabulate(rows, headers, tablefmt="github")


def figures() -> str:
    """Predicted over published seconds of FlashAttention on H100, without a server's cache, by figure."""
    found: dict[tuple[str, str, str, int, str], list[tuple[int, float]]] = {}
    stated = {}
    for row in read_rows(FIGURES):
        operator = attention_of(row)
        cost = predict(operator, row["device"])
        phase = "forward" if operator.phase == "forward" else "backward"
        mask = ("causal" if operator.causal else "none") + (", reproducible" if operator.deterministic else "")
        key = (operator.kernel, phase, row["source"], operator.head_dim, mask)
        found.setdefault(key, []).append((operator.q_len, cost.seconds * 1e6 / float(row["us"]) - 1))
        stated[key] = cost.error
    lengths = sorted({length for values in found.values() for length, _ in values})
    rows = []
    for key, values in sorted(found.items()):
        off, unseen = dict(values), not by_authors(key[2]) or key[0] == "cudnn"
        by_length = (f"{off[length]:+.0%}" if length in off else "" for length in lengths)
        size = np.abs(list(off.values())).mean()
        rows.append([*key, "unseen" if unseen else "fitted", *by_length, f"{size:.1%}", f"{stated[key]:.0%}"])
    headers = ["kernel", "phase", "source", "head_dim", "mask", "rows", *map(str, lengths), "MAPE", "stated"]
    return tabulate(rows, headers, tablefmt="github")


def by_head_dimension() -> str:
    """Predicted TFLOPS of what a causal mask leaves, forward, by the kernel that trains on each device."""
    dims, rows = np.array(HEAD_DIMS), []
    for name in ("a100-sxm", "l40s", "h100-sxm", "b200", "mi300x"):
        device = load_device(name)
        for kernel in KERNELS[:-1]:
            if not load_kernel(kernel).runs_on(device.architecture):
                continue
            seconds = attention_seconds(
                name, kernel, "bf16", b=2, s_q=8192, s_kv=8192, heads=32, kv_heads=8, d_qk=dims, d_v=dims, training=True
            )
            flops = 2 * 32 * 8192**2 / 2 * 4 * dims
            rows.append([name, kernel, *(f"{value:.0f}" for value in flops / seconds / 1e12)])
    return tabulate(rows, ["device", "kernel", *map(str, HEAD_DIMS)], tablefmt="github")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--evidence", type=Path, required=True)
    options = parser.parse_args()
    text = TEMPLATE.format(
        published=published(options.evidence),
        tables=tables(options.tables),
        encoders=encoders(options.tables),
        dims=by_head_dimension(),
        figures=figures(),
    )
    REPORT.write_text(with_answer("attention", text), encoding="utf-8", newline="\n")


TEMPLATE = """# Attention by kernel

    python reports/bench/attention.py --tables .../aiconfigurator_core/systems/data --evidence attention.csv

Which head dimensions each kernel is built for is in shapes/data/kernels/*.toml, with the lines of its sources; what it
reaches in shapes/data/attention/*.toml, fitted by reports/fit/attention.py. Nothing here was measured by this
project.

## Published rows
cuDNN: NVIDIA/cudnn-frontend's own benchmark (9.19 and 9.22); torch: GAC's sweep of head dimensions 64 to 256. *MAPE,
left out*: of rows whose model (whose block of 16 head dimensions, for torch) a fit had not seen, which is what a user's
own model is. On H200, where three models of three head dimensions were timed, a model left out takes its head
dimension with it; fp8 there was timed of one model and states bf16's. cuDNN's
backward is fitted by itself, a reproducible one too; fp8 and mxfp8 backwards on Blackwell walk through what a window
masks.

{published}

## Tables
aiconfigurator-core's, by the kernel that each row names; causal, forward, consensus over frameworks, on sequence
lengths from 512 on that no fit has seen. TensorRT-LLM's own kernels count with FlashAttention's on Ampere, Ada and
Hopper. Left out are rows in which a framework falls back for a head dimension (Triton everywhere, TensorRT-LLM at 192).
*borrowed*: another device's constants, scaled; Blackwell Ultra's faster exponentials (b300, gb300) are not known.


{tables}

## FlashAttention without a server
The tables time what servers run: K and V are first written to a cache (rows of as many K heads as Q heads show it: two
reads and writes of them more, near the memory's full speed), whose pages are then fetched one by one. Training does
neither. On H100 its forward and backward are fitted on FlashAttention-3's own figures (arXiv 2407.08608, figures 5 and
6: H100 SXM5 at 1830 MHz, 512 to 16k tokens, 16k in all, h 2048), of FlashAttention 2 and 3; predictions off those, and
off what others measured since, which no fit has seen, by length. *stated*: the mean error that predictions carry, of
figures left out and of others' rows together. tritonbench's backward passes through torch's autograd, which counts at
few tokens and is not the kernel's; cuDNN's here is 9.1 of 2024, priced as 9.19. H200's are H100's on its memory.

{figures}

FlashAttention 2's backward on A100 and L40S, of which no row is public, runs at 0.85 of the forward's speed (arXiv
2307.08691) and 0.65 of its bandwidth (its figures on H100). Beyond 128 FlashAttention-3's backward is taken to run as
at 128. Before the cache had a term of its own, forwards of training on H100 were priced 5 to 117% too slow, and
FlashAttention-3's backward 21 to 79%.

## Served encoders
Towers of images have no mask, no cache and heads of 64 to 80: their constants are of vLLM's and SGLang's FlashAttention
(of the 4th generation on Blackwell), of all but the lengths below (aiconfigurator-core, encoder_attention_perf).
*another kernel*: TensorRT-LLM's and Triton's of the same shapes, which nothing prices: they take longer, in heads of 72
most.

{encoders}

## What a head dimension reaches
Predicted TFLOPS of the causal forward of a training step (b 2, 32 heads, 8 of them keys', s 8192, bf16). Where a kernel
refuses a head dimension, what runs instead is shown: on B200 cuDNN where it can, else FlashAttention 2.

{dims}
"""


if __name__ == "__main__":
    main()
