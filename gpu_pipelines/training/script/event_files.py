"""The curves in TensorBoard's event files, as Lightning, Accelerate, Keras and `SummaryWriter` write them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

#: What the names of event files begin with.
NAMES = "events.out.tfevents.*"


def scalars_in(path: Path) -> Iterator[dict[str, float]]:
    """The scalars of an event file, each an entry of its step and its tag.

    What a killed program has left of the last record is passed over, as TensorBoard does.

    Args:
        path: the event file.
    """
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    are_scalars: dict[str, bool] = {}
    # The loader makes scalars of all versions, and of PyTorch, tensors of this plugin.
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            plugin = value.metadata.plugin_data.plugin_name
            if are_scalars.setdefault(value.tag, plugin == "scalars"):
                yield {"step": float(event.step), value.tag: float(make_ndarray(value.tensor))}
