"""Who may ask the server: whoever sends one of its tokens, if it has any."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence


class Access:
    """Checks bearer tokens, RFC 6750. They are kept as hashes, and compared in a time that says nothing of them.

    Args:
        tokens: any of which will do; none, and everybody may ask.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._hashes = [_hashed(token.encode()) for token in tokens]

    def allows(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers (names in lower case) may be answered."""
        if not self._hashes:
            return True
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].strip().partition(b" ")
        hashed = _hashed(token.strip())
        # All are compared, whichever is right.
        same = [hmac.compare_digest(hashed, each) for each in self._hashes]
        return scheme.lower() == b"bearer" and any(same)


def _hashed(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
