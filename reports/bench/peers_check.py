"""Write reports/peers-check.md: what five other estimators and sizer say of ten public configurations.

    python -m venv /tmp/peers
    /tmp/peers/bin/pip install accelerate hf-vram-calc calflops fitcheck-llm llm-analysis fire psutil requests torch
    python reports/bench/peers_check.py --peers /tmp/peers/bin/python

The answers are kept in reports/data/peers-check.json; with --reuse only sizer's are made anew. Each tool runs in a
process of its own; seconds and peak memory are that process's (wall clock, ru_maxrss). Tools that only take a Hub
repository get one from a stand-in for the Hub on this machine, which serves config.json and nothing else, so no network
is needed. The true count is that of transformers' own model class on the meta device.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

from opening import with_answer

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "tests" / "data" / "configs"
REPORT = ROOT / "reports" / "peers-check.md"
RAW = ROOT / "reports" / "data" / "peers-check.json"
TIMEOUT_S = 300
OURS = "sizer check"

#: Python that a peer's environment runs; argv[1] is the repository name, argv[2] a folder with its config.json.
#: Each prints one line `parameters=<integer>`; what it raises is the tool's own answer.
DRIVERS: dict[str, str] = {
    "accelerate estimate-memory": """
from accelerate.commands.estimate import create_empty_model
from accelerate.utils import calculate_maximum_sizes
total_bytes, _ = calculate_maximum_sizes(create_empty_model(sys.argv[1], library_name="transformers"))
print(f"parameters={total_bytes // 4}")  # the command prints these float32 bytes, rounded
""",
    "hf-vram-calc": """
import json, subprocess, tempfile, os
out = tempfile.mktemp(suffix=".json")
tool = os.path.join(os.path.dirname(sys.executable), "hf-vram-calc")
run = subprocess.run([tool, "--model", sys.argv[1], "--model_path", sys.argv[2], "--output_json", out],
                     capture_output=True, text=True)
if not os.path.exists(out):
    sys.exit(run.stdout[-2000:] + run.stderr[-2000:])
print(f"parameters={json.load(open(out))['model']['parameters']}")
""",
    "calflops": """
import torch
from calflops import calculate_flops
from calflops.estimate import create_empty_model
model = create_empty_model(sys.argv[1], library_name="transformers")
ids = torch.zeros(1, 128, dtype=torch.long, device="meta")
_, _, parameters = calculate_flops(model, kwargs={"input_ids": ids}, print_results=False, output_as_string=False)
print(f"parameters={int(parameters)}")
""",
    "fitcheck-llm": """
import os, re, subprocess
tool = os.path.join(os.path.dirname(sys.executable), "fitcheck")
run = subprocess.run([tool, sys.argv[1], "--verbose", "--no-color"], capture_output=True, text=True)
found = re.search(r"parameters +([0-9,]+)", run.stdout)
if not found:
    sys.exit(run.stdout[-2000:] + run.stderr[-2000:])
print("parameters=" + found[1].replace(",", ""))
""",
    "llm-analysis": """
from llm_analysis.analysis import LLMAnalysis
from llm_analysis.config import get_model_config_from_hf, get_gpu_config_by_name, get_dtype_config_by_name
model = get_model_config_from_hf(sys.argv[2])
analysis = LLMAnalysis(model, get_gpu_config_by_name("a100-sxm-80gb"), get_dtype_config_by_name("w16a16e16"))
print(f"parameters={int(analysis.get_num_params_total())}")
""",
}
TRUTH = """
import json, torch
from transformers import AutoConfig, AutoModelForCausalLM
config = json.load(open(sys.argv[2] + "/config.json"))
config.pop("quantization_config", None)
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
print(f"parameters={sum(parameter.numel() for parameter in model.parameters())}")
"""

#: Llama-3.1-8B with one thing wrong, and what a person would want to hear of it.
WRONG: dict[str, dict[str, Any]] = {
    "model_type nobody knows": {"model_type": "llama_of_tomorrow"},
    "num_attention_heads 0": {"num_attention_heads": 0},
    "hidden_size -4096": {"hidden_size": -4096},
    'vocab_size "128256"': {"vocab_size": "128256"},
    "num_key_value_heads 7": {"num_key_value_heads": 7},
}


@dataclass(frozen=True)
class Answer:
    """What one run of a tool gave: a count or the last line of its complaint, and what the process took."""

    parameters: int | None
    complaint: str
    traceback: bool
    seconds: float
    peak_mib: float


def run_tool(command: list[str], env: Mapping[str, str], repeat: int) -> Answer:
    """Run ``command`` ``repeat`` times: its answer, the median seconds and the median peak memory."""
    runs = [_run_once(command, env) for _ in range(repeat)]
    text, _, _ = runs[0]
    found = re.search(r'^parameters=(\d+)$|"parameters": (\d+)', text, re.MULTILINE)  # a driver's line, or sizer's JSON
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return Answer(
        parameters=int(found[1] or found[2]) if found else None,
        complaint="" if found else _complaint(lines),
        traceback="Traceback (most recent call last)" in text,
        seconds=statistics.median(seconds for _, seconds, _ in runs),
        peak_mib=statistics.median(peak for _, _, peak in runs),
    )


def _run_once(command: list[str], env: Mapping[str, str]) -> tuple[str, float, float]:
    with tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=dict(env), cwd="/")
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)  # the usage of this child and of those it waited for
        seconds = time.perf_counter() - start
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return output.read(), seconds, usage.ru_maxrss / 1024


def _complaint(lines: list[str]) -> str:
    """The line that says what went wrong: the last one that looks like an error, else the last one."""
    errors = [line for line in lines if re.search(r"error|not supported|Expected|expected|failed", line, re.IGNORECASE)]
    return (errors or lines or ["no output"])[-1][:220]


#: By configuration, then by tool.
Answers = dict[str, dict[str, Answer]]


class _Hub(BaseHTTPRequestHandler):
    """The three requests that huggingface_hub makes for a configuration; everything else is not found."""

    configs: dict[str, bytes]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        api = re.fullmatch(r"/api/models/(peer/[^/]+)(?:/revision/main)?", path)
        resolve = re.fullmatch(r"/(peer/[^/]+)/resolve/[^/]+/config\.json", path)
        if api and api[1] in self.configs:
            config = json.loads(self.configs[api[1]])
            info = {"_id": "0", "id": api[1], "sha": "0" * 40, "library_name": "transformers", "config": config}
            self._send(200, json.dumps(info | {"siblings": [{"rfilename": "config.json"}]}).encode(), body)
        elif resolve and resolve[1] in self.configs:
            self._send(200, self.configs[resolve[1]], body)
        else:
            self._send(404, b"{}", body, error="EntryNotFound")

    def _send(self, status: int, content: bytes, body: bool, error: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{abs(hash(content)):x}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the report is the output."""


