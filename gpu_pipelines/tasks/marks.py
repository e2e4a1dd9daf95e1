"""Signs that are parts of words, and no letters for `re`: vowels of Hindi, Thai or Arabic, and accents."""

from __future__ import annotations

import unicodedata

#: All of them, to stand in a set of a regular expression; without selectors of emoji.
MARKS = "".join(sign for sign in map(chr, range(0xFE00)) if unicodedata.category(sign) in ("Mn", "Mc"))
