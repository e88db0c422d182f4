"""`waybill verify` finds every kind of damage as one fault, and no fault in a sound stream."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archived_stream import ArchivedStream, Checkpoint, add_rows, remove_rows, waybill_process

from devstack import Stack
from waybill.config.names import BackupName
from waybill.records.batches import framing
from waybill.services.coordination import CommittedOffset
from waybill.services.store import Store
from waybill.tables.dedup.execute import InThisProcess
from waybill.tables.dedup.sweep import run_sweep
from waybill.tables.iceberg import load_dedup_tables

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def checkpoint(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Two topic-partitions with a chain of three objects each, in tables."""
    stream = ArchivedStream(tmp_path_factory.mktemp("verify"), f"verify-{uuid.uuid4().hex[:8]}")
    for part in range(3):
        for partition in (0, 1):
            stream.produce_events(100, partition=partition, first=part * 100)
        stream.ingest()
    stream.partition()
    return Checkpoint.of(stream, 2)


@pytest.fixture
def archived(checkpoint: Checkpoint) -> Iterator[ArchivedStream]:
    """Yield the same stream to each test, and undo its damage afterwards."""
    yield checkpoint.stream
    checkpoint.restore()


def faults(stream: ArchivedStream, *arguments: str) -> list[dict[str, Any]]:
    """Return the faults of `verify --json`, after a check that the exit code agrees with them."""
    ran = stream.waybill("verify", stream.name, "--json", *arguments)
    assert ran.code in (0, 1), ran.err
    (report,) = ran.document
    assert report["sound"] == (ran.code == 0) == (not report["faults"])
    return list(report["faults"])


def effects(fault: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(effect["kind"], effect["rows"]) for effect in fault["affects"]]


def figures(stream: ArchivedStream) -> dict[str, int]:
    (report,) = stream.waybill("verify", stream.name, "--json").document
    return dict(report["figures"])


def put(store: Store, key: str, data: bytes) -> None:
    """Overwrite an object. Waybill itself never does."""
    store.client.put_object(Bucket=store.bucket, Key=key, Body=data)


def test_sound_stream_has_no_faults(archived: ArchivedStream) -> None:
    ran = waybill_process("verify", WAYBILL_CONFIG=str(archived.file))
    assert ran.code == 0, ran.out
    assert ran.out.splitlines()[-1] == "sound: nothing lost, nothing repeated"
    assert ran.err == ""
    found = figures(archived)
    assert found.pop("bytes") > 1000
    assert found == {
        "chains": 2,
        "objects": 6,
        "messages": 600,
        "waiting": 0,
        "rows": 600,
        "quarantine": 0,
        "lost": 0,
        "repeated": 0,
        "foreign": 0,
        "unique": 0,
        "duplicates": 0,
        "unswept": 0,
        "left_out": 0,
        "shards": 0,
    }


def test_messages_that_wait_for_a_partition_run_are_no_fault(archived: ArchivedStream) -> None:
    archived.produce_events(50, first=300)
    archived.ingest()
    assert faults(archived) == []
    assert figures(archived)["waiting"] == 50


def test_stream_before_its_first_partition_run_has_a_note_and_no_fault(
    stack: Stack, tmp_path: Path, topic_name: str
) -> None:
    stream = ArchivedStream(tmp_path, topic_name)
    stream.produce_events(10)
    stream.ingest()
    ran = stream.waybill("verify")
    assert ran.code == 0
    assert "events: note: there is no table yet: the first partition run creates it" in ran.out.splitlines()


def test_stream_before_its_first_object_has_no_faults(stack: Stack, tmp_path: Path, topic_name: str) -> None:
    stream = ArchivedStream(tmp_path, topic_name)
    assert faults(stream) == []
    stream.ingest()  # of an empty topic: committed offsets without a chain
    assert faults(stream) == []


# --- the archive ------------------------------------------------------------------------------------------------------


