"""What diffusers' classes hold and run.

Parameters, FLOPs as torch's FlopCounterMode counts them, and what a layer of the larger ones saves for its
backward in bf16 (torch's saved-tensor hooks, on the CPU without data).

    python tests/tools/make_diffusers.py     # wants diffusers 0.42 or later; writes tests/data/diffusers.json

Each model is built on the meta device and called with ``B`` latents of height x width and texts of so many tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

TARGET = Path(__file__).resolve().parents[1] / "data" / "diffusers.json"
B = 2
_SD3 = {"caption_projection_dim": 1536, "joint_attention_dim": 4096, "pooled_projection_dim": 2048}
_SD3 |= {"num_layers": 24, "num_attention_heads": 24, "attention_head_dim": 64}
_SMALL = {"num_attention_heads": 4, "attention_head_dim": 24, "num_layers": 3}
#: Class, what of its arguments is not the default, latents' height and width, tokens of the text.
CASES: list[tuple[str, dict[str, Any], tuple[int, int], int]] = [
    ("DiTTransformer2DModel", {}, (32, 32), 0),
    ("DiTTransformer2DModel", {**_SMALL, "out_channels": 8, "patch_size": 4, "num_embeds_ada_norm": 10}, (16, 16), 0),
    ("PixArtTransformer2DModel", {"caption_channels": 4096, "out_channels": 8}, (128, 128), 300),
    (
        "PixArtTransformer2DModel",
        {**_SMALL, "caption_channels": 64, "cross_attention_dim": 96, "sample_size": 32},
        (16, 48),
        7,
    ),
    ("SD3Transformer2DModel", _SD3, (128, 128), 154),
    (
        "SD3Transformer2DModel",
        {**_SD3, "qk_norm": "rms_norm", "dual_attention_layers": list(range(13)), "pos_embed_max_size": 384},
        (128, 128),
        333,
    ),
    ("SD3Transformer2DModel", {**_SMALL, "caption_projection_dim": 96, "joint_attention_dim": 40}, (16, 32), 5),
    ("FluxTransformer2DModel", {"guidance_embeds": True}, (128, 128), 512),
    ("FluxTransformer2DModel", {**_SMALL, "num_single_layers": 2, "axes_dims_rope": [8, 8, 8]}, (16, 32), 9),
    ("QwenImageTransformer2DModel", {}, (64, 64), 100),
    ("QwenImageTransformer2DModel", {**_SMALL, "axes_dims_rope": [8, 8, 8], "joint_attention_dim": 40}, (16, 32), 9),
]


def arguments(name: str, model: Any, height: int, width: int, text: int) -> dict[str, Any]:
    """Tensors of one call; Flux and Qwen-Image take patches of 2 x 2, the others cut latents themselves."""
    config = model.config
    found: dict[str, Any] = {"timestep": torch.zeros(B)}
    if name.startswith("Qwen"):
        found["hidden_states"] = torch.zeros(B, height * width // 4, config.in_channels)
        found["encoder_hidden_states"] = torch.zeros(B, text, config.joint_attention_dim)
        return found | {"img_shapes": [[(1, height // 2, width // 2)]] * B}
    if name.startswith("Flux"):
        tokens = height * width // 4
        found["hidden_states"] = torch.zeros(B, tokens, config.in_channels)
        found |= {"img_ids": torch.zeros(tokens, 3), "txt_ids": torch.zeros(text, 3)}
        found |= {"guidance": torch.zeros(B)} if config.guidance_embeds else {}
    else:
        found["hidden_states"] = torch.zeros(B, config.in_channels, height, width)
    if name.startswith("DiT"):
        return found | {"class_labels": torch.zeros(B, dtype=torch.long)}
    if name.startswith("PixArt"):
        sizes = {"resolution": torch.zeros(B, 2), "aspect_ratio": torch.zeros(B, 1)}
        given = sizes if model.use_additional_conditions else dict.fromkeys(sizes)
        return found | {
            "encoder_hidden_states": torch.zeros(B, text, config.caption_channels),
            "added_cond_kwargs": given,
        }
    found["encoder_hidden_states"] = torch.zeros(B, text, config.joint_attention_dim)
    return found | {"pooled_projections": torch.zeros(B, config.pooled_projection_dim)}


def measured(name: str, given: dict[str, Any], size: tuple[int, int], text: int) -> dict[str, Any]:
    import diffusers

    with torch.device("meta"):
        model = getattr(diffusers, name)(**given)
        call, flops = arguments(name, model, *size, text), {}
        for phase in ("infer", "train"):
            with torch.set_grad_enabled(phase == "train"), FlopCounterMode(display=False) as counter:
                output = model(**call)[0]
                if phase == "train":
                    output.sum().backward()
            flops[phase] = int(counter.get_total_flops())
    config = {"_class_name": name, **json.loads(json.dumps(dict(model.config)))}
    config |= {"text_tokens": text} if text else {}
    patch = 2 if name.startswith(("Flux", "Qwen")) else model.config.patch_size
    return {
        "config": {key: value for key, value in config.items() if key != "_use_default_values"},
        "tokens": size[0] * size[1] // patch**2,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops": flops,
    }


def saved(name: str, given: dict[str, Any], size: tuple[int, int], text: int) -> int:
    """Bytes of one call's activations that its backward needs."""
    import diffusers
    from torch._subclasses.fake_tensor import FakeTensorMode

    seen: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode():
            model = getattr(diffusers, name)(**given).train()
            held = {one.untyped_storage()._cdata for one in (*model.parameters(), *model.buffers())}
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
                model(**arguments(name, model, *size, text))
            return sum(one.nbytes() for key, one in seen.items() if key not in held)
    finally:
        torch.set_default_dtype(torch.float32)


def saved_a_layer(name: str, given: dict[str, Any], size: tuple[int, int], text: int) -> int:
    few, more = (saved(name, {**given, "num_layers": layers}, size, text) for layers in (2, 4))
    return (more - few) // 2


def main() -> None:
    rows = [measured(*case) for case in CASES]
    for row, case in zip(rows, CASES, strict=True):
        # Dual layers are the first ones. RMSNorm is one kernel on a GPU, and its parts on the CPU.
        if _SMALL.items() <= case[1].items() or case[0].startswith(("Flux", "Qwen")) or "qk_norm" in case[1]:
            continue
        row["saved_a_layer"] = saved_a_layer(*case)
    TARGET.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
