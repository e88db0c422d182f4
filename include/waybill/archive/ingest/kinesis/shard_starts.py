"""The assignments of shards to slots, as S3 objects: created if absent, and never changed.

S3 decides, as it does for a chain start: the first plan that creates a shard's object has made the assignment, and
every other plan uses it. So two slots never read the same shard, even if ZooKeeper has lost data or a plan was frozen
for a long time.

The stream's origin is one such object too. It is created before the first assignment, and holds all data from which the
starts of shards are derived. So if a plan dies between two assignments, the next plan makes the same assignments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from waybill.base.documents import Document
from waybill.config import names
from waybill.records.shards.slot_map import Assignment, SlotMap, StreamOrigin
from waybill.services.store import Store

_ORIGIN = Document("{where} is not a valid origin of a stream ({kind}: {error}): restore it from the bucket's versions")
_ASSIGNMENT = Document(
    "{where} is not a valid assignment of a shard ({kind}: {error}): restore it from the bucket's versions"
)


def record_stream_origin(store: Store, topic: str, generation: int, origin: StreamOrigin) -> StreamOrigin:
    """Store the origin of a stream, unless that is stored already. Return the stored origin.

    Raises `DocumentTooNew` or `DocumentDamaged` for the stored one.
    """
    key = names.stream_origin_key(store.prefix, topic, generation)
    existing = store.create_or_read_existing(key, _ORIGIN.write(origin.to_fields()))
    return origin if existing is None else _ORIGIN.parse(key, existing, StreamOrigin.of_fields)


def find_stream_origin(store: Store, topic: str, generation: int) -> StreamOrigin | None:
    """Return the origin of a stream; None if it is not stored. Raises `DocumentTooNew` or `DocumentDamaged`."""
    key = names.stream_origin_key(store.prefix, topic, generation)
    data = store.read_if_exists(key)
    return None if data is None else _ORIGIN.parse(key, data, StreamOrigin.of_fields)


def record_shard_start(store: Store, topic: str, generation: int, assignment: Assignment) -> Assignment:
    """Store the assignment of a shard, unless one is stored already. Return the stored assignment.

    Raises `DocumentTooNew` or `DocumentDamaged` for the stored one.
    """
    key = names.shard_start_key(store.prefix, topic, generation, assignment.shard_id)
    fields = {"shard_id": assignment.shard_id, **assignment.to_fields()}
    existing = store.create_or_read_existing(key, _ASSIGNMENT.write(fields))
    return assignment if existing is None else _parse_assignment(existing, assignment.shard_id, key)


def find_shard_start(store: Store, topic: str, generation: int, shard_id: str) -> Assignment | None:
    """Return the assignment of a shard; None if there is none. Raises `DocumentTooNew` or `DocumentDamaged`."""
    key = names.shard_start_key(store.prefix, topic, generation, shard_id)
    data = store.read_if_exists(key)
    return None if data is None else _parse_assignment(data, shard_id, key)


def list_shard_starts(store: Store, topic: str, generation: int, known: Collection[str] = ()) -> Iterator[Assignment]:
    """Yield the assignments of a stream's shards, in the order of their ids, without those of `known` shards.

    It takes one call for each thousand shards, and one for each unknown assignment. Raises `DocumentTooNew` or
    `DocumentDamaged`.
    """
    for found in store.list_objects(names.shard_starts_prefix(store.prefix, topic, generation)):
        shard_id = names.shard_of_key(found.key)
        if shard_id is not None and shard_id not in known:
            yield _parse_assignment(store.read(found.key), shard_id, found.key)


def read_slot_map(store: Store, topic: str, generation: int, known: SlotMap) -> SlotMap:
    """Return a slot map with all assignments that S3 holds. Assignments in `known` are not read again.

    Raises `DocumentTooNew` or `DocumentDamaged`.
    """
    return known.extended(list_shard_starts(store, topic, generation, known.assignments.keys()))


def _parse_assignment(data: bytes, shard_id: str, key: str) -> Assignment:
    def made(fields: dict[str, Any]) -> Assignment:
        if fields["shard_id"] != shard_id:
            raise ValueError(f"it is that of {fields['shard_id']!r}")
        return Assignment.of_fields(shard_id, fields)

    return _ASSIGNMENT.parse(key, data, made)