def test_deleted_object_in_the_middle_is_one_fault_with_its_effects(archived: ArchivedStream) -> None:
    key = archived.object_keys()[1]
    with archived.store() as store:
        store.client.delete_object(Bucket=store.bucket, Key=key)
    (fault,) = faults(archived)
    assert fault["kind"] == "missing"
    assert (fault["topic"], fault["partition"]) == (archived.topic, 0)
    assert (fault["first_offset"], fault["next_offset"]) == (100, 200)
    assert fault["what"] == "no backup object holds these 100 offsets; the chain is broken after this object"
    assert effects(fault) == [("progress", None), ("rows", 100)]
    ran = archived.waybill("verify")
    (line,) = [text for text in ran.out.splitlines() if text.startswith("events: ")]
    table = fault["affects"][0]["where"]
    assert line == (
        f"events: missing: {archived.tp()} offsets 100–199: {fault['what']} ({fault['where']})"
        f"; affects: {table} has progress 300, which has passed these offsets"
        f"; affects: {table} has 100 rows of these offsets, which the archive no longer backs"
    )
    assert ran.out.splitlines()[-1] == "NOT SOUND: 1 fault"
    assert ran.code == 1
    found = figures(archived)
    assert (found["rows"], found["lost"], found["foreign"]) == (600, 0, 0)


def test_deleted_last_object_is_one_fault_with_its_effects(archived: ArchivedStream) -> None:
    key = archived.object_keys(1)[-1]
    with archived.store() as store:
        store.client.delete_object(Bucket=store.bucket, Key=key)
    (missing,) = faults(archived)
    assert (missing["kind"], missing["partition"]) == ("missing", 1)
    assert (missing["first_offset"], missing["next_offset"]) == (200, 300)
    assert "the committed offset is 300" in missing["what"]
    assert effects(missing) == [("progress", None), ("rows", 100)]
    found = figures(archived)
    assert (found["rows"], found["lost"], found["foreign"]) == (600, 0, 0)


def test_deleted_first_object_is_one_fault_with_its_effects(archived: ArchivedStream) -> None:
    with archived.store() as store:
        store.client.delete_object(Bucket=store.bucket, Key=archived.object_keys()[0])
    (fault,) = faults(archived)
    assert (fault["kind"], fault["first_offset"], fault["next_offset"]) == ("missing", 0, 100)
    assert fault["what"] == "no backup object holds these 100 offsets; the chain began at 0"
    assert effects(fault) == [("progress", None), ("rows", 100)]


def test_deleted_chain_is_one_fault_with_its_effects(archived: ArchivedStream) -> None:
    with archived.store() as store:
        for key in archived.object_keys():
            store.client.delete_object(Bucket=store.bucket, Key=key)
    (fault,) = faults(archived, "--no-table")
    assert (fault["kind"], fault["topic"], fault["partition"]) == ("missing", archived.topic, 0)
    assert (fault["first_offset"], fault["next_offset"]) == (0, 300)
    assert fault["what"] == "the committed offset is 300, and the chain has no object"
    assert effects(fault) == []
    (with_tables,) = faults(archived)
    assert {**with_tables, "affects": []} == fault
    assert effects(with_tables) == [("progress", None), ("rows", 300)]


def test_rows_that_no_object_ever_held_are_faults_beside_a_missing_object(archived: ArchivedStream) -> None:
    with archived.store() as store, archived.tables() as tables:
        store.client.delete_object(Bucket=store.bucket, Key=archived.object_keys(1)[-1])
        add_rows(tables.main, _with(tables.main.scan(row_filter=rows_of(42)).to_arrow(), offset=305, partition=1))
    missing, foreign = faults(archived)
    assert (missing["kind"], effects(missing)) == ("missing", [("progress", None), ("rows", 100)])
    assert (foreign["kind"], foreign["first_offset"], foreign["affects"]) == ("foreign", 305, [])
    assert archived.waybill("verify").out.splitlines()[-1] == "NOT SOUND: 2 faults"


@pytest.mark.deep
def test_missing_object_affects_the_tables_of_dedup_too(stack: Stack, tmp_path: Path, topic_name: str) -> None:
    stream = ArchivedStream(tmp_path, topic_name)
    stream.file.write_text(f"{stream.file.read_text()}    dedup: {{}}\n")
    for first in (0, 50):
        stream.produce_events(50, first=first)
        stream.ingest()
    stream.produce_events(5, first=20)  # sent again
    stream.ingest()
    stream.partition()
    run_sweep(stream.config, stream.name, InThisProcess())
    with stream.store() as store:
        for key in stream.object_keys()[1:]:
            store.client.delete_object(Bucket=store.bucket, Key=key)
    (fault,) = faults(stream)
    assert (fault["kind"], fault["first_offset"], fault["next_offset"]) == ("missing", 50, 105)
    assert effects(fault) == [("progress", None), ("rows", 55), ("rows", 50), ("rows", 5)]
    assert len({effect["where"] for effect in fault["affects"]}) == 3


