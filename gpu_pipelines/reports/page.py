"""One HTML page: no scripts, no external links, light and dark, wide and narrow."""

from __future__ import annotations

import base64
import io
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

if TYPE_CHECKING:
    import numpy as np

_BEGIN, _END = "<!-- sections -->", "<!-- /sections -->"
_HERE = Path(__file__).parent
_STACKED = re.compile(r'<table class="stack">.*?</table>', re.DOTALL)
_HEADING = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
_CELL = re.compile(r"<t[dh]\b")
#: The number that fits a page of 800 pixels.
_MOST_COLUMNS = 9
_TAG = re.compile(r"<[^>]*>")


@lru_cache
def templates_in(folder: Path) -> Environment:
    """The Jinja templates of a folder, which may include those of this one; all but `Markup` is escaped."""
    loader = FileSystemLoader([folder, _HERE])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render(template: Path, **values: Any) -> Markup:
    """Fills in a Jinja template; see `templates_in`."""
    text = templates_in(template.parent).get_template(template.name).render(**values)
    return Markup(_STACKED.sub(_with_labels, text))  # noqa: S704 (escaped by the template)


def _with_labels(table: re.Match[str]) -> str:
    """A table whose cells carry the heading of their column, which a narrow page shows beside them."""
    if "data-label" in table[0]:
        return table[0]  # of a page that becomes part of another
    start, head, *rows = table[0].split("<tr")
    # The name of a parameter is broken behind an underscore, if it has to be.
    labels = [_TAG.sub("", heading).replace("_", "_&#8203;") for heading in _HEADING.findall(head)]

    def with_labels(row: str) -> str:
        left = iter(labels)

        def with_label(cell: re.Match[str]) -> str:
            label = next(left, "")
            return f'{cell[0]} data-label="{label}"' if label else cell[0]

        return _CELL.sub(with_label, row)

    if len(labels) > _MOST_COLUMNS:
        start = start.replace('class="stack"', 'class="stack many"')
    return "<tr".join([start, head, *map(with_labels, rows)])


def write_page(path: Path, title: str, sections: Markup, subtitle: str = "", refresh: int = 0) -> None:
    """Writes a page of sections (`<section>` elements).

    Args:
        path: the file.
        title: the heading of the page.
        sections: the content.
        subtitle: a line below the heading.
        refresh: seconds after which a browser reloads it; 0 for never.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    page = render(_HERE / "page.html", title=title, subtitle=subtitle, sections=sections, refresh=refresh)
    # A file name need not be valid text; what cannot be encoded is shown as its bytes.
    path.write_text(page, encoding="utf-8", errors="backslashreplace")


def sections_of(path: Path) -> Markup:
    """The sections of a page by `write_page`, to put into another."""
    text = path.read_text(encoding="utf-8")
    return Markup(text.partition(_BEGIN)[2].partition(_END)[0])  # noqa: S704 (this program wrote and escaped it)


def png_bytes(pixels: np.ndarray) -> bytes:
    """A PNG of uint8 pixels (channels, height, width)."""
    import numpy as np
    from PIL import Image

    array = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(file, "PNG")
    return file.getvalue()


def image_data(pixels: np.ndarray) -> str:
    """A `data:` URI of a PNG of uint8 pixels (channels, height, width)."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(pixels)).decode("ascii")
