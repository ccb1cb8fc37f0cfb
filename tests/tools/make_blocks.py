"""Write what the commands of README.md and the pages print into them: python tests/tools/make_blocks.py [PAGE...].

A block keeps as many lines as it shows; a new one ("…" alone) gets the first ten.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from test_blocks import MORE, PAGES, blocks, printed, run  # tests/test_blocks.py

#: Lines of a new block.
FIRST = 10


def main(asked: list[str]) -> None:
    for page in PAGES:
        if asked and page.name not in asked:
            continue
        text = page.read_text(encoding="utf-8")
        for block in sorted(blocks(page), key=lambda one: -one.span[0]):
            with tempfile.TemporaryDirectory() as folder:
                lines = printed(run(block.script, Path(folder)))
            start, end = block.span
            if block.shown.endswith(MORE):
                most = len(block.shown.removesuffix(MORE).splitlines()) or FIRST
                more = MORE * (len(lines) > most and text[start:end].endswith(MORE))
                lines = [*lines[:most], more]
            text = text[:start] + "".join(lines) + text[end:]
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
