"""The record of a retry: its staged files, recorded before any of them is committed.

The n-th retry of a table is an object that is created if absent. A process that finds it finishes this retry before it
begins the next number. A second object holds the offsets of the messages that the retry's files contain.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, ClassVar, Self

from waybill.base.documents import DAMAGES, As, Document, Stored
from waybill.base.errors import BackfillUnderWay, ObjectMissing, PlanUnusable
from waybill.config.models import ParseSettings
from waybill.config.names import TopicPartition, retry_offsets_key
from waybill.services.store import Store
from waybill.tables.audit import Audit, HoldDecision
from waybill.tables.partition.partition_plan import SETTINGS
from waybill.tables.quarantine.offset_sets import OffsetSet
from waybill.tables.staging.table_layout import FileEntry

CLAIM_FIELD = "backfill"
"""The field of a claim, which takes the place of a retry's record: the id of the backfill that has claimed the number
(`waybill.tables.backfill.events`)."""
CLAIM_VERSION = 2
"""The version of a claim: earlier versions of Waybill, which do not know claims, refuse it."""


def _ranges_document(ranges: Mapping[TopicPartition, tuple[int, int]]) -> dict[str, list[int]]:
    return {str(tp): list(ends) for tp, ends in sorted(ranges.items())}


def _parse_ranges(document: Mapping[str, tuple[int, int]]) -> dict[TopicPartition, tuple[int, int]]:
    return {TopicPartition.parse(tp): (first, last) for tp, (first, last) in document.items()}


@dataclass(frozen=True, slots=True)
class StagedRetry(Stored):
    """A retry of a quarantine whose files are staged."""

    DOCUMENT: ClassVar = Document("retry {where} cannot be read ({error}): restore the object, and run again")

    key: Annotated[str, As(is_place=True)]
    number: int
    run_id: Annotated[str, As("run")]
    """The run that wrote the files."""
    created_at: datetime
    parse_settings: Annotated[ParseSettings, SETTINGS]
    """The settings with which the rows were parsed."""
    choice: Mapping[str, Any]
    """The filter that the user gave; only for people who read the object."""
    rows: int
    ranges: Annotated[Mapping[TopicPartition, tuple[int, int]], As("", _parse_ranges, _ranges_document)]
    """The range `[first, next)` of the messages of each topic-partition."""
    entries: Annotated[tuple[FileEntry, ...], As("files")]
    """The data files for the table."""
    offsets_key: Annotated[str, As("offsets")]
    """Key of the object with the offsets of the messages in the files."""
    audit: Annotated[Audit | None, As(is_left_out=True)] = None
    """The audit of the files. None: an earlier version of Waybill, without audits, recorded the retry."""
    accepted: Annotated[HoldDecision | None, As(is_left_out=True)] = None
    """A person's decision to move the messages although critical checks failed."""

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the data files."""
        return tuple(path for path, *_ in self.entries)

    @classmethod
    def from_json(cls, where: str, data: bytes | str) -> Self:
        """Parse what `to_json` returned.

        Raises `BackfillUnderWay` for the claim of a backfill, `DocumentTooNew` for a newer Waybill's document,
        `DocumentDamaged` for one that cannot be parsed.
        """
        try:
            document = _CLAIM.read(data, where)
            if CLAIM_FIELD in document:
                raise BackfillUnderWay(
                    f"backfill {document[CLAIM_FIELD]} is being changed ({document['action']}) by {document['by']} "
                    f"since {document['at']}: try again in a moment. If that process was killed, any command `waybill "
                    f"backfill {document['action']} STREAM {document[CLAIM_FIELD]}` ends what it began"
                )
            return cls.of_part(where, document)
        except DAMAGES as error:
            raise cls.DOCUMENT.damage(where, error) from error


_CLAIM = replace(StagedRetry.DOCUMENT, version=CLAIM_VERSION)


def find_retry(store: Store, key: str) -> StagedRetry | None:
    """Return the retry with this key, or None if no process has recorded it."""
    found = store.read_if_exists(key)
    return None if found is None else StagedRetry.from_json(key, found)


def record_retry(store: Store, retry: StagedRetry, offsets: OffsetSet) -> bool:
    """Record the offsets and the files of a retry. Return False if another process has recorded this number before."""
    # Store the offsets first: until a record names their object, the object has no effect.
    store.create_if_absent(retry.offsets_key, offsets.to_parquet())
    existing = store.create_or_read_existing(retry.key, retry.to_json())
    if existing is not None and CLAIM_FIELD in json.loads(existing):
        return False
    # This process may have created the object: if the response is lost, the request is sent again, and refused.
    return existing is None or StagedRetry.from_json(retry.key, existing).run_id == retry.run_id


def new_offsets_key(key: str) -> str:
    """Return a new key for the offsets of the retry with this key. No other attempt uses it."""
    return retry_offsets_key(key, uuid.uuid4().hex)


def read_offsets(store: Store, retry: StagedRetry) -> OffsetSet:
    """Return the retry's messages. Raises `PlanUnusable` when the object is missing or belongs to another retry."""
    try:
        offsets = OffsetSet.from_parquet(store.read(retry.offsets_key))
    except (ObjectMissing, ValueError) as error:
        raise PlanUnusable(f"retry {retry.key} names {retry.offsets_key}: {error}. Restore the object") from error
    if len(offsets) != retry.rows:
        raise PlanUnusable(
            f"retry {retry.key} has {retry.rows:,} rows, and {retry.offsets_key} names {len(offsets):,} messages: one "
            f"of the two was replaced by hand"
        )
    return offsets
