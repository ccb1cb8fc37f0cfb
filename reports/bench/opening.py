"""A report's opening paragraph: its answer, computed from the tables that the report itself holds.

    python reports/bench/opening.py [reports/PAGE.md ...]    (all of OPENINGS without a word)

Generators call ``with_answer(name, text)`` before they write. A page that is not generated anew gets the same paragraph
by this command, and a test compares them.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPORTS = Path(__file__).parents[1]
MARK = "<!-- the answer, computed from the tables below by reports/bench/opening.py -->"
Row = dict[str, str]


@dataclass(frozen=True)
class Page:
    """A report's text, and its tables by heading and columns."""

    text: str

    def tables(self, *columns: str) -> Iterator[tuple[str, list[Row]]]:
        """(heading, rows) of each table that has these columns; a column by the start of its name is enough."""
        heading = ""
        for block in re.findall(r"(?m)^#+ .*$|(?:^\|.*\n?)+", self.text):
            if block.startswith("#"):
                heading = block.lstrip("# ")
                continue
            names, _, *body = (_cells(line) for line in block.splitlines())
            head = [_own_name(names, at) for at in range(len(names))]
            if all(any(name.startswith(column) for name in head) for column in columns):
                yield heading, [dict(zip(head, cells, strict=False)) for cells in body]

    def table(self, *columns: str) -> list[Row]:
        """The rows of the first such table."""
        return next(self.tables(*columns))[1]

    def found(self, pattern: str) -> tuple[str, ...]:
        """The groups of a pattern's first match in the text."""
        match = re.search(pattern, self.text)
        if match is None:
            raise ValueError(f"the report has no {pattern!r}: mend reports/bench/opening.py")
        return match.groups()


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def _own_name(names: list[str], at: int) -> str:
    """A column's name; of several of one name each goes with the column before it."""
    return names[at] if names.count(names[at]) == 1 else f"{names[at - 1]}: {names[at]}"


def number(cell: str) -> float:
    """The first number of a cell, without its thousands' separators."""
    return float(re.findall(r"[-+]?\d+(?:\.\d+)?", cell.replace(",", ""))[0])


def span(cells: Iterable[str], unit: str = "%") -> str:
    """ "3.5% to 5.1%": the least and the largest of cells that hold a number, as they are written."""
    known = sorted(
        {re.split(r" \(", cell)[0] for cell in cells if re.match(r"[-+]?\d", cell)}, key=lambda c: abs(number(c))
    )
    least, most = known[0].removesuffix(unit), known[-1].removesuffix(unit)
    return f"{least}{unit}" if least == most else f"{least}{unit} to {most}{unit}"


def column(rows: Iterable[Row], name: str) -> list[str]:
    return [cell for row in rows for key, cell in row.items() if key.startswith(name)]


def _none(count: str) -> str:
    return "none" if count == "0" else count


def _accuracy(page: Page) -> str:
    files, peers = page.table("device", "large: median"), page.table("device", "shapes", "this (target)")
    own = set(column(peers, "device"))
    fitted, sheet = ([row for row in files if (row["device"] in own) == one] for one in (True, False))
    return (
        f"On the {len(fitted)} devices with fitted constants, large bf16 products of sizes that no fit has seen are "
        f"{span(column(fitted, 'large:'))} off on average, small ones {span(column(fitted, 'small:'))}. "
        f"On {len(sheet)} devices known by their data sheets alone, large products are "
        f"{span(column(sheet, 'large:'))} off and small "
        f"ones {span(column(sheet, 'small:'))}. On the same shapes nvidia-matmul-heuristics is "
        f"{span(column(peers, 'nvidia'))} off, and two frameworks differ from each other by "
        f"{span(column(peers, 'framework against'))}. Nothing here was measured by this project."
    )


