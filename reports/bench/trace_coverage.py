"""Every model type of the installed transformers, traced: how many pass, and the reason of each that does not.

Usage: python reports/bench/trace_coverage.py [--only TYPE ...] [--jobs 2] [--output reports/trace-coverage.md]

Each type with a causal-LM, masked-LM, seq2seq or vision class is built twice on the meta device, from its default
configuration and from one cut to two layers, and traced forward and backward. The small one is also traced without
multiplying identical layers, and torch's FlopCounterMode counts the same call, with eager attention in both.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from opening import with_answer

#: Seconds for one type: zamba's scan is a loop over the tokens in each of its many layers.
TIMEOUT_S = 500
KINDS = {
    "causal LM": "AutoModelForCausalLM",
    "masked LM": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "vision": "AutoModelForImageClassification",
}
_LAYER_KEYS = re.compile(r"^(num_(hidden_|encoder_|decoder_)?layers|n_layers?|n_layer|encoder_layers|decoder_layers)$")
B, S = 2, 64
#: transformers' own default leaves these unset or inconsistent, and the class cannot be built or run from it.
SETTINGS: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")
        }
    },
    "dbrx": {"attn_config": {"rope_theta": 500000.0, "kv_n_heads": 8, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 6, "n_routed_experts": 64, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 6, "moe_intermediate_size": 1408},
    "esm": {"vocab_size": 33, "pad_token_id": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": (["conv", "conv", "full_attention"] * 11)[:32]},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "reformer": {"is_decoder": True},
    "xmod": {"default_language": "en_XX"},
}


def types_by_kind() -> dict[str, list[str]]:
    """Kind -> model types that have such a class."""
    import transformers

    found = {}
    for kind, auto in KINDS.items():
        mapping = getattr(transformers, auto)._model_mapping
        found[kind] = sorted({config.model_type for config in mapping if config.model_type})
    return found


def small(settings: Any) -> dict[str, int]:
    """The layer counts of a default configuration cut to two."""
    return {
        key: 2
        for key, value in vars(settings).items()
        if _LAYER_KEYS.match(key) and isinstance(value, int) and value > 2
    }


def settled(model_type: str, kind: str) -> dict[str, Any]:
    """``one``, in fp32 where the class traces in bf16 and torch's counter cannot run it so."""
    answer = one(model_type, kind)
    mixed = "scalar type" in answer.get("error", "")
    return one(model_type, kind, "fp32") if mixed else answer