@contextmanager
def hub(configs: dict[str, bytes]) -> Iterator[str]:
    """A stand-in for the Hub on this machine; gives its address."""
    handler = type("Hub", (_Hub,), {"configs": configs})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def sizer_command(path: Path) -> list[str]:
    return [sys.executable, "-m", "sizer", "check", str(path), "--format", "json", "--fail-on", "never"]


def collect(peers: str, repeat: int, kept: Answers) -> Answers:
    """Answers by configuration, the public and the wrong ones, and tool; those ``kept`` are not asked for again."""
    configs = {path.stem: json.loads(path.read_text()) for path in sorted(CONFIGS.glob("*.json"))}
    wrong = {name: configs["llama-3.1-8b"] | change for name, change in WRONG.items()}
    with tempfile.TemporaryDirectory() as scratch:
        folders: dict[str, Path] = {}
        served: dict[str, bytes] = {}
        for index, (name, config) in enumerate((configs | wrong).items()):
            folder = Path(scratch, f"config{index}")
            folder.mkdir()
            # Without auto_map the tools take transformers' own class instead of asking for the repository's code.
            text = json.dumps({key: value for key, value in config.items() if key != "auto_map"})
            folder.joinpath("config.json").write_text(text)
            folders[name] = folder
            served[f"peer/config{index}"] = text.encode()
        with hub(served) as address:
            env = os.environ | {
                "HF_ENDPOINT": address,
                "HF_HOME": f"{scratch}/hf",
                "HF_HUB_DISABLE_TELEMETRY": "1",
                "OMP_NUM_THREADS": "1",
                "TERM": "dumb",
                "NO_COLOR": "1",
                "COLUMNS": "250",
                "NO_PROXY": "127.0.0.1",
                "no_proxy": "127.0.0.1",
            }

            answers: Answers = {}
            for name, folder in folders.items():
                answers[name] = {}
                for tool, code in (DRIVERS if name in WRONG else {"transformers": TRUTH} | DRIVERS).items():
                    if tool in kept.get(name, {}):
                        answers[name][tool] = kept[name][tool]
                        continue
                    sys.stderr.write(f"{name}: {tool}\n")
                    command = [peers, "-c", "import sys\n" + code, f"peer/{folder.name}", str(folder)]
                    answers[name][tool] = run_tool(command, env, repeat)
                sys.stderr.write(f"{name}: {OURS}\n")
                answers[name][OURS] = run_tool(sizer_command(folder / "config.json"), os.environ, repeat)
            return answers


