"""Debian's Chromium, headless, driven by playwright's client: nothing is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]


def missing() -> str | None:
    """Why there is no browser here; None where there is one."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright's client is not installed"
    return None if os.path.exists(CHROMIUM) else "Chromium is not installed (apt-get install chromium)"


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


#: How a page is looked at: name -> the window's width and the system's colours.
LOOKS = {"wide": (1280, "light"), "phone": (400, "light"), "dark": (1280, "dark")}
#: Pixels that the page is too wide, the smallest text that is seen, texts of charts that lie on each other, and links
#: and buttons without a name.
AUDIT = """() => {
  const seen = (element) => element.getBoundingClientRect().width > 0 && getComputedStyle(element).opacity !== "0";
  const own = (element) => [...element.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
  const size = (element) => {
    const svg = element.closest("svg"), box = svg && svg.viewBox.baseVal;
    const scale = box && box.width ? svg.getBoundingClientRect().width / box.width : 1;
    return scale * parseFloat(getComputedStyle(element).fontSize);
  };
  const texts = [...document.querySelectorAll("main *")].filter((one) => own(one) && seen(one));
  const marks = texts.filter((one) => one.tagName === "text")
    .map((one) => [one.getBoundingClientRect(), one.textContent]);
  const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  return {
    overflow: document.documentElement.scrollWidth - innerWidth,
    smallest: Math.min(...texts.map(size)),
    overlaps: marks.flatMap(([a, one], at) =>
      marks.slice(at + 1).filter(([b]) => over(a, b)).map(([, other]) => [one, other])),
    unnamed: [...document.querySelectorAll("a, button")].filter((one) => !one.textContent.trim()).length,
  };
}"""


def tab_of(chromium: Any, look: str) -> tuple[Any, list[str]]:
    """An empty tab of that look, and the list that gets what the browser says and what is asked of a network."""
    width, scheme = LOOKS[look]
    tab, said = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme), []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
    return tab, said


def draw(tab: Any, path: Any) -> None:
    """The page in the tab, every chart drawn."""
    tab.goto(path.as_uri())
    tab.wait_for_function("() => document.documentElement.dataset.drawn !== undefined")


def looked_at(chromium: Any, path: Any, look: str) -> tuple[Any, list[str]]:
    """The page in a tab of that look, all drawn; what the browser said and what was asked of a network."""
    tab, said = tab_of(chromium, look)
    draw(tab, path)
    return tab, said
