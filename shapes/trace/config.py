"""A Hugging Face configuration -> the transformers class it names, on the meta device -> its operators."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from shapes import program
from shapes.errors import InputError, read_text, refuse, within
from shapes.frozen import Pair, T, Texts, first_of, replace
from shapes.workload import routing_note

from .dimensions import NAMES, named_dimensions, positions, size_in, unknown_type
from .graph import Graph, record
from .guards import TooLong, bounded_modules, check_counts, offline
from .inputs import DataAnswers, example_inputs
from .light import lightly
from .repeats import Cut, layers_cut
from .result import Traced
from .run import masks_where_read, parameters_of, run, said, unless_too_long

#: The largest configuration that is read here.
MOST_BYTES = 2**26
#: Numbers that JSON has no form for.
_NO_JSON = ("Infinity", "-Infinity", "NaN")


@contextmanager
def apart() -> Iterator[None]:
    """Without the network and without remarks."""
    # A remark of transformers on a configuration (a token number past the vocabulary) has no bearing on its shapes.
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.ERROR)
    try:
        with offline(), lightly() if program.ALONE else nullcontext():
            yield
    finally:
        transformers.logging.set_verbosity(before)


#: Lengths of the sequence at which a shape has to be the model: sizes that only one length gives differ at the other.
SHORT, LONG = 64, 96
#: In place of the second where attention runs as products: most windows that a class builds itself show there.
EAGER_LENGTH = 768


@dataclass
class Built:
    """A class of transformers on the meta device, built once and run as often as is asked."""

    module: nn.Module
    settings: Any
    where: str | None = None
    notes: Texts = field(default_factory=list)
    #: Why its products cannot be listed.
    too_long: TooLong | None = None
    #: Values of its buffers, and whether it attends by products, once a pass has shown that they are needed.
    buffers: Mapping[str, Tensor] | None = None
    eager: bool = False

    @property
    def name(self) -> str:
        return str(self.settings.model_type)

    def on_few_layers(self, once: Callable[[Cut | None], T]) -> T:
        """``once`` with as few layers as show all that there are; with all where the class does not run with few."""
        with layers_cut(self.module, self.settings, named_dimensions(self.settings)[0].get("layers")) as cut:
            try:
                return once(cut)
            except InputError as error:
                if not cut or isinstance(error, TooLong):
                    raise
        return once(None)

    def listed(self, *, train: bool, **run: Any) -> Traced:
        """``trace`` of a class that is not understood: without operators, and saying so, where it takes too long."""
        empty = self._whole(Traced((), 0, None, self.name))
        return unless_too_long(lambda: self.trace(train=train, **run), empty, self.too_long)

    def _whole(self, traced: Traced, **more: Any) -> Traced:
        """``traced`` with what is known of the class without running it, and ``more``."""
        sizes, keys = named_dimensions(self.settings)
        return replace(traced, parameters=parameters_of(self.module), dimensions=sizes, keys=keys, **more)

    @apart()
    def trace(self, *, b: int, s: int, train: bool, decoder_s: int | None = None) -> Traced:
        """The operators of b sequences of s tokens."""
        # transformers 4's gpt_oss gives every token to every expert unless it trains; experts have no dropout to wake.
        for one in self.module.modules() if train else ():
            one.training |= type(one).__name__.endswith("Experts")
        traced = self.on_few_layers(lambda cut: self.run(s, b=b, train=train, decoder_s=decoder_s, cut=cut))
        notes = (*traced.notes, *self.notes, *_expert_notes(self.settings))
        return self._whole(traced, active_parameters=active_parameters(self.module, self.settings), notes=notes)

    def run(
        self, s: int, *, b: int = 1, train: bool = True, decoder_s: int | None = None, cut: Cut | None = None
    ) -> Traced:
        """One call; the operators of its layers count as ``cut`` says."""
        inputs = example_inputs(self.module, b=b, s=s, decoder_s=decoder_s)
        return masks_where_read(
            lambda masks: run(
                self.module,
                (),
                inputs,
                answers=answers_for(self.settings, b * s),
                masks=masks,
                train=train,
                model_type=self.name,
                config=self.settings,
                cut=cut,
                where=self.where,
            )
        )

    @property
    def longest(self) -> int:
        """Tokens at which eager attention is recognised."""
        return min(EAGER_LENGTH, positions(self.settings) or EAGER_LENGTH)

    def lengths(self) -> Pair:
        """Tokens of the forward pass that is recognised, and of the pass forward and backward that proves it."""
        if getattr(self.module.config, "_attn_implementation", None) != "eager":
            return min(SHORT, self.longest // 2), min(LONG, self.longest)
        # Layers that look their attention up run fused; the others stay as they are. The long length first: a class
        # may take short sequences in another way, from then on for long ones too.
        attend_with(self.module, "sdpa")
        return self.longest, SHORT

    def graph(self, s: int) -> Graph:
        """The graph of one forward pass."""
        graph = masks_where_read(
            lambda masks: record(
                self.module,
                (),
                example_inputs(self.module, b=1, s=s),
                answers=answers_for(self.settings, s),
                transformers=True,
                masks=masks or self.eager,
                buffers=self.buffers,
                where=self.where,
            )
        )
        read = graph.eager or any(node.kind == "lookup" and node.index is None for node in graph.nodes)
        if self.buffers is not None or not read:
            return graph
        # Eager attention's masks have to be read by value; some classes keep those, and positions, in buffers.
        self.buffers, self.eager = buffers_of(self.module), graph.eager
        if graph.eager:
            attend_with(self.module, "eager")
        return self.graph(s)


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """The values of a transformers model's buffers, from a second one on the CPU whose weights are never touched."""
    made: Any = type(module)
    with torch.device("cpu"), without_initialization():
        try:
            copy = made._from_config(
                deepcopy(module.config), dtype=next(module.parameters()).dtype, attn_implementation="eager"
            )
        except RuntimeError as error:
            raise InputError(f"not enough memory to look at the buffers of {made.__name__}") from error
    return dict(copy.named_buffers())


