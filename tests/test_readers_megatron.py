"""Launch scripts and YAML files as people write them, read without running anything."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapes.errors import InputError, within
from shapes.model import MlaShape, MlpShape, MoeShape
from sizer.readers import Reading, read_config
from sizer.readers.loading import Tree
from sizer.readers.megatron import parse_options
from sizer.readers.shell import Script, Variables
from tests.texts import read_text

PLAIN = "torchrun pretrain_gpt.py --num-layers 24 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 \
--max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 2 --swiglu --disable-bias-linear"

ARRAYS = """#!/bin/bash
TP=2; LAYERS=24
MODEL_ARGS=(
    --num-layers $LAYERS      # the depth
    # --hidden-size 1
    --hidden-size 4096
    --num-attention-heads ${HEADS:-32}
    --seq-length 2048 --max-position-embeddings 2048
    --vocab-size 50257
    --disable-bias-linear
)
MODEL_ARGS+=("--micro-batch-size 2" --tensor-model-parallel-size ${TP})
MODEL_ARGS+=(--swiglu)
torchrun --nproc_per_node 8 --nnodes $((1 * 2)) pretrain_gpt.py ${MODEL_ARGS[@]} --save "$1"
"""

QUOTED = """
MODEL_ARGS=" \\
    --num-layers 24 --hidden-size 4096 \\
    --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 \\
    --vocab-size 50257 --micro-batch-size 2 --swiglu --disable-bias-linear \\
"
"""

FUNCTION = """
launch() {
    local size=$1
    case $size in
        7B) HIDDEN=4096; LAYERS=24 ;;
        *) HIDDEN=64; LAYERS=2 ;;
    esac
    CMD="python pretrain_gpt.py --num-layers ${LAYERS} --hidden-size $HIDDEN $OTHER"
    srun --ntasks-per-node=8 bash -c "${CMD}"
}
if [[ "$SIZE" == "" ]]; then OTHER="--num-attention-heads 1"; fi
OTHER="--num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257"
if [ "${DTYPE:-bf16}" = bf16 ]; then
  OTHER="$OTHER --micro-batch-size 2 --swiglu --disable-bias-linear"
else
  OTHER="$OTHER --micro-batch-size 16"
fi
launch 7B
"""

HEREDOC = """
WIDTH=4096
sbatch <<EOF
#!/bin/bash
torchrun pretrain_gpt.py --num-layers 24 --hidden-size ${WIDTH} --num-attention-heads 32 --seq-length 2048 \\
  --max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 2 --swiglu --disable-bias-linear
EOF
"""

YAML = """
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 24
  --hidden-size: 4096
  --num-attention-heads: 32
  --seq-length: 2048
  --max-position-embeddings: 2048
  --vocab-size: 50257
  --micro-batch-size: 2
  --swiglu: true
  --disable-bias-linear: true
  --data-path: ${DATA_PATH}/text
