"""What an audit checks before a run is published: the stream's expectations, and the checks that every stream has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ByteSize, Field, GetJsonSchemaHandler, PrivateAttr, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from waybill.config.models import document
from waybill.config.models.base import EmbeddedFile, IsEmbeddedFile, Section, section_error
from waybill.config.models.columns import ColumnType
from waybill.config.models.enums import Severity
from waybill.config.models.error_lines import describe_all, find_line
from waybill.config.models.expectations import Expectation, IsExpectation, IsExpectationList
from waybill.config.models.quantities import IsRatio, IsShare, SizeBetween, WholeNumberBetween

Expectations = Annotated[tuple[Annotated[Expectation, IsExpectation()], ...], IsExpectationList()]


class CheckSeverity(StrEnum):
    """What a failed built-in check does; `off`: it is not checked."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"
    OFF = "off"


class CheckName(StrEnum):
    """The built-in checks: the keys of `checks`."""

    ROWS_MATCH_MESSAGES = "rows_match_messages"
    OFFSETS_UNIQUE = "offsets_unique"
    QUARANTINE_SHARE = "quarantine_share"
    EVENT_TIME_NULL_SHARE = "event_time_null_share"
    MESSAGE_ID_NULL_SHARE = "message_id_null_share"
    CLOCK_SKEW = "clock_skew"
    VOLUME = "volume"
    COLUMN_BECAME_NULL = "column_became_null"
    PARSER_FAILED = "parser_failed"


