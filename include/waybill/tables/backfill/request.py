"""The request of a backfill: who requests it, why, the range, and the tasks. It is never changed.

The request is an object that is created if absent. Every process that continues a backfill (a retry, a rival, another
machine) executes the tasks that the request lists, with the settings that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, TypeVar

from waybill.base.documents import As, Document, Stored
from waybill.base.errors import BackfillRefused
from waybill.config.names import (
    backfill_built_key,
    backfill_plan_id,
    backfill_request_key,
    backfills_prefix,
    check_backfill_id,
)
from waybill.services.store import Store
from waybill.tables.backfill.generation_request import GenerationRequest
from waybill.tables.backfill.ranges import OffsetRanges
from waybill.tables.partition.partition_plan import Plan

_OBJECT = "/request.json"

_Record = TypeVar("_Record", bound=Stored)


@dataclass(frozen=True, slots=True)
class BackfillRequest(Stored):
    """A backfill of a range of a stream's live generation from the archive."""

    DOCUMENT: ClassVar = Document(
        "backfill {where} cannot be read ({error}): restore the object", name="backfill {where}"
    )

    id: str
    by: str
    reason: str
    token: str
    """Names the trigger, such as a DAG run: the same trigger finds its request again."""
    table_uuid: str
    """The uuid of the main table: a table that was dropped and created again has another one."""
    base: int | None
    """The head of the table's `main` when the backfill was requested."""
    ranges: Annotated[OffsetRanges, As("range", OffsetRanges.parse, OffsetRanges.document)]
    objects_in_part: Annotated[frozenset[str], As("", frozenset, sorted)]
    """Keys of the backup objects that extend beyond the range."""
    plan: Plan
    """Stream, generation, time, parse settings and tasks. Its key is the key of the request."""

    @property
    def plan_id(self) -> str:
        return backfill_plan_id(self.id)

    @property
    def stream(self) -> str:
        return self.plan.stream

    @property
    def at(self) -> datetime:
        return self.plan.created_at

    @property
    def size_bytes(self) -> int:
        """Size of the backup objects that the tasks read."""
        return sum({span.key: span.size_bytes for task in self.plan.tasks for span in task}.values())

    @property
    def objects(self) -> int:
        return len({span.key for task in self.plan.tasks for span in task})


AnyRequest = BackfillRequest | GenerationRequest


def find_request(store: Store, stream: str, backfill: str) -> BackfillRequest:
    """Return the request of a backfill. Raises `BackfillRefused`, with the ids that exist, if there is none."""
    try:
        key = backfill_request_key(store.prefix, stream, check_backfill_id(backfill))
        found = store.read_if_exists(key)
    except ValueError:
        found = None
    if found is None:
        known = ", ".join(_list_ids(store, stream)) or "none"
        raise BackfillRefused(f"stream {stream} has no backfill {backfill!r}; its backfills: {known}")
    return BackfillRequest.from_json(key, found)


def list_requests(store: Store, stream: str) -> list[BackfillRequest]:
    """Return the requests of all backfills of a stream, oldest first."""
    found = [find_request(store, stream, backfill) for backfill in _list_ids(store, stream)]
    return sorted(found, key=lambda request: (request.at, request.id))


def _list_ids(store: Store, stream: str) -> Iterator[str]:
    prefix = backfills_prefix(store.prefix, stream)
    return (key.removeprefix(prefix).removesuffix(_OBJECT) for key in store.keys(prefix) if key.endswith(_OBJECT))


def find_built(store: Store, request: AnyRequest, record: type[_Record]) -> _Record | None:
    """Return the record that a backfill is built, or None. `record`: its class, which follows from the request's."""
    key = backfill_built_key(store.prefix, request.stream, request.id)
    found = store.read_if_exists(key)
    return None if found is None else record.from_json(key, found)
