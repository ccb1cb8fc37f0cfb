"""Quantised releases: ``quantization_config``, or the ``hf_quant_config.json`` next to it -> a format for each matrix.

Routers and the gates of shared experts are never quantised, the head only where it is named: modelopt's and
compressed-tensors' defaults. The towers before a text tower keep 16 bits.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache

from shapes.errors import InputError, refuse
from shapes.frozen import Items, Names, Pair, first_of, frozen, replace
from shapes.model import Block, ModelShape, MoeShape, run_lengths
from shapes.model.layers import each_layer
from shapes.recipes import WeightFormat

from .reading import Fields, Values, fits, stated, table

_TABLE = table("weights")
#: A layer's number in a name, a star for it, or one that it begins with ("layers.1*").
_LAYER = r"(?:^|\.)layers\.(\*|\d+\*?)(?:\.(.*))?$"
_NEVER = ("moe.router", "moe.shared_gate")
#: The most rules of a file; each one is compared with each layer.
MOST_NAMES = 3000
#: Expressions that take no more than a moment on a name: few quantifiers, none of a group.
_MOST_REPEATS, _OF_A_GROUP = 4, re.compile(r"\)[*+?{]")


class Patterns:
    """Names, globs and expressions ("re:") of modules: which matrices of which layer they speak of."""

    def __init__(self, names: Collection[str], fields: Fields) -> None:
        self.expressions = [_expression(name[3:], fields) for name in names if name.startswith("re:")]
        self.rules = {_rule(name) for name in names if not name.startswith("re:")}
        self.of_layer = cache(self._of_layer)
        refuse(
            len(self.rules) + len(self.expressions) > MOST_NAMES,
            f"expected at most {MOST_NAMES} different names of modules",
            fields.prefix.rstrip("."),
        )

    def _of_layer(self, layer: int) -> frozenset[str]:
        """The rules for a layer: layers with equal sets are equal."""
        return frozenset(rest for at, rest in self.rules if at == str(layer) or ("*" in at and fits(str(layer), at)))

    def speak_of(self, path: str, layer: int) -> bool:
        return any(_names(one, path) for one in self.of_layer(layer)) or any(
            expression.match(f"{prefix}.layers.{layer}.{path}")
            for expression in self.expressions
            for prefix in ("model", "language_model.model", "model.language_model")
        )


#: Modules of a format of their own; the usual format with them.
NamedFormats = tuple[tuple[Patterns, WeightFormat], ...]
Found = tuple[WeightFormat | None, NamedFormats]


def _rule(name: str) -> tuple[str, str]:
    """The layer's number in a name (or a glob of one), and the rest of the name, which is its part."""
    found = re.search(_LAYER, name)
    layer, rest = found.groups() if found else ("*", name)
    return layer, re.sub(r"experts\.\d+", "experts.*", rest or "*")


def _expression(text: str, fields: Fields) -> re.Pattern[str]:
    slow = len(text) > 200 or len(re.findall(r"[*+?{]", text)) > _MOST_REPEATS or _OF_A_GROUP.search(text)
    with suppress(re.error):
        if not slow:
            return re.compile(text)
    raise InputError("expected a plain expression", fields.prefix.rstrip("."), text)


def _names(said: str, path: str) -> bool:
    """Whether a name or glob, of a module or of its content, matches the matrix ``path`` of a layer."""
    return fits(f".model.layers.0.{path}.", f"*.{said}.*")


@cache
def paths(name: str, sparse: str) -> Names:
    """The names of a layer's matrix in classes; ``sparse``: the model type of one with experts, empty for others."""
    module, _, leaf = name.rpartition(".")
    own = _TABLE["sparse"].get(sparse, _TABLE["sparse"][""]) if sparse else {}
    modules = own.get(module, _TABLE["modules"].get(module, [module]))
    leaves = _TABLE["leaves"].get(leaf, [leaf])
    return tuple(f"{module}.{leaf}" for module in modules for leaf in leaves)


@frozen
class Scheme:
    """How a release is quantised: ``usual`` for every linear layer but those ``kept``, others as they are ``named``."""

    usual: WeightFormat | None
    kept: Patterns
    named: NamedFormats

    def format_of(self, name: str, sparse: str, layer: int) -> WeightFormat | None:
        if name.startswith(_NEVER):
            return None
        for names, found in (*self.named, (self.kept, None)):
            if any(names.speak_of(path, layer) for path in paths(name, sparse)):
                return found
        return self.usual

    def said_of(self, layer: int) -> Items:
        """What the file says about a layer: equal answers are quantised alike; expressions may tell any two apart."""
        every = self.kept, *(names for names, _ in self.named)
        told_apart = any(re.search(r"\\d|\d", one.pattern) for names in every for one in names.expressions)
        return (layer if told_apart else None, *(names.of_layer(layer) for names in every))


