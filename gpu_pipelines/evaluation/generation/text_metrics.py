"""How close a text is to its reference: the metrics that need only these two.

ROUGE is computed here: rouge-score, which others use, has had no release since 2022, needs nltk, and takes
only Latin letters for words. A test compares the figures of English texts with it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.marks import MARKS

# Each character of Chinese and Japanese, which have no blanks between words, and runs of letters and digits of others.
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}](?:[^\W_{_UNSPACED}]|[{MARKS}])*")


def exact_match(written: str, reference: str) -> float:
    """1 if the two are the same apart from white space; case and punctuation count."""
    return float(_normalised(written) == _normalised(reference))


def contains(written: str, reference: str) -> float:
    """1 if the text contains the reference, apart from white space; case and punctuation count."""
    return float(_normalised(reference) in _normalised(written))


def rouge_1(written: str, reference: str) -> float:
    """ROUGE-1: F1 of the words that both have."""
    return _rouge_n(words_of(written), words_of(reference), 1)


def rouge_2(written: str, reference: str) -> float:
    """ROUGE-2: F1 of the pairs of neighbouring words that both have."""
    return _rouge_n(words_of(written), words_of(reference), 2)


def rouge_l(written: str, reference: str) -> float:
    """ROUGE-L: F1 of the longest sequence of words that both have in the same order.

    Source: Lin, https://aclanthology.org/W04-1013.
    """
    mine, theirs = words_of(written), words_of(reference)
    return _f1(_longest_common(mine, theirs), len(mine), len(theirs))


def json_valid(written: str, reference: str = "") -> float:
    """1 if the whole text is JSON; NaN and Infinity are not JSON."""
    return float(_json_in(written) is not None)


def json_matches(schema: Mapping[str, Any]) -> Callable[[str, str], float]:
    """The metric `json_schema`: 1 if the whole text is JSON that a schema allows.

    Args:
        schema: a JSON Schema; without `$schema` of the draft 2020-12.

    Raises:
        UserError: it is not a schema.
    """
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise UserError(
            f"json_schema is not a JSON Schema: {error.message[:200]}.", f"Look at {error.json_path}."
        ) from None
    validator = kind(schema)

    def matches(written: str, reference: str = "") -> float:
        found = _json_in(written)
        return float(found is not None and validator.is_valid(found[0]))

    return matches


#: The metrics by name; a judge, a schema and functions of a user's own come from what the user gives besides.
TEXT_METRICS: Mapping[str, Callable[[str, str], float]] = {
    "exact_match": exact_match,
    "contains": contains,
    "rouge_1": rouge_1,
    "rouge_2": rouge_2,
    "rouge_l": rouge_l,
    "json_valid": json_valid,
}


def words_of(text: str) -> list[str]:
    """Its words in small letters: runs of letters, marks and digits; of Chinese and Japanese each character."""
    return _WORD.findall(unicodedata.normalize("NFC", text).lower())


def _normalised(text: str) -> str:
    """In Unicode's composed form, without white space at its ends, and one blank for other white space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _rouge_n(mine: Sequence[str], theirs: Sequence[str], size: int) -> float:
    ours, others = _grams(mine, size), _grams(theirs, size)
    return _f1((ours & others).total(), ours.total(), others.total())


def _grams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + size]) for start in range(len(words) - size + 1))


def _f1(common: int, mine: int, theirs: int) -> float:
    return 2 * common / (mine + theirs) if common else 0.0


def _longest_common(mine: Sequence[str], theirs: Sequence[str]) -> int:
    """Length of the longest common subsequence; a bit of a whole number stands for each word of `theirs`.

    Source: Hyyrö, Bit-parallel LCS-length computation revisited (2004).
    """
    places: dict[str, int] = {}
    for place, word in enumerate(theirs):
        places[word] = places.get(word, 0) | (1 << place)
    every = (1 << len(theirs)) - 1
    row = every
    for word in mine:
        found = row & places.get(word, 0)
        row = ((row + found) | (row - found)) & every
    return len(theirs) - row.bit_count()


def _json_in(text: str) -> tuple[Any] | None:
    """What a text is as JSON, in a tuple, because it may be null; None where it is no JSON."""
    try:
        return (json.loads(text, parse_constant=_refuse),)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
