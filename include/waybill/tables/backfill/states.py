"""The states of a backfill, and what a person can do in each. It imports nothing: the pages ask it, too."""

from __future__ import annotations

from enum import StrEnum


class BackfillAction(StrEnum):
    """What a person does with a backfill."""

    PROMOTE = "promote"
    UNDO = "undo"
    CANCEL = "cancel"


class BackfillState(StrEnum):
    """Where a backfill is."""

    PLANNED = "planned"
    """Requested; its tasks are executed, or were interrupted."""
    BUILT = "built"
    PROMOTED = "promoted"
    UNDONE = "undone"
    """Promoted, and undone: it can be promoted again."""
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """Whether the backfill may still be promoted. No other may be requested for the same offsets."""
        return self in (BackfillState.PLANNED, BackfillState.BUILT, BackfillState.UNDONE)


POSSIBLE_IN = {
    BackfillAction.PROMOTE: (BackfillState.BUILT, BackfillState.UNDONE),
    BackfillAction.UNDO: (BackfillState.PROMOTED,),
    BackfillAction.CANCEL: (BackfillState.PLANNED, BackfillState.BUILT, BackfillState.UNDONE),
}
"""The states in which each action is possible."""
STATE_AFTER = {
    BackfillAction.PROMOTE: BackfillState.PROMOTED,
    BackfillAction.UNDO: BackfillState.UNDONE,
    BackfillAction.CANCEL: BackfillState.CANCELLED,
}
