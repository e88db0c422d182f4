"""The request of a generation build: to archive and partition a generation that is not live, and to compare it.

A generation that is not live has a branch of the tables, and a stream of the config whose partition runs fill it. So
its request has no tasks: it records up to which offsets the branch has to come. Like that of a range it is an object
that is created if absent, and is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from waybill.base.documents import read_document
from waybill.base.errors import DocumentDamaged
from waybill.config.names import backfill_built_key, backfill_generation_key, backfills_prefix
from waybill.services.store import Store
from waybill.tables.backfill.ranges import OffsetRanges

_VERSION = 1
_OBJECT = "/generation.json"


class Source(StrEnum):
    """Where a backfill takes messages from."""

    ARCHIVE = "archive"
    KAFKA = "kafka"
    """Archive them again, into the chains of a generation that is not live."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request to build a generation that is not live."""

    id: str
    stream: str
    """The stream of the config that has the generation."""
    generation: int
    live: int
    """The generation that was live when the build was requested."""
    by: str
    reason: str
    token: str
    """What triggered it, such as a DAG run: the same trigger finds its request again."""
    at: datetime
    table_uuid: str
    source: Source
    ranges: OffsetRanges
    """What the branch must have."""
    compared: OffsetRanges
    """What the diff compares: the range, and if everything was chosen also what only the live generation has."""

    def to_json(self) -> bytes:
        """Return the request's object, with `"v": 1`."""
        document: dict[str, Any] = {
            "v": _VERSION,
            "id": self.id,
            "stream": self.stream,
            "generation": self.generation,
            "live": self.live,
            "by": self.by,
            "reason": self.reason,
            "token": self.token,
            "at": self.at.isoformat(),
            "table_uuid": self.table_uuid,
            "source": self.source,
            "range": self.ranges.document(),
            "compared": self.compared.document(),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, key: str, content: bytes) -> Self:
        """Parse what `to_json` returned.

        Raises `DocumentTooNew` for a newer Waybill's request, `DocumentDamaged` for one that cannot be parsed.
        """
        try:
            document = read_document(content, _VERSION, f"backfill {key}")
            return cls(
                id=document["id"],
                stream=document["stream"],
                generation=document["generation"],
                live=document["live"],
                by=document["by"],
                reason=document["reason"],
                token=document["token"],
                at=datetime.fromisoformat(document["at"]),
                table_uuid=document["table_uuid"],
                source=Source(document["source"]),
                ranges=OffsetRanges.parse(document["range"]),
                compared=OffsetRanges.parse(document["compared"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DocumentDamaged(f"backfill {key} cannot be read ({error}): restore the object") from error

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
class BuiltGeneration:
    """The record that the branch has the whole range: created if absent. The diff compares these snapshots."""

    main: int | None
    quarantine: int | None
    """The heads of `main` in the table and in the quarantine; None: without a snapshot."""
    branch: int | None
    quarantine_branch: int | None
    """The heads of the generation's branch."""
    rows: int
    """Of the branch."""
    quarantined: int

    def to_json(self) -> bytes:
        """Return the content of the record's object, with `"v": 1`."""
        return json.dumps(
            {
                "v": _VERSION,
                "main": self.main,
                "quarantine": self.quarantine,
                "branch": self.branch,
                "quarantine_branch": self.quarantine_branch,
                "rows": self.rows,
                "quarantined": self.quarantined,
            }
        ).encode()

    @classmethod
    def from_json(cls, key: str, content: bytes) -> Self:
        """Parse what `to_json` returned. Raises `DocumentTooNew` or `DocumentDamaged`."""
        try:
            fields = read_document(content, _VERSION, key)
            return cls(
                fields["main"],
                fields["quarantine"],
                fields["branch"],
                fields["quarantine_branch"],
                fields["rows"],
                fields["quarantined"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DocumentDamaged(f"{key} cannot be read ({error}): restore the object") from error


def find_built_generation(store: Store, request: GenerationRequest) -> BuiltGeneration | None:
    """Return the record that a generation is built, or None."""
    key = backfill_built_key(store.prefix, request.stream, request.id)
    found = store.read_if_exists(key)
    return None if found is None else BuiltGeneration.from_json(key, found)
