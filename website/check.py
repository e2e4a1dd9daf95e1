"""Checks what the pages say: `python website/check.py`. It prints what is wrong, and exits with 1 if anything is.

It looks at links, commands, the English, what the navigation names, and whether the Python reference is complete.
It needs neither MkDocs nor the built site. Links to the web are not followed.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import prose
import reference
from commands import root, shown_commands, whole
from pages import BLOCK, ROOT, links, navigation, pages, text_of
from pages import prose as without_code

_COMMAND = re.compile(r"^(?:\$ )?(?:!)?(?:nohup )?(?:\.venv/bin/)?(gpu-pipelines .+|make [a-z].*)$")
#: What zsh refuses if no file has such a name, unless it is in quotes; comments are left alone.
_QUOTED, _PATTERN = re.compile(r"'[^']*'|\"[^\"]*\"|\s#.*"), re.compile(r"[*?]")
#: Languages whose blocks may hold commands.
_SHELLS = ("", "sh", "bash", "console", "text")
#: What ends a command, for the shell.
_ENDS = ("|", ">", ">>", "&&", ";", "&", "#", "…")


def problems() -> Iterator[str]:
    """All that is wrong, one line each."""
    yield from navigation_problems()
    yield from link_problems()
    yield from command_problems()
    yield from prose.problems()
    yield from reference.problems()


def navigation_problems() -> Iterator[str]:
    """Pages that the navigation lacks, and names in it that are no page."""
    named = navigation()
    there = set(pages().values())
    commands = {"reference/commands/index.md", *(f"reference/commands/{name}.md" for name, _ in shown_commands(root()))}
    yield from (f"mkdocs.yml: the navigation lacks {page}" for page in sorted((there | commands) - set(named)))
    yield from (f"mkdocs.yml: {page} is no page" for page in named if page not in there | commands)
    yield from (
        f"mkdocs.yml: {page} is named twice" for page in sorted({each for each in named if named.count(each) > 1})
    )


def link_problems() -> Iterator[str]:
    """Links that lead to no file, or to no heading of a page."""
    known = pages()
    for page in known:
        for link in links(page, text_of(page)):
            if not link.path:
                continue
            place = f"{page}:{link.line}: {link.target}#{link.anchor}".removesuffix("#")
            if not (ROOT / link.path).exists():
                yield f"{place}: there is no such file"
            elif link.anchor and link.path in known and link.anchor not in anchors(text_of(link.path)):
                yield f"{place}: there is no such heading"


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: set[str] = set()
    lines = text.split("\n")
    for number, bare in enumerate(without_code(text).split("\n")):
        if re.match(r"#{1,6} ", bare):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", lines[number].lstrip("# "))
            name = re.sub(r"[^\w\- ]", "", words.replace("`", "").strip().lower()).replace(" ", "-")
            found.add(name if name not in found else f"{name}_1")
    return found


def command_problems() -> Iterator[str]:
    """Commands of pages that this program does not have, or not with these options."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    group = root()
    for page in pages():
        for line in commands_of(text_of(page)):
            words = split(line)
            if words[:1] == ["make"]:
                unknown = [word for word in words[1:] if re.fullmatch(r"[a-z][a-z-]*", word) and word not in targets]
                yield from (f"{page}: {line}: there is no target {word}" for word in unknown)
            else:
                yield from (f"{page}: {line}: {problem}" for problem in problems_of_command(group, words[1:]))
                if _PATTERN.search(_QUOTED.sub("", line)):
                    yield f"{page}: {line}: zsh takes * for names of files; quote it"


def commands_of(text: str) -> Iterator[str]:
    """The lines of a page that begin with `gpu-pipelines` or `make`: of its blocks of code, and of code within text."""
    for match in BLOCK.finditer(text):
        if match["language"] in _SHELLS:
            for line in match["code"].replace("\\\n", " ").split("\n"):
                if found := _COMMAND.match(line.strip()):
                    yield " ".join(found[1].split())
    for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", BLOCK.sub("", text)):
        if (found := _COMMAND.match(code)) and " " in code:
            yield found[1]


def split(line: str) -> list[str]:
    """The words of a command, up to what the shell takes for itself."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    ends = [
        number
        for number, word in enumerate(words)
        if word in ("|", ">", ">>", "&&", ";", "&", "#", "…") or word[:2] == "2>"
    ]
    return words[: min(ends, default=len(words))]


def problems_of_command(command: Any, words: Iterable[str]) -> Iterator[str]:
    """What is wrong with a command: a name that is none, or an option that it does not have."""
    words = list(words)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            # A word in capitals, or one with an ellipsis, stands for any.
            if re.fullmatch(r"[a-z-]+", words[0]):
                yield f"there is no command {words[0]}"
            return
        command = whole(command, words.pop(0))
    if command.name == "migrate":
        return  # It takes gcloud's own options.
    context = command.make_context("gpu-pipelines", [], resilient_parsing=True)
    known = {"--help", "-h"}.union(*([*each.opts, *each.secondary_opts] for each in command.get_params(context)))
    for word in words[: words.index("--")] if "--" in words else words:
        name = word.partition("=")[0]
        if re.fullmatch(r"--[a-z][a-z-]*|-[a-z]", name) and name not in known:
            yield f"there is no option {name}"


def main() -> int:
    """Prints what is wrong."""
    found = list(problems())
    print("\n".join(found) or f"{len(pages())} pages: links, commands, English and docstrings are as they should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