def as_released(said: Fields, experts: str, model: ModelShape) -> tuple[ModelShape, Values, Names]:
    """``model`` with its matrices' formats, the workload's fields that the release gives, and notes.

    ``said``: how it is quantised, ``experts`` of that type. InputError for a method that is not known, and for groups
    that do not divide a matrix.
    """
    fields = said.nested("quantization") if "quantization" in said.config else said
    scheme = _scheme(fields, experts)
    if not scheme:
        return model, {}, ()
    stack, blocks = model.main, []
    known = dict[Items, Block]()
    for layer, one in enumerate(each_layer(stack.blocks)):
        alike = one, scheme.said_of(layer)
        known[alike] = known.get(alike) or _quantised(one, model, layer, scheme, fields)
        blocks += [known[alike]]
    head = first_of(one for names, one in scheme.named if any(rest.endswith("lm_head") for _, rest in names.rules))
    stacks = *model.stacks[:-1], replace(stack, blocks=run_lengths(blocks))
    model = replace(model, stacks=stacks, head_weights=None if model.tied else head)
    listed = ", ".join(f"{one.title} ({number / 1e9:.4g} B parameters)" for one, number in model.formats.items())
    cache = _cache(fields.raw("kv_cache_quant_algo", "kv_cache_scheme"))
    told = f"released in {listed}" if listed else f"{fields.prefix}quant_method quantises no matrix of this model"
    return model, stated(kv_dtype=cache) if listed else {}, (told,)


def _quantised(block: Block, model: ModelShape, layer: int, scheme: Scheme, fields: Fields) -> Block:
    hidden, sparse = model.hidden, model.model_type * isinstance(block.mlp, MoeShape)
    formats = []
    linears = block.linears(hidden, fused_qkv=False, fused_gate_up=False)
    for linear in (*linears, *block.expert_linears(hidden, fused=False)):
        found = None if linear.dtype else scheme.format_of(linear.name, sparse, layer)
        if not found:
            continue
        rows, columns = found.block
        refuse(
            rows == 1 and columns and linear.in_features % columns,
            f"expected groups that divide the {linear.in_features} inputs of {linear.name}",
            f"{fields.prefix}group_size",
            columns,
        )
        formats.append((linear.name, found))
    return replace(block, formats=tuple(formats))


def _format(name: str, group: int | None = None) -> WeightFormat:
    title, bits, (rows, columns), scale_bits, recipe = _TABLE["formats"][name]
    columns = group if group and columns and rows == 1 else columns
    return WeightFormat(title, bits, (rows, columns), scale_bits, recipe)


def _scheme(fields: Fields, experts: str) -> Scheme | None:
    """How the release is quantised, by its method; None: not at all."""
    guessed = next((kind for key, kind in _TABLE["guessed"].items() if key in fields.config), "modelopt")
    method = fields.text("quant_method") or guessed
    whole = f"--set {fields.prefix.split('.')[0]}=null sizes the model in 16 bits"
    fields.refuse(method not in METHODS, f"expected one of {', '.join(METHODS)}; {whole}", "quant_method")
    # bitsandbytes quantises linear layers, and packed experts are none. Layers without a format have the usual one.
    also = ["experts"] * (method == "bitsandbytes")
    kept = Patterns([] if "quantized_layers" in fields.config else _kept(fields) + also, fields)
    usual, named = fields.choice(method, METHODS, "quant_method")(fields)
    if experts == "fp4" and method == "fp8" and not named:
        named = _experts_alone(fields, "W4A8_MXFP4_FP8")  # DeepSeek-V4
    return Scheme(usual, kept, named) if usual or named else None


def _kept(fields: Fields) -> list[str]:
    """Names of the modules that are not quantised."""
    dynamic = fields.raw("dynamic") or {}  # gptq's
    fields.refuse(
        not isinstance(dynamic, Mapping) or any(not str(one).startswith("-:") for one in dynamic),
        "expected no layers with settings of their own: they are not read",
        "dynamic",
    )
    return [*fields.strings(*_TABLE["kept"], of="modules' names"), *(f"re:{one[2:]}" for one in dynamic)]


def _experts_alone(fields: Fields, name: str) -> NamedFormats:
    return ((Patterns(["experts"], fields), _format(name)),)


def _fp8(fields: Fields) -> Found:
    name = "FP8" if fields.text("activation_scheme") == "static" else "FP8_DYNAMIC"
    return _format("FP8_PB_WO" if _in_blocks(fields, "weight_block_size") else name), _by_layer(fields)


def _in_blocks(fields: Fields, key: str) -> object:
    """The blocks that share a scale, if any; products of any but 128 x 128 have no price."""
    sizes = fields.raw(key)
    fields.refuse(sizes and sizes != [128, 128], "expected [128, 128]: other blocks have no price here", key)
    return sizes


def _by_groups(fields: Fields) -> Found:
    """awq, gptq and auto-round: a 16-bit scale for each group of a row.

    And a zero point unless the file says that there is none.
    """
    bits, names = fields.integer("bits", "w_bit", default=4), ("group_size", "q_group_size")
    fields.refuse(not 2 <= bits <= 8, "expected 2 to 8 bits", "bits", "w_bit")
    columns = 0 if fields.raw(*names, default=128) in (-1, None) else fields.integer(*names, default=128)
    zero = bits if fields.flag("zero_point", default=True) else 0
    return WeightFormat(f"int{bits} weights", bits, (1, columns), 16 + zero), ()


