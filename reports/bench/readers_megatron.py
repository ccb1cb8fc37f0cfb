"""Parameters as Megatron-Core itself builds them: its own argument parser, its own model classes, on the meta device.

Run by readers.py as ``python readers_megatron.py CLONE``: JSON lines ``{"options": [...], "vocab": N, "kind": "gpt"}``
on standard input, ``{"parameters": N}`` or ``{"error": "..."}`` a line out. The split is left out (one rank holds the
model), Transformer Engine's layers are replaced by Megatron's local ones of the same parameters, and the vocabulary is
the one given (a tokenizer's files are not in a clone).
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

#: Arguments that only change the split or the step, and would ask for devices that are not here.
ALONE: dict[str, Any] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": 1,
    "sequence_parallel": False,
    "num_layers_per_virtual_pipeline_stage": None,
    "num_virtual_stages_per_pipeline_rank": None,
    "pipeline_model_parallel_layout": None,
    "decoder_first_pipeline_num_layers": None,
    "decoder_last_pipeline_num_layers": None,
    "transformer_impl": "local",
    "use_distributed_optimizer": False,
    "overlap_param_gather": False,
    "overlap_grad_reduce": False,
    "use_megatron_fsdp": False,
    "use_torch_fsdp2": False,
    "fp8": None,
    "fp4": None,
    "fp8_param_gather": False,
    "fp4_param_gather": False,
    "moe_grouped_gemm": False,
    "tp_comm_overlap": False,
    "yaml_cfg": None,
    "use_cpu_initialization": True,
    "cuda_graph_impl": "none",
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "recompute_modules": None,
    "recompute_activations": False,
    "apply_layernorm_1p": False,
    "layernorm_zero_centered_gamma": False,
    "overlap_param_gather_with_optimizer_step": False,
    "inference_fuse_tp_communication": False,
    "fsdp_manual_registration": False,
    "reset_position_ids": False,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
    "moe_token_dispatcher_type": "allgather",
    "moe_shared_expert_overlap": False,
    "overlap_moe_expert_parallel_comm": False,
    "moe_router_fusion": False,
    "moe_permute_fusion": False,
    "apply_rope_fusion": False,
    "masked_softmax_fusion": False,
    "bias_dropout_fusion": False,
    "bias_gelu_fusion": False,
    "bias_swiglu_fusion": False,
    "persist_layer_norm": False,
    "gradient_accumulation_fusion": False,
    "no_persist_layer_norm": True,
    "use_checkpoint_args": False,
    "load": None,
    "micro_batch_size": 1,
    "global_batch_size": None,
    "rampup_batch_size": None,
    "step_batch_size_schedule": None,
    "hierarchical_context_parallel_sizes": None,
    "outer_dp_sharding_strategy": "no_shard",
    "deterministic_mode": False,
    "num_distributed_optimizer_instances": 1,
    "async_save": False,
    "perform_rl_step": False,
    "ckpt_format": "torch",
    "data_parallel_sharding_strategy": "no_shard",
    "delay_wgrad_compute": False,
    "optimizer": "adam",
    "inference_dynamic_batching_prefix_caching": False,
    "enable_one_logger": False,
    "enable_cuda_graph": False,
    "spec": None,
    "moe_flex_dispatcher_backend": None,
    "defer_embedding_wgrad_compute": False,
    "cross_entropy_loss_fusion": False,
    "cpu_offloading_num_layers": 0,
    "optimizer_cpu_offload": False,
    "use_precision_aware_optimizer": False,
    "first_last_layers_bf16": False,
    "overlap_p2p_comm_warmup_flush": False,
    "fine_grained_activation_offloading": False,
    "cuda_graph_modules": [],
    "inference_cuda_graph_scope": "none",
    "offload_modules": [],
    "cp_comm_type": ["p2p"],
    "use_flashinfer_fused_rope": False,
    "moe_layer_recompute": False,
}


def main(clone: str) -> None:
    """Answer each line of standard input."""
    sys.path.insert(0, clone)
    warnings.simplefilter("ignore")
    os.environ |= {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29531",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    import typing

    import torch
    import torch.distributed
    import typing_extensions

    if not hasattr(typing, "override"):  # Python 3.11, where Megatron wants 3.12
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    from readers_stand_ins import kernels, layers

    kernels()
    from megatron.core import parallel_state

    # A model on the meta device asks which GPU it is on only to put small tables there.
    torch.cuda.current_device = lambda: torch.device("meta")  # type: ignore[assignment, return-value]
    layers()
    _local_layers()
    out, sys.stdout = sys.stdout, sys.stderr
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1, 1)
    # validate_args leaves by exit(), which closes sys.stdin: questions come by a handle of our own.
    for line in os.fdopen(os.dup(0)):
        asked = json.loads(line)
        try:
            answer: dict[str, object] = {"parameters": parameters(**asked)}
        except (Exception, SystemExit) as error:  # Megatron asserts and exits: each is an answer about the file
            said = f"{type(error).__name__}: {error}".splitlines()
            answer = {"error": said[0][:200] if said else type(error).__name__}
        print(json.dumps(answer), file=out, flush=True)


def _local_layers() -> None:
    """Megatron's local attention takes latent widths too (it has no parameters), and T5 gets local norms."""
    from megatron.core.models.T5 import t5_spec
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    plain = DotProductAttention.__init__

    def latent(
        self: Any, *rest: Any, k_channels: int | None = None, v_channels: int | None = None, **named: Any
    ) -> None:
        plain(self, *rest, **named)

    DotProductAttention.__init__ = latent
    t5_spec.TENorm = WrappedTorchNorm


