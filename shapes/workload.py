"""The work that is run on a model: batch, sequence, precision, phase and the split over devices.

A policy (``Saving``) decides what the layers of a training step save for their backward and what they run again.
shapes.memory keeps on its tape what is saved, shapes.operators lists twice what runs again.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cache, lru_cache, partial
from math import lcm
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_args

from .dtypes import DTYPES, dtype_bytes
from .errors import InputError, one_of, positive_int, refuse
from .frozen import AsJson, Items, Named, Names, Numbers, Triple, Values, frozen, replace
from .recipes import DEFAULT, RECIPES, Recipe, load_recipe
from .toml_table import DATA, content, hold, nearest, ours, spelled

#: torchtitan's selective checkpointing by operator (torchtitan/distributed/activation_checkpoint.py): of a layer the
#: attention core, reduce-scatters and every second product keep what they made, and all else runs again.
ALTERNATE = "every-second-product"
#: Names of whole policies -> the modules that run again; None: all of a layer. "unknown", where nobody said: none,
#: and a step's interval allows for all of it.
POLICIES = {"none": (), "unknown": (), "selective": ("core_attn",), "full": None, ALTERNATE: None}


@cache
def modules() -> Named:
    """Modules that may run again by themselves (shapes/data/saving.toml)."""
    return content(DATA / "saving.toml")


@frozen
class Saving:
    """What a checkpointing policy saves and what it runs again.

    ``again``: modules that run again. ``everything``: whole layers run again, or with ``alternate`` all operators that
    are not kept by name. ``layers``: the policy holds for the first so many of a device's layers (None: all). ``name``:
    the policy without that number.
    """

    again: frozenset[str]
    everything: bool
    alternate: bool
    layers: int | None
    name: str

    @cache  # noqa: B019 - of a few policies, asked for each operator of each of a plan's candidates
    def modules_of(self, name: str, *, mixture: bool) -> list[str]:
        """The modules that run again and hold the operator ``name``; ``mixture``: its layer is a mixture of experts."""
        known = ((one, modules()[one]) for one in self.again)
        meant = [(one, said["operators"]) for one, said in known if said.get("of_mixture", mixture) is mixture]
        return [one for one, patterns in meant if any(fnmatchcase(name, pattern) for pattern in patterns)]

    def drops(self, among: Iterable[str]) -> bool:
        """Whether one of these modules' outputs goes with what is inside."""
        return any("drops_output" in modules()[one] for one in among)


@lru_cache(256)
def saving(policy: str) -> Saving:
    """The policy by name, or of a list of modules (commas); ``:N`` behind it: of N of a device's layers.

    >>> saving("moe_act,layernorm:4").layers
    4
    """
    said = re.fullmatch(r"([^:]*)(?::([1-9][0-9]{0,5}))?", str(policy))
    name, number = said.groups() if said else (":", None)
    words = POLICIES.get(name, tuple(word.strip() for word in name.split(",")))
    if (number and words == ()) or not set(words or ()).issubset(modules()):
        known = f"{', '.join(POLICIES)}, or some of {', '.join(modules())} (commas); :N behind it, of N layers alone"
        raise InputError(f"expected {known}", "checkpointing", policy)
    layers = int(number) if number else None
    return Saving(frozenset(words or ()), words is None, name == ALTERNATE, layers, name)


