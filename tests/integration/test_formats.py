"""SequenceFile and text on the real stack: Hadoop's own reader, gzip and DuckDB read the messages of Kafka."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from archived_stream import ArchivedStream
from ingest_scenes import STREAM, Archive, Cluster
from pyspark.sql import SparkSession

from devstack import Stack
from devstack.jars import pyspark_jars
from waybill.archive import ingest
from waybill.archive.chain.backup_object import BackupObject
from waybill.archive.chain.chain import walk_chain
from waybill.archive.chain.indexed_reader import IndexedReader
from waybill.archive.chain.new_object import new_backup_object
from waybill.base import failpoints
from waybill.base.errors import CorruptBatch, MixedFormats, ObjectExists
from waybill.config.models import Format
from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches import framing
from waybill.records.batches.encode import Record, encode_batch, to_records
from waybill.records.batches.limits import SET_ASIDE
from waybill.services.coordination import Coordinator
from waybill.services.store import Store, Upload

pytestmark = pytest.mark.integration

NOW_MS = int(time.time() * 1000)
READER = Path(__file__).parent / "hadoop" / "ReadSequenceFiles.java"
SEQUENCE_FILES = [
    (key, compression) for key in ("legacy", "msgpack") for compression in ("none", "gzip", "snappy", "zstd")
]
EVERY_FORMAT: list[Any] = [
    {"name": "sequencefile", "key": "msgpack", "compression": "snappy"},
    {"name": "sequencefile", "key": "legacy"},
    {"name": "text"},
    {"name": "text", "compression": "gzip"},
]


def archive_of(stack: Stack, tp: TopicPartition, kind: Any, name: str = "", **stream: Any) -> Archive:
    return Archive(stack, name or tp.topic, [tp.topic], {"format": kind, **stream})


def edge_cases(seed: int, count: int, values: Callable[[random.Random], bytes | None] | None = None) -> list[Record]:
    """Return messages of many sizes, some with null or empty keys and values, headers or a line break."""
    source = random.Random(seed)

    def value() -> bytes | None:
        return source.choice([None, b"", b"a\nb", b"\n", source.randbytes(source.randrange(2000)).hex().encode()])

    keys: list[bytes | None] = [None, b"", b"key", source.randbytes(300)]
    headers = [[], [("trace", b"1"), ("trace", None)]]
    return [
        Record(0, NOW_MS + i, source.choice(keys), values(source) if values else value(), source.choice(headers))
        for i in range(count)
    ]


def json_line(source: random.Random) -> bytes:
    return json.dumps({"number": source.randrange(10**9), "text": "ä" * source.randrange(200)}).encode()


def abort_a_transaction(cluster: Cluster, tp: TopicPartition) -> None:
    producer = cluster.producer(transactional_id=tp.topic)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(tp.topic, b"aborted", partition=tp.partition)
    producer.flush(20)
    producer.abort_transaction(20)
    cluster.wait_for_markers(tp)


def produce_and_abort(cluster: Cluster, tp: TopicPartition, records: list[Record]) -> None:
    """Produce messages and an aborted transaction, so that the log ends with offsets that are not archived."""
    half = len(records) // 2
    cluster.produce(tp, records[:half], compression_type="zstd")
    cluster.produce(tp, records[half:])
    abort_a_transaction(cluster, tp)


def read_archive(archive: Archive, tp: TopicPartition) -> list[tuple[Record, str | None]]:
    """Return every message of a chain, and the reason if the message was set aside."""
    found: list[tuple[Record, str | None]] = []
    with archive.store() as store:
        for backup in archive.chain(tp):
            with IndexedReader(store, backup.key) as reader:
                for batch in reader.messages(first_offset=backup.name.first_offset, next_offset=backup.next_offset):
                    aside = batch.column(SET_ASIDE).to_pylist() if SET_ASIDE in batch.schema.names else None
                    records = list(to_records(batch))
                    found += zip(records, aside or [None] * len(records), strict=True)
    return found


def assert_contiguous(archive: Archive, tp: TopicPartition) -> None:
    ranges = archive.ranges(tp)
    assert all(a[1] == b[0] for a, b in pairwise(ranges))


def objects(archive: Archive, tp: TopicPartition) -> list[bytes]:
    with archive.store() as store:
        return [store.read(found.key) for found in archive.chain(tp)]


def index_keys(archive: Archive) -> list[str]:
    with archive.store() as store:
        return list(store.keys(f"{archive.name}/index/"))


# --- independent readers ----------------------------------------------------------------------------------------------


def read_by_hadoop(stack: Stack, files: list[Path]) -> list[tuple[str, list[tuple[Any, bytes]]]]:
    """Return what `SequenceFile.Reader` prints of each file: its first line, then keys and values."""
    ran = subprocess.run(
        [str(stack.kafka.java.binary), "-cp", f"{pyspark_jars()}/*", str(READER), *map(str, files)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return [_dump(Path(f"{file}.dump")) for file in files]


def _dump(file: Path) -> tuple[str, list[tuple[Any, bytes]]]:
    head, *rows = file.read_text().splitlines()
    return head, [(key, bytes.fromhex(value)) for key, _, value in (row.partition(" ") for row in rows)]


def test_hadoop_reads_the_messages_of_kafka(stack: Stack, cluster: Cluster, tp: TopicPartition, tmp_path: Path) -> None:
    produce_and_abort(cluster, tp, edge_cases(1, 600))
    in_kafka = cluster.messages(tp)
    assert len(in_kafka) == 600
    files: list[Path] = []
    counts = []
    for key, compression in SEQUENCE_FILES:
        kind = {"name": "sequencefile", "key": key, "compression": compression}
        archive = archive_of(
            stack, tp, kind, f"{tp.topic}-{key}-{compression}", upload={"max_age": "0s", "max_bytes": "200KiB"}
        )
        assert archive.run().lag == 0
        assert_contiguous(archive, tp)
        files += write_files(tmp_path, f"{key}-{compression}", objects(archive, tp))
        counts.append(len(archive.chain(tp)))
    assert min(counts) >= 2, "each chain has several objects"

    dumps = iter(read_by_hadoop(stack, files))

    for (key, compression), count in zip(SEQUENCE_FILES, counts, strict=True):
        found: list[tuple[int, bytes | None, bytes]] = []
        for head, rows in (next(dumps) for _ in range(count)):
            codec = {"none": "none NONE", "gzip": "GzipCodec BLOCK", "snappy": "SnappyCodec BLOCK"}
            assert head.startswith(codec.get(compression, "ZStandardCodec BLOCK"))
            assert f"topic={tp.topic}" in head
            found += [(*_offset_and_key(key, shown), value) for shown, value in rows]
        expected = [(r.offset, r.key if key == "msgpack" else None, r.value or b"") for r in in_kafka]
        assert found == expected, (key, compression)


def _offset_and_key(kind: str, shown: str) -> tuple[int, bytes | None]:
    if kind == "legacy":
        return int(shown), None
    found = msgspec.msgpack.decode(bytes.fromhex(shown))
    assert found.keys() <= {1, 2}
    return found[1], found.get(2)


def write_files(folder: Path, name: str, data: list[bytes]) -> list[Path]:
    files = [folder / f"{name}-{number}.seq" for number in range(len(data))]
    for file, content in zip(files, data, strict=True):
        file.write_bytes(content)
    return files


def test_text_objects_hold_the_values_of_kafka_line_by_line(
    stack: Stack, cluster: Cluster, tp: TopicPartition, tmp_path: Path
) -> None:
    produce_and_abort(cluster, tp, edge_cases(2, 500, json_line))
    in_kafka = [record.value for record in cluster.messages(tp)]
    for compression in ("none", "gzip"):
        kind = {"name": "text", "compression": compression}
        archive = archive_of(
            stack, tp, kind, f"{tp.topic}-{compression}", upload={"max_age": "0s", "max_bytes": "20KiB"}
        )
        assert archive.run().lag == 0
        assert_contiguous(archive, tp)
        data = objects(archive, tp)
        plain = b"".join(gzip.decompress(part) if compression == "gzip" else part for part in data)
        assert plain.split(b"\n") == [*in_kafka, b""]
        suffix = "txt.gz" if compression == "gzip" else "txt"
        assert all(found.key.endswith("." + suffix) for found in archive.chain(tp))
        for number, part in enumerate(data):
            (tmp_path / f"{number:03d}.{suffix}").write_bytes(part)
        rows = duckdb.sql(
            f"select number from read_json('{tmp_path}/*.{suffix}', format='newline_delimited', filename=true) "
            "order by filename"
        ).fetchall()
        assert len(data) > 1
        assert sorted(rows) == sorted((json.loads(line or b"{}")["number"],) for line in in_kafka)


@pytest.mark.deep
def test_spark_data_source_reads_text_objects_with_messages_that_were_set_aside(
    stack: Stack, cluster: Cluster, tp: TopicPartition, tmp_path: Path, spark: SparkSession
) -> None:
    from waybill.tables.spark.source import WaybillBackup

    spark.dataSource.register(WaybillBackup)
    cluster.produce(tp, edge_cases(3, 200))
    in_kafka = cluster.messages(tp)
    archive = archive_of(stack, tp, "text")
    archive.run()
    config = tmp_path / "streams.json"
    config.write_text(json.dumps(archive.config.model_dump(mode="json")))
    frame = spark.read.format("waybill_backup").option("stream", STREAM).option("config", str(config)).load()
    rows = sorted(frame.collect(), key=lambda row: row["offset"])
    assert [(row["offset"], row["value"]) for row in rows] == [(r.offset, r.value) for r in in_kafka]
    aside = [record.value is None or b"\n" in record.value for record in in_kafka]
    assert [row["kafka_timestamp"] is not None for row in rows] == aside
    assert [row["key"] for row in rows] == [r.key if whole else None for r, whole in zip(in_kafka, aside, strict=True)]


# --- Waybill's reader -------------------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("kind", EVERY_FORMAT, ids=lambda kind: "-".join(kind.values()))
def test_reader_returns_the_messages_of_kafka_without_what_the_format_lacks(
    stack: Stack, cluster: Cluster, tp: TopicPartition, kind: dict[str, str]
) -> None:
    produce_and_abort(cluster, tp, edge_cases(4, 400))
    archive = archive_of(stack, tp, kind, upload={"max_age": "0s", "max_bytes": "100KiB"})
    report = archive.run()
    in_kafka = cluster.messages(tp)

    assert not report.failures
    assert (report.lag, report.messages) == (0, len(in_kafka))
    assert len(index_keys(archive)) == report.objects > 1
    found = read_archive(archive, tp)
    assert [record.offset for record, _ in found] == [record.offset for record in in_kafka]
    assert [record.value for record, _ in found] == [record.value for record in in_kafka]
    for (record, why), original in zip(found, in_kafka, strict=True):
        if why is not None:
            assert record == original, "messages that were set aside are complete"
        else:
            assert record == original._replace(
                timestamp_ms=-1, headers=[], key=original.key if kind.get("key") == "msgpack" else None
            )
    aside = [kind["name"] == "text" and (r.value is None or b"\n" in r.value) for r in in_kafka]
    assert [why is not None for _, why in found] == aside
    committed = archive.committed(tp)
    assert committed is not None
    assert committed.extension == archive.config.stream(STREAM).format.extension


def test_a_delimiter_of_several_bytes_sets_messages_aside(stack: Stack, cluster: Cluster, tp: TopicPartition) -> None:
    archive = archive_of(stack, tp, {"name": "text", "delimiter": "--"})
    values = [b"a", b"", b"-", b"a--b", b"b-", b"a\nb", b"-c"]
    cluster.produce(tp, [(None, value) for value in values])
    archive.run()
    assert objects(archive, tp) == [b"a----a\nb---c--"]
    assert [why is not None for _, why in read_archive(archive, tp)] == [False, False, True, True, True, False, False]
    assert [record.value for record, _ in read_archive(archive, tp)] == values


@pytest.mark.parametrize("kind", EVERY_FORMAT, ids=lambda kind: "-".join(kind.values()))
def test_an_object_without_messages_has_its_range(
    stack: Stack, cluster: Cluster, tp: TopicPartition, kind: dict[str, str]
) -> None:
    archive = archive_of(stack, tp, kind)
    abort_a_transaction(cluster, tp)
    report = archive.run()
    assert (report.lag, report.objects, report.messages) == (0, 1, 0)
    assert archive.ranges(tp) == [(0, 2)]
    cluster.produce(tp, [(b"k", b"v")])
    archive.run()
    assert archive.ranges(tp) == [(0, 2), (2, 3)]
    assert [(record.offset, record.value) for record, _ in read_archive(archive, tp)] == [(2, b"v")]


# --- crashes and rivals -----------------------------------------------------------------------------------------------


class Crash(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], None]], None]:
    """Return a function that makes a lane call something once, at a failpoint."""

    def set_up(place: str, act: Callable[[], None]) -> None:
        left = [act]

        def reach(name: str) -> None:
            if name == place and left:
                left.pop()()

        monkeypatch.setattr(failpoints, "reach", reach)

    return set_up


def crash() -> None:
    raise Crash


@pytest.mark.parametrize("kind", EVERY_FORMAT[::3], ids=lambda kind: kind["name"])
@pytest.mark.parametrize(("place", "adopted"), [("ingest.index_created", False), ("ingest.object_created", True)])
def test_a_crash_before_or_after_the_object_is_created_loses_nothing(
    stack: Stack,
    cluster: Cluster,
    tp: TopicPartition,
    kind: dict[str, str],
    place: str,
    adopted: bool,
    at: Callable[[str, Callable[[], None]], None],
) -> None:
    archive = archive_of(stack, tp, kind)
    produce_and_abort(cluster, tp, edge_cases(5, 100))
    at(place, crash)
    with archive.services() as services, pytest.raises(Crash):
        archive.run_one(services, tp)
    assert len(index_keys(archive)) == 1
    cluster.produce(tp, edge_cases(6, 20))

    (partition,) = archive.run().partitions

    assert [done.adopted for done in partition.objects] == ([True, False] if adopted else [False])
    assert partition.lag == 0
    in_kafka = cluster.messages(tp)
    assert partition.objects[0].messages == (100 if adopted else 120)
    assert [(r.offset, r.value) for r, _ in read_archive(archive, tp)] == [(r.offset, r.value) for r in in_kafka]
    assert_contiguous(archive, tp)


def test_of_two_indexes_with_the_same_hash_the_one_with_the_higher_end_is_used(
    stack: Stack, cluster: Cluster, tp: TopicPartition, at: Callable[[str, Callable[[], None]], None]
) -> None:
    """A lane that died left an index with the same SHA-256, but with fewer left-out offsets after the messages."""
    archive = archive_of(stack, tp, "text")
    cluster.produce(tp, [(None, b"one"), (None, b"two")])
    at("ingest.index_created", crash)
    with archive.services() as services, pytest.raises(Crash):
        archive.run_one(services, tp)
    abort_a_transaction(cluster, tp)
    assert archive.run().lag == 0
    assert archive.ranges(tp) == [(0, 4)]
    with archive.store() as store:
        (found,) = archive.chain(tp)
        store.client.put_object(Bucket=store.bucket, Key=found.key, Body=store.read(found.key))  # without metadata
    assert archive.ranges(tp) == [(0, 4)]
    assert [record.offset for record, _ in read_archive(archive, tp)] == [0, 1]


@pytest.mark.parametrize("kind", EVERY_FORMAT[1:3], ids=lambda kind: kind["name"])
def test_a_lane_adopts_a_rivals_shorter_object_and_removes_its_own_index(
    stack: Stack,
    cluster: Cluster,
    tp: TopicPartition,
    kind: dict[str, str],
    at: Callable[[str, Callable[[], None]], None],
) -> None:
    """The rival creates its objects after the lane has created its index and before the lane creates its object."""

    class Unlocked(Coordinator):
        def lock(self, _: TopicPartition) -> Any:
            return nullcontext()

    archive = archive_of(stack, tp, kind)
    rival = archive_of(stack, tp, kind, upload={"max_age": "0s", "max_bytes": "30KiB"})
    cluster.produce(tp, edge_cases(7, 200, json_line), batch_num_messages=20)

    def overtake() -> None:
        with rival.services() as services:
            services.coordinator.__class__ = Unlocked
            assert rival.run_one(services, tp).failure is None

    at("ingest.index_created", overtake)
    with archive.services() as services:
        services.coordinator.__class__ = Unlocked
        report = archive.run_one(services, tp)

    assert report.failure is None
    assert report.lag == 0
    in_kafka = cluster.messages(tp)
    assert [(r.offset, r.value) for r, _ in read_archive(archive, tp)] == [(r.offset, r.value) for r in in_kafka]
    assert_contiguous(archive, tp)
    assert len(index_keys(archive)) == len(archive.chain(tp)) > 1


def test_a_lost_answer_of_s3_keeps_the_index_of_the_created_object(
    stack: Stack, cluster: Cluster, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 created the object at the lane's first attempt and refuses the second: the object uses this index."""
    archive = archive_of(stack, tp, "sequencefile")
    cluster.produce(tp, [(b"k", b"v")])
    complete = Upload.complete

    def twice(upload: Upload) -> None:
        complete(upload)
        raise ObjectExists(upload.key)

    with archive.services() as services:
        monkeypatch.setattr(Upload, "complete", twice)
        assert archive.run_one(services, tp).failure is None
    assert [(record.offset, record.key, record.value) for record, _ in read_archive(archive, tp)] == [(0, b"k", b"v")]
    assert len(index_keys(archive)) == 1


