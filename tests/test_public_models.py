"""What `check` says of public models, against what an expert wrote down by hand (tests/data/public_models.toml)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import sizer
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, MoeShape, Stack
from shapes.workload import WORDS
from sizer.checking.findings import Report

MODELS: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "data" / "public_models.toml").read_text(encoding="utf-8")
)["models"]


def shape(entry: dict[str, Any]) -> ModelShape:
    attention = AttentionShape(
        entry["a"],
        entry.get("kv", entry["a"]),
        entry.get("d", entry["h"] // entry["a"]),
        v_head_dim=entry.get("dv"),
    )
    mlp: MlpShape | MoeShape = MlpShape(entry["f"], gated=entry.get("gated", True))
    if "experts" in entry:
        mlp = MoeShape(entry["experts"], entry["top_k"], entry["f"])
    return ModelShape("llama", (Stack("decoder", entry["h"], (Block(attention, mlp, count=entry["L"]),)),), entry["v"])


CONFIGS = Path(__file__).parent / "data" / "configs"
DEVICES = ("h100-sxm", "a100-sxm", "rtx-4090", "mi300x", "gaudi3")


def check(entry: dict[str, Any], device: str = "h100-sxm") -> Report:
    tp = {"tp": entry["tp"]} if "tp" in entry else {}
    return sizer.check(shape(entry), device=device, s=entry.get("s", 4096), **tp)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_public_model_is_warned_of_what_an_expert_would_say_on_every_device(name: str) -> None:
    entry = MODELS[name]
    assert entry["why"]
    for device in DEVICES:
        warned = {one.field for one in check(entry, device).findings if one.severity != "info"}
        assert warned == {WORDS.get(field, field) for field in entry["warns"]}, device


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_of_the_shipped_configurations_only_gpt_2_is_warned_of_anything(path: Path) -> None:
    worst = sizer.check(str(path)).worst()
    assert (worst == "warning") == (path.stem == "gpt2")


def test_head_dim_96_is_judged_by_its_kernel() -> None:
    phi = MODELS["phi-3-mini"]
    assert check(phi).worst() in (None, "info")
    # FlashInfer is built for 64, 128 and 256 alone.
    refused = sizer.check(shape(phi), device="b200", phase="infer", b=1, s=4096, attention="flashinfer")
    assert [one.severity for one in refused.findings if "SZ114" in one.codes] == ["warning"]
