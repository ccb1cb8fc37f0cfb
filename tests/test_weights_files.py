"""Headers of GGUF and safetensors, written here, against transformers' classes on the meta device."""

from __future__ import annotations

import json
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from shapes.errors import InputError
from sizer.cli import main
from sizer.readers import read_config
from sizer.readers.reading import table
from tests.tiers import every_run

Shapes = dict[str, tuple[int, ...]]
F32, F16, Q4_K, Q6_K = 0, 1, 12, 14


def text(said: str) -> bytes:
    return struct.pack("<Q", len(said.encode())) + said.encode()


def entry(key: str, value: Any) -> bytes:
    """A key of GGUF's metadata: a flag, a number, a text, or a list of numbers or texts."""
    if isinstance(value, list):
        if value and isinstance(value[0], str):
            return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        return text(key) + struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    kind, code = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}[type(value)]
    return text(key) + struct.pack(f"<I{code}", kind, value)


def gguf(metadata: dict[str, Any], tensors: Shapes, types: dict[str, int] | None = None, version: int = 3) -> bytes:
    """A GGUF file of no weights: dimensions are written from the last to the first."""
    listed = (
        text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], (types or {}).get(name, F16), 0)
        for name, shape in tensors.items()
    )
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    return head + b"".join(entry(*one) for one in metadata.items()) + b"".join(listed)


def safetensors(tensors: Shapes, dtypes: dict[str, str] | None = None) -> bytes:
    rows = {
        name: {"dtype": (dtypes or {}).get(name, "BF16"), "shape": list(shape), "data_offsets": [0, 0]}
        for name, shape in tensors.items()
    }
    held = json.dumps({"__metadata__": {"format": "pt"}, **rows}).encode()
    return struct.pack("<Q", len(held)) + held


def a_llama(hidden: int = 64, layers: int = 2, width: int = 96, kv: int = 32, words: int = 320) -> Shapes:
    """transformers' names."""
    found: Shapes = {"model.embed_tokens.weight": (words, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        sizes: Shapes = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (hidden, hidden),
            "self_attn.k_proj.weight": (kv, hidden),
            "self_attn.v_proj.weight": (kv, hidden),
            "self_attn.o_proj.weight": (hidden, hidden),
            "mlp.gate_proj.weight": (width, hidden),
            "mlp.up_proj.weight": (width, hidden),
            "mlp.down_proj.weight": (hidden, width),
        }
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in sizes.items()}
    return {**found, "lm_head.weight": (words, hidden)}


#: Names of transformers' tensors as llama.cpp's conversion has them, where a reader asks for one.
NAMES = (
    (r"^(model|transformer|gpt_neox|backbone)\.(layers|h)\.", "blk."),
    (r"^encoder\.layer\.", "blk."),
    (r"^(backbone|model)\.embeddings\.weight", "token_embd.weight"),
    (r"^.*token_type_embeddings\.", "token_types."),
    (r"^.*(embed_tokens|wte|embed_in)\.", "token_embd."),
    (r"^(lm_head|embed_out)\.", "output."),
    (r"self_attn\.([qkv])_proj", r"attn_\1"),
    (r"self_attn\.(o_proj|dense)", "attn_output"),
    (r"self_attn\.([qk])_(layer)?norm\b", r"attn_\1_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"mlp\.(gate|up|down)_proj", r"ffn_\1"),
    (r"e_score_correction_bias", "exp_probs_b.bias"),
    (r"^.*word_embeddings\.", "token_embd."),
    (r"ln_attn", "attn_norm_2"),
    (r"router\.per_expert_scale", "ffn_down_exps.scale"),
)


def converted(name: str) -> str:
    for theirs, ours in NAMES:
        name = re.sub(theirs, ours, name)
    return name


LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 2048,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": ["a", "b"],
    "tokenizer.ggml.scores": list(range(2000)),
}
LLAMA_TENSORS = {converted(name): shape for name, shape in a_llama().items()}


