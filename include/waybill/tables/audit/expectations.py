"""Evaluate a stream's expectations over the staged rows, with Great Expectations on pandas.

The rows are read once, with only the columns that expectations need. If they do not fit into `quality.memory`, they
are read in parts. An expectation that checks each row separately is evaluated for each part, and the counts are added
up, which is exact. An expectation that needs all rows at once (a median, unique values) is evaluated at the end on its
own columns; if even these do not fit, it fails with this reason: a run must not be published because a check saw no
rows.

Great Expectations evaluates each expectation on a frame of its own columns: it copies the frame without the rows whose
value is null, with all of its columns. The audit requests ten failed rows, not the list of all failed rows, which the
library builds one by one in Python (`unexpected_index_column_names`). Their places in Kafka are read from the files.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from waybill.config.models.columns import ColumnType
from waybill.config.models.expectation_values import typed_arguments
from waybill.config.models.expectations import Expectation
from waybill.config.models.quantities import format_size
from waybill.tables.audit.library import import_great_expectations
from waybill.tables.audit.pandas_frame import pandas_frame
from waybill.tables.audit.results import MAX_EXAMPLES, CheckResult
from waybill.tables.audit.staged_rows import RowsPart, StagedRows, rows_without_columns

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.core.expectation_validation_result import ExpectationValidationResult

logger = logging.getLogger(__name__)

_turn = threading.Lock()

_EACH_ROW = frozenset(
    [
        "expect_column_pair_values_a_to_be_greater_than_b",
        "expect_column_pair_values_to_be_equal",
        "expect_column_pair_values_to_be_in_set",
        "expect_column_value_lengths_to_be_between",
        "expect_column_value_lengths_to_equal",
        "expect_column_values_to_be_between",
        "expect_column_values_to_be_dateutil_parseable",
        "expect_column_values_to_be_in_set",
        "expect_column_values_to_be_json_parseable",
        "expect_column_values_to_be_null",
        "expect_column_values_to_match_json_schema",
        "expect_column_values_to_match_regex",
        "expect_column_values_to_match_regex_list",
        "expect_column_values_to_match_strftime_format",
        "expect_column_values_to_not_be_in_set",
        "expect_column_values_to_not_be_null",
        "expect_column_values_to_not_match_regex",
        "expect_column_values_to_not_match_regex_list",
        "expect_multicolumn_sum_to_equal",
        "expect_multicolumn_values_to_be_equal",
        "expect_select_column_values_to_be_unique_within_record",
    ]
)
"""Expectations that check each row separately."""

_COLUMNS_ONLY = frozenset(
    [
        "expect_column_to_exist",
        "expect_table_column_count_to_be_between",
        "expect_table_column_count_to_equal",
        "expect_table_columns_to_match_ordered_list",
        "expect_table_columns_to_match_set",
    ]
)
"""Expectations about the columns of the table, for which no row is read."""

_CONDITION = ("row_condition", "condition_parser")
_RESULT_FORMAT = {
    "result_format": "BASIC",
    "partial_unexpected_count": MAX_EXAMPLES,
    "include_unexpected_rows": True,
}
_ROWS = "unexpected_rows"
_LONGEST_VALUE = 200  # the most characters of an example or an observed value
_FRAME_FACTOR = 3
"""An expectation needs about this many times the size of its columns in Arrow: the frame, and copies of it."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of all expectations, for Waybill and as Great Expectations renders them."""

    results: tuple[CheckResult, ...]
    raw: tuple[ExpectationValidationResult, ...]


def refused_expectations(expectations: Iterable[Expectation]) -> list[str]:
    """Return a line for each expectation with a value that Great Expectations itself refuses.

    The import of the library takes seconds, so this function is only for `waybill config check` and the like.
    """
    refused = []
    for expectation in expectations:
        try:
            _to_library(expectation)
        except ValueError as error:
            refused.append(f"{expectation.name}: {_one_line(str(error))}")
    return refused


