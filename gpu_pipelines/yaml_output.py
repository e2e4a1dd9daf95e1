"""YAML for programs that are not ours: every reader takes a text for that text."""

from __future__ import annotations

import re
from typing import Any

import yaml

#: What may stand without quotes: it begins like a word, an option or a path, or is a duration. What readers of YAML 1.1
#: or 1.2 take for a number, a time, a merge key or a null by its form begins otherwise.
_PLAIN = re.compile(r"-{0,2}[A-Za-z/_][\x20-\x7e]*|[0-9]+s")
#: Words that some reader takes for a truth, a null or a number, in any mixture of cases.
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nil", "none", "nan", "inf", "infinity"}
#: What neither a comment nor a plain text of YAML can have, line breaks with it.
_UNFIT = re.compile("[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, which people do not read, and quotes what is not plainly a word."""

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
    """A document of plain data as YAML, in the order that it has.

    A text stands without quotes only where YAML 1.1 and 1.2 alike have no other meaning for it: gcloud's reader takes
    1e-4, y and 1:30 for numbers and truths where PyYAML writes them plain.
    """
    # Never folded: a line that is broken in the middle of a text is another thing for readers to disagree on.
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))


def comment(text: str) -> str:
    """A text as one line of comment."""
    return f"# {_UNFIT.sub(' ', text)}\n"


def fits_one_line(text: str) -> bool:
    """Whether a text can be written unchanged into a comment, or into a command in one."""
    return _UNFIT.search(text) is None


def is_utf8(text: str) -> bool:
    """Whether it can be written as UTF-8; bytes of a command line that cannot come as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
