"""A browser without a window: pages as it lays them out, at any width, light or dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

#: What the page says of itself, in CSS pixels: how far it is wider than the window, and what is cut at its edges.
_MEASURE = r"""
<script>
addEventListener("load", () => {
  const cut = [];
  for (const box of document.querySelectorAll(".scroll"))
    if (box.scrollWidth > box.clientWidth + 1)
      cut.push((box.querySelector("th, td, figcaption") || box).textContent.trim().slice(0, 40)
        + (box.querySelector(".confusion") ? "confusion" : "") + (box.querySelector("svg") ? "picture" : ""));
  const seen = (element) => element.getClientRects().length > 0;
  const steps = [...document.querySelectorAll("svg.dag")].filter(seen)
    .map((svg) => [...svg.querySelectorAll("rect")].filter((rect) => {
      const place = rect.getBoundingClientRect();
      return place.left >= 0 && place.right <= innerWidth;
    }).length);
  const numbers = [...document.querySelectorAll("td.number")].filter(seen)
    .filter((cell) => cell.getBoundingClientRect().right > innerWidth).length;
  const told = [...document.querySelectorAll(".more")].filter((text) => text.clientWidth > 0)
    .map((text) => text.textContent);
  // A word that is broken has a line more than it has words.
  const broken = [...document.querySelectorAll("td.key, td.number")].filter(seen).filter((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    const lines = new Set([...range.getClientRects()].map((place) => Math.round(place.top)));
    return lines.size > (cell.matches(".key") ? cell.textContent.trim().split(/\s+/).length : 1);
  }).map((cell) => cell.textContent.trim());
  parent.postMessage(JSON.stringify({
    width: innerWidth, wider: document.documentElement.scrollWidth - innerWidth, cut, steps, numbers, told, broken,
    background: getComputedStyle(document.body).backgroundColor,
  }), "*");
});
</script>
"""


def chromium() -> str:
    """The program; empty if this machine has none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "") or ""


def measured(page: Path, width: int, *, dark: bool = False, picture: Path | None = None) -> dict[str, Any]:
    """What a page says of its layout at a width.

    Args:
        page: the file.
        width: of the window, in CSS pixels.
        dark: whether the system asks for dark pages.
        picture: gets a screenshot.
    """
    # A window of chromium is at least 500 pixels wide; a frame is as narrow as it is asked to be.
    text = html.escape(page.read_text(encoding="utf-8") + _MEASURE)
    frame = (
        f'<iframe srcdoc="{text}" style="border: 0; width: {width}px; height: 9000px"></iframe><pre id="said"></pre>'
    )
    listen = '<script>addEventListener("message", (m) => document.getElementById("said").textContent = m.data)</script>'
    with tempfile.TemporaryDirectory() as scratch:
        outer = Path(scratch) / "outer.html"
        outer.write_text(f'<!doctype html><body style="margin: 0">{listen}{frame}', encoding="utf-8")
        command = [
            chromium(),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            f"--user-data-dir={scratch}/profile",
            f"--window-size={max(width, 500)},{9000 if picture else 900}",
            "--virtual-time-budget=3000",
            *(["--blink-settings=preferredColorScheme=0"] if dark else []),
            *([f"--screenshot={picture}"] if picture else ["--dump-dom"]),
            f"file://{outer}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
    return {} if picture else dict(json.loads(html.unescape(found[1]))) if found else {}