def evaluate(
    rows: StagedRows,
    expectations: Sequence[Expectation],
    *,
    memory_bytes: int,
    types: Mapping[str, ColumnType] = MappingProxyType({}),
) -> Evaluation:
    """Evaluate expectations over the staged rows, in about `memory_bytes`.

    Threads of one process evaluate one after the other.

    `types`: those of the columns in the config, to which the values of the expectations are converted.

    Raises `OSError` when a file cannot be read, `DamagedFile` when it is not valid Parquet.
    """
    # Streams that share an application are audited one by one: the library is not thread-safe, and this bounds the
    # memory of the process.
    with _turn:
        return _evaluate(rows, expectations, memory_bytes, types)


def _evaluate(
    rows: StagedRows, expectations: Sequence[Expectation], memory_bytes: int, types: Mapping[str, ColumnType]
) -> Evaluation:
    import_great_expectations()
    judged = [_Judged(expectation, types) for expectation in expectations]
    part_bytes = memory_bytes // _FRAME_FACTOR
    each_row = [each for each in judged if each.expectation.name in _EACH_ROW]
    all_rows = [each for each in judged if each.expectation.name not in _EACH_ROW | _COLUMNS_ONLY]
    columns = dict.fromkeys(column for each in (*each_row, *all_rows) for column in each.expectation.columns)
    kept = _KeptColumns(all_rows, part_bytes)
    if columns:
        for part in rows.parts(columns, part_bytes):
            frames = _Frames(part.rows)
            for each in each_row:
                each.judge(frames, part, rows)
            kept.add(part, frames)
    kept.judge(rows)
    for each in judged:
        if each.expectation.name in _COLUMNS_ONLY:
            each.judge(_Frames(rows.schema.empty_table()), columns=rows.schema.names)
        elif each.raw is None and each.refusal is None:  # there is no row
            each.judge(_Frames(rows.schema.empty_table()))
    return Evaluation(tuple(each.result() for each in judged), tuple(each.raw for each in judged if each.raw))


# --- evaluation -------------------------------------------------------------------------------------------------------


