"""The section `quality`: expectations are checked by name, argument and column when the config loads."""

# ruff: noqa: E501 - the messages stay searchable

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import jsonschema
import pytest

from waybill.base.errors import ConfigError
from waybill.config.models import Config, load_config
from waybill.config.models.enums import Severity
from waybill.config.models.expectations import Expectation
from waybill.config.models.quality import CheckName, Checks, CheckSeverity
from waybill.config.models.reference import json_schema

STREAM = """\
version: 1
storage: {bucket: archive}
streams:
  flights:
    topics: [flights]
    parser: {event_time: {field: time}}
    columns: {delay: int, carrier: string}
    table: analytics.flights
"""
COLUMNS = (
    "topic, partition, offset, kafka_timestamp, key, headers, value, event_time, message_id, generation, delay, carrier"
)
BETWEEN = "expect_column_values_to_be_between"


def load(tmp_path: Path, quality: str, stream: str = STREAM) -> Config:
    """Load the stream with this section, which is YAML in flow style."""
    file = tmp_path / "streams.yaml"
    file.write_text(f"{stream}    quality:\n      {quality}\n", encoding="utf-8")
    return load_config(file)


def refusal(tmp_path: Path, quality: str, stream: str = STREAM) -> str:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, quality, stream)
    return str(raised.value).replace(f"{tmp_path}/", "")


def test_expectations_have_a_name_arguments_and_a_severity(tmp_path: Path) -> None:
    quality = f"expectations: [{{{BETWEEN}: {{column: delay, max_value: 50}}, severity: critical}}, {{expect_table_row_count_to_be_between: null}}]"
    config = load(tmp_path, quality)
    assert config.stream("flights").quality.all_expectations == (
        Expectation(BETWEEN, {"column": "delay", "max_value": 50}, Severity.CRITICAL),
        Expectation("expect_table_row_count_to_be_between", {}, Severity.WARNING),
    )
    assert Config.model_validate(config.model_dump(mode="json")) == config


