"""Look up keys in the replay index: which blocks of which objects can hold a wanted message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from waybill.config import names
from waybill.config.names import TopicPartition
from waybill.replay.requests.index.file_format import (
    HEAD_BYTES,
    Array,
    Block,
    IndexedBackupObject,
    IndexHead,
    blocks_with_hash,
    check_bucket,
    hash_of,
)
from waybill.replay.requests.matching import WantedMessages
from waybill.services.store import Store


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of the replay index."""

    key: str
    first_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a lookup in one index file: the blocks to read of each of its objects."""

    file: IndexFile
    blocks: Mapping[IndexedBackupObject, tuple[Block, ...]]
    """For each object that the file covers, in order; often none."""


def list_index_files(store: Store, generation: int, tp: TopicPartition) -> list[IndexFile]:
    """Return the index files of a chain in order, without those that a longer one has replaced."""
    keys = store.keys(names.replay_index_prefix(store.prefix, generation, tp))
    files = [IndexFile(key, *names.replay_index_range(key)) for key in keys]
    chosen: list[IndexFile] = []
    for each in sorted(files, key=lambda file: (file.first_offset, -file.next_offset)):
        if not chosen or each.first_offset >= chosen[-1].next_offset:
            chosen.append(each)
    return chosen


def look_up(store: Store, file: IndexFile, wanted: WantedMessages, first_offset: int, next_offset: int) -> Found:
    """Return the blocks that can hold wanted messages with offsets in `[first_offset, next_offset)`.

    Raises `ObjectMissing` when a longer file has replaced this one, `DocumentDamaged` and `DocumentTooNew`.
    """
    begin = store.read_range(file.key, 0, HEAD_BYTES)
    size_bytes = IndexHead.size_of(begin, file.key)
    if size_bytes > len(begin):
        begin += store.read_range(file.key, len(begin), size_bytes - len(begin))
    head = IndexHead.of(begin, file.key)
    numbers = head.find_blocks(wanted.from_ms, wanted.to_ms, first_offset, next_offset)
    if len(numbers):
        numbers = np.intersect1d(numbers, _blocks_of_keys(store, file, head, wanted.keys))
    by_object: dict[int, list[Block]] = defaultdict(list)
    for row in head.blocks[numbers].tolist():
        by_object[row[0]].append(Block(*row))
    return Found(file, {each: tuple(by_object[number]) for number, each in enumerate(head.objects)})


def _blocks_of_keys(store: Store, file: IndexFile, head: IndexHead, keys: Collection[bytes]) -> Array:
    by_bucket: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for key_hash in {hash_of(key) for key in keys}:
        by_bucket[head.bucket_range(key_hash)].append(key_hash)
    found = [np.empty(0, np.int64)]
    for (position, size_bytes, crc), hashes in by_bucket.items():
        if size_bytes:
            bucket = store.read_range(file.key, position, size_bytes)
            check_bucket(bucket, size_bytes, crc, file.key)
            found += [blocks_with_hash(bucket, each) for each in hashes]
    return np.unique(np.concatenate(found))