#: "infer" is one forward pass over whole sequences; "prefill" that of a serving engine, which needs the last position's
#: logits alone; "decode" is one step of generating.
RunPhase = Literal["train", "infer", "prefill", "decode"]
#: Fields of a step that an engine decodes: it multiplies an input by all its matrices at once.
MERGED = {"fused_qkv": True, "fused_gate_up": True}
#: "auto" (once "flash") is what the device's usual stack runs; shapes/kernels holds the others' facts.
AttentionKernel = Literal[
    "auto", "flash", "fa2", "fa3", "fa4", "cudnn", "flashinfer", "sdpa", "mem_efficient", "fused_sdpa", "eager"
]
#: Optimizers whose states are known (in shapes.model); precisions of parameters; whose kernels save activations.
Optimizer = Literal[
    "adamw",
    "adamw-bf16",
    "adamw-fp32",
    "adamw-8bit",
    "adamw-8bit-trainer",
    "adamw-master",
    "sgd",
    "sgd-momentum",
    "lion",
    "adafactor",
    "adafactor-momentum",
    "muon",
]
PrecisionName = Literal["fp32", "mixed", "mixed-16", "amp", "bf16", "fp8", "fp8-weights"]
Implementation = Literal["huggingface", "torch-1", "megatron"]
#: Element types that serving software keeps a KV cache in.
KvDtype = Literal["bf16", "fp16", "fp8", "int8"]
#: Element types that data parallelism sends gradients and parameters in.
SentDtype = Literal["fp32", "bf16", "fp8"]
#: How the cross-entropy runs over the logits: the ways that shapes/data/modules.toml has.
Loss = Literal["fp32", "in-place", "fused"]
LOSSES: Names = get_args(Loss)
#: How a mixture's tokens reach their experts (Megatron-Core's moe_token_dispatcher_type): "flex" (DeepEP, HybridEP)
#: sends a token that several experts of one rank or node want once, "alltoall" (NCCL) every copy.
Dispatcher = Literal["flex", "alltoall"]
#: Transformer Engine's cp_comm_type: keys go round a ring, or tokens are exchanged for a share of the heads.
ContextWay = Literal["p2p", "a2a"]


#: Communication that a trainer may not overlap with anything: groups and parts of them, of shapes.step.stack.
NOT_OVERLAPPED = ("data", "gather", "tensor", "tensor-forward", "expert", "context", "pipeline")

#: Megatron pads each shard's rows of the vocabulary to a multiple of so many (--make-vocab-size-divisible-by).
MEGATRON_ROWS = 128


# Fine-tuning, with peft's names and defaults. LoRA (Hu et al. 2106.09685) adds B A to a frozen matrix W [out, in], A
# [r, in] and B [out, r]; QLoRA (Dettmers et al. 2305.14314) keeps W in 4 bits.
#: full: every weight; lora, qlora: adapters added to a frozen base.
METHODS = ("full", "lora", "qlora")
#: Those that train adapters.
ADAPTED = METHODS[1:]
#: Bytes of a frozen matrix's element (shapes/data/models.toml).
BASES: Numbers = content(DATA / "models.toml")["bases"]


class Option(NamedTuple):
    """How people say a field of ``Workload``: on the command line, as a keyword, in a file.

    ``word``: its other name, for people, as reports and options use it (t: tp). ``most``: the largest value, from 1 on.
    ``within``: the least and the largest value, and what is ``expected`` beyond. ``choices``: the values known.
    ``further``: said by ``--workload``, and no option of its own. ``kind``: its type.
    """

    default: Any
    help: str
    group: str
    word: str | None = None
    short: str | None = None
    most: int | None = None
    within: Items = ()
    expected: str = ""
    choices: Items = ()
    metavar: str | None = None
    further: bool = False
    kind: type = str


