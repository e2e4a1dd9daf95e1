"""Controls how often a process of this project collects cyclic garbage.

Importing PyTorch and transformers creates millions of objects, hardly any of which are garbage. By default, Python
examines them again and again during the import, and once more when the process ends.
"""

from __future__ import annotations

import atexit
import gc

#: Python's threshold of new objects; and ours, for a process that imports much.
_USUAL, _RARE = gc.get_threshold()[0], 10_000


def collect_rarely() -> None:
    """Makes this process collect garbage less often, and not at all when it ends.

    Only for this project's own processes; a user's program decides for itself.
    """
    gc.set_threshold(_RARE, *gc.get_threshold()[1:])
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


def collect_as_usual() -> None:
    """Makes this process collect garbage as often as Python does, but no longer among the objects that exist now.

    For use before a long computation, in which garbage may hold much GPU memory.
    """
    gc.freeze()
    gc.set_threshold(_USUAL, *gc.get_threshold()[1:])