@pytest.mark.parametrize("position", ["first", "middle", "last"])
def test_flipped_byte_is_one_fault(archived: ArchivedStream, position: str) -> None:
    key = archived.object_keys()[0]
    with archived.store() as store:
        data = bytearray(store.read(key))
        at = {"first": 21, "middle": len(data) // 2, "last": len(data) - 1}[position]
        data[at] ^= 0x01
        put(store, key, bytes(data))
    (fault,) = faults(archived)
    assert (fault["kind"], fault["where"]) == ("damaged", key)
    assert (fault["first_offset"], fault["next_offset"]) == (0, 100)
    assert fault["what"].startswith("byte 0: ") or "byte " in fault["what"]


@pytest.mark.parametrize("kept", [0, 30, -1])
def test_truncated_object_is_one_fault(archived: ArchivedStream, kept: int) -> None:
    key = archived.object_keys()[1]
    with archived.store() as store:
        put(store, key, store.read(key)[:kept])
    (fault,) = faults(archived)
    assert (fault["kind"], fault["where"], fault["first_offset"], fault["next_offset"]) == ("damaged", key, 100, 200)
    assert "cut short" in fault["what"] or "no record batch" in fault["what"]


def test_object_that_is_truncated_between_two_batches_leaves_offsets_missing(
    stack: Stack, tmp_path: Path, topic_name: str
) -> None:
    """All its bytes are right. Only the next object shows that offsets are missing."""
    stream = ArchivedStream(tmp_path, topic_name, partitions=1)
    for first in (0, 10, 20):
        stream.produce_events(10, first=first)
    stream.ingest()
    stream.produce_events(10, first=30)
    stream.ingest()
    keys = stream.object_keys()
    with stream.store() as store:
        data = store.read(keys[0])
        frames = list(framing.frames(data, where=""))
        assert len(frames) >= 3
        put(store, keys[0], data[: frames[-1].position])
    (fault,) = faults(stream)
    assert (fault["kind"], fault["where"], fault["next_offset"]) == ("missing", keys[0], 30)
    assert fault["first_offset"] == frames[-1].header.base_offset


def test_object_that_is_replaced_by_another_one_is_damaged(archived: ArchivedStream) -> None:
    """All its checksums are right."""
    first, second, _ = archived.object_keys()
    with archived.store() as store:
        put(store, second, store.read(first))
    (fault,) = faults(archived)
    assert (fault["kind"], fault["where"]) == ("damaged", second)
    assert fault["what"] == "the object's name starts at offset 100, but it only holds offsets below 100"


def test_object_that_overlaps_the_next_one_is_a_fault(archived: ArchivedStream) -> None:
    with archived.store() as store:
        data = store.read(archived.object_keys()[1])
        put(store, BackupName(archived.topic, 1, 0, 150).key(store.prefix), data)
    found = faults(archived, "--no-table")
    assert [(f["kind"], f["first_offset"], f["next_offset"]) for f in found] == [("overlap", 150, 200)]


# --- the committed offset ---------------------------------------------------------------------------------------------


def move(stream: ArchivedStream, offset: int) -> None:
    with stream.coordinator() as coordinator:
        found = coordinator.read_committed(stream.tp())
        assert found is not None
        moved = CommittedOffset(offset, object_bytes=found.object_bytes, object_messages=found.object_messages)
        coordinator.write_committed(stream.tp(), moved, found.version)


@pytest.mark.parametrize(
    ("offset", "kind", "first", "following"),
    [(301, "missing", 300, 301), (10**15, "missing", 300, 10**15), (250, "committed", 250, 300),
     (100, "committed", 100, 300)],
)  # fmt: skip
def test_committed_offset_that_was_moved_is_a_fault(
    archived: ArchivedStream, offset: int, kind: str, first: int, following: int
) -> None:
    move(archived, offset)
    (fault,) = faults(archived)
    assert (fault["kind"], fault["topic"], fault["partition"]) == (kind, archived.topic, 0)
    assert (fault["first_offset"], fault["next_offset"]) == (first, following)
    assert f"the committed offset is {offset}" in fault["what"]


def test_object_that_was_not_committed_is_a_note_until_ingest_adopts_it(archived: ArchivedStream) -> None:
    """A lane that died between steps 6 and 7 leaves such an object, and the next ingest adopts it."""
    move(archived, 200)
    ran = archived.waybill("verify")
    assert ran.code == 0
    assert f"events: note: {archived.tp()}: the last object is not committed yet; the next ingest adopts it" in ran.out
    archived.ingest()
    assert "note:" not in archived.waybill("verify").out


def test_lost_committed_offset_is_a_note_and_no_fault(archived: ArchivedStream) -> None:
    with archived.coordinator() as coordinator:
        coordinator.session.client.delete(
            coordinator.session.full_path(coordinator.paths.committed_offset(archived.tp()))
        )
    ran = archived.waybill("verify")
    assert ran.code == 0
    assert (
        f"note: {archived.tp()}: ZooKeeper has no committed offset; the next ingest takes 300 from the chain" in ran.out
    )


# --- the tables -------------------------------------------------------------------------------------------------------


def rows_of(offset: int, partition: int = 0) -> str:
    return f"offset = {offset} and partition = {partition}"


def test_missing_row_is_lost(archived: ArchivedStream) -> None:
    with archived.tables() as tables:
        remove_rows(tables.main, 0, 123, 124)
    (fault,) = faults(archived)
    assert (fault["kind"], fault["topic"], fault["partition"]) == ("lost", archived.topic, 0)
    assert (fault["first_offset"], fault["next_offset"]) == (123, 124)
    assert ".events" in fault["where"]
    assert archived.object_keys()[1] in fault["where"]
    assert figures(archived)["lost"] == 1


def test_missing_rows_with_consecutive_offsets_are_one_fault(archived: ArchivedStream) -> None:
    with archived.tables() as tables:
        remove_rows(tables.main, 1, 10, 150)
    (fault,) = faults(archived)
    assert (fault["kind"], fault["partition"], fault["first_offset"], fault["next_offset"]) == ("lost", 1, 10, 150)
    assert figures(archived)["lost"] == 140


def test_list_of_many_lost_ranges_is_limited_but_all_are_counted(archived: ArchivedStream) -> None:
    with archived.tables() as tables:
        tables.main.delete("event_time >= '2026-01-03T00:00:00+00:00'")
    found = faults(archived)
    assert len(found) == 2 * 21
    assert "more such ranges with" in found[20]["what"]
    assert figures(archived)["lost"] == 360


def test_row_that_is_there_twice_is_repeated(archived: ArchivedStream) -> None:
    with archived.tables() as tables:
        add_rows(tables.main, tables.main.scan(row_filter=rows_of(42, 1)).to_arrow())
    (fault,) = faults(archived)
    assert (fault["kind"], fault["topic"], fault["partition"]) == ("repeated", archived.topic, 1)
    assert (fault["first_offset"], fault["next_offset"]) == (42, 43)
    assert fault["what"] == "2 rows where there should be one"
    assert figures(archived)["repeated"] == 1


def test_row_beyond_the_progress_is_foreign(archived: ArchivedStream) -> None:
    archived.produce_events(10, first=300)
    archived.ingest()
    with archived.tables() as tables:
        add_rows(tables.main, _with(tables.main.scan(row_filter=rows_of(42)).to_arrow(), offset=305))
    (fault,) = faults(archived)
    assert (fault["kind"], fault["first_offset"], fault["next_offset"]) == ("foreign", 305, 306)
    assert fault["what"] == "a row beyond the table's progress (300)"


@pytest.mark.deep
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"topic": "another"}, "a row of a topic-partition that has no chain"),
        ({"partition": 7}, "a row of a topic-partition that has no chain"),
        ({"generation": 2}, "a row of generation 2"),
    ],
)
def test_row_of_another_chain_is_foreign(archived: ArchivedStream, change: dict[str, Any], what: str) -> None:
    with archived.tables() as tables:
        add_rows(tables.main, _with(tables.main.scan(row_filter=rows_of(42)).to_arrow(), **change))
    (fault,) = faults(archived)
    assert (fault["kind"], fault["first_offset"], fault["what"]) == ("foreign", 42, what)
    assert figures(archived)["foreign"] == 1