@frozen
class Workload(AsJson):
    """One microbatch's work. Symbols as in the literature: b microbatch, s tokens a sequence, t/p/d/e parallel degrees.

    ``cp``: context parallelism, ranks that share a sequence. ``vpp``: chunks of layers a pipeline stage holds
    (interleaved schedule; 1: 1F1B). ``replicas``: of a ZeRO-3 model's d ranks, groups that each hold it whole (HSDP).
    ``fused_qkv`` and ``fused_gate_up`` override how the model class groups its projections (None: as it does).
    ``expert_load`` is the fullest expert's tokens over the mean (1.0: even routing). ``ep_overlap``: one microbatch's
    dispatch overlaps another's computing (Megatron-Core's overlap_moe_expert_parallel_comm).
    ``etp``: ranks that cut an expert (Megatron-Core's expert-tensor-parallel-size; None: see ``expert_t``).
    ``decoder_s`` is the target length of an encoder-decoder (None: s). ``document``: tokens of each document in a
    packed sequence; fused attention stays within one (None: a sequence is one document).
    ``gpus`` devices and ``global_batch`` sequences a step are what was asked for (None: not said); rule SZ120 judges
    whether they agree with the degrees and the microbatch. ``recipe``: one of shapes.recipes, which decides ``dtype``
    (None: products run in the element type).
    ``reduces`` and ``gathers``: element types of the gradients' reduction and of ZeRO's parameter gathers (None: that
    of activations). ``attention_dtype``: that of fused attention (None: 16 bits; Transformer Engine's fp8_dpa).
    ``no_overlap`` (names of ``NOT_OVERLAPPED``, with commas, or "none"): communication that does not overlap, although
    the software stack's does (None: all of it overlaps as in the stack).
    ``compiled``: torch.compile runs the products and pads misaligned ones where that is faster, copies included.
    ``vocab_rows``: each shard's rows of the vocabulary are padded to a multiple of so many.
    ``finetune``, ``lora_rank``, ``lora_dropout``, ``lora_targets`` (with commas; None: peft's usual) and ``base`` say
    how the model is tuned. ``frozen_architecture``: the model is a released one; only the workload is advised on.
    ``checkpointing``: the policy (``Saving``) of what layers run again instead of saving it. ``offload``: the share of
    the optimizer that the host keeps and runs (ZeRO-Offload; Megatron-Core's optimizer_offload_fraction).
    ``offload_params``: the share of ZeRO 3's shards on the host, fetched for each pass (DeepSpeed's offload_param,
    FSDP's cpu_offload). ``offload_saved``: the share of saved tensors that the host keeps from forward to backward.
    ``optimizer`` (None: adamw), ``precision`` (None: by the element type) and ``implementation`` (None:
    ``saved_by``) decide memory, and the first two the bytes that the update moves.

    A decode step: b requests in flight, each with ``context`` keys in its cache (with those of the step's own tokens;
    None: what ``s`` was) and ``speculative`` drafted tokens to verify with its next one. ``s`` is then 1 + speculative,
    the tokens of a request that run. ``kv_dtype``: that of the cache (None: 16 bits, as activations).
    """

    #: A plan comes to the same workloads again and again, and making one takes ten times as long as finding it.
    REMEMBERED = 2**13

    b: int = 4
    s: int = 4096
    dtype: str = "bf16"
    phase: RunPhase = "train"
    t: int = 1
    p: int = 1
    d: int = 1
    e: int = 1
    zero: int = 0
    attention: AttentionKernel = "auto"
    checkpointing: str = "none"
    sequence_parallel: bool = False
    images: str | None = None
    fused_qkv: bool | None = None
    fused_gate_up: bool | None = None
    expert_load: float = 1.0
    decoder_s: int | None = None
    gpus: int | None = None
    global_batch: int | None = None
    cp: int = 1
    vpp: int = 1
    replicas: int = 1
    recipe: str | None = None
    finetune: str | None = None
    lora_rank: int = 8
    lora_dropout: float = 0.0
    lora_targets: str | None = None
    base: str | None = None
    frozen_architecture: bool = False
    context: int | None = None
    kv_dtype: KvDtype | None = None
    speculative: int = 0
    optimizer: Optimizer | None = None
    precision: PrecisionName | None = None
    implementation: Implementation | None = None
    compiled: bool = False
    vocab_rows: int = 1
    no_overlap: str | None = None
    dispatcher: Dispatcher = "flex"
    cp_comm: ContextWay = "p2p"
    ep_overlap: bool = False
    reduces: SentDtype | None = None
    gathers: SentDtype | None = None
    attention_dtype: Literal["fp8"] | None = None
    etp: int | None = None
    offload: float = 0.0
    offload_params: float = 0.0
    offload_saved: float = 0.0
    document: int | None = None

    def __hash__(self) -> int:
        return hash(_VARIED(self))  # of a part: a plan looks workloads up half a million times

    def __post_init__(self) -> None:
        said = zip(OPTIONS, _VALUES(self), _DEFAULTS, strict=True)
        asked = {key: value for key, value, default in said if value is not default}
        for key, value in asked.items():
            one = OPTIONS[key]
            if one.most:
                positive_int(value, key, one.most)
            elif one.within:
                low, high = one.within
                within = isinstance(value, int | one.kind) and low <= value <= high
                refuse(not within, one.expected, key, value)
            elif one.choices:
                one_of(value, one.choices, key)
        saving(self.checkpointing)
        if self.recipe is not None:
            self._take_the_recipes_dtype(self.recipe)
        if not _DEMANDING.isdisjoint(asked):  # a plan makes a hundred thousand workloads
            for key, right, expected in self._demands():
                refuse(not right, expected, key, getattr(self, key))
            for one in content(DATA / "demands.toml")["demand"]:
                key = one["field"]
                refuse(key in asked and self.holds(one["wrong"]), one["expected"], key, getattr(self, key))
        if self.decode:
            self._settle_decoding()

    def _demands(self) -> Iterator[tuple[str, bool, str]]:
        """Fields, whether what they have to be holds, and what that is."""
        overlaps = set(NOT_OVERLAPPED).issuperset(_words(self.no_overlap))
        yield "no_overlap", overlaps, f"expected none, or some of {', '.join(NOT_OVERLAPPED)}"
        yield "images", self.images is None or self.image_sizes is not None, "expected count x height x width"

    def holds(self, conditions: str) -> bool:
        """Whether a table's ``conditions`` on fields do (shapes.toml_table)."""
        return hold(conditions, partial(getattr, self))

    def _settle_decoding(self) -> None:
        """The context that a step decodes in, and the tokens that it runs."""
        context, runs = self.s if self.context is None else self.context, 1 + self.speculative
        refuse(context < runs, f"expected at least the {runs} tokens that a step runs", "context", context)
        object.__setattr__(self, "context", context)
        object.__setattr__(self, "s", runs)

    def _take_the_recipes_dtype(self, name: str) -> None:
        own = load_recipe(name).dtype
        other = self.dtype not in ("bf16", "fp16", "fp8", own)
        refuse(other, f"expected bf16 or {own} with the recipe {name}", "dtype", self.dtype)
        object.__setattr__(self, "dtype", own)

    @property
    def image_sizes(self) -> Triple | None:
        """(images a sequence, height, width in pixels); None without images."""
        found = re.fullmatch("0*([1-9][0-9]{0,4})" + "x0*([1-9][0-9]{0,4})" * 2, str(self.images))
        return tuple(map(int, found.groups())) if found else None  # type: ignore[return-value]  # three of them

    @property
    def low_precision(self) -> Recipe | None:
        """The recipe that products run in: the one named, or that of the element type alone."""
        name = self.recipe or DEFAULT.get(self.dtype)
        return load_recipe(name) if name else None

    @property
    def saving(self) -> Saving:
        """The policy of ``checkpointing``; without a backward pass nothing is saved, and nothing runs again."""
        return saving(self.checkpointing if self.train else "none")

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch: b x s."""
        return self.b * self.s

    def own_tokens(self, s: int) -> int:
        """Tokens of sequences of length ``s`` that one rank holds: context parallelism shares each over cp ranks."""
        return self.b * -(-s // self.cp)

    @property
    def expert_t(self) -> int:
        """Ranks that cut an expert: t, unless e takes more ranks than hold the same weights.

        Then none does, and experts lie whole on tensor-parallel ranks too (Megatron-Core's parallel folding, arXiv
        2504.14960).
        """
        ranks = self.d * self.cp
        return self.etp or (1 if ranks % self.e and ranks * self.t % self.e == 0 else self.t)

    def expert_tokens(self, tokens: int) -> int:
        """How many of the ``tokens`` of t ranks one rank routes: its own, and those of ranks that cut its experts."""
        return -(-tokens * self.expert_t // self.t)

    @property
    def expert_d(self) -> int:
        """Ranks that hold the same experts, those of context parallelism among them: t cp d / (e etp).

        Megatron-LM's expert-data-parallel size. d = 1 with e > 1 means a d that was not given: no two ranks hold the
        same expert, and nothing else is taken to be replicated either.
        """
        return max(1, self.stage_ranks // (self.e * self.expert_t))

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation element: fp8 and int8 recipes keep activations in 16 bits between products."""
        return max(2, dtype_bytes(self.dtype))

    def within_layers(self, **changes: Any) -> "Workload":
        """As a layer knows it: without other stages, steps, and ranks that only share parameters."""
        own, cut = self.t * self.cp, self.expert_t
        return replace(
            self,
            d=lcm(own, self.e * cut) // own,
            etp=cut if cut != self.t else None,
            p=1,
            vpp=1,
            zero=0,
            replicas=1,
            gpus=None,
            global_batch=None,
            **changes,
        )

    def sent_bytes(self, dtype: SentDtype | None) -> int:
        """Bytes of an element that data parallelism sends."""
        return self.activation_bytes if dtype is None else dtype_bytes(dtype)

    def without_context_parallelism(self) -> "Workload":
        """A workload of the same memory: a rank's share of a sequence is a sequence, cp ranks are data-parallel ones.

        ``replicas`` of ZeRO 3 shard over their own ranks alone.
        """
        if self.cp == 1 and self.replicas == 1:
            return self
        ranks = self.d * self.cp
        own = ranks // self.replicas if self.zero == 3 and ranks % self.replicas == 0 else ranks
        decoder_s = None if self.decoder_s is None else -(-self.decoder_s // self.cp)
        return replace(self, s=-(-self.s // self.cp), decoder_s=decoder_s, d=own, cp=1, replicas=1)

    @property
    def accumulation(self) -> int:
        """Microbatches that one optimizer step accumulates: global_batch / (b d).

        Where no global batch was given, one, or as many as a pipeline has stages: the fewest that fill it.
        """
        if self.global_batch is None or self.decode:
            return self.p if self.train else 1
        return max(1, self.global_batch // (self.b * self.d))

    @property
    def exposed(self) -> Names:
        """Communication that there is and that overlaps with nothing: ``no_overlap`` taken apart."""
        data, tensor = self.d * self.cp, self.t
        ranks = dict(zip(NOT_OVERLAPPED, (data, data, tensor, tensor, self.e, self.cp, self.p), strict=True))
        return tuple(name for name in _words(self.no_overlap) if ranks[name] > 1)

    @property
    def train(self) -> bool:
        return self.phase == "train"

    @property
    def adapted(self) -> bool:
        """Whether adapters train and the model's own weights have no gradients."""
        return self.finetune in ADAPTED

    @property
    def model_ranks(self) -> int:
        """Devices that work on the same tokens, each on its share of them or of the model: t p cp."""
        return self.t * self.p * self.cp

    @property
    def stage_ranks(self) -> int:
        """Devices of a pipeline's stage, over which its experts may lie: t cp d."""
        return self.t * self.cp * self.d

    @property
    def spread(self) -> bool:
        """Whether training runs on several devices, as far as the degrees say."""
        return self.train and self.model_ranks * self.d * self.e > 1

    @property
    def saved_by(self) -> Implementation:
        """Whose kernels save activations: those named, or what the split implies.

        Training that t, p or cp split runs Megatron-Core's fused kernels (transformers' modules run no such split), all
        else transformers' modules.
        """
        return self.implementation or ("megatron" if self.train and self.model_ranks > 1 else "huggingface")

    @property
    def regathers(self) -> bool:
        """Whether ZeRO 3 gathers weights and reduces gradients in every microbatch.

        Under a pipeline a rank keeps its stage's weights and gradients whole until the last: torch's schedules
        (distributed/pipelining/stage.py, backward_maybe_with_nosync; torchtitan's fsdp_reshard_after_forward).
        """
        return self.zero == 3 and self.p == 1

    @property
    def decode(self) -> bool:
        return self.phase == "decode"

    @property
    def serving(self) -> bool:
        """Whether a serving engine runs it: no software stack was fitted on one, so operators are added up."""
        return self.phase in ("prefill", "decode")

    def cached(self, s: int, window: int | None) -> int:
        """Keys of one sequence that a layer's cache holds: of ``s`` tokens, or a decode step's context.

        A window needs the keys before the first of the step's tokens only.
        """
        if not self.decode or self.context is None:
            return min(s, window or s)
        return self.context if window is None else min(self.context, window + self.s - 1)

    @property
    def cache_dtype(self) -> str:
        """The KV cache's element type."""
        return self.kv_dtype or ("bf16" if dtype_bytes(self.dtype) == 1 else self.dtype)


def _options() -> Mapping[str, Option]:
    """Field -> its option of shapes/data/options.toml, with the kind and the choices that its annotation has."""
    found, hints = {}, Workload.__annotations__
    defaults = {one.name: one.default for one in fields(Workload)}
    named = {"RECIPES": RECIPES, "METHODS": METHODS, "BASES": BASES, "NOT_OVERLAPPED": NOT_OVERLAPPED}
    listed = {name: ", ".join(known) for name, known in named.items()}
    choices = {"dtype": DTYPES, "recipe": RECIPES, "finetune": METHODS, "base": (*BASES,)}
    for name, row in content(DATA / "options.toml").items():
        parts = get_args(hints[name])
        kind = parts[0] if type(None) in parts else hints[name]
        literal = get_args(kind)
        known = tuple(row.get("choices", ())) or choices.get(name, literal)
        said = {**row, "help": row["help"].format(**listed), "choices": known}
        found[name] = Option(defaults[name], **said, kind=str if literal else kind)
    return found


OPTIONS = _options()
#: Fields that a plan varies.
_VARIED = attrgetter("t", "cp", "p", "e", "d", "b", "s", "zero", "vpp", "checkpointing")
_VALUES, _DEFAULTS = attrgetter(*OPTIONS), [one.default for one in OPTIONS.values()]
#: Fields that are checked for more than a kind and a range.
_DEMANDING = {*content(DATA / "demands.toml")["asking"]}
WORKLOAD_FIELDS = Workload.__match_args__
#: A field -> what people call it, as reports and options do; the others go by their own names.
WORDS = {key: one.word for key, one in OPTIONS.items() if one.word is not None}
_LETTERS = {word: letter for letter, word in WORDS.items()}


def option_of(field: str) -> str:
    """The command-line option of a field: t -> --tp, zero -> --zero, ep_overlap -> --workload ep-overlap."""
    further = field in OPTIONS and OPTIONS[field].further
    return ("--workload " if further else "--") + WORDS.get(field, field).replace("_", "-")


def workload_fields(asked: Named) -> Values:
    """``asked`` under the fields' own names and values, whatever program's words they are in.

    InputError for a name that is none, and for one given in both spellings.

    >>> workload_fields({"tp": 8, "b": 1})
    {'t': 8, 'b': 1}
    """
    found = Values()
    for name, value in asked.items():
        own = ours(name, (*WORKLOAD_FIELDS, *_LETTERS))
        field = _LETTERS.get(own, own)
        if field not in WORKLOAD_FIELDS:
            known = (f"{one} ({WORDS[one]})" if one in WORDS else one for one in sorted(WORKLOAD_FIELDS))
            near = "".join(f"; did you mean {one}?" for one in nearest(name, (*WORDS.values(), *WORKLOAD_FIELDS)))
            raise InputError(f"expected one of {', '.join(known)}{near}", name, value)
        refuse(field in found, f"expected {field} or {WORDS.get(field)}, not both", name, value)
        found[field] = spelled(value, field, OPTIONS[field].choices) if field in OPTIONS else value
    return found


def _words(text: str | None) -> Names:
    return () if text in (None, "none") else tuple(word.strip() for word in str(text).split(","))


def routing_note(expert_load: float) -> str:
    """How tokens are taken to spread over a mixture's experts, as a sentence for a report."""
    if expert_load == 1.0:
        return "routing: even, every expert is as likely to be routed a token"
    return f"routing: uneven, the fullest expert is routed {expert_load:g} x the mean of the tokens"


def check_batch(workload: "Workload") -> None:
    """InputError where devices or a global batch that were said do not agree with the degrees and the microbatch."""
    t, p, b, d = workload.t * workload.cp, workload.p, workload.b, workload.d  # t: ranks that share a microbatch
    gpus, whole = workload.gpus, workload.global_batch
    refuse(gpus is not None and gpus % (t * p), f"expected a multiple of TP x PP = {t} x {p} = {t * p}", "gpus", gpus)
    others = gpus is not None and gpus != t * p * d
    refuse(others, f"expected GPUs / (TP x PP x CP) = {(gpus or 0) // (t * p)}", "d", d)
    refuse(
        whole is not None and whole % (b * d),
        f"expected a multiple of MBS x DP = {b} x {d} = {b * d}",
        "global_batch",
        whole,
    )