def _attention(page: Page) -> str:
    rows, tables = page.table("kernel", "MAPE, left out"), page.table("kernel", "tier")
    own, others = ([row for row in tables if (row["tier"] == "fitted") == one] for one in (True, False))
    return (
        f"On published rows, attention kernels are {span(column(rows, 'MAPE')[::2])} off where the model was fitted "
        f"and {span(column(rows, 'MAPE, left out'))} where it was not. On NVIDIA's tables, at lengths that no fit "
        f"has "
        f"seen, kernels with their own constants are {span(column(own, 'MAPE'))} off; those with another device's, "
        f"{span(column(others, 'MAPE'))}. Nothing here was measured by this project."
    )


def _kernels(page: Page) -> str:
    judged = {
        heading.removesuffix(".csv"): [row for row in rows if row["rows of"] == "all"]
        for heading, rows in page.tables("device", "rows of", "MAPE")
    }
    count = sum(int(row["rows"]) for rows in judged.values() for row in rows)
    physics, *_ = page.table("device", "dtype", "above peak")  # the sum, then what breaks anything
    off = {name: span(column(rows, "MAPE")) for name, rows in judged.items()}
    named = (
        ("gemm_misaligned", "misaligned 16-bit products on A100 and H100"),
        ("gemm_amd", "AMD's by alignment"),
        ("gemm_aiter", "AMD's tuned ones"),
        ("gemm_fp8", "fp8 on H100 and H20"),
        ("gemm_fp32", "fp32"),
        ("attention", "attention"),
    )
    errors = ", ".join(f"{said} {off[name]}" for name, said in named if name in off)
    return (
        f"Predictions are compared with {count:,} measurements that others published. Mean errors by device: "
        f"{errors}. "
        f"Of {int(physics['shapes']):,} shapes {_none(physics['above peak'])} runs above the peak, "
        f"{_none(physics['above bandwidth'])} above the bandwidth; {_none(physics['doubling saves'])} would be faster "
        "with a dimension doubled. Nothing here was measured by this project."
    )


def _memory(page: Page) -> str:
    steps, families, furthest = page.found(r"\*\*(\d+ of \d+) steps of (\d+) checked families .*?, -?([\d.]+%)\.\*\*")
    draws, within = page.found(r"(\d+) draws .*?\*\*(\d+) within 1%")
    return (
        f"{steps} training steps of {families} families take within 1% of the memory that torch's MemTracker "
        f"counts; the "
        f"furthest is off by {furthest}. Of {draws} settings drawn at random {within} are within 1%. Steps were run "
        f"on "
        "fake tensors: a GPU's caching allocator adds its rounding and fragmentation."
    )


def _memory_peaks(page: Page) -> str:
    within, mean, furthest = page.found(r"\*\*(\d+ of \d+ within 4%); mean error ([\d.]+%).*?furthest off -?([\d.]+%)")
    return (
        f"sizer predicts {within.removesuffix(' within 4%')} published memory peaks of training runs, on four to 1,024 "
        f"devices, to within 4%. The mean error is {mean}, the largest {furthest}. None of the peaks was measured here."
    )


def _pages(page: Page) -> str:
    rows = page.table("page", "kB")
    return (
        f"A page (`--format html`) is one file of {span(column(rows, 'kB'), '')} kB that loads nothing from a "
        f"network. It "
        f"paints first after {span(column(rows, 'first painted'), ' s')} and has drawn all charts after "
        f"{span(column(rows, 'all charts'), ' s')}, on two cores that other jobs shared."
    )


def _peers_check(page: Page) -> str:
    rows, costs, wrong = page.table("configuration", "parameters"), page.table("tool"), page.table("wrong")
    exact = {name: column(rows, name).count("exact") for name in rows[0] if name not in ("configuration", "parameters")}
    best = max((name for name in exact if name != "sizer check"), key=exact.__getitem__)
    (own,), others = ([row for row in costs if (row["tool"] == "sizer check") == one] for one in (True, False))
    refused = sum(row["sizer check"].startswith("`sizer: ") for row in wrong)
    return (
        f"sizer counts the parameters of {exact['sizer check']} of {len(rows)} configurations exactly as "
        f"transformers' "
        f"classes do; the best other tool, {best}, of {exact[best]}. It takes {number(own['seconds'])} s and "
        f"{number(own['peak MiB']):.0f} MiB; the others {span(column(others, 'seconds'), '')} s and "
        f"{span(column(others, 'peak MiB'), '')} MiB. It refuses {refused} of {len(wrong)} wrong configurations "
        f"with one "
        "line that names the key."
    )


