"""The trace's tests under other versions of torch and transformers, each pair in a virtual environment of its own.

    python reports/bench/versions.py --pair 2.13.0 4.57.6 --pair 2.6.0 4.57.6

Makes ``--directory``/torch-T-transformers-H (kept, so that a second run starts at once), installs the project, the
pair and what the tests need with pip, and runs the tests of TESTS there. Prints one line a
pair, and the tests that failed; exits 1 when any did. A torch that pip cannot get is a line too.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/test_trace.py", "tests/test_traced_subjects.py", "tests/test_parity.py")
#: The oldest torch and transformers that the project promises, the newest, and the two mixed; see pyproject.toml.
PAIRS = (("2.6.0", "4.57.6"), ("2.6.0", "5.*"), ("2.9.1", "5.*"), ("2.13.0", "4.57.6"), ("2.13.0", "5.*"))


def environment(directory: Path, torch: str, transformers: str) -> Path:
    """The Python of a virtual environment with the pair; subprocess.CalledProcessError when pip cannot make it."""
    home = directory / f"torch-{torch}-transformers-{transformers.replace('*', 'x')}"
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    wanted = [f"torch=={torch}", f"transformers=={transformers}", "pytest>=8", "hypothesis>=6.100", "jsonschema>=4.20"]
    install = [str(python), "-m", "pip", "install", "-q", "-e", str(ROOT), *wanted]
    subprocess.run(install, check=True, capture_output=True, text=True)
    return python


def versions(python: Path) -> str:
    """torch's and transformers' own words, for the line."""
    program = "import torch, transformers; print('torch', torch.__version__, 'transformers', transformers.__version__)"
    return subprocess.run([str(python), "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def run(directory: Path, torch: str, transformers: str) -> bool:
    """Test one pair and print its line; whether all passed."""
    try:
        python = environment(directory, torch, transformers)
        named = versions(python)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or str(error)).strip().splitlines()
        sys.stdout.write(f"torch {torch} transformers {transformers}: not installed: {reason[-1] if reason else ''}\n")
        return False
    started = time.perf_counter()
    tests = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-rfE", *TESTS]
    done = subprocess.run(tests, check=False, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"]
    counts = next(
        (line.strip("= ") for line in reversed(lines) if re.search(r"\d (passed|failed|error)", line)), lines[-1]
    )
    sys.stdout.write(f"{named}: {counts} ({time.perf_counter() - started:.0f} s)\n")
    sys.stdout.writelines(f"  {line[:200]}\n" for line in lines if re.match(r"(FAILED|ERROR) ", line))
    sys.stdout.flush()
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", nargs=2, action="append", metavar=("TORCH", "TRANSFORMERS"), help="as pip has them")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "sizer-versions")
    arguments = parser.parse_args()
    results = [run(arguments.directory, *pair) for pair in arguments.pair or PAIRS]
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
