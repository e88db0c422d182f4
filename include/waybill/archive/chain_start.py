"""Chain starts: the stored record of the offset at which a chain begins, written before the chain's first object.

ZooKeeper cannot be the only place that knows this offset. The configured start `latest` moves, and so does the first
offset that Kafka's retention leaves. If a chain without objects lost its start together with ZooKeeper's data, it would
begin again at a later offset, and the offsets in between would be skipped without a trace. So the start is an S3
object, created if absent: the first lane decides, and every later lane uses that decision.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from waybill import names
from waybill.documents import read_document
from waybill.errors import DocumentDamaged
from waybill.names import Extension, TopicPartition
from waybill.store import Store

__all__ = ["ChainStart", "find_chain_start", "record_chain_start"]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class ChainStart:
    """The offset at which a chain begins, and the state of the topic when that was decided."""

    offset: int
    topic_id: str
    """Kafka's id of the topic; '' if the broker did not report one."""
    partitions: int
    """The number of partitions of the topic."""
    extension: Extension
    """The format of the chain's objects."""

    def to_json(self) -> bytes:
        return json.dumps({"v": _VERSION, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes, key: str) -> ChainStart:
        """Parse the document; `key` names it in errors.

        Raises `DocumentTooNew` for a document of a newer version, `DocumentDamaged` for a damaged one.
        """
        try:
            fields = read_document(data, _VERSION, key)
            start = cls(
                offset=int(fields["offset"]),
                topic_id=str(fields["topic_id"]),
                partitions=int(fields["partitions"]),
                extension=Extension(fields["extension"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DocumentDamaged(
                f"{key} is not a valid chain start ({type(error).__name__}: {error}): restore it from the bucket's "
                f"versions"
            ) from None
        return start


def record_chain_start(store: Store, generation: int, tp: TopicPartition, start: ChainStart) -> ChainStart:
    """Store where a chain begins, unless that is stored already. Return the start that is in force."""
    key = names.chain_start_key(store.prefix, tp.topic, generation, tp.partition)
    existing = store.create_or_read_existing(key, start.to_json())
    return start if existing is None else ChainStart.from_json(existing, key)


def find_chain_start(store: Store, generation: int, tp: TopicPartition) -> ChainStart | None:
    """Return where a chain begins; None if that is not stored."""
    key = names.chain_start_key(store.prefix, tp.topic, generation, tp.partition)
    data = store.read_if_exists(key)
    return None if data is None else ChainStart.from_json(data, key)