def _peers_memory(page: Page) -> str:
    rows = page.table("model", "attention", "figure")
    totals = [row for row in rows if row["figure"].startswith("total")]
    tools = [name for name in rows[0] if name not in ("model", "attention", "figure", "torch", "closest")]
    off = {
        tool: max(
            abs(number(match[1])) for cell in column(totals, tool) if (match := re.search(r"\(([-+][\d.]+)%\)", cell))
        )
        for tool in tools
    }
    others = ", ".join(f"{tool} by up to {off[tool]:.1f}%" for tool in tools if tool != "sizer")
    closest = sum("sizer" in row["closest"] for row in rows)
    return (
        f"sizer is the closest to torch in {closest} of {len(rows)} figures of {len({row['model'] for row in rows})} "
        f"models. Its total memory is off by up to {off['sizer']:.1f}%; that of {others}."
    )


def _readers(page: Page) -> str:
    rows = page.table("files", "commit", "state a model")
    stated, read, refused, judged, right = (
        sum(int(number(cell)) for cell in column(rows, name) if re.match(r"\d", cell))
        for name in ("state a model", "read", "refused", "judged", "right")
    )
    return (
        f"Of {stated:,} real files that state a model or its training, sizer reads {read:,} and refuses "
        f"{refused:,}, each "
        f"with a reason. Of {judged} whose parameters could be judged {right} are right. Of recipes that only name a "
        "model readers-clones.md counts more."
    )


def _search(page: Page) -> str:
    (_, plain), (_, noisy), *_ = page.tables("landscapes", "trials", "time, mean")
    slow = [row for row in plain if number(row["time, mean"]) > 10]
    largest = max((number(row["candidates"].rpartition(" ")[2]) for row in slow), default=0)
    return (
        f"Racing chooses a candidate within 1% of the best in {span(column(plain, 'within 1%'))} of trials, in "
        f"{span(column(plain, 'time, mean'))} of the time of measuring every candidate. {len(slow)} of {len(plain)} "
        f"landscapes, of up to {largest:.0f} candidates, miss the target of 10% of the time. "
        f"With noise that misleads it, it still does so in {span(column(noisy, 'within 1%'))} of trials, in "
        f"{span(column(noisy, 'time, mean'))} of the time."
    )


def _search_cpu(page: Page) -> str:
    replayed, raced = page.table("search", "rounds"), page.table("search", "found by the race")
    found = sum(row["best by the record"] == row["found by the race"] for row in raced)
    return (
        f"On latencies measured on a CPU, racing chooses a width within 1% of the best in "
        f"{span(column(replayed, 'within 1%'))} of trials, in {span(column(replayed, 'time, mean'))} of the time of "
        f"measuring every candidate. {found} of {len(raced)} live races found the best of the record."
    )


def _search_published(page: Page) -> str:
    book, paper = page.table("d_ff", "predicted TFLOPS"), page.table("device", "search", "best")
    first, best = book[0], max(book[1:], key=lambda row: number(row["predicted TFLOPS"]))
    ratio = number(best["predicted TFLOPS"]) / number(first["predicted TFLOPS"])
    measured = re.findall(r"\d+", best["the book measured"])
    low, high = (float(value) / number(first["the book measured"]) for value in (measured[0], measured[-1]))
    gains = "; ".join(f"{row['device']} {row['predicted gain']}" for row in paper if row["search"].startswith("model"))
    return (
        f"Width {best['d_ff']} is predicted to be {ratio:.1f} times as fast as {first['d_ff']}; the book measured "
        f"{low:.2f} to {high:.2f} times. For the paper's GPT-3 2.7B, where up to 39% was published, whole-model "
        f"searches "
        f"predict {gains}."
    )


