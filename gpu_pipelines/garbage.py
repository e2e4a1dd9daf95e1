"""How often a process of this project looks for cyclic garbage.

Importing PyTorch and transformers makes objects by the million, and hardly one of them is ever garbage. As Python is
set up, they are looked at again and again while they are imported, and once more when the process ends.
"""

from __future__ import annotations

import atexit
import gc

#: Python's own number of new objects after which it looks; and ours, for a process that imports much.
_USUAL, _RARE = gc.get_threshold()[0], 10_000


def collect_rarely() -> None:
    """Lets this process look for garbage less often, and not at all when it ends.

    For processes that are this project's alone; a program of the user's decides for itself.
    """
    gc.set_threshold(_RARE, *gc.get_threshold()[1:])
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


def collect_as_usual() -> None:
    """Lets this process look for garbage as often as Python does, but no longer among the objects that are there now.

    Before a long computation, in which garbage may hold much memory of a GPU.
    """
    gc.freeze()
    gc.set_threshold(_USUAL, *gc.get_threshold()[1:])
