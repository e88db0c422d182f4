"""Where a chain begins, kept in S3 from before its first object on.

ZooKeeper alone must not know it: `latest` moves, and so does what retention leaves. A chain that lost its start
together with ZooKeeper's data would begin anew further on, and what lies in between would be skipped in silence. So
the start is an object, created if absent: the first lane decides, and every later one goes by that.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from waybill import names
from waybill.documents import read_document
from waybill.errors import ConfigError
from waybill.names import Extension, TopicPartition
from waybill.store import Store

__all__ = ["ChainStart", "find_start", "record_start"]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class ChainStart:
    """Where a chain began, and what was known then."""

    offset: int
    topic_id: str
    """'' if Kafka did not say."""
    partitions: int
    """How many partitions the topic had."""
    extension: Extension
    """The format of the chain's objects."""

    def to_json(self) -> bytes:
        return json.dumps({"v": _VERSION, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes, key: str) -> ChainStart:
        """Raises `GenerationConflict` for a document of a newer version, `ConfigError` for one that is damaged."""
        try:
            fields = read_document(data, _VERSION, key)
            found = cls(
                offset=int(fields["offset"]),
                topic_id=str(fields["topic_id"]),
                partitions=int(fields["partitions"]),
                extension=Extension(fields["extension"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{key} does not say where a chain starts ({type(error).__name__}: {error}): restore it from the "
                f"bucket's versions"
            ) from None
        return found


def record_start(store: Store, generation: int, tp: TopicPartition, start: ChainStart) -> ChainStart:
    """Write down where a chain begins. Returns the start that counts: this one, or the one that is there."""
    key = names.start_key(store.prefix, tp.topic, generation, tp.partition)
    there = store.create_unless_there(key, start.to_json())
    return start if there is None else ChainStart.from_json(there, key)


def find_start(store: Store, generation: int, tp: TopicPartition) -> ChainStart | None:
    """Where a chain begins; None if nobody wrote it down."""
    key = names.start_key(store.prefix, tp.topic, generation, tp.partition)
    found = store.read_if_there(key)
    return None if found is None else ChainStart.from_json(found, key)