TEST_TYPE: regular
"""

IDIOMS = {"plain": PLAIN, "arrays": ARRAYS, "quoted": QUOTED, "function": FUNCTION, "heredoc": HEREDOC}


#: Words that begin, end or join something in a shell script.
SHELL = [
    "if",
    "then",
    "fi",
    "for",
    "in",
    "do",
    "done",
    "case",
    "esac",
    ";;",
    ";",
    "&&",
    "||",
    "(",
    ")",
    "{",
    "}",
    "[[",
    "]]",
    "[",
    "A=1",
    "$A",
    "${A",
    '"',
    "'",
    "`",
    "$(",
    "((",
    "<<E",
    "E",
    "4",
    "f()",
    "\\",
    "#",
    "!",
    "--num-layers",
    "\n",
]


def script(text: str, **options: Any) -> Reading:
    return read_text(text, where="train.sh", **options)


def with_arguments(more: str) -> Reading:
    return script(f"{PLAIN} {more}\n")


def followed(text: str) -> str:
    """The refusal of a script; nothing where it is followed to its end."""
    try:
        with within("run.sh"):
            Script(Variables({}), Tree("run.sh", None)).follow(text)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", IDIOMS)
def test_every_idiom_states_the_same_model(name: str) -> None:
    reading = script(IDIOMS[name])
    padded = 50432 if name == "arrays" else 50304  # to 256 with two tensor-parallel ranks
    # padded v x h + 2048 positions x h + 24 x (4h^2 + 3h x 10880 + 4h) + 2h; d_ff = 64 floor(8 x 4096 / 3 / 64)
    hidden = 4096
    layer = 4 * hidden**2 + 3 * hidden * 10880 + 4 * hidden
    assert reading.model.parameters == (padded + 2048) * hidden + 24 * layer + 2 * hidden
    assert (reading.workload["b"], reading.workload["s"]) == (2, 2048)
    assert not reading.unread


def test_a_yaml_of_dashed_arguments_one_level_down_reads_alike() -> None:
    assert read_text(YAML, where="model_config.yaml").model == script(PLAIN).model


def test_devices_give_the_data_parallel_degree_and_a_contradiction_is_named() -> None:
    assert script(ARRAYS).workload["d"] == 8  # 8 x 2 devices over t 2
    reading = script(ARRAYS.replace("TP=2", "TP=3"))
    assert "d" not in reading.workload
    assert any("starts 16 devices" in note and "= 3 does not divide" in note for note in reading.notes)
    assert reading.workload["gpus"] == 16  # said, so that SZ120 judges them
    # Of a script of more nodes the default is no layout; what its degrees just take is one.
    assert "gpus" not in script(ARRAYS.replace("TP=2", "TP=32")).workload
    whole = script(ARRAYS.replace("TP=2", "TP=16")).workload
    assert (whole["d"], whole["gpus"]) == (1, 16)


@pytest.mark.parametrize(
    ("value", "named"),
    [("$(nvidia-smi -L | wc -l)", "nvidia-smi"), ("`cat layers`", "cat layers"), ("$1", "$1"), ("$DEPTH", "$DEPTH")],
)
def test_a_value_that_only_running_would_tell_is_named_and_never_run(value: str, named: str) -> None:
    with pytest.raises(InputError) as caught:
        script(PLAIN.replace("--num-layers 24", f"--num-layers {value}"))
    assert caught.value.key == "num_layers"
    assert named in str(caught.value)
    assert "--set num_layers" in str(caught.value)
    assert script(PLAIN.replace("--num-layers 24", f"--num-layers {value}"), settings={"num_layers": 24}).model == (
        script(PLAIN).model
    )


def test_an_unknown_layout_is_a_warning_and_not_an_error() -> None:
    reading = with_arguments("--tensor-model-parallel-size $TP --save $1")
    assert [one.key for one in reading.unread] == ["tensor_model_parallel_size"]


def test_a_shell_variable_can_be_set() -> None:
    assert script(ARRAYS, settings={"LAYERS": 12}).model.layers == 12
    with pytest.raises(InputError, match="did you mean num_layers"):
        script(ARRAYS, settings={"num_layer": 12})


def test_a_script_without_a_model_says_so() -> None:
    with pytest.raises(InputError, match="states a model"):
        script("echo --num-layers-per-virtual-pipeline-stage 2\n")


@pytest.mark.parametrize(
    ("options", "size", "padded"),
    [
        ("--tokenizer-type GPT2BPETokenizer", 50257, 50304),
        ("--merge-file merges.txt", 50257, 50304),
        ("--vocab-file $D/bpe/vocab.json --merge-file $D/bpe/merges.txt", 50257, 50304),
        ("--vocab-file /a/tokenizers/vocab.json --tokenizer-type GPT2BPETokenizer", 50257, 50304),
        ("--vocab-file /a/gpt2-tokenizer/vocab.json --tokenizer-type GPT2BPETokenizer", 50257, 50304),
        ("--tokenizer-model meta-llama/Llama-3.1-8B", 128256, 128256),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model $1", 32000, 32000),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model /m/baichuan2-13B-hf/tokenizer.model", 125696, 125696),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model a/b/tokenizer.model", 32000, 32000),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model $A/llm-jp-tokenizer-100k.ver3.0b1.model", 99487, 99584),
        ("--tokenizer-type PretrainedFromHF --tokenizer-name-or-path bigscience/tokenizer", 250680, 250752),
    ],
)
def test_without_a_vocabulary_the_tokenizers_is_taken_and_said(options: str, size: int, padded: int) -> None:
    reading = script(PLAIN.replace("--vocab-size 50257", options))
    assert reading.model.vocab == padded
    assert any(f"{size:,} tokens" in note for note in reading.notes)


@pytest.mark.parametrize(
    "kind",
    [
        "SentencePieceTokenizer",
        "Llama2Tokenizer --tokenizer-model $A/ours_v4.model",
        "GPT2BPETokenizer --vocab-file /a/tokenizers/nordic_tokenizer_131072/vocab.json --merge-file merges.txt",
        "GPT2BPETokenizer --vocab-file $1/europa-tokenizer/vocab.json",
    ],
)
def test_an_unknown_tokenizer_asks_for_the_vocabulary(kind: str) -> None:
    with pytest.raises(InputError, match="--set vocab_size") as refused:
        script(PLAIN.replace("--vocab-size 50257", f"--tokenizer-type {kind}"))
    assert "\0" not in str(refused.value)


def test_bigsciences_vocabulary_is_padded_to_what_it_says_and_an_old_batch_size_is_a_microbatch() -> None:
    reading = script(PLAIN.replace("--vocab-size 50257", "--pad-vocab-size-to 250880").replace("--micro-b", "--b"))
    assert reading.model.vocab == 250880
    assert reading.workload["b"] == script(PLAIN).workload["b"]


def test_latent_attention_and_a_list_of_sparse_layers() -> None:
    reading = with_arguments(
        "--multi-latent-attention --kv-lora-rank 512 --q-lora-rank 1536 --qk-layernorm --num-experts 8 "
        "--moe-layer-freq '([0]*3+[1]*21)' --moe-router-topk 4 --moe-ffn-hidden-size 512 --kv-channels 128"
    )
    dense, sparse = reading.model.main.blocks
    assert isinstance(dense.attention, MlaShape)
    assert (dense.attention.q_lora_rank, dense.attention.head_dim, dense.attention.latent_norm) == (1536, 192, 2)
    assert (dense.count, sparse.count) == (3, 21)
    assert isinstance(dense.mlp, MlpShape)
    assert isinstance(sparse.mlp, MoeShape)
    assert (sparse.mlp.experts, sparse.mlp.top_k, sparse.mlp.width) == (8, 4, 512)
    assert not reading.unread


def test_mindspeeds_leading_dense_layers_shared_experts_and_layers_that_do_nothing() -> None:
    """mindspeed_llm/core/transformer/transformer_block.py, features_manager/moe/shared_expert.py."""
    reading = with_arguments(
        "--spec mindspeed_llm.tasks.models.spec.deepseek_spec layer_spec --num-experts 8 --moe-intermediate-size 512 "
        "--first-k-dense-replace 3 --moe-layer-freq 1 --n-shared-experts 2 --noop-layers 22,23 --gelu-tanh"
    )
    dense, sparse = reading.model.main.blocks
    assert (dense.count, sparse.count) == (3, 19)
    assert isinstance(dense.mlp, MlpShape)
    assert isinstance(sparse.mlp, MoeShape)
    assert (dense.mlp.gated, sparse.mlp.width, sparse.mlp.shared and sparse.mlp.shared.width) == (True, 512, 1024)


def test_a_model_has_a_layer_that_does_something() -> None:
    with pytest.raises(InputError, match="noop_layers"):
        with_arguments(f"--noop-layers {','.join(map(str, range(24)))}")


@pytest.mark.parametrize(
    "more", ["--post-norm", "--full-attention-interval 4", "--enable-dsa-indexer", "--retro-add-retriever"]
)
def test_what_forks_and_retro_add_to_a_layer_is_refused(more: str) -> None:
    with pytest.raises(InputError, match="and is not read here"):
        with_arguments(more)


def test_deepspeeds_sequence_parallelism_is_ulysses() -> None:
    found = with_arguments("--ds-sequence-parallel-size 4").workload
    assert (found["cp"], found["cp_comm"]) == (4, "a2a")
    found = with_arguments("--ds-sequence-parallel-size 1 --context-parallel-size 2").workload
    assert (found["cp"], "cp_comm" in found) == (2, False)


def test_a_model_of_pictures_is_refused_as_that() -> None:
    with pytest.raises(InputError, match=r"vision_pretraining_type = 'dino': changes the model: it sees pictures"):
        with_arguments("--vision-pretraining-type dino")


def test_arithmetic_that_is_no_python_warns_of_nothing() -> None:
    with warnings.catch_warnings(record=True, action="always") as said:
        script(f"N=$((1if 1else 2))\n{PLAIN} --micro-batch-size $N")
    assert not said


def test_a_program_that_generates_text_is_priced_as_decoding() -> None:
    text = PLAIN.replace("pretrain_gpt.py", "tools/run_text_generation_server.py")
    assert script(text).workload["phase"] == "decode"
    text = PLAIN.replace("torchrun pretrain_gpt.py", "python -m examples.gpt.gpt_dynamic_inference")
    assert script(text).workload["phase"] == "decode"
    started = PLAIN.replace("torchrun", "python -m torch.distributed.run")
    assert "phase" not in script(started).workload
    text = PLAIN.replace("pretrain_gpt.py", "tools/preprocess_data.py")
    assert any("prepares or evaluates" in note for note in script(text).notes)
    quantises = PLAIN.replace("pretrain_gpt.py", "examples/export/text_generation_ptq.py")  # and generates
    assert script(quantises).workload["phase"] == "decode"
    assert not any("prepares or evaluates" in note for note in script(quantises).notes)
    assert not any("prepares or evaluates" in note for note in script(PLAIN).notes)
    assert "phase" not in script(PLAIN).workload


def test_a_period_of_sparse_layers_begins_with_the_first() -> None:
    reading = with_arguments("--num-experts 8 --moe-layer-freq 2")
    assert [isinstance(block.mlp, MoeShape) for block in reading.model.main.blocks] == [True, False] * 12


def test_ranks_that_cut_an_expert_are_read() -> None:
    folded = (
        "--num-experts 8 --tensor-model-parallel-size 2 --expert-model-parallel-size 2 --expert-tensor-parallel-size"
    )
    assert with_arguments(f"{folded} 1").workload["etp"] == 1
    assert "etp" not in with_arguments(f"{folded} 2").workload  # as all else


@pytest.mark.parametrize("pattern", ["([0]*3)", "([1]*10**9)", "__import__('os')", "[[1]]*24", "x"])
def test_a_wrong_pattern_of_layers_is_one_line(pattern: str) -> None:
    with pytest.raises(InputError, match="moe_layer_freq"):
        with_arguments(f"--num-experts 8 --moe-layer-freq '{pattern}'")


def test_recomputed_experts_come_on_top_of_what_is_recomputed_by_default() -> None:
    assert with_arguments("--moe-layer-recompute").workload["checkpointing"] == "core_attn,moe"
    named = "--recompute-granularity selective --recompute-modules mlp --moe-layer-recompute"
    assert with_arguments(named).workload["checkpointing"] == "mlp,moe"


def test_gated_units_by_every_name_and_sinks_and_alternating_windows() -> None:
    reading = script(
        PLAIN.replace("--swiglu", "--quick-geglu") + " --softmax-type learnable --window-size 127,0 "
        "--window-attn-skip-freq 2 --ffn-hidden-size 1024"
    )
    first, second = reading.model.main.blocks[:2]
    assert isinstance(first.mlp, MlpShape)
    assert first.mlp.gated
    assert first.attention is not None
    assert second.attention is not None
    assert (first.attention.window, second.attention.window) == (128, None)
    assert first.attention.sinks


def test_multi_token_prediction_adds_a_layer_its_projection_and_its_norms() -> None:
    plain, predicted = script(PLAIN).model, with_arguments("--mtp-num-layers 1").model
    hidden = 4096
    layer = 4 * hidden**2 + 3 * hidden * 10880 + 4 * hidden
    # two norms in front, a projection of 2h to h, a layer, a norm at its end; LayerNorm: weight and bias
    assert predicted.parameters - plain.parameters == layer + 2 * hidden * hidden + 3 * 2 * hidden


@pytest.mark.parametrize(
    "options",
    [
        "--hybrid-layer-pattern M-D*-",
        "--experimental-attention-variant dsa",
        "--spec my.module my_spec",
        "--heterogeneous-layers-config-path layers.json",
    ],
)
def test_layers_without_a_formula_are_refused(options: str) -> None:
    with pytest.raises(InputError, match=options.split()[0].lstrip("-").replace("-", "_")):
        with_arguments(options)


def test_a_hybrid_pattern_of_attention_mlp_and_experts_is_read() -> None:
    usual, hybrid = with_arguments("").model, with_arguments(f"--hybrid-layer-pattern {'*-' * 24}").model
    assert hybrid.parameters == usual.parameters
    assert hybrid.layers == 48


def test_mamba_layers_of_a_pattern_have_megatrons_usual_sizes_and_bars_between_stages_are_nothing() -> None:
    plain, more = (with_arguments(f"--hybrid-layer-pattern '{pattern}'").model for pattern in ("*-", "*M|-"))
    hidden, inner, groups, state, heads = 4096, 8192, 8, 128, 128
    channels = inner + 2 * groups * state
    # in and out, a convolution of 4 with its bias, A, D and dt's bias of each head, the gated norm, LayerNorm before it
    mixer = hidden * (inner + channels + heads) + inner * hidden + 5 * channels + 3 * heads + inner
    assert more.parameters - plain.parameters == mixer + 2 * hidden
    assert [block.mixer is not None for block in more.main.blocks] == [False, True, False]


def test_depths_of_multi_token_prediction_stand_behind_the_pattern_and_run_the_head_again() -> None:
    plain, deep = (with_arguments(f"--hybrid-layer-pattern {pattern}").model for pattern in ("M*-", "M*-/*-/*-"))
    hidden = 4096
    depth = 4 * hidden**2 + 3 * hidden * 10880 + 2 * hidden * hidden + 2 * 5 * hidden
    assert deep.parameters - plain.parameters == 2 * depth
    assert (plain.head_passes, deep.head_passes) == (1, 3)
    repeated = with_arguments("--hybrid-layer-pattern M*-/*-/*- --mtp-use-repeated-layer")
    assert repeated.model.parameters - plain.parameters == depth
    assert any("repeats its layers 2 times" in note for note in repeated.notes)


def test_gated_delta_nets_take_the_layers_that_the_period_leaves_them() -> None:
    options = "--experimental-attention-variant gated_delta_net --linear-attention-freq 4 --attention-output-gate"
    model = with_arguments(options).model
    kinds = [(block.count, block.mixer is None) for block in model.main.blocks]
    assert kinds[:3] == [(3, False), (1, True), (3, False)]
    assert model.attention is not None
    # the queries are projected with a gate as wide
    assert model.attention.linears(4096)[0].out_features == 4 * 4096
    with pytest.raises(InputError, match="linear_attention_freq: expected which layers"):
        with_arguments("--experimental-attention-variant gated_delta_net")


def test_experts_in_a_latent_space_are_smaller_and_projected_to() -> None:
    both = "--num-experts 8 --moe-router-topk 2"
    plain, latent = (with_arguments(f"{both} {more}").model for more in ("", "--moe-latent-size 1024"))
    per_layer = 8 * 3 * 10880 * (4096 - 1024) - 2 * 4096 * 1024
    assert plain.parameters - latent.parameters == plain.layers * per_layer


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--use-distributed-optimizer", {"zero": 1}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", {"zero": 3}),
        ("--use-torch-fsdp2", {"zero": 3}),
        ("--recompute-activations", {"checkpointing": "selective"}),
        ("--recompute-granularity full", {"checkpointing": "full"}),
        ("--recompute-granularity selective --recompute-modules core_attn mlp", {"checkpointing": "core_attn,mlp"}),
        (
            '--recompute-granularity selective --recompute-modules "[layernorm mlp, moe_act]"',
            {"checkpointing": "layernorm,mlp,moe_act"},
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 4",
            {"checkpointing": "full:4"},
        ),
        ("--bf16", {"reduces": "fp32"}),
        ("--bf16 --fp8-format hybrid", {"dtype": "fp8"}),
        ("--bf16 --fp8-format hybrid --fp8-dot-product-attention", {"attention_dtype": "fp8"}),
        ("--expert-model-parallel-size 4 --num-experts 8", {"e": 4}),
        ("--sequence-parallel", {"sequence_parallel": True}),
        ("--attention-backend unfused", {"attention": "eager"}),
        ("", {"no_overlap": "tensor-forward,data"}),
        # Gathers of updated weights overlap where the reduction does; without sharded states there are none.
        ("--use-distributed-optimizer", {"no_overlap": "tensor-forward,data"}),
        ("--use-distributed-optimizer --overlap-param-gather", {"no_overlap": "tensor-forward,data"}),
        ("--overlap-grad-reduce", {"no_overlap": "tensor-forward"}),
        (
            "--overlap-grad-reduce --overlap-param-gather --use-distributed-optimizer",
            {"no_overlap": "tensor-forward"},
        ),
        (
            "--overlap-grad-reduce --use-distributed-optimizer --tp-comm-overlap --moe-shared-expert-overlap",
            {"no_overlap": "gather"},
        ),
        (
            "--overlap-grad-reduce --use-torch-fsdp2 --no-overlap-p2p-communication --overlap-moe-expert-parallel-comm",
            {"no_overlap": "tensor-forward,pipeline"},
        ),
        ("--optimizer muon", {"optimizer": "muon"}),
        ("--optimizer sgd", {"optimizer": "sgd-momentum"}),
    ],
)
def test_the_layout_and_the_step_are_read(options: str, expected: dict[str, object]) -> None:
    workload = with_arguments(options).workload
    assert {key: workload[key] for key in expected} == expected


def test_what_changes_the_step_and_is_not_read_is_named_and_a_typing_error_gets_a_guess() -> None:
    reading = with_arguments("--cp-comm-type a2a --num-query-group 8 --lr 1e-4")
    said = {one.key: one for one in reading.unread}
    assert said.keys() == {"cp_comm_type", "num_query_group"}
    assert said["num_query_group"].meant == "num_query_groups"
    assert said["cp_comm_type"].changes


@pytest.mark.parametrize(
    "text",
    [
        "A=x\n" + "A=$A$A\n" * 60,
        "f() { f; f; }\nf\n",
        "for i in 1 2 3; do for j in 1 2 3; do :; done; done\n" * 2000,
        "((" * 3000,
        "$(" * 3000,
        "if true; then " * 3000,
        "A=(" * 3000,
        "echo " + "${A:-" * 200,
    ],
)
def test_a_hostile_script_ends(text: str) -> None:
    assert "\n" not in followed(text)


@settings(max_examples=400)
@given(st.lists(st.sampled_from(SHELL), max_size=25))
def test_any_string_of_shell_words_is_followed_or_refused_in_one_line(words: list[str]) -> None:
    assert "\n" not in followed(" ".join(words))


def test_bert_and_t5_are_told_by_their_arguments() -> None:
    bert = read_config(
        {
            "num_layers": 24,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "seq_length": 512,
            "max_position_embeddings": 512,
            "tokenizer_type": "BertWordPieceLowerCase",
        }
    )
    h = 1024
    # 30522 padded to 30592; 512 positions, 2 kinds of token; 24 x (12h^2 + 13h); final norm; the masked-token head
    # (a transform, a norm, a bias a token) and the next-sentence head (a pooler, two classes)
    expected = (30592 + 512 + 2) * h + 24 * (12 * h * h + 13 * h) + 2 * h
    expected += h * h + h + 2 * h + 30592 + h * h + h + 2 * h + 2
    assert bert.model.parameters == expected
    t5 = read_config(
        {
            "encoder_num_layers": 2,
            "decoder_num_layers": 3,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "max_position_embeddings": 128,
            "vocab_size": 1000,
        }
    )
    assert [stack.layers for stack in t5.model.stacks] == [2, 3]


def test_the_programs_own_name_tells_bert_and_t5_and_no_folder_does() -> None:
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 512 --max-position-embeddings 512"
    t5 = script(f"python pretrain_t5.py {sizes} --decoder-seq-length 128 --vocab-file t5-vocab.txt\n")
    assert ([stack.layers for stack in t5.model.stacks], t5.workload["decoder_s"]) == ([2, 2], 128)
    gpt = script(f"python /home/robert/t5/pretrain_gpt.py {sizes} --vocab-size 100\n")
    assert gpt.model.model_type == "megatron"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        *(("--moe-num-experts=64", "the experts"), ("--retriever-report-topk-accuracies 1 5", "a retriever has two")),
        ("--model-provider llava_vlm", "its program builds it"),
    ],
)
def test_an_argument_of_a_fork_that_changes_the_model_is_refused(more: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        with_arguments(more)


def test_what_a_release_of_megatron_has_and_no_layer_does_is_not_named() -> None:
    held = "--no-one-logger --inprocess-restart --use-tp-pp-dp-mapping --gtp-expert-remat-nccl-ub --warmup 5"
    assert not with_arguments(held).unread
    assert [one.changes for one in with_arguments("--standalone-embedding-stage").unread] == ["the pipeline's stages"]


def test_an_array_is_counted_wherever_it_stands_and_a_command_in_place_of_a_file_is_passed_over() -> None:
    sizes = "--num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 --vocab-size 100"
    compared = 'while read x; do :; done < <(ls)\nif [ "$q" ]; then\n diff <(ls a) <(echo "b)") > >(tee c)\nfi\n'
    run = f"python pretrain_gpt.py --num-layers ${{#a[@]}} --hidden-size $((${{#a[@]}} * 16)) {sizes}\n"
    model = script(f"a=(1 2)\na+=(3 4)\n{compared}{run}").model
    assert (model.layers, model.hidden) == (4, 64)
    with pytest.raises(InputError, match=r"its value is \$.*#a\[@\].*, which the file does not hold"):
        script(f"a=($(ls))\n{run}")


def test_a_directory_is_not_a_script(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert read_config(tmp_path).source == str(tmp_path / "config.json")


def test_a_flag_before_a_variable_without_a_value_holds_and_the_variable_is_named() -> None:
    reading = with_arguments("--untie-embeddings-and-output-weights $te_options --lr 1e-4 $MORE --tp-comm-overlap $9")
    assert not reading.model.tied
    assert "tensor-forward" not in reading.workload["no_overlap"]
    assert [one.key for one in reading.unread] == ["$te_options", "$MORE"]
    with pytest.raises(InputError, match="--set kv_channels=N"):
        with_arguments("--kv-channels $1")


def test_older_arguments_are_read_under_their_names_of_today() -> None:
    older = with_arguments("--glu-activation swiglu --model-parallel-size 2")
    today = with_arguments("--gated-linear-unit --tensor-model-parallel-size 2")
    assert (older.model, older.workload["t"]) == (today.model, 2)
    assert older.model.dense_mlp is not None
    assert older.model.dense_mlp.gated
    groups = [
        with_arguments(f"--group-query-attention {one} 2").model
        for one in ("--num-key-value-heads", "--num-query-groups")
    ]
    assert groups[0] == groups[1]


def test_an_argument_of_the_script_that_decides_the_sizes_is_asked_for() -> None:
    text = 'SIZE=$1\nif [ $SIZE = 7B ]; then\n H="--hidden-size 4096"\nelse\n H="--hidden-size $HIDDEN"\nfi\n'
    text += f"{PLAIN} $H 2>&1 | tee log\n"
    with pytest.raises(InputError, match=r"hidden_size: its value is \$HIDDEN, .* --set SIZE=... or --set hidden_size"):
        script(text)
    reading = script(text, settings={"SIZE": "7B"})
    assert (reading.model.hidden, reading.unread) == (4096, ())


def test_a_tokenizer_of_another_language_is_not_gpt2s() -> None:
    with pytest.raises(InputError, match=r"\(AbejaJapaneseGPT2Tokenizer\) decides it"):
        script(PLAIN.replace("--vocab-size 50257", "--tokenizer-type AbejaJapaneseGPT2Tokenizer"))


def test_a_tasks_own_head_is_named() -> None:
    assert [(one.key, one.changes) for one in with_arguments("--task MNLI").unread] == [
        ("task", "the head, or what is run: a task's own")
    ]


def test_megatron_deepspeeds_experts_are_every_other_layers_and_its_residual_ones_have_no_formula() -> None:
    fork = "--deepspeed --num-experts 4 --moe-expert-parallel-size 2"
    reading = with_arguments(fork)
    kinds = [isinstance(block.mlp, MoeShape) for block in reading.model.main.blocks for _ in range(block.count)]
    assert kinds[:4] == [False, True, False, True]
    assert reading.workload["e"] == 2
    whole = with_arguments(f"{fork} --expert-interval 1").model.main.blocks
    assert all(isinstance(block.mlp, MoeShape) for block in whole)
    assert with_arguments("--deepspeed --num-experts 1").model.moe is None
    with pytest.raises(InputError, match="mlp_type = 'residual': has no formula here"):
        with_arguments('--deepspeed --num-experts "4 8" --mlp-type residual')


COUNTED = """#!/bin/bash
N=8
FIRST_K=3
arr=()
for ((i=0; i<N; i++)); do
  if (( i < FIRST_K )); then
    arr+=(0)
  else
    arr+=(1)
  fi