def _bitsandbytes(fields: Fields) -> Found:
    if fields.flag("load_in_4bit", "_load_in_4bit"):
        return _format("NF4_DOUBLE" if fields.flag("bnb_4bit_use_double_quant") else "NF4"), ()
    return _format("LLM_INT8") if fields.flag("load_in_8bit", "_load_in_8bit") else None, ()


def _modelopt(fields: Fields) -> Found:
    if named := _by_layer(fields):
        return None, named
    if fields.raw("quant_algo") in (None, "MIXED_PRECISION"):
        return _compressed(fields)
    return _algorithm(fields), ()


def _algorithm(fields: Fields) -> WeightFormat:
    """modelopt's format of a whole model or of some layers."""
    name = str(fields.config.get("quant_algo"))
    fields.choice(name, _TABLE["formats"], "quant_algo")
    return _format(name, fields.optional("group_size"))


def _quark(fields: Fields) -> Found:
    """AMD Quark's: element types of weights and activations, of all layers and of those named."""

    def format_of(said: Fields) -> WeightFormat:
        sides = (said.raw(side) and said.nested(side) for side in ("weight", "input_tensors"))
        types = " ".join(side.text("dtype") if side else "none" for side in sides)
        return _format(said.choice(types, _TABLE["quark"], "weight"))

    layers = fields.nested("layer_quant_config")
    named = ((Patterns([name], fields), format_of(layers.nested(name))) for name in layers.config)
    return format_of(fields.nested("global_quant_config")), tuple(named)


def _by_layer(fields: Fields) -> NamedFormats:
    """The formats of modelopt's ``quantized_layers``: name -> algorithm and group."""
    layers, alike = fields.nested("quantized_layers"), defaultdict(list)
    for name, said in layers.config.items():
        own = said if isinstance(said, Mapping) else {}
        alike[str(own.get("quant_algo")), str(own.get("group_size"))].append(name)
    return tuple((Patterns(names, fields), _algorithm(layers.nested(names[0]))) for names in alike.values())


def _cache(said: object) -> str | None:
    """Element type of the KV cache, where it is one that is known."""
    if isinstance(said, Mapping):
        said = f"{'fp' if said.get('type') == 'float' else 'int'}{said.get('num_bits')}"
    found = str(said).lower()
    return found if found in ("fp8", "int8") else None


def _compressed(fields: Fields) -> Found:
    groups = fields.nested("config_groups")
    fields.refuse(not groups.config, "expected some groups of layers", "config_groups")
    sparse = fields.nested("sparsity_config").text("format", default="dense") != "dense"
    fields.refuse(sparse, "expected dense weights: sparse ones have no formula here", "sparsity_config")
    usual, named = None, []
    for name in groups.config:
        group = groups.nested(name)
        found = _of_group(group)
        targets = group.strings("targets", of="classes and names") or ["Linear"]
        usual = found if "Linear" in targets else usual
        if names := [one for one in targets if one != "Linear"]:
            named.append((Patterns(names, fields), found))
    return usual, tuple(named)


def _of_group(group: Fields) -> WeightFormat:
    """The format of compressed-tensors' ``weights``, and what its ``input_activations`` make of the products."""
    weights, alone = group.nested("weights"), not isinstance(group.config.get("input_activations"), Mapping)
    bits, kind = weights.integer("num_bits"), weights.text("type", default="int")
    arithmetic = bits if alone else group.nested("input_activations").integer("num_bits")
    words, recipes = _TABLE["prefixes"], _TABLE["recipes"]
    weights.refuse(
        kind not in words or bits not in (4, 8) or not (alone or f"{kind}{arithmetic}" in recipes),
        "expected 4 or 8 bits, float or int",
        "num_bits",
    )
    strategy, (rows, columns) = _shared(weights)
    scale = 8 if kind == "float" and (bits == 4 or columns == 32) else 16
    zero = 0 if kind == "float" or weights.flag("symmetric", default=True) else bits
    recipe = None if alone else "blockwise" if strategy == "block" else recipes[f"{kind}{arithmetic}"]
    of = f" per {strategy}" if strategy in ("tensor", "channel") else f" in groups of {columns}"
    return WeightFormat(f"{words[kind]}{bits}{of}{' (weights)' * alone}", bits, (rows, columns), scale + zero, recipe)


def _shared(weights: Fields) -> tuple[str, Pair]:
    """compressed-tensors' strategy, and the rows and columns that share a scale."""
    size = weights.optional("group_size")
    strategy = weights.text("strategy", default="group" if size else "tensor")
    rows, columns = weights.choice(strategy, _TABLE["strategies"], "strategy")
    _in_blocks(weights, "block_structure")
    return strategy, (rows, size if size and "group" in strategy else columns)


METHODS = {
    "auto-round": _by_groups,
    "awq": _by_groups,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "fbgemm_fp8": lambda _: (_format("FP8_PER_CHANNEL_PER_TOKEN"), ()),
    "fp8": _fp8,
    "gptq": _by_groups,
    "modelopt": _modelopt,
    "quark": _quark,
    "mxfp4": lambda fields: (None, _experts_alone(fields, "MXFP4")),
}
