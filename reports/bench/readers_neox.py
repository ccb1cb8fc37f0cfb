"""Parameters of GPT-NeoX's own layers: its ParallelTransformerLayer on the meta device, its embedding and head by rule.

Run by readers.py as ``python readers_neox.py CLONE``: JSON lines ``{"arguments": {...}, "vocab": N}`` on standard input
(arguments with underscores), ``{"parameters": N}`` or ``{"error": "..."}`` a line out. One rank holds the model, and
packages that only training needs (deepspeed, wandb …) are stood in for.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

ABSENT = (
    "pkg_resources",
    "deepspeed",
    "lm_dataformat",
    "ftfy",
    "wandb",
    "best_download",
    "hjson",
    "mpi4py",
    "flash_attn",
    "megatron.fused_kernels",
    "einops",
    "boto3",
    "hf_transfer",
    "zstandard",
    "jsonlines",
    "tiktoken",
    "sentencepiece",
    "megablocks",
    "grouped_gemm",
    "transformer_engine",
    "triton",
    "mup",
    "apex",
    "amp_C",
    "comet_ml",
    "omegaconf",
    "autopep8",
    "shortuuid",
    "toml",
)


class _Nothing(type):
    """A class whose attributes are classes like it: what a stand-in holds can be derived from and called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {"__init__": lambda self, *rest, **named: None})


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "2.6.0"
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return [] if name == "__path__" else _Nothing(name, (), {"__init__": lambda self, *rest, **named: None})


class StandIn:
    """Finds a stand-in for whatever of ABSENT is not installed, and for what is imported from below it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if any(name == one or name.startswith(one + ".") for one in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: object) -> None:
        """Nothing to run."""


def main(clone: str) -> None:
    """Answer each line of standard input."""
    sys.path.insert(0, clone)
    sys.meta_path.append(StandIn())  # type: ignore[arg-type]
    os.environ |= {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29532",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }
    import torch
    import torch.distributed

    torch.cuda.current_device = lambda: torch.device("meta")  # type: ignore[assignment, return-value]
    out, sys.stdout = sys.stdout, sys.stderr
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    for line in os.fdopen(os.dup(0)):
        asked = json.loads(line)
        try:
            answer: dict[str, object] = {"parameters": parameters(**asked)}
        except (Exception, SystemExit) as error:
            said = f"{type(error).__name__}: {error}".splitlines()
            answer = {"error": said[0][:200] if said else type(error).__name__}
        print(json.dumps(answer), file=out, flush=True)


def parameters(arguments: dict[str, Any], vocab: int) -> int:
    """Layers and last norm by GPT-NeoX's classes; embedding, learned positions and an untied head by rule."""
    import torch
    from megatron import mpu
    from megatron.mpu import layers

    # Weights without values need no initial ones (moe_mlp imports this by name, so before it is imported).
    layers._initialize_affine_weight_gpu = lambda *rest, **named: None
    from megatron.model import transformer
    from megatron.model.norms import get_norm

    if not mpu.model_parallel_is_initialized():
        mpu.initialize_model_parallel(1)
    args = settings(arguments)

    def leave(weight: torch.Tensor) -> torch.Tensor:
        return weight

    total = 0
    with torch.device("meta"):
        for layer in range(args.num_layers):
            total += _count(
                transformer.ParallelTransformerLayer(
                    neox_args=args,
                    attention_mask_func=None,
                    init_method=leave,
                    output_layer_init_method=leave,
                    layer_number=layer,
                    rotary=args.pos_emb == "rotary",
                )
            )
        norm, eps = get_norm(args)
        total += _count(norm(args.hidden_size, eps=eps))
    total += vocab * args.hidden_size * (2 if args.no_weight_tying else 1)
    if args.pos_emb == "learned":
        total += (args.max_position_embeddings + args.opt_pos_emb_offset) * args.hidden_size
    return total


def settings(arguments: dict[str, Any]) -> SimpleNamespace:
    """``arguments`` over the defaults of GPT-NeoX's own dataclasses."""
    import dataclasses

    import torch
    from megatron.neox_arguments import deepspeed_args, neox_args

    values: dict[str, Any] = {}
    for module in (deepspeed_args, neox_args):
        for found in vars(module).values():
            if dataclasses.is_dataclass(found):
                values |= {
                    one.name: one.default
                    for one in dataclasses.fields(found)  # type: ignore[arg-type]
                    if one.default is not dataclasses.MISSING
                }
    values |= arguments
    layers, listed = values["num_layers"], values.get("attention_config")
    kinds: list[str] = []
    for names, times in listed or [[["global"], layers]]:
        kinds += names * (layers // len(names) if times == "all" else times)
    # FlashAttention and sparse kernels have no parameters, and are not installed.
    values["attention_config"] = ["global"] * len(kinds)
    values |= {
        "model_parallel_size": 1,
        "pipe_parallel_size": 0,
        "params_dtype": torch.float16,
        "sparsity_config": {},
        "use_cpu_initialization": False,
        "te_layernorm_mlp": False,
        "te_mha": False,
        "te_fp8_mha": False,
        "te_columnparallel": False,
        "te_rowparallel": False,
        "use_bnb_optimizer": False,
        "sequence_parallel": False,
        "rope_fusion": False,
        "layernorm_fusion": False,
        "rmsnorm_fusion": False,
        "is_pipe_parallel": False,
        "scaled_upper_triang_masked_softmax_fusion": False,
        "scaled_masked_softmax_fusion": False,
    }
    values["norm"] = values["norm"].removeprefix("te_")
    return SimpleNamespace(**values)


def _count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


if __name__ == "__main__":
    main(sys.argv[1])