class _Frames:
    """Columns of rows, each converted to pandas once."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._series: dict[str, pd.Series] = {}

    def frame(self, columns: Sequence[str]) -> pd.DataFrame:
        import pandas as pd

        missing = [name for name in columns if name not in self._series]
        if missing:
            converted = pandas_frame(self._rows, missing)
            self._series |= {name: converted[name] for name in missing}
        return pd.DataFrame(
            {name: self._series[name] for name in columns}, index=pd.RangeIndex(self._rows.num_rows), copy=False
        )


def _to_library(expectation: Expectation, types: Mapping[str, ColumnType] = MappingProxyType({})) -> Any:
    """Return the configuration in the form of Great Expectations. Raises `ValueError` for a value that it refuses."""
    import_great_expectations()
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    arguments = typed_arguments(expectation.name, expectation.arguments, types)
    own = {name: arguments.pop(name) for name in ("meta", "notes", "description") if name in arguments}
    with _deprecations_ignored():
        found = ExpectationConfiguration(
            type=expectation.name, kwargs=arguments, severity=str(expectation.severity), **own
        )
        found.to_domain_obj()
    return found


def _validate(
    expectation: Expectation, frames: _Frames, columns: Sequence[str], types: Mapping[str, ColumnType]
) -> ExpectationValidationResult:
    """Evaluate one expectation on a frame of these columns."""
    from great_expectations.execution_engine import PandasExecutionEngine
    from great_expectations.validator.validator import Validator

    whole = _to_library(expectation, types)
    with _deprecations_ignored():
        selected = _select_rows(frames.frame(columns), whole)
        unconditional = {name: value for name, value in whole.kwargs.items() if name not in _CONDITION}
        config = type(whole)(type=whole.type, kwargs=unconditional, severity=whole.severity)
        engine = PandasExecutionEngine()
        engine.load_batch_data("staged", selected)
        validator: Any = Validator(execution_engine=engine)
        validator._determine_progress_bars = lambda: False  # progress bars would be written to the log of the job
        validator.metrics_calculator.show_progress_bars = False
        runtime = {"result_format": _RESULT_FORMAT, "catch_exceptions": True}
        [result] = validator.graph_validate([config], runtime_configuration=runtime)
    found: ExpectationValidationResult = result
    found.expectation_config = _to_library(expectation)  # the page shows the values of the config
    return found


def _select_rows(frame: pd.DataFrame, config: Any) -> pd.DataFrame:
    """Return the rows of the expectation's row condition, as the library selects them.

    Otherwise the library selects them again for each of the five or six figures that it computes.
    """
    from great_expectations.execution_engine import PandasExecutionEngine

    condition = getattr(config.to_domain_obj(), _CONDITION[0], None)
    if condition is None:
        return frame
    engine = PandasExecutionEngine()
    engine.load_batch_data("staged", frame)
    selected: pd.DataFrame = engine.get_domain_records({_CONDITION[0]: condition})
    return selected


def _deprecations_ignored() -> AbstractContextManager[Any]:
    # Great Expectations calls row conditions as text deprecated; a Python object is no replacement in YAML.
    return warnings.catch_warnings(action="ignore")


class _KeptColumns:
    """The columns of expectations that need all rows at once, collected part by part."""

    def __init__(self, judged: Sequence[_Judged], limit_bytes: int) -> None:
        self._judged = judged
        self._limit_bytes = limit_bytes
        self._parts: list[RowsPart] = []
        self._frames: _Frames | None = None
        self._bytes = 0
        self._columns = dict.fromkeys(column for each in judged for column in each.expectation.columns)

    def add(self, part: RowsPart, frames: _Frames) -> None:
        """Keep the part's columns, and its frames if it is the only part. Nothing is kept once it is too large."""
        if not self._columns:
            return
        self._frames = None if self._bytes else frames
        kept = part.rows.select(list(self._columns))
        self._bytes += kept.nbytes
        if self._bytes > self._limit_bytes:
            self._parts.clear()
        else:
            self._parts.append(RowsPart(kept, part.pieces))

    def judge(self, rows: StagedRows) -> None:
        """Evaluate the expectations. Expectations that read no column get a frame without columns."""
        whole = None
        for each in self._judged:
            if not each.expectation.columns:
                each.judge(_Frames(rows_without_columns(rows.count)))
            elif self._bytes > self._limit_bytes:
                self._judge_alone(each, rows)
            elif self._parts:
                whole = whole or _joined(self._parts)
                self._frames = self._frames or _Frames(whole.rows)
                each.judge(self._frames, whole, rows)

    def _judge_alone(self, each: _Judged, rows: StagedRows) -> None:
        """Read the columns of one expectation again, as all together are too large."""
        parts: list[RowsPart] = []
        size = 0
        for part in rows.parts(each.expectation.columns, self._limit_bytes):
            size += part.rows.nbytes
            if size > self._limit_bytes:
                each.refusal = (
                    f"it needs all rows at once, and its columns take more than a third of quality.memory: "
                    f"raise quality.memory above {format_size(_FRAME_FACTOR * size)}, or lower partition.run_bytes"
                )
                return
            parts.append(part)
        whole = _joined(parts)
        each.judge(_Frames(whole.rows), whole, rows)


