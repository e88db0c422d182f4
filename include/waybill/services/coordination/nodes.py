"""The documents in ZooKeeper's nodes: committed offsets and named stops, as JSON with a version.

ZooKeeper refuses nodes of more than 1 MB. Documents that grow with the number of streams come near it with some
thousands of them, so a large document is gzipped, which makes it 10 times smaller.
"""

from __future__ import annotations

import gzip
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from typing import Any

from waybill.base.documents import Document, compact
from waybill.config.names import Extension, TopicPartition
from waybill.records.shards.checkpoint import Checkpoint

_MOST_PLAIN_BYTES = 256 * 1024
_GZIP = b"\x1f\x8b"


def _packed(document: Any) -> bytes:
    """Return JSON, gzipped if it is large."""
    plain = compact(document)
    return plain if len(plain) <= _MOST_PLAIN_BYTES else gzip.compress(plain, compresslevel=6, mtime=0)


def node_document(remedy: str) -> Document:
    """Declare the document of a node. `remedy` says what happens when the node is deleted."""
    return Document(
        "ZooKeeper node {where} does not hold a document of Waybill's ({kind}: {error}). Delete the node: " + remedy,
        name="ZooKeeper node {where}",
        remedy="Upgrade this installation, or stop the other one",
        dump=_packed,
        unpack=lambda data: gzip.decompress(data) if data.startswith(_GZIP) else data,
    )


NODE = node_document("its content is rebuilt from the archive")


@dataclass(frozen=True, slots=True)
class OffsetCounts:
    """How many offsets of a chain hold a message, and why the others hold none.

    The counts cover the offsets from `from_offset` to the committed offset that they are stored with. Offsets in none
    of them were not in the log that was fetched: compaction had removed them.
    """

    from_offset: int
    messages: int = 0
    control: int = 0
    """Offsets of control batches, which mark where a transaction ended."""
    aborted: int = 0
    """Offsets of batches of aborted transactions."""
    gaps: int = 0
    """Offsets of gap markers."""
    unknown: int = 0
    """Offsets without a message in objects that another lane created: the lane that adopts one reads only the object,
    which does not show why an offset is not in it."""

    def __add__(self, later: OffsetCounts) -> OffsetCounts:
        """Return the counts of both ranges, of which `later` starts where these counts end."""
        return OffsetCounts(
            self.from_offset,
            self.messages + later.messages,
            self.control + later.control,
            self.aborted + later.aborted,
            self.gaps + later.gaps,
            self.unknown + later.unknown,
        )


