"""Fine-tuning: which weights train, which stay as they are, and the adapters beside them (LoRA, QLoRA).

LoRA (Hu et al. 2106.09685) adds B A to a frozen matrix W [out, in], A [r, in] and B [out, r]; QLoRA (Dettmers et al.
2305.14314) keeps W in 4 bits. Names and defaults are peft's.
"""

from __future__ import annotations

from shapes.errors import InputError

#: full: every weight; lora, qlora: adapters beside a frozen base; frozen-base: the head alone.
METHODS = ("full", "lora", "qlora", "frozen-base")
#: Bytes of a frozen matrix's element. nf4: 4 bits, with double quantisation an 8-bit constant for each 64 and an fp32
#: one for 256 of those (QLoRA, section 3: 0.127 bits a parameter). int8: bitsandbytes' LLM.int8(), beside which each
#: row has an fp32 scale. -16: what is not quantised, embeddings, head and vectors, stays in 16 bits, as TRL
#: and LLaMA-Factory have it; else it is in fp32, and with it the hidden states: peft's prepare_model_for_kbit_training.
BASES: dict[str, float] = {"bf16": 2.0, "int8": 1.0, "nf4": 0.5 + 1 / 64 + 4 / (64 * 256)}
BASES |= {f"{name}-16": BASES[name] for name in ("int8", "nf4")}


def check_choices(method: str | None, base: str | None, targets: str | None, *, train: bool) -> None:
    """InputError for a method, base or combination that there is not."""
    if method is not None and method not in METHODS:
        raise InputError(f"expected one of {', '.join(METHODS)}", key="finetune", value=method)
    if method is not None and not train:
        raise InputError("expected no fine-tuning with a phase of inference", key="finetune", value=method)
    if base is not None and base not in BASES:
        raise InputError(f"expected one of {', '.join(BASES)}", key="base", value=base)
    if base is not None and method not in ("lora", "qlora"):
        raise InputError("expected it with --finetune lora or qlora", key="base", value=base)
    if method == "qlora" and base == "bf16":
        raise InputError(
            "expected nf4 or int8 with qlora, or either with -16 (lora has a bf16 base)", key="base", value=base
        )
    if targets is not None and method not in ("lora", "qlora"):
        raise InputError("expected it with --finetune lora or qlora", key="lora_targets", value=targets)
