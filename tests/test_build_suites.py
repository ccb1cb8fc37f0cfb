"""Pages about suites: rows in, tables out, on data whose answer is known."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "reports" / "build_suites.py"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_suites", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(m: int, n: int, k: int, seconds: float, **changes: object) -> dict:
    flops = 2 * m * n * k
    values = {
        "m": m,
        "n": n,
        "k": k,
        "seconds": seconds,
        "low": 0.99 * seconds,
        "high": 1.01 * seconds,
        "flops": flops,
        "tflops": flops / seconds / 1e12,
        "status": "ok",
        "layout": "tn",
        "dtype": "bf16",
        "label": "x",
        "kernel": "",
        "phase": "forward",
        "kind": "gemm",
        "peak_bytes": None,
        "description": {"kind": "gemm"},
        "environment": {"device": "Fake 1", "driver": "555.1", "versions": {"torch": "2.11.0"}},
    }
    return {**values, **changes}


def build(pages: ModuleType, folder: Path, name: str, rows: list[dict], monkeypatch) -> str:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    monkeypatch.setattr(sys, "argv", ["build_suites.py", str(folder)])
    pages.main()
    return (folder / f"{name}.md").read_text()


def cells(page: str, *first: str) -> list[str]:
    """The cells of the table line that begins with ``first``."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "|" in line]
    return next(line for line in lines if tuple(line[: len(first)]) == first)


@pytest.mark.slow
def test_a_misaligned_size_is_compared_per_flop_with_its_aligned_base(pages, tmp_path: Path, monkeypatch) -> None:
    # k 129 of 128 does 129/128 of the work; at 1.5 times the time per FLOP it takes 1.5 x 129/128 of the time.
    rows = [row(256, 256, 128, 1e-3), row(256, 256, 129, 1.5e-3 * 129 / 128), row(256, 256, 130, 1.2e-3 * 130 / 128)]
    page = build(pages, tmp_path, "misalignment", rows, monkeypatch)
    assert cells(page, "k", "1", "tn", "bf16") == ["k", "1", "tn", "bf16", "1", "1.500"]
    assert cells(page, "k", "2", "tn", "bf16")[-1] == "1.200"
    assert "driver 555.1, torch 2.11.0" in page
    assert "3 ok. Median half-width of the 95% intervals: 1.00%" in page


def test_control_shapes_are_set_next_to_each_framework(pages, tmp_path: Path, monkeypatch) -> None:
    reference = json.loads((SCRIPT.parent / "suites" / "control.reference.json").read_text())[0]
    milliseconds = reference["milliseconds"]
    rows = [row(reference["m"], reference["n"], reference["k"], 1.1 * milliseconds["vllm"] * 1e-3)]
    page = build(pages, tmp_path, "control", rows, monkeypatch)
    assert cells(page, "vllm") == ["vllm", "1", "1.100", "10.0%"]


def test_layers_are_one_table_with_time_per_weight_and_peak_memory(pages, tmp_path: Path, monkeypatch) -> None:
    block = {
        "attention": {"heads": 32, "kv_heads": 8, "head_dim": 128},
        "mlp": {"width": 11008, "gated": True},
    }
    layer = {"kind": "layer", "hidden": 4096, "block": block}
    head = {"kind": "head", "hidden": 2048, "vocab": 50304}
    rows = [
        row(8192, 11008, 4096, 0.02, kind="layer", label="llama", description=layer, peak_bytes=3 * 2**30),
        row(8192, 50304, 2048, 0.01, kind="head", label="head", description=head),
    ]
    page = build(pages, tmp_path, "layers", rows, monkeypatch)
    # Q and O 4096 x 4096 each, K and V 4096 x 1024 each, three of 4096 x 11008.
    weights = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 11008
    line = cells(page, "llama")
    assert line[3:7] == ["32", "128", "11008", f"{weights / 1e6:.1f}"]
    assert line[8] == f"{0.02 / weights * 1e12:.4g}"
    assert line[-1] == "3.00"
    assert cells(page, "head")[6] == f"{2048 * 50304 / 1e6:.1f}"


def test_outcomes_that_are_no_times_are_counted_and_draw_nothing(pages, tmp_path: Path, monkeypatch) -> None:
    none = {"seconds": None, "low": None, "high": None, "tflops": None, "status": "unsupported"}
    page = build(pages, tmp_path, "attention-heads", [{**row(8, 8, 8, 1.0), **none}], monkeypatch)
    assert "1 unsupported." in page
    assert "rates" not in page


def test_pages_are_the_same_when_made_again(pages, tmp_path: Path, monkeypatch) -> None:
    rows = [row(128, 128, 128 * step, 1e-3 * step) for step in range(1, 6)]
    first = build(pages, tmp_path, "swiglu-4096", rows, monkeypatch)
    assert build(pages, tmp_path, "swiglu-4096", rows, monkeypatch) == first
    assert "The 5 fastest of 5." in first