def one(model_type: str, kind: str, dtype: str = "bf16") -> dict[str, Any]:
    """Trace ``model_type`` in this process; the figures, or the error and the step it came from."""
    import logging
    import warnings

    import torch
    import transformers

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    from shapes.trace import trace_config

    answer: dict[str, Any] = {"type": model_type, "kind": kind}
    step = "build"
    try:
        cls = transformers.models.auto.configuration_auto.CONFIG_MAPPING[model_type]
        mapping = getattr(transformers, KINDS[kind])._model_mapping
        model_class = mapping[cls]
        name = (model_class[0] if isinstance(model_class, (tuple, list)) else model_class).__name__
        answer["class"] = name
        given = SETTINGS.get(model_type, {})
        answer["settings"] = given
        started = time.process_time()
        step = "default"
        try:
            whole = trace_config(cls(**given, architectures=[name]), b=B, s=S, dtype=dtype)
        except ValueError as error:
            if "dtype" not in str(error) and "scalar type" not in str(error):
                raise
            dtype = "fp32"  # the class mixes types when its weights are bf16
            whole = trace_config(cls(**given, architectures=[name]), b=B, s=S, dtype=dtype)
        answer["dtype"] = dtype
        answer |= {"parameters": whole.parameters, "seconds": time.process_time() - started, "opaque": whole.opaque}
        step = "small"
        settings = cls(**given, architectures=[name])
        for key, value in small(settings).items():
            try:
                setattr(settings, key, value)
            except Exception:  # a derived key cannot be set: the default depth stays
                continue
        try:
            trace_config(settings, b=B, s=S, dtype=dtype)
        except Exception:  # lists with an entry a layer no longer fit: the default depth stays
            settings = cls(**given, architectures=[name])
        once = trace_config(settings, b=B, s=S, attention="eager", dtype=dtype)
        step = "every layer"
        every = every_layer(settings, name, dtype)
        answer["folded_equals_full"] = matrix_operators(once) == matrix_operators(every)
        answer["flops"] = every.flops
        # torch counts a grouped convolution's weight gradient as if every group saw every channel: `groups` times.
        answer["grouped_convolution_excess"] = sum(
            operator.flops * (operator.batch - 1) * operator.count
            for operator in every.operators
            if operator.kind == "conv" and operator.phase == "wgrad"
        )
        # A fused attention's backward pass computes the scores again, 10 b a s s d for the 8 of batched products.
        answer["scores_recomputed"] = sum(
            operator.flops // 5 * operator.count
            for operator in every.operators
            if operator.kind == "attention" and operator.phase == "dgrad"
        )
        from torch.utils.flop_counter import flop_registry

        # Products that this torch's FlopCounterMode has no formula for.
        known = hasattr(torch.ops.aten, "_grouped_mm") and torch.ops.aten._grouped_mm in flop_registry
        answer["grouped_mm_uncounted"] = (
            0
            if known
            else sum(operator.flops * operator.count for operator in every.operators if operator.kind == "grouped_gemm")
        )
        step = "FlopCounterMode"
        answer["small_parameters"] = every.parameters
        answer["counted"], answer["module_parameters"] = counted(settings, name, dtype)
    except Exception as error:
        answer["error"] = f"{step}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"[:400]
    answer["day"] = str(date.today())
    answer["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return answer


def matrix_operators(traced: Any) -> dict[Any, int]:
    """Operators that do arithmetic -> their count."""
    from dataclasses import replace

    found: Counter[Any] = Counter()
    for operator in traced.operators:
        if operator.flops:
            found[replace(operator, count=1)] += operator.count
    return dict(found)


def every_layer(settings: Any, name: str, dtype: str) -> Any:
    """The trace of all layers, where ``trace_config`` runs two of each kind."""
    from shapes.trace.config import with_class

    def once(built: Any) -> Any:
        return built.run(S, b=B)

    return with_class(settings, once, attention="eager", dtype=dtype)


def counted(settings: Any, name: str, dtype: str) -> tuple[int, int]:
    """(what FlopCounterMode counts for the same call, the module's own number of parameters)."""
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    from shapes.trace.config import answers_for
    from shapes.trace.inputs import example_inputs
    from shapes.trace.run import _tensors

    cls = getattr(transformers, name)
    if not isinstance(settings, cls.config_class):  # a composite configuration: its language part
        parts = (part for part in vars(settings).values() if isinstance(part, cls.config_class))
        settings = next(parts, settings)  # else another type's class, which reads the same keys
    settings.use_cache = False  # as the trace runs it
    with torch.device("meta"):
        model = cls._from_config(
            settings, attn_implementation="eager", dtype=torch.bfloat16 if dtype == "bf16" else torch.float32
        )
    model.to("meta").eval()
    inputs = example_inputs(model, b=B, s=S)
    with torch.device("meta"), answers_for(settings, B * S), FlopCounterMode(display=False) as counter:
        leaves = {id(t): t for t in _tensors(model(**inputs)) if t.requires_grad and t.is_floating_point()}
        torch.autograd.backward(list(leaves.values()), [torch.empty_like(t) for t in leaves.values()])
    return counter.get_total_flops(), sum(parameter.numel() for parameter in model.parameters())


def isolated(task: tuple[str, str]) -> dict[str, Any]:
    """:func:`one` in a forked process, so that one type cannot take the others down; torch is imported already."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(settled(*task)))
    process.start()
    sender.close()
    try:
        if not receiver.poll(TIMEOUT_S):
            process.kill()
            return {"type": task[0], "kind": task[1], "error": f"not done after {TIMEOUT_S} s"}
        return dict(receiver.recv())
    except EOFError:
        process.join()
        return {"type": task[0], "kind": task[1], "error": f"process ended with {process.exitcode}"}


def unexplained_flops(answer: dict[str, Any]) -> int:
    """Ours minus FlopCounterMode's, after the differences whose formula is known."""
    less = answer["grouped_mm_uncounted"] + answer.get("scores_recomputed", 0)
    return int(answer["flops"] + answer["grouped_convolution_excess"] - answer["counted"] - less)


def verdict(answer: dict[str, Any]) -> str:
    """ "pass", or what is not as it must be."""
    if "error" in answer:
        return str(answer["error"])
    if answer["small_parameters"] != answer["module_parameters"]:
        return f"parameters: {answer['small_parameters']} traced, {answer['module_parameters']} in the module"
    if difference := unexplained_flops(answer):
        return f"FLOPs differ from FlopCounterMode by {difference:+d} of {answer['flops']}, unexplained"
    return "pass" if answer["folded_equals_full"] else "multiplying identical layers differs from tracing each"


def render(answers: list[dict[str, Any]]) -> str:
    """The report in Markdown."""
    import torch
    import transformers

    lines = [
        "# What the trace covers",
        "",
        f"transformers {transformers.__version__}, torch {torch.__version__}, b {B}, s {S}, forward and backward, made "
        "by `python reports/bench/trace_coverage.py`. A type passes when its default configuration traces, multiplying "
        "identical layers equals tracing each of them, parameters equal the module's own count, and FLOPs equal those "
        "of torch's FlopCounterMode (eager attention in both; two layers where the configuration allows it) but "
        "for the known differences below.",
        "",
        "| class | types | pass | share |",
        "|---|---|---|---|",
    ]
    for kind in KINDS:
        of_kind = [answer for answer in answers if answer["kind"] == kind]
        passing = sum(verdict(answer) == "pass" for answer in of_kind)
        if of_kind:
            lines.append(f"| {kind} | {len(of_kind)} | {passing} | {passing / len(of_kind):.1%} |")
    done = [answer for answer in answers if "error" not in answer]
    longest = max(done, key=lambda answer: float(answer["seconds"]))
    lines += [
        "",
        f"Longest trace of a default configuration: {longest['seconds']:.1f} s of CPU ({longest['type']}); "
        f"largest peak of a process: {max(a['peak_gib'] for a in done):.2f} GiB (both on a shared machine, "
        f"{max(a['day'] for a in done)}).",
        "",
        "## Where FlopCounterMode counts differently",
        "",
        "* A grouped convolution's weight gradient: it counts `groups` times the work, as if every group saw every "
        "channel: 2 g (m n k) g against 2 g (m n k), in "
        f"{sum(bool(a['grouped_convolution_excess']) for a in done)} types.",
        "* `_grouped_mm` has no formula in it: ours is 2 m n k with m all routed rows, in "
        f"{sum(bool(a['grouped_mm_uncounted']) for a in done)} types.",
        "* Fused attention that a class calls whatever is asked for, taken apart on the meta device: its backward pass "
        "computes the scores again in ours, 10 b a s s d for 8 b a s s d, in "
        f"{sum(bool(a.get('scores_recomputed')) for a in done)} types.",
        "* A formula counts what kernels run. Where a class's own recurrence, indexer or residual streams run other "
        "products, `tests/test_flops_of_types.py` derives the difference, and what is left is equal to the digit in "
        "training and in inference. A triangular system that is solved (qwen3_5's delta rule) has no formula in it "
        "either, and of its two gradients one is a product; the first chunk's state is zero and has no gradient.",
        "",
        "## What does not pass",
        "",
        "| class | type | reason |",
        "|---|---|---|",
    ]
    for answer in answers:
        if (reason := verdict(answer)) != "pass":
            reason = reason.replace("|", "\\|").replace("\n", " ")
            lines.append(f"| {answer['kind']} | {answer['type']} | {reason} |")
    changed = [f"{a['type']} ({json.dumps(a['settings'])})" for a in done if a.get("settings")]
    single = sorted({a["type"] for a in done if a.get("dtype") == "fp32"})
    lines += [
        "",
        "## Not from the plain default",
        "",
        "Settings that transformers' own default leaves unset were given to: ",
    ]
    lines += [
        ", ".join(changed) + ".",
        "",
        "Traced in fp32, because the class mixes types in bf16: " + ", ".join(single) + ".",
    ]
    opaque = sorted({name for a in done for name in a["opaque"]})
    lines += ["", "Custom operators met: " + (", ".join(opaque) or "none") + ".", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=2, metavar=("TYPE", "KIND"))
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--raw", type=Path, default=Path(tempfile.gettempdir()) / "trace-coverage.jsonl")
    parser.add_argument("--output", type=Path, default=Path("reports/trace-coverage.md"))
    parser.add_argument("--retry", action="store_true", help="run again only what does not pass in --raw")
    parser.add_argument("--render", action="store_true", help="only write the report again from --raw")
    arguments = parser.parse_args()
    if arguments.one:
        sys.stdout.write(json.dumps(one(*arguments.one)) + "\n")
        return
    if not arguments.render:
        import transformers  # noqa: F401 # once, before forking

        from shapes.trace import config, run  # noqa: F401

        tasks = [(t, kind) for kind, types in types_by_kind().items() if kind in arguments.kinds for t in types]
        if arguments.only:
            tasks = [task for task in tasks if task[0] in arguments.only]
        kept = []
        if arguments.retry:
            kept = [json.loads(line) for line in arguments.raw.read_text().splitlines()]
            kept = [answer for answer in kept if verdict(answer) == "pass"]
            tasks = [task for task in tasks if task not in {(answer["type"], answer["kind"]) for answer in kept}]
        with ThreadPool(arguments.jobs) as pool, arguments.raw.open("w") as raw:
            raw.writelines(json.dumps(answer) + "\n" for answer in kept)
            for answer in pool.imap(isolated, tasks):
                raw.write(json.dumps(answer) + "\n")
                raw.flush()
    answers = [json.loads(line) for line in arguments.raw.read_text().splitlines()]
    arguments.output.write_text(with_answer("trace-coverage", render(answers)))


if __name__ == "__main__":
    main()