def written(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def size(tensors: Shapes) -> int:
    total = 0
    for shape in tensors.values():
        count = 1
        for one in shape:
            count *= one
        total += count
    return total


def test_a_gguf_header_gives_the_model_and_its_parameters_are_the_tensors(tmp_path: Path) -> None:
    reading = read_config(written(tmp_path / "m.gguf", gguf(LLAMA, {**LLAMA_TENSORS, "rope_freqs.weight": (8,)})))
    assert reading.format == "gguf"
    assert reading.model.parameters == size(LLAMA_TENSORS)
    assert (reading.model.layers, reading.model.vocab, reading.model.tied) == (2, 320, False)
    assert any("to the last one" in note for note in reading.notes)
    assert not reading.unread


def test_without_an_output_matrix_the_embedding_is_the_head(tmp_path: Path) -> None:
    tied = {name: shape for name, shape in LLAMA_TENSORS.items() if name != "output.weight"}
    model = read_config(written(tmp_path / "m.gguf", gguf(LLAMA, tied))).model
    assert model.tied
    assert model.parameters == size(tied)


def test_each_matrix_has_the_format_that_its_tensor_has(tmp_path: Path) -> None:
    wide = LLAMA | {"llama.embedding_length": 256, "llama.feed_forward_length": 512}
    tensors = {converted(name): shape for name, shape in a_llama(256, width=512, kv=128).items()}
    types = {name: Q4_K for name in tensors if name.startswith("blk.") and "norm" not in name}
    types |= {"blk.1.ffn_down.weight": Q6_K, "output.weight": Q6_K}
    model = read_config(written(tmp_path / "m.gguf", gguf(wide, tensors, types))).model
    held = {one.title: number for one, number in model.formats.items()}
    assert held == {
        kind: sum(size({name: tensors[name]}) for name, one in types.items() if one == number)
        for kind, number in (("Q4_K", Q4_K), ("Q6_K", Q6_K))
    }
    # 144 and 210 bytes for 256 weights (ggml-common.h).
    assert {one.title: one.bits + one.scale_bits / one.block[1] for one in model.formats} == {
        "Q4_K": 4.5,
        "Q6_K": 6.5625,
    }


def test_types_are_as_large_as_ggml_has_them() -> None:
    """Bytes and weights of a block, of ggml's quantised types (gguf-py's GGML_QUANT_SIZES)."""
    published = {
        **{"Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "MXFP4": (32, 17)},
        **{"Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)},
        **{"IQ2_XXS": (256, 66), "IQ2_XS": (256, 74), "IQ2_S": (256, 82), "IQ3_XXS": (256, 98), "IQ3_S": (256, 110)},
        **{"IQ1_S": (256, 50), "IQ1_M": (256, 56), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136)},
        **{"TQ1_0": (256, 54), "TQ2_0": (256, 66)},
    }
    formats = table("weights")["formats"]
    assert set(table("formats")["gguf"]["types"].values()) == set(published)
    for name, (weights, held) in published.items():
        _, bits, block, scale, _ = formats[name]
        assert block == [1, weights]
        assert bits * weights + scale == 8 * held, name


def test_safetensors_prove_the_configuration_next_to_them(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320}
    (tmp_path / "config.json").write_text(json.dumps(config))
    reading = read_config(written(tmp_path / "model.safetensors", safetensors(a_llama())))
    assert reading.format == "huggingface"
    assert reading.model.parameters == size(a_llama())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    with pytest.raises(InputError, match=r"12,288 parameters fewer than these sizes: model\.\* "):
        read_config(tmp_path / "model.safetensors")


def test_what_a_formula_leaves_out_is_named(tmp_path: Path) -> None:
    further = {**a_llama(), "model.layers.2.eh_proj.weight": (64, 128), "model.layers.2.enorm.weight": (64,)}
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320}
    (tmp_path / "config.json").write_text(json.dumps(config))
    reading = read_config(written(tmp_path / "model.safetensors", safetensors(further)))
    assert "its 23 tensors hold these parameters to the last one, model.layers.2.* left out" in reading.notes


@pytest.mark.parametrize(
    ("dtypes", "packing", "left"),
    [
        ({".weight": "U8"}, 2, [".weight_scale"]),
        ({".qweight": "I32"}, 8, [".scales", ".qzeros", ".g_idx"]),
        ({".weight": "F8_E4M3"}, 1, [".weight_scale_inv"]),
    ],
    ids=["fp4", "gptq", "fp8"],
)
def test_packed_weights_count_as_the_weights_that_they_are(
    tmp_path: Path, dtypes: dict[str, str], packing: int, left: list[str]
) -> None:
    ((ending, dtype),) = dtypes.items()
    tensors: Shapes = {}
    for name, shape in a_llama().items():
        if "proj" in name:
            module = name.removesuffix(".weight")
            tensors[module + ending] = (shape[0], shape[1] // packing)
            tensors |= {module + one: (shape[0],) for one in left}
        else:
            tensors[name] = shape
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320}
    (tmp_path / "config.json").write_text(json.dumps(config))
    packed = {name: dtype for name in tensors if "proj" in name and name.endswith(ending)}
    reading = read_config(written(tmp_path / "model.safetensors", safetensors(tensors, packed)))
    assert any("to the last one" in note for note in reading.notes)


def test_shards_are_read_together_and_a_missing_one_is_named(tmp_path: Path) -> None:
    names = sorted(a_llama())
    halves = {"a.safetensors": names[:10], "b.safetensors": names[10:]}
    index = {"metadata": {}, "weight_map": {name: file for file, half in halves.items() for name in half}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for file, half in halves.items():
        (tmp_path / file).write_bytes(safetensors({name: a_llama()[name] for name in half}))
    reading = read_config(tmp_path, settings={"head_dim": 16})
    assert reading.model.parameters == size(a_llama())
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(InputError, match=r"b\.safetensors: cannot be read: No such file"):
        read_config(tmp_path)
    index["weight_map"]["x"] = "../../etc/passwd"  # type: ignore[index]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="weight_map: expected the names of at most"):
        read_config(tmp_path)


def test_without_a_configuration_shapes_say_all_but_the_heads(tmp_path: Path) -> None:
    path = written(tmp_path / "m.safetensors", safetensors(a_llama()))
    with pytest.raises(InputError, match="head_dim: expected this key: shapes do not say"):
        read_config(path)
    reading = read_config(path, settings={"head_dim": 16})
    assert reading.model.parameters == size(a_llama())
    assert reading.model.main.blocks[0].attention.heads == 4
    biased = a_llama() | {f"model.layers.{n}.self_attn.q_proj.bias": (64,) for n in range(2)}
    biased |= {f"model.layers.{n}.self_attn.{kv}_proj.bias": (32,) for n in range(2) for kv in "kv"}
    reading = read_config(written(tmp_path / "m.safetensors", safetensors(biased)), settings={"head_dim": 16})
    assert (reading.model.model_type, reading.model.parameters) == ("qwen2", size(biased))
    normed = a_llama() | {f"model.layers.{n}.self_attn.{one}_norm.weight": (16,) for n in range(2) for one in "qk"}
    reading = read_config(written(tmp_path / "m.safetensors", safetensors(normed)))
    assert (reading.model.model_type, reading.model.parameters) == ("qwen3", size(normed))
    other = {name.replace("gate_proj", "w1"): shape for name, shape in a_llama().items()}
    with pytest.raises(InputError):
        read_config(written(tmp_path / "m.safetensors", safetensors(other)), settings={"head_dim": 16})


MALFORMED = {
    "an empty gguf": (".gguf", b""),
    "another magic": (".gguf", b"GGML" + bytes(64)),
    "the first version": (".gguf", gguf(LLAMA, {}, version=1)),
    "the other byte order": (".gguf", b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + bytes(32)),
    "a cut gguf": (".gguf", gguf(LLAMA, LLAMA_TENSORS)[:-30]),
    "too many keys": (".gguf", b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62)),
    "a text of 2^62": (".gguf", b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 2**62)),
    "a list of 2^62": (".gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 2**62)),
    "a list's text of 2^63": (
        ".gguf",
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + text("k") + struct.pack("<IIQQ", 9, 8, 1, 2**63) + bytes(64),
    ),
    "a list of 2^20 numbers, cut": (
        ".gguf",
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 2**20) + bytes(64),
    ),
    "a type that is none": (".gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<II", 77, 1)),
    "a list of lists": (".gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 2)),
    "no metadata": (".gguf", gguf({}, LLAMA_TENSORS)),
    "no tensors": (".gguf", gguf(LLAMA, {})),
    "another architecture": (".gguf", gguf({**LLAMA, "general.architecture": "clip"}, LLAMA_TENSORS)),
    "layers that differ": (".gguf", gguf({**LLAMA, "llama.attention.head_count_kv": [2, 4]}, LLAMA_TENSORS)),
    "recurrent layers": (".gguf", gguf({**LLAMA, "llama.ssm.state_size": 16}, LLAMA_TENSORS)),
    "a tensor more": (".gguf", gguf(LLAMA, {**LLAMA_TENSORS, "blk.0.a": (3,), "blk.1.b": (5,), "c.d": (7,)})),
    "empty safetensors": (".safetensors", b""),
    "no length": (".safetensors", b"\xff" * 8),
    "no JSON": (".safetensors", struct.pack("<Q", 4) + b"abcd"),
    "a cut header": (".safetensors", safetensors(a_llama())[:200]),
    "a list": (".safetensors", struct.pack("<Q", 2) + b"[]"),
    "no tensor": (".safetensors", struct.pack("<Q", 2) + b"{}"),
    "no shape": (".safetensors", struct.pack("<Q", 15) + b'{"a":{"shape":1'),
    "a text as a shape": (".safetensors", struct.pack("<Q", 19) + b'{"a":{"shape":"4"}}'),
    "a negative size": (".safetensors", safetensors({"a": (-1,)})),
    "a tensor twice": (".safetensors", struct.pack("<Q", 37) + b'{"a":{"shape":[1]},"a":{"shape":[1]}}'),
    "an index of nothing": (".safetensors.index.json", b"{}"),
    "an index of a number": (".safetensors.index.json", b'{"weight_map": 3}'),
}


