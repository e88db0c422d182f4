"""Scenes for the tests of backfills: two parsers that read the same messages differently, and an oracle.

Parser `FIRST` takes the event time from the field `at`, `SECOND` from `time`, and each gives other ids. Some messages
lack one of the fields. So from a row one can tell which parser made it, and each parser sends other messages to
quarantine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from partition_scenes import DAY_MS, Scene
from quarantine_scenes import verified

from waybill.config.models import ParseSettings, Stream
from waybill.config.names import TopicPartition
from waybill.records.batches.encode import Record
from waybill.tables.backfill.choice import RangeChoice
from waybill.tables.backfill.kinds import change_backfill, request_backfill, run_backfill
from waybill.tables.backfill.planning import Trigger
from waybill.tables.backfill.request import BackfillRequest
from waybill.tables.backfill.states import BackfillAction
from waybill.tables.partition.partition_plan import Plan, make_plan

TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)

FIRST = {"name": "json", "event_time": {"field": "at", "format": "epoch_ms"}, "message_id": "id"}
SECOND = {"name": "json", "event_time": {"field": "time", "format": "epoch_ms"}, "message_id": "name"}

Key = tuple[TopicPartition, int]
Expected = Mapping[Key, str]
"""For each message the parser whose row, or quarantine row, readers see: "first" or "second"."""


class Killed(BaseException):
    """Raised by a test to end a process at a step."""


def die_at(step: str) -> Callable[[str], None]:
    """Return a function that ends the process when it reaches the step."""

    def reached(name: str) -> None:
        if name == step:
            raise Killed(step)

    return reached


def message(offset: int, time_ms: int = 0) -> Record:
    """Return a message; each seventh lacks the field of the first parser, each fifth that of the second."""
    fields: dict[str, Any] = {"id": f"first-{offset}", "name": f"second-{offset}"}
    if offset % 7:
        fields["at"] = time_ms
    if offset % 5:
        fields["time"] = time_ms + DAY_MS
    return Record(offset, time_ms + 5, b"key", json.dumps(fields).encode())


def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let backfills have a task for each backup object, which the config does not allow."""

    def make_small(key: str, **settings: Any) -> Plan | None:
        return make_plan(key, **{**settings, "task_bytes": 1})

    monkeypatch.setattr("waybill.tables.backfill.planning.make_plan", make_small)


def put(scene: Scene, tp: TopicPartition, first: int, end: int, *, hours: int = 4) -> None:
    """Put a backup object with these offsets into the archive; a message every so many hours."""
    scene.put(tp, [message(n, n * hours * 3_600_000) for n in range(first, end)], batch=10)


def use(scene: Scene, parser: Mapping[str, Any]) -> None:
    """Configure a parser."""
    scene.config = scene.with_stream(parser=parser)


def parser_of(settings: Stream | ParseSettings) -> str:
    """Return which parser is configured."""
    return "first" if settings.parser.model_dump(mode="json")["message_id"] == FIRST["message_id"] else "second"


def request(scene: Scene, *offsets: str, **choice: Any) -> BackfillRequest:
    """Request a backfill of the given offsets, by default of everything."""
    chosen = RangeChoice.parse(offsets=offsets, everything=not offsets and not choice, **choice)
    made, _ = request_backfill(scene.config, Trigger("flights", chosen, "anna", "the parser was wrong"))
    return made


def build(scene: Scene, *offsets: str, **choice: Any) -> BackfillRequest:
    """Request and build a backfill in this process."""
    made = request(scene, *offsets, **choice)
    run_backfill(scene.config, "flights", made.id)
    return made


def change(scene: Scene, backfill: BackfillRequest | str, action: BackfillAction, **settings: Any) -> bool:
    """Promote, undo or cancel a backfill. Return whether this call did it."""
    identifier = backfill if isinstance(backfill, str) else backfill.id
    changed = change_backfill(scene.config, "flights", identifier, action, by="anna", reason="as agreed", **settings)
    return changed.is_new


def promote(scene: Scene, backfill: BackfillRequest | str, **settings: Any) -> bool:
    return change(scene, backfill, BackfillAction.PROMOTE, **settings)


def undo(scene: Scene, backfill: BackfillRequest | str, **settings: Any) -> bool:
    return change(scene, backfill, BackfillAction.UNDO, **settings)


def all_first(scene: Scene) -> dict[Key, str]:
    """Return the expectation that the first parser made every row."""
    return {(TopicPartition(topic, partition), offset): "first" for topic, partition, offset, *_ in scene.sent}


def with_second(expected: Expected, ranges: Iterable[tuple[TopicPartition, int, int]]) -> dict[Key, str]:
    """Return the expectation with the second parser in these ranges `[first, next)`."""
    spans = list(ranges)
    return {
        (tp, offset): "second" if any(tp == a and b <= offset < c for a, b, c in spans) else known
        for (tp, offset), known in expected.items()
    }


def seen(scene: Scene, **scan: Any) -> tuple[dict[Key, str], dict[Key, str]]:
    """Return who made the rows of the table, and of the quarantine. Fails if a message has several rows in one."""
    return (
        _by_message(scene.table.scan(**scan).to_arrow().to_pylist(), lambda row: row["message_id"].partition("-")[0]),
        _by_message(scene.quarantine.scan(**scan).to_arrow().to_pylist(), _refuser),
    )


def check(scene: Scene, expected: Expected) -> None:
    """Assert that readers of `main` see exactly the rows that the parsers of the expectation make."""
    rows, quarantine = seen(scene)
    assert rows == {key: parser for key, parser in expected.items() if not _refuses(parser, key[1])}
    assert quarantine == {key: parser for key, parser in expected.items() if _refuses(parser, key[1])}
    scene.check_exactly_once()
    check_verified(scene)


def check_verified(scene: Scene) -> None:
    """Assert that `waybill verify` finds nothing."""
    report = verified(scene)
    assert [str(fault) for fault in report.faults if fault.kind != "committed"] == []
    assert report.figures.rows + report.figures.quarantine == len(scene.sent)


def files_of_all_snapshots(scene: Scene) -> set[str]:
    """Return the data files that any snapshot of both tables references."""
    return {
        task.file.file_path
        for table in (scene.table, scene.quarantine)
        for snapshot in table.metadata.snapshots
        for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
    }


def _refuses(parser: str, offset: int) -> bool:
    return offset % (7 if parser == "first" else 5) == 0


def _refuser(row: Mapping[str, Any]) -> str:
    assert row["reason"].startswith("event_time_missing"), row["reason"]
    return "second" if "time" in row["reason"].partition(":")[2] else "first"


def _by_message(rows: Sequence[Mapping[str, Any]], parser_of: Callable[[Mapping[str, Any]], str]) -> dict[Key, str]:
    found = {(TopicPartition(row["topic"], row["partition"]), row["offset"]): parser_of(row) for row in rows}
    assert len(found) == len(rows), "a message has more than one row"
    return found
