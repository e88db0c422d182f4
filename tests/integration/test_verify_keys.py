"""`waybill verify --keys` finds keys that are twice within the window, and duplicates that name a wrong row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from archived_stream import add_rows
from oracle import Row
from partition_scenes import Scene
from pyiceberg.table import Table
from sweep_scenes import START_MS, SweptScene

from waybill.config.models import Dedup
from waybill.config.names import TopicPartition
from waybill.watch.verify.keys import check_keys
from waybill.watch.verify.verify_report import VerifyReport

pytestmark = pytest.mark.integration

MakeScene = Callable[..., Scene]
A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)
MINUTE_MS = 60_000
WINDOW_MS = 60 * MINUTE_MS


class Silent:
    def begin(self, what: str, total: int) -> None:
        pass

    def advance(self, steps: int) -> None:
        pass


def swept_scene(make_scene: MakeScene, key: tuple[str, ...]) -> SweptScene:
    """Return a scene of five keys over two hours, each sent every 15 minutes, after four sweeps."""
    settings = {"key": list(key), "window": "1h", "floor": "1s"}
    swept = SweptScene(make_scene(dedup=settings, columns={"device": "string"}), key, WINDOW_MS)
    for go in range(4):
        rows = [row(A, 10 * go + n, START_MS + (30 * go + 15 * (n // 5)) * MINUTE_MS, f"k{n % 5}") for n in range(10)]
        rows.append(Row(B, go, START_MS + 30 * go * MINUTE_MS, START_MS, _values(key, None)))
        swept.now_ms = START_MS + 30 * (go + 1) * MINUTE_MS
        swept.append(rows)
        swept.sweep_until_current()
    swept.check()
    return swept


def row(tp: TopicPartition, offset: int, at_ms: int, key: str) -> Row:
    return Row(tp, offset, at_ms, START_MS, (key,))


def _values(key: tuple[str, ...], value: str | None) -> tuple[Any, ...]:
    return ("assigned-by-nobody",) if key == ("message_id",) else (value,)


def check(swept: SweptScene, rows_in_memory: int = 1 << 20, window_offsets: int = 1 << 20) -> VerifyReport:
    report = VerifyReport("flights", 1)
    settings = swept.scene.stream.dedup
    assert isinstance(settings, Dedup)
    ranges = {A: (0, 1000), B: (0, 1000)}
    check_keys(
        swept.tables,
        settings,
        ranges,
        report,
        Silent(),
        window_offsets=window_offsets,
        rows_in_memory=rows_in_memory,
    )
    return report


def put_again(table: Table, offset: int, /, **changed: pa.Scalar) -> None:
    """Add a copy of a row of the first topic-partition, with changes."""
    rows = table.scan(row_filter=f"partition = 0 and offset = {offset}").to_arrow()
    assert rows.num_rows == 1
    for name, value in changed.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), pa.array([value.as_py()], rows.schema.field(at).type))
    add_rows(table, rows)


def times(row: pa.Table, column: str, shift_minutes: int) -> pa.Scalar:
    return pc.add(row.column(column)[0], pa.scalar(shift_minutes * MINUTE_MS, pa.duration("ms")))


@pytest.mark.parametrize(
    ("key", "rows_in_memory", "window_offsets"), [(("message_id",), 1 << 20, 1 << 20), (("device",), 5, 30)]
)
def test_tables_that_sweeps_have_filled_have_no_faults(
    make_scene: MakeScene, key: tuple[str, ...], rows_in_memory: int, window_offsets: int
) -> None:
    swept = swept_scene(make_scene, key)
    assert len(swept.duplicates) > 20
    report = check(swept, rows_in_memory, window_offsets)
    assert (report.faults, report.notes, report.keys_checked) == ([], [], True)
    swept.now_ms += 90 * MINUTE_MS
    swept.append([row(A, 100, swept.now_ms, "new"), row(A, 101, swept.now_ms, "new")])
    assert swept.sweep_killed("duplicates_committed")
    report = check(swept)
    assert (report.faults, len(report.notes)) == ([], 1), "the rows that these duplicates repeat are not committed yet"
    swept.sweep_until_current()
    assert check(swept).notes == []


def test_key_that_is_twice_within_the_window_is_a_fault(make_scene: MakeScene) -> None:
    swept = swept_scene(make_scene, ("message_id",))
    first, last = (
        swept.tables.unique.scan(row_filter="message_id = 'k2'").to_arrow().sort_by("arrived_at").slice(n)
        for n in (0, 1)
    )
    kept = last.column("offset")[0].as_py()
    assert swept.found_state.horizon_ms > START_MS - WINDOW_MS
    for offset in (500, 501):  # before the horizon
        before = times(first, "arrived_at", -200)
        put_again(swept.tables.unique, kept, offset=pa.scalar(offset), arrived_at=before)
    near, far = times(last, "arrived_at", 60), times(last, "arrived_at", 121)
    put_again(swept.tables.unique, kept, offset=pa.scalar(600), arrived_at=far)
    assert check(swept).faults == []
    put_again(swept.tables.unique, kept, offset=pa.scalar(700), arrived_at=near)
    for rows_in_memory in (1 << 20, 5):
        report = check(swept, rows_in_memory)
        (fault,) = report.faults
        assert (str(fault.kind), fault.tp, fault.first_offset) == ("repeated", A, 700)
        assert f"has the same key as flights/0 offset {kept}, which arrived 3,600.000 s before: that is" in fault.what
        assert report.figures.repeated == 1


def test_duplicate_that_names_a_missing_or_different_row_is_a_fault(make_scene: MakeScene) -> None:
    swept = swept_scene(make_scene, ("message_id",))
    found = swept.tables.duplicates.scan(row_filter="first_offset = 2").to_arrow()
    offset = found.column("offset")[0].as_py()
    put_again(swept.tables.duplicates, offset, first_offset=pa.scalar(700), offset=pa.scalar(799))
    put_again(swept.tables.duplicates, offset, first_offset=pa.scalar(3), offset=pa.scalar(800))
    late = times(found, "first_arrived_at", 1)
    put_again(swept.tables.duplicates, offset, first_arrived_at=late, offset=pa.scalar(801))
    for window_offsets in (1 << 20, 30):
        report = check(swept, window_offsets=window_offsets)
        assert {(str(fault.kind), fault.tp, fault.first_offset) for fault in report.faults} == {
            ("lost", A, 2),
            ("lost", A, 3),
            ("lost", A, 700),
        }
        texts = {fault.first_offset: fault.what for fault in report.faults}
        assert texts[700].endswith("in the unique table, and there is no such row")
        assert texts[3].endswith("""with the key ["k2"] in the unique table, and that row's key is ["k3"]""")
        assert "and that row arrived at" in texts[2]
        assert report.figures.lost == 3