@apart()
def with_class(config: Any, once: Callable[[Built], T], **options: Any) -> T:
    """``once`` of the class that ``config`` names, as ``build`` makes it with ``options``."""
    settings, where = load_config(config)

    def built(settings: Any, **more: Any) -> Built:
        module, notes = build(settings, where, **options | more)
        return Built(module, settings, where, notes)

    try:
        with within(where):
            return once(built(settings))
    except InputError as error:
        again = first_of(one for one in NAMES["again"] if one["said"] in str(error.__cause__))
        if not again:
            raise
    whole = load_config(config)[0]
    other = built(getattr(whole, again.get("part", ""), whole), **again["options"])
    other.notes.append(again["note"])
    return once(other)


def _expert_notes(settings: Any) -> Iterator[str]:
    if _first(settings, "experts"):
        yield routing_note(1.0)
    if settings.model_type in NAMES["classes"]["every_expert"]:
        yield (
            "transformers' class runs every token through every expert, and so do these operators; without --trace "
            "experts run the tokens routed to them"
        )


@apart()
def load_config(config: Any) -> tuple[Any, str]:
    """(PretrainedConfig, what to call it in an error). A configuration is data: code it names is never run."""
    if isinstance(config, transformers.PretrainedConfig):
        # Building a model writes into its configuration: the caller's is left alone.
        return deepcopy(config), config.model_type
    where = f"<{type(config).__name__}>"
    if isinstance(config, str | Path):
        where = str(config)
        config = _read_json(Path(config), where)
    refuse(not isinstance(config, Mapping), "expected a mapping, the content of a config.json", where=where)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = config.get("model_type")
    if str(model_type) not in CONFIG_MAPPING:
        raise unknown_type(config, where)
    plain = {k: _number(v) for k, v in config.items() if k not in ("auto_map", "quantization_config", "model_type")}
    check_counts(plain, where)
    try:
        return CONFIG_MAPPING[model_type].from_dict(plain), where
    except Exception as error:
        reason, key = f"transformers {transformers.__version__} rejects it: {said(error)}", None
        if plain.get("backbone") is not None and plain.get("backbone_config") is None:
            reason = "expected backbone_config, the backbone's own keys: what a configuration names is never fetched"
            key = "backbone"
        raise InputError(reason, key, plain.get(key or ""), where) from error


def _number(value: Any) -> Any:
    """``value`` with infinities and no-numbers as numbers, which transformers 5 writes {"__float__": "Infinity"}."""
    if isinstance(value, Mapping):
        held = value.get("__float__") if len(value) == 1 else None
        return float(held) if held in _NO_JSON else {key: _number(one) for key, one in value.items()}
    return [_number(one) for one in value] if isinstance(value, list) else value


def _read_json(path: Path, where: str) -> Any:
    text = read_text(path / "config.json" if path.is_dir() else path, MOST_BYTES)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected JSON: {error}", where=where) from error


def model_class(settings: Any, where: str) -> Any:
    """The transformers class that the configuration's ``architectures``, else its type names."""
    for name in settings.architectures or ():
        found = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    translating = getattr(settings, "is_encoder_decoder", False)
    listed = sorted(NAMES["classes"]["auto"], key=lambda name: translating and "Seq2Seq" not in name)
    # A model that compares texts with images is no classifier.
    for auto in ["AutoModel"] if hasattr(settings, "logit_scale_init_value") else listed:
        mapping = getattr(transformers, auto)._model_mapping
        with suppress(ValueError):  # of a class that it names and has not
            held = mapping.get(type(settings), None)
            if held is not None:
                return held[0] if isinstance(held, tuple | list) else held
    found = _own_class(type(settings))
    refuse(not found, "expected a type with a model class", "model_type", settings.model_type, where)
    return found


