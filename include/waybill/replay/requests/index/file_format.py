"""The file of the replay index: which blocks of backup objects hold which keys, between which times.

A *block* is a run of whole record batches of one object, with some thousand messages. The file has a head and postings:

    head      struct, tables of objects and blocks, directory, CRC-32C of all that
    postings  for each different key of each block, the key's hash and the block's number: two uint32, sorted

The directory divides the postings into buckets by the first bits of the hash: it holds the end and the CRC-32C of each
bucket. So a key needs the head and one bucket, of a few kilobytes. The hash is Kafka's murmur2. If two keys have the
same hash, a reader only reads a block without a wanted message.

All numbers are little-endian. Timestamps are epoch ms.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import crc32c
import numpy as np
from kafka.partitioner.default import murmur2

from waybill.base.errors import DocumentDamaged, DocumentTooNew

Array = np.ndarray[Any, Any]

HEAD_BYTES = 128 << 10
"""How many bytes of a file are read first: they nearly always hold the whole head."""

_MAGIC = b"WBREPIDX"
_VERSION = 1
_HEAD = struct.Struct(
    "<8sHHIIQQI"
)  # magic, version, bucket bits, objects, blocks, messages, postings, bytes of the head
_CRC = struct.Struct("<I")
_OBJECT_FIELDS, _BLOCK_FIELDS = 3, 8
_POSTING_BYTES = 8
_BUCKET_POSTINGS = 1_024
_MAX_BUCKET_BITS = 20


class IndexedBackupObject(NamedTuple):
    """A backup object at the time at which it was indexed."""

    first_offset: int
    next_offset: int
    size_bytes: int


class Block(NamedTuple):
    """Whole record batches of one object, which follow each other."""

    object_number: int
    messages: int
    position: int
    """The byte of the object at which it begins."""
    size_bytes: int
    base_offset: int
    """The base offset of the first batch, which can lie before the object's range."""
    next_offset: int
    min_timestamp_ms: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class IndexHead:
    """The head of a file."""

    objects: tuple[IndexedBackupObject, ...]
    messages: int
    blocks: Array
    """int64, a row for each block with the fields of `Block`."""
    bucket_bits: int
    directory: Array
    """uint32, for each bucket: the number of postings up to its end, and its CRC-32C."""
    size_bytes: int

    @classmethod
    def size_of(cls, data: bytes, where: str) -> int:
        """Return the size of the head from its first bytes. Raises `DocumentDamaged` or `DocumentTooNew`."""
        if len(data) < _HEAD.size:
            raise DocumentDamaged(f"{where} has only {len(data)} bytes. {_REMEDY}")
        magic, version, *_, size_bytes = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise DocumentDamaged(f"{where} is no file of the replay index. {_REMEDY}")
        if version > _VERSION:
            raise DocumentTooNew(
                f"{where} was written by a newer Waybill (version {version}). Upgrade this installation"
            )
        return int(size_bytes)

    @classmethod
    def of(cls, data: bytes, where: str) -> Self:
        """Read a whole head. Raises `DocumentDamaged` or `DocumentTooNew`."""
        size_bytes = cls.size_of(data, where)
        head = data[:size_bytes]
        if len(head) < size_bytes or _CRC.unpack(head[-_CRC.size :])[0] != crc32c.crc32c(head[: -_CRC.size]):
            raise DocumentDamaged(f"the head of {where} is damaged: its checksum is wrong. {_REMEDY}")
        _, _, bucket_bits, object_count, block_count, messages, _, _ = _HEAD.unpack_from(head)
        position = _HEAD.size
        objects = np.frombuffer(head, "<i8", object_count * _OBJECT_FIELDS, position)
        position += objects.nbytes
        blocks = np.frombuffer(head, "<i8", block_count * _BLOCK_FIELDS, position)
        position += blocks.nbytes
        directory = np.frombuffer(head, "<u4", 2 << bucket_bits, position)
        return cls(
            tuple(IndexedBackupObject(*row) for row in objects.reshape(-1, _OBJECT_FIELDS).tolist()),
            messages,
            blocks.reshape(-1, _BLOCK_FIELDS),
            bucket_bits,
            directory.reshape(-1, 2),
            size_bytes,
        )

    def find_blocks(self, from_ms: int, to_ms: int, first_offset: int, next_offset: int) -> Array:
        """Return the numbers of the blocks that can hold messages of the times and offsets, in order."""
        fields = dict(zip(Block._fields, self.blocks.T, strict=True))
        return np.flatnonzero(
            (fields["max_timestamp_ms"] >= from_ms)
            & (fields["min_timestamp_ms"] < to_ms)
            & (fields["next_offset"] > first_offset)
            & (fields["base_offset"] < next_offset)
        )

    def bucket_range(self, key_hash: int) -> tuple[int, int, int]:
        """Return the position in the file, the size in bytes and the CRC-32C of the bucket of a hash."""
        number = key_hash >> (32 - self.bucket_bits) if self.bucket_bits else 0
        begin = int(self.directory[number - 1, 0]) if number else 0
        end, crc = (int(each) for each in self.directory[number])
        return self.size_bytes + begin * _POSTING_BYTES, (end - begin) * _POSTING_BYTES, crc


