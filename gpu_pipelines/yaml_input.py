"""Reads a user's YAML within bounds; nothing in it is lost or guessed silently.

A text of under 1 KB can stand for billions of values, by aliases of aliases; a device file never ends; and of a
duplicate key, one reader takes the first value and another the last. All of these are refused before any of the values
is used.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gpu_pipelines.errors import UserError

#: Limits of this project: files that people write have a few hundred values.
LARGEST_BYTES = 1_000_000
MOST_VALUES = 20_000
MOST_CHARACTERS = 2_000_000
DEEPEST = 50
_MOST_DIRECTIVES = 8
#: No number and no time is longer; PyYAML takes minutes for one of a million digits.
_LONGEST_NUMBER = 100

# Several times as fast if PyYAML was built with libyaml.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PREFIX = "tag:yaml.org,2002:"
NULL = f"{_PREFIX}null"
_NUMBERS = tuple(f"{_PREFIX}{kind}" for kind in ("int", "float", "timestamp"))
_TAGS = (*_NUMBERS, NULL, *(f"{_PREFIX}{kind}" for kind in ("str", "bool", "seq", "map", "merge", "value")))


def read_text(path: Path, what: str) -> str:
    """The text of a file or a pipe, of at most `LARGEST_BYTES`.

    Args:
        path: where it is.
        what: its name in messages, such as "The file job.yaml".

    Raises:
        UserError: it cannot be read, is not a file, is too large, or is not UTF-8.
    """
    try:
        # Opening a pipe that nobody writes to would wait for ever.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise UserError(f"{what} is a device or a socket.", "Give a file.")
            os.set_blocking(file.fileno(), True)
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{what} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"{what} cannot be read: {error}.") from None
    if len(content) > LARGEST_BYTES:
        raise UserError(f"{what} has more than {LARGEST_BYTES:,} bytes, which is more than any such file needs.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{what} is not UTF-8.") from None


def node_of(text: str, what: str) -> yaml.Node | None:
    """The tree of a YAML document, with merge keys (`<<`) resolved; None if it is empty.

    Its scalars are as written; `text_of` and `data_of` make values of them.

    Args:
        text: the document.
        what: its name in messages, such as "The file job.yaml".

    Raises:
        UserError: it is not YAML, exceeds the limits, has a key twice, or a tag that is not allowed.
    """
    try:
        if text.count("\n%") > _MOST_DIRECTIVES:
            raise UserError(f"{what} has more than {_MOST_DIRECTIVES} lines that begin with %.")
        require_bounded(text, what)
        root: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
        for node in _nodes(root, set()) if root is not None else ():
            _check(node, what)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{what} is not YAML: {' '.join(str(error).split())[:300]}.") from None
    return root


def text_of(node: yaml.Node) -> Any:
    """Texts as written, lists and mappings of texts; None for a null.

    YAML itself would read the version 2.10 as 2.1 and 010 as 8. A quoted "null" is a text.
    """
    if isinstance(node, yaml.ScalarNode):
        return None if node.tag == NULL else str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [text_of(item) for item in node.value]
    return {str(key.value): text_of(value) for key, value in node.value}


def data_of(node: yaml.Node, what: str) -> Any:
    """The values of a tree by the rules of YAML 1.1.

    Args:
        node: the tree.
        what: the name of the document in messages.

    Raises:
        UserError: a value is not valid.
    """
    for part in _nodes(node, set()):
        if part.tag in _NUMBERS and len(part.value) > _LONGEST_NUMBER:
            line = part.start_mark.line + 1
            raise UserError(f"{what} has a number of {len(part.value)} characters in line {line}.", "Quote a text.")
    try:
        return yaml.SafeLoader("").construct_document(node)
    except (yaml.YAMLError, ValueError, ArithmeticError) as error:
        raise UserError(f"{what} is not YAML: {' '.join(str(error).split())[:300]}.") from None


def require_bounded(text: str, what: str, *, times: int = 1) -> None:
    """Counts the values of documents, including those that aliases repeat, before anything is built from them.

    Libyaml, and programs that walk its results, crash without a message if lists are nested without end.

    Args:
        text: the documents.
        what: their name in messages.
        times: a multiple of the limits for a file that people write.

    Raises:
        UserError: they exceed the limits.
        yaml.YAMLError: it is not YAML.
    """
    sizes: dict[str, tuple[int, int]] = {}
    # For each open list and mapping: its anchor, and the count before it.
    opened: list[tuple[str | None, int, int]] = []
    values = characters = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, values, characters))
            values += 1
            if len(opened) > DEEPEST * times:
                raise UserError(f"{what} is nested too deeply: more than {DEEPEST * times} levels.")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values_before, characters_before = opened.pop()
            if anchor is not None:
                sizes[anchor] = (values - values_before, characters - characters_before)
        elif isinstance(event, yaml.ScalarEvent):
            values, characters = values + 1, characters + len(event.value)
            if event.anchor is not None:
                sizes[event.anchor] = (1, len(event.value))
        elif isinstance(event, yaml.AliasEvent):
            name = str(event.anchor)
            if any(anchor == name for anchor, _, _ in opened):
                raise UserError(f"{what} has a recursive alias: *{name[:60]} is inside of what it stands for.")
            # An unknown alias is left to the composer, which gives its line.
            more_values, more_characters = sizes.get(name, (1, 0))
            values, characters = values + more_values, characters + more_characters
        if values > MOST_VALUES * times or characters > MOST_CHARACTERS * times:
            most = f"{MOST_VALUES * times:,} values or {MOST_CHARACTERS * times:,} characters"
            raise UserError(
                f"{what} stands for more than {most}.",
                "Look at its aliases (*NAME), each of which repeats what its anchor stands for.",
            )


def _nodes(node: yaml.Node, seen: set[int]) -> Iterator[yaml.Node]:
    """All nodes, each once, a parent before its children."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _nodes(item, seen)
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for part in pair:
                yield from _nodes(part, seen)
    yield node


def _check(node: yaml.Node, what: str) -> None:
    if node.tag not in _TAGS:
        line = node.start_mark.line + 1
        raise UserError(f"{what} is not YAML of plain values: it has the tag {node.tag[:60]} in line {line}.")
    if isinstance(node, yaml.MappingNode):
        _require_keys(node, what)
        yaml.SafeLoader("").flatten_mapping(node)


def _require_keys(node: yaml.MappingNode, what: str) -> None:
    keys: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise UserError(f"{what} is not YAML of plain values: a key in line {line} is a list or a mapping.")
        if key.value in keys:
            raise UserError(
                f"{what} has the key {key.value[:60]!r} twice, in lines {keys[key.value]} and {line}.",
                "Readers of YAML do not agree on which of the two counts. Leave one out.",
            )
        keys[key.value] = line
