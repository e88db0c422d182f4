"""The built-in checks: every stream has them, and none reads a row.

They use the counts of the tasks (`waybill.tables.audit.counts`) and the statistics in the entries of data files. A
check that is not possible for a run (too few messages, no history) has no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from waybill.config.models import PythonParser
from waybill.config.models.quality import Check, CheckName, NullShare
from waybill.tables.audit.counts import CLOCK_TOLERANCE_SECONDS, COUNTS_PROPERTY, AuditCounts
from waybill.tables.audit.given import AuditInput
from waybill.tables.audit.null_columns import find_columns_that_became_null
from waybill.tables.audit.results import MAX_EXAMPLES, CheckResult
from waybill.tables.audit.volume import PartitionVolume, volumes_of

_ROWS_PROPERTY = "waybill.rows"
_MESSAGE_ID = "message_id"


def built_in_results(given: AuditInput) -> tuple[CheckResult, ...]:
    """Return the results of the built-in checks that were possible.

    It reads manifests of the table only for `volume`, and for columns without any value. Raises `OSError` when these
    cannot be read.
    """
    return tuple(_BuiltInChecks(given).results())


class _BuiltInChecks:
    def __init__(self, given: AuditInput) -> None:
        self._given = given
        self._checks = given.stream.quality.checks
        text = given.properties.get(COUNTS_PROPERTY)
        self._counts = None if text is None else AuditCounts.from_text(text)
        rows = given.properties.get(_ROWS_PROPERTY)
        self._rows = sum(file.record_count for file in given.table_files) if rows is None else int(rows)
        self._quarantined = sum(file.record_count for file in given.quarantine_files)

    def results(self) -> Iterator[CheckResult]:
        judges: dict[CheckName, Callable[[], CheckResult | None]] = {
            CheckName.ROWS_MATCH_MESSAGES: self._rows_match_messages,
            CheckName.OFFSETS_UNIQUE: self._offsets_unique,
            CheckName.QUARANTINE_SHARE: self._quarantine_share,
            CheckName.EVENT_TIME_NULL_SHARE: self._event_time_null_share,
            CheckName.MESSAGE_ID_NULL_SHARE: self._message_id_null_share,
            CheckName.CLOCK_SKEW: self._clock_skew,
            CheckName.VOLUME: self._volume,
            CheckName.COLUMN_BECAME_NULL: self._column_became_null,
            CheckName.PARSER_FAILED: self._parser_failed,
        }
        for name, judge in judges.items():
            if name in self._given.checks and self._check(name).failure is not None:
                result = judge()
                if result is not None:
                    yield result

    def _check(self, name: CheckName) -> Check:
        check: Check = getattr(self._checks, name)
        return check

    def _result(
        self,
        name: CheckName,
        success: bool,
        observed: str,
        unexpected_count: int,
        arguments: Mapping[str, Any],
        examples: tuple[str, ...] = (),
    ) -> CheckResult:
        severity = self._check(name).failure
        assert severity is not None  # checks that are off have no result
        return CheckResult(str(name), arguments, severity, success, observed, unexpected_count, examples[:MAX_EXAMPLES])

    # --- what tasks counted ---

    def _rows_match_messages(self) -> CheckResult | None:
        if self._counts is None:
            return None
        made = self._rows + self._quarantined
        observed = f"{self._counts.messages:,} messages, {self._rows:,} rows, {self._quarantined:,} in quarantine"
        difference = abs(self._counts.messages - made)
        return self._result(CheckName.ROWS_MATCH_MESSAGES, difference == 0, observed, difference, {})

    def _offsets_unique(self) -> CheckResult | None:
        if self._counts is None:
            return None
        repeated = self._counts.repeated_offsets
        examples = (self._counts.repeated_example,) if repeated else ()
        return self._result(
            CheckName.OFFSETS_UNIQUE, repeated == 0, f"{repeated:,} repeated offsets", repeated, {}, examples
        )

    def _quarantine_share(self) -> CheckResult | None:
        alert = self._given.stream.quarantine
        configured = self._checks.quarantine_share.max_share
        max_share = alert.max_rate if configured is None else configured
        messages = self._rows + self._quarantined
        return self._share(CheckName.QUARANTINE_SHARE, self._quarantined, messages, max_share, alert.min_messages)

    def _event_time_null_share(self) -> CheckResult | None:
        if self._counts is None:
            return None
        return self._null_share(
            CheckName.EVENT_TIME_NULL_SHARE,
            self._checks.event_time_null_share,
            self._counts.without_event_time,
            self._counts.messages,
        )

    def _parser_failed(self) -> CheckResult | None:
        if self._counts is None:
            return None
        counts, settings = self._counts, self._checks.parser_failed
        return self._share(
            CheckName.PARSER_FAILED,
            counts.parser_failed,
            counts.messages,
            settings.max_share,
            settings.min_messages,
        )

    def _message_id_null_share(self) -> CheckResult | None:
        if self._counts is None or not self._reads_ids():
            return None
        return self._null_share(
            CheckName.MESSAGE_ID_NULL_SHARE,
            self._checks.message_id_null_share,
            self._counts.assigned_ids,
            self._rows,
        )

    def _reads_ids(self) -> bool:
        """Return whether messages are expected to have ids. For a user's parser class, only dedup by id shows this."""
        stream = self._given.stream
        if isinstance(stream.parser, PythonParser):
            return stream.dedup is not None and _MESSAGE_ID in stream.dedup.key
        return getattr(stream.parser, _MESSAGE_ID, None) is not None

    def _clock_skew(self) -> CheckResult | None:
        if self._counts is None:
            return None
        counts = self._counts
        settings = self._checks.clock_skew
        ahead = max(counts.event_times_ahead, counts.kafka_timestamps_ahead)
        detail = (
            f"{counts.event_times_ahead:,} event times and {counts.kafka_timestamps_ahead:,} Kafka timestamps are more "
            f"than {CLOCK_TOLERANCE_SECONDS // 60} minutes later than the run was planned, by up to "
            f"{counts.ahead_seconds:,} s"
            if ahead
            else "no time is later than the run was planned"
        )
        return self._share(
            CheckName.CLOCK_SKEW, ahead, counts.messages, settings.max_share, settings.min_messages, detail
        )

    def _null_share(self, name: CheckName, settings: NullShare, nulls: int, whole: int) -> CheckResult | None:
        return self._share(name, nulls, whole, settings.max_share, settings.min_messages)

    def _share(
        self, name: CheckName, part: int, whole: int, max_share: Decimal, least: int, detail: str = ""
    ) -> CheckResult | None:
        if whole < max(least, 1):
            return None
        observed = f"{part / whole:.2%} ({part:,} of {whole:,})" + (f": {detail}" if detail else "")
        arguments = {"max_share": _percentage(max_share)}
        return self._result(name, part <= max_share * whole, observed, part, arguments)

    # --- the statistics of data files ---

    def _volume(self) -> CheckResult | None:
        settings = self._checks.volume
        judged = [
            volume
            for volume in volumes_of(self._given)
            if volume.history >= settings.min_history and volume.usual_rows >= settings.min_rows
        ]
        if not judged:
            return None
        unusual = [volume for volume in judged if not settings.at_least <= volume.ratio <= settings.at_most]
        shown = max(judged, key=_distance_from_usual)
        observed = f"{shown.ratio:.0%} of the usual rows: {shown}"
        arguments = {"at_least": _percentage(settings.at_least), "at_most": _percentage(settings.at_most)}
        return self._result(
            CheckName.VOLUME, not unusual, observed, len(unusual), arguments, tuple(str(each) for each in unusual)
        )

    def _column_became_null(self) -> CheckResult | None:
        settings = self._checks.column_became_null
        if self._given.stream.sink.is_files or self._rows < settings.min_rows:
            return None
        columns = find_columns_that_became_null(self._given)
        observed = ", ".join(column.name for column in columns) or "no column"
        examples = tuple(str(column) for column in columns)
        return self._result(CheckName.COLUMN_BECAME_NULL, not columns, observed, len(columns), {}, examples)


def _distance_from_usual(volume: PartitionVolume) -> Decimal:
    return max(volume.ratio, 1 / volume.ratio if volume.ratio else Decimal("Infinity"))


def _percentage(share: Decimal) -> str:
    return f"{(share * 100).normalize():f}%"