# --- writing an object ------------------------------------------------------------------------------------------------


def begin_object(store: Store, topic: str, kind: str) -> BackupObject:
    shape = Format.model_validate(kind)
    return new_backup_object(store, BackupName(topic, 1, 0, 0, shape.extension), "", shape)


def test_an_object_is_full_when_its_index_is_large(stack: Stack, tp: TopicPartition) -> None:
    """The index is in memory, so a topic whose messages are all set aside gets more objects, not larger ones."""
    noise, taken = random.Random(1).randbytes, 0
    with archive_of(stack, tp, "text").store() as store:
        target = begin_object(store, tp.topic, "text")
        for offset in range(40):
            data = memoryview(encode_batch([Record(offset, NOW_MS, None, noise(1 << 20) + b"\n")]))
            (frame,) = framing.frames(data, where="test")
            if target.is_full(frame, 1 << 30):
                break
            target.begin_chunk(data)
            target.take(frame, True)
            target.flush()
            taken += 1
        assert (15 <= taken <= 18, target.size_bytes) == (True, 0)
        target.complete()
        with IndexedReader(store, target.key) as reader:
            assert sum(batch.num_rows for batch in reader.messages()) == reader.figures.set_aside == taken


def test_records_that_cannot_be_decoded_raise_with_a_remedy(stack: Stack, tp: TopicPartition) -> None:
    """The CRC is valid. A broker rejects such a batch today, but an old log can contain one from before that check."""
    sound = encode_batch([Record(0, NOW_MS, None, b"value")])
    header = framing.read_header(sound, 0, "test")
    data = framing.pack_batch(header, sound[framing.HEADER_BYTES : -1])
    (frame,) = framing.frames(data, where="test")
    with archive_of(stack, tp, "text").store() as store:
        target = begin_object(store, tp.topic, "text")
        target.begin_chunk(memoryview(data))
        target.take(frame, True)
        with pytest.raises(CorruptBatch, match=f"^{tp}, byte 0: .* Only the format kafka archives such a batch"):
            target.flush()
        target.abort()


