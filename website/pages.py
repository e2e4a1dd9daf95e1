"""Which files of the repository are pages of the site, and where a link from one of them leads there.

Pages are written for the repository: their links are paths of files. On the site a link to another page leads to that
page, and one to a file that is no page leads to a page that shows the file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
#: Pages that lie elsewhere than in docs/, by their paths in the repository.
ELSEWHERE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
#: Where a file that is no page is shown.
FILES = "files/"

#: Code of a page.
BLOCK = re.compile(
    r"^ *(?P<fence>`{3,})(?P<language>\w*)[^\n]*\n(?P<code>.*?)^ *(?P=fence) *$", re.MULTILINE | re.DOTALL
)
_FENCE = re.compile(r"^ {0,9}(`{3,}|~{3,})")
_LINK = re.compile(r"(?P<before>!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()(?P<target>[^()\s]+)(?P<after>\))", re.DOTALL)
_IN_CODE = re.compile(r"(`+)(?:(?!\1).)+?\1", re.DOTALL)


@dataclass(frozen=True)
class Link:
    """A link of a page.

    Attributes:
        page: the page's path in the repository.
        line: its number.
        target: what the page has, without the anchor.
        anchor: what stands behind `#`.
        path: the path in the repository that it leads to; empty for one that leads to the web.
    """

    page: str
    line: int
    target: str
    anchor: str
    path: str


def pages() -> dict[str, str]:
    """Each page's path in the repository, with its path on the site."""
    found = dict(ELSEWHERE)
    for path in sorted((ROOT / "components").glob("*/README.md")):
        found[path.relative_to(ROOT).as_posix()] = f"reference/components/{path.parent.name}.md"
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in (".md", ".ipynb"):
            name = path.relative_to(ROOT / "docs").with_suffix(".md").as_posix()
            found[path.relative_to(ROOT).as_posix()] = name
    return found


def prose(text: str) -> str:
    """A page with blanks in place of its code, so that places in it stay what they are."""
    lines, fence = [], ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if match and not fence:
            fence = match[1]
        elif match and line.strip() == fence:
            fence = ""
        elif not fence:
            lines.append(line)
            continue
        lines.append(" " * len(line))
    return _IN_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), "\n".join(lines))


def links(page: str, text: str) -> Iterator[Link]:
    """The links of a page, those within code left out.

    Args:
        page: its path in the repository.
        text: what it says, in Markdown.
    """
    for match in _LINK.finditer(prose(text)):
        target, _, anchor = match["target"].partition("#")
        yield Link(page, text.count("\n", 0, match.start()) + 1, target, anchor, path_of(page, target))


def path_of(page: str, target: str) -> str:
    """The path in the repository that a link leads to; empty for one that leads to the web."""
    if re.match(r"[a-z]+:", target):
        return ""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page


def for_site(page: str, text: str, places: dict[str, str]) -> str:
    """A page with its links as the site has them.

    Args:
        page: its path in the repository.
        text: what it says, in Markdown.
        places: each page's path in the repository, with its path on the site.
    """
    bare = prose(text)
    parts, done = [], 0
    for match in _LINK.finditer(bare):
        target, hash_, anchor = match["target"].partition("#")
        path = path_of(page, target)
        if not path or path == page:
            continue
        place = posixpath.relpath(place_of(path, places), posixpath.dirname(places[page]) or ".")
        before = text[done : match.start("target")]
        if path in places and (name := re.search(r"\[`?[\w./-]+\.md`?\]\($", before)):
            # Its path is its name in the repository; on the site it is its heading.
            before = f"{before[: name.start()]}[{title_of(path)}]("
        parts += [before, place, hash_, anchor]
        done = match.end("target")
    return with_blank_lines("".join(parts) + text[done:])


@cache
def title_of(page: str) -> str:
    """The first heading of a page."""
    heading = re.search(r"^# (.+)$", text_of(page), re.MULTILINE)
    return heading[1].partition(":")[0] if heading else page


def place_of(path: str, places: dict[str, str]) -> str:
    """Where a file of the repository is on the site."""
    if path in places:
        return places[path]
    if path.startswith("docs/") and Path(path).suffix in (".png", ".svg"):
        return path.removeprefix("docs/")
    return f"{FILES}{path}.md"


def files_shown() -> Iterator[str]:
    """The files and folders that are no pages and that pages link to, by their paths in the repository."""
    places = pages()
    found = {
        link.path for page in places for link in links(page, text_of(page)) if link.path and link.path not in places
    }
    yield from sorted(path for path in found if place_of(path, places).startswith(FILES))


def text_of(page: str) -> str:
    """What a page says, in Markdown; of a notebook its cells of text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if not page.endswith(".ipynb"):
        return text
    from tutorials import markdown_of

    return markdown_of(text)


def shown_file(path: str) -> str:
    """The page that shows a file, or what is in a folder."""
    place = ROOT / path
    if place.is_dir():
        names = [
            each.name + "/" * each.is_dir() for each in sorted(place.iterdir()) if not each.name.startswith(("_", "."))
        ]
        return f"# {path}/\n\nA folder of the repository:\n\n" + "".join(f"- `{name}`\n" for name in names)
    language = {".py": "python", ".yaml": "yaml", ".tf": "hcl", ".csv": "text", ".txt": "text"}.get(
        place.suffix, "text"
    )
    if place.name == "Dockerfile":
        language = "dockerfile"
    return f"# {path}\n\n`````{language}\n{place.read_text(encoding='utf-8').rstrip()}\n`````\n"


def with_blank_lines(text: str) -> str:
    """The page with a blank line before each list and table: Python-Markdown needs it where GitHub does not."""
    lines: list[str] = []
    code = prose(text).split("\n")
    for number, line in enumerate(text.split("\n")):
        before = lines[-1] if lines else ""
        is_code = not code[number].strip() and line.strip()
        if not is_code and before.strip() and _kind(line) and not _kind(before) and not before.startswith(" "):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _kind(line: str) -> str:
    """Whether a line is one of a list, or of a table."""
    if re.match(r"([-*+]|\d+[.)]) ", line):
        return "list"
    return "table" if line.startswith("|") else ""


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without what its tags name."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def navigation() -> list[str]:
    """The pages that the navigation names, by their paths on the site."""
    return list(_named((yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader))["nav"]))  # noqa: S506


def _named(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry if isinstance(entry, list) else entry.values():
            yield from _named(each)
