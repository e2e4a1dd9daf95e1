"""Writes YAML for other programs, in which every reader takes a text as the same text."""

from __future__ import annotations

import re
from typing import Any

import yaml

#: Texts that need no quotes: a word, an option or a path at the beginning, or a duration. Texts that readers of YAML
#: 1.1 or 1.2 take for a number, a time, a merge key or a null by their form begin otherwise.
_PLAIN = re.compile(r"-{0,2}[A-Za-z/_][\x20-\x7e]*|[0-9]+s")
#: Words that some reader takes for a truth value, a null or a number, in any case.
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nil", "none", "nan", "inf", "infinity"}
#: Characters that neither a comment nor a plain text of YAML can have, such as line breaks.
_UNFIT = re.compile("[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, which are hard to read, and quotes whatever is not plainly a word."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = None
    if _UNFIT.search(text):
        style = '"'
    elif not _PLAIN.fullmatch(text) or text.lstrip("-").lower() in _WORDS:
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(document: Any) -> str:
    """A document of plain data as YAML, in its own order.

    A text has no quotes only if YAML 1.1 and 1.2 both read it as that text: gcloud's reader takes 1e-4, y and 1:30 for
    numbers and truth values if PyYAML writes them plain.
    """
    # Never folded: readers also disagree on a line that is broken within a text.
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))


def comment(text: str) -> str:
    """A text as one line of comment."""
    return f"# {_UNFIT.sub(' ', text)}\n"


def fits_one_line(text: str) -> bool:
    """Whether a text can be written unchanged into a comment, or into a command in a comment."""
    return _UNFIT.search(text) is None


def is_utf8(text: str) -> bool:
    """Whether a text can be written as UTF-8; invalid bytes of a command line come as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
