"""Build the replay index: the blocks and keys of backup objects that were committed since the last run.

Index files follow each other along a chain. The last one is replaced by a longer one until it has `MAX_MESSAGES`; then
the next one begins. A file is created if absent and never changed. The longer file is there before the shorter one is
removed, so a run that is killed anywhere leaves an index that readers can use, and two runs at once write files that
both hold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from waybill.archive.chain.chain import ChainObject, walk_chain
from waybill.base import failpoints
from waybill.base.errors import ChainBroken, ChainGap, ObjectExists, ObjectMissing
from waybill.config import names
from waybill.config.names import Extension, TopicPartition
from waybill.records.batches.decode import DecodeBuffers, decode
from waybill.records.batches.framing import Frame, check_crc, read_frames
from waybill.replay.requests.index import _kernels as kernels
from waybill.replay.requests.index.file_format import (
    Array,
    Block,
    IndexedBackupObject,
    IndexHead,
    blocks_of,
    encode_index,
    postings_of,
)
from waybill.replay.requests.index.lookup import IndexFile, list_index_files
from waybill.services.store import Store

logger = logging.getLogger(__name__)

MAX_MESSAGES = 4_000_000
"""An index file with this number of messages is not extended any more. Building one takes about 200 MB of memory."""
_BLOCK_MESSAGES = 1_024
_BLOCK_BYTES = 256 << 10
_US_PER_MS = 1_000


@dataclass(slots=True)
class ReplayIndexFigures:
    """What a run added to the index of a chain."""

    objects: int = 0
    messages: int = 0
    archived_bytes: int = 0
    """Size of the backup objects that were read."""
    index_bytes: int = 0
    """Size of the files that were written."""


def extend_index(
    store: Store,
    generation: int,
    tp: TopicPartition,
    committed_offset: int,
    *,
    max_messages: int = MAX_MESSAGES,
    should_stop: Callable[[], bool] = lambda: False,
) -> ReplayIndexFigures:
    """Index the backup objects of a chain up to the committed offset. `should_stop` is called between objects.

    Raises `ChainBroken` or `CorruptBatch` for an object that cannot be read; the objects before it are indexed.
    """
    figures = ReplayIndexFigures()
    files = list_index_files(store, generation, tp)
    growing = _Growing.after(store, files[-1] if files else None, max_messages)
    objects = walk_chain(store, generation, tp, from_offset=growing.next_offset, committed_offset=committed_offset)
    try:
        for each in objects:
            if each.next_offset > committed_offset or each.name.extension is not Extension.KAFKA:
                break
            growing.add(store, each)
            figures.objects += 1
            figures.archived_bytes += each.size_bytes
            if growing.messages >= max_messages:
                figures.messages += growing.new_messages
                figures.index_bytes += growing.write(store, generation, tp)
                growing = _Growing(each.next_offset)
            if should_stop():
                break
    finally:
        if growing.is_changed:
            figures.messages += growing.new_messages
            figures.index_bytes += growing.write(store, generation, tp)
    return figures


class _Growing:
    """An index file in memory."""

    def __init__(self, next_offset: int | None) -> None:
        """`next_offset`: where its first object begins; None: at the beginning of the chain."""
        self.next_offset = next_offset
        self.messages = 0
        self.new_messages = 0
        self._replaced: list[IndexFile] = []
        self._objects: list[IndexedBackupObject] = []
        self._blocks: list[Block] = []
        self._postings: list[Array] = []
        self._buffers = DecodeBuffers()

    @classmethod
    def after(cls, store: Store, last: IndexFile | None, max_messages: int) -> _Growing:
        """Return the last file with its content if it can be extended, else an empty file that follows it."""
        if last is None:
            return cls(None)
        growing = cls(last.next_offset)
        data = store.read(last.key)
        head = IndexHead.of(data, last.key)
        if head.messages >= max_messages:
            return growing
        growing.messages = head.messages
        growing._objects, growing._blocks = list(head.objects), list(blocks_of(head))
        growing._postings = [postings_of(head, data, last.key)]
        growing._replaced = [last]
        return growing

    @property
    def is_changed(self) -> bool:
        return bool(self._objects) and (
            not self._replaced or self._objects[-1].next_offset > self._replaced[0].next_offset
        )

    def add(self, store: Store, each: ChainObject) -> None:
        """Read an object and add its blocks. Raises `ChainBroken` or `CorruptBatch`, and adds nothing then."""
        number, first_offset = len(self._objects), each.name.first_offset
        found = [self._index_block(number, frames, each) for frames in _blocks(store, each)]
        for block, hashes in found:
            if block.messages:
                postings = (hashes.astype(np.uint64) << np.uint64(32)) | np.uint64(len(self._blocks))
                self._postings.append(postings)
                self._blocks.append(block)
                self.messages += block.messages
                self.new_messages += block.messages
        self._objects.append(IndexedBackupObject(first_offset, each.next_offset, each.size_bytes))
        self.next_offset = each.next_offset

    def _index_block(self, number: int, frames: list[Frame], each: ChainObject) -> tuple[Block, Array]:
        messages, hashes = 0, [np.empty(0, np.uint32)]
        lowest, highest = 2**63 - 1, -(2**63)
        batches = decode(
            frames,
            where=each.key,
            first_offset=each.name.first_offset,
            next_offset=each.next_offset,
            verify_crc=False,
            buffers=self._buffers,
            set_aside=True,  # keys and timestamps are there
        )
        for batch in batches:
            messages += batch.num_rows
            # Kafka's milliseconds beyond the limits of Arrow's microseconds are cut by `decode`; readers compare the
            # same values.
            times_us = batch.column("timestamp").cast("int64").to_numpy()
            lowest = min(lowest, int(times_us.min()) // _US_PER_MS)
            highest = max(highest, int(times_us.max()) // _US_PER_MS)
            hashes.append(_key_hashes(batch.column("key")))
        block = Block(
            number,
            messages,
            frames[0].position,
            sum(len(frame.data) for frame in frames),
            frames[0].header.base_offset,
            frames[-1].header.next_offset,
            lowest,
            highest,
        )
        return block, np.unique(np.concatenate(hashes))

    def write(self, store: Store, generation: int, tp: TopicPartition) -> int:
        """Store the file, remove the one that it replaces, and return its size in bytes."""
        first_offset, next_offset = self._objects[0].first_offset, self._objects[-1].next_offset
        postings = np.sort(np.concatenate([np.empty(0, np.uint64), *self._postings]))
        data = encode_index(self._objects, self._blocks, postings, self.messages)
        key = names.replay_index_key(store.prefix, generation, tp, first_offset, next_offset)
        with suppress(ObjectExists):  # another run was faster, and its file has the same content
            store.create_if_absent(key, data)
        failpoints.reach("index.written")
        for each in self._replaced:
            store.remove_if_exists(each.key)
        failpoints.reach("index.replaced")
        return len(data)


def _blocks(store: Store, each: ChainObject) -> Iterator[list[Frame]]:
    """Yield the record batches of an object, checked, in runs that become blocks."""
    run: list[Frame] = []
    messages = size_bytes = 0
    end = each.name.first_offset
    try:
        with store.open(each.key) as stream:
            for frame in read_frames(stream, each.key):
                check_crc(frame, each.key)
                end = frame.header.next_offset
                run.append(frame)
                messages += frame.header.record_count
                size_bytes += len(frame.data)
                if messages >= _BLOCK_MESSAGES or size_bytes >= _BLOCK_BYTES:
                    yield run
                    run, messages, size_bytes = [], 0, 0
    except ObjectMissing as error:
        raise ChainBroken(f"{each.name.topic}/{each.name.partition}: {error}, but a listing had it") from error
    if run:
        yield run
    if end != each.next_offset:
        raise ChainGap(
            f"{each.name.topic}/{each.name.partition}: {each.key} ends at offset {end}, but the chain has "
            f"{each.next_offset}",
            min(end, each.next_offset),
            each.next_offset,
        )


def _key_hashes(keys: object) -> Array:
    """Return the hashes of the keys that are not null, as uint32."""
    present = keys.drop_null()  # type: ignore[attr-defined]
    count = len(present)
    _, starts, data = present.buffers()
    hashes = np.empty(count, np.uint32)
    if count:
        content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
        positions = np.frombuffer(starts, np.int32)[present.offset : present.offset + count + 1]
        kernels.hash_keys(content, positions, count, hashes)
    return hashes