def test_damaged_file_of_the_table_is_one_fault(archived: ArchivedStream) -> None:
    """A damaged page, which the file's footer does not show."""
    with archived.tables() as tables, archived.store() as store:
        file = next(iter(tables.main.scan().plan_files())).file
        key = file.file_path.removeprefix(f"s3://{store.bucket}/")
        data = store.read(key)
        footer = pq.read_metadata(io.BytesIO(data))
        offsets = next(c for c in columns_of(footer, 0) if c.path_in_schema == "offset")
        start = offsets.data_page_offset
        put(store, key, data[:start] + bytes(len(data[start : start + 60])) + data[start + 60 :])
        try:
            (fault,) = faults(archived)
        finally:
            put(store, key, data)
    assert (fault["kind"], fault["where"]) == ("unreadable", ".".join(tables.main.name()))
    assert "is damaged" in fault["what"]
    assert key.rpartition("/")[2] in fault["what"]


def columns_of(footer: pq.FileMetaData, group: int) -> list[pq.ColumnChunkMetaData]:
    return [footer.row_group(group).column(number) for number in range(footer.num_columns)]


@pytest.mark.parametrize("what", ["data", "manifest", "metadata"])
def test_missing_file_of_the_table_is_one_fault(archived: ArchivedStream, what: str) -> None:
    with archived.tables() as tables, archived.store() as store:
        snapshot = tables.main.current_snapshot()
        assert snapshot is not None
        path = {
            "data": next(iter(tables.main.scan().plan_files())).file.file_path,
            "manifest": snapshot.manifests(tables.main.io)[0].manifest_path,
            "metadata": tables.main.metadata_location,
        }[what]
        key = path.removeprefix(f"s3://{store.bucket}/")
        data = store.read(key)
        store.client.delete_object(Bucket=store.bucket, Key=key)
        try:
            (fault,) = faults(archived)
        finally:
            put(store, key, data)
    assert (fault["kind"], fault["where"]) == ("unreadable", ".".join(tables.main.name()))
    assert path.rpartition("/")[2] in fault["what"]