done
printf -v FREQ "[%s]" "$(IFS=', '; echo "${arr[*]}")"
torchrun pretrain_gpt.py --num-layers $N --hidden-size 256 --num-attention-heads 4 --seq-length 128 --vocab-size 512 \\
  --max-position-embeddings 128 --num-experts 4 --moe-router-topk 2 --moe-layer-freq "$FREQ"
"""


def test_a_loop_that_builds_a_list_is_followed() -> None:
    blocks = read_text(COUNTED, where="run.sh").model.main.blocks
    assert [(block.count, isinstance(block.mlp, MoeShape)) for block in blocks] == [(3, False), (5, True)]
    up_to = COUNTED.replace("i=0; i<N; i++", "i = 1; i <= N; ++i")
    assert [block.count for block in read_text(up_to, where="run.sh").model.main.blocks] == [2, 6]
    unknown = COUNTED.replace("N=8", "N=$1").replace("--num-layers $N", "--num-layers 8")
    with pytest.raises(InputError, match="moe_layer_freq"):
        read_text(unknown, where="run.sh")
    with pytest.raises(InputError, match="at most"):
        read_text(COUNTED.replace("N=8", "N=99999999999"), where="run.sh")


@pytest.mark.parametrize(
    ("test", "layers"),
    [("X > 8", 4), ("X < 8", 2), ("X == 16", 4), ("X != 16", 2), ("X", 4), ("X-16", 2), ("$X>15", 4), ("$1 > 3", 2)],
)
def test_an_arithmetic_test_chooses_the_branch(test: str, layers: int) -> None:
    """What only running could decide counts as not holding, as other tests do."""
    script = (
        f"#!/bin/bash\nX=16\nif (( {test} )); then L=4; else L=2; fi\ntorchrun p.py --num-layers $L --hidden-size 64 "
        "--num-attention-heads 4 --seq-length 128 --vocab-size 512 --max-position-embeddings 128\n"
    )
    reading = read_text(script, where="run.sh")
    assert reading.model.layers == layers
    assert any("only running could decide" in note for note in reading.notes) is (test == "$1 > 3")


def test_an_embeddings_norm_has_parameters_and_a_section_that_is_off_says_nothing() -> None:
    assert with_arguments("--embed-layernorm").model.parameters - with_arguments("").model.parameters == 2 * 4096
    text = "{num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 128, seq_length: 64, lora: %s}"
    assert read_text(text % "{enabled: false, dim: 32}", where="a.yaml").model.layers == 2
    with pytest.raises(InputError, match="dim = 32: changes which parameters train"):
        read_text(text % "{enabled: true, dim: 32}", where="a.yaml")


def test_an_option_before_one_of_a_launcher_keeps_its_value() -> None:
    words = ["--nproc_per_node", "8", "-m", "pretrain", "--lr", "-1", "--swiglu", "--", "left"]
    assert parse_options(words) == {"nproc_per_node": 8, "lr": -1, "swiglu": True}


def test_slimes_own_arguments_are_no_unknown_keys(tmp_path: Path) -> None:
    # sglang_mem_fraction_static was taken for a part of the model ("static"), rollout_* for typing errors.
    script = tmp_path / "run.sh"
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 512 --max-position-embeddings 64"
    own = "--sglang-mem-fraction-static 0.7 --rollout-batch-size 8 --rm-type dapo --max-tokens-per-gpu 4096"
    script.write_text(f"python train.py {sizes} {own}\n")
    reading = read_config(script)
    assert {one.key: one.changes for one in reading.unread} == {
        "rollout_batch_size": "the sequences of a step",
        "max_tokens_per_gpu": "the tokens of a microbatch",
    }


def test_a_script_s_own_variable_may_be_called_as_a_size_is(tmp_path: Path) -> None:
    """--set layers=16 is the script's; a name that the file has neither as a key nor a variable is refused."""
    script = tmp_path / "run.sh"
    script.write_text(
        "layers=32\ntorchrun pretrain_gpt.py --num-layers $layers --hidden-size 1024 --num-attention-heads 16 "
        "--seq-length 2048 --max-position-embeddings 2048 --vocab-size 50304\n",
        encoding="utf-8",
    )
    assert read_config(str(script), settings={"layers": 16}).model.layers == 16
    with pytest.raises(InputError, match=r"--set n_layer = 16: .*did you mean num_layers\?"):
        read_config(str(script), settings={"n_layer": 16})