# --- one format per chain ---------------------------------------------------------------------------------------------


def test_another_format_needs_another_generation(stack: Stack, cluster: Cluster, tp: TopicPartition) -> None:
    cluster.produce(tp, [(b"k", b"v")])
    assert archive_of(stack, tp, "kafka").run().messages == 1
    cluster.produce(tp, [(b"k", b"w")])
    for forget in (False, True):
        changed = archive_of(stack, tp, {"name": "text", "compression": "gzip"})
        if forget:
            with changed.services() as services:
                coordinator = services.coordinator
                coordinator.session.client.delete(coordinator.session.full_path(coordinator.paths.committed_offset(tp)))
        (partition,) = changed.run().partitions
        assert partition.failure is not None
        assert partition.failure.error == "GenerationConflict"
        assert "holds .kafka objects, but the config has format text (.txt.gz)" in partition.failure.message
    archive = archive_of(stack, tp, "text", generation=2)
    assert archive.run().messages == 2


# --- end to end -------------------------------------------------------------------------------------------------------


def stream_of(tmp_path: Path, topic: str, kind: str) -> ArchivedStream:
    stream = ArchivedStream(tmp_path, topic, partitions=1)
    stream.file.write_text(stream.file.read_text().replace("    table:", f"    format: {kind}\n    table:"))
    return stream


