"""The request of a generation build: to archive and partition a generation that is not live, and to compare it.

A generation that is not live has a branch of the tables, and a stream of the config whose partition runs fill it. So
its request has no tasks: it records the offsets that the branch must reach. Like the request for a range, it is an
object that is created if absent, and never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar

from waybill.base.documents import As, Document, Stored, spaced
from waybill.config.names import backfill_generation_key, backfills_prefix
from waybill.services.store import Store
from waybill.tables.backfill.ranges import OffsetRanges

_OBJECT = "/generation.json"


class BackfillSource(StrEnum):
    """Where a backfill takes messages from."""

    ARCHIVE = "archive"
    KAFKA = "kafka"
    """Archive them again, into the chains of a generation that is not live."""


@dataclass(frozen=True, slots=True)
class GenerationRequest(Stored):
    """A request to build a generation that is not live."""

    DOCUMENT: ClassVar = Document(
        "backfill {where} cannot be read ({error}): restore the object", name="backfill {where}"
    )

    id: str
    stream: str
    """The stream of the config that has the generation."""
    generation: int
    live: int
    """The generation that was live when the build was requested."""
    by: str
    reason: str
    token: str
    """Names the trigger, such as a DAG run: the same trigger finds its request again."""
    at: datetime
    table_uuid: str
    source: BackfillSource
    ranges: Annotated[OffsetRanges, As("range", OffsetRanges.parse, OffsetRanges.document)]
    """The offsets that the branch must have."""
    compared: Annotated[OffsetRanges, As("", OffsetRanges.parse, OffsetRanges.document)]
    """The ranges that the diff compares: the range, and if everything was chosen, also rows that only the live
    generation has."""

    def key(self, store: Store) -> str:
        """Return the key of the request's object."""
        return backfill_generation_key(store.prefix, self.stream, self.id)


def find_generation_request(store: Store, stream: str, backfill: str) -> GenerationRequest | None:
    """Return the request of a generation build of a stream; None if there is none with the id."""
    try:
        key = backfill_generation_key(store.prefix, stream, backfill)
    except ValueError:
        return None
    found = store.read_if_exists(key)
    return None if found is None else GenerationRequest.from_json(key, found)


def list_generation_requests(store: Store, stream: str) -> list[GenerationRequest]:
    """Return the requests of all generation builds of a stream, oldest first."""
    found = [GenerationRequest.from_json(key, store.read(key)) for key in _keys(store, stream)]
    return sorted(found, key=lambda request: (request.at, request.id))


def _keys(store: Store, stream: str) -> Iterator[str]:
    return (key for key in store.keys(backfills_prefix(store.prefix, stream)) if key.endswith(_OBJECT))


# --- built ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BuiltGeneration(Stored):
    """The record that the branch has the whole range: created if absent. The diff compares these snapshots."""

    DOCUMENT: ClassVar = Document("{where} cannot be read ({error}): restore the object", dump=spaced)

    main: int | None
    quarantine: int | None
    """The heads of `main` in the table and in the quarantine; None: there is no snapshot."""
    branch: int | None
    quarantine_branch: int | None
    """The heads of the generation's branch."""
    rows: int
    """The number of rows on the branch."""
    quarantined: int
