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
import time
from collections import Counter
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

TIMEOUT_S = 150
KINDS = {
    "causal LM": "AutoModelForCausalLM",
    "masked LM": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "vision": "AutoModelForImageClassification",
}
_LAYER_KEYS = re.compile(r"^(num_(hidden_|encoder_|decoder_)?layers|n_layers?|n_layer|encoder_layers|decoder_layers)$")
B, S = 2, 64


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


def one(model_type: str, kind: str) -> dict[str, Any]:
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
        started = time.perf_counter()
        step = "default"
        whole = trace_config(cls(), b=B, s=S, architecture=name)
        answer |= {"parameters": whole.parameters, "seconds": time.perf_counter() - started, "opaque": whole.opaque}
        answer["unused"] = whole.unused
        step = "small"
        settings = cls()
        for key, value in small(settings).items():
            try:
                setattr(settings, key, value)
            except Exception:  # a derived key cannot be set: the default depth stays
                continue
        try:
            trace_config(settings, b=B, s=S, architecture=name)
        except Exception:  # lists with an entry a layer no longer fit: the default depth stays
            settings = cls()
        once = trace_config(settings, b=B, s=S, architecture=name, attention="eager")
        step = "every layer"
        every = trace_config(settings, b=B, s=S, architecture=name, attention="eager", repeats=False)
        answer["folded_equals_full"] = matrix_operators(once) == matrix_operators(every)
        answer["flops"] = every.flops
        # torch counts a grouped convolution's weight gradient as if every group saw every channel: `groups` times.
        answer["grouped_convolution_excess"] = sum(
            operator.flops * (operator.batch - 1) * operator.count
            for operator in every.operators
            if operator.kind == "conv" and operator.phase == "wgrad"
        )
        from torch.utils.flop_counter import flop_registry

        # Products that this torch's FlopCounterMode has no formula for.
        known = hasattr(torch.ops.aten, "_grouped_mm") and torch.ops.aten._grouped_mm in flop_registry
        answer["grouped_mm_uncounted"] = 0 if known else sum(
            operator.flops * operator.count for operator in every.operators if operator.kind == "grouped_gemm"
        )  # fmt: skip
        step = "FlopCounterMode"
        answer["small_parameters"] = every.parameters
        answer["counted"], answer["module_parameters"] = counted(settings, name)
    except Exception as error:
        answer["error"] = f"{step}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"[:400]
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


def counted(settings: Any, name: str) -> tuple[int, int]:
    """(what FlopCounterMode counts for the same call, the module's own number of parameters)."""
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    from shapes.trace.config import answers_for
    from shapes.trace.inputs import example_inputs
    from shapes.trace.run import _tensors

    with torch.device("meta"):
        model = getattr(transformers, name)._from_config(settings, attn_implementation="eager", dtype=torch.bfloat16)
    model.to("meta").eval()
    inputs = example_inputs(model, b=B, s=S)
    with torch.device("meta"), answers_for(settings), FlopCounterMode(display=False) as counter:
        leaves = {id(t): t for t in _tensors(model(**inputs)) if t.requires_grad and t.is_floating_point()}
        torch.autograd.backward(list(leaves.values()), [torch.empty_like(t) for t in leaves.values()])
    return counter.get_total_flops(), sum(parameter.numel() for parameter in model.parameters())


def isolated(task: tuple[str, str]) -> dict[str, Any]:
    """:func:`one` in a forked process, so that one type cannot take the others down; torch is imported already."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(one(*task)))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=2, metavar=("TYPE", "KIND"))
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--raw", type=Path, default=Path("reports/trace-coverage.jsonl"))
    parser.add_argument("--output", type=Path, default=Path("reports/trace-coverage.md"))
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
        with ThreadPool(arguments.jobs) as pool, arguments.raw.open("w") as raw:
            for answer in pool.imap(isolated, tasks):
                raw.write(json.dumps(answer) + "\n")
                raw.flush()
    answers = [json.loads(line) for line in arguments.raw.read_text().splitlines()]
    from trace_coverage_report import render  # beside this file

    arguments.output.write_text(render(answers, B, S))


if __name__ == "__main__":
    main()
