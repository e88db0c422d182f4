"""Scenes with a filled quarantine for the tests of the retry, and checks that must hold at any time."""

from __future__ import annotations

from typing import Any

from partition_scenes import DAY_MS, Scene, event, junk
from pyiceberg.io.pyarrow import parquet_file_to_data_file

from waybill.config.names import TopicPartition, retry_key
from waybill.records.batches.encode import Record
from waybill.tables.iceberg import StreamTables, read_retries
from waybill.tables.quarantine.quarantine_report import RetryReport
from waybill.tables.quarantine.retry import retry_quarantine
from waybill.tables.quarantine.row_filter import RowFilter
from waybill.tables.quarantine.staged import find_retry
from waybill.tables.quarantine.view import retries_of
from waybill.watch.verify import verify_stream
from waybill.watch.verify.verify_report import VerifyReport

TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
OTHER = TopicPartition("flights-extra", 0)

BROKEN = {"name": "json", "event_time": {"field": "time", "format": "epoch_ms"}, "message_id": "id"}
"""A parser that looks for a field that no message has."""
MENDED = {"name": "json", "event_time": {"field": "at", "format": "epoch_ms"}, "message_id": "id"}

GOOD, JUNK = 73, 2
"""Messages of the scene in quarantine that the mended parser reads, and those that none does."""


def put_messages(scene: Scene) -> None:
    """Put messages of two topics, with late data, a tombstone and junk, into the archive."""
    scene.put(TP0, [event(n, n * DAY_MS // 10) for n in range(50)])
    scene.put(TP0, [event(50, 5 * DAY_MS), junk(51), Record(52, 7000, b"key", None), event(53, -DAY_MS)])
    scene.put(TP1, [event(n, 3 * DAY_MS, key=None, headers=[("h", b"1"), ("h", None)]) for n in range(100, 120)])
    scene.put(OTHER, [junk(0), event(1, 0)])


def fill_quarantine(scene: Scene) -> None:
    """Send all messages but the tombstone to quarantine by a broken parser, then configure the right one."""
    scene.config = scene.with_stream(parser=BROKEN)
    put_messages(scene)
    report = scene.run()
    assert (report.rows, report.quarantined) == (1, GOOD + JUNK)
    scene.config = scene.with_stream(parser=MENDED)


def retry(scene: Scene, row_filter: RowFilter | None = None, **settings: Any) -> RetryReport:
    """Retry the selected rows, by default the scene's whole quarantine."""
    return retry_quarantine(scene.config, "flights", row_filter or RowFilter(), **settings)


def uncommitted_files(scene: Scene, tables: StreamTables) -> list[str]:
    """Return the data files of the unfinished retry of `tables`, if any.

    At most one is unfinished: a number is used only after the retry before it is finished.
    """
    main, quarantine = retries_of(tables)
    uuid = str(tables.main.metadata.table_uuid)
    prefix, generation = scene.store.prefix, scene.stream.generation
    numbers = range(main, max(main, quarantine) + 1)
    found = [find_retry(scene.store, retry_key(prefix, "flights", generation, uuid, n)) for n in numbers]
    return [path for retry in found if retry is not None for path in retry.files]


class _Quiet:
    def begin(self, what: str, total: int) -> None: ...

    def advance(self, steps: int) -> None: ...


def verified(scene: Scene) -> VerifyReport:
    """Return the report of `waybill verify`."""
    return verify_stream(
        "flights",
        scene.stream,
        store=scene.store,
        read_committed=lambda _: None,
        committed_tps=(),
        catalog=scene.catalog,
        listener=_Quiet(),
    )


def check_sound(scene: Scene, quarantined: int) -> None:
    """Assert that each message exists once, `quarantined` of them in quarantine; a retry may be unfinished."""
    report = verified(scene)
    assert [str(fault) for fault in report.faults if fault.kind != "committed"] == []
    assert report.figures.quarantine == quarantined
    assert report.figures.rows + quarantined == len(scene.sent)


def check_done(scene: Scene, quarantined: int, *, left_over: bool = False) -> None:
    """`check_sound`, and no retry is unfinished. `left_over`: unreferenced files may exist."""
    check_sound(scene, quarantined)
    scene.check_exactly_once()
    assert scene.quarantine.scan().to_arrow().num_rows == quarantined
    if not left_over:
        assert scene.data_files() == _files_of_all_snapshots(scene)
    main, quarantine = retries(scene)
    assert main == quarantine


def retries(scene: Scene) -> tuple[int, int]:
    """Return how many retries the table and the quarantine have taken part in."""
    return read_retries(scene.table.metadata, "t"), read_retries(scene.quarantine.metadata, "q")


def rewrite_quarantine(scene: Scene) -> None:
    """Move all rows of the quarantine to other files, as a compaction does."""
    table = scene.quarantine
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        for task in table.scan().plan_files():
            path = task.file.file_path.replace(".parquet", "-rewritten.parquet")
            with table.io.new_input(task.file.file_path).open() as old, table.io.new_output(path).create() as new:
                new.write(old.read())
            overwrite.delete_data_file(task.file)
            overwrite.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))


def _files_of_all_snapshots(scene: Scene) -> set[str]:
    return {
        task.file.file_path
        for table in (scene.table, scene.quarantine)
        for snapshot in table.metadata.snapshots
        for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
    }
