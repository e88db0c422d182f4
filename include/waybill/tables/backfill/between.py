"""The state between the two commits of a promotion or an undo: the quarantine is changed, and the table is not yet.

In between, the quarantine's rows of the range belong to rows of the table that are not there yet. The rows that belong
to the table are those of the quarantine's snapshot from before.
"""

from __future__ import annotations

from dataclasses import dataclass

from waybill.config.models import Stream
from waybill.services.store import Store
from waybill.tables.backfill.events import find_claim
from waybill.tables.backfill.ranges import OffsetRanges
from waybill.tables.backfill.request import find_request
from waybill.tables.iceberg import RETRIES_PROPERTY, StreamTables
from waybill.tables.iceberg.state import BACKFILL_PROPERTY, ancestry
from waybill.tables.quarantine.view import retries_of


@dataclass(frozen=True, slots=True)
class HalfMoved:
    """A backfill's change that is committed to the quarantine, but not to the table."""

    backfill: str
    ranges: OffsetRanges
    snapshot_id: int
    """The quarantine's snapshot before the change."""


def find_half_moved(store: Store, name: str, stream: Stream, tables: StreamTables) -> HalfMoved | None:
    """Return the change that is only in the quarantine, for tables from `load_tables`; None if there is none."""
    main, quarantine = retries_of(tables)
    claim = find_claim(store, name, stream, tables) if quarantine > main else None
    if claim is None:
        return None
    for snapshot in ancestry(tables.quarantine.metadata):
        properties = snapshot.summary.additional_properties if snapshot.summary else {}
        is_change = properties.get(RETRIES_PROPERTY) == str(claim.number + 1) and BACKFILL_PROPERTY in properties
        if is_change and snapshot.parent_snapshot_id is not None:
            ranges = find_request(store, name, claim.backfill).ranges
            return HalfMoved(claim.backfill, ranges, snapshot.parent_snapshot_id)
    return None  # the claim changes no row