def report(answers: Answers, peers: str, repeat: int) -> str:
    """The Markdown page."""
    right = {name: row for name, row in answers.items() if name not in WRONG}
    wrong = {name: row for name, row in answers.items() if name in WRONG}
    tools = [*DRIVERS, OURS]
    return "\n".join(
        [
            "# sizer check and other estimators",
            "",
            f"Made by `python reports/bench/peers_check.py --peers {peers}` on {platform.machine()}"
            f" with {os.cpu_count()} cores, Python {platform.python_version()}; median of {repeat} run(s) a cell.",
            f"Versions: {_versions(peers)}.",
            "",
            "Configurations: `tests/data/configs/`. Tools that only take a Hub repository were served config.json by a",
            "stand-in for the Hub on the same machine (no weights, no tokenizer, no safetensors metadata, no",
            "repository code: `auto_map` removed, so that each takes transformers' own class). So fitcheck-llm answers",
            "by its formula: with the real Hub it reads the count there, and refuses models its formula misses by 2%.",
            "calflops' `calculate_flops_hf` wants a tokenizer, so its `calculate_flops` runs on its own empty model.",
            "",
            "## Parameters",
            "",
            "Off by: the tool's count over the count of transformers' model class (AutoModelForCausalLM) on the meta",
            "device, minus one; differences under 0.005% as the number of parameters.",
            "",
            *_table(
                ["configuration", "parameters", *tools],
                [
                    [name, f"{_truth(row):,}", *(_off(row[tool], _truth(row)) for tool in tools)]
                    for name, row in right.items()
                ],
            ),
            "",
            *_footnotes(right, tools),
            "",
            "Why, as far as the differences say: accelerate and calflops build AutoModel, which has no LM-head (and",
            "accelerate counts buffers as parameters); hf-vram-calc builds the head but counts a tied one again (gpt2:",
            "50257 x 768); fitcheck-llm takes every MLP for a gated one without biases; llm-analysis takes every MLP",
            "for a plain one of width 4h and sees no experts.",
            "",
            "## Seconds and peak memory of the process",
            "",
            "Median over the configurations that the tool answered, and its range.",
            "",
            *_table(["tool", "answered", "seconds", "peak MiB"], [_cost_row(tool, right) for tool in tools]),
            "",
            "## What a wrong configuration gets",
            "",
            "Llama-3.1-8B with one value changed. A number is a parameter count that the tool gave for it.",
            "",
            *_table(["wrong", *tools], [[name, *(_wrong(row[tool]) for tool in tools)] for name, row in wrong.items()]),
            "",
        ]
    )


def _truth(row: dict[str, Answer]) -> int:
    answer = row["transformers"]
    if answer.parameters is None:
        raise SystemExit(f"transformers gave no count: {answer.complaint}")
    return answer.parameters


def _off(answer: Answer, truth: int) -> str:
    if answer.parameters is None:
        return "no answer"
    if answer.parameters == truth:
        return "exact"
    share = answer.parameters / truth - 1
    return f"{share:+.2%}" if abs(share) > 5e-5 else f"{answer.parameters - truth:+,}"


def _footnotes(right: Answers, tools: list[str]) -> list[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, row in right.items():
        for tool in tools:
            if row[tool].parameters is None:
                reason = re.sub(r"peer/config\d+", "…", row[tool].complaint)
                reasons.setdefault((tool, reason), []).append(name)
    return [
        f"- {tool}, no answer for {', '.join(names)}: `{_cell(reason)}`" for (tool, reason), names in reasons.items()
    ]


def _cost_row(tool: str, right: Answers) -> list[str]:
    answered = [row[tool] for row in right.values() if row[tool].parameters is not None]
    if not answered:
        return [tool, f"0 of {len(right)}", "", ""]
    seconds, peaks = [a.seconds for a in answered], [a.peak_mib for a in answered]
    return [
        tool,
        f"{len(answered)} of {len(right)}",
        f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})",
        f"{statistics.median(peaks):.0f} ({min(peaks):.0f}-{max(peaks):.0f})",
    ]


def _wrong(answer: Answer) -> str:
    if answer.parameters is not None:
        return f"**{answer.parameters:,}**"
    kind = "traceback: " if answer.traceback else ""
    return f"{kind}`{_cell(re.sub(r'peer/config[0-9]+|/tmp/[^ :]*/', '', answer.complaint))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")


def _table(headers: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (headers, ["---"] * len(headers), *rows)]


def _versions(peers: str) -> str:
    names = ["accelerate", "hf-vram-calc", "calflops", "fitcheck-llm", "llm-analysis", "transformers", "torch"]
    code = f"from importlib.metadata import version\nprint(', '.join(f'{{n}} {{version(n)}}' for n in {names!r}))"
    theirs = subprocess.run([peers, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return f"{theirs}; sizer {version('sizer')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", required=True, help="the Python of the environment that holds the other tools")
    parser.add_argument("--repeat", type=int, default=1, help="runs a cell, of which the median counts")
    parser.add_argument("--reuse", action="store_true", help=f"take the other tools' answers from {RAW.name}")
    options = parser.parse_args()
    kept: Answers = {}
    if options.reuse:
        raw = json.loads(RAW.read_text(encoding="utf-8"))
        kept = {name: {tool: Answer(**answer) for tool, answer in row.items()} for name, row in raw.items()}
    answers = collect(options.peers, options.repeat, kept)
    RAW.parent.mkdir(exist_ok=True)
    plain = {name: {tool: asdict(answer) for tool, answer in row.items()} for name, row in answers.items()}
    RAW.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    REPORT.write_text(with_answer("peers-check", report(answers, options.peers, options.repeat)), encoding="utf-8")
    sys.stdout.write(f"{REPORT}\n")


if __name__ == "__main__":
    main()
