"""Any nn.Module or Hugging Face configuration, run without data or weights: recognised, proven, its products listed.

This package's modules import torch; this file does not, so that ``import shapes`` stays cheap.
"""

from typing import TYPE_CHECKING, Any

from shapes.errors import InputError
from shapes.frozen import Items, Named
from shapes.program import install
from shapes.workload import RunPhase, Workload

from .result import Traced

if TYPE_CHECKING:
    from torch import nn

    from .prove import Proof


class MissingExtra(InputError):  # noqa: N818 # named for what it is, as the error it extends
    """torch or transformers is not installed."""


def trace(module: "nn.Module", *args: Any, phase: RunPhase = "train", **kwargs: Any) -> Traced:
    """The products of one call ``module(*args, **kwargs)``, and of its backward pass unless ``phase="infer"``.

    Tensors among the arguments stand for their shape and dtype only. The module keeps its weights and its mode: its
    tensors are swapped for ones on the meta device while it runs. A loop over experts is answered as even routing.
    Raises InputError, with the path of the module that failed, where the forward needs a tensor's values otherwise.
    """
    _require("torch")
    from .inputs import DataAnswers, LoopAnswers
    from .run import on_meta, run, to_meta

    config = getattr(module, "config", None)
    native = config if hasattr(config, "model_type") and type(module).__module__.startswith("transformers.") else None
    answers: DataAnswers = LoopAnswers()
    if native:
        from .config import answers_for

        answers = answers_for(native)
    name = getattr(native, "model_type", type(module).__name__)
    args, kwargs = to_meta(args, kwargs)
    with on_meta(module):
        return run(module, args, kwargs, train=phase == "train", config=native, model_type=name, answers=answers)


def recognise_module(module: "nn.Module", args: Items, kwargs: Named) -> "Proof":
    """Recognise a module from a call ``module(*args, **kwargs)`` with token numbers, and prove it."""
    _require("torch")
    from .prove import prove_module

    return prove_module(module, args, kwargs)


def trace_config(
    config: Any,
    *,
    b: int = 1,
    s: int = 128,
    phase: RunPhase = "train",
    attention: str = "flash",
    dtype: str = "bf16",
    decoder_s: int | None = None,
) -> Traced:
    """The products of one step, b sequences of s tokens, of the transformers model that ``config`` describes.

    ``config``: the content of a config.json, its path, or a PretrainedConfig. ``attention``: "eager" (batched
    products) or a kernel of shapes.kernels (one fused operator). Quantised types are those of the bf16 model
    that they are made of.

    Raises InputError for a model_type transformers does not know, a configuration it rejects, code in the
    configuration, and a model whose forward needs data.
    """
    Workload(b=b, s=s, phase=phase, attention=attention, dtype=dtype)  # type: ignore[arg-type] # it refuses what is none
    _require("torch", "transformers")
    from .config import with_class

    return with_class(
        config,
        lambda built: built.trace(b=b, s=s, train=phase == "train", decoder_s=decoder_s),
        attention=attention,
        dtype=dtype,
    )


def recognise_config(config: Any) -> "Proof":
    """Recognise the transformers class of ``config``, and prove it (shapes.trace.prove)."""

    _require("torch", "transformers")
    from .config import with_class
    from .prove import prove_built

    return with_class(config, prove_built, attention="auto", dtype="bf16")


def longest_sequence(config: Any) -> int | None:
    """The longest sequence that a transformers configuration names, class defaults included; None: it does not."""
    _require("transformers")
    from .config import load_config
    from .dimensions import positions

    return positions(load_config(config)[0])


def _require(*packages: str) -> None:
    from importlib.util import find_spec

    for package in packages:
        if not find_spec(package):
            raise MissingExtra(f"tracing needs {package}, which is not installed: {install('trace')}")