def _search_gac(page: Page) -> str:
    rows, parts = (
        page.table("device", "sweep", "search", "staying"),
        page.table("baselines", "swept", "regret", "least, aligned as it is"),
    )

    def mean(own: list[Row], name: str) -> str:
        points = [number(row["points"]) for row in own]
        return f"{sum(number(row[name]) * of for row, of in zip(own, points, strict=True)) / sum(points):.1f}%"

    launched = [row for row in rows if row["device"].startswith("h") and row["sweep"].startswith("sweep2k")]
    others = [row for row in rows if row not in launched]
    gains = "; ".join(
        f"{device} {mean([row for row in others if row['device'] == device], 'search')}"
        for device in dict.fromkeys(column(others, "device"))
    )
    return (
        f"A predicted search chooses a size that takes this much longer than the best one measured near it: {gains}. "
        f"Where launches take longer than products a search keeps the size, which takes {mean(launched, 'search')} "
        f"longer: {mean([one for one in parts if one['baselines'].startswith('not')], 'regret')} for sizes that are no "
        f"multiple of 8, {mean([one for one in parts if not one['baselines'].startswith('not')], 'regret')} for "
        "multiples of 8, whose only faster neighbours are misaligned. A search that knew every time and kept those "
        f"aligned would still lose {mean(parts, 'least, aligned as it is')} there. Misaligning every size would lose "
        f"{mean(launched, 'misaligned')} there and {mean(others, 'misaligned')} elsewhere; the nearest multiple of 64 "
        f"loses {mean(launched, 'nearest multiple of 64')} there."
    )


def _rederived(page: Page) -> str:
    designs, frame = page.table("design", "candidates", "verdict"), page.table("change", "step", "decode step")
    verdicts = "; ".join(f"{row['design'].partition('/')[2]} is {row['verdict']}" for row in designs)
    last = frame[-1]
    return (
        f"Among whole models of equal predicted loss {verdicts}. Kimi K2's heads and experts in DeepSeek-V3's frame: "
        f"step {last['step']}, decode step {last['decode step']}, loss {last['loss']} by published fits."
    )


def _seeds(page: Page) -> str:
    rows, guide = page.table("capability", "state"), page.table("options", "measured MB")
    states = {state: sum(row["state"] == state for row in rows) for state in ("works", "in part", "no")}
    missing = "; ".join(row["capability"] for row in rows if row["state"] == "no") or "none"
    off = sorted((row["off"] for row in guide), key=number)
    return (
        f"Of {len(rows)} capabilities of the first sources that a first walk found missing or in part "
        f"{states['works']} work now, {states['in part']} in part, which say what is left and why, {states['no']} not "
        f"({missing}). "
        f"On the guide's V100 rows memory is {off[0]} to {off[-1]} off, the rate "
        f"{span(column(guide, 'rate off'))}. The table says why."
    )


def _steps(page: Page) -> str:
    (_, stacks), *_ = page.tables("priced by", "rows", "coverage")
    left, alone = page.table("stack", "source", "in sample"), page.table("stack", "priced by", "rows")

    def errors(name: str) -> str:
        return span(cell.rpartition(" ")[2] for cell in column(left, name) if "," in cell)

    return (
        f"Prices of {sum(int(row['rows']) for row in stacks)} published training runs are "
        f"{span(column(stacks, 'MAPE'))} "
        f"off on average, by stack. Fitted without the runs judged, they are {errors('left out by config')} off for "
        f"configurations not seen and {errors('left out by device')} for devices not seen. A stack without any run "
        f"of its "
        f"own is {span(cell.rpartition(' ')[2] for cell in column(alone, 'bias'))} off. Intervals that say 90% hold "
        f"{span(column(stacks, 'coverage'))} of the runs. Nothing here was measured by this project."
    )


def _trace_coverage(page: Page) -> str:
    rows = page.table("class", "types", "pass")
    types, passed = (sum(int(cell) for cell in column(rows, name)) for name in ("types", "pass"))
    longest, slowest, peak = page.found(
        r"default configuration: ([\d.]+ s of CPU) \((\w+)\); largest peak of a process: ([\d.]+ GiB)"
    )
    return (
        f"{passed} of transformers' {types} model types ({passed / types:.1%}) trace on the meta device with the "
        f"module's "
        f"own parameter count and the FLOPs that torch counts, but for known differences. The longest trace takes "
        f"{longest} ({slowest}), the largest {peak}."
    )


