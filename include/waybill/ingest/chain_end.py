"""The end of a chain as ingest needs it: checked against the committed offset, or taken for it where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from waybill import chain
from waybill.coordination import Committed
from waybill.errors import ChainBroken
from waybill.ingest.chain_start import find_start
from waybill.names import TopicPartition
from waybill.store import Store, StoredObject

__all__ = ["committed_from_chain", "find_uncommitted", "removable"]


def find_uncommitted(store: Store, generation: int, tp: TopicPartition, committed: Committed) -> StoredObject | None:
    """The object that starts at the committed offset, if a lane died before it could commit it. One listing call.

    Raises `ChainBroken` if the last object is not there that the committed offset counts, or if objects begin beyond
    the committed offset and none at it.
    """
    offset, last = committed.committed_offset, committed.last_object_offset
    start = offset if last is None else last
    listed = store.list_chain(tp.topic, generation, tp.partition, start_after=start - 1 if start else None)
    found = next(listed, None)
    if last is not None and last < offset:
        if found is None or found.name.first_offset != last:
            raise _missing(tp, last, offset)
        found = next(listed, None)
    if found is None or found.name.first_offset == offset:
        return found
    beyond = found.name.first_offset
    raise ChainBroken(
        f"{tp}: the committed offset is {offset}, where no backup object starts or ends, but {found.key} starts at "
        f"{beyond}. Look at the chain with `waybill verify --no-table`: if it is whole, the committed offset is wrong, "
        f"and `waybill offsets rebuild --topic {tp.topic} --yes` takes it from the chain",
        min(offset, beyond),
        max(offset, beyond),
    )


def _missing(tp: TopicPartition, last: int, offset: int) -> ChainBroken:
    return ChainBroken(
        f"{tp}: the chain's last backup object, offsets {last}–{offset - 1}, is missing. Restore it from the bucket's "
        f"versions or replica. If it is lost: `waybill offsets rebuild --topic {tp.topic} --yes` goes back to where "
        f"the chain ends now, and what Kafka still has of these offsets is archived again",
        last,
        offset,
    )


@contextmanager
def removable(key: str, first_offset: int) -> Iterator[None]:
    """Adds to a `ChainBroken` of the chain's last object what can be done about it: nothing was built on it yet."""
    try:
        yield
    except ChainBroken as error:
        raise ChainBroken(
            f"{error}. Ingest of this topic-partition is stopped, and nothing is written over: restore the object from "
            f"the bucket's versions or replica, or move {key} away by hand. The next run then archives the offsets "
            f"from {first_offset} on again; those that Kafka no longer has are a RetentionGap, to be decided",
            first_offset,
            error.next_offset,
        ) from error


def committed_from_chain(store: Store, generation: int, tp: TopicPartition, now_ms: int) -> Committed | None:
    """The committed offset as the chain says, from its listing and its last object; None without a chain.

    Raises `ChainBroken` when the last object does not hold what its name says.
    """
    stored = chain.last(store, generation, tp)
    if stored is None:
        return None
    with removable(stored.key, stored.name.first_offset):
        contents = chain.inspect(store, stored.name, stored.key)
    metadata = store.metadata(stored.key)
    start = find_start(store, generation, tp)
    return Committed(
        committed_offset=contents.next_offset,
        topic_id=metadata.get("topic-id", ""),
        leader_epoch=contents.leader_epoch,
        object_bytes=contents.size_bytes,
        object_messages=contents.messages,
        committed_at_ms=now_ms,
        start_offset=None if start is None else start.offset,
        last_object_offset=stored.name.first_offset,
        extension=stored.name.extension,
    )