@pytest.mark.parametrize(("suffix", "data"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_header_is_one_line(
    suffix: str, data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / f"m{suffix}", data)
    with pytest.raises(SystemExit) as ended:
        main(["check", path], prog_name="sizer")
    said = capsys.readouterr().err.rstrip("\n")
    assert ended.value.code == 2
    assert "\n" not in said
    assert "Traceback" not in said


def test_changed_bytes_are_read_or_refused(tmp_path: Path) -> None:
    """Mutants of both headers: each gives a model whose parameters are its tensors', or an InputError."""
    drawn = random.Random(31)
    whole = {".gguf": gguf(LLAMA, LLAMA_TENSORS), ".safetensors": safetensors(a_llama())}
    read = 0
    for turn in range(1200):
        suffix = (".gguf", ".safetensors")[turn % 2]
        data = bytearray(whole[suffix])
        for _ in range(drawn.randint(1, 4)):
            at = drawn.randrange(len(data))
            if drawn.random() < 0.2:
                data[at : at + 8] = drawn.choice((0, 1, 2**31, 2**40, 2**63)).to_bytes(8, "little")
            data[at : at + drawn.randint(0, 3)] = bytes(
                drawn.choice((0, 1, 127, 255, drawn.randrange(256))) for _ in "ab"
            )
        try:
            reading = read_config(
                written(tmp_path / f"m{suffix}", bytes(data)), settings={"head_dim": 16} if turn % 2 else {}
            )
        except InputError:
            continue
        read += 1
        assert any("to the last one" in note for note in reading.notes)
    assert read > 50


SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DEEPSEEK = {
    **{"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    **{"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
}
ERNIE = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1}
DELTA = {
    **{"num_hidden_layers": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "full_attention_interval": 2},
    **{
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 32,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
}
GEMMA = {
    **{"head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
LATENT = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
#: GGUF's architecture, transformers' type, what the small model has beyond SMALL.
CONVERTED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama", {}),
    "llama with biases": ("llama", "llama", {"attention_bias": True, "tie_word_embeddings": True}),
    "mistral": ("llama", "mistral", {"head_dim": 32}),
    "mixtral": ("llama", "mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", "qwen2", {}),
    "qwen2moe": ("qwen2moe", "qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen3": ("qwen3", "qwen3", {"head_dim": 32}),
    "qwen3moe": ("qwen3moe", "qwen3_moe", {**EXPERTS, "head_dim": 32}),
    "gemma": ("gemma", "gemma", {"head_dim": 32}),
    "gemma2": ("gemma2", "gemma2", {"head_dim": 32}),
    "gemma3": ("gemma3", "gemma3_text", {"head_dim": 32}),
    "phi2": ("phi2", "phi", {"num_key_value_heads": 4}),
    "phi3": ("phi3", "phi3", {}),
    "starcoder2": ("starcoder2", "starcoder2", {}),
    "gpt2": ("gpt2", "gpt2", {"n_inner": 96}),
    "gptneox": ("gptneox", "gpt_neox", {}),
    "stablelm": ("stablelm", "stablelm", {}),
    "stablelm, parallel": ("stablelm", "stablelm", {"use_parallel_residual": True, "use_qkv_bias": True}),
    "command-r": ("command-r", "cohere", {}),
    "cohere2": ("cohere2", "cohere2", {}),
    "olmo": ("olmo", "olmo", {}),
    "olmo2": ("olmo2", "olmo2", {}),
    "olmoe": ("olmoe", "olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "granite": ("granite", "granite", {}),
    "granitemoe": ("granitemoe", "granitemoe", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "nemotron": ("nemotron", "nemotron", {}),
    "gpt-oss": ("gpt-oss", "gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32}),
    "deepseek2": ("deepseek2", "deepseek_v3", {**DEEPSEEK, **LATENT, "q_lora_rank": 48, "num_key_value_heads": 4}),
    "deepseek2, lite": ("deepseek2", "deepseek_v2", {**DEEPSEEK, **LATENT, "q_lora_rank": None}),
    "glm4": ("glm4", "glm4", {"head_dim": 16}),
    "glm4moe": ("glm4moe", "glm4_moe", {**DEEPSEEK, "head_dim": 16}),
    "smollm3": ("smollm3", "smollm3", {}),
    "seed_oss": ("seed_oss", "seed_oss", {"head_dim": 32}),
    "arcee": ("arcee", "arcee", {}),
    "exaone4": ("exaone4", "exaone4", {"sliding_window": 64}),
    "ernie4_5": ("ernie4_5", "ernie4_5", {"head_dim": 16}),
    "hunyuan-dense": ("hunyuan-dense", "hunyuan_v1_dense", {"head_dim": 16}),
    "bloom": ("bloom", "bloom", {}),
    "falcon": ("falcon", "falcon", {"multi_query": True, "num_kv_heads": 1, "ffn_hidden_size": 96}),
    "falcon, new": ("falcon", "falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 256}),
    "minimax-m2": ("minimax-m2", "minimax_m2", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32}),
    "llama4": ("llama4", "llama4_text", {"num_local_experts": 4, "intermediate_size_mlp": 160, "head_dim": 16}),
    "dots1": ("dots1", "dots1", {**DEEPSEEK, "head_dim": 16}),
    "ernie4_5-moe": ("ernie4_5-moe", "ernie4_5_moe", ERNIE),
    "lfm2": ("lfm2", "lfm2", {"layer_types": ["conv", "conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "qwen35": ("qwen35", "qwen3_5_text", {**DELTA, "head_dim": 32}),
    "qwen35moe": ("qwen35moe", "qwen3_5_moe_text", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen3next": ("qwen3next", "qwen3_next", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 64}),
    "mistral3": ("mistral3", "mistral", {"head_dim": 32}),
    "qwen2vl": ("qwen2vl", "qwen2", {}),
    "gemma4": ("gemma4", "gemma4_text", {**GEMMA, "attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    "gemma4, experts": (
        "gemma4",
        "gemma4_text",
        {**GEMMA, **EXPERTS, "num_experts_per_tok": None, "top_k_experts": 2, "enable_moe_block": True},
    ),
    "qwen3vl": ("qwen3vl", "qwen3", {"head_dim": 32}),
    "qwen3vlmoe": ("qwen3vlmoe", "qwen3_moe", {**EXPERTS, "head_dim": 32}),
}


def metadata_of(architecture: str, config: Any) -> dict[str, Any]:
    """What llama.cpp's conversion writes of a configuration."""
    each = [config.per_layer_config[layer] for layer in range(config.num_hidden_layers) if architecture == "gemma4"]
    config.allow_global_per_layer_attribute_access = True

    def given(*names: str) -> Any:
        return next((value for name in names if (value := getattr(config, name, None)) is not None), None)

    heads, hidden = given("num_attention_heads"), given("hidden_size")
    kv = given("num_kv_heads", "num_key_value_heads") or heads
    if architecture == "lfm2":
        kv = [kv * (one == "full_attention") for one in config.layer_types]
    values_of_delta = given("linear_num_value_heads")
    kv = [one.num_key_value_heads for one in each] or kv
    latent, dims = given("kv_lora_rank"), [one.head_dim for one in each]
    values = {
        "block_count": given("num_hidden_layers"),
        "embedding_length": hidden,
        "context_length": given("max_position_embeddings"),
        "feed_forward_length": given("intermediate_size_mlp", "ffn_hidden_size", "intermediate_size", "n_inner")
        or 4 * hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": 1 if latent else kv,
        "attention.key_length": latent + config.qk_rope_head_dim if latent else max(dims, default=given("head_dim")),
        "attention.key_length_swa": min(dims, default=None),
        "attention.sliding_window_pattern": [int("sl" in one) for one in config.layer_types] if each else None,
        "attention.value_length": latent or given("head_dim"),
        "attention.key_length_mla": latent and config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": latent and config.v_head_dim,
        "attention.q_lora_rank": given("q_lora_rank"),
        "attention.kv_lora_rank": latent,
        "attention.sliding_window": given("sliding_window"),
        "rope.dimension_count": given("qk_rope_head_dim") or hidden // heads,
        "expert_count": given("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
        "expert_used_count": given("num_experts_per_tok", "moe_k", "top_k_experts"),
        "expert_feed_forward_length": given("moe_intermediate_size", "intermediate_size"),
        "expert_shared_feed_forward_length": given("shared_expert_intermediate_size"),
        "expert_shared_count": given("n_shared_experts", "moe_num_shared_experts"),
        "leading_dense_block_count": given("first_k_dense_replace", "moe_layer_start_index"),
        "interleave_moe_layer_step": given("interleave_moe_layer_step", "moe_layer_interval"),
        "shortconv.l_cache": given("conv_L_cache"),
        "full_attention_interval": 2 if values_of_delta else None,
        "ssm.conv_kernel": given("linear_conv_kernel_dim"),
        "ssm.state_size": given("linear_key_head_dim"),
        "ssm.group_count": given("linear_num_key_heads"),
        "ssm.time_step_rank": values_of_delta,
        "ssm.inner_size": values_of_delta and values_of_delta * config.linear_value_head_dim,
        "use_parallel_residual": given("use_parallel_residual") if architecture == "gptneox" else None,
    }
    own = {f"{architecture}.{key}": value for key, value in values.items() if value is not None}
    return {"general.architecture": architecture, **own}


def built(kind: str, further: dict[str, Any]) -> Any:
    """transformers' class on the meta device."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, "pad_token_id": 0, **further})
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.slow
@pytest.mark.parametrize("case", every_run(CONVERTED, "llama", "qwen3moe", "deepseek2", "gpt2"))
def test_parameters_are_those_of_transformers_class(case: str, tmp_path: Path) -> None:
    architecture, kind, further = CONVERTED[case]
    model = built(kind, further)
    theirs = {name: tuple(one.shape) for name, one in model.named_parameters()}
    path = written(
        tmp_path / "m.gguf",
        gguf(metadata_of(architecture, model.config), {converted(name): shape for name, shape in theirs.items()}),
    )
    reading = read_config(path)
    assert reading.model.parameters == size(theirs)
    assert any(note.endswith("to the last one") for note in reading.notes)


STATES = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16}
SCALAR = {**STATES, "ssm.time_step_rank": 8, "attention.head_count": 4}
_MIXED = {"num_attention_heads": 4, "num_key_value_heads": 2, "mamba_head_dim": 16, "n_groups": 2, "head_dim": 16}
_GRANITE = {
    **{"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "shared_intermediate_size": 80, "layer_types": ["mamba", "attention", "mamba"]},
}
#: GGUF's architecture, transformers' class, what the small model has, what llama.cpp's conversion writes of it.
RECURRENT: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "mamba": ("mamba", "MambaForCausalLM", {"state_size": 16}, {**STATES, "ssm.time_step_rank": 4}),
    "mamba2": (
        "mamba2",
        "Mamba2ForCausalLM",
        {"state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 2},
        {**STATES, "ssm.time_step_rank": 8, "ssm.group_count": 2},
    ),
    "granitehybrid": (
        "granitehybrid",
        "GraniteMoeHybridForCausalLM",
        {**_GRANITE, "num_local_experts": 0, "num_experts_per_tok": 0},
        {**SCALAR, "ssm.group_count": 1, "attention.head_count_kv": [0, 2, 0], "feed_forward_length": 80},
    ),
    "granitehybrid, experts": (
        "granitehybrid",
        "GraniteMoeHybridForCausalLM",
        {**_GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2},
        {
            **{**SCALAR, "ssm.group_count": 1, "attention.head_count_kv": [0, 2, 0], "expert_count": 4},
            **{"expert_used_count": 2, "expert_shared_feed_forward_length": 80},
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        "NemotronHForCausalLM",
        {**_MIXED, "hybrid_override_pattern": "M-*", "mamba_num_heads": 8, "ssm_state_size": 16},
        {
            **{**SCALAR, "ssm.group_count": 2, "attention.head_count_kv": [0, 0, 2]},
            **{"feed_forward_length": [0, 96, 0], "attention.key_length": 16},
        },
    ),
    "bert": ("bert", "BertModel", {"num_attention_heads": 4, "max_position_embeddings": 128}, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RECURRENT)
def test_recurrent_layers_and_an_encoder_without_its_pooler_are_those_of_their_class(case: str, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    architecture, name, further, said = RECURRENT[case]
    kind = getattr(transformers, name)
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 320, "intermediate_size": 96}
    sizes = {key: one for key, one in sizes.items() if "amba" not in name or key != "intermediate_size"}
    with torch.device("meta"):
        built = kind(
            kind.config_class(**sizes, **further), **{"add_pooling_layer": False} if name == "BertModel" else {}
        )
    theirs = {converted(one): tuple(each.shape) for one, each in built.named_parameters()}
    held = {"block_count": 3, "embedding_length": 64, "context_length": 128, "attention.head_count": 4}
    held |= {"feed_forward_length": 96, **said}
    own = {f"{architecture}.{key}": one for key, one in held.items()}
    reading = read_config(written(tmp_path / "m.gguf", gguf({"general.architecture": architecture, **own}, theirs)))
    assert reading.model.parameters == size(theirs)
    assert any(note.endswith("to the last one") for note in reading.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", every_run([one for one in CONVERTED if "gemma4" not in one], "llama", "deepseek2", "gpt-oss")
)
def test_safetensors_of_transformers_class_prove_its_configuration(case: str, tmp_path: Path) -> None:
    """Of Gemma 4 transformers 5.24 saves sizes by layer (per_layer_config), which an unknown key's finding names."""
    _, kind, further = CONVERTED[case]
    model = built(kind, further)
    theirs = {name: tuple(one.shape) for name, one in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        theirs.pop("lm_head.weight", None)
    (tmp_path / "config.json").write_text(model.config.to_json_string(use_diff=False))
    reading = read_config(written(tmp_path / "model.safetensors", safetensors(theirs)))
    assert reading.model.parameters == sum(one.numel() for one in model.parameters())
    assert any("to the last one" in note for note in reading.notes)


def test_a_gguf_file_in_parts_is_read_whole_by_any_of_its_names(tmp_path: Path) -> None:
    names, whole = list(LLAMA_TENSORS), read_config(written(tmp_path / "m.gguf", gguf(LLAMA, LLAMA_TENSORS)))
    parts = [dict.fromkeys(names[one::3]) for one in range(3)]
    for one, part in enumerate(parts):
        tensors = {name: LLAMA_TENSORS[name] for name in part}
        said = LLAMA if one == 0 else {"split.no": one}
        written(tmp_path / f"m-{one + 1:05}-of-00003.gguf", gguf(said, tensors))
    for one in range(3):
        assert read_config(tmp_path / f"m-{one + 1:05}-of-00003.gguf").model == whole.model
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(InputError, match=r"m-00002-of-00003\.gguf"):
        read_config(tmp_path / "m-00001-of-00003.gguf")


def test_a_vocabulary_alone_is_said_to_be_one(tmp_path: Path) -> None:
    path = written(tmp_path / "ggml-vocab.gguf", gguf(LLAMA, {}))
    with pytest.raises(InputError, match=r"token_embd\.weight: expected this tensor: without it the file holds a voc"):
        read_config(path)


def test_a_tower_in_a_file_of_its_own_is_said(tmp_path: Path) -> None:
    said = {key.replace("llama", "qwen2vl"): value for key, value in LLAMA.items()} | {
        "general.architecture": "qwen2vl"
    }
    biases = {f"blk.{layer}.attn_{one}.bias": (64 if one == "q" else 32,) for layer in range(2) for one in "qkv"}
    reading = read_config(written(tmp_path / "m.gguf", gguf(said, LLAMA_TENSORS | biases)))
    assert "language model only: its vision tower is another file's (mmproj)" in reading.notes
    assert reading.model.parameters == size(LLAMA_TENSORS | biases)