def test_a_script_that_speaks_of_no_chunks_of_stages_has_none() -> None:
    split = "--pipeline-model-parallel-size 2 "
    at = ARRAYS.index("--num-layers")
    assert script(ARRAYS[:at] + split + ARRAYS[at:]).workload["vpp"] == 1
    layout = f'{split}--pipeline-model-parallel-layout "Et*12|t*12L" '
    assert "vpp" not in script(ARRAYS[:at] + layout + ARRAYS[at:]).workload
    assert "vpp" not in script(ARRAYS).workload


@pytest.mark.parametrize(
    ("line", "layers"),
    [
        ("IFS=: read -r N W <<< '2:64'", 2),
        ("IFS=$'\\t' read N W <<< '3\t64'", 3),
        ("read -r N W more <<< '4  64 of several'", 4),
        ("IFS=, read -ra ALL <<< '5,64,x'; N=${ALL[0]} W=${ALL[1]}", 5),
        ("IFS=',' read -ra ALL <<< '0,1,2'; W=64 N=${#ALL[@]}", 3),
        ("IFS=: read -r X N W <<< 'a::64'; N=$((${N:-3} * 2))", 6),
        ("IFS= read -r N <<< '7'; W=$(( 8 * ${N:+8} ))", 7),
        ("read -r N A <<< '2 5'; W=$(((A + 3) * 8))", 2),
        (f'W=64; for i in {" ".join("abcdefghijklmnopqrstuvwxy")}; do (( x = "$i )); done; N=${{M:-2}}', 2),
    ],
)
def test_what_a_script_reads_from_a_text_is_what_ifs_parts(line: str, layers: int) -> None:
    script = (
        f"#!/bin/bash\n{line}\ntorchrun p.py --num-layers $N --hidden-size $W --num-attention-heads 4 "
        "--seq-length 128 --vocab-size 512 --max-position-embeddings 128\n"
    )
    model = read_text(script, where="run.sh").model
    assert (model.layers, model.hidden) == (layers, 64)


