"""What a retry has staged: said once and for all, before anything of it is committed.

The n-th retry of a table is an object that is created if absent. Whoever finds it carries out this retry, and none of
its own, before the next number. Beside it, in an object of its own, lie the messages that its files hold.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from pydantic import ValidationError

from waybill.config import Reading
from waybill.documents import read_document
from waybill.errors import ObjectMissing, PlanUnusable
from waybill.names import TopicPartition, retry_offsets_key
from waybill.quarantine.offset_sets import Offsets
from waybill.staging.table_layout import Entry
from waybill.store import Store

__all__ = ["Retry", "find_retry", "new_offsets", "read_offsets", "record_retry"]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Retry:
    """One retry of a quarantine."""

    key: str
    number: int
    run_id: str
    """Whose files they are."""
    created_at: datetime
    reading: Reading
    """By which the rows were parsed."""
    choice: Mapping[str, Any]
    """What was asked for: for people."""
    rows: int
    ranges: Mapping[TopicPartition, tuple[int, int]]
    """Between which offsets the messages lie: `[first, next)`."""
    entries: tuple[Entry, ...]
    """The data files for the table."""
    offsets_key: str
    """The object that says which messages they hold."""

    @property
    def files(self) -> tuple[str, ...]:
        """Where the data files are."""
        return tuple(path for path, *_ in self.entries)

    def to_json(self) -> bytes:
        """The document of `"v": 1`."""
        document = {
            "v": _VERSION,
            "number": self.number,
            "run": self.run_id,
            "created_at": self.created_at.isoformat(),
            "reading": self.reading.model_dump(mode="json"),
            "choice": self.choice,
            "rows": self.rows,
            "ranges": {str(tp): list(ends) for tp, ends in sorted(self.ranges.items())},
            "files": list(self.entries),
            "offsets": self.offsets_key,
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, key: str, text: bytes) -> Self:
        """The inverse of `to_json`.

        Raises `GenerationConflict` for a newer Waybill's, `PlanUnusable` on anything else that this one did not write.
        """
        try:
            document = read_document(text, _VERSION, key)
            return cls(
                key=key,
                number=document["number"],
                run_id=document["run"],
                created_at=datetime.fromisoformat(document["created_at"]),
                reading=Reading.model_validate(document["reading"]),
                choice=document["choice"],
                rows=document["rows"],
                ranges={TopicPartition.parse(tp): (first, last) for tp, (first, last) in document["ranges"].items()},
                entries=tuple(document["files"]),
                offsets_key=document["offsets"],
            )
        except (ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
            raise PlanUnusable(f"retry {key} cannot be read ({error}): restore the object, and run again") from error


def find_retry(store: Store, key: str) -> Retry | None:
    """The retry of that name, if there is one."""
    found = store.read_if_there(key)
    return None if found is None else Retry.from_json(key, found)


def record_retry(store: Store, retry: Retry) -> bool:
    """Say what a retry has staged. False: another one has said so before, and that one counts."""
    there = store.create_unless_there(retry.key, retry.to_json())
    # It may be our own: a create whose answer was lost is tried again, and refused.
    return there is None or Retry.from_json(retry.key, there).run_id == retry.run_id


def new_offsets(store: Store, key: str, offsets: Offsets) -> str:
    """Write down which messages the retry of this name has; the object's key. Until the retry names it, it is none."""
    offsets_key = retry_offsets_key(key, uuid.uuid4().hex)
    store.create_if_absent(offsets_key, offsets.to_parquet())
    return offsets_key


def read_offsets(store: Store, retry: Retry) -> Offsets:
    """Which messages the retry has. Raises `PlanUnusable` when the object is gone, or another one."""
    try:
        offsets = Offsets.from_parquet(store.read(retry.offsets_key))
    except (ObjectMissing, ValueError) as error:
        raise PlanUnusable(f"retry {retry.key} names {retry.offsets_key}: {error}. Restore the object") from error
    if len(offsets) != retry.rows:
        raise PlanUnusable(
            f"retry {retry.key} has {retry.rows:,} rows, and {retry.offsets_key} names {len(offsets):,} messages: one "
            f"of the two was replaced by hand"
        )
    return offsets