@pytest.fixture
def text_stream(stack: Stack, tmp_path: Path, topic_name: str) -> ArchivedStream:
    """A stream with twenty events, and four messages that text cannot hold or the parser rejects."""
    stream = stream_of(tmp_path, topic_name, "{name: text, compression: gzip}")
    stream.produce_events(10)
    producer = stream.producer()
    for value in (b'{"id": "broken",\n"time": "2026-01-01T00:00:00Z"}', None, b"junk", b"\n"):
        producer.produce(stream.topic, value, b"key", 0, headers=[("h", b"1")], timestamp=1_700_000_000_000)
    assert producer.flush(30) == 0
    stream.produce_events(10, first=10)
    stream.ingest()
    return stream


def test_messages_that_text_cannot_hold_go_to_quarantine(text_stream: ArchivedStream) -> None:
    text_stream.partition()
    with text_stream.tables() as tables:
        main, quarantine = tables.main.scan().to_arrow(), tables.quarantine.scan().to_arrow()
    assert sorted(main.column("offset").to_pylist()) == [*range(10), *range(14, 24)]
    assert set(main.column("key").to_pylist()) == {None}
    rows = {row["offset"]: row for row in quarantine.to_pylist()}
    assert {offset: (row["reason"].split(":")[0], row["parser"]) for offset, row in rows.items()} == {
        10: ("contains_delimiter", "text"),
        11: ("tombstone", "text"),
        12: ("not_json", "json"),
        13: ("contains_delimiter", "text"),
    }
    assert rows[10]["value"] == b'{"id": "broken",\n"time": "2026-01-01T00:00:00Z"}'
    assert (rows[11]["value"], rows[11]["key"], rows[11]["headers"]) == (None, b"key", [{"key": "h", "value": b"1"}])
    assert rows[11]["kafka_timestamp"].timestamp() == 1_700_000_000
    assert (rows[12]["key"], rows[12]["kafka_timestamp"]) == (None, None)

    assert text_stream.waybill("verify", "--json").document[0]["faults"] == []