def _joined(parts: Sequence[RowsPart]) -> RowsPart:
    rows = pa.concat_tables([part.rows for part in parts])
    return RowsPart(rows, tuple(piece for part in parts for piece in part.pieces))


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Judged:
    """An expectation, and its result over the parts so far."""

    expectation: Expectation
    types: Mapping[str, ColumnType]
    raw: ExpectationValidationResult | None = None
    refusal: str | None = None
    """Why the expectation could not be evaluated."""
    examples: list[str] = field(default_factory=list)

    def judge(
        self,
        frames: _Frames,
        part: RowsPart | None = None,
        rows: StagedRows | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        """Evaluate the expectation on a part; `rows` finds the places of failed rows in Kafka.

        `columns`: the columns of the frame, by default those that the expectation reads.
        """
        if self.refusal is not None:
            return
        try:
            own = self.expectation.columns if columns is None else columns
            found = _validate(self.expectation, frames, own, self.types)
        except Exception as error:  # whatever the library raises, the audit goes on, and the expectation fails
            logger.exception("%s could not be evaluated", self.expectation.name)
            self.refusal = _one_line(str(error))
            return
        failed = found.result.pop(_ROWS, None)
        if failed is not None and part is not None and rows is not None and len(failed):
            self._add_examples(failed, part, rows)
        self.raw = found if self.raw is None else _merged(self.raw, found, self.expectation)

    def _add_examples(self, failed: pd.DataFrame, part: RowsPart, rows: StagedRows) -> None:
        failed = failed.iloc[: MAX_EXAMPLES - len(self.examples)]
        places = rows.places([part.find(int(number)) for number in failed.index])
        for place, row in zip(places, failed.to_dict("records"), strict=True):
            values = {name: _text(_as_in_table(value, part.rows.field(name).type)) for name, value in row.items()}
            shown = (
                next(iter(values.values())) if len(values) == 1 else ", ".join(f"{n}={v}" for n, v in values.items())
            )
            self.examples.append(f"{place}: {_cut(shown)}")

    def result(self) -> CheckResult:
        """Return the result over all parts."""
        expectation = self.expectation
        refusal = self.refusal or (None if self.raw is None else _exception_of(self.raw))
        if refusal is not None or self.raw is None:
            observed = f"not evaluated: {refusal}"
            return CheckResult(expectation.name, expectation.arguments, expectation.severity, False, observed)
        return CheckResult(
            expectation.name,
            expectation.arguments,
            expectation.severity,
            bool(self.raw.success),
            _observed(self.raw.result),
            _count_of(self.raw.result),
            () if self.raw.success else tuple(self.examples),
        )


_ADDED = ("element_count", "unexpected_count", "missing_count")


def _merged(
    total: ExpectationValidationResult, part: ExpectationValidationResult, expectation: Expectation
) -> ExpectationValidationResult:
    """Merge two results of an expectation that checks each row separately."""
    if _exception_of(total) is not None:
        return total
    if _exception_of(part) is not None:
        return part
    counts = {name: total.result.get(name, 0) + part.result.get(name, 0) for name in _ADDED}
    judged = counts["element_count"] - counts["missing_count"]
    unexpected = counts["unexpected_count"]
    mostly = expectation.arguments.get("mostly", 1)
    total.success = judged == 0 or (judged - unexpected) / judged >= mostly
    total.result |= {name: count for name, count in counts.items() if name in total.result}
    total.result["unexpected_percent"] = unexpected / judged * 100 if judged else None
    listed = "partial_unexpected_list"
    total.result[listed] = [*total.result.get(listed, []), *part.result.get(listed, [])][:MAX_EXAMPLES]
    # Great Expectations derives these from the counts, and none is shown elsewhere.
    for name in ("missing_percent", "unexpected_percent_total", "unexpected_percent_nonmissing"):
        total.result.pop(name, None)
    return total


def _exception_of(found: ExpectationValidationResult) -> str | None:
    """Return why Great Expectations could not evaluate an expectation; None if it could."""
    info: Any = found.exception_info or {}
    # One exception, or several by the id of the metric that raised each.
    each = [info] if "raised_exception" in info else list(info.values())
    messages = [one["exception_message"] for one in each if one.get("raised_exception")]
    return _one_line(str(messages[0])) if messages else None


def _observed(found: Mapping[str, Any]) -> str | None:
    if found.get("observed_value") is not None:
        return _cut(_text(found["observed_value"]))
    count, elements = found.get("unexpected_count"), found.get("element_count")
    if count is None or elements is None:
        return None
    percent = found.get("unexpected_percent")
    share = "" if percent is None else f" ({percent:.3g}%)"
    return f"{count:,} of {elements:,} rows unexpected{share}"


def _count_of(found: Mapping[str, Any]) -> int | None:
    count = found.get("unexpected_count")
    return None if count is None else int(count)


def _as_in_table(value: Any, kind: pa.DataType) -> Any:
    """Return a whole number for a value of an integer column, which pandas converts to floats if it has nulls."""
    return int(value) if pa.types.is_integer(kind) and isinstance(value, float) and value.is_integer() else value


def _text(value: Any) -> str:
    """Return a value of an observation or a row as text, JSON for lists and maps."""
    item: Callable[[], Any] | None = getattr(value, "item", None)
    if item is not None and not hasattr(value, "__len__"):  # a number of numpy
        value = item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "null"
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=_text)
    return str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _one_line(text: str) -> str:
    return _cut(" ".join(text.split()))
