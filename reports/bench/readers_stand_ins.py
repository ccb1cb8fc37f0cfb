"""Stand-ins of kernels' packages under which Megatron-Core builds its hybrid models on the meta device.

Transformer Engine's layers become Megatron's local ones of the same parameters (a fused norm stays one); mamba-ssm's
and fla's kernels are names that are never run. Only ``readers_megatron.py`` uses them, before Megatron is imported.
"""

from __future__ import annotations

import sys
import types
from contextlib import nullcontext
from typing import Any


def kernels() -> None:
    """Modules named as mamba-ssm's and fla's, whose kernels are not there."""
    import torch

    class Gated(torch.nn.Module):
        def __init__(self, hidden: int, **other: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(hidden, device="meta"))

    def kernel(*rest: Any, **named: Any) -> None:
        raise NotImplementedError

    names: dict[str, dict[str, Any]] = {
        "mamba_ssm": {"__version__": "2.2.5"},
        "mamba_ssm.ops": {},
        "mamba_ssm.ops.triton": {},
        "mamba_ssm.ops.triton.layernorm_gated": {"RMSNorm": Gated},
        "mamba_ssm.ops.triton.ssd_combined": {
            "mamba_chunk_scan_combined": kernel,
            "mamba_split_conv1d_scan_combined": kernel,
        },
        "fla": {},
        "fla.modules": {},
        "fla.modules.convolution": {"causal_conv1d": kernel},
        "fla.modules.l2norm": {"l2norm": kernel},
        "fla.ops": {},
        "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": kernel},
    }
    for name, members in names.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        sys.modules[name] = module


def layers() -> None:
    """Megatron's local layers where its specifications name Transformer Engine's."""
    import torch
    from megatron.core.extensions import transformer_engine as engine
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    class Column(ColumnParallelLinear):  # type: ignore[misc] # the clone's classes are not typed here
        def __init__(self, *sizes: Any, **named: Any) -> None:
            super().__init__(*sizes, **_without(named, "pg_collection"))

    class Row(RowParallelLinear):  # type: ignore[misc] # as above
        def __init__(self, *sizes: Any, **named: Any) -> None:
            super().__init__(*sizes, **_without(named, "pg_collection"))

    class NormedColumn(Column):
        def __init__(self, *sizes: Any, **named: Any) -> None:
            super().__init__(*sizes, **named)
            self.norm = WrappedTorchNorm(named["config"], sizes[0])

    class Whole(torch.nn.Linear):
        def __init__(self, inward: int, outward: int, *, bias: bool, **named: Any) -> None:
            super().__init__(inward, outward, bias=bias, device="meta")

    own = {
        "TEColumnParallelLinear": Column,
        "TERowParallelLinear": Row,
        "TELayerNormColumnParallelLinear": NormedColumn,
        "TELinear": Whole,
        "TENorm": WrappedTorchNorm,
        "TEDotProductAttention": DotProductAttention,
        "te_checkpoint": None,
    }
    for name, layer in own.items():
        setattr(engine, name, layer)
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.models.gpt import moe_module_specs
    from megatron.core.transformer.moe import moe_layer

    moe_module_specs.TESpecProvider = LocalSpecProvider
    moe_layer.HAVE_TE, moe_layer.TELinear = True, Whole
    from megatron.core.models.hybrid import hybrid_block, hybrid_layer_specs

    for module in (hybrid_block, hybrid_layer_specs):
        for name in own.keys() & vars(module).keys():
            setattr(module, name, own[name])
    from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.ssm import mamba_mixer
    from megatron.core.ssm.gated_delta_net import common
    from megatron.core.transformer import multi_token_prediction

    class Provider(LocalSpecProvider):  # type: ignore[misc] # as above
        def fuse_layernorm_and_linear(self) -> bool:
            return True

        def column_parallel_layer_norm_linear(self) -> type:
            return NormedColumn

    variants.TESpecProvider = gpt_layer_specs.TESpecProvider = Provider
    multi_token_prediction.is_inference_column_parallel_linear = lambda layer: False
    for module in (mamba_mixer, common):
        module.get_cuda_rng_tracker = NoRandomness


class NoRandomness:
    """A tracker of random states that has none to switch to."""

    def fork(self) -> Any:
        return nullcontext()


def _without(named: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in named.items() if key not in names}