def test_table_without_progress_is_a_fault(archived: ArchivedStream) -> None:
    """Another program created the table again with rows: nothing records which offsets they should have."""
    with archived.tables() as tables, archived.catalog() as catalog:
        rows = tables.main.scan(row_filter=rows_of(42)).to_arrow()
        schema, spec = tables.main.schema(), tables.main.spec()
        catalog.drop_table(tables.main.name())
        add_rows(catalog.create_table(tables.main.name(), schema, partition_spec=spec), rows)
    (fault,) = faults(archived)
    assert fault["kind"] == "progress"
    assert "no snapshot in its history has the property waybill.progress" in fault["what"]


def _with(rows: Any, **change: Any) -> Any:
    for name, value in change.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), pa.array([value], rows.schema.field(at).type))
    return rows


# --- quarantine, transactions, compaction -----------------------------------------------------------------------------


@pytest.fixture
def mixed(stack: Stack, tmp_path: Path, topic_name: str) -> ArchivedStream:
    """One topic-partition with events, messages that cannot be parsed, tombstones, and two aborted transactions."""
    stream = ArchivedStream(tmp_path, topic_name, partitions=1)
    transactions = stream.producer(**{"transactional.id": topic_name})
    transactions.init_transactions(30)
    for commit in (False, True, False):
        transactions.begin_transaction()
        for i in range(20):
            transactions.produce(stream.topic, f'{{"id": "t{i}", "time": "2026-01-01T00:00:00Z"}}'.encode())
        transactions.flush(30)
        if commit:
            transactions.commit_transaction(30)
        else:
            transactions.abort_transaction(30)
    plain = stream.producer()
    for i in range(10):
        plain.produce(stream.topic, b"not json" if i % 2 else None, f"k{i}".encode())
    assert plain.flush(30) == 0
    stream.ingest()
    stream.partition()
    return stream