def test_a_file_beside_the_config_has_more_expectations(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text(f"expectations:\n  - {BETWEEN}: {{column: delay}}\n")
    config = load(tmp_path, "{file: more.yaml, expectations: [{expect_column_to_exist: {column: delay}}]}")
    quality = config.stream("flights").quality
    assert [each.name for each in quality.all_expectations] == ["expect_column_to_exist", BETWEEN]
    (tmp_path / "more.yaml").unlink()
    assert Config.model_validate(config.model_dump(mode="json")) == config  # the file is part of the config


@pytest.mark.parametrize(
    ("expectation", "at", "message"),
    [
        ("expect_x: {}", "expect_x", "Great Expectations 1.24.1 has no expectation 'expect_x'."),
        (f"{BETWEEN[:-1]}: {{}}", BETWEEN[:-1], f"did you mean '{BETWEEN}'?"),
        ("unexpected_rows_expectation: {}", "unexpected_rows_expectation", "unexpected_rows_expectation needs a SQL database"),
        (f"{BETWEEN}: {{colum: delay}}", f"{BETWEEN}.colum", "unknown argument; did you mean 'column'? Arguments: column, condition_parser,"),
        (f"{BETWEEN}: {{column: delay, severity: info}}", f"{BETWEEN}.severity", f"belongs beside {BETWEEN}, not among its arguments"),
        (f"{BETWEEN}: {{max_value: 3}}", BETWEEN, "needs the argument column"),
        (f"{BETWEEN}: 3", BETWEEN, "must be a section with the arguments column,"),
        (f"{BETWEEN}: {{column: [delay]}}", f"{BETWEEN}.column", "must be the name of a column"),
        ("expect_compound_columns_to_be_unique: {column_list: delay}", "expect_compound_columns_to_be_unique.column_list", "must be a list of columns"),
        (f"{BETWEEN}: {{column: delay, mostly: 95}}", f"{BETWEEN}.mostly", "must be a number from 0 to 1"),
        (f"{BETWEEN}: {{column: delay}}, severity: fatal", "severity", "must be critical, warning or info"),
        (f"{BETWEEN}: {{column: delay}}, expect_column_to_exist: {{column: delay}}", "", f"has 2 names ({BETWEEN}, expect_column_to_exist)"),
        ("severity: info", "", "has no name: an expectation is {<name>:"),
        (f"{BETWEEN}: {{column: delay, row_condition: 'carrier ='}}", f"{BETWEEN}.row_condition", "is not an expression of pandas"),
        (f"{BETWEEN}: {{column: delay, row_condition: '@x == 1'}}", f"{BETWEEN}.row_condition", "must not contain @"),
        (f"{BETWEEN}: {{column: delay, row_condition: {{type: comparison}}}}", f"{BETWEEN}.row_condition", "must have the form {type: comparison,"),
        (f"{BETWEEN}: {{column: delay, row_condition: a, condition_parser: great_expectations}}", f"{BETWEEN}.row_condition", "must name a column as col("),
        (f"{BETWEEN}: {{column: delay, row_condition: a, condition_parser: spark}}", f"{BETWEEN}.condition_parser", "must be pandas or great_expectations"),
        (f"{BETWEEN}: {{column: delay, condition_parser: pandas}}", f"{BETWEEN}.condition_parser", "has no effect without a row_condition"),
    ],
)  # fmt: skip
def test_an_expectation_that_is_wrong_is_refused_at_its_key(
    tmp_path: Path, expectation: str, at: str, message: str
) -> None:
    text = refusal(tmp_path, f"expectations: [{{{expectation}}}]")
    where = f"streams.yaml, line 10: streams.flights.quality.expectations.0{'.' if at else ''}{at}: "
    assert text.startswith(where)
    assert message in text


def test_each_wrong_expectation_has_a_line_of_its_own(tmp_path: Path) -> None:
    text = refusal(tmp_path, "expectations:\n        - expect_a: {}\n        - expect_b: {}")
    assert [line.split(": ")[0] for line in text.splitlines()] == ["streams.yaml, line 11", "streams.yaml, line 12"]


@pytest.mark.parametrize(
    "arguments",
    [
        "column: dealy",
        "column: delay, row_condition: 'dealy > 3'",
        "column: delay, row_condition: 'carrier == \"AA\" and abs(dealy) > 3'",
        "column: delay, row_condition: 'col(\"dealy\") > 3', condition_parser: great_expectations",
        "column: delay, row_condition: {type: or, conditions: [{type: nullity, column: {name: dealy}, is_null: true}]}",
    ],
)
def test_unknown_columns_are_refused_with_the_columns_of_the_table(tmp_path: Path, arguments: str) -> None:
    text = refusal(tmp_path, f"expectations: [{{{BETWEEN}: {{{arguments}}}}}]")
    assert f"unknown column 'dealy'; did you mean 'delay'? Columns: {COLUMNS}" in text


def test_columns_of_row_conditions_are_read(tmp_path: Path) -> None:
    quality = f"expectations: [{{{BETWEEN}: {{column: delay, max_value: 1, row_condition: '`carrier`.str.len() > 2 and offset > 5'}}}}]"
    [expectation] = load(tmp_path, quality).stream("flights").quality.all_expectations
    assert set(expectation.columns) == {"delay", "carrier", "offset"}


def test_errors_in_the_file_name_its_lines(tmp_path: Path) -> None:
    (tmp_path / "q.yaml").write_text(f"expectations:\n  - {BETWEEN}:\n      colum: delay\n  - expect_x: {{}}\n")
    text = refusal(tmp_path, "file: q.yaml")
    assert text.startswith("streams.yaml, line 10: streams.flights.quality.file: q.yaml, line 3: expectations.0.")
    assert "q.yaml, line 4: expectations.1.expect_x: Great Expectations 1.24.1 has no expectation" in text
    (tmp_path / "q.yaml").write_text(f"expectations:\n  - {BETWEEN}:\n      column: dealy\n")
    assert "q.yaml, line 3: unknown column 'dealy'; did you mean 'delay'?" in refusal(tmp_path, "file: q.yaml")
    (tmp_path / "q.yaml").write_text("checks: {}\n")
    assert "q.yaml, line 1: checks: unknown key. Known keys: expectations" in refusal(tmp_path, "file: q.yaml")
    (tmp_path / "q.yaml").write_text("a: [\n")
    assert "q.yaml, line" in refusal(tmp_path, "file: q.yaml")
    (tmp_path / "q.yaml").write_text("# nothing\n")
    assert "q.yaml is empty; it needs a list `expectations`" in refusal(tmp_path, "file: q.yaml")
    assert "must be the path of" in refusal(tmp_path, "file: 3")


def test_expectations_need_rows_in_a_table(tmp_path: Path) -> None:
    stream = f"{STREAM}    sink: files\n"
    text = refusal(tmp_path, f"expectations: [{{{BETWEEN}: {{column: delay}}}}]", stream)
    assert "quality.expectations: need rows in a table, which the sink files does not write" in text
    assert load(tmp_path, "checks: {volume: critical}", stream)


def test_built_in_checks_warn_unless_configured(tmp_path: Path) -> None:
    checks = load(tmp_path, "checks: {}").stream("flights").quality.checks
    assert {getattr(checks, name).failure for name in set(CheckName) - {CheckName.PARSER_FAILED}} == {Severity.WARNING}
    assert checks.parser_failed.failure is Severity.CRITICAL
    assert set(CheckName) == set(Checks.model_fields)


def test_a_check_is_a_severity_or_a_section(tmp_path: Path) -> None:
    quality = "checks: {clock_skew: off, offsets_unique: critical, volume: {at_least: 25%, at_most: 1000%}, event_time_null_share: {severity: info, max_share: 0.5}}"
    checks = load(tmp_path, quality).stream("flights").quality.checks
    assert (checks.clock_skew.severity, checks.clock_skew.failure) == (CheckSeverity.OFF, None)
    assert checks.offsets_unique.failure is Severity.CRITICAL
    assert (checks.volume.at_least, checks.volume.at_most) == (Decimal("0.25"), Decimal(10))
    assert (checks.event_time_null_share.failure, checks.event_time_null_share.max_share) == (
        Severity.INFO,
        Decimal("0.5"),
    )


@pytest.mark.parametrize(
    ("checks", "message"),
    [
        ("{volum: off}", "quality.checks.volum: unknown key; did you mean 'volume'? Known keys: rows_match_messages,"),
        ("{volume: fatal}", "quality.checks.volume: must be 'critical', 'warning', 'info' or 'off'"),
        ("{volume: {at_least: -1}}", "quality.checks.volume.at_least: must be a ratio: 50% or 0.5, 300% or 3"),
        ("{volume: {at_least: 400%}}", "quality.checks.volume.at_least: is more than at_most"),
        ("{clock_skew: {max_share: 5}}", "quality.checks.clock_skew.max_share: must be a share"),
    ],
)
def test_a_wrong_check_is_refused(tmp_path: Path, checks: str, message: str) -> None:
    assert message in refusal(tmp_path, f"checks: {checks}")


def test_the_json_schema_knows_expectations_and_short_forms() -> None:
    schema = json.loads(json_schema())
    stream = {"topics": ["t"], "parser": {"event_time": {"field": "t"}}, "table": "a.b"}

    def is_valid(quality: object) -> bool:
        config = {"version": 1, "storage": {"bucket": "archive"}, "streams": {"a": {**stream, "quality": quality}}}
        return jsonschema.Draft202012Validator(schema).is_valid(config)

    assert is_valid({"expectations": [{BETWEEN: {"column": "x"}, "severity": "critical"}]})
    assert is_valid({"checks": {"volume": "off", "clock_skew": {"max_share": "5%"}}})
    assert not is_valid({"expectations": [{"expect_x": {}}]})
    assert not is_valid({"expectations": [{BETWEEN: {"colum": "x"}}]})
    assert not is_valid({"checks": {"volume": "fatal"}})


def test_loading_expectations_does_not_import_the_library(tmp_path: Path) -> None:
    load(tmp_path, f"expectations: [{{{BETWEEN}: {{column: delay}}}}]")
    script = (
        "import sys, pathlib, waybill.config.models\n"
        f"waybill.config.models.load_config(pathlib.Path({str(tmp_path / 'streams.yaml')!r}))\n"
        "assert not {'great_expectations', 'pandas', 'pyarrow'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