def hash_of(key: bytes) -> int:
    """Return the hash of a key, from 0 to 2^32 - 1."""
    return int(murmur2(key)) & 0xFFFFFFFF


def encode_index(
    objects: Collection[IndexedBackupObject], blocks: Collection[Block], postings: Array, messages: int
) -> bytes:
    """Return a file. `postings`: uint64, the hash in the upper and the block's number in the lower half, sorted."""
    bits = min(max(0, (len(postings) // _BUCKET_POSTINGS).bit_length()), _MAX_BUCKET_BITS)
    pairs = np.empty((len(postings), 2), "<u4")
    pairs[:, 0], pairs[:, 1] = postings >> np.uint64(32), postings & np.uint64(0xFFFFFFFF)
    limits = np.arange(1, (1 << bits) + 1, dtype=np.uint64) << np.uint64(64 - bits) if bits else np.zeros(0, np.uint64)
    ends = np.append(np.searchsorted(postings, limits[:-1]), len(postings))
    data = pairs.tobytes()
    directory = np.empty((1 << bits, 2), "<u4")
    begin = 0
    for number, end in enumerate(ends.tolist()):
        directory[number] = end, crc32c.crc32c(memoryview(data)[begin * _POSTING_BYTES : end * _POSTING_BYTES])
        begin = end
    tables = b"".join(
        (
            np.array(list(objects), "<i8").tobytes(),
            np.array(list(blocks), "<i8").tobytes(),
            directory.tobytes(),
        )
    )
    size_bytes = _HEAD.size + len(tables) + _CRC.size
    head = _HEAD.pack(_MAGIC, _VERSION, bits, len(objects), len(blocks), messages, len(postings), size_bytes) + tables
    return b"".join((head, _CRC.pack(crc32c.crc32c(head)), data))


def postings_of(head: IndexHead, data: bytes, where: str) -> Array:
    """Return the postings of a whole file, in the form of `encode_index`. Raises `DocumentDamaged`."""
    pairs = np.frombuffer(data, "<u4", offset=head.size_bytes).reshape(-1, 2)
    begin = 0
    for end, crc in head.directory.tolist():
        found = memoryview(data)[head.size_bytes + begin * _POSTING_BYTES : head.size_bytes + end * _POSTING_BYTES]
        check_bucket(found, (end - begin) * _POSTING_BYTES, crc, where)
        begin = end
    return (pairs[:, 0].astype(np.uint64) << np.uint64(32)) | pairs[:, 1].astype(np.uint64)


def blocks_with_hash(bucket: bytes, key_hash: int) -> Array:
    """Return the numbers of the blocks that a bucket has for a hash, in order."""
    pairs = np.frombuffer(bucket, "<u4").reshape(-1, 2)
    begin, end = np.searchsorted(pairs[:, 0], [key_hash, key_hash + 1])
    return pairs[begin:end, 1].astype(np.int64)


def check_bucket(data: memoryview | bytes, size_bytes: int, crc: int, where: str) -> None:
    """Raise `DocumentDamaged` unless the bytes are those of a bucket with this size and CRC-32C."""
    if len(data) != size_bytes or crc32c.crc32c(data) != crc:
        raise DocumentDamaged(f"a bucket of {where} is damaged: its checksum is wrong. {_REMEDY}")


def blocks_of(head: IndexHead) -> Iterator[Block]:
    """Yield the blocks, in order."""
    for row in head.blocks.tolist():
        yield Block(*row)


_REMEDY = "Delete it, and run `waybill replay index`, which builds it again from the archive"