@pytest.mark.parametrize(
    ("value", "said", "cut"),
    [
        ("a/b/c.d.gz", "${V#*/}", "b/c.d.gz"),
        ("a/b/c.d.gz", "${V##*/}", "c.d.gz"),
        ("a/b/c.d.gz", "${V%.*}", "a/b/c.d"),
        ("a/b/c.d.gz", "${V%%.*}", "a/b/c"),
        ("a/b/c.d.gz", "${V%/}", "a/b/c.d.gz"),
        ("a/b/c.d.gz", "${V%[gx]z}", "a/b/c.d."),
        ("$DIR/b/c", "${V##*/}", "c"),
        ("$DIR/b/c", "${V#*/}", "\0${V#*/}\0"),
        ("$DIR/b/c", "${V%%/*}", "\0${V%%/*}\0"),
        ("a/b", "${V#$DIR/}", "\0${V#$DIR/}\0"),
        ("a/b", "${1##*/}", "\0$1\0"),
        ("a/" + "b" * 600, "${V##*/}", "\0${V##*/}\0"),
    ],
)
def test_a_pattern_is_cut_from_a_value_as_bash_cuts_it(value: str, said: str, cut: str) -> None:
    script = Script(Variables({}), Tree("run.sh", None))
    script.follow(f"V={value}\nrun {said}\n")
    assert script.commands == [("run", cut)]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("A=(x y z)", ["0,1,2", "3"]),
        ("A=()", ["", "0"]),
        ("declare -A A=([k]=x [l]=y)", ["k,l", "2"]),
        ("A=(x $1)", ["\0${!A[@]}\0", "\0${#A[@]}\0"]),
    ],
)
def test_the_keys_of_a_list_are_its_numbers(made: str, said: list[str]) -> None:
    script = Script(Variables({}), Tree("run.sh", None))
    script.follow(f'{made}\nK="${{!A[@]}}" N=${{#A[@]}}\n')
    assert [str(script.variables.values["K"]).replace(" ", ","), script.variables.values["N"]] == said