def test_transactions_quarantine_and_tombstones_are_counted_without_faults(mixed: ArchivedStream) -> None:
    assert faults(mixed) == []
    found = figures(mixed)
    assert (found["messages"], found["rows"], found["quarantine"]) == (30, 25, 5)


def test_row_of_an_aborted_transaction_is_foreign(mixed: ArchivedStream) -> None:
    with mixed.tables() as tables:
        rows = tables.main.scan().to_arrow()
        add_rows(tables.main, _with(rows.slice(0, 1), offset=3))
    (fault,) = faults(mixed)
    assert (fault["kind"], fault["first_offset"]) == ("foreign", 3)
    assert fault["what"] == "a row of an offset that is no message in the chain"


def test_row_in_table_and_quarantine_is_repeated(mixed: ArchivedStream) -> None:
    with mixed.tables() as tables:
        refused = tables.quarantine.scan().to_arrow().slice(0, 1)
        rows = tables.main.scan().to_arrow().slice(0, 1)
        offset = refused.column("offset")[0].as_py()
        add_rows(tables.main, _with(rows, offset=offset))
    (fault,) = faults(mixed)
    assert (fault["kind"], fault["first_offset"]) == ("repeated", offset)


@pytest.mark.deep
def test_quarantine_rows_beyond_the_progress_are_no_fault(mixed: ArchivedStream) -> None:
    """A partition run that died between its two commits leaves rows that are not final (docs/protocol.md)."""
    with mixed.tables() as tables:
        row = tables.quarantine.scan().to_arrow().slice(0, 1)
        add_rows(tables.quarantine, _with(row, offset=10**9))
    assert faults(mixed) == []
    assert figures(mixed)["quarantine"] == 5


def test_row_missing_from_quarantine_is_lost(mixed: ArchivedStream) -> None:
    with mixed.tables() as tables:
        offset = tables.quarantine.scan().to_arrow().column("offset")[0].as_py()
        remove_rows(tables.quarantine, 0, offset, offset + 1)
    (fault,) = faults(mixed)
    assert (fault["kind"], fault["first_offset"]) == ("lost", offset)


# --- dedup ------------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_tables_of_dedup_are_checked_and_counted(stack: Stack, tmp_path: Path, topic_name: str) -> None:
    stream = ArchivedStream(tmp_path, topic_name)
    stream.file.write_text(f"{stream.file.read_text()}    dedup: {{}}\n")
    stream.produce_events(50)
    stream.produce_events(5, partition=1, first=20)  # sent again
    stream.ingest()
    stream.partition()
    ran = stream.waybill("verify")
    assert "events: note: there was no dedup sweep yet" in ran.out.splitlines()
    run_sweep(stream.config, stream.name, InThisProcess())
    assert faults(stream, "--keys") == []
    stream.produce_events(3, first=60)
    stream.ingest()
    stream.partition()
    found = figures(stream)
    assert (found["rows"], found["unique"], found["duplicates"], found["unswept"]) == (58, 50, 5, 3)
    ran = stream.waybill("verify")
    assert ran.out.splitlines()[-4].split() == ["stream", "unique", "duplicates", "unswept"]
    assert ran.out.splitlines()[-3].split() == ["events", "50", "5", "3"]
    with stream.catalog() as catalog:
        tables = load_dedup_tables(catalog, stream.stream)
        assert tables is not None
        remove_rows(tables.unique, 0, 7, 9)
    (fault,) = faults(stream)
    assert (fault["kind"], fault["first_offset"], fault["next_offset"]) == ("lost", 7, 9)


# --- services ---------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_unreachable_s3_is_an_error_without_a_result(archived: ArchivedStream) -> None:
    """Then nothing is known about the archive, so there is no result."""
    away = '{"login": "a", "password": "b", "extra": {"endpoint_url": "http://127.0.0.1:1", "region_name": "x"}}'
    ran = waybill_process("verify", WAYBILL_CONFIG=str(archived.file), AIRFLOW_CONN_AWS_DEFAULT=away)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: the tables' files cannot be read: ")
    assert len(ran.err.splitlines()) == 1
