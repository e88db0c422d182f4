"""Reading an archive for a request, with and without the replay index, compared with a plain filter of all messages."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from waybill.base.errors import ChainBroken, CorruptBatch, DocumentDamaged, DocumentTooNew, ObjectExists, ObjectMissing
from waybill.config import names
from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.framing import Codec
from waybill.replay.requests.archived import read_archived
from waybill.replay.requests.index import _kernels as kernels
from waybill.replay.requests.index.build import extend_index
from waybill.replay.requests.index.file_format import IndexHead, hash_of
from waybill.replay.requests.index.lookup import list_index_files, look_up
from waybill.replay.requests.matching import WantedMessages
from waybill.replay.requests.message import ReplayedMessage
from waybill.services.store import Store, StoredObject

TP = TopicPartition("flights", 3)
GENERATION = 2
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Stream(io.BytesIO):
    """An object's bytes, as `ObjectStream` has them."""

    metadata: Mapping[str, str] = {}


@dataclass
class MemoryStore:
    """The part of `waybill.services.store.Store` that replay needs, in memory."""

    prefix: str = "archive"
    coalesce_bytes: int = 200
    objects: dict[str, bytes] = field(default_factory=dict)
    reads: list[tuple[str, int]] = field(default_factory=list)
    """The keys that were read, and the bytes of each read."""

    def list_chain(
        self, topic: str, generation: int, partition: int, start_after: int | None = None
    ) -> Iterator[StoredObject]:
        for key in self.keys(names.chain_prefix(self.prefix, topic, generation, partition)):
            name = BackupName.parse(key)
            if start_after is None or name.first_offset > start_after:
                yield StoredObject(name, key, len(self.objects[key]), NOW)

    def keys(self, prefix: str) -> Iterator[str]:
        return iter(sorted(key for key in self.objects if key.startswith(prefix)))

    def open(self, key: str) -> Any:
        return Stream(self.read(key))

    def read(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectMissing(f"there is no object {key}")
        self.reads.append((key, len(self.objects[key])))
        return self.objects[key]

    def read_range(self, key: str, start: int, length_bytes: int) -> bytes:
        if key not in self.objects:
            raise ObjectMissing(f"there is no object {key}")
        found = self.objects[key][start : start + length_bytes]
        self.reads.append((key, len(found)))
        return found

    def create_if_absent(self, key: str, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        del metadata
        if key in self.objects:
            raise ObjectExists(key)
        self.objects[key] = data

    def remove_if_exists(self, key: str) -> bool:
        return self.objects.pop(key, None) is not None


@dataclass
class Archive:
    """A chain, and its messages."""

    store: MemoryStore
    messages: list[ReplayedMessage]
    ends: list[int]
    """The offset behind each object."""

    @property
    def end(self) -> int:
        return self.ends[-1]

    def index(self, committed_offset: int | None = None, max_messages: int = 1_000_000) -> None:
        extend_index(
            cast("Store", self.store),
            GENERATION,
            TP,
            self.end if committed_offset is None else committed_offset,
            max_messages=max_messages,
        )

    def read(self, wanted: WantedMessages, first: int, end: int, *, use_index: bool = True) -> list[ReplayedMessage]:
        pieces = list(read_archived(cast("Store", self.store), GENERATION, TP, wanted, first, end, use_index=use_index))
        offsets = [piece.next_offset for piece in pieces]
        assert offsets == sorted(offsets)
        assert not pieces or offsets[-1] == end
        for piece in pieces:
            assert all(message.offset < piece.next_offset for message in piece.messages)
        return [message for piece in pieces for message in piece.messages]

    def expected(self, wanted: WantedMessages, first: int, end: int) -> list[ReplayedMessage]:
        return [
            each
            for each in self.messages
            if first <= each.offset < end
            and each.key in wanted.keys
            and wanted.from_ms <= each.timestamp_ms < wanted.to_ms
        ]


KEYS = [b"", b"a", b"bb", b"ccc", b"dddd", b"a longer key", "ключ".encode()]
RECORDS = st.lists(
    st.tuples(st.sampled_from([None, *KEYS]), st.integers(0, 60), st.sampled_from([None, b"", b"value" * 9])),
    min_size=1,
    max_size=6,
)


@st.composite
def archives(draw: st.DrawFn) -> Archive:
    """Chains with compacted offsets, LogAppendTime, unordered times, and batches that lie across two objects."""
    store, messages, ends = MemoryStore(coalesce_bytes=draw(st.sampled_from([0, 150, 1 << 20]))), [], []
    last_batch = b""
    offset = draw(st.integers(0, 50))
    for _ in range(draw(st.integers(1, 4))):
        first_offset, data = offset, b""
        if last_batch and draw(st.booleans()):
            # The batch before reaches into this object: its messages before `first_offset` are in both.
            data = last_batch
        for _ in range(draw(st.integers(1, 4))):
            records, batch_offset = [], offset
            append_time = draw(st.none() | st.integers(0, 60))
            for key, timestamp, value in draw(RECORDS):
                records.append(Record(offset, timestamp, key, value, [("h", None)] if value == b"" else []))
                shown = timestamp if append_time is None else append_time
                messages.append(ReplayedMessage(TP, offset, shown, key, value, (("h", None),) if value == b"" else ()))
                offset += draw(st.sampled_from([1, 1, 1, 4]))
            last_batch = encode_batch(
                records,
                codec=draw(st.sampled_from([Codec.NONE, Codec.ZSTD])),
                base_offset=batch_offset,
                next_offset=offset,
                log_append_time_ms=append_time,
            )
            data += last_batch
        ends.append(offset)
        store.objects[BackupName(TP.topic, GENERATION, TP.partition, first_offset).key(store.prefix)] = data
    return Archive(store, messages, ends)


WANTED = st.builds(
    lambda keys, times: WantedMessages(keys, min(times), max(times)),
    st.sets(st.sampled_from([*KEYS, b"absent"]), min_size=1, max_size=3),
    st.tuples(st.integers(0, 62), st.integers(0, 62)),
)


@settings(max_examples=150, deadline=None)
@given(archives(), WANTED, st.data())
def test_what_is_read_is_what_a_plain_filter_finds_with_any_index(
    archive: Archive, wanted: WantedMessages, data: st.DataObject
) -> None:
    beginning = archive.messages[0].offset
    first, end = sorted(
        (data.draw(st.integers(beginning, archive.end - 1)), data.draw(st.integers(beginning + 1, archive.end)))
    )
    end = max(end, first + 1)
    expected = archive.expected(wanted, first, end)
    assert archive.read(wanted, first, end, use_index=False) == expected
    assert archive.read(wanted, first, end) == expected
    for committed in data.draw(st.lists(st.sampled_from(archive.ends), max_size=2).map(sorted)):
        archive.index(committed, max_messages=data.draw(st.sampled_from([1, 5, 1_000])))
        assert archive.read(wanted, first, end) == expected
    archive.index()
    assert archive.read(wanted, first, end) == expected


def make_archive(objects: int = 4, batches: int = 40, batch_messages: int = 1_000) -> Archive:
    """Return a chain with a rare key in one block of each object."""
    store, messages, ends, offset = MemoryStore(coalesce_bytes=0), [], [], 0
    for number in range(objects):
        first_offset, data = offset, b""
        for batch in range(batches):
            records = []
            for each in range(batch_messages):
                key = b"rare" if (batch, each) == (7, 3) else b"k%d" % (each % 50)
                records.append(Record(offset, number * 100 + batch, key, b"v"))
                messages.append(ReplayedMessage(TP, offset, number * 100 + batch, key, b"v"))
                offset += 1
            data += encode_batch(records)
        ends.append(offset)
        store.objects[BackupName(TP.topic, GENERATION, TP.partition, first_offset).key(store.prefix)] = data
    return Archive(store, messages, ends)


@pytest.fixture(scope="module")
def built() -> Archive:
    archive = make_archive()
    archive.index()
    return archive


@pytest.fixture
def large(built: Archive) -> Archive:
    return Archive(MemoryStore(coalesce_bytes=0, objects=dict(built.store.objects)), built.messages, built.ends)


def index_keys(archive: Archive) -> list[str]:
    return [key for key in archive.store.objects if "replay-index" in key]


def test_a_rare_key_is_read_from_its_blocks_alone(large: Archive) -> None:
    wanted = WantedMessages([b"rare"], 0, 1_000)
    assert large.read(wanted, 0, large.end) == large.expected(wanted, 0, large.end)
    archived = sum(size for key, size in large.store.reads if "/backup/" in key)
    total = sum(len(data) for key, data in large.store.objects.items() if "/backup/" in key)
    assert 0 < archived < total / 3


def test_blocks_of_other_times_are_not_read(large: Archive) -> None:
    wanted = WantedMessages([b"k1"], 200, 204)
    assert len(large.read(wanted, 0, large.end)) == 4 * 20
    assert {key for key, _ in large.store.reads if "/backup/" in key} == {list(large.store.objects)[2]}


def test_an_object_that_was_replaced_by_one_of_the_same_size_is_named(large: Archive) -> None:
    first, second = list(large.store.objects)[:2]
    large.store.objects[first], large.store.objects[second] = large.store.objects[second], large.store.objects[first]
    if len(large.store.objects[first]) != len(large.store.objects[second]):
        pytest.fail("the objects of this test have the same size")
    with pytest.raises(ChainBroken, match=first):
        large.read(WantedMessages([b"rare"], 0, 1_000), 0, large.end)


def test_an_object_that_was_replaced_by_a_shorter_one_is_read_whole_and_named(large: Archive) -> None:
    first = next(iter(large.store.objects))
    large.store.objects[first] = large.store.objects[first][: len(large.store.objects[first]) // 40 * 39]
    with pytest.raises((ChainBroken, CorruptBatch), match=first):
        large.read(WantedMessages([b"rare"], 0, 1_000), 0, large.end)


def test_a_missing_object_is_named(large: Archive) -> None:
    key = list(large.store.objects)[1]
    data = large.store.objects.pop(key)
    with pytest.raises(ChainBroken):
        large.read(WantedMessages([b"rare"], 0, 1_000), 0, large.end)
    assert data


@pytest.mark.parametrize("place", ["magic", "table", "postings"])
def test_a_damaged_index_is_named_and_never_trusted(large: Archive, place: str) -> None:
    [key] = index_keys(large)
    data = bytearray(large.store.objects[key])
    head = IndexHead.of(bytes(data), key)
    position = {"magic": 0, "table": head.size_bytes // 2, "postings": head.bucket_range(hash_of(b"rare"))[0]}[place]
    data[position] ^= 1
    large.store.objects[key] = bytes(data)
    with pytest.raises(DocumentDamaged, match=key):
        large.read(WantedMessages([b"rare"], 0, 1_000), 0, large.end)


def test_an_index_of_a_newer_version_is_refused(large: Archive) -> None:
    [key] = index_keys(large)
    large.store.objects[key] = large.store.objects[key][:8] + b"\x02\x00" + large.store.objects[key][10:]
    with pytest.raises(DocumentTooNew, match=key):
        large.read(WantedMessages([b"rare"], 0, 1_000), 0, large.end)


def test_an_index_grows_and_replaces_its_last_file(large: Archive) -> None:
    for key in index_keys(large):
        del large.store.objects[key]
    seen = []
    for committed in large.ends:
        large.index(committed, max_messages=80_000)
        seen.append(
            [
                (file.first_offset, file.next_offset)
                for file in list_index_files(cast("Store", large.store), GENERATION, TP)
            ]
        )
    assert seen == [
        [(0, 40_000)],
        [(0, 80_000)],
        [(0, 80_000), (80_000, 120_000)],
        [(0, 80_000), (80_000, 160_000)],
    ]
    assert len(index_keys(large)) == 2


def test_a_file_that_was_not_removed_yet_does_not_count(large: Archive) -> None:
    [whole] = index_keys(large)
    content = large.store.objects.pop(whole)
    large.index(large.ends[0])
    large.store.objects[whole] = content
    wanted = WantedMessages([b"rare"], 0, 1_000)
    assert large.read(wanted, 0, large.end) == large.expected(wanted, 0, large.end)
    assert {key for key, _ in large.store.reads if "replay-index" in key and key != whole} == set()


def test_a_file_that_is_replaced_while_it_is_read_is_listed_again(
    large: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    [key] = index_keys(large)
    content, calls = large.store.objects[key], [0]
    read_range = MemoryStore.read_range

    def replacing(self: MemoryStore, wanted: str, start: int, length_bytes: int) -> bytes:
        calls[0] += 1
        self.objects.pop(key, None) if calls[0] == 1 else self.objects.__setitem__(key, content)
        return read_range(self, wanted, start, length_bytes)

    monkeypatch.setattr(MemoryStore, "read_range", replacing)
    keys = MemoryStore.keys
    monkeypatch.setattr(
        MemoryStore,
        "keys",
        lambda self, prefix: iter(sorted({*keys(self, prefix), *([key] if key.startswith(prefix) else [])})),
    )
    wanted = WantedMessages([b"rare"], 0, 1_000)
    assert large.read(wanted, 0, large.end) == large.expected(wanted, 0, large.end)


def test_an_object_that_cannot_be_read_ends_the_index_before_it(large: Archive) -> None:
    for key in index_keys(large):
        del large.store.objects[key]
    third = list(large.store.objects)[2]
    broken = bytearray(large.store.objects[third])
    broken[100] ^= 1
    large.store.objects[third] = bytes(broken)
    with pytest.raises(Exception, match=third):
        large.index()
    files = list_index_files(cast("Store", large.store), GENERATION, TP)
    assert [(file.first_offset, file.next_offset) for file in files] == [(0, large.ends[1])]


def test_a_lookup_reads_a_few_kilobytes(large: Archive) -> None:
    [file] = list_index_files(cast("Store", large.store), GENERATION, TP)
    found = look_up(cast("Store", large.store), file, WantedMessages([b"absent"], 0, 1_000), 0, large.end)
    assert not any(found.blocks.values())
    assert sum(size for _, size in large.store.reads) < 200_000


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_the_compiled_hash_is_kafkas(keys: list[bytes]) -> None:
    starts = np.cumsum([0, *(len(key) for key in keys)]).astype(np.int32)
    data = np.frombuffer(b"".join(keys) + b"\0", np.uint8)
    hashes = np.empty(len(keys), np.uint32)
    kernels.hash_keys(data, starts, len(keys), hashes)
    assert hashes.tolist() == [murmur2(key) & 0xFFFFFFFF for key in keys] == [hash_of(key) for key in keys]
