"""Which checkpoints may be deleted: all but the newest, the best, and every Nth."""

from __future__ import annotations

from collections.abc import Mapping


def superseded(
    checkpoints: Mapping[int, bool], keep_last: int, keep_every_steps: int, best_step: int | None
) -> list[int]:
    """Steps of the checkpoints that are not to be kept.

    Args:
        checkpoints: for the step of each checkpoint known to be whole, whether it was due; one that was written because
            of an interruption is kept only until there is a newer one, so that an interrupted training ends with the
            checkpoints of one that was not. The newest is always kept.
        keep_last: number of newest ones to keep; 0 keeps all.
        keep_every_steps: those at multiples of this are kept; 0 for none.
        best_step: step of the one with the lowest loss on val, which is kept; None if not known.
    """
    newest = max(checkpoints)
    due = sorted(step for step, was_due in checkpoints.items() if was_due)
    kept = set(due if keep_last == 0 else due[-keep_last:]) | {best_step, newest}
    if keep_every_steps:
        kept |= {step for step in due if step % keep_every_steps == 0}
    return sorted(set(checkpoints) - kept)