def _own_class(known: type) -> Any:
    """The class of a model's part that no auto class has: the last of its module, which contains those before."""
    with suppress(ImportError):
        defined = vars(import_module(known.__module__.replace(".configuration_", ".modeling_"))).values()
        for one in reversed(defined):
            if getattr(one, "config_class", None) is known and "forward" in vars(one):
                return one


def build(
    settings: Any, where: str, *, attention: str, dtype: str, experts: str | None = None
) -> tuple[nn.Module, Texts]:
    """The model on the meta device in evaluation mode (no dropout, no layer drop), and what had to be assumed."""
    cls = model_class(settings, where)
    # A composite configuration's language model is built from the part that is its own.
    parts = settings, *vars(settings).values()
    settings = next((part for part in parts if isinstance(part, cls.config_class or object)), settings)
    if experts:
        settings._experts_implementation = experts
    if hasattr(settings, "use_cache"):
        # No step here continues another, and some models make a cache that they then cannot ask for its length.
        settings.use_cache = False
    try:
        with torch.device("meta"), without_initialization(), bounded_modules(where):
            model, notes = _built(cls, settings, attention, dtype)
    except InputError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {said(error)}"[:300]
        raise InputError(
            f"transformers {transformers.__version__} cannot build {cls.__name__}: {reason}", where=where
        ) from error
    # Skipping initialization skips the tying of weights too; what torch.normal made is not on the meta device.
    model.to("meta").tie_weights()
    return model.eval(), notes


def _built(cls: type[Any], settings: Any, attention: str, dtype: str) -> tuple[Any, Texts]:
    made = partial(cls._from_config, settings, dtype=getattr(torch, NAMES["computed"].get(dtype, "bfloat16")))
    try:
        return made(attn_implementation="eager" if attention == "eager" else "sdpa"), []
    except (ValueError, ImportError):
        model = made(attn_implementation="eager")
    if getattr(cls, "_supports_flash_attn", getattr(cls, "_supports_flash_attn_2", False)):
        # Fused by FlashAttention's own kernel alone: its layers look the function up when they run.
        attend_with(model, "sdpa")
        return model, []
    return model, [f"{cls.__name__} has no fused attention: it is traced as batched products"]


def attend_with(model: nn.Module, implementation: str) -> None:
    """``implementation`` for the layers of ``model`` that look theirs up when they run."""
    for module in model.modules():
        settings: Any = getattr(module, "config", None)
        if hasattr(settings, "_attn_implementation_internal"):
            settings._attn_implementation_internal = implementation


@contextmanager
def without_initialization() -> Iterator[None]:
    """Models built inside keep the weights that their memory happens to hold."""
    # Filling weights with random values is most of the time it takes to build a model, and there are no values here.
    try:
        module = import_module("transformers.initialization")
    except ImportError:  # transformers 4
        module = import_module("transformers.modeling_utils")
    with module.no_init_weights():
        yield


def _first(settings: Any, name: str) -> int | None:
    """Routed ``experts`` or ``top_k`` of a configuration, its language part included; None for a dense one."""
    parts = settings, *(v for v in vars(settings).values() if isinstance(v, transformers.PretrainedConfig))
    return first_of(found[0] for part in parts if (found := size_in(part, NAMES["attributes"][name])))


def active_parameters(model: nn.Module, settings: Any) -> int | None:
    """Parameters one token meets: of every expert weight the share top_k / experts. None without known experts.

    An expert weight is a stacked parameter whose first dimension counts the experts, or lies in a ModuleList of them.
    """
    experts, top_k = _first(settings, "experts"), _first(settings, "top_k")
    if not experts or not top_k or experts == 1:
        return None
    routed = {id(one): one.numel() for module in model.modules() for one in _expert_weights(module, experts)}
    return parameters_of(model) - sum(routed.values()) * (experts - top_k) // experts


def _expert_weights(module: nn.Module, experts: int) -> Iterator[nn.Parameter]:
    if isinstance(module, nn.ModuleList) and len(module) == experts:
        yield from module.parameters()
    elif "Expert" in type(module).__name__ or "MLP" in type(module).__name__:
        yield from (p for p in module.parameters(recurse=False) if p.dim() >= 2 and p.shape[0] == experts)


def answers_for(settings: Any, tokens: int | None = None) -> DataAnswers:
    """Answers for a model of transformers; ``tokens`` of one call, where they are known."""
    top_k = _first(settings, "top_k")
    return DataAnswers(_first(settings, "experts"), tokens * top_k if tokens and top_k else None)
