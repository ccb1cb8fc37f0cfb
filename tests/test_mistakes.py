"""Two hundred mistakes that people make: each is one line that says what to do next, or is understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from shapes.toml_table import others_words
from sizer.cli import main
from sizer.cli.options import say_line, seconds, spellings

G, L = "tests/data/configs/gpt2.json", "tests/data/configs/llama-3.1-8b.json"
FILES = {
    "comma.json": '{"hidden_size": 4096 "num_hidden_layers": 2}',
    "tokenizer.json": '{"tokenizer_class": "LlamaTokenizer", "model_max_length": 4096}',
    "heads.json": '{"model_type": "llama", "hidden_size": 4100, "num_attention_heads": 32}',
    "text.json": '{"model_type": "llama", "hidden_size": "4k"}',
    "type.json": '{"model_type": "lama", "hidden_size": 4096}',
    "notes.txt": "hello",
    "empty.json": "",
    "list.json": "[1, 2, 3]",
    "quoted.json": '{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": "32"}',
    "twice.json": '{"model_type": "llama", "hidden_size": 4096, "hidden_size": 2048}',
    "kv.json": '{"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 7}',
    "bad.yaml": "model:\n  dim: 4096\n bad: [1\n",
    "bad.toml": "[model\ndim = 3",
    "generation_config.json": '{"max_new_tokens": 5, "temperature": 1.0}',
    "folder/README": "no model",
}
#: What was typed -> what the line says to do. A file of FILES is meant by its name.
SAID: list[tuple[str, str]] = [
    ("check", "sizer check"),
    (f"chekc {G}", "Did you mean check?"),
    ("check config.jsn", "--download asks the hub"),
    ("check comma.json", "line 1 column 22"),
    ("check tokenizer.json", "--config-format"),
    ("check notes.txt", "expected a command or a variable that states a model"),
    ("check heads.json", "expected a divisor of hidden_size = 4100, or a head_dim of its own"),
    ("check text.json", "expected an integer between 1 and"),
    ("check type.json", "did you mean llama?"),
    ("check https://huggingface.co/gpt2", "expected a file or a model's name"),
    ("check Qwen/Qwen3-9B", "nearest are"),
    (f"check {G} --device h1000", "nearest: h100-sxm"),
    (f"memory {G} --device 80GB", "nearest: h800, a100-sxm"),
    (f"check {G} --gpu 8", "so many of one: --gpus 8"),
    (f"check {G} --devce b200", "--device"),
    (f"check {L} --set num_layers=40", "did you mean num_hidden_layers?"),
    (f"check {L} --set n_embd=2048", "did you mean hidden_size?"),
    (f"check {L} --set heads=40", "did you mean num_attention_heads?"),
    (f"check {L} --microbatches 8", "use --global-batch N"),
    (f"memory {L} --phase decode --enable-prefix-caching", "-s without the tokens that are cached"),
    (f"plan {L} --phase decode --gpus 4 --speculative 3", "--drafted N with --acceptance SHARE"),
    (f"plan {L} --phase decode --gpus 4 --workload speculative=3", "--drafted N --acceptance SHARE"),
    (f"plan {L} --phase decode --gpus 4 --weights int4", "--dtype fp8"),
    (f"plan {L} --phase decode --gpus 4 --rate 10", "no rate of requests is modelled"),
    (f"mfu {L} --gpus 8 --global-batch 8 --step-time no.log", "no such file"),
    (f"check {G} -s 4096", "at most the model's 1024 positions"),
    (f"check {G} -b 0", "--microbatch = 0: expected an integer between 1"),
    (f"check {G} -b 2.5", "such as 4096 or 4k"),
    (f"check {L} --tp 0", "--tp = 0: expected an integer between 1"),
    (f"check {L} --tp=8x", "such as 4096 or 4k"),
    (f"check {G} --ep 8", "expected 1: the model has no experts"),
    (f"check {G} --dtype int4", "did you mean int8?"),
    (f"check {G} --phase inference", "did you mean infer?"),
    (f"check {G} --phase training", "did you mean train?"),
    (f"check {G} --phase serving", "did you mean decode?"),
    (f"check {G} --stack pytorch", "did you mean pytorch-fsdp-2025?"),
    (f"check {G} --stack megatron", "did you mean megatron-core-te?"),
    (f"check {G} --select SZ999", "`sizer rules` lists them"),
    (f"check {G} --select vocab", "nearest: vocab-multiple"),
    (f"check {G} --fail-on errors", "did you mean error?"),
    (f"check {G} --fail-on sever", "did you mean error?"),
    (f"check {G} --format md", "did you mean markdown?"),
    (f"check {G} --checkpointing true", "did you mean full?"),
    (f"check {G} --zero 4", "expected one of 0, 1, 2, 3"),
    (f"check {G} --optimizer adam", "did you mean adamw?"),
    (f"check {G} --attention flash_attention_2", "did you mean fa2?"),
    (f"check {G} --set vocab_size:50304", "expected KEY=VALUE"),
    (f"check {G} --set vocabsize=50304", "did you mean vocab_size?"),
    (f"check {G} -o no/such/out.txt", "cannot be written"),
    (f"check {G} --device h100-sxm --device b200 --fix", "expected one"),
    (f"check {G} --unsafe-fixes", "expected --fix or --diff with it"),
    (f"memory {G} --weights int4", "expected the phase infer or decode with it"),
    (f"plan {L} --gpus 8 --global-batch 64 --ttft 500ms", "--ttft = 0.5: expected the phase decode with it"),
    ("store", "Missing command: expected one of list, export, import, prune (sizer store --help)"),
    ("store remove", "No such command 'remove': expected one of list, export, import, prune"),
    (f"check {G} --device h100 h200", "--device takes one value: --device h100 --device h200"),
    (f"ops {G} --device h100 H200", "--device takes one value: --device h100 --device H200"),
    (f"check {G} --select SZ101 SZ102", "--select SZ101 --select SZ102"),
    (f"check {G} --set n_embd=768 n_head=12", "--set n_embd=768 --set n_head=12"),
    (f"deploy {L} --engine vllm sglang", "--engine vllm --engine sglang"),
    (f"check {G} --on H100", "expected --ray with it"),
    (f"check {G} --store measured.db", "expected --measure with it"),
    (f"check {G} --predict --time-limit 10s", "expected --measure with it"),
    (f"plan {L} --gpus 8 --global-batch 64 --price 2", "expected --tokens with it"),
    (f"plan {L} --gpus 8 --phase decode --acceptance 0.7", "expected --drafted with it"),
    (f"plan {L} --gpus 8 --phase decode --drafted 3", "expected --acceptance with it"),
    ("bench --dry-run", "expected --suite with it"),
    (f"check {G} --root nope", "Directory 'nope' does not exist"),
    ("bench -m 8 -n 8 -k 8 --out rows", "expected --suite with it"),
    (f"ops {G} --explain qvk", "layers.*.attention.qkv_proj"),
    (f"ops {G} --sort share", "did you mean time?"),
    (f"ops {G} {L}", "sizer diff OLD NEW"),
    (f"memory {G} --gpus 7 --tp 2", "expected a multiple of TP x PP = 2 x 1 = 2"),
    (f"plan {L}", "--gpus 64 and --global-batch 1024"),
    (f"plan {L} --gpus 8 --global-batch 64 --tp 8", "`sizer check CONFIG --tp N` prices a split"),
    (f"plan {L} --gpus 8 --global-batch 64 -b 2", "`sizer check CONFIG -b N`"),
    (f"plan {L} --gpus 1 --global-batch 8 --device t4", "expected at least 7 devices"),
    ("mfu", "CONFIG (or --params 8B) and --gpus 64 and --global-batch 1024 and --step-time 12.7"),
    (f"mfu {L} --step-time fast --gpus 8 --global-batch 64", "expected a time (12.7, 800ms), or the log"),
    (f"mfu {L} --step-time 1ms --gpus 8 --global-batch 64", "look at --gpus, --global-batch"),
    ("mfu --params 8x --gpus 8 --global-batch 64 --step-time 10", "such as 2.7e9 or 2.7B"),
    ("search", "expected a configuration to start from, --h 4096 or --params 8B"),
    ("search --h 4096 --what ffn", "did you mean swiglu?"),
    ("search --h 4096 --what hidden_size", "did you mean model?"),
    ("search --h 4096 --range 100", "expected LOW:HIGH"),
    ("search --h 4096 --tolerance five", "expected a percentage (1%)"),
    ("search --h 4096 --objective speed", "did you mean step-time?"),
    (f"search {G} --what heads --range 7:7", "widen --range or --tolerance"),
    ("search --h 4096 --limit keep", "KEY one of aspect"),
    ("search --h 1024 --infer", "--infer is now --phase infer"),
    (f"search {L} --time-limit soon --measure", "such as 90, 90s, 800ms or 2min"),
    (f"diff {G}", "expected OLD NEW (two files), CONFIG --set KEY=VALUE, or --git REV"),
    (f"diff {G} {L} --budget step=1%", "expected max-step-regression or max-memory"),
    (f"deploy {L} --engine vllm2", "did you mean vllm?"),
    (f"deploy {L} --recipe fp4", "did you mean"),
    ("explain vocab", "vocab-multiple"),
    ("explain", "Missing argument 'RULE': one rule; `sizer rules` lists all"),
    ("memory", "Missing argument 'CONFIG': one configuration"),
    (f"plan {L} --gpus 8 --phase decode --tpot 0ms", "0.5s), above zero"),
    ("rules SZ101", "sizer explain SZ101"),
    (f"bench {G} all", "one of a configuration and `all`"),
    (f"bench --config {G}", "--config is now the CONFIG argument"),
    ("calibrate --seed 3", "--seed is now 0 always"),
    ("store list --store a.db", "sizer store --store FILE list"),
    # Options, values and commands of other programs (Megatron-LM, transformers, vLLM, axolotl, Lightning, DeepSpeed).
    (f"check {G} --baseline nope.json", "nope.json: cannot be read: No such file"),
    (f"check {G} --baseline {L}", "as --write-baseline makes it"),
    (f"check --model {G}", "use the CONFIG argument"),
    ("check --model-name-or-path Qwen/Qwen3-8B", "use the CONFIG argument"),
    (f"check {G} --fp8", "use --dtype fp8"),
    (f"check {G} --json", "use --format json"),
    (f"check {G} --verbose", "use --format json"),
    (f"check {G} -v", "-V: the version"),
    (f"check {G} --no-color", "NO_COLOR=1"),
    (f"check {G} --dry-run", "use --diff"),
    (f"check {G} --strict", "use --fail-on info"),
    (f"check {G} --explain SZ101", "`sizer explain CODE`"),
    (f"check {G} --foo", "(sizer check --help-all)"),
    (f"check {G} --devcie h100", "did you mean --device?"),
    (f"check {G} --gradient-accumulation-steps 8", "microbatch x DP x accumulation steps"),
    (f"check {G} --use-flash-attn", "use --attention fa2"),
    (f"check {G} --recompute-activations", "use --checkpointing selective"),
    (f"check {G} --gradient-checkpointing", "needs a value: Activation checkpointing: none, selective"),
    (f"check {G} --attention ring", "did you mean auto, with --cp N?"),
    (f"check {G} --dtype auto", "left out, the file's is taken"),
    (f"check {G} --phase sft", "with --finetune full or lora"),
    (f"check {G} --max_model_len 8192", "expected the phase decode with it"),
    (f"check {G} --kv-cache-dtype fp8", "expected an inference phase with it"),
    ("--device h100 check x.json", "options follow the command"),
    (f"estimate {G}", "Did you mean memory, or check?"),
    (f"serve {G}", "Did you mean plan --phase decode, or deploy?"),
    (f"lint {G}", "Did you mean check?"),
    (f"check {G} --format html -o tests", "is a directory"),
    ("check - -", "standard input is read once"),
    ("check ~/no-such.json", "no-such.json: cannot be read"),
    ("check nope/*.json", "matches no file"),
    ("check tests/*.json", "matches no file"),
    ("check tests/nothing", "tests/nothing: no such file, and no model"),
    (f"memory {G} --load-in-4bit", "use --finetune qlora"),
    (f"memory {G} --deepspeed zero3", "use --zero 1, 2 or 3"),
    (f"memory {G} --fsdp full_shard", "use --zero 3"),
    (f"memory {G} --vram 24", "`sizer devices` lists their memory"),
    (f"memory {G} --finetune lorra", "did you mean lora?"),
    (f"memory {G} --finetune peft", "did you mean lora?"),
    (f"memory {G} --adapter DoRA", "did you mean lora?"),
    (f"memory {G} --memory-utilization 90 --phase decode", "expected a share, above 0 and up to 1"),
    (f"memory {G} --checkpointing unsloth", "did you mean full?"),
    (f"memory {G} --precision bf16-mixed", "did you mean mixed?"),
    (f"memory {G} --optimizer adamwx", "did you mean adamw?"),
    (f"memory {G} {L}", "one configuration"),
    (f"ops {G} --top 0", "--top"),
    (f"plan {L} --nnodes 4 --global-batch 64", "--nnodes is not an option here: use --gpus N"),
    (f"mfu {L} --grad-accum 4 --step-time 1", "use --global-batch N"),
    (f"mfu {L} --time 1", "--time is --step-time here"),
    (f"mfu {L} --tflops 400", "is what the command answers: give --step-time"),
    (f"plan {L} --gpus 8x4 --global-batch 64", "--gpus"),
    (f"plan {L} {G} --gpus 8 --global-batch 64", "one configuration"),
    (f"plan {L} --gpus 8 --phase decode --engine tgi", "did you mean transformers?"),
    (f"plan {L} --gpus 8 --phase decode --qps 10", "--ttft and --tpot"),
    (f"mfu {L} --tokens-per-second 12000 --gpus 8", "global batch x sequence / tokens a second"),
    (f"mfu {L} --step-time nope.log --gpus 8 --global-batch 8", "or the log of a run"),
    (f"mfu {L} --global-batch-tokens 4M --gpus 8 --step-time 1", "tokens / --sequence"),
    (f"deploy {L} --dtype fp8", "--dtype is --recipe here"),
    (f"deploy {L} --pp 2", "`sizer memory --pp N`"),
    (f"deploy {L} --recipe awq", "did you mean int4?"),
    (f"check {L} --recipe bf16", "did you mean --dtype bf16?"),
    (f"check {L} --hidden-size 4096", "--set hidden_size=N"),
    (f"check {L} --num-experts 64", "--set num_experts=N"),
    (f"memory {L} --lora", "use --finetune lora"),
    (f"memory {L} --zero3", "use --zero 3"),
    (f"check {L} -d h100", "use --device NAME"),
    (f"check {L} --grad-checkpointing", "use --checkpointing full"),
    (f"deploy {L} --gpus 4", "--gpus is --tp here"),
    ("search --params 7", "(7B, 1.5e9)"),
    (f"check {L} --recipe awq", "did you mean --phase decode --weights int4?"),
    (f"plan {L} --gpus 8 --global-batch 64 --recipe fp8", "--recipe is --dtype here"),
    (f"plan {L} --phase decode --gpus 2 --engine llama.cpp", "`sizer deploy` alone knows llama-cpp"),
    ("search 7B", "`sizer search --params 7B`"),
    (f"search {L} --tolerance 0", "widen --range or --tolerance"),
    (f"search {L} --what experts", "llama lacks a mixture of experts"),
    ("search --h 4096 --device", "--device needs a value"),
    (f"diff {G} {L} --budget max-memory=72", "such as 72GiB"),
    (f"diff {G} {L} --budget max-step-regression=5", "such as 1%"),
    ("diff --git HEAD", "not a git repository"),
    ("explain SZ101 SZ102", "one rule"),
    ("devices h100-smx", "nearest: h100-sxm"),
    (f"check {G} --config-format hf", "did you mean huggingface?"),
    (f"check {G} --stack deepspeed", "pytorch-ddp, with --zero"),
    (f"memory {L} --phase decode --weights q4_k_m", "did you mean int4?"),
    (f"memory {G} --loss liger", "did you mean fused?"),
    (f"check {G} --precision 16", "did you mean mixed-16?"),
    (f"check {G} --optimizer adamw-8bits", "did you mean adamw-8bit?"),
    (f"check {G} --workload foo=1", "expected one of attention, attention_dtype, b (microbatch)"),
    ("store ls", "Did you mean 'list'?"),
    ("bench -m 1024", "-n, -k: expected a size"),
    (f"check {G} --fix --unsafe", "did you mean --unsafe-fixes?"),
    (f"memory {L} --quantization awq", "did you mean --phase decode --weights int4?"),
    (f"deploy {L} --recipe awq", "did you mean int4?"),
    # A command that answers for one device, units that have two meanings, options of another command.
    *((f"{one} --device h100 --device b200", "expected one device's name") for one in (f"memory {L}", f"ops {L}")),
    (f"plan {L} --gpus 8 --global-batch 64 --device h100,b200", "`sizer check` takes several"),
    (f"mfu {L} --gpus 8 --global-batch 64 --step-time 9 --device h100,b200", "expected one device's name"),
    (f"deploy {L} --device h100,b200", "expected one device's name"),
    ("search --h 4096 --device h100,b200", "expected one device's name"),
    (f"check {G} --device H100-80GB", "nearest: h100-sxm, h100-pcie"),
    (f"plan {L} --gpus 8 --phase decode --ttft 500", "a time with its unit (500ms, 0.5s)"),
    (f"plan {L} --gpus 8 --phase decode --tpot 30", "a time with its unit"),
    (f"diff {G} {L} --budget max-step-regression=1", "such as 1%"),
    (f"memory {G} -b 1,2,4", "'1,2,4' is not an integer"),
    (f"check {G} --weights int4", "it is of sizer memory"),
    (f"memory {G} --fix", "it is of sizer check"),
    (f"check {G} --top 3", "it is of sizer ops, search, plan"),
    (f"ops {G} --top all", "is not a valid integer (sizer ops"),
    # Sixty drawn on 28 November 2026, evening: misspelt by other programs' names too, files of other kinds, layouts
    # that contradict each other.
    ("check empty.json", "expected a configuration, found an empty file"),
    ("check list.json", "expected an object at the top level, found [1"),
    ("check quoted.json", "num_attention_heads = '32': expected an integer"),
    ("check twice.json", "hidden_size: is given twice here: keep one"),
    ("check kv.json", "num_key_value_heads = 7: expected a divisor of the 32 attention heads"),
    ("check bad.yaml", "expected JSON or YAML: did not find expected key, line 3"),
    ("check bad.toml", "expected TOML: Expected ']'"),
    ("check generation_config.json", "--config-format NAME names one"),
    ("check folder", "expected one of config.json, params.json"),
    (f"check {L} --tp eight", "'eight' is not an integer (such as 4096 or 4k)"),
    (f"check {L} --tensor-paralell 8", "did you mean --tp?"),
    (f"check {L} --pipeline-paralel-size 4", "did you mean --pp?"),
    (f"check {L} --batch_sze 4", "did you mean --microbatch?"),
    (f"check {L} --devices h100", "did you mean --device?"),
    (f"check {L} --quant fp8", "use --recipe fp8 (training)"),
    (f"check {L} --device mi300", "nearest: mi300x"),
    (f"check {L} --set hidden_size=abc", "hidden_size = 'abc': expected an integer"),
    (f"check {L} --set hidden_size", "expected KEY=VALUE"),
    (f"check {L} --fix-only vocab", "nearest: vocab-multiple"),
    (f"check {L} --baseline .", "expected a file, found a directory"),
    (f"check {L} --format png", "expected one of text, json"),
    (f"check {L} --lora-rank 16", "expected it with --finetune lora or qlora"),
    (f"check {L} --experts 8", "--set num_experts=N"),
    (f"check {L} --fsdp", "use --zero 3"),
    (f"check {L} -b -1", "expected an integer between 1"),
    (f"check {L} --workload cp-comm=ring", "expected one of p2p, a2a"),
    (f"check {L} --power-limit 10000", "expected 175 to 700 W"),
    (f"check {L} --nics 4", "expected --nics and --nic-gbps together"),
    (f"check {L} --training nope.yaml", "nope.yaml: cannot be read"),
    (f"check {L} --config-format json", "expected one of huggingface"),
    (f"check {L} --context 8k", "expected the phase decode with it"),
    ("search --h 4k --param 7B", "did you mean --params?"),
    ("search --hidden 0", "expected an integer between 1"),
    ("search --h 4096 --range 1000-2000", "expected LOW:HIGH"),
    ("search --h 4096 --limit step=0", "expected a positive integer"),
    ("search --h 4096 --limit head-dim=abc", "expected integers between commas"),
    ("search --params 7GB", "such as 2.7e9 or 2.7B"),
    (f"search {G} --serving context=8k,microbatch", "expected KEY=VALUE between commas"),
    (f"search {L} --layouts", "expected CONFIG, --what model, --gpus, --global-batch"),
    (f"search {L} --quality 15T", "--what model with it"),
    (f"plan {L} --gpus 8 --batch 64", "`sizer check CONFIG -b N` prices one that is named"),
    (f"plan {L} --gpus 8 --global-batch 64 --tokens 15TB", "such as 2.7e9 or 2.7B"),
    (f"plan {L} --gpus 8 --phase serve", "did you mean decode?"),
    (f"plan {L} --gpus 8 --global-batch 64 --format sarif", "expected one of text, json"),
    (f"memory {L} --zero five", "is not an integer"),
    (f"memory {L} --gradient-checkpoint full", "did you mean --checkpointing?"),
    (f"memory {L} --optimizer adamw8bit", "did you mean adamw-8bit?"),
    (f"memory {L} --explain {G}", "expected what torch.cuda.memory._dump_snapshot writes"),
    (f"mfu {L} --step-time 10", "needs --gpus 64 and --global-batch 1024 too"),
    (f"mfu {L} --step-time=-3 --gpus 8 --global-batch 64", "expected a time (12.7, 800ms)"),
    (f"mfu {L} --step-time notes.txt --gpus 8 --global-batch 64", "expected lines with a step time"),
    (f"ops {L} --sort flop", "did you mean flops?"),
    (f"deploy {L} --tp 8 --ep 3", "expected a divisor or a multiple of tp = 8"),
    (f"deploy {L} --engines vllm", "did you mean --engine?"),
    (f"diff {L} {G} --budget max-step-regression", "expected a percentage, such as 1%"),
    ("bench --suite nope.toml", "nope.toml: cannot be read"),
    ("bench --op conv", "expected one of gemm"),
    ("bench --device cuda --device cpu", "--device: expected one device"),
    ("calibrate --device h100 --device b200", "--device: expected one device"),
    ("store list --device h100 --device b200", "--device: expected one device"),
    ("store import nope.jsonl", "nope.jsonl: cannot be read"),
    ("store import --profile trace.json", "--profile is the trace itself: sizer store import TRACE"),
    (f"memory {L} --snapshot s.pickle", "--snapshot is --explain SNAPSHOT here"),
    ("explain SZ1", "nearest: SZ139"),
]
#: Spellings of other programs, and the same in ours.
UNDERSTOOD = [
    (f"check {G} --batch-size 8 --seq-len 512 --format json", f"check {G} -b 8 -s 512 --format json"),
    (f"check {G} --batchsize=8 --seqlen 512 --format json", f"check {G} -b 8 -s 512 --format json"),
    (f"check {L} --tensor-parallel-size 8 --format json", f"check {L} --tp 8 --format json"),
    (f"check {L} -tp 8 --gpu b200 --format json", f"check {L} --tp 8 --device b200 --format json"),
    (f"check {L} --device h100,b200 --format json", f"check {L} --device h100 --device b200 --format json"),
    (f"check {L} --dtype BF16 --format JSON", f"check {L} --dtype bf16 --format json"),
    (f"check {L} --max-sequence-length 2k --format json", f"check {L} -s 2048 --format json"),
    (f"memory {G} --lora-r 8 --adapter lora", f"memory {G} --lora-rank 8 --finetune lora"),
    (f"check {L} --dtype bfloat16 --format json", f"check {L} --dtype bf16 --format json"),
    (f"check {L} --dtype fp8_e4m3 --format json", f"check {L} --dtype fp8 --format json"),
    (f"check {L} --optimizer adamw_bnb_8bit --format json", f"check {L} --optimizer adamw-8bit --format json"),
    (f"check {L} --recipe fp8-block --format json", f"check {L} --recipe blockwise --format json"),
    (f"check {L} --recipe fp8 --format json", f"check {L} --recipe delayed --format json"),
    (f"deploy {L} --recipe FP8", f"deploy {L} --recipe fp8"),
    (
        f"check {L} --seq 4k --bs 2 --optim adamw --ac full",
        f"check {L} -s 4k -b 2 --optimizer adamw --checkpointing full",
    ),
    (f"deploy {L} --recipe fp8_block", f"deploy {L} --recipe blockwise"),
    (f"deploy {L} --engine vLLM --engine trtllm", f"deploy {L} --engine vllm --engine tensorrt-llm"),
    ("search --hidden-size 4k", "search --h 4096"),
    (
        f"mfu {L} --step-time 9800ms --world-size 8 --global-batch-size 64",
        f"mfu {L} --step-time 9.8 --gpus 8 --global-batch 64",
    ),
    (f"deploy {L} --tensor_parallel_size 8 --recipe blockwise", f"deploy {L} --tp 8 --recipe blockwise"),
]


def run(typed: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, typed.split(), prog_name="sizer", catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def test_there_are_two_hundred() -> None:
    assert len({typed for typed, _ in SAID}) >= 200


@pytest.mark.parametrize("typed", [["check", ""], ["memory", " "], ["diff", "", G]])
def test_an_empty_argument_is_no_folder(typed: list[str]) -> None:
    result = CliRunner().invoke(main, typed, prog_name="sizer", catch_exceptions=False)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "is a variable unset?" in result.stderr


def test_no_file_to_write_is_refused_before_there_is_an_answer() -> None:
    result = CliRunner().invoke(main, ["check", G, "--diff", "--output", ""], prog_name="sizer", catch_exceptions=False)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "--output': expected a file name" in result.stderr


def test_a_tilde_that_a_shell_left_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.json").write_bytes((Path(__file__).parents[1] / G).read_bytes())
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    assert run("check ~/model.json")[0] == 1


def test_a_global_batch_in_tokens_is_asked_about() -> None:
    asked = "a step of 17 G tokens: --global-batch counts sequences"
    assert asked in run(f"plan {G} --gpus 8 -s 1024 --global-batch 16M --top 1")[1]
    assert asked not in run(f"plan {G} --gpus 8 -s 1024 --global-batch 16 --top 1")[1]


@pytest.mark.parametrize(("typed", "said"), SAID, ids=[typed for typed, _ in SAID])
def test_a_mistake_is_one_line_that_says_what_to_do(
    typed: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / G).parent.mkdir(parents=True)
    for config in (G, L):
        (tmp_path / config).write_bytes((Path(__file__).parents[1] / config).read_bytes())
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = run(typed)
    assert (code, stdout, stderr.count("\n")) == (2, "", 1), stderr
    assert said in stderr


@pytest.mark.parametrize(("typed", "ours"), UNDERSTOOD, ids=[typed for typed, _ in UNDERSTOOD])
def test_other_programs_spellings_are_understood(typed: str, ours: str) -> None:
    found, expected = run(typed), run(ours)
    assert found[0] in (0, 1), found
    assert found == expected


def test_a_utilization_under_one_percent_asks_about_the_unit() -> None:
    call = f"mfu {L} --gpus 8 --global-batch 64 --step-time"
    assert "is the time in milliseconds? --step-time 9800ms" in run(f"{call} 9800")[1]
    assert "milliseconds" not in run(f"{call} 9.8")[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12.7", 12.7), ("800ms", 0.8), ("90 s", 90), ("2min", 120), ("1.5h", 5400), ("7us", 7e-6), ("soon", None)],
)
def test_a_time_may_be_said_in_units(text: str, expected: float | None) -> None:
    assert seconds(text) == (None if expected is None else pytest.approx(expected))


def test_every_spelling_leads_to_an_option_that_some_command_has() -> None:
    context = click.Context(main)
    own: dict[str, set[str]] = {}
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        own[name] = {word for one in command.params for word in one.opts}
    every = set().union(*own.values())
    known = {**spellings(), **others_words()}
    for other, ours in known["same"].items():
        assert all(f"--{one.replace('_', '-')}" in every for one in ours), other
    for group in ("means", "values"):
        assert {f"--{name.replace('_', '-')}" for name in known[group]} <= every
    for name, options in known["instead"].items():
        assert not {f"--{one}" for one in options} & own.get(name, set())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["check", "openai-community/gpt2-x"], "openai-community/gpt2-xl"),
        (["check", "a.json", "--device", "b2"], "b200"),
        (["check", "a.json", "--select", "SZ101,SZ132"], "SZ101,SZ132"),
        (["check", "a.json", "--stack", "pytorch-d"], "pytorch-ddp"),
        (["check", "a.json", "--dtype", "bf"], "bf16"),
        (["search", "--what", "sw"], "swiglu"),
        (["deploy", "a.json", "--engine", "vl"], "vllm"),
        (["explain", "vocab"], "vocab-multiple"),
        (["devices", "gauDI2"], "gaudi2"),
    ],
)
def test_names_are_completed(words: list[str], expected: str) -> None:
    *before, typed = words
    found = ShellComplete(main, {}, "sizer", "_SIZER_COMPLETE").get_completions(before, typed)
    assert [one.value for one in found] == [expected]


def test_what_no_name_begins_with_is_completed_as_a_file() -> None:
    (found,) = ShellComplete(main, {}, "sizer", "_SIZER_COMPLETE").get_completions(["check"], "tests/da")
    assert (found.value, found.type) == ("tests/da", "file")


ROOT = Path(__file__).parents[1]
#: Words of an offer that are said for somebody's own, or that end it.
OWN = {"N": "8", "CONFIG": L, "OLD": G, "NEW": L, "COMMAND": "check", "NAME": "h100", "H": "4096"}


def offers() -> list[str]:
    """Each `sizer …` between backquotes that a message, a help text or a page of this repository offers."""
    files = [one for folder in ("sizer", "shapes") for one in (ROOT / folder).rglob("*") if one.suffix in KINDS]
    files += [*ROOT.glob("R*.md"), *ROOT.glob("CON*.md"), *(ROOT / "reports").rglob("*.md")]
    texts = (re.sub(r'"\s+f?"', "", one.read_text("utf-8")) for one in files)  # strings that follow each other
    found = (re.findall(r"`(sizer [^`{]*)`", text.replace("\\n", " ")) for text in texts)
    return sorted({" ".join(offer.replace("...", "").split()) for offered in found for offer in offered})


KINDS = {".py", ".toml", ".json", ".md"}


@pytest.mark.parametrize("offer", offers())
def test_a_command_that_a_message_or_a_page_offers_is_one(offer: str) -> None:
    words = shlex.split(re.split(r" [<>|] ", offer)[0])[1:]
    context = click.Context(main, info_name="sizer")
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = OWN.get(words[0], words[0])
        found = command.get_command(context, name)
        assert found is not None, name
        command, context, words = found, click.Context(found, info_name=name, parent=context), words[1:]
    try:
        command.make_context(context.info_name, [OWN.get(word, word) for word in words], parent=context.parent)
    except click.exceptions.Exit:
        pass  # --help, --version
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        pass  # it is named, not called
    except click.BadOptionUsage as error:
        if error.option_name != words[-1]:  # else it is named, not given
            raise


def test_a_refusal_keeps_to_the_width_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    say_line("--phase = 'train': expected decode with engine, ttft or drafted, train with --global-batch")
    lines = capsys.readouterr().err.replace("\r\x1b[K\x1b[?25h", "").splitlines()
    assert len(lines) == 2
    assert all(len(line) <= 60 for line in lines)
    assert "--global-batch" in lines[1]