@dataclass(frozen=True, slots=True)
class SlotRead:
    """The time up to which a Kinesis slot was read. It is newer than the last commit if there were no new records."""

    archived_to_ms: int
    """The time of arrival up to which all records of the slot are archived. Epoch ms."""
    shards: int
    """The number of shards assigned to the slot, including ended ones. If more were assigned since then, the slot is
    late."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a topic-partition, and facts that were known when it was written."""

    committed_offset: int
    """The offset that the next backup object will start at."""
    topic_id: str = ""
    """The topic's id at that time; '' if Kafka did not return one."""
    leader_epoch: int = -1
    """The leader epoch of the last archived batch; -1 if Kafka did not return one."""
    object_bytes: int = 0
    """Size of the last object. With `object_messages` it gives the mean message size, which plans of lanes use."""
    object_messages: int = 0
    """Number of messages in the last object."""
    committed_at_ms: int = 0
    """When it was written. Epoch ms."""
    start_offset: int | None = None
    """Offset at which the chain starts; None if an older version of Waybill started the chain, or if it is no longer
    known."""
    last_object_offset: int | None = None
    """Offset at which the last object starts (it ends at the committed offset); None if missing or unknown."""
    set_by_hand: str = ""
    """Who set the committed offset by hand, when and why; '' if it was never set by hand."""
    extension: Extension = Extension.KAFKA
    """Extension of the chain's objects, which implies their format. All objects of a generation share it."""
    counts: OffsetCounts | None = None
    """The counts of the offsets before the committed offset; None if no object was archived since ZooKeeper lost its
    data, or since an earlier version of Waybill, which did not count."""
    checkpoint: Checkpoint | None = None
    """The archived positions of the slot's shards at the committed offset; None for a topic-partition of Kafka."""
    version: int = -1
    """The node's version in ZooKeeper; -1 if there is no node. Not part of the document."""

    def to_document(self) -> bytes:
        """Return the JSON document of the ZooKeeper node."""
        fields = {
            "committed_offset": self.committed_offset,
            "topic_id": self.topic_id,
            "leader_epoch": self.leader_epoch,
            "object_bytes": self.object_bytes,
            "object_messages": self.object_messages,
            "committed_at": self.committed_at_ms,
            "start_offset": self.start_offset,
            "last_object_offset": self.last_object_offset,
            "set_by_hand": self.set_by_hand,
            "format": self.extension,
            **({} if self.counts is None else {"counts": asdict(self.counts)}),
            **({} if self.checkpoint is None else {"checkpoint": self.checkpoint.to_fields()}),
        }
        return NODE.write(fields)

    @classmethod
    def from_document(cls, data: bytes, version: int, where: str) -> CommittedOffset:
        """Return the committed offset in the node `where`, whose version is `version`.

        Raises `DocumentTooNew` for a document of a newer version, `DocumentDamaged` for one that cannot be parsed.
        """
        return NODE.parse(where, data, lambda fields: cls._of_fields(fields, version))

    @classmethod
    def _of_fields(cls, fields: dict[str, Any], version: int) -> CommittedOffset:
        return cls(
            committed_offset=int(fields["committed_offset"]),
            topic_id=str(fields["topic_id"]),
            leader_epoch=int(fields["leader_epoch"]),
            object_bytes=int(fields["object_bytes"]),
            object_messages=int(fields["object_messages"]),
            committed_at_ms=int(fields["committed_at"]),
            start_offset=_offset_or_none(fields.get("start_offset")),
            last_object_offset=_offset_or_none(fields.get("last_object_offset")),
            set_by_hand=str(fields.get("set_by_hand", "")),
            extension=Extension(fields.get("format", Extension.KAFKA)),
            counts=_counts_or_none(fields.get("counts")),
            checkpoint=None if fields.get("checkpoint") is None else Checkpoint.of_fields(fields["checkpoint"]),
            version=version,
        )


@dataclass(frozen=True, slots=True)
class Stop:
    """A named stop in the journal: which topic-partition is stopped, why, and since when."""

    tp: TopicPartition
    error: str
    """The name of the named stop, which is the name of its error class."""
    message: str
    figures: dict[str, Any]
    """The error's attributes that are numbers or strings."""
    stopped_at_ms: int
    """Epoch ms."""

    def to_document(self) -> bytes:
        """Return the JSON document of the ZooKeeper node."""
        return NODE.write(
            {"error": self.error, "message": self.message, "figures": self.figures, "stopped_at": self.stopped_at_ms}
        )

    @classmethod
    def from_document(cls, tp: TopicPartition, data: bytes, where: str) -> Stop:
        """Return the named stop in the node `where`. Raises `DocumentTooNew` or `DocumentDamaged`."""
        return NODE.parse(
            where,
            data,
            lambda found: cls(tp, found["error"], found["message"], dict(found["figures"]), int(found["stopped_at"])),
        )


def _offset_or_none(value: Any) -> int | None:
    return None if value is None else int(value)


def _counts_or_none(value: Any) -> OffsetCounts | None:
    """Return the counts; None if there are none, or if a newer version of Waybill has other counts."""
    counts = {name: int(count) for name, count in dict(value or {}).items()}
    return OffsetCounts(**counts) if counts.keys() == {field.name for field in fields_of(OffsetCounts)} else None
