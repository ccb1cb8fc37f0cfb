"""The program: `sizer`, and `python -m sizer`."""

import gc
import os
import sys

# `python -m` puts the working directory first on the path: what lies there is a user's, never code to run. It stays
# where this very package was found in it, as in a checkout that is not installed.
_RUN_AS_MODULE = __name__ == "__main__" and __spec__ is not None and not sys.flags.safe_path
if _RUN_AS_MODULE and not __file__.replace("\\", "/").startswith(f"{sys.path[0]}/sizer/".replace("\\", "/")):
    del sys.path[0]


def run() -> None:
    """The command line; ends the process with its code."""
    import _signal  # type: ignore[import-not-found] # in the interpreter: signal itself takes milliseconds to load

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # until the program's own are loaded
        _signal.signal(_signal.SIGINT, lambda *_: os._exit(130 * bool(os.write(2, b"sizer: interrupted\n"))))
    from shapes import program
    from sizer.process import end_in_order_of_signals, flush_output, hold_standard_files

    program.ALONE = True
    gc.set_threshold(100_000)  # starting makes many objects and no garbage
    os.environ["OPENBLAS_DEFAULT_NUM_THREADS"] = "1"  # numpy starts one for each core, and nothing here multiplies
    hold_standard_files()
    end_in_order_of_signals()
    try:
        from sizer.cli import main  # after the handlers: a signal during an import is to end in a line too
    except ModuleNotFoundError as missing:
        if missing.name != "click":
            raise
        main = _bare  # type: ignore[assignment]

    code: object = None
    reason = None
    try:
        main(prog_name="sizer")
    except SystemExit as end:
        code = 128 + program.REQUESTS[0] if program.REQUESTS else end.code
    except OSError as error:  # click's help and version, where standard output is full
        reason = error.strerror or str(error)
    reason = flush_output() or reason
    if reason is not None:
        print(f"sizer: standard output: cannot be written: {reason}", file=sys.stderr)  # noqa: T201
        code = 2
    gc.freeze()  # what is left goes with the process: looking through it for cycles is a tenth of a check
    sys.exit(code)  # type: ignore[arg-type] # what SystemExit carried


def _bare(prog_name: str) -> None:
    """Where one measures there may be little more than torch: a working tree does that all the same."""
    from pathlib import Path
    from runpy import run_path

    run_path(str(Path(__file__).parents[1] / "reports" / "suites" / "bare.py"))


if __name__ == "__main__":
    run()
