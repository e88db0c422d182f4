"""The checkpoint batch: the last record batch of a backup object of a Kinesis slot, which holds a checkpoint.

S3 fixes the metadata of an upload before its end is known, so the data alone must state which records an object covers.
A checkpoint batch is a batch without records, as Kafka's log cleaner writes them (in Kafka's source:
`DefaultRecordBatch.writeEmptyHeader`). It covers one offset. Its records section holds a JSON document, compressed with
gzip: readers of the format do not read the records section of a batch without records, and the batch's CRC protects
the document.

The document states the checkpoint at the object's end, and for each shard the sequence numbers that the object covers.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from waybill.base.documents import Document
from waybill.base.errors import CorruptBatch
from waybill.records.batches import framing
from waybill.records.batches.compression import compress
from waybill.records.shards.checkpoint import Checkpoint

_MAX_DOCUMENT_BYTES = 64 << 20
"""Enough for about 250,000 shards."""
_GZIP = 31
"""zlib's window bits for data with a gzip header."""
_DOCUMENT = Document()


class CoveredShard(NamedTuple):
    """The range of one shard that an object covers."""

    after_sequence: str
    """The sequence number of the last record before the object's first one; '' if there is none."""
    last_sequence: str
    """The sequence number of the last record in the object; '' if it has none of this shard."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """The content of a checkpoint batch."""

    checkpoint: Checkpoint
    """The archived positions of the slot's shards at the object's end."""
    covered: Mapping[str, CoveredShard]
    """The covered ranges by shard id, for the shards that moved."""

    @classmethod
    def between(cls, before: Checkpoint, after: Checkpoint) -> SlotState:
        """Return the state of an object that begins at one checkpoint and ends at another one."""
        covered = {}
        for shard_id, position in after.positions.items():
            earlier = before.position(shard_id)
            if earlier is None or earlier.is_behind(position):
                begin = "" if earlier is None else earlier.sequence
                covered[shard_id] = CoveredShard(begin, position.sequence if position.sequence != begin else "")
        return cls(after, covered)


def checkpoint_batch(offset: int, state: SlotState) -> bytes:
    """Return the batch, which covers `[offset, offset + 1)`."""
    fields = {
        "checkpoint": state.checkpoint.to_fields(),
        "covered": {shard_id: list(each) for shard_id, each in sorted(state.covered.items())},
    }
    empty = framing.read_header(framing.empty_batch(offset, offset + 1, leader_epoch=-1), 0, "")
    content = compress(framing.Codec.GZIP, _DOCUMENT.write(fields))
    return framing.pack_batch(empty._replace(attributes=int(framing.Codec.GZIP)), content)


def read_checkpoint_batch(frame: framing.Frame, where: str) -> SlotState | None:
    """Return the state that a batch holds; None for any other batch. Its CRC is not checked.

    `where` names the object in errors. Raises `CorruptBatch` for a damaged document, `DocumentTooNew` for one of a
    newer version.
    """
    header = frame.header
    is_empty = len(frame.data) == framing.HEADER_BYTES
    if is_empty or header.record_count or header.is_control or header.codec is not framing.Codec.GZIP:
        return None
    try:
        content = zlib.decompressobj(wbits=_GZIP).decompress(frame.data[framing.HEADER_BYTES :], _MAX_DOCUMENT_BYTES)
        fields = _DOCUMENT.read(content, where)
        return SlotState(
            Checkpoint.of_fields(fields["checkpoint"]),
            {
                str(shard_id): CoveredShard(str(after), str(last))
                for shard_id, (after, last) in fields["covered"].items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
        raise CorruptBatch(where, frame.position, f"a checkpoint batch cannot be read: {error}") from error