@pytest.mark.parametrize(("key", "typed"), [("num-layers", "num-layer"), ("hidden-size", "hiden-size")])
def test_a_size_that_is_misspelt_is_named_beside_the_one_that_is_expected(key: str, typed: str) -> None:
    ours = key.replace("-", "_")
    with pytest.raises(InputError, match=f"{ours}: expected this key; {typed.replace('-', '_')} .*did you mean {ours}"):
        script(PLAIN.replace(f"--{key}", f"--{typed}"))


def test_what_a_script_reads_from_a_value_that_it_does_not_hold_is_not_held(tmp_path: Path) -> None:
    """A list of the devices that may be seen: no number of them, where only running tells."""
    script = (
        "#!/bin/bash\nIFS=',' read -ra ALL <<< \"$CUDA_VISIBLE_DEVICES\"\ntorchrun --nproc_per_node 4 p.py "
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --vocab-size 512 "
        "--max-position-embeddings 128 --micro-batch-size ${#ALL[@]}\n"
    )
    found = read_text(script, where="run.sh")
    assert "b" not in found.workload
    assert [one.key for one in found.unread] == ["micro_batch_size"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("litgpt finetune_lora checkpoints/google/gemma-2b --lora_r 16", {"finetune": "lora", "lora_rank": 16, "b": 1}),
        ("litgpt finetune lora --checkpoint_dir google/gemma-2b", {"finetune": "lora", "lora_rank": 8, "b": 1}),
        ("litgpt finetune \\\n google/gemma-2b --train.micro_batch_size 4", {"lora_rank": 8, "b": 4}),
        ("litgpt finetune_full google/gemma-2b --devices 2", {"finetune": "full", "global_batch": 16, "gpus": 2}),
        ("litgpt pretrain pythia-160m", {"b": 4, "global_batch": 512}),
        ("litgpt generate google/gemma-2b --prompt a", {"phase": "decode"}),
    ],
)
def test_litgpts_commands_name_a_model_by_its_place(command: str, said: dict[str, object]) -> None:
    found = read_text(f"#!/bin/bash\n{command}\n", where="run.sh")
    assert {key: found.workload.get(key) for key in said} == said
    assert found.model.hidden == (768 if "pythia" in command else 2048)


def test_litgpts_other_adapters_are_refused() -> None:
    with pytest.raises(InputError, match="of adapters LoRA alone is priced"):
        read_text("#!/bin/bash\nlitgpt finetune_adapter_v2 google/gemma-2b\n", where="run.sh")
