"""nanoGPT: a Python file of assignments (read, never run) or a saved GPTConfig."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from sizer.readers.fields import Fields
from sizer.readers.reading import Reading

NAME = "nanogpt"

KEYS = {"vocab": "vocab_size", "hidden": "n_embd", "layers": "n_layer", "heads": "n_head"}
#: train.py's own defaults, which a file of config/ overrides.
TRAINING = {"batch_size": 12, "bias": False}
#: Names that only train.py has: a file that sets one is laid over its defaults.
TRAINER = (
    "dataset",
    "init_from",
    "out_dir",
    "max_iters",
    "learning_rate",
    "eval_interval",
    "eval_iters",
    "gradient_accumulation_steps",
    "wandb_log",
    "lr_decay_iters",
    "always_save_checkpoint",
    "eval_only",
)
#: from_pretrained's sizes (model.py): layers, heads, hidden; GPT-2's vocabulary as it is, and biases.
PRETRAINED = {
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}
#: Vocabularies that a data set's own meta.pkl holds.
VOCABULARIES = {"shakespeare_char": 65}

#: model.py's GPTConfig: the vocabulary is GPT-2's, padded to a multiple of 64.
DEFAULTS = {"block_size": 1024, "vocab_size": 50304, "n_layer": 12, "n_head": 12, "n_embd": 768, "bias": True}


def matches(config: Mapping[str, Any]) -> bool:
    """n_embd and n_head without Hugging Face's model_type or litgpt's own keys, or train.py's own names."""
    sizes = "n_head" in config and "n_embd" in config and "padded_vocab_size" not in config
    plain = not any(isinstance(config.get(name), Mapping) for name in TRAINER)
    return sizes or (plain and "batch_size" in config and sum(name in config for name in TRAINER) > 1)


def parse_assignments(text: str, where: str) -> dict[str, Any]:
    """``n_layer = 12`` lines of a Python file; what is not a literal is passed over. Nothing is run."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError("expected Python assignments", where=where) from None
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                continue
    return found


def _defaults(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What absent keys are, and what to say of it: train.py's defaults for a file that it runs, else GPTConfig's."""
    if not any(name in config for name in TRAINER):
        return dict(DEFAULTS), ()
    start, data = config.get("init_from", "scratch"), config.get("dataset", "openwebtext")
    if isinstance(start, str) and start in PRETRAINED:
        layers, heads, hidden = PRETRAINED[start]
        sizes = {"n_layer": layers, "n_head": heads, "n_embd": hidden, "vocab_size": 50257, "bias": True}
        return {**DEFAULTS, **TRAINING, **sizes}, (f"the sizes are those of {start} (init_from)",)
    vocab = VOCABULARIES.get(data, DEFAULTS["vocab_size"]) if isinstance(data, str) else DEFAULTS["vocab_size"]
    said = f"absent keys are train.py's: no bias, {vocab:,} tokens"
    return {**DEFAULTS, **TRAINING, "vocab_size": vocab}, (said,)


def read(config: Mapping[str, Any], where: str) -> Reading:
    defaults, notes = _defaults(config)
    fields = Fields(config, where, defaults=defaults)
    for name in ("dataset", "init_from"):
        fields.text(name)
    hidden, heads, layers = fields.integer("n_embd"), fields.integer("n_head"), fields.layers("n_layer")
    if hidden % heads:
        raise fields.error(f"expected a divisor of n_embd = {hidden}", "n_head")
    bias, positions = fields.flag("bias"), fields.integer("block_size")
    dropout = fields.number("dropout", default=0.0)
    attention = AttentionShape(
        heads, heads, hidden // heads, qkv_bias=bias, o_bias=bias, fused_qkv=True, dropout=dropout
    )
    weights = 2 if bias else 1
    block = Block(
        attention, MlpShape(4 * hidden, gated=False, bias=bias), norm_weights=weights, count=layers, dropout=dropout
    )
    stack = Stack("decoder", hidden, (block,), positions=positions, final_norm=weights)
    model = ModelShape("nanogpt", (stack,), vocab=fields.integer("vocab_size"), tied=True, max_positions=positions)
    batch, steps = fields.optional("batch_size"), fields.optional("gradient_accumulation_steps")
    workload = {"b": batch} if batch else {}
    if steps and batch:
        # train.py divides the accumulation by the processes, so that the global batch is as the file says.
        workload["global_batch"] = steps * batch
    return Reading(
        model,
        NAME,
        where,
        keys=KEYS,
        workload=workload,
        config=config,
        asked=frozenset(fields.asked),
        longest=positions,
        notes=notes,
    )
