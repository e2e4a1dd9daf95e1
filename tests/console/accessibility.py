"""What a page lacks for those who do not see it well, or use no mouse; asked of the page as a browser lays it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_CHECK = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


def wrong_in(page: Any) -> list[str]:
    """What is wrong on a page of playwright's."""
    found: list[str] = page.evaluate(_CHECK)
    return found