def parameters(options: list[str], vocab: int, kind: str) -> int:
    """Parameters of the model that Megatron builds of a command line's options."""
    import torch
    from megatron.core.models.gpt import GPTModel  # noqa: F401  (registers what the builder needs)
    from megatron.core.transformer.enums import AttnBackend
    from megatron.training import arguments

    sys.argv = ["pretrain.py", *options]
    args = arguments.parse_args(ignore_unknown_args=True)
    for key, value in ALONE.items():
        if hasattr(args, key):
            setattr(args, key, value)
    args.world_size, args.padded_vocab_size, args.vocab_size = 1, vocab, vocab
    args.max_position_embeddings = args.max_position_embeddings or args.seq_length
    if args.hybrid_layer_pattern:
        args.hybrid_layer_pattern = args.hybrid_layer_pattern.replace("|", "")
    if args.experimental_attention_variant:
        args.transformer_impl = "transformer_engine"  # whose layers are stood in for
    arguments.validate_args(args)
    args.padded_vocab_size = vocab
    config = arguments.core_transformer_config_from_args(args)
    config.attention_backend, config.persist_layer_norm = AttnBackend.auto, False
    config.init_model_with_meta_device, config.perform_initialization = True, False
    with torch.device("meta"):
        model = BUILDERS[kind](args, config)
    return sum(parameter.numel() for parameter in model.parameters())


def gpt(args: Any, config: Any) -> Any:
    import gpt_builders

    return gpt_builders.gpt_builder(args, True, True, config=config)


def hybrid(args: Any, config: Any) -> Any:
    from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec
    from megatron.core.models.hybrid.hybrid_model import HybridModel

    return HybridModel(
        config=config,
        hybrid_stack_spec=hybrid_stack_spec,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        hybrid_layer_pattern=args.hybrid_layer_pattern,
        position_embedding_type=args.position_embedding_type,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
    )


def bert(args: Any, config: Any) -> Any:
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel

    return BertModel(
        config=config,
        num_tokentypes=2,
        transformer_layer_spec=bert_layer_local_spec,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        add_binary_head=args.bert_binary_head,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
    )


def t5(args: Any, config: Any) -> Any:
    from copy import deepcopy

    from megatron.core.models.T5 import t5_model, t5_spec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules  # noqa: F401

    encoder = deepcopy(config)
    encoder.num_layers = args.encoder_num_layers
    return t5_model.T5Model(
        config=config,
        encoder_config=encoder,
        transformer_encoder_layer_spec=t5_spec.get_t5_encoder_with_local_block_spec(args.encoder_num_layers),
        transformer_decoder_layer_spec=t5_spec.get_t5_decoder_with_local_block_spec(args.decoder_num_layers),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        position_embedding_type=args.position_embedding_type,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
    )


BUILDERS = {"gpt": gpt, "hybrid": hybrid, "bert": bert, "t5": t5}

if __name__ == "__main__":
    main(sys.argv[1])
