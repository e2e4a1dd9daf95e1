"""Signs that `re` takes for no letters, though they are parts of words: vowels of Hindi or Thai, accents, joiners."""

from __future__ import annotations

import unicodedata

#: All of them, to stand in a set of a regular expression; without selectors of emoji.
MARKS = "".join(sign for sign in map(chr, range(0xFE00)) if unicodedata.category(sign) in ("Mn", "Mc"))
MARKS += "\u200c\u200d"
