"""Sorted runs of the key index: written, read and searched; every damage is detected."""

from __future__ import annotations

import io
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import crc32c
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_files import HOUR_MS, MemoryFiles

from waybill.base.documents import Document
from waybill.base.errors import IndexDamaged
from waybill.config.names import TopicPartition
from waybill.tables.dedup.index.merge import merge_runs
from waybill.tables.dedup.index.run_file import ROW_GROUP_ROWS, Array, FooterSink, IndexEntries, tail_of
from waybill.tables.dedup.index.sorted_runs import SortedRun, find_in_run, read_run, read_slices, write_run
from waybill.tables.dedup.keys import hash_keys

_PREFIX = "archive/dedup/flights/0/11111111-2222-3333-4444-555555555555/"
_TPS = tuple(TopicPartition("flights", n) for n in range(4))


class RecordedFiles(MemoryFiles):
    """Files in memory that record the sizes of reads."""

    def __init__(self, contents: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self.contents = dict(contents or {})
        self.reads: list[int] = []

    def read(self, key: str) -> bytes:
        self.reads.append(len(found := super().read(key)))
        return found

    def read_range(self, key: str, start: int, length_bytes: int) -> bytes:
        found = super().read(key)[start : start + length_bytes]
        self.reads.append(len(found))
        return found


def _sorted(keys: IndexEntries) -> IndexEntries:
    order = np.lexsort((keys.tail, keys.hi))
    columns = (keys.hi, keys.tail, keys.arrived_ms, keys.tp, keys.offset)
    return IndexEntries(*(column[order] for column in columns), keys.topic_partitions)


def _keys(count: int, span_ms: int = 24 * HOUR_MS, seed: int = 0) -> IndexEntries:
    """Return entries of one of 16 buckets within that time; offsets grow with arrival."""
    rng = np.random.default_rng(seed)
    elapsed = rng.integers(0, span_ms, count)
    hi, tail = rng.integers(5 << 60, 6 << 60, count, np.uint64), rng.integers(0, 1 << 24, count, np.uint32)
    offset = 5_000_000 + elapsed * (4 * count) // span_ms + rng.integers(0, 50, count)
    return _sorted(
        IndexEntries(hi, tail, 1_760_000_000_000 + elapsed, rng.integers(0, 4, count, np.int32), offset, _TPS)
    )


def _rows(keys: IndexEntries) -> list[tuple[Any, ...]]:
    tps = [keys.topic_partitions[code] for code in keys.tp]
    columns = (keys.hi, keys.tail, keys.arrived_ms, keys.offset)
    return sorted(zip(*(column.tolist() for column in columns), tps, strict=True))


def _written(keys: IndexEntries) -> tuple[RecordedFiles, SortedRun]:
    files = RecordedFiles()
    return files, write_run(files, _PREFIX, 5, (7, 9), keys)


_LARGE = _keys(160_000)
_LARGE_FILES, _LARGE_RUN = _written(_LARGE)


def test_written_run_is_read_back_and_described_by_its_manifest_entry() -> None:
    run = _LARGE_RUN
    assert (run.bucket, run.first_sequence, run.last_sequence, run.keys) == (5, 7, 9, 160_000)
    assert (run.min_arrived_ms, run.max_arrived_ms) == (_LARGE.arrived_ms.min(), _LARGE.arrived_ms.max())
    assert run.path.startswith(f"{_PREFIX}runs/5/{7:020}-{9:020}-")
    assert run.filter_path == run.path.removesuffix(".parquet") + ".fuse16"
    assert {key: len(content) for key, content in _LARGE_FILES.contents.items()} == {
        run.path: run.bytes,
        run.filter_path: run.filter_bytes,
    }
    found = read_run(_LARGE_FILES, run)
    assert found.topic_partitions == _TPS
    for name in ("hi", "tail", "arrived_ms", "tp", "offset"):
        expected = getattr(_LARGE, name)
        assert getattr(found, name).dtype == expected.dtype
        assert np.array_equal(getattr(found, name), expected)


def test_entry_takes_at_most_19_bytes_including_the_filter() -> None:
    for span_ms in (HOUR_MS, 24 * HOUR_MS, 48 * HOUR_MS):
        _, run = _written(_keys(62_000, span_ms))
        assert (run.bytes + run.filter_bytes) / run.keys <= 19


def test_duckdb_reads_a_run_file(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    path.write_bytes(_LARGE_FILES.contents[_LARGE_RUN.path])
    found = duckdb.sql(
        f"SELECT count(*), min(hi), max(hex(tail)), epoch_ms(max(arrived_at)), sum(hi % 1000), sum(place) FROM '{path}'"
    ).fetchone()
    places = pq.read_table(path).column("place").to_numpy()
    expected = (
        160_000,
        int(_LARGE.hi.min()),
        max(tail.to_bytes(3, "little").hex().upper() for tail in _LARGE.tail.tolist()),
        int(_LARGE.arrived_ms.max()),
        int((_LARGE.hi % 1000).sum()),
        int(places.sum()),
    )
    assert found == expected


def test_tail_is_the_last_bytes_of_the_hash(tmp_path: Path) -> None:
    """So a run file and the hashes that another SipHash computes can be compared."""
    hashes = hash_keys([pa.array(["a"])], bytes(16))
    keys = IndexEntries(hashes.hi, tail_of(hashes.lo), np.zeros(1, int), np.zeros(1, np.int32), np.ones(1, int), _TPS)
    files, run = _written(keys)
    path = tmp_path / "run.parquet"
    path.write_bytes(files.contents[run.path])
    whole = struct.pack("<QQ", hashes.hi[0], hashes.lo[0])
    found = pq.read_table(path).select(["hi", "tail"]).to_pylist()
    assert found == [{"hi": int.from_bytes(whole[:8], "little"), "tail": whole[13:]}]


def test_close_row_groups_are_read_in_one_request() -> None:
    files = RecordedFiles(_LARGE_FILES.contents)
    files.coalesce_bytes = 1 << 20
    assert len(find_in_run(files, _LARGE_RUN, _LARGE.hi[[777, 30_000]], _LARGE.tail[[777, 30_000]])) == 2
    assert len(files.reads) == 3
    assert 400_000 < files.reads[2] < 500_000


def test_small_run_is_read_as_a_whole() -> None:
    keys = _keys(20_000)
    files, run = _written(keys)
    matches = find_in_run(files, run, keys.hi[::100], keys.tail[::100])
    assert matches.index.tolist() == list(range(200))
    assert files.reads == [run.filter_bytes, run.bytes]


def test_only_row_groups_that_can_contain_the_keys_are_read() -> None:
    files = RecordedFiles(_LARGE_FILES.contents)
    matches = find_in_run(files, _LARGE_RUN, _LARGE.hi[[777, 90_000]], _LARGE.tail[[777, 90_000]])
    assert matches.index.tolist() == [0, 1]
    assert matches.offset.tolist() == _LARGE.offset[[777, 90_000]].tolist()
    assert files.reads[:2] == [_LARGE_RUN.filter_bytes, _LARGE_RUN.footer_bytes]
    assert len(files.reads) == 4
    assert sum(files.reads[2:]) < 80_000


def test_keys_that_fail_the_filter_cost_only_the_read_of_the_filter() -> None:
    files = RecordedFiles(_LARGE_FILES.contents)
    others = _keys(100, seed=1)
    find_in_run(files, _LARGE_RUN, others.hi, others.tail)
    assert files.reads == [_LARGE_RUN.filter_bytes]


def test_find_returns_every_stored_key_and_no_other() -> None:
    rng = np.random.default_rng(2)
    others = _keys(50_000, seed=3)
    order = rng.permutation(210_000)
    hi, tail = np.concatenate([_LARGE.hi, others.hi])[order], np.concatenate([_LARGE.tail, others.tail])[order]
    matches = find_in_run(_LARGE_FILES, _LARGE_RUN, hi, tail)
    assert matches.topic_partitions == _TPS
    assert np.array_equal(matches.index, np.flatnonzero(order < 160_000))
    which = order[matches.index]
    assert np.array_equal(matches.arrived_ms, _LARGE.arrived_ms[which])
    assert np.array_equal(matches.tp, _LARGE.tp[which])
    assert np.array_equal(matches.offset, _LARGE.offset[which])


def test_find_reads_a_run_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.tables.dedup.index.sorted_runs._SLICE_BYTES", 100_000)
    files = RecordedFiles(_LARGE_FILES.contents)
    matches = find_in_run(files, _LARGE_RUN, _LARGE.hi[::7], _LARGE.tail[::7])
    assert np.array_equal(matches.arrived_ms, _LARGE.arrived_ms[::7])
    assert max(files.reads[2:]) <= 100_000
    assert [len(part) for part in read_slices(files, _LARGE_RUN)][:2] == [6144, 6144]


def test_equal_half_of_a_hash_is_not_a_match() -> None:
    """The run has both halves of the key, but in two entries."""
    for hi, tail in ((_LARGE.hi[::9], _LARGE.tail[::9] ^ np.uint32(1)), (_LARGE.hi[::9], np.roll(_LARGE.tail[::9], 1))):
        assert len(find_in_run(_LARGE_FILES, _LARGE_RUN, hi, tail)) == 0


def test_find_returns_the_latest_of_many_entries_of_a_key_across_row_groups() -> None:
    """5,000 entries of one key in three row groups, between entries with the same `hi` and another `tail`."""
    tail = np.repeat(np.array([1, 2, 3], np.uint32), [3_000, 5_000, 3_000])
    arrived = np.random.default_rng(5).permutation(11_000)
    keys = IndexEntries(
        np.full(11_000, 2**63, np.uint64), tail, arrived, np.zeros(11_000, np.int32), np.arange(11_000), _TPS[:1]
    )
    files, run = _written(keys)
    matches = find_in_run(files, run, np.full(5, 2**63, np.uint64), np.array([0, 3, 2, 2, 4], np.uint32))
    assert matches.index.tolist() == [1, 2, 3]
    latest = [int(arrived[tail == 3].max()), *[int(arrived[tail == 2].max())] * 2]
    assert matches.arrived_ms.tolist() == latest
    assert matches.offset.tolist() == [arrived.tolist().index(ms) for ms in latest]


_HASHES = st.sampled_from([0, 1, 2**63, 2**64 - 1, 7, 8, 9])
_TAILS = st.sampled_from([0, 1, 2**23, 2**24 - 1, 7, 8, 9])
_ENTRIES = st.tuples(_HASHES, _TAILS, st.integers(-(2**40), 2**44), st.integers(0, 5), st.integers(0, 2**60))


@settings(deadline=None)
@given(st.lists(_ENTRIES, min_size=1, max_size=40), st.lists(st.tuples(_HASHES, _TAILS), max_size=20))
def test_find_answers_like_a_dict(entries: list[tuple[int, int, int, int, int]], asked: list[tuple[int, int]]) -> None:
    types = (np.uint64, np.uint32, np.int64, np.int32, np.int64)
    values = (np.array(column, kind) for column, kind in zip(zip(*entries, strict=True), types, strict=True))
    keys = _sorted(IndexEntries(*values, tuple(TopicPartition("t", n) for n in range(6))))
    files, run = _written(keys)
    assert _rows(read_run(files, run)) == _rows(keys)
    latest: dict[tuple[int, int], tuple[int, int, int]] = {}
    for hi, tail, arrived, tp, offset in entries:
        latest[hi, tail] = max(latest.get((hi, tail), (-(2**62), 0, 0)), (arrived, tp, offset))
    matches = find_in_run(
        files, run, np.array([k[0] for k in asked], np.uint64), np.array([k[1] for k in asked], np.uint32)
    )
    columns = (matches.index, matches.arrived_ms, matches.tp, matches.offset)
    found = zip(*(column.tolist() for column in columns), strict=True)
    assert list(found) == [(n, *latest[key]) for n, key in enumerate(asked) if key in latest]


def test_smallest_and_largest_kafka_offsets_are_stored() -> None:
    keys = replace(_keys(4), tp=np.zeros(4, np.int32), offset=np.array([0, 2**63 - 2, 5, 6]))
    files, run = _written(keys)
    assert _rows(read_run(files, run)) == _rows(keys)
    far = np.array([0, 2**62, 1, 2**62])
    with pytest.raises(ValueError, match="too far apart"):
        _written(replace(keys, tp=np.array([0, 0, 1, 1], np.int32), offset=far))


def test_write_refuses_no_keys_and_unsorted_keys() -> None:
    keys = _keys(10)
    for wrong in (_keys(0), replace(keys, hi=keys.hi[::-1])):
        with pytest.raises(ValueError, match="no run of bucket 5"):
            _written(wrong)


def test_invalid_sequence_number_is_refused_before_a_write() -> None:
    files = RecordedFiles()
    with pytest.raises(ValueError, match="cannot be part of a name"):
        write_run(files, _PREFIX, 5, (-1, 2), _keys(10))
    assert files.contents == {}


@pytest.mark.parametrize("count", [2_000, 160_000])
def test_missing_file_raises_index_damaged(count: int) -> None:
    keys = _keys(count)
    files, run = _written(keys)
    del files.contents[run.path]
    for attempt in (lambda: read_run(files, run), lambda: find_in_run(files, run, keys.hi[:5], keys.tail[:5])):
        with pytest.raises(IndexDamaged, match="it is missing"):
            attempt()
    files, run = _written(keys)
    del files.contents[run.filter_path]
    with pytest.raises(IndexDamaged, match=r"fuse16: it is missing"):
        find_in_run(files, run, keys.hi[:5], keys.tail[:5])


@pytest.mark.parametrize("count", [2_000, 160_000])
def test_every_flipped_bit_raises_index_damaged(count: int) -> None:
    keys = _keys(count)
    files, run = _written(keys)
    rng = np.random.default_rng(11)
    for path, size, footer in ((run.path, run.bytes, run.footer_bytes), (run.filter_path, run.filter_bytes, 0)):
        sound = files.contents[path]
        for position in [*rng.integers(4, size, 12).tolist(), *(size - 1 - rng.integers(0, footer or 1, 8)).tolist()]:
            damaged = bytearray(sound)
            damaged[position] ^= 1 << int(rng.integers(0, 8))
            files.contents[path] = bytes(damaged)
            with pytest.raises(IndexDamaged, match=path):
                find_in_run(files, run, keys.hi, keys.tail)
        files.contents[path] = sound
    assert len(find_in_run(files, run, keys.hi, keys.tail)) == count


@pytest.mark.parametrize("count", [2_000, 160_000])
def test_truncated_and_exchanged_files_raise_index_damaged(count: int) -> None:
    keys = _keys(count)
    files, run = _written(keys)
    other_files, other = _written(_keys(count, seed=9))
    for path, foreign in ((run.path, other_files.contents[other.path]), (run.filter_path, b"")):
        sound = files.contents[path]
        for content in (sound[:-1], sound[: len(sound) // 2], b"", sound[1:], foreign):
            files.contents[path] = content
            with pytest.raises(IndexDamaged):
                find_in_run(files, run, keys.hi, keys.tail)
        files.contents[path] = sound
    for wrong in (replace(run, keys=count - 1), replace(run, bytes=run.bytes - 1), replace(run, footer_bytes=9)):
        with pytest.raises(IndexDamaged):
            read_run(files, wrong)


def test_run_of_version_1_is_read_searched_and_merged_into_one_of_version_2() -> None:
    rng = np.random.default_rng(3)
    keys, newer = _keys(50_000), _keys(1_000, seed=4)
    lo = np.sort(rng.integers(0, 1 << 64, 50_000, np.uint64))  # its order matters only where `hi` is the same
    keys = replace(keys, tail=tail_of(lo))
    files, run = _written_by_version_1(keys, lo)
    assert _rows(read_run(files, run)) == _rows(keys)
    matches = find_in_run(files, run, keys.hi[::9], keys.tail[::9])
    assert np.array_equal(matches.index, np.arange(len(keys.hi[::9])))
    assert np.array_equal(matches.offset, keys.offset[::9])
    assert len(find_in_run(files, run, keys.hi[::9], keys.tail[::9] ^ np.uint32(1))) == 0

    merged = merge_runs(files, _PREFIX, 0, [run, write_run(files, _PREFIX, 5, (10, 10), newer)])
    assert merged is not None
    assert _rows(read_run(files, merged)) == sorted(_rows(keys) + _rows(newer))
    assert merged.bytes / merged.keys < run.bytes / run.keys - 4


def _written_by_version_1(keys: IndexEntries, lo: Array) -> tuple[RecordedFiles, SortedRun]:
    """Write a run as Waybill did when its files had all 128 bits of a hash."""
    files, run = _written(keys)
    now = pq.ParquetFile(pa.BufferReader(files.contents[run.path]))
    description = json.loads(now.metadata.metadata[b"waybill.run"]) | {"v": 1}
    table = now.read()
    fields = [pa.field("lo", pa.uint64(), nullable=False) if f.name == "tail" else f for f in table.schema]
    columns = [pa.array(lo) if f.name == "lo" else table.column(f.name) for f in fields]
    schema = pa.schema(fields)
    sink = FooterSink(content := io.BytesIO())
    delta = dict.fromkeys(("hi", "arrived_at", "place"), "DELTA_BINARY_PACKED")
    with pq.ParquetWriter(
        sink,
        schema,
        compression="NONE",
        use_dictionary=False,
        column_encoding=delta | {"lo": "PLAIN"},
        write_statistics=["hi"],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(pa.table(columns, schema=schema), row_group_size=ROW_GROUP_ROWS)
        writer.add_key_value_metadata({"waybill.run": json.dumps(description)})
        sink.keep_from_here()
    files.contents[run.path] = content.getvalue()
    footer = {"footer_bytes": len(sink.kept), "footer_crc32c": crc32c.crc32c(sink.kept)}
    return files, replace(run, bytes=len(content.getvalue()), **footer)


def test_run_of_a_newer_version_raises_index_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.tables.dedup.index.run_file._DOCUMENT", Document(version=3))
    keys = _keys(10)
    files, run = _written(keys)
    monkeypatch.undo()
    with pytest.raises(IndexDamaged, match="newer Waybill"):
        read_run(files, run)