def test_ls_and_cat_show_messages_that_were_set_aside(text_stream: ArchivedStream) -> None:
    (listed,) = text_stream.waybill("ls", "events", "--json").document
    assert listed["key"].endswith(".txt.gz")
    assert (listed["first_offset"], listed["next_offset"]) == (0, 24)
    shown = [json.loads(line) for line in text_stream.waybill("cat", listed["key"]).out.splitlines()]
    assert [message["offset"] for message in shown] == list(range(24))
    assert shown[0]["timestamp"] is None
    assert [m["offset"] for m in shown if "set_aside" in m] == [10, 11, 13]
    assert shown[11]["value"] is None
    (one,) = text_stream.waybill("cat", listed["key"], "--from", "13", "--to", "13").out.splitlines()
    assert json.loads(one)["value"] == "\n"


def faults(stream: ArchivedStream) -> list[tuple[str, str]]:
    ran = stream.waybill("verify", "--json", "--no-table")
    return [(fault["kind"], fault["what"]) for fault in ran.document[0]["faults"]]


def put(store: Store, key: str, data: bytes, **metadata: str) -> None:
    """Overwrite an object. Waybill never does that."""
    store.client.put_object(Bucket=store.bucket, Key=key, Body=data, Metadata=metadata)


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["{name: sequencefile, compression: zstd}", "sequencefile", "text"])
def test_verify_reports_damaged_objects_and_missing_indexes(
    stack: Stack, tmp_path: Path, topic_name: str, kind: str
) -> None:
    stream = stream_of(tmp_path, topic_name, kind)
    stream.produce_events(50)
    stream.ingest()
    (key,) = stream.object_keys()
    with stream.store() as store:
        data, metadata = store.read(key), store.metadata(key)
        assert faults(stream) == []
        put(store, key, data)
        assert faults(stream) == [], "the index is found by the object's hash"
        damaged = bytearray(data)
        damaged[-20] ^= 1
        put(store, key, bytes(damaged), **metadata)
        ((found, _),) = faults(stream)
        assert found == "damaged"
        put(store, key, bytes(damaged))
        ((found, what),) = faults(stream)
        assert (found, "has this object's SHA-256" in what) == ("damaged", True)
        put(store, key, data, **metadata)
        (index,) = store.keys(f"{store.prefix}/index/")
        content = store.read(index)
        store.remove(index)
        ((found, what),) = faults(stream)
        assert (found, "none of 0 index objects" in what) == ("damaged", True)
        store.create_if_absent(index, content)
        assert faults(stream) == []
        other = key.rpartition("/")[0] + f"/1_0_{50:020d}.kafka"
        put(store, other, b"")
        assert ("format", "a .kafka object in a chain of ." + key.rpartition(".")[2]) in faults(stream)
        with pytest.raises(MixedFormats, match="of different formats"):
            list(walk_chain(store, 1, stream.tp()))


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["{name: sequencefile, compression: gzip}", "text"])
def test_a_gap_marker_has_the_format_of_its_chain(
    stack: Stack, cluster: Cluster, tmp_path: Path, topic_name: str, kind: str
) -> None:
    """The end of the chain is found without ZooKeeper too."""
    stream = stream_of(tmp_path, topic_name, kind)
    stream.produce_events(10)
    stream.ingest()
    stream.produce_events(20, first=10)
    cluster.delete_records(stream.tp(), before=25)
    accepted = stream.waybill("gaps", "accept", stream.topic, "0", "--reason", "the disk was full")
    assert accepted.code == 0, accepted.err
    with stream.coordinator() as coordinator:
        coordinator.session.client.delete(
            coordinator.session.full_path(coordinator.paths.committed_offset(stream.tp()))
        )
    stream.ingest()
    with stream.store() as store:
        found = list(walk_chain(store, 1, stream.tp()))
    assert [(o.name.first_offset, o.next_offset) for o in found] == [(0, 10), (10, 25), (25, 30)]
    assert {o.name.extension for o in found} == {stream.stream.format.extension}
    stream.partition()
    (report,) = stream.waybill("verify", "--json").document
    assert report["faults"] == []
    assert report["figures"]["rows"] == 15


def test_a_waiting_lane_leaves_no_index(stack: Stack, cluster: Cluster, tp: TopicPartition) -> None:
    archive = archive_of(stack, tp, "sequencefile", upload={"max_age": "1h"})
    cluster.produce(tp, [(b"k", b"v")])
    report = archive.run()
    assert report.partitions[0].outcome is ingest.Outcome.WAITING
    assert index_keys(archive) == []
