"""What is looked up: accelerators (all, or all that is known of those named, with its sources), rules, a page."""

from shapes.cost.constants import expected, gemm_constants
from shapes.cost.explain import expected_errors
from shapes.device import Device, list_devices, load_device
from shapes.dtypes import DTYPES
from shapes.frozen import Names, Values, frozen
from sizer.documents import Cell, Document, Section, Table, Text, columns, lines, percent_text
from sizer.printing import Printable
from sizer.rules import Rule


@frozen
class Devices(Printable):
    """Accelerators; ``in_full``: they were named, so all that is known of each is asked for."""

    COMMAND = "devices"

    devices: tuple[Device, ...]
    in_full: bool

    def to_dict(self) -> Values:
        return {"devices": [{**device.to_dict(), "expected_errors": _errors(device)} for device in self.devices]}


def _errors(device: Device) -> list[Values]:
    return [
        {
            "kernel": one.kernel,
            "dtype": one.dtype,
            "class": one.regime,
            "tier": one.expected.tier,
            "error": one.expected.error,
            "error_p95": one.expected.p95,
        }
        for one in expected_errors(device)
    ]


def devices(names: Names = ()) -> Devices:
    """The devices named, or all that are known; InputError for a name that is not."""
    return Devices(tuple(load_device(name) for name in names or list_devices()), bool(names))


LEGEND = (
    "fp16, bf16, fp8: dense peak TFLOPS with fp32 accumulation; -: no fast path. 16-bit products: what their "
    "prices rest on, mean error and 95th percentile of large ones. `sizer devices NAME` shows all."
)


def listed_devices(answer: Devices) -> Document:
    if answer.in_full:
        return Document("sizer devices", [_details(one) for one in answer.devices], answer)
    parts = (Table("", DEVICES, answer.devices), Text(LEGEND))
    return Document("sizer devices", (Section("", parts),), answer)


def _fitted(device: Device) -> str:
    """Tier of the large 16-bit products, whose constants, and how far off they are."""
    dtype = "bf16" if "bf16" in device.peak_flops else "fp16"
    _, origin = gemm_constants(device, dtype)
    off = expected(device, origin, "large", dtype)
    whose = "" if origin.own_device else f" from {origin.device}"
    return f"{off.tier}{whose}, +-{percent_text(off.error)}, 95% within {percent_text(off.p95)}"


DEVICES = columns(
    "devices",
    **{dtype: lambda one, dtype=dtype: one.peak_flops.get(dtype, Cell("-")) for dtype in ("fp16", "bf16", "fp8")},
    fitted=_fitted,
)

#: What predictions are off by: mean error and 95th percentile of each class of kernels, with what they rest on.
ERRORS = columns(
    "devices errors",
    regime=lambda one: one.regime.replace("_", "-"),
    within_percent=lambda error: f"+-{percent_text(error)}",
)


def _details(device: Device) -> Section:
    documents = list(dict.fromkeys(device.sources.values()))
    also = ", ".join(dict.fromkeys((*device.torch_names, *device.aliases))) or "-"
    fitted = ", ".join(dtype for dtype in DTYPES if dtype in device.cost) or "nothing, data sheet only"
    parts = (
        Text(f"{device.title} ({device.name})", "head"),
        *lines((f"also known as: {also}", f"16-bit products: {_fitted(device)}", f"fitted: {fitted}")),
        Table(
            "",
            columns("devices file", source=lambda leaf: _reference(device, documents, leaf[0])),
            _leaves(device),
        ),
        Table(
            "What predictions are off by, against single frameworks where several were timed",
            ERRORS,
            expected_errors(device),
        ),
        *lines(f"[{number}] {document}" for number, document in enumerate(documents, 1)),
    )
    return Section(device.name, parts)


def _leaves(device: Device) -> list[tuple[str, object]]:
    """Dotted field and value of everything in the file but names, sources and fitted constants."""
    skipped = {"name", "title", "aliases", "torch_names", "sources", "cost", "error", "provenance"}

    def walk(prefix: str, value: object) -> list[tuple[str, object]]:
        if isinstance(value, dict):
            return [leaf for key, item in value.items() for leaf in walk(f"{prefix}.{key}", item)]
        if isinstance(value, list):
            return [(prefix, ", ".join(map(str, value)) or "-")]
        if isinstance(value, int | float):
            return [(prefix, Cell(f"{value:.7g}" if value >= 1e9 else f"{value:,}", value))]
        return [(prefix, value)]

    return [leaf for key, value in device.to_dict().items() if key not in skipped for leaf in walk(key, value)]


def _reference(device: Device, documents: list[str], field: str) -> str:
    """The number of the document behind ``field``, or behind the nearest table around it."""
    while field and field not in device.sources:
        field = field.rpartition(".")[0]
    return f"[{documents.index(device.sources[field]) + 1}]" if field else ""


HEAD = """# The rules

{} rules compare a model's dimensions, its split and its workload with what the device's kernels ask for. Each has a
page: why, a bad and a good example, what it suggests, and its source.

Generated by `sizer rules --format markdown > reports/rules.md` from the rules' docstrings.
"""


def listed_rules(rules: tuple[Rule, ...]) -> Document:
    pages = Text("\n".join([HEAD.format(len(rules)), *map(_page, rules)]), "page", only=("markdown",))
    listed = [{"code": rule.code, "slug": rule.slug, "summary": rule.summary} for rule in rules]
    table = Table("", columns("rules"), rules, only=("text", "html"))
    return Document("", (Section("", (pages, table)),), listed, records=lambda: listed)


def page(rule: Rule) -> Document:
    return Document("", (Section("", (Text(_page(rule), "page"),)),))


def _page(rule: Rule) -> str:
    return f"## {rule.code} {rule.slug}\n\n{rule.page}\n"