class Check(Section):
    """A built-in check. The severity alone is the short form: `volume: off`."""

    severity: CheckSeverity = Field(
        CheckSeverity.WARNING,
        description="`critical`: a failure holds the run; `warning`: it raises an alert; `info`: it is only recorded.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_severity(cls, value: Any) -> Any:
        if value is False:  # as Python's own dump of `off`, and other YAML libraries, may write it
            return {"severity": CheckSeverity.OFF}
        return {"severity": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": [str(each) for each in CheckSeverity]}, handler(schema)]}

    @property
    def failure(self) -> Severity | None:
        """Return the severity of a failure; None if the check is off."""
        return None if self.severity is CheckSeverity.OFF else Severity(self.severity)


class QuarantineShare(Check):
    """The share of a run's messages that went to quarantine."""

    max_share: Annotated[Decimal, IsShare()] | None = Field(
        None, description="A larger share fails. Default: `quarantine.max_rate`; `quarantine.min_messages` holds too."
    )


class NullShare(Check):
    """The share of a run's messages without a value."""

    max_share: Annotated[Decimal, IsShare()] = Field(Decimal("0.01"), description="A larger share fails.")
    min_messages: Annotated[int, WholeNumberBetween(1, 1_000_000_000)] = Field(
        100, description="A run with fewer messages does not fail."
    )


class ClockSkew(NullShare):
    """The share of a run's rows whose event time or Kafka timestamp is later than the run was planned."""


class Volume(Check):
    """The rows of an hour against the median of the same hour on previous days and weeks."""

    at_least: Annotated[Decimal, IsRatio()] = Field(Decimal("0.5"), description="A smaller ratio to the median fails.")
    at_most: Annotated[Decimal, IsRatio()] = Field(Decimal(3), description="A larger ratio to the median fails.")
    min_history: Annotated[int, WholeNumberBetween(1, 10)] = Field(
        3, description="How many earlier days the table must have for a verdict."
    )
    min_rows: Annotated[int, WholeNumberBetween(1, 1_000_000_000)] = Field(
        100, description="An hour with a smaller median gets no verdict."
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.at_most < self.at_least:
            raise section_error("at_least", "is more than at_most: lower it, or raise at_most")
        return self


class ParserFailed(Check):
    """The share of a run's messages at which a built-in parser raised."""

    severity: CheckSeverity = Field(
        CheckSeverity.CRITICAL,
        description="`critical`: a failure holds the run; `warning`: it raises an alert; `info`: it is only recorded.",
    )
    max_share: Annotated[Decimal, IsShare()] = Field(Decimal("0.5"), description="A larger share fails.")
    min_messages: Annotated[int, WholeNumberBetween(1, 1_000_000_000)] = Field(
        10, description="A run with fewer messages does not fail: one message must not hold those after it."
    )


class ColumnBecameNull(Check):
    """A column of the config without any value in the run, although it had values before: a renamed field."""

    min_rows: Annotated[int, WholeNumberBetween(1, 1_000_000_000)] = Field(
        1000, description="A run with fewer rows gets no verdict."
    )


class Checks(Section):
    """The built-in checks. Each is on, and a failure is a `warning`, unless the check or the config says otherwise."""

    rows_match_messages: Check = Field(
        Check(), description="Each message of the run is in one row, of the table or of the quarantine."
    )
    offsets_unique: Check = Field(Check(), description="No offset of a topic-partition is in the run twice.")
    quarantine_share: QuarantineShare = Field(
        QuarantineShare(), description="The share of messages that went to quarantine."
    )
    event_time_null_share: NullShare = Field(
        NullShare(), description="The share of messages that went to quarantine because they had no event time."
    )
    message_id_null_share: NullShare = Field(
        NullShare(), description="The share of rows that got an id assigned, if the parser reads ids from messages."
    )
    clock_skew: ClockSkew = Field(
        ClockSkew(),
        description="The share of rows whose event time or Kafka timestamp is more than 5 minutes later than the time "
        "at which the run was planned.",
    )
    volume: Volume = Field(
        Volume(),
        description="The rows of each hour that the run completes, against the same hour of previous days and weeks; "
        "with `partition_by: day`, the rows of each day.",
    )
    column_became_null: ColumnBecameNull = Field(
        ColumnBecameNull(), description="Columns without any value in the run, although they had values before."
    )
    parser_failed: ParserFailed = Field(
        ParserFailed(),
        description="The share of messages at which a built-in parser raised. The promise `parser_failed` alerts about "
        "each of them.",
    )


class _QualityFile(Section):
    """The file that `quality.file` names."""

    expectations: Expectations


class Quality(Section):
    """What is checked of a run's rows before they are published."""

    expectations: Expectations = Field(
        (),
        description="Expectations of Great Expectations 1.24 by name, with its arguments; `severity` is `critical` "
        "(a failure holds the run), `warning` (the default) or `info`. See the user guide.",
    )
    file: Annotated[EmbeddedFile, IsEmbeddedFile("a YAML file with a list `expectations`")] | None = Field(
        None, description="A file with more expectations, instead of a long list here."
    )
    checks: Checks = Field(Checks(), description="The built-in checks.")
    memory: Annotated[ByteSize, SizeBetween("64MiB", "256GiB")] = Field(
        ByteSize(1 << 30),
        description="How many bytes of rows an audit keeps in memory. More rows are read in parts.",
    )

    _from_file: tuple[Expectation, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _read_file(self) -> Self:
        if self.file is not None:
            self._from_file = _parse_file(self.file)
        return self

    @property
    def all_expectations(self) -> tuple[Expectation, ...]:
        """Return the expectations of the config and of the file."""
        return (*self.expectations, *self._from_file)


def check_quality(
    quality: Quality, columns: Collection[str], types: Mapping[str, ColumnType], *, writes_files: bool
) -> None:
    """Raise an error at the key that does not fit the stream.

    `columns`: the columns of the stream's table. `types`: their types. `writes_files`: whether its sink is `files`.
    """
    if writes_files and quality.all_expectations:
        key = "expectations" if quality.expectations else "file"
        raise section_error(
            ("quality", key),
            "need rows in a table, which the sink files does not write: remove them; the built-in checks stay",
        )
    for number, expectation in enumerate(quality.expectations):
        error = expectation.check_columns(columns) or expectation.check_values(types)
        if error is not None:
            raise section_error(("quality", "expectations", number, expectation.name, error[0]), error[1])
    if quality.file is not None:
        for message in _errors_of_file(quality, quality.file, columns, types):
            raise section_error(("quality", "file"), message)


def _parse_file(file: EmbeddedFile) -> tuple[Expectation, ...]:
    root = _parse_yaml(file)
    try:
        return _QualityFile.model_validate(document.plain(root)).expectations
    except ValidationError as error:
        raise section_error("file", "\n".join(describe_all(Path(file.path), root, _QualityFile, error))) from None


def _parse_yaml(file: EmbeddedFile) -> document.Node:
    try:
        root = document.parse_document(file.content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise section_error("file", f"{file.path} is not UTF-8 text") from None
    except document.DocumentError as error:
        line = f", line {error.line}" if error.line else ""
        raise section_error("file", f"{file.path}{line}: {error.reason}") from None
    if root is None:
        raise section_error("file", f"{file.path} is empty; it needs a list `expectations`")
    return root


def _errors_of_file(
    quality: Quality, file: EmbeddedFile, columns: Collection[str], types: Mapping[str, ColumnType]
) -> Iterator[str]:
    for number, expectation in enumerate(quality._from_file):
        error = expectation.check_columns(columns) or expectation.check_values(types)
        if error is not None:
            line = find_line(_parse_yaml(file), ("expectations", number, expectation.name, error[0]))
            yield f"{file.path}, line {line}: {error[1]}"
