"""GPT-NeoX YAML: dashes and underscores both occur, and a gated MLP is cut to two thirds, as transformer.py does."""

import re

from shapes.errors import shorten
from shapes.frozen import among, replace
from shapes.model import Unread
from shapes.model.resize import dimensions

from . import layouts
from .reading import FORMATS, Config, Fields, Names, Reading, underscored, vocabulary

NAME = "gpt_neox"
normalised = underscored

_TABLE = FORMATS[NAME]


def read(config: Config, where: str) -> Reading:
    """Without vocab_size the named tokenizer's is taken, else GPT-2's, and padded; a note says so."""
    fields = Fields(config)
    # [[["global", "local"], 6]], "all" to the last.
    listed = fields.raw("attention_config")
    kinds = {*re.findall("[a-z_]+", str(listed or ""))}.difference(_TABLE["dense"])
    strange = kinds.intersection(_TABLE["no_attention"])
    fields.refuse(strange, f"has no formula here: {', '.join(strange)} layers", "attention_config")
    vocab, notes = vocabulary(fields, "model_parallel_size", lambda: _tokenizers(fields))
    sizes = {
        **config,
        "vocab_size": vocab,
        "mixed": fields.count("moe_num_experts", default=1) > 1 or None,
        "plain_size": fields.optional("intermediate_size"),
    }
    reading = layouts.read(NAME, sizes, where)
    mlp, held = reading.model.dense_mlp, dimensions(reading.model)
    if mlp and mlp.gated:  # half of two thirds is no key of the file, which holds another number
        del held["d_ff"]
        notes += (f"gated: gate and up share two thirds of the width, as GPT-NeoX builds it: {mlp.width} each",)
    return replace(
        reading,
        keys=among(_TABLE["dimensions"], held),
        longest=fields.optional("seq_length"),
        notes=(*reading.notes, *notes),
        unread=(Unread("attention_config", shorten(listed), f"which keys a query sees ({', '.join(sorted(kinds))})"),)
        if kinds
        else (),
        asked=reading.asked | fields.asked,
    )


def _tokenizers(fields: Fields) -> Names:
    kind, file = fields.text("tokenizer_type", default="GPT2BPETokenizer"), str(fields.raw("vocab_file", default=""))
    # An HFTokenizer without a name is GPT-NeoX-20B's, which Pythia has too.
    return file.rpartition("/")[2], file, kind, "gpt-neox-20b" if kind == "HFTokenizer" else ""