def _two_budgets(page: Page) -> str:
    both, front = page.table("", "B parameters")[-1], page.table("dimensions", "training step")[1:]
    training, short, long = (cell for name, cell in both.items() if name.endswith("of V3's"))
    best = max(front, key=lambda row: number(row["decode step: faster"]))
    return (
        f"Kimi K2's dimensions train a step in {training} of DeepSeek-V3's time, and decode one in {short} of it at "
        f"4k "
        f"keys and {long} at 128k. At V3's total and active parameters a search finds a model that trains "
        f"{best['training step: faster']} and decodes {best['decode step: faster']} as fast. All of it is predicted "
        f"for h100-sxm; "
        "nothing was measured."
    )


def _workloads(page: Page) -> str:
    (spare,), (lacking,) = page.found(r"fits with ([\d.]+ GiB)"), page.found(r"does not fit, by ([\d.]+ GiB)")
    (decode,), (prefill,) = (
        page.found(r"time per token ([\d.]+ ms \S+?),"),
        page.found(r"time to first token (\d+ ms \S+?),"),
    )
    return (
        f"QLoRA of Qwen2.5-7B fits an RTX 4090 with {spare} to spare; in full, with AdamW, it needs {lacking} more "
        f"than "
        f"there is. Llama-3.1-70B in fp8 on eight H100s gives 64 requests of 8k a token every {decode}, and the "
        f"first "
        f"token of a prompt of 8k after {prefill}. All of it is predicted; prices of decoding are extrapolated."
    )


def _serving(page: Page) -> str:
    left, _, sources, others = ({row["rows of"]: row for row in rows} for _, rows in page.tables("rows of", "covered"))
    known = [row for key, row in others.items() if "first" not in key and int(row["rows"]) > 1]
    figures = {key: f"{row['MAPE']} (median {row['median']})" for key, row in left.items()}
    return (
        f"With models and devices left out, the time of an output token is {figures['output token, dense']} off on "
        f"dense models and {figures['output token, moe']} on mixtures of experts, throughput "
        f"{figures['throughput, dense']} and {figures['throughput, moe']}, the time to the first token "
        f"{figures['first token, dense']} and {figures['first token, moe']}. The 90% intervals hold "
        f"{span(column(left.values(), 'covered'))} of them, and {span(column(sources.values(), 'covered'))} with a "
        f"source left out whole. On MLPerf's runs and gpt-fast's, which nothing was fitted "
        f"on, output tokens and throughput are {span(row['MAPE'] for row in known)} off. `sizer plan "
        f"--phase decode` plans by it."
    )


#: Report -> its opening paragraph.
OPENINGS: dict[str, Callable[[Page], str]] = {
    "accuracy": _accuracy,
    "attention": _attention,
    "kernels": _kernels,
    "memory": _memory,
    "memory-peaks": _memory_peaks,
    "pages": _pages,
    "peers-check": _peers_check,
    "peers-memory": _peers_memory,
    "readers": _readers,
    "search": _search,
    "serving": _serving,
    "search-cpu": _search_cpu,
    "rederived": _rederived,
    "search-gac": _search_gac,
    "seeds": _seeds,
    "search-published": _search_published,
    "steps": _steps,
    "trace-coverage": _trace_coverage,
    "two-budgets": _two_budgets,
    "workloads": _workloads,
}


def with_answer(name: str, text: str) -> str:
    """The report ``name`` with its answer after its title, in place of the one that was there."""
    bare = re.sub(rf"(?s){re.escape(MARK)}\n.*?\n\n", "", text, count=1)
    title, _, rest = bare.partition("\n")
    answer = textwrap.fill(OPENINGS[name](Page(bare)), 120, break_on_hyphens=False, break_long_words=False)
    return f"{title}\n\n{MARK}\n{answer}\n\n{rest.lstrip(chr(10))}"


def main(paths: list[str]) -> None:
    for path in map(Path, paths or [str(REPORTS / f"{name}.md") for name in OPENINGS]):
        path.write_text(with_answer(path.stem, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
