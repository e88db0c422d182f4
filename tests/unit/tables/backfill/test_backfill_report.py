"""What commands and logs print of a backfill, of both kinds: the JSON document with its order, and the text."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from waybill.config.models.enums import Severity
from waybill.config.names import TopicPartition
from waybill.tables.audit import Audit, CheckResult
from waybill.tables.backfill.build import Built
from waybill.tables.backfill.compare import Comparison
from waybill.tables.backfill.diff import Diff
from waybill.tables.backfill.events import BackfillEvent
from waybill.tables.backfill.generation_request import BackfillSource, BuiltGeneration, GenerationRequest
from waybill.tables.backfill.ranges import OffsetRanges
from waybill.tables.backfill.report import BackfillReport
from waybill.tables.backfill.request import BackfillRequest
from waybill.tables.backfill.states import BackfillAction, BackfillState

AT = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)
RANGES = OffsetRanges({TopicPartition("flights", 0): (10, 2_000), TopicPartition("flights", 1): (0, 5)})
EVENT = BackfillEvent("20261122_7f3a", BackfillAction.PROMOTE, "ben", "looks right", AT, 3)
DIFF = Diff(Comparison(unchanged=1_990, columns=Counter(name=3)), "s3://archive/diff")
PLAN = SimpleNamespace(stream="flights", created_at=AT, tasks=[(), ()], key="plan")
RANGE = BackfillRequest("20261122_7f3a", "anna", "new parser", "run", "uuid", 5, RANGES, frozenset(), cast("Any", PLAN))
GENERATION = GenerationRequest(
    "20261122_7f3b",
    "next",
    2,
    1,
    "anna",
    "other format",
    "run",
    AT,
    "uuid",
    BackfillSource.KAFKA,
    RANGES,
    OffsetRanges({}),
)

REPORTS = {
    "range_planned": BackfillReport(RANGE, BackfillState.PLANNED, None, None, (), tasks_done=1),
    "range_promoted": BackfillReport(
        RANGE,
        BackfillState.PROMOTED,
        Built(1, 2, 1_995, 4),
        DIFF,
        (EVENT,),
        tasks_done=2,
        audit=Audit("plan", "run", AT, (CheckResult("rows", {}, Severity.WARNING, False, "0"),)),
    ),
    "generation_planned": BackfillReport(GENERATION, BackfillState.PLANNED, None, None, ()),
    "generation_built": BackfillReport(
        GENERATION, BackfillState.BUILT, BuiltGeneration(1, 2, 3, 4, 1_995, 4), DIFF, (EVENT,)
    ),
}


def test_reports_print_what_they_printed_when_each_kind_had_a_class_of_its_own() -> None:
    printed = []
    for name, report in REPORTS.items():
        printed += [f"== {name}", report.tasks_text, *report.lines(), json.dumps(report.document(), indent=2)]
    golden = Path(__file__).parents[2] / "data" / "backfill_reports.txt"
    assert "\n".join(printed) + "\n" == golden.read_text(encoding="utf-8")
